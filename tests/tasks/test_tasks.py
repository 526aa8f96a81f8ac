"""Tasks as values: registration, names, gin files and token ids."""

import numpy as np
import pytest
from paths import ROOT
from toy import TOY, Toy

from lra_fnet import tasks
from lra_fnet.errors import UserError
from lra_fnet.tasks import image, pathfinder


def test_defining_a_task_registers_it():
    assert tasks.REGISTRY["toy"] is Toy
    assert tasks.make("toy") == TOY
    with pytest.raises(ValueError, match="task name 'toy' is taken"):

        class Toy2(tasks.Task):
            name = "toy"


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: tasks.make("listop"), "'listop': expected one of .*listops.*toy"),
        (lambda: tasks.make("listops", "big"), "'big' of listops: .* full, short_128"),
        (lambda: tasks.make("toy", max_len=0), "max_len must be at least 1, got 0"),
        (lambda: tasks.make("retrieval", max_len=4001), "got 4001: set it to 4000"),
        (lambda: image.Image("full", 1024, black_is_padding="false"), "got 'false'"),
    ],
)
def test_a_misspelt_setting_is_named(make, fragment):
    with pytest.raises(UserError, match=fragment):
        make()


def test_an_unknown_split_is_named(tmp_path):
    with pytest.raises(UserError, match="'val': expected one of train, validation, test"):
        tasks.prepare(TOY, tmp_path).arrays("val")


def test_every_task_of_images_has_its_settings_of_pretraining():
    texts = {path.stem: path.read_text() for path in (ROOT / "gin/tasks").glob("*.gin")}
    images = {name for name in texts if isinstance(tasks.make(name), tasks.PixelTask)}
    assert images >= {"image", "images", "pathfinder"}
    assert all("pretrain/Denoising" in texts[name] for name in images)


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
