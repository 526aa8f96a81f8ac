"""Classifies raw texts with a trained run, and compares the encoder's vectors of them.

python examples/use_trained.py runs/cpu/listops/fnet/seed0 '[MAX 2 9 [MIN 4 7 ] 0 ]' '[MIN 3 8 ]'
"""

import sys

import numpy as np

import lra_fnet

if len(sys.argv) < 3:
    sys.exit(__doc__)
folder, *texts = sys.argv[1:]  # a run folder, or one that `lra-fnet export` wrote
run = lra_fnet.load_run(folder)
print(f"{run.result.model} on {run.task.name}: step {run.step}, {run.checkpoint} on validation")

for text, row in zip(texts, run.predict(texts), strict=True):
    likely = ", ".join(f"{run.task.class_names[i]} {row[i]:.3f}" for i in np.argsort(-row)[:3])
    print(f"{text}: {likely}")

# run.model is a Linen module; run.model.apply(run.variables, ids, mask, train=False) gives logits.
ids, mask = run.tokens(texts)
encoder = {name: tree.get("encoder", {}) for name, tree in run.variables.items()}
vectors = run.model.encoder.apply(encoder, ids, mask, train=False)  # float32 [n, D]
units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
print("cosines of the vectors:", np.round((units @ units.T).astype(float), 2).tolist())
