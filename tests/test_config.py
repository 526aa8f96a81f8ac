"""gin: the load order, what the presets bind, and errors for bindings without effect."""

import re
import subprocess
import sys

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet import config, experiment
from lra_fnet.config import parsing
from lra_fnet.errors import UserError

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
PRESETS = ("paper", "lra-code", "tuned", "small", "cpu")
CORPUS = ("paper-pretrain", "cpu-pretrain")  # tests/test_pretrain_objective.py
MODELS = config.known("models")
FOLDER = config.GIN_DIR / "presets"


def test_every_preset_and_task_is_tested():
    assert set(config.known("presets")) == {*PRESETS, *CORPUS}
    assert set(config.known("tasks")) == {*TASKS, "corpus", "csv", "images"}  # tests/tasks


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(  # pairs of texts with CLS, pixels as numbers
    ("preset", "task"), [("paper", "retrieval"), ("cpu", "image")]
)  # tokens: test_parameter_count_is_the_closed_formula
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
MORE = {  # and other settings
    ("image", "local"): {"pooling": "mean_all"},
    ("image", "longformer"): {"pooling": "mean_all"},
    ("image", "sinkhorn"): {"weight_decay": 0.7},
    ("pathfinder", "sinkhorn"): {"head_mlp_dim": 0},
    ("pathx", "sinkhorn"): {"head_mlp_dim": 0},
}
NO_WEIGHT_DROPOUT = ("bigbird", "reformer")
# As on images of other tasks.
# Models with published recipes at preset tuned, and the tasks of which have a file.
TASKS_OF_RECIPES = {
    "conv": {"listops", "image", "pathfinder"},
    "long_conv": {*TASKS},
    "lru": {"listops", "text", "image", "pathfinder", "pathx"},
    "s4d": {*TASKS},
    "s5": {*TASKS},
    "transformer_rotary": {*TASKS},
}
# The parameters with their own learning rate.
GROUPS = {
    "long_conv": ("kernel",),
    "lru": ("decay", "gamma", "b"),
    "s4d": ("a", "log_dt"),
    "s5": ("lambda", "b", "log_dt"),
}
# Presets of our own: models have the same sizes and steps.
OURS = ("cpu", "small")
MAY_DIFFER = ("learning_rate", "groups", "positions", "initialisation")
LEARNED = {("pathfinder", "tuned")}
# Mixers that know positions by themselves.
ORDERED = {"conv", "long_conv", "lru", "s4d", "s5", "transformer_rotary"}
ORIGINAL = {"norm": "post", "norm_epsilon": 1e-12, "embedding": "bert", "num_types": 4}


def model_settings(preset, task, model):
    """The settings that a model has instead of its preset's, except those of its mixer."""
    if model == "fnet_original":
        learned = task in ("image", "pathx") or (task, preset) in LEARNED
        return ORIGINAL | ({} if learned else {"positions": "learned"})
    if model == "transformer_rotary":
        return {"positions": "none"}
    if preset != "lra-code":
        return {}
    values = {"attention_dropout": 0.0} if model in NO_WEIGHT_DROPOUT else {}
    if (task, model) in OVERRIDES:
        pairs = zip(SIZES, OVERRIDES[task, model], BASE[task], strict=True)
        values |= {name: value for name, value, base in pairs if value != base}
    if "mlp_dim" in values:
        values["head_mlp_dim"] = values["mlp_dim"]
    return values | MORE.get((task, model), {})


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_model_builds_and_differs_only_in_its_mixer_and_lras_overrides(preset, task):
    base = settings(preset, task, "ff_only")
    for model in MODELS:
        if preset in OURS:
            changed = settings(preset, task, model)
            names = {name for name in base if changed[name] != base[name]}
            assert names <= {*MAY_DIFFER, *(ORIGINAL if model == "fnet_original" else ())}
            continue
        changes = model_settings(preset, task, model)
        if preset == "tuned" and model in TASKS_OF_RECIPES:
            names = ("num_ids", "num_classes", "max_len", "inputs", "pooling", "config")
            names += ("head_mlp_dim", "head_interaction")
            changed = settings(preset, task, model)
            assert {n: changed[n] for n in names} == {n: base[n] for n in names}
            assert changed["positions"] == "none"
            continue
        assert all(base[name] != value for name, value in changes.items())
        assert settings(preset, task, model) == base | changes


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
    read |= {f"{task}.{model}.gin" for task in tasks for model in models}
    for preset in config.known("presets"):
        files = {
            p.relative_to(FOLDER / preset).as_posix() for p in (FOLDER / preset).rglob("*.gin")
        }
        assert files <= read


def test_models_have_files_of_their_own_where_lras_code_and_the_recipes_differ():
    pairs = {f"lra-code/{task}.{model}.gin" for task, model in OVERRIDES}
    pairs |= {f"lra-code/{task}.reformer.gin" for task in TASKS}
    pairs |= {f"lra-code/{name}.gin" for name in ("listops.performer", "pathx.sparse")}
    pairs.add("lra-code/pathx.sinkhorn.gin")
    pairs |= {f"tuned/{t}.{model}.gin" for model, of in TASKS_OF_RECIPES.items() for t in of}
    of_both = [p for preset in ("paper", "lra-code", "tuned") for p in (FOLDER / preset).iterdir()]
    files = {path.relative_to(FOLDER).as_posix() for path in of_both if path.stem.count(".")}
    assert files == pairs


def test_lras_performer_has_two_softmax_features_on_listops_and_none_elsewhere():
    for task in TASKS:
        mixer = experiment.load(task, "performer", "lra-code").model.encoder.mixers[0]
        want = ("softmax", 2) if task == "listops" else ("relu", 0)
        assert (mixer.kernel, mixer.num_features) == want


def test_lras_reformer_has_ten_chunks():
    for task in TASKS:
        mixer = experiment.load(task, "reformer", "lra-code").model.encoder.mixers[0]
        filled = mixer.max_len + 10 - mixer.max_len % 10  # as its code fills the text
        assert mixer.chunk_size == filled / 10


def test_the_file_of_a_task_and_model_wins_over_that_of_the_model():
    for task, size in (("listops", 50), ("image", 64), ("pathfinder", 64)):
        assert experiment.load(task, "local", "lra-code").model.encoder.mixers[0].block_size == size


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
    assert not {"DATASET", "MAX_LEN"} & base.keys()
    names = base.keys() | values.keys()
    assert names >= {"DATASET", "MAX_LEN", "Encoder.inputs", "Encoder.dropout"}
    assert ("Head.interaction" in names) == (task == "retrieval")
    pixels = task in ("image", "pathfinder", "pathx")
    black = {name for name in names if name.endswith(".black_is_padding")}
    assert len(black) == (preset == "lra-code" and pixels)
    parts = {name.partition(".")[0] for name in names - black if "." in name}
    assert parts == {"Encoder", "Head", "Run", "Optimizer"}


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
    ("listops", "s4d"): (6, 256, 32, 40, 0.01, 0.05, "post", 0, 4, 1e-3),
    ("text", "s4d"): (6, 256, 16, 32, 0.01, 0.05, "pre", 0, 4, 1e-3),
    ("retrieval", "s4d"): (6, 256, 64, 20, 0.01, 0.05, "pre", 0, 4, 1e-3),
    ("image", "s4d"): (6, 512, 50, 200, 0.01, 0.05, "post", 0.1, 64, 1e-3),
    ("pathfinder", "s4d"): (6, 256, 64, 200, 0.004, 0.05, "pre", 0, 64, 1e-3),
    ("pathx", "s4d"): (6, 256, 16, 50, 0.001, 0.05, "pre", 0, 64, 1e-3),
    # The dropout of the kernels, and the threshold.
    ("listops", "long_conv"): (8, 128, 50, 40, 0.01, 0.05, "post", 0.2, 0.002, 5e-4),
    ("text", "long_conv"): (6, 256, 16, 32, 0.01, 0.05, "pre", 0.2, 0.003, 1e-3),
    ("retrieval", "long_conv"): (6, 256, 64, 20, 0.01, 0.05, "pre", 0.1, 0.004, 1e-4),
    ("image", "long_conv"): (6, 512, 50, 200, 0.01, 0.05, "post", 0.2, 0.003, 1e-3),
    ("pathfinder", "long_conv"): (6, 256, 64, 200, 0.004, 0.03, "pre", 0.3, 0.001, 1e-3),
    ("pathx", "long_conv"): (6, 256, 16, 50, 5e-4, 0.05, "pre", 0.3, 0.001, 5e-4),
}
# The groups of S5 where they are not all three.
GROUPS_OF_S5 = {"listops": {"lambda", "log_dt"}, "image": {"lambda", "log_dt"}}
GROUPS_OF_S5 |= {"text": {"lambda", "b"}, "retrieval": {"lambda", "b"}}
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
    steps = {"log_dt"} if model == "s4d" else set()  # tests/models/test_recipes.py has theirs
    got["own_rate"], *others = {rate for name, rate in own.items() if name not in steps}
    assert not others
    assert tuple(got[name] for name in SIZES_OF_RECIPES) == RECIPES[task, model]
    names = GROUPS_OF_S5.get(task) if model == "s5" else None
    assert set(got["groups"]) == (names or set(GROUPS[model]))
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


@pytest.mark.parametrize(("preset", "count"), [("cpu", 2), ("small", 2), ("tuned", 6)])
def test_a_task_that_a_preset_does_not_know_needs_few_bindings(tmp_path, preset, count):
    for folder in ("tasks", f"presets/{preset}"):
        (tmp_path / folder).mkdir(parents=True)
    text = (config.GIN_DIR / "tasks/listops.gin").read_text()
    (tmp_path / "tasks/new.gin").write_text(text)
    lines = ["Run.num_steps = 100", "Run.eval_every = 50"]
    lines += ["Optimizer.warmup = 10", "Optimizer.steps_per_cycle = 90"]
    lines = ['DATASET = "short_128"', "MAX_LEN = 128", *lines][:count]
    (tmp_path / f"presets/{preset}/new.gin").write_text("\n".join(lines))
    built = experiment.load("new", "fnet", preset, (), (), [tmp_path])
    assert built.task.max_len == 128


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
    optimizer = experiment.load("listops", "fnet", "cpu", (), (), [tmp_path]).optimizer
    assert (optimizer.warmup, optimizer.steps_per_cycle) == (100, 1100)


def test_schedule_of_a_file_may_be_in_blocks(tmp_path):
    (tmp_path / "presets/cpu").mkdir(parents=True)
    (tmp_path / "presets/cpu/listops.gin").write_text(
        'DATASET = "short_128"\nMAX_LEN = 128\nRun:\n    num_steps = 1_000\n'
        "Optimizer:\n    warmup = 200\n    steps_per_cycle = 800\n"
    )
    optimizer = experiment.load("listops", "fnet", "cpu", (), (), [tmp_path]).optimizer
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
    built = experiment.load("listops", "fnet", "cpu", ("Run.batch_size=50",), (), [tmp_path])
    steps = built.run.num_steps, built.run.eval_every, built.optimizer.warmup
    assert steps == (3840, 1920, 1920)
    built = experiment.load("listops", "fnet", "cpu", ("Run.num_steps=80",), (), [tmp_path])
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


def test_a_setting_that_one_config_lacks_has_its_default_there():
    new = load("Optimizer.beta1=0.8").config
    old = new.replace("Optimizer.beta1 = 0.8\n", "").replace("Run.microbatch = 0\n", "")
    assert config.differing(old, new) == [("Optimizer.beta1", "absent", "0.8")]
    assert config.differing(new, old) == [("Optimizer.beta1", "0.8", "absent")]
    old = new.replace("Run.num_steps", "Run.num_updates")  # which today's code does not know
    assert {name for name, _, _ in config.differing(old, new)} == {
        *("Run.num_steps", "Run.num_updates")
    }


def test_defaults_of_modules_that_are_not_imported_yet_make_no_difference():
    """As in `compare`, of a run before the setting and one after it."""
    old = "import lra_fnet.models.mixers.attention as lra_fnet2\nimport lra_fnet.gone\n"
    new = "Attention.projections = 'lra'\nAttention.block_size = 7\n"
    code = f"from lra_fnet import config\nprint(*config.differing({old!r}, {new!r}), sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Attention.block_size: absent -> 7\n"


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


def test_a_model_whose_module_is_not_imported_says_how(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/nowhere.gin").write_text("MIXERS = @Nowhere\n")
    paths = config.files("listops", "nowhere", "cpu", [tmp_path])
    with pytest.raises(UserError, match=r"'@Nowhere'\. If it is in a module of yours, .* --import"):
        config.load(paths)


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
CODE = {
    "listops": {"max_len": 2000, "num_classes": 10, "batch_size": 32, "num_steps": 5_000}
    | {"eval_every": 50, "factors": RSQRT, "learning_rate": 0.05, "warmup": 1000}
    | {"weight_decay": 0.1, "clip_norm": None, "dim": 512, "num_heads": 8, "num_layers": 4}
    | {"qkv_dim": 512, "mlp_dim": 1024, "dropout": 0.1, "attention_dropout": 0.1}
    | {"pooling": "cls", "positions": "sinusoidal", "config": "full"},
    "text": {"max_len": 1000, "num_classes": 2, "batch_size": 32, "num_steps": 20_000}
    | {"eval_every": 100, "factors": RSQRT, "learning_rate": 0.05, "warmup": 8000}
    | {"weight_decay": 0.1, "clip_norm": None, "dim": 256, "num_heads": 4, "num_layers": 4}
    | {"qkv_dim": 256, "mlp_dim": 1024, "dropout": 0.1, "attention_dropout": 0.1}
    | {"pooling": "cls", "positions": "sinusoidal", "config": "lra_code", "num_ids": 257},
    "retrieval": {"max_len": 4000, "num_classes": 2, "batch_size": 32, "num_steps": 5_000}
    | {"eval_every": 100, "factors": RSQRT, "learning_rate": 0.05, "warmup": 8000}
    | {"weight_decay": 0.1, "clip_norm": None, "dim": 128, "num_heads": 4, "num_layers": 4}
    | {"qkv_dim": 128, "mlp_dim": 512, "dropout": 0.1, "attention_dropout": 0.1}
    | {"pooling": "first", "positions": "sinusoidal", "config": "aan", "num_ids": 257},
    "image": {"max_len": 1024, "num_classes": 10, "batch_size": 256, "num_steps": 35_000}
    | {"eval_every": 175, "factors": COSINE, "learning_rate": 5e-4, "warmup": 175}
    | {"weight_decay": 0, "clip_norm": None, "dim": 32, "num_heads": 1, "num_layers": 1}
    | {"qkv_dim": 32, "mlp_dim": 64, "dropout": 0.3, "attention_dropout": 0.2}
    | {"pooling": "cls", "positions": "learned", "config": "full", "num_ids": 256},
    "pathfinder": {"max_len": 1024, "num_classes": 2, "batch_size": 512, "num_steps": 62_400}
    | {"eval_every": 312, "factors": COSINE, "learning_rate": 1e-3, "warmup": 312}
    | {"weight_decay": 0, "clip_norm": None, "dim": 32, "num_heads": 2, "num_layers": 1}
    | {"qkv_dim": 16, "mlp_dim": 32, "dropout": 0.1, "attention_dropout": 0.1}
    | {"pooling": "mean_all", "positions": "sinusoidal", "config": "hard_32", "num_ids": 256},
    "pathx": {"max_len": 16384, "num_classes": 2, "batch_size": 64, "num_steps": 500_000}
    | {"eval_every": 2500, "factors": COSINE, "learning_rate": 1e-3, "warmup": 2500}
    | {"weight_decay": 0, "clip_norm": 1.0, "dim": 32, "num_heads": 2, "num_layers": 1}
    | {"qkv_dim": 16, "mlp_dim": 32, "dropout": 0.1, "attention_dropout": 0.1}
    | {"pooling": "mean_all", "positions": "learned", "config": "hard_128", "num_ids": 256},
}
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
    same |= {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "head_mlp_dim": CODE[task]["mlp_dim"]}
    same["head_interaction"] = "concat" if task == "retrieval" else "none"
    assert_settings("lra-code", task, CODE[task] | same)
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
        assert_settings(preset, task, want)
    full = {"listops": 2000, "text": 4000, "retrieval": 4000, "pathx": 16384}.get(task, 1024)
    assert_settings("tuned", task, {"max_len": full})  # LRA forbids changing a task's length


@pytest.mark.parametrize(
    ("task", "override", "message"),
    [
        (
            "listops",
            "Encoder.inputs=pixels",
            "Encoder.inputs = pixels needs a task of images: set it to tokens",
        ),
        (
            "text",
            "DATASET=5",
            "text: the name of a data set must be a text, got 5: put quotation marks around it, "
            """DATASET='"5"'""",
        ),
        (
            "image",
            "Image.black_is_padding=True",
            "Encoder.inputs = pixels and black_is_padding exclude each other: "
            "set inputs to tokens, or black_is_padding to False",
        ),
        (
            "retrieval",
            "Head.interaction=none",
            "Head.interaction must be concat or nli for a task with num_inputs = 2, got 'none': "
            "set it so",
        ),
        (
            "text",
            "Head.interaction=concat",
            "Head.interaction must be none for a task with num_inputs = 1, got 'concat': set it so",
        ),
    ],
)
def test_a_setting_that_does_not_fit_the_task_fails_with_one_line(task, override, message):
    with pytest.raises(UserError) as caught:
        experiment.load(task, "fnet", "cpu", [override])
    assert str(caught.value) == message


def test_a_list_or_tuple_of_mixers_gives_one_to_each_layer():
    more = ["Attention.implementation=naive", "Attention.block_size=64"]
    for text in ("MIXERS=(@Fourier, @Attention)", "MIXERS=[@Fourier, @Attention]"):
        encoder = load(text, *more).model.encoder
        assert [type(mixer).__name__ for mixer in encoder.mixers] == ["Fourier", "Attention"]
    with pytest.raises(UserError, match="lists 2 mixers for 3 layers"):
        load("MIXERS=(@Fourier, @Attention)", "Encoder.num_layers=3", *more)


def load(*overrides):
    return experiment.load("listops", "fnet", "cpu", overrides)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Encoder.num_layer = 2", "Encoder.num_layers"),
        ("Encoderr.dim = 2", "Encoder"),
        ("MIXERS = @Fourrier", "Fourier"),
    ],
)
def test_hint_names_the_misspelt_word_wherever_it_stands(line, name):
    load()
    with pytest.raises(UserError, match=rf"did you mean {name}\?"):
        parsing.parse(f"Encoder.dim = 64\n{line}\n", "my.gin")


def test_file_that_changed_since_it_was_imported_is_refused(tmp_path):
    file = tmp_path / "imported_once.py"
    file.write_text("x = 1\n")
    for _ in range(2):
        config.import_modules([str(file)])
    file.write_text("x = 2\n")
    with pytest.raises(UserError, match=r"imported_once.py has changed since it was imported"):
        config.import_modules([str(file)])


def test_class_with_the_name_of_another_gives_one_line(monkeypatch):
    def parse(text):
        raise KeyError("Ambiguous selector 'Encoder', matches ['a.Encoder', 'b.Encoder'].")

    monkeypatch.setattr(gin, "parse_config", parse)
    with pytest.raises(UserError, match=r"Ambiguous selector 'Encoder'.*give your class another"):
        parsing.parse("Encoder.dim = 4", "my.gin")


def test_an_override_wins_over_every_file():
    assert load("Run.num_steps=7").run.num_steps == 7
    assert load("Optimizer.factors=constant").optimizer.factors == "constant"  # a bare word
    assert load("Optimizer.factors='constant'").optimizer.factors == "constant"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("Runn.num_steps=7", ["Runn"]),
        ("Run.num_stepz=7", ["num_stepz", "did you mean Run.num_steps?"]),
        ("MAX_LENN=7", ["expected Name.parameter=value (did you mean MAX_LEN?)"]),
        (
            "num_steps=7",
            [
                "--set 'num_steps=7': expected Name.parameter=value (did you mean Run.num_steps?); "
                "settings without a name: DATASET, MAX_LEN, MIXERS"
            ],
        ),
        ("nothing=7", ["'nothing=7': expected Name.parameter=value; settings without a name: DAT"]),
        ("Run.num_steps=%NOTHING", ["no macro NOTHING"]),
        ("Performer.num_features=8", ["nothing reads Performer.num_features"]),
        ("Run.num_steps=-5", ["Run.num_steps", "at least 1", "-5"]),
        ("Run.num_steps=2147483648", ["Run.num_steps", "2147483648"]),
        ("Run.num_steps=ten", ["Run.num_steps", "'ten'"]),
        ("Run.num_steps=10 %", ["Run.num_steps", "'10 %'"]),
        ("Run.batch_size=2 epochs", ["Run.batch_size", "'2 epochs'"]),
        ("Optimizer.groups={'b': (0.1, 0.0)}", ["declare as separable (none), got b"]),
        ("Run.microbatch=5", ["must divide Run.batch_size (32)"]),
        ("Run.num_steps", ["expects Name.parameter=value"]),
        *(
            (text, [f"expected one binding, got '{text}': separate bindings by spaces in --gin"])
            for text in (
                "Run.num_steps=10,Encoder.num_layers=1",
                "Encoder.norm=post; Encoder.num_layers=1",
                "MIXERS=@Fourier,Encoder.num_layers=1",
                "Run.num_steps=10,",
                "Run.num_steps=10;",
            )
        ),
        ("Run.num_steps=1e3", ["must be a whole number, got 1000.0: set it to 1000"]),
        ("Run.num_steps=1.5", ["must be a whole number, got 1.5: set it to 5000, say"]),
        ("Run.num_steps=-1e3", ["must be a whole number, got -1000.0: set it to 5000, say"]),
        ("Run.num_steps=[1,", ["expects a number, string, list or tuple"]),
        ("Optimizer.groups={['b']: (0.1, 0.0)}", ["expects a number, string, list or tuple"]),
        ("Run.microbatch=False", ["Run.microbatch must be a whole number, got False"]),
        (
            "Encoder.pooling=(%N",
            ["Encoder.pooling=(%N", "a bracket or a quotation mark is not closed"],
        ),
        (
            "MIXERS=(@Fourier,@Attention)",
            [
                "Attention needs Attention.implementation and Attention.block_size, which nothing "
                "binds: bind them, as gin/models/transformer.gin does"
            ],
        ),
        ("MIXERS=(@Fourier,@LRU)", ["LRU needs LRU."]),
        ("MAX_LEN=%MAX_LEN", ["a macro is bound to itself"]),
        ("Optimizer.factors='constant * linear_warm'", ["'linear_warm'", "linear_warmup"]),
    ],
)
def test_a_wrong_override_fails_with_one_line(override, words):
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
        (("listops", "fnett", "cpu"), ["unknown model 'fnett' (did you mean fnet?); known models"]),
        (
            ("listops", "my_mixer", "cpu"),
            ["performer", "; yours needs its gin file: --gin-dir FOL"],
        ),
        (("listops", "fnet", "gpu"), ["unknown preset", "paper", "cpu", "lra-code"]),
    ],
)
def test_an_unknown_name_fails_with_the_known_ones(names, words):
    with pytest.raises(UserError) as caught:
        experiment.load(*names)
    assert all(word in str(caught.value) for word in words)


def test_split_bindings_keeps_lists_strings_and_tuples_whole():
    text = """A.x=[1, 2,3]  B.y="two words" C.z=(0.9, 0.98) D.w='it is' E.v=None"""
    assert config.split_bindings(text) == [
        "A.x=[1, 2,3]",
        'B.y="two words"',
        "C.z=(0.9, 0.98)",
        "D.w='it is'",
        "E.v=None",
    ]
    assert config.split_bindings("A.x = 1 B.y= 2 C.z =3") == ["A.x = 1", "B.y= 2", "C.z =3"]
    # A comma, a semicolon or a = inside quotation marks is part of a value.
    assert config.normalise("A.x='b, c=d;'") == "A.x = 'b, c=d;'"
    assert config.split_bindings("") == []
    with pytest.raises(UserError, match="closed quotes and brackets"):
        config.split_bindings("A.x=[1, 2")


def test_a_user_registers_a_mixer_from_outside(tmp_path):
    module = tmp_path / "halving.py"
    module.write_text(
        "import gin\n"
        "from lra_fnet.models.mixer import Mixer\n"
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
    assert built.model.encoder.uses_mask
    assert "Halving.factor = 0.5" in built.config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:", "SyntaxError: invalid syntax (odd.py, line 1)"),
        ("raise ValueError('a\\nb')", "ValueError: a b"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        (None, "'odd.py' does not exist"),
    ],
)
def test_an_import_with_a_mistake_fails_with_one_line(text, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "odd.py").write_text(text)
    for _ in range(2):  # a failed import is not taken for a complete one
        with pytest.raises(UserError) as caught:
            config.import_modules(["odd.py"])
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_import_of_a_file_that_is_named_like_a_loaded_module_fails_with_one_line(tmp_path):
    """Python would take the loaded one for it."""
    first, second, library = (tmp_path / name for name in ("a/twin.py", "b/twin.py", "random.py"))
    for path in (first, second, library):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for _ in range(2):
        config.import_modules([str(first)])
    for path in (second, library):
        with pytest.raises(UserError, match=f"{path}: another module is named {path.stem}: rename"):
            config.import_modules([str(path)])


def test_folders_of_gin_files_may_be_strings(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/odd.gin").write_text("# Odd: a model.\n")
    assert "odd" in config.known("models", [str(tmp_path)])
    assert config.title("odd", [str(tmp_path)]) == "Odd"


def test_a_sweep_is_found_by_its_name_or_path(tmp_path):
    assert config.sweep("lra_table").name == "lra_table.gin"
    (tmp_path / "mine").write_text("")
    assert config.sweep(str(tmp_path / "mine")) == tmp_path / "mine"
    with pytest.raises(UserError, match="or one of image_layers, lra_table, rates; got 'lra'"):
        config.sweep("lra")


def test_title_of_a_model_is_in_the_first_line_of_its_file(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.gin").write_text("# My encoder: made of wood.\n")
    (tmp_path / "models/bare.gin").write_text("# no title\nMIXERS = @Fourier  # a: b\n")
    assert config.title("fnet_mat") == "FNet (DFT matrices)"
    assert config.title("mine", [tmp_path]) == "My encoder"
    assert [config.title(name, [tmp_path]) for name in ("bare", "absent")] == ["bare", "absent"]
    titles = [config.title(model) for model in MODELS]
    assert len(set(titles)) == len(titles)
    assert not set(titles) & set(MODELS)


def test_settings_of_speed_alone_are_bound_and_no_other_mixer_chooses_a_way():
    bound = set()
    for path in (config.GIN_DIR / "models").glob("*.gin"):
        bound |= set(re.findall(r"^(\w+\.\w+) *=", path.read_text(encoding="utf-8"), re.M))
    assert set(config.SPEED_ONLY) <= bound
    ways = {name for name in bound if name.endswith((".method", ".implementation"))}
    assert ways <= set(config.SPEED_ONLY)
