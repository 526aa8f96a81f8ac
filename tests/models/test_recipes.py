"""Recipes of preset tuned, by hand from their sources; tests/test_gin.py has the other sizes."""

import pytest

from lra_fnet import experiment

# Momentum of BatchNorm (None: LayerNorm) and warm-up, in per cent of the run.
LONG_CONV = {
    "listops": (0.9, 12.5),
    "text": (0.9, 10),
    "retrieval": (0.9, 5),
    "image": (None, 0.5),
    "pathfinder": (0.9, 0.5),
    "pathx": (0.9, 2),
}
# Layers, width, modes, batch, epochs, dropout, momentum of BatchNorm, gate, learning rate.
LRU = {
    "listops": (4, 256, 128, 64, 40, 0.1, 0.99, "full", 1e-3),
    "text": (4, 256, 128, 64, 35, 0.1, 0.99, "full", 1e-3),
    "image": (6, 512, 384, 50, 250, 0.1, 0.99, "full", 1e-3),
    "pathx": (6, 128, 256, 32, 75, 0.0, 0.9, "half1", 4e-3),
}
# Layers; width, feed-forward, queries, values; f, norm; batch, epochs; dropout; rate, decay; the
# warm-up in steps or as a share of the run.
MEGA = {
    "listops": (6, 80, 160, 64, 160, "softmax", "post", 64, 60, 0.1, 1e-3, 0.01, 3_000),
    "text": (4, 128, 256, 64, 256, "softmax", "post", 50, 50, 0.1, 4e-3, 0.01, 0.4),
    "retrieval": (6, 128, 256, 64, 256, "softmax", "post", 64, 40, 0.1, 3e-3, 0.04, 10_000),
    "image": (8, 160, 320, 96, 320, "laplace", "pre", 50, 200, 0.0, 0.01, 0.02, 0.05),
    "pathfinder": (6, 128, 256, 64, 256, "laplace", "pre", 128, 200, 0.0, 0.01, 0.01, 0.2),
    "pathx": (4, 64, 128, 32, 128, "laplace", "pre", 128, 100, 0.0, 0.01, 0.01, 0.2),
}
ROWS = {"retrieval": 147_086, "pathfinder": 160_000}
ROWS |= {"listops": 96_000, "text": 22_500, "image": 45_000, "pathx": 160_000}
# Of the steps dt of S4; 0.001 elsewhere.
STEP_RATES = {"listops": 0.01, "text": 0.01, "retrieval": 0.01}


def load(task, model):
    built = experiment.load(task, model, "tuned")
    optimizer, run = built.optimizer, built.run
    assert optimizer.warmup + optimizer.steps_per_cycle == run.num_steps
    assert built.model.encoder.norm_epsilon == 1e-5  # the default of flax and PyTorch
    return built.model.encoder, optimizer, run


@pytest.mark.parametrize("task", LONG_CONV)
def test_long_convolutions_have_the_norm_and_the_warm_up_of_safari(task):
    encoder, optimizer, run = load(task, "long_conv")
    momentum, per_cent = LONG_CONV[task]
    assert encoder.batch_norm == momentum
    assert optimizer.warmup == round(per_cent / 100 * run.num_steps)


@pytest.mark.parametrize("task", LRU)
def test_lru_has_its_two_recipes(task):
    encoder, optimizer, run = load(task, "lru")
    mixer, epochs = encoder.mixers[0], round(run.num_steps * run.batch_size / ROWS[task], 2)
    sizes = encoder.num_layers, encoder.dim, mixer.state, run.batch_size, epochs
    rates = encoder.dropout, encoder.batch_norm, mixer.gate, optimizer.learning_rate
    assert sizes + rates == LRU[task]
    groups = dict.fromkeys(("decay", "gamma", "b"), (5e-4, 0.0))
    if task == "pathx":
        groups = dict.fromkeys(("decay", "gamma"), (1e-3, 0.0))
    assert optimizer.groups == groups
    assert optimizer.warmup == (160_000 // 32 if task == "pathx" else 0)
    start = 0 if task == "pathx" else optimizer.learning_rate
    assert optimizer.schedule()(0) == pytest.approx(start)


@pytest.mark.parametrize("task", MEGA)
def test_mega_has_the_authors_recipe(task):
    encoder, optimizer, run = load(task, "mega")
    mixer, epochs = encoder.mixers[0], round(run.num_steps * run.batch_size / ROWS[task], 2)
    sizes = encoder.num_layers, encoder.dim, encoder.mlp_dim, mixer.qkv_dim
    sizes += mixer.expansion * encoder.dim, mixer.function, encoder.norm, run.batch_size, epochs
    rates = encoder.dropout, optimizer.learning_rate, optimizer.weight_decay
    warmup = MEGA[task][-1]
    assert sizes + rates == MEGA[task][:-1]
    assert optimizer.warmup == (warmup if warmup > 1 else round(warmup * run.num_steps))
    assert encoder.batch_norm == (None if encoder.norm == "post" else 0.9)
    assert (mixer.state, mixer.chunk, mixer.dropout) == (16, None, 0)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-8)
    assert (optimizer.clip_norm, optimizer.decay_mask, optimizer.groups) == (1, "all", None)
    rate = optimizer.schedule()
    middle = optimizer.warmup + (run.num_steps - optimizer.warmup) // 2
    want = [0, optimizer.learning_rate, optimizer.learning_rate / 2, 0]
    got = [float(rate(step)) for step in (0, optimizer.warmup, middle, run.num_steps)]
    assert got == pytest.approx(want, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("task", LONG_CONV)
@pytest.mark.parametrize(("model", "others"), [("s4", "apb"), ("s4d", "a")])
def test_the_steps_of_s4_have_the_rate_of_their_task(task, model, others):
    _, optimizer, _ = load(task, model)
    groups = dict.fromkeys(others, (0.001, 0.0))
    assert optimizer.groups == groups | {"log_dt": (STEP_RATES.get(task, 1e-3), 0.0)}
