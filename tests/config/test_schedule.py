"""Durations, and warm-up and decay when the length of the run changes."""

import jax
import jax.numpy as jnp
import pytest

from lra_fnet import experiment


def steps(built):
    return built.run.num_steps, built.optimizer.warmup, built.optimizer.steps_per_cycle


@pytest.mark.parametrize(
    ("overrides", "want"),
    [
        ((), (6000, 300, 5700)),
        (("Run.num_steps=100",), (100, 5, 95)),
        (("Run.num_steps=7",), (7, 1, 6)),
        (("Optimizer.warmup=10", "Run.num_steps=100"), (100, 10, 90)),
        (("optim.Optimizer.warmup=80",), (6000, 80, 5920)),
        (("Run.num_steps=100", "Optimizer.steps_per_cycle=300"), (100, 5, 300)),
        # Epochs of 45,000 images, in batches of 32.
        (("Run.num_steps=2 epochs",), (2812, 141, 2671)),
        (("Run.num_steps=2 epochs", "Run.batch_size=16"), (5625, 281, 5344)),
        (("Run.num_steps=2 epochs", "Optimizer.warmup=1 epoch"), (2812, 1406, 1406)),
        (("Optimizer.warmup=10 %", "Run.num_steps=0.5 epochs"), (703, 70, 633)),
        (("Run.num_steps=0.6 epochs",), (844, 42, 802)),  # 843.75
    ],
)
def test_warm_up_and_cosine_follow_the_length_of_the_run_unless_they_are_set(overrides, want):
    built = experiment.load("image", "fnet", "cpu", overrides)
    assert steps(built) == want
    assert f"Run.num_steps = {want[0]}\n" in built.config
    rates = jax.vmap(built.optimizer.schedule())(jnp.arange(built.run.num_steps))
    assert (jnp.diff(rates[built.optimizer.warmup :]) <= 0).all()  # the cosine does not start again


@pytest.mark.parametrize(
    ("task", "preset", "module"),
    [
        *(("listops", "tuned", ""), ("image", "tuned", "optim.")),
        ("listops", "paper", ""),  # no file gives its decay a cycle
    ],
)
def test_a_decay_that_an_override_turns_on_ends_with_the_run(task, preset, module):
    factors = f"{module}Optimizer.factors='constant * linear_warmup * cosine_decay'"
    built = experiment.load(task, "transformer_rotary", preset, (factors,))
    num_steps, warmup, cycle = steps(built)
    assert warmup + cycle == num_steps
    own = (factors, "Optimizer.steps_per_cycle=70")
    assert steps(experiment.load(task, "transformer_rotary", preset, own))[2] == 70


def test_a_schedule_that_does_not_end_at_0_keeps_its_steps_and_shares():
    built = experiment.load("listops", "fnet", "paper", ("Run.num_steps=100",))
    assert built.optimizer.warmup == 1000  # its rates depend on it
    factors = 'Optimizer.factors="constant * linear_warmup * rsqrt_normalized_decay"'
    built = experiment.load("image", "s4d", "tuned", ("Run.num_steps=1000", factors))
    assert built.optimizer.warmup == 100  # "10 %" in the model's file


EPOCHS = "Run.num_steps = '2 epochs'\nOptimizer.warmup = '1 epoch'"


@pytest.mark.parametrize(
    ("text", "overrides", "want"),
    [
        ("Run.num_steps = 1_200", (), (1200, 100, 1100)),
        (  # in blocks
            "Run:\n    num_steps = 1_000\nOptimizer:\n    warmup = 200\n    steps_per_cycle = 800",
            (),
            (1000, 200, 800),
        ),
        ("fnet/Run.num_steps = 1_200\nlinear/Run.num_steps = 7", (), (1200, 100, 1100)),
        ("Run.num_steps = '2 epochs'", ("Run.batch_size=50",), (3840, 320, 3520)),
        (EPOCHS, ("Run.batch_size=50",), (3840, 1920, 1920)),
        (EPOCHS, ("Run.num_steps=80",), (80, 40, 40)),
    ],
)
def test_schedule_follows_a_length_that_a_file_sets(text, overrides, want, tmp_path):
    (tmp_path / "presets/cpu").mkdir(parents=True)
    path = tmp_path / "presets/cpu/listops.gin"
    path.write_text(f'DATASET = "short_128"\nMAX_LEN = 128\n{text}\n')
    assert steps(experiment.load("listops", "fnet", "cpu", overrides, gin_dirs=[tmp_path])) == want


@pytest.mark.parametrize("task", ["listops", "text", "image", "pathx"])
def test_both_stages_have_the_steps_of_one_and_each_its_own_schedule(task):
    whole, first = (experiment.load(task, "fnet", "cpu", denoise=stage) for stage in (False, True))
    second = experiment.load(task, "fnet", "cpu", done=first.run.num_steps)
    assert first.run.num_steps == round(0.5 * whole.run.num_steps)
    assert first.run.num_steps + second.run.num_steps == whole.run.num_steps
    for stage in (first, second):
        rates = [float(made.optimizer.schedule()(made.run.num_steps)) for made in (stage, whole)]
        assert rates[0] == pytest.approx(rates[1], abs=2e-6)
        peak = float(stage.optimizer.schedule()(stage.optimizer.warmup))
        assert peak == pytest.approx(whole.optimizer.learning_rate)
