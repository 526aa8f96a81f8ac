"""gin: load order, and every binding that would do nothing is refused with one line."""

import gin
import jax
import pytest

from lra_fnet import config, experiment
from lra_fnet.errors import UserError

CASES = [
    (preset, task, model)
    for preset in config.known("presets")
    for task in config.known("tasks")
    for model in config.known("models")
]


@pytest.mark.parametrize(("preset", "task", "model"), CASES)
def test_every_preset_task_and_model_builds_and_reads_all_its_bindings(preset, task, model):
    built = experiment.load(task, model, preset)  # raises on an unread binding
    shapes = jax.eval_shape(lambda: built.init(0))
    assert jax.tree.leaves(shapes["params"])
    gin.clear_config()  # below build nobody may ask gin: tracing the model again must not need it
    logits = jax.eval_shape(
        lambda v: built.model.apply(v, *built.abstract_inputs(2), train=False), shapes
    )
    assert logits.shape == (2, built.task.num_classes)


def test_the_presets_agree_with_each_other_on_what_a_model_is_given():
    """Nothing but the mixers differs between two models of one preset."""
    a, b = (experiment.load("listops", model, "cpu") for model in ("fnet", "linear"))
    assert (a.run, a.optimizer, a.task) == (b.run, b.optimizer, b.task)
    differing = {
        name
        for name in ("dim", "num_heads", "qkv_dim", "mlp_dim", "num_layers", "dropout", "norm")
        if getattr(a.model.encoder, name) != getattr(b.model.encoder, name)
    }
    assert not differing


def test_a_list_or_tuple_of_mixers_gives_each_layer_its_own():
    more = ["Attention.implementation=naive", "Attention.block_size=64"]
    for text in ("MIXERS=(@Fourier, @Attention)", "MIXERS=[@Fourier, @Attention]"):
        encoder = load(text, *more).model.encoder
        assert [encoder.mixer_class(layer).__name__ for layer in (0, 1)] == ["Fourier", "Attention"]
    with pytest.raises(UserError, match="lists 2 mixers for 3 layers"):
        load("MIXERS=(@Fourier, @Attention)", "Encoder.num_layers=3", *more)


def load(*overrides):
    return experiment.load("listops", "fnet", "cpu", overrides)


def test_an_override_wins_over_every_file():
    assert load("Run.num_steps=7").run.num_steps == 7
    assert load("Optimizer.factors=constant").optimizer.factors == "constant"  # a bare word
    assert load("Optimizer.factors='constant'").optimizer.factors == "constant"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("Runn.num_steps=7", ["Runn"]),
        ("Run.num_stepz=7", ["num_stepz", "did you mean Run.num_steps?"]),
        ("MAX_LENN=7", ["no macro MAX_LENN", "did you mean MAX_LEN?"]),
        ("Run.num_steps=%NOTHING", ["no macro NOTHING"]),
        ("Performer.num_features=8", ["nothing reads Performer.num_features"]),
        ("Run.num_steps=-5", ["Run.num_steps", "at least 1", "-5"]),
        ("Run.num_steps=ten", ["Run.num_steps", "'ten'"]),
        ("Run.microbatch=5", ["must divide Run.batch_size (32)"]),
        ("Run.num_steps", ["expects Name.parameter=value"]),
        ("Run.num_steps=[1,", ["expects a number, string, list or tuple"]),
        ("Optimizer.factors='constant * linear_warm'", ["'linear_warm'", "linear_warmup"]),
    ],
)
def test_a_mistaken_override_is_one_line_that_says_what(override, words):
    with pytest.raises(UserError) as caught:
        load(override)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_a_file_may_not_add_a_macro(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "odd.gin").write_text("MIXERS = @Fourier\nWIDTH = 3\n")
    with pytest.raises(UserError, match=r"odd.gin: no macro WIDTH; base.gin declares"):
        experiment.load("listops", "odd", "cpu", (), (), [tmp_path])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("lisstops", "fnet", "cpu"), ["unknown task", "listops", "did you mean listops?"]),
        (("listops", "fnett", "cpu"), ["unknown model", "performer"]),
        (("listops", "fnet", "gpu"), ["unknown preset", "paper", "cpu", "lra-code"]),
    ],
)
def test_unknown_names_list_the_known_ones(names, words):
    with pytest.raises(UserError) as caught:
        experiment.load(*names)
    assert all(word in str(caught.value) for word in words)


def test_makes_gin_variable_keeps_lists_strings_and_tuples_whole():
    text = """A.x=[1, 2,3]  B.y="two words" C.z=(0.9, 0.98) D.w='it is' E.v=None"""
    assert config.split_bindings(text) == [
        "A.x=[1, 2,3]",
        'B.y="two words"',
        "C.z=(0.9, 0.98)",
        "D.w='it is'",
        "E.v=None",
    ]
    assert config.split_bindings("") == []
    with pytest.raises(UserError, match="open quote or bracket"):
        config.split_bindings("A.x=[1, 2")


def test_a_user_registers_a_mixer_from_outside(tmp_path):
    module = tmp_path / "halving.py"
    module.write_text(
        "import gin\n"
        "from lra_fnet.models.mixers.mixer import Mixer\n"
        "@gin.configurable\n"
        "class Halving(Mixer):\n"
        "    uses_mask = True\n"
        "    factor: float\n"
        "    def __call__(self, x, mask, *, train):\n"
        "        return self.factor * x\n"
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "halving.gin").write_text("MIXERS = @Halving\nHalving.factor = 0.5\n")
    built = experiment.load("listops", "halving", "cpu", (), [str(module)], [tmp_path])
    assert built.uses_mask()
    assert "Halving.factor = 0.5" in built.config
