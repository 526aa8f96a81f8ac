"""The project's shape: imports point one way, one place opens test, the documents are correct."""

import ast
import doctest
import importlib
import json
import re
import shlex
import subprocess
from collections import Counter

import pytest
from paths import ROOT

from lra_fnet import cli
from tools import count
from tools.documents import results

SRC = ROOT / "lra_fnet"
ROOMS = {  # in the order of imports: a room imports only those above it; at most so many code lines
    "errors": 40,
    "settings": 80,
    "counts": 60,
    "machine": 470,
    "config": 570,
    "data": 1_020,
    "baselines": 280,
    "tasks": 1_850,
    "models": 3_080,
    "testing": 220,
    "objective": 260,
    "optim": 150,
    "experiment": 230,
    "training": 885,
    "run": 1_630,
    "sweep": 660,
    "significance": 150,
    "benchmark": 595,
    "report": 1_845,
    "cli": 445,
    "__main__": 30,
    "__init__": 190,
}
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md")),
    ROOT / "launch/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[1].split())
documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))


def imported(path):
    """The modules of ours that a file imports, anywhere in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not getattr(node, "level", 0), f"{path}: a relative import hides where it points"
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lra_fnet":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lra_fnet."))


def modules():
    """The modules of the package by dotted name, without `lra_fnet`, and their files."""
    for path in sorted(SRC.rglob("*.py")):
        yield ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"), path


def test_a_room_imports_only_those_above_it():
    order = [*ROOMS]
    for name, path in modules():
        here = name.split(".")[0]
        for module in imported(path) if here != "__init__" else ():
            there = module.split(".")[1]
            if there != "__version__":
                assert order.index(there) <= order.index(here), f"{name} imports {module}"


def test_no_circle_of_imports():
    files = dict(modules())
    edges = {}
    for name, path in files.items():
        edges[name] = set()
        for module in imported(path):  # a module, or a name in one
            module = module.removeprefix("lra_fnet.")
            owner = module if module in files else module.rpartition(".")[0]
            edges[name] |= {owner} & files.keys() - {name, "__init__"}
    ends = True
    while ends:  # modules that import, or are imported by, none of the others are in no circle
        needed = set().union(*edges.values())
        ends = [
            name for name, needs in edges.items() if not needs & edges.keys() or name not in needed
        ]
        for name in ends:
            del edges[name]
    assert not edges, f"these import each other: {sorted(edges)}"


def test_rooms_keep_their_size():
    lines = {name.removesuffix(".py"): n for name, n in count.rooms(SRC).items()}
    assert lines.keys() == ROOMS.keys()
    assert {name: n for name, n in lines.items() if n > ROOMS[name]} == {}
    assert sum(lines.values()) <= 14_500
    assert count.rooms(ROOT / "tests").total() <= 15_890
    assert count.gin_files() <= 130
    assert count.make_variables() <= 20


def test_a_class_has_one_meaning():
    names = Counter(
        node.name
        for _, path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, uses in names.items() if uses > 1] == []


def test_the_encoder_knows_no_mixer():
    for path in (SRC / "models").glob("*.py"):
        if path.name != "convert.py":  # FNet's own weights
            assert not [m for m in imported(path) if m.startswith("lra_fnet.models.mixers")], path


def test_only_evaluate_opens_the_test_split():
    """No other module asks for a split by that name, or by its place among the task's splits."""
    pattern = r"""arrays\(\s*["']test["']|splits\[(2|-1)\]|arrays\(\s*split\b"""
    opening = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(pattern, path.read_text())
    }
    assert {"run/evaluate.py", "baselines/shallow.py"} <= opening  # the latter for baselines only
    others = {"run/span.py", "__init__.py", "testing.py"}
    assert opening <= {"run/evaluate.py", "baselines/shallow.py"} | others, opening


def test_only_config_calls_gins_parser():
    calling = {
        path.relative_to(SRC).parts[0]
        for path in SRC.rglob("*.py")
        if re.search(r"gin\.(parse|clear_config|config_str|operative)", path.read_text())
    }
    assert calling == {"config"}


@pytest.mark.parametrize("module", ["config.bindings", "sweep.axes", "report.render.svg"])
def test_examples_in_docstrings_run(module):
    tried = doctest.testmod(importlib.import_module(f"lra_fnet.{module}"))
    assert tried.attempted > 0
    assert tried.failed == 0


def test_readme_and_results_md_show_the_committed_results():
    def text(words):  # without the version in the figure's title
        return re.sub(r"<dc:title>.*?</dc:title>", "", words)

    for file, new in results.files(ROOT).items():
        assert text(file.read_text()) == text(new), f"{file}: run `make documents`"


# The documents


def blocks(text, language):
    """The code blocks of a language, without their indentation."""
    for indent, code in re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.M | re.S):
        yield re.sub(f"^{indent}", "", code, flags=re.M)


def commands(text):
    """The words of every command in the sh blocks, and of every whole one in inline code."""
    lines = [
        line
        for block in blocks(text, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if not line.startswith("#")
    ]
    inline = re.findall(r"`((?:make|lra-fnet) [^`]+(?: --|=)\w[^`]*)`", text)
    lines += [code for code in inline if not re.search(r"\.\.\.|=( |$)", code)]
    for line in lines:
        for part in re.split(r" \| | && | >\w", line):
            yield shlex.split(part, comments=True)


def check(words):
    """Raises if lra-fnet or make would refuse a command; returns whether it is one of theirs."""
    program = words[0].removeprefix(".venv/bin/") if words else ""
    if "--" in words:  # launch/slurm.py ... -- lra-fnet ...
        return check(words[words.index("--") + 1 :])
    if program == "launch/hosts.sh":
        return check(words[2:])
    if program == "lra-fnet":
        if "--help" not in words:
            cli.parser().parse_args(words[1:])
        return True
    if program == "make":
        given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        goals = [word for word in words[1:] if "=" not in word]
        assert TARGETS.issuperset(goals), words
        assert all(re.search(rf"^{name} \??=", MAKEFILE, re.M) for name in given), words
        recipe = subprocess.run(
            ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for line in recipe.stdout.replace("\\\n", " ").splitlines():
            run = re.search(r"\.venv/bin/lra-fnet .*", line)
            if run:
                check([given.get(w[1:], "") if w[:1] == "$" else w for w in shlex.split(run[0])])
        return True
    if program == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), words
    return False


@documents
def test_every_command_in_a_document_is_accepted(document):
    ours = [words for words in commands(document.read_text()) if check(words)]
    without = ("differences", "findings", "literature", "models")
    assert ours or document.parent.name == "launch" or document.stem in without


@documents
def test_paths_links_targets_and_commands_that_a_document_names_exist(document):
    text = document.read_text()
    folders = "gin|launch|lra_fnet|data|tests|results|docs|examples"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert ":" in link or (document.parent / link).exists(), link
    assert TARGETS.issuperset(re.findall(r"`make ([a-z-]+)", text))
    assert set(cli.VERBS).issuperset(re.findall(r"`(?:\.venv/bin/)?lra-fnet ([a-z]+)", text))


@documents
def test_python_in_a_document_compiles_and_its_imports_exist(document):
    for code in blocks(document.read_text(), "python"):
        for node in ast.walk(ast.parse(code)):
            names = node.names if isinstance(node, ast.ImportFrom) else []
            for alias in names:
                assert hasattr(importlib.import_module(node.module), alias.name), alias.name


@pytest.mark.parametrize(
    ("name", "lines"), [("README.md", 120), ("docs/findings.md", 120), ("CHANGELOG.md", 100)]
)
def test_a_document_is_short(name, lines):
    text = (ROOT / name).read_text().splitlines()
    assert len(text) <= lines
    assert max(map(len, text)) <= 160


def test_results_md_is_short():
    assert (ROOT / "RESULTS.md").stat().st_size <= 60_000


def test_reproducing_lists_every_published_number():
    """The numbers of published.json, each row with its name and in the order of its columns."""
    text = (ROOT / "docs/reproducing.md").read_text()
    rows = []
    for line in text.splitlines():
        cells = re.split(r" *\| *", re.sub(r" \(printed .*?\)", "", line))[1:-1]
        name = cells[0].partition(",")[0].strip("`") if cells else ""
        numbers = [float(cell) if re.fullmatch(r"[\d.]+", cell) else cell for cell in cells[1:]]
        rows.append((name, numbers))
    published = json.loads((SRC / "report/published.json").read_text())
    groups = [published["accuracy"][name]["rows"] for name in ("fnet", "lra")]
    groups += [table["rows"] for table in published["efficiency"].values()]
    groups += published["mixing"]["rows"].values()
    groups += [table["rows"] for table in published["parameters"].values()]
    for group in groups:
        for name, values in group.items():
            cells = values.values() if isinstance(values, dict) else values
            numbers = [cell["corrected"] if isinstance(cell, dict) else cell for cell in cells]
            numbers = ["-" if number is None else number for number in numbers]
            assert (name, numbers) in rows, (name, numbers)


def test_every_committed_result_is_in_the_list_of_those_that_were_checked():
    text = (ROOT / "results/verify.md").read_text()
    listed = re.findall(r"^\| (results/\S+) \|", text, re.M)
    files = (ROOT / "results").glob("*/*/*/seed*/result.json")
    there = {str(file.parent.relative_to(ROOT)) for file in files}
    assert len(listed) == len({*listed})
    assert {*listed} == there, "put the table of `lra-fnet verify results` into results/verify.md"
