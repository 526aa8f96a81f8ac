"""The load order, and errors for bindings without effect."""

import pytest
from paths import EXAMPLES

from lra_fnet import experiment
from lra_fnet.errors import UserError


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
        (
            "Optimizer.decay_factor=0.9",
            ["nothing reads Optimizer.decay_factor", "or choose the model or schedule that reads"],
        ),
        (
            "ListOps.config=full",
            ["ListOps.config is 'full', but DATASET", "is 'short_128': bind DATASET alone"],
        ),
        ("MIXERS=@Fourier()", ["Fourier is a mixer", "write @Fourier without ()"]),
        (
            "Optimizer.factors=constant * linear_warmup",
            ["""a text of several words needs two kinds of quotes, 'Optimizer.factors="..."'"""],
        ),
        ("Run.num_steps=1 A.b=2", ["'1 A.b=2' (--gin takes several bindings)"]),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "MIXERS = Many",
            "odd.gin: expected a value: put texts in quotation marks, and @ before a",
        ),
        ("Fourier.method = 'fft'", "nothing binds MIXERS: bind it, as the files in gin/models do"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_fails_with_one_line(text, words, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "odd.gin").write_text(f"{text}\n")
    with pytest.raises(UserError) as caught:
        experiment.load("listops", "odd", "cpu", gin_dirs=[tmp_path])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_of_ones_own_need_not_have_the_macro_of_the_data_set(tmp_path):
    for folder in ("tasks", "presets/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tasks" / "mine.gin").write_text(
        "TASK = @MyTask()\nMyTask.config = 'full'\nMyTask.max_len = %MAX_LEN\n"
    )
    (tmp_path / "presets" / "cpu" / "mine.gin").write_text("MAX_LEN = 16\n")
    built = experiment.load(
        "mine", "fnet", "cpu", imports=[str(EXAMPLES / "my_task.py")], gin_dirs=[tmp_path]
    )
    assert built.task.config == "full"


def test_a_file_may_not_add_a_macro(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "odd.gin").write_text("MIXERS = @Fourier\nWIDTH = 3\n")
    with pytest.raises(UserError, match=r"odd.gin: no macro WIDTH; base.gin declares"):
        experiment.load("listops", "odd", "cpu", gin_dirs=[tmp_path])
