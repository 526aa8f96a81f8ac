"""The shape of the project: imports point one way, the test split has one door, docs tell truth."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

from lra_fnet import report

ROOT = Path(__file__).parent.parent
SRC = ROOT / "lra_fnet"
ORDER = """
    errors disk allocator progress hosts config tasks pipeline models convert metrics statistics
    optim experiment grid step run_folder logs checkpoint trained compile_cache train evaluate job
    attention_span prepare benchmark sweep tables census results compare predict export report cli
""".split()  # noqa: SIM905 (a line is easier to read than a list)


def imported(path):
    """Top-level modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "lra_fnet":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lra_fnet."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name.split(".")[1] for name in names if name.startswith("lra_fnet."))


def test_imports_point_one_way():
    for path in SRC.rglob("*.py"):
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for other in imported(path):
            assert ORDER.index(other) <= ORDER.index(here), f"{path.name} imports lra_fnet.{other}"


def test_only_evaluate_opens_the_test_split():
    opening = [
        path.name
        for path in SRC.glob("*.py")
        if re.search(r"""arrays\(\s*["']test["']""", path.read_text())
    ]
    assert opening == ["evaluate.py"]


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


def test_the_readmes_tables_are_those_of_the_committed_results():
    text = (ROOT / "README.md").read_text()
    assert report.readme_section(report.collect([ROOT / "results"])) in text, "run `make report`"


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
