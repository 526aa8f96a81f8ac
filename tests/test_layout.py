"""The shape of the project: imports point one way, the test split has one door, docs tell truth."""

import ast
import doctest
import importlib
import re
import shutil

import pytest
from paths import ROOT

from lra_fnet import report

SRC = ROOT / "lra_fnet"
ORDER = """
    errors machine config tasks models objective optim intervals experiment train run sweep
    benchmark report testing cli
""".split()  # noqa: SIM905 (a line is easier to read than a list)


def imported(path):
    """The modules of ours that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lra_fnet":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lra_fnet."))


def test_a_room_imports_only_rooms_above_it():
    for path in SRC.rglob("*.py"):
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        for module in imported(path) if here != "__init__" else ():
            there = module.split(".")[1]
            assert ORDER.index(there) <= ORDER.index(here), f"{path.relative_to(SRC)}: {module}"


def test_the_encoder_knows_no_mixer():
    for path in (SRC / "models").glob("*.py"):
        if path.name != "convert.py":  # FNet's own weights
            assert not [m for m in imported(path) if m.startswith("lra_fnet.models.mixers")], path


def test_only_evaluate_opens_the_test_split():
    """Nobody else asks for a split by that name, or by its place among the task's splits."""
    pattern = r"""arrays\(\s*["']test["']|splits\[(2|-1)\]|arrays\(\s*split\b"""
    opening = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(pattern, path.read_text())
    }
    assert "run/evaluate.py" in opening
    assert opening <= {"run/evaluate.py", "run/attention_span.py", "__init__.py"}, opening


def test_only_config_calls_gins_parser():
    calling = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(r"gin\.(parse|clear_config|config_str|operative)", path.read_text())
    ]
    assert calling == ["config.py"]


@pytest.mark.parametrize("module", ["config", "sweep.plan"])
def test_examples_in_docstrings_run(module):
    tried = doctest.testmod(importlib.import_module(f"lra_fnet.{module}"))
    assert tried.attempted > 0
    assert tried.failed == 0


def test_readme_and_results_md_show_the_committed_results(tmp_path):
    for name in ("README.md", "RESULTS.md"):
        shutil.copy(ROOT / name, tmp_path)
    assert report.update_readme(tmp_path / "README.md", ROOT / "results") == [], "run `make report`"


def test_every_path_and_make_target_in_the_docs_exists():
    text = "".join(
        (ROOT / name).read_text() for name in ("README.md", "data/README.md", "launch/README.md")
    )
    for path in re.findall(r"`((?:gin|launch|lra_fnet|data|tests|results)/[\w./-]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    targets = {word for line in targets for word in line.split()}
    named = set(re.findall(r"`make ([a-z-]+)", text))
    assert named
    assert named <= targets
