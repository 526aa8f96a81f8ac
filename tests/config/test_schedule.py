"""Durations, and warm-up and decay when the length of the run changes."""

import re

import jax
import jax.numpy as jnp
import pytest

from lra_fnet import experiment
from lra_fnet.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "want"),
    [
        ((), (6000, 300, 5700)),
        (("Run.num_steps=100",), (100, 5, 95)),
        (("Run.num_steps=2000",), (2000, 100, 1900)),
        (("Run.num_steps=7",), (7, 1, 6)),
        (("Optimizer.warmup=10", "Run.num_steps=100"), (100, 10, 90)),
        (("Optimizer.warmup=80",), (6000, 80, 5920)),
        (("optim.Optimizer.warmup=80",), (6000, 80, 5920)),
        (("Run.num_steps=100", "Optimizer.steps_per_cycle=300"), (100, 5, 300)),
    ],
)
def test_warm_up_and_cosine_follow_the_length_of_the_run_unless_they_are_set(overrides, want):
    built = experiment.load("image", "fnet", "cpu", overrides)
    optimizer = built.optimizer
    assert (built.run.num_steps, optimizer.warmup, optimizer.steps_per_cycle) == want
    rates = jax.vmap(optimizer.schedule())(jnp.arange(built.run.num_steps))
    assert (jnp.diff(rates[optimizer.warmup :]) <= 0).all()  # the cosine does not start again


@pytest.mark.parametrize(
    ("task", "preset", "module"),
    [
        *(("listops", "tuned", ""), ("retrieval", "tuned", ""), ("image", "tuned", "optim.")),
        ("listops", "paper", ""),  # no file gives its decay a cycle
    ],
)
def test_a_decay_that_an_override_turns_on_ends_with_the_run(task, preset, module):
    factors = f"{module}Optimizer.factors='constant * linear_warmup * cosine_decay'"
    built = experiment.load(task, "transformer_rotary", preset, (factors,))
    rates = jax.vmap(built.optimizer.schedule())(jnp.arange(built.run.num_steps))
    assert (jnp.diff(rates[built.optimizer.warmup :]) <= 0).all()
    assert rates[-1] < 1e-3 * built.optimizer.learning_rate
    own = experiment.load(
        task, "transformer_rotary", preset, (factors, "Optimizer.steps_per_cycle=70")
    )
    assert own.optimizer.steps_per_cycle == 70


def test_square_root_schedule_keeps_its_steps():
    built = experiment.load("listops", "fnet", "paper", ("Run.num_steps=100",))
    assert built.optimizer.warmup == 1000  # its rates depend on it


def test_a_share_of_the_run_follows_it_in_a_schedule_that_does_not_end_at_0():
    factors = 'Optimizer.factors="constant * linear_warmup * rsqrt_normalized_decay"'
    built = experiment.load("image", "s4d", "tuned", ("Run.num_steps=1000", factors))
    assert built.optimizer.warmup == 100  # "10 %" in the model's file


def test_schedule_follows_a_length_that_only_a_file_sets(tmp_path):
    (tmp_path / "presets/cpu").mkdir(parents=True)
    (tmp_path / "presets/cpu/listops.gin").write_text(
        'DATASET = "short_128"\nMAX_LEN = 128\nRun.num_steps = 1_200\n'
    )
    optimizer = experiment.load("listops", "fnet", "cpu", gin_dirs=[tmp_path]).optimizer
    assert (optimizer.warmup, optimizer.steps_per_cycle) == (100, 1100)


def test_schedule_of_a_file_may_be_in_blocks(tmp_path):
    (tmp_path / "presets/cpu").mkdir(parents=True)
    (tmp_path / "presets/cpu/listops.gin").write_text(
        'DATASET = "short_128"\nMAX_LEN = 128\nRun:\n    num_steps = 1_000\n'
        "Optimizer:\n    warmup = 200\n    steps_per_cycle = 800\n"
    )
    optimizer = experiment.load("listops", "fnet", "cpu", gin_dirs=[tmp_path]).optimizer
    assert (optimizer.warmup, optimizer.steps_per_cycle) == (200, 800)


@pytest.mark.parametrize(
    ("overrides", "want"),
    [
        (("Run.num_steps=2 epochs",), (2812, 141, 2671)),
        (("Run.num_steps=2 epochs", "Run.batch_size=16"), (5625, 281, 5344)),
        (("Run.num_steps=2 epochs", "Optimizer.warmup=1 epoch"), (2812, 1406, 1406)),
        (("Optimizer.warmup=10 %", "Run.num_steps=0.5 epochs"), (703, 70, 633)),
        (("Optimizer.warmup=10%", "Run.num_steps=0.5epochs"), (703, 70, 633)),
    ],
)
def test_durations_in_epochs_and_per_cent_are_steps(overrides, want):
    """Of 45,000 images; preset cpu has batches of 32."""
    built = experiment.load("image", "fnet", "cpu", overrides)
    optimizer = built.optimizer
    assert (built.run.num_steps, optimizer.warmup, optimizer.steps_per_cycle) == want
    assert f"Run.num_steps = {built.run.num_steps}\n" in built.config


def test_epochs_of_a_file_follow_a_batch_size_that_is_set_later(tmp_path):
    (tmp_path / "presets/cpu").mkdir(parents=True)
    (tmp_path / "presets/cpu/listops.gin").write_text(
        'DATASET = "short_128"\nMAX_LEN = 128\nRun.num_steps = "2 epochs"\n'
        'Run.eval_every = "1 epoch"\nOptimizer.warmup = "1 epoch"\n'
    )
    built = experiment.load("listops", "fnet", "cpu", ("Run.batch_size=50",), gin_dirs=[tmp_path])
    steps = built.run.num_steps, built.run.eval_every, built.optimizer.warmup
    assert steps == (3840, 1920, 1920)
    built = experiment.load("listops", "fnet", "cpu", ("Run.num_steps=80",), gin_dirs=[tmp_path])
    assert (built.run.num_steps, built.optimizer.warmup) == (80, 40)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("Run.num_steps=0 epochs", "Run.num_steps must be at least 1 and below 2147483648, got 0"),
        (
            "Run.num_steps=0.00001 epochs",
            "Run.num_steps must be at least 1 and below 2147483648, got 0",
        ),
        (
            "Run.num_steps='-1 epochs'",
            "steps must be a whole number of steps, or a duration such as '40 epochs', got '-1 ep",
        ),
        ("Run.num_steps=10 %", "a duration such as '40 epochs', got '10 %'"),
        ("Optimizer.warmup=abc", "a duration such as '40 epochs' or '10 %', got 'abc'"),
    ],
)
def test_texts_that_are_no_durations_fail_with_one_line(override, line):
    with pytest.raises(UserError, match=re.escape(line)):
        experiment.load("listops", "fnet", "cpu", (override,))


def test_epochs_of_an_unknown_set_fail_with_one_line():
    overrides = ["DATASET=pairs", "Run.num_steps=2 epochs"]
    with pytest.raises(UserError, match="does not have for retrieval/pairs: give"):
        experiment.load("retrieval", "fnet", "cpu", overrides)


def test_a_duration_is_rounded_to_the_nearest_step():
    """45,000 images in batches of 32: 0.6 epochs are 843.75 steps."""
    built = experiment.load("image", "fnet", "cpu", ("Run.num_steps=0.6 epochs",))
    assert built.run.num_steps == 844
