"""Operative configs that are compared: defaults, and settings of speed alone."""

import re
import subprocess
import sys

from lra_fnet import config, experiment


def test_a_setting_that_one_config_lacks_has_its_default_there():
    new = experiment.load("listops", "fnet", "cpu", ["Optimizer.beta1=0.8"]).config
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


def test_settings_of_speed_alone_are_bound_and_no_other_mixer_chooses_a_way():
    bound = set()
    for path in (config.GIN_DIR / "models").glob("*.gin"):
        bound |= set(re.findall(r"^(\w+\.\w+) *=", path.read_text(encoding="utf-8"), re.M))
    assert set(config.SPEED_ONLY) <= bound
    ways = {name for name in bound if name.endswith((".method", ".implementation"))}
    assert ways <= set(config.SPEED_ONLY)
