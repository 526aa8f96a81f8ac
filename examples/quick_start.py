"""Trains a model in Python without the trainer: paste it into a notebook, or run it.

Run `python examples/quick_start.py`. It prepares the ListOps set of preset cpu in data/ if needed.
"""

import jax
import numpy as np
import optax

from lra_fnet import experiment, tasks
from lra_fnet.training.score import make_scorer

# Any task, model, preset and bindings, as on the command line; `imports` and `gin_dirs` add yours.
built = experiment.load("listops", "fnet", "cpu", ["Encoder.num_layers=1"])
prepared = tasks.prepare(built.task, "data")
train = prepared.arrays("train")  # values uint8 [n, L], lengths int32 [n], labels int32 [n]

variables = built.init(seed=0)
optimizer = built.optimizer.transform()  # an Optax transformation
opt_state = optimizer.init(variables["params"])


@jax.jit
def step(variables, opt_state, values, lengths, labels, key):
    """Updates the model on one batch; returns the variables, the optimizer state and the loss."""
    constants = {name: tree for name, tree in variables.items() if name != "params"}

    def loss_of(params):
        ids, mask = built.task.tokens(values, lengths)
        parts = {"params": params, **constants}
        how = {"rngs": {"dropout": key}, "mutable": ["averages"]}  # those of BatchNorm, if any
        logits, averages = built.model.apply(parts, ids, mask, train=True, **how)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), averages

    params = variables["params"]
    (loss, averages), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    params = optax.apply_updates(params, updates)
    return {"params": params, **constants, **averages}, opt_state, loss


rng = np.random.default_rng(0)
for number in range(100):
    rows = rng.integers(len(train.labels), size=32)
    batch = (column[rows] for column in train)
    variables, opt_state, loss = step(variables, opt_state, *batch, jax.random.key(number))
    if number % 10 == 9:
        print(f"step {number + 1}: loss {loss:.3f}")

score = make_scorer(built.objective, batch_size=100)
counts = score(variables, prepared.arrays("validation"))
print(f"validation: {counts['correct']} of {counts['count']} correct")
