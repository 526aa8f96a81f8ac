"""Tasks as values: registration, names, gin files and token ids."""

import numpy as np
import pytest
from paths import ROOT
from toy import TOY, Toy

from lra_fnet import tasks
from lra_fnet.errors import UserError
from lra_fnet.tasks import csv_table, image, pathfinder


def test_defining_a_task_registers_it():
    assert tasks.REGISTRY["toy"] is Toy
    assert tasks.make("toy") == TOY
    with pytest.raises(
        ValueError, match=r"^task name 'toy' is taken by .*Toy; give .*Toy2 another"
    ):

        class Toy2(tasks.Task):
            name = "toy"


def test_unknown_names_fail_with_the_known_ones(tmp_path):
    with pytest.raises(UserError, match=r"^unknown task 'listop': expected one of .*listops.*toy"):
        tasks.make("listop")
    with pytest.raises(UserError, match=r"^unknown data set 'big' of listops: .* full, short_128$"):
        tasks.make("listops", "big")  # gin would add where it was called
    with pytest.raises(UserError, match=r"^unknown data set 'big' of toy: expected one of small$"):
        tasks.make("toy", "big")
    with pytest.raises(
        UserError, match=r"^toy: max_len must be at least 1, got 0: set it to 1024, say$"
    ):
        tasks.make("toy", max_len=0)
    with pytest.raises(
        UserError, match=r"^unknown split 'val': expected one of train, validation, test$"
    ):
        tasks.prepare(TOY, tmp_path).arrays("val")
    with pytest.raises(UserError, match=r"^jobs must be at least 1, got -1$"):
        tasks.prepare(TOY, tmp_path, jobs=-1)


def test_a_task_without_a_title_has_its_name():
    assert tasks.title("toy") == "toy"
    assert tasks.title("nobody's") == "nobody's"


def test_misspelt_settings_are_named():
    with pytest.raises(UserError, match=r"^image: black_is_padding must be True .*, got 'false'"):
        image.Image("full", 1024, black_is_padding="false")
    for labels in ("yes", 3):
        with pytest.raises(UserError, match=rf"^csv: labels must be a list .*, got {labels!r}"):
            csv_table.Csv("full", 9, labels=labels)


def test_every_task_of_images_has_its_settings_of_pretraining():
    names = [path.stem for path in (ROOT / "gin/tasks").glob("*.gin")]
    images = {name for name in names if isinstance(tasks.make(name), tasks.PixelTask)}
    assert images >= {"image", "images", "pathfinder"}
    texts = {path.stem: path.read_text() for path in (ROOT / "gin/tasks").glob("*.gin")}
    assert images <= {name for name, text in texts.items() if "pretrain/Denoising" in text}


@pytest.mark.parametrize("shape", [(3, 5), (2, 2, 5)])
@pytest.mark.parametrize("black", [False, True])
def test_tokens_equal_a_loop(shape, black):
    """Ids are value + 1 before the length, or the value where black is padding; then 0."""
    task = pathfinder.Pathfinder("hard_32", 1024, black_is_padding=black)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3, shape, dtype=np.uint8)
    values[(0,) * len(shape)] = 255
    lengths = rng.integers(0, 6, shape[:-1], dtype=np.int32)
    ids, mask = (np.asarray(array) for array in task.tokens(values, lengths))
    assert (ids.dtype, mask.dtype) == (np.int32, bool)
    for place in np.ndindex(shape):
        inside = place[-1] < lengths[place[:-1]]
        want = (int(values[place]) + (0 if black else 1)) if inside else 0
        assert ids[place] == want
        assert mask[place] == (want > 0)
    assert task.num_ids == (256 if black else 257)
