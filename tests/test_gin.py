"""The shipped gin files: every model builds, and presets have their sources' settings."""

import re
from functools import partial

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet import config, experiment
from lra_fnet.models.encoder import parameter_count

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
PRESETS = ("paper", "lra-code", "tuned", "small", "cpu")
MODELS = config.known("models")
FOLDER = config.GIN_DIR / "presets"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(  # pairs of texts with CLS, pixels as numbers
    ("preset", "task"), [("paper", "retrieval"), ("cpu", "image")]
)  # tokens: test_every_model_can_be_measured
def test_every_model_can_be_traced_without_gin(preset, task, model):
    built = experiment.load(task, model, preset)
    gin.clear_config()
    encoder = built.model.encoder  # later layers are like the second
    mixers = encoder.mixers[:2]
    encoder = encoder.clone(mixers=mixers, num_layers=len(mixers), parent=None)
    model = built.model.clone(encoder=encoder, parent=None)
    logits, shapes = jax.eval_shape(
        lambda key: model.init_with_output(key, *built.blank_inputs(2), train=False),
        jax.random.key(0),
    )
    assert logits.shape == (2, built.task.num_classes)
    assert jax.tree.leaves(shapes["params"])


def settings(preset, task, model):
    """All settings of a run except those of its mixers, in one dictionary."""
    built = experiment.load(task, model, preset)  # raises on a binding that nothing reads
    values = {"num_ids": built.task.num_ids, "num_classes": built.task.num_classes}
    modules = (built.model.encoder, built.model.head, built.run, built.optimizer, built.task)
    for module, prefix in zip(modules, ("", "head_", "", "", ""), strict=True):
        for name in module.__dataclass_fields__:
            if name not in ("mixers", "parent", "name"):
                values[prefix + name] = getattr(module, name)
    return values


def assert_settings(preset, task, want, model="fnet"):
    got = settings(preset, task, model)
    assert {name: got[name] for name in want} == want


# What LRA's code gives single models, copied by hand from its configs: width, qkv, feed-forward,
# heads, layers, dropout.
BASE = {"image": (32, 32, 64, 1, 1, 0.3), "pathfinder": (32, 16, 32, 2, 1, 0.1)}
_WIDE = (128, 64, 128, 8, 1, 0.3)
OVERRIDES = {
    ("image", "transformer"): _WIDE,
    ("image", "performer"): _WIDE,
    ("image", "linformer"): _WIDE,
    ("image", "linear_transformer"): _WIDE,
    ("image", "sparse"): _WIDE,
    ("image", "synthesizer"): _WIDE,
    ("image", "local"): (128, 64, 128, 2, 1, 0.3),
    ("image", "longformer"): (128, 64, 128, 4, 4, 0.3),
    ("image", "reformer"): (64, 32, 64, 8, 4, 0.3),
    ("image", "bigbird"): (128, 64, 128, 4, 1, 0.3),
    ("image", "sinkhorn"): (32, 32, 64, 1, 1, 0.1),
    ("pathfinder", "transformer"): (32, 16, 32, 4, 4, 0.2),
    ("pathfinder", "performer"): (32, 16, 32, 8, 4, 0.2),
    ("pathfinder", "linear_transformer"): (128, 64, 128, 2, 1, 0.2),
    ("pathfinder", "linformer"): (32, 16, 32, 2, 1, 0.2),
    ("pathfinder", "local"): (64, 32, 64, 4, 2, 0.1),
    ("pathfinder", "longformer"): (32, 16, 32, 2, 2, 0.1),
    ("pathfinder", "sparse"): (32, 16, 32, 8, 1, 0.2),
    ("pathfinder", "reformer"): (64, 32, 64, 8, 2, 0.2),
    ("pathfinder", "sinkhorn"): (32, 16, 64, 4, 2, 0.2),
    ("pathfinder", "synthesizer"): (64, 32, 64, 4, 2, 0.2),
    ("pathfinder", "bigbird"): (64, 32, 64, 2, 4, 0.2),
}
SIZES = ("dim", "qkv_dim", "mlp_dim", "num_heads", "num_layers", "dropout")
# The settings that a model may have instead of its preset's.
MAY_DIFFER = {"learning_rate", "groups", "positions", "initialisation"}
ORIGINAL = {"norm", "norm_epsilon", "embedding", "num_types"}
OF_THE_CODE = {*SIZES, "attention_dropout", "head_mlp_dim", "pooling", "weight_decay"}
# Models with published recipes at preset tuned.
WITH_RECIPE = {"conv", "long_conv", "lru", "mamba", "mega", "s4", "s4d", "s5", "sgconv"}
WITH_RECIPE |= {"transformer_rotary"}
SAME = ("num_ids", "num_classes", "max_len", "inputs", "pooling", "config", "head_interaction")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_model_builds_and_differs_only_where_it_may(preset, task):
    base = settings(preset, task, "ff_only")
    for model in MODELS:
        got = settings(preset, task, model)
        differing = {name for name in base if got[name] != base[name]}
        if preset == "tuned" and model in WITH_RECIPE:
            assert not differing & {*SAME}
            assert got["positions"] == "none"
            continue
        searched = {"pooling", "dropout"} | ({"qkv_dim"} if model == "mega" else set())
        more = {"lra-code": OF_THE_CODE, "cpu": searched}.get(preset, set())
        assert differing <= MAY_DIFFER | more | (ORIGINAL if model == "fnet_original" else set())
        if preset == "lra-code" and task in BASE:
            want = OVERRIDES.get((task, model), BASE[task])
            assert tuple(got[name] for name in SIZES) == want
        if preset == "paper":
            assert got["learning_rate"] == base["learning_rate"]  # it is never retuned


def test_lra_codes_other_settings_of_single_models():
    for task, size in (("listops", 50), ("image", 64), ("pathfinder", 64)):
        assert experiment.load(task, "local", "lra-code").model.encoder.mixers[0].block_size == size
    for model, want in (("local", "mean_all"), ("longformer", "mean_all"), ("fnet", "cls")):
        assert_settings("lra-code", "image", {"pooling": want}, model)
    assert_settings("lra-code", "image", {"weight_decay": 0.7}, "sinkhorn")
    for task in ("pathfinder", "pathx"):
        assert_settings("lra-code", task, {"head_mlp_dim": 0}, "sinkhorn")
    for task in TASKS:
        mixer = experiment.load(task, "performer", "lra-code").model.encoder.mixers[0]
        want = ("softmax", 2) if task == "listops" else ("relu", 0)
        assert (mixer.kernel, mixer.num_features) == want
        mixer = experiment.load(task, "reformer", "lra-code").model.encoder.mixers[0]
        assert mixer.chunk_size == mixer.max_len // 10 + 1  # as it fills texts


def test_lra_code_treats_padding_as_each_model_does_there():
    padding = dict.fromkeys(("transformer", "sparse", "longformer", "synthesizer"), "uniform")
    padding |= dict.fromkeys(("performer", "linear_transformer", "linformer"), "seen")
    padding |= dict.fromkeys(("local", "reformer", "sinkhorn"), "hidden") | {"bigbird": "zero"}
    for model, want in padding.items():
        encoder = experiment.load("pathfinder", model, "lra-code").model.encoder
        assert {mixer.padding for mixer in encoder.mixers} == {want}
        assert encoder.uses_mask == (want != "seen")


def test_every_file_of_a_preset_has_a_name_that_is_read():
    tasks, models = config.known("tasks"), config.known("models")
    read = {"base.gin", *(f"{task}.gin" for task in tasks), *(f"models/{m}.gin" for m in models)}
    for preset in config.known("presets"):
        paths = (FOLDER / preset).rglob("*.gin")
        assert {path.relative_to(FOLDER / preset).as_posix() for path in paths} <= read
    assert len(list(config.GIN_DIR.rglob("*.gin"))) <= 130


def bindings(preset, file):
    """The bindings of a preset's file: name -> the text after "=", with its comment."""
    text = (FOLDER / f"{preset}/{file}.gin").read_text()
    return dict(re.findall(r"^([\w.]+) = (.*(?:\n {2,}.*)*)", text, re.MULTILINE))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_task_of_a_preset_binds_only_what_its_base_does_not(preset, task):
    base, values = bindings(preset, "base"), bindings(preset, task)
    for name in base.keys() & values.keys():
        first, second = (text.partition("#")[0].strip() for text in (base[name], values[name]))
        keeps_its_steps = name == "Optimizer.warmup" and "Run.num_steps" in values
        assert first != second or keeps_its_steps, name


@pytest.mark.parametrize("preset", PRESETS)
def test_what_all_tasks_of_a_preset_share_is_in_its_base(preset):
    shared = set.intersection(*({*bindings(preset, task).items()} for task in TASKS))
    assert not shared


# By hand from the recipes.
SIZES_OF_RECIPES = ("num_layers", "dim", "batch_size", "epochs", "learning_rate", "weight_decay")
SIZES_OF_RECIPES += ("norm", "dropout", "state", "own_rate")
RECIPES = {
    ("listops", "s5"): (8, 128, 50, 40, 3e-3, 0.04, "pre", 0, 16, 1e-3),
    ("text", "s5"): (6, 256, 50, 35, 4e-3, 0.07, "pre", 0.1, 192, 1e-3),
    ("retrieval", "s5"): (6, 128, 32, 20, 2e-3, 0.05, "pre", 0, 256, 1e-3),
    ("image", "s5"): (6, 512, 50, 250, 4.5e-3, 0.07, "pre", 0.1, 384, 1e-3),
    ("pathfinder", "s5"): (6, 192, 64, 200, 4.5e-3, 0.03, "pre", 0.05, 256, 9e-4),
    ("pathx", "s5"): (6, 128, 32, 75, 1.8e-3, 0.06, "pre", 0, 256, 6e-4),
    ("listops", "s4"): (6, 256, 32, 40, 0.01, 0.05, "post", 0, 4, 1e-3),
    ("text", "s4"): (6, 256, 16, 32, 0.01, 0.05, "pre", 0, 4, 1e-3),
    ("retrieval", "s4"): (6, 256, 64, 20, 0.01, 0.05, "pre", 0, 4, 1e-3),
    ("image", "s4"): (6, 512, 50, 200, 0.01, 0.05, "post", 0.1, 64, 1e-3),
    ("pathfinder", "s4"): (6, 256, 64, 200, 0.004, 0.05, "pre", 0, 64, 1e-3),
    ("pathx", "s4"): (6, 256, 16, 50, 0.001, 0.05, "pre", 0, 64, 1e-3),
    # The dropout of the kernels, and the threshold.
    ("listops", "long_conv"): (8, 128, 50, 40, 0.01, 0.05, "post", 0.2, 0.002, 5e-4),
    ("text", "long_conv"): (6, 256, 16, 32, 0.01, 0.05, "pre", 0.2, 0.003, 1e-3),
    ("retrieval", "long_conv"): (6, 256, 64, 20, 0.01, 0.05, "pre", 0.1, 0.004, 1e-4),
    ("image", "long_conv"): (6, 512, 50, 200, 0.01, 0.05, "post", 0.2, 0.003, 1e-3),
    ("pathfinder", "long_conv"): (6, 256, 64, 200, 0.004, 0.03, "pre", 0.3, 0.001, 1e-3),
    ("pathx", "long_conv"): (6, 256, 16, 50, 5e-4, 0.05, "pre", 0.3, 0.001, 5e-4),
}
for _task in TASKS:
    RECIPES[_task, "s4d"] = RECIPES[_task, "s4"]
ROWS = {"listops": 96_000, "text": 22_500, "retrieval": 147_086, "image": 45_000}
ROWS |= {"pathfinder": 160_000, "pathx": 160_000}


@pytest.mark.parametrize(("task", "model"), RECIPES)
def test_preset_tuned_has_the_published_recipes(task, model):
    built = experiment.load(task, model, "tuned")
    got, (mixer, *_) = settings("tuned", task, model), built.model.encoder.mixers
    got["state"] = mixer.threshold if model == "long_conv" else mixer.state
    got["dropout"] = got["attention_dropout"] if model == "long_conv" else got["dropout"]
    got["epochs"] = round(built.run.num_steps * built.run.batch_size / ROWS[task], 2)
    own = {name: rate for name, (rate, _) in got["groups"].items()}
    steps = {"log_dt"} if model in ("s4", "s4d") else set()  # tests/models/test_recipes.py
    got["own_rate"], *others = {rate for name, rate in own.items() if name not in steps}
    assert not others
    assert tuple(got[name] for name in SIZES_OF_RECIPES) == RECIPES[task, model]
    decayed = {name: decay for name, (_, decay) in got["groups"].items() if decay}
    assert decayed == ({"b": 0.06} if (task, model) == ("pathx", "s5") else {})
    assert got["mlp_dim"] == 0
    epoch = ROWS[task] / got["batch_size"]
    if model != "long_conv":  # tests/models/test_recipes.py has these of long convolutions
        warmup = round(epoch) if model == "s5" else round(built.run.num_steps / 10)
        assert got["warmup"] == (0 if (task, model) == ("text", "s5") else warmup)
        assert got["batch_norm"] is not None
    assert got["warmup"] + got["steps_per_cycle"] == got["num_steps"]
    assert got["eval_every"] == round(epoch)


# The settings of the LRA paper's text with the two exceptions of the FNet paper, by hand.
PAPER = {
    "listops": (2000, 512, 8, 6, 512, 2048, 0.05, 5_000, 32),
    "text": (4000, 512, 8, 6, 512, 2048, 0.05, 20_000, 32),
    "retrieval": (4000, 128, 4, 4, 128, 512, 0.5, 5_000, 32),
    "image": (1024, 128, 4, 1, 64, 128, 0.01, 200 * 175, 256),
    "pathfinder": (1024, 128, 8, 4, 128, 128, 0.001, 200 * 312, 512),
    "pathx": (16384, 128, 8, 4, 128, 128, 0.001, 200 * 2500, 64),
}
# What neither paper says about a task, in addition to NOWHERE, which they say about no task.
UNSPECIFIED = {
    "listops": "learning_rate batch_size weight_decay",
    "text": "",
    "retrieval": "qkv_dim weight_decay",
    "image": "dim pooling batch_size weight_decay steps_per_cycle",
    "pathfinder": "dim pooling batch_size weight_decay steps_per_cycle",
    "pathx": "dim num_heads num_layers qkv_dim mlp_dim pooling batch_size num_steps learning_rate "
    "weight_decay steps_per_cycle",
}
NOWHERE = "positions dropout attention_dropout dtype factors warmup clip_norm"
RSQRT = "constant * linear_warmup * rsqrt_decay"
COSINE = "constant * linear_warmup * cosine_decay"


@pytest.mark.parametrize("task", TASKS)
def test_preset_paper_has_the_settings_of_the_papers(task):
    names = ("max_len", "dim", "num_heads", "num_layers", "qkv_dim", "mlp_dim")
    names += ("learning_rate", "num_steps", "batch_size")
    want = dict(zip(names, PAPER[task], strict=True)) | {"inputs": "tokens", "norm": "pre"}
    want["head_mlp_dim"] = want["mlp_dim"]
    want["config"] = {"retrieval": "aan", "pathfinder": "hard_32", "pathx": "hard_128"}.get(
        task, "full"
    )
    want["head_interaction"] = "nli" if task == "retrieval" else "none"
    want["pooling"] = "mean_all" if task in ("pathfinder", "pathx") else "cls"
    want["num_ids"] = 16 if task == "listops" else 257  # black is a token
    assert_settings("paper", task, want)


@pytest.mark.parametrize("task", TASKS)
def test_preset_paper_marks_what_the_papers_leave_open_and_takes_it_from_the_code(task):
    lines = bindings("paper", "base") | bindings("paper", task)
    marked = {n.partition(".")[2] for n in lines if "unspecified by the papers" in lines[n]}
    assert marked == {*NOWHERE.split(), *UNSPECIFIED[task].split()}
    code = settings("lra-code", task, "fnet")
    sizes = {"dim", "num_heads", "num_layers", "qkv_dim", "mlp_dim"}  # chosen in PAPER
    base = {name: code[name] for name in marked - sizes}
    assert_settings("paper", task, base)


# The base configs of LRA's code, by hand.
RUNS_OF_CODE = {
    "listops": (2000, 32, 5_000, 50, 0.05, 1000, 0.1, None),
    "text": (1000, 32, 20_000, 100, 0.05, 8000, 0.1, None),
    "retrieval": (4000, 32, 5_000, 100, 0.05, 8000, 0.1, None),
    "image": (1024, 256, 35_000, 175, 5e-4, 175, 0, None),
    "pathfinder": (1024, 512, 62_400, 312, 1e-3, 312, 0, None),
    "pathx": (16384, 64, 500_000, 2500, 1e-3, 2500, 0, 1.0),
}
MODELS_OF_CODE = {
    "listops": (512, 8, 4, 512, 1024, 0.1, 0.1, "cls", "sinusoidal", "full", 16),
    "text": (256, 4, 4, 256, 1024, 0.1, 0.1, "cls", "sinusoidal", "lra_code", 257),
    "retrieval": (128, 4, 4, 128, 512, 0.1, 0.1, "first", "sinusoidal", "aan", 257),
    "image": (32, 1, 1, 32, 64, 0.3, 0.2, "cls", "learned", "full", 256),
    "pathfinder": (32, 2, 1, 16, 32, 0.1, 0.1, "mean_all", "sinusoidal", "hard_32", 256),
    "pathx": (32, 2, 1, 16, 32, 0.1, 0.1, "mean_all", "learned", "hard_128", 256),
}
COLUMNS = "max_len batch_size num_steps eval_every learning_rate warmup weight_decay clip_norm "
COLUMNS += "dim num_heads num_layers qkv_dim mlp_dim dropout attention_dropout "
COLUMNS += "pooling positions config num_ids"
RATES = {  # the largest and the last learning rate of a run in LRA's code
    "listops": (1.58e-3, 7.07e-4),
    "text": (5.59e-4, 3.54e-4),
    "retrieval": (3.49e-4, 3.49e-4),
    "image": (5e-4, 0),
    "pathfinder": (1e-3, 0),
    "pathx": (1e-3, 0),
}


@pytest.mark.parametrize("task", TASKS)
def test_preset_lra_code_has_the_settings_of_its_configs(task):
    same = {"inputs": "tokens", "norm": "pre", "norm_epsilon": 1e-6, "decay_mask": "all"}
    row = (*RUNS_OF_CODE[task], *MODELS_OF_CODE[task])
    values = dict(zip(COLUMNS.split(), row, strict=True))
    same |= {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "head_mlp_dim": values["mlp_dim"]}
    same["factors"] = RSQRT if values["learning_rate"] == 0.05 else COSINE
    same["head_interaction"] = "concat" if task == "retrieval" else "none"
    assert_settings("lra-code", task, values | same)
    built = experiment.load(task, "fnet", "lra-code")
    rates = built.optimizer.schedule()(jnp.arange(built.run.num_steps))
    largest, last = RATES[task]
    assert float(rates.max()) == pytest.approx(largest, rel=3e-3)
    assert float(rates[-1]) == pytest.approx(last, rel=3e-3, abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_our_presets_decay_to_the_end_and_read_pixels_as_numbers(task):
    for preset in ("tuned", "small", "cpu"):
        built = experiment.load(task, "fnet", preset)
        rates = np.asarray(built.optimizer.schedule()(np.arange(built.run.num_steps)))
        assert float(rates.max()) == pytest.approx(built.optimizer.learning_rate)
        assert float(rates[-1]) < 0.05 * built.optimizer.learning_rate
        rises = np.diff(rates[built.optimizer.warmup :]) > 1e-3 * built.optimizer.learning_rate
        assert not rises.any()  # no second cycle
        images = task in ("image", "pathfinder", "pathx")
        numbers = images and (preset, task) != ("cpu", "pathfinder")
        want = {"pooling": "mean", "inputs": "pixels" if numbers else "tokens"}
        want["positions"] = "learned" if images else "sinusoidal"
        want["head_interaction"] = "nli" if task == "retrieval" else "none"
        assert_settings(preset, task, want, "transformer")
    full = {"listops": 2000, "text": 4000, "retrieval": 4000, "pathx": 16384}.get(task, 1024)
    assert_settings("tuned", task, {"max_len": full})  # LRA forbids changing a task's length


@pytest.mark.parametrize("model", ["conv", "fnet", "mega", "performer", "s4d", "transformer"])
def test_equal_parameters_mean_that_no_mixer_reads_the_width_of_attention(model):
    """The traced program is the other way to see whether one reads it."""
    built = [experiment.load("text", model, "cpu", [f"Encoder.qkv_dim={n}"]) for n in (32, 64)]
    programs = {
        str(jax.make_jaxpr(partial(b.model.apply, train=False))(b.shapes(), *b.blank_inputs(1)))
        for b in built
    }
    counts = {parameter_count(one.shapes()) for one in built}
    assert bool(config.inert(counts)) == (len(programs) == 1)
