"""From gin to values: settings that do not fit the task, and a mixer for each layer."""

import concurrent.futures
import time

import pytest

from lra_fnet import experiment
from lra_fnet.errors import UserError


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
        encoder = experiment.load("listops", "fnet", "cpu", [text, *more]).model.encoder
        assert [type(mixer).__name__ for mixer in encoder.mixers] == ["Fourier", "Attention"]
    three = ["MIXERS=(@Fourier, @Attention)", "Encoder.num_layers=3", *more]
    with pytest.raises(UserError, match="lists 2 mixers for 3 layers"):
        experiment.load("listops", "fnet", "cpu", three)


def test_threads_build_their_own_settings(monkeypatch):
    """Gin has one config per process."""
    settle = experiment._settle

    def slowly(*arguments):
        time.sleep(0.02)  # for the other threads
        settle(*arguments)

    def layers(number):
        return experiment.load("listops", "fnet", "cpu", [f"Encoder.num_layers={number}"])

    monkeypatch.setattr(experiment, "_settle", slowly)
    numbers = [1, 2, 3, 4]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        built = list(pool.map(layers, numbers))
        again = list(pool.map(experiment.restore, [one.config for one in built]))
    for ones in (built, again):
        assert [one.model.encoder.num_layers for one in ones] == numbers
