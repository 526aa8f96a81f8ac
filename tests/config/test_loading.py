"""The load order, and errors for settings that are wrong, have no effect or do not fit the task."""

import concurrent.futures

import gin
import pytest
from paths import EXAMPLES
from refused import one_line

from lra_fnet import config, experiment


def load(*overrides, task="listops", model="fnet", **how):
    return experiment.load(task, model, "cpu", overrides, **how)


def test_an_override_wins_over_every_file():
    assert load("Run.num_steps=7").run.num_steps == 7
    assert load("Optimizer.factors=constant").optimizer.factors == "constant"  # a bare word
    assert load("Optimizer.factors='constant'").optimizer.factors == "constant"


REFUSED = {  # binding -> fragments of the message
    "Runn.num_steps=7": ["Runn"],
    "Run.num_stepz=7": ["num_stepz", "Run"],
    "MAX_LENN=7": ["MAX_LENN", "MAX_LEN?"],
    "num_steps=7": ["'num_steps'", "DATASET, MAX_LEN, MIXERS", "Run.num_steps"],
    "Run.num_steps=%NOTHING": ["NOTHING"],
    "Performer.num_features=8": ["nothing reads Performer.num_features"],
    "Optimizer.decay_factor=0.9": ["nothing reads Optimizer.decay_factor"],
    "Denoising.rate=0.2": ["nothing reads Denoising.rate"],
    "ListOps.config=full": ["ListOps.config", "'full'", "'short_128'", "DATASET"],
    "MIXERS=@Fourier()": ["nothing binds Fourier.dim"],
    "Optimizer.factors=constant * linear_warmup": ["Optimizer.factors", "two kinds of quotes"],
    "Run.num_steps": ["Name.parameter=value"],
    "Run.num_steps=1 A.b=2": ["'1 A.b=2'", "--gin"],
    "Run.num_steps=10,Encoder.num_layers=1": ["Run.num_steps"],
    "Run.num_steps=-5": ["Run.num_steps", "at least 1", "-5"],
    "Run.num_steps=2147483648": ["Run.num_steps", "2147483648"],
    "Run.num_steps=ten": ["Run.num_steps", "'ten'"],
    "Run.num_steps=10 %": ["Run.num_steps", "'10 %'", "40 epochs"],
    "Run.num_steps='-1 epochs'": ["Run.num_steps", "'-1 epochs'"],
    "Run.num_steps=0 epochs": ["Run.num_steps", "got 0"],
    "Run.num_steps=1e3": ["Run.num_steps", "1000.0"],
    "Optimizer.warmup=abc": ["Optimizer.warmup", "'abc'", "10 %"],
    "Run.batch_size=2 epochs": ["Run.batch_size", "'2 epochs'"],
    "Run.microbatch=5": ["Run.microbatch", "Run.batch_size (32)"],
    "Run.microbatch=False": ["Run.microbatch", "False"],
    "Optimizer.groups={'b': (0.1, 0.0)}": ["Optimizer.groups", "b"],
    "Optimizer.groups={['b']: (0.1, 0.0)}": ["Optimizer.groups"],
    "Encoder.pooling=(%N": ["Encoder.pooling=(%N", "not closed"],
    "MIXERS=(@Fourier,@Attention)": ["Attention.implementation", "Attention.block_size"],
}
PRETRAINING = {
    "Denoising.rate=0": ["Denoising.rate", "above 0"],
    "Denoising.rate=1.0": ["Denoising.rate", "below 1", "1.0"],
    "Denoising.share=1.5": ["Denoising.share", "at most 1", "1.5"],
    "Denoising.replacement=noise": ["Denoising.replacement", "bert, mask", "'noise'"],
    "Denoising.loss=l1": ["Denoising.loss", "images", "listops"],
    "Denoising.head=bert": ["Denoising.head", "pieces", "listops"],
}


@pytest.mark.parametrize(
    ("task", "override", "words"),
    [
        *(("listops", *refused) for refused in (REFUSED | PRETRAINING).items()),
        ("image", "Image.black_is_padding=True", ["black_is_padding", "Encoder.inputs"]),
        ("retrieval", "Head.interaction=none", ["Head.interaction", "concat or nli", "'none'"]),
        ("text", "DATASET=5", ["5", "quotation"]),
        ("csv", "Run.num_steps=2 epochs", ["csv/", "data/expected.json"]),
    ],
)
def test_a_wrong_override_fails_with_one_line(task, override, words):
    with one_line(*words):
        load(override, task=task, denoise=override in PRETRAINING)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MIXERS = Many", ["odd.gin", "quotation marks"]),
        ("MIXERS = @Nowhere", ["odd.gin", "Nowhere", "--import"]),
        ("Fourier.method = 'fft'", ["MIXERS"]),
        ("MIXERS = @Fourier\nWIDTH = 3", ["odd.gin", "WIDTH"]),
        ("MIXERS = @NoMixing\nNoMixing.identity = True\nlistopz/Run.num_steps = 3", ["listopz/"]),
        ("MIXERS = (@Fourier", ["odd.gin", "not closed"]),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_fails_with_one_line(text, words, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "odd.gin").write_text(f"{text}\n")
    with one_line(*words):
        load(model="odd", gin_dirs=[tmp_path])


def test_a_task_of_ones_own_need_not_have_the_macro_of_the_data_set(tmp_path):
    for folder in ("tasks", "presets/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tasks" / "mine.gin").write_text(
        "TASK = @MyTask()\nMyTask.config = 'full'\nMyTask.max_len = %MAX_LEN\n"
    )
    (tmp_path / "presets" / "cpu" / "mine.gin").write_text("MAX_LEN = 16\n")
    built = load(task="mine", imports=[str(EXAMPLES / "my_task.py")], gin_dirs=[tmp_path])
    assert built.task.config == "full"


def test_a_strangers_config_runs_no_code_of_its_own(tmp_path):
    (tmp_path / "strange_code.py").write_text("raise SystemExit\n")
    stored = load().config
    assert experiment.restore(stored).config == stored
    for line in ("import strange_code", "include 'strange.gin'"):
        with pytest.raises(config.OutsideCode, match="strange"):
            experiment.restore(f"{line}\n{stored}")


def test_a_program_that_uses_gin_has_its_own_bindings_afterwards():
    gin.parse_config("Run.num_steps = 7")
    gin.finalize()
    try:
        stored = load("Run.num_steps=9").config
        assert config.differing(stored, f"{stored}\nEncoder.remat = False\n") == []
        assert experiment.restore(stored).run.num_steps == 9
        assert gin.config_is_locked()
        assert gin.query_parameter("Run.num_steps") == 7
    finally:
        gin.clear_config()


def test_threads_build_their_own_settings():
    """Gin has one config per process."""
    numbers = list(range(1, 9))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda number: load(f"Encoder.num_layers={number}"), numbers))
        again = list(pool.map(experiment.restore, [one.config for one in built]))
    for ones in (built, again):
        assert [one.model.encoder.num_layers for one in ones] == numbers
