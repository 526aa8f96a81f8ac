"""ListOps: the generator's grammar and statistics, the evaluator, and the official files."""

import collections
import functools
import itertools
import tarfile
import types

import numpy as np
import pytest
from raw_files import assert_refused

from lra_fnet import tasks
from lra_fnet.data import store, streams
from lra_fnet.errors import UserError
from lra_fnet.tasks import listops, listops_trees

OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda args: int(np.median(args)),
    "[SM": lambda args: sum(args) % 10,
}


def naive_value(tokens):
    """Rewrites the first innermost bracket until one digit is left (the code uses histograms)."""
    tokens = list(tokens)
    while len(tokens) > 1:
        close = tokens.index("]")
        start = max(i for i in range(close) if tokens[i] in OPERATORS)
        value = OPERATORS[tokens[start]]([int(t) for t in tokens[start + 1 : close]])
        tokens[start : close + 1] = [str(value)]
    return int(tokens[0])


def parse(tokens):
    """Returns nested lists [operator, argument, ...]; a digit is an int."""
    stack = [[]]
    for token in tokens:
        if token in OPERATORS:
            stack.append([token])
        elif token == "]":
            node = stack.pop()
            stack[-1].append(node)
        else:
            stack[-1].append(int(token))
    (tree,) = stack[0]
    return tree


def walk(tree, depth=1):
    """Yields (node, depth) of every node."""
    yield tree, depth
    for child in tree[1:] if isinstance(tree, list) else ():
        yield from walk(child, depth + 1)


def rows(config, count, seed=0, jobs=1):
    return list(itertools.islice(listops.generate(config, seed, jobs), count))


def digest(rows):
    return [(values.tobytes(), label) for values, label in rows]


@functools.cache
def all_trees():
    """20,000 trees of any length, and the number of trees begun."""
    state = np.random.SeedSequence([7, 0]).generate_state(4, np.uint64)
    values, ends, _, drawn = listops_trees.draw_trees(state, 20_000, 1, 20_000)
    texts = np.split(values, ends[:-1])
    return [parse([listops.TOKENS[v] for v in text]) for text in texts], drawn


def within(count, total, probability, sigmas=4.5):
    """Whether a binomial count is within `sigmas` standard errors of its expectation."""
    error = np.sqrt(total * probability * (1 - probability))
    return abs(count - total * probability) <= sigmas * error


# The evaluator


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MED 1 2 4 9 ]", 3),
        ("[MED 1 2 5 9 ]", 3),  # the median 3.5 is cut, not rounded
        ("[MED 9 0 5 ]", 5),
        ("[MED 0 9 ]", 4),
        ("[SM 9 9 9 ]", 7),
        ("[MIN 3 [MAX 8 2 ] [SM 1 1 ] ]", 2),
        ("( ( ( [MAX 4 ) 3 ) ] )", 4),  # as the official files write it
    ],
)
def test_hand_worked_expressions(text, value):
    assert listops.evaluate(listops.tokenize(text)) == value


@pytest.mark.parametrize("config", ["full", "short_128"])
def test_labels_equal_the_naive_evaluator(config):
    for values, label in rows(config, 80):
        assert naive_value([listops.TOKENS[v] for v in values]) == label
        assert listops.evaluate(values) == label


def detokenize(values):
    return " ".join(listops.TOKENS[value] for value in values)


# The generator


def test_random_numbers_are_xoshiro256starstar():
    """Compared with Python's unbounded integers, written from the paper's listing."""
    mask = 2**64 - 1

    def rotate(x, k):
        return ((x << k) | (x >> (64 - k))) & mask

    state = np.random.SeedSequence([3, 1]).generate_state(4, np.uint64)
    s = [int(x) for x in state]
    for _ in range(100):
        want = rotate(s[1] * 5 & mask, 7) * 9 & mask
        t = s[1] << 17 & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 45)
        assert int(streams.next_bits(state)) == want


def test_operators_arities_and_digits_are_uniform():
    trees, _ = all_trees()
    nodes = [(node, depth) for tree in trees[:4000] for node, depth in walk(tree)]
    inner = [node for node, _ in nodes if isinstance(node, list)]
    digits = [node for node, _ in nodes if isinstance(node, int)]
    names = collections.Counter(node[0] for node in inner)
    arities = collections.Counter(len(node) - 1 for node in inner)
    assert set(arities) == set(range(2, 11))
    assert all(within(names[op], len(inner), 1 / 4) for op in OPERATORS)
    assert all(within(arities[k], len(inner), 1 / 9) for k in range(2, 11))
    assert all(within(digits.count(d), len(digits), 1 / 10) for d in range(10))
    above = [node for node, depth in nodes if depth < 10]
    assert within(sum(isinstance(node, int) for node in above), len(above), 0.75)
    assert max(depth for _, depth in nodes) == 10
    assert all(isinstance(node, int) for node, depth in nodes if depth == 10)


@pytest.mark.parametrize(("config", "low", "high"), [("full", 500, 2000), ("short_128", 32, 128)])
def test_lengths_are_strictly_between_the_bounds_and_reach_them(config, low, high):
    lengths = [len(values) for values, _ in rows(config, 4000)]
    assert low < min(lengths) <= low + 3
    assert high - 3 <= max(lengths) < high


def test_statistics_of_full_equal_the_published_simulation():
    """Mean 1041, about 12 trees begun per kept tree, labels 0 and 9 about .17 (24,000 trees)."""
    state = np.random.SeedSequence([0, 0]).generate_state(4, np.uint64)
    _, ends, labels, drawn = listops_trees.draw_trees(state, 8000, 501, 1999)
    lengths = np.diff(ends, prepend=0)
    assert abs(lengths.mean() - 1041) < 4.5 * lengths.std() * np.sqrt(1 / 8000 + 1 / 24_000)
    assert 11.5 < drawn / 8000 < 12.9
    assert within((labels == 0).sum(), 8000, 0.169)
    assert within((labels == 9).sum(), 8000, 0.168)
    assert all(0.065 < (labels == d).mean() < 0.1 for d in range(1, 9))


def test_rows_are_the_same_at_any_number_of_jobs_and_any_global_seed():
    np.random.seed(1)  # noqa: NPY002 (the global generator is the point)
    want = digest(rows("short_128", 3500, jobs=1))
    np.random.seed(2)  # noqa: NPY002
    assert digest(rows("short_128", 3500, jobs=3)) == want
    assert digest(rows("short_128", 3500, seed=1)) != want
    assert len({values for values, _ in want}) == 3500  # each chunk has a separate stream


# The official files

GOOD = "( ( ( [MAX 4 ) 3 ) ] )\t4"


def official(folder, bad=None, header="Source\tTarget", count=3):
    """Writes the three files to a subfolder; `bad` is the second row of basic_val.tsv."""
    (folder / "lra" / "listops-1000").mkdir(parents=True)
    for name in ("train", "val", "test"):
        lines = [header, *[GOOD] * count]
        if bad is not None and name == "val":
            lines[2] = bad
        (folder / "lra" / "listops-1000" / f"basic_{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def tiny_official(monkeypatch):
    """Three rows a split, and no data/expected.json."""
    sets = {**listops.SETS, "full": listops.SETS["full"]._replace(rows=(3, 3, 3))}
    monkeypatch.setattr(listops, "SETS", types.MappingProxyType(sets))
    monkeypatch.setattr(store, "expected", dict)


@pytest.mark.usefixtures("tiny_official")
def test_official_files_are_read(tmp_path):
    source = official(tmp_path / "raw", bad="( ( ( [SM 9 ) ( ( [MED 1 ) 4 ) ] ) ) ] )\t1")
    prepared = tasks.prepare(tasks.make("listops", "full", 8), tmp_path / "data", source=source)
    assert prepared.source == "raw"
    values, lengths, labels = prepared.arrays("validation")
    assert lengths.tolist() == [4, 7, 4]
    assert labels.tolist() == [4, 1, 4]
    assert detokenize(values[1, :7]) == "[SM 9 [MED 1 4 ] ]"
    tasks.verify(prepared.task, tmp_path / "data")
    # Without a source, the existing set is used.
    assert tasks.prepare(prepared.task, tmp_path / "data") == prepared


def rewritten(change):
    def write(folder):
        for path in official(folder).rglob("*.tsv"):
            path.write_bytes(change(path.read_bytes()))
        return folder

    return write


def packed(folder):
    with tarfile.open(folder.with_suffix(".gz"), "w:gz") as archive:
        archive.add(official(folder), "lra_release")
    return folder.with_suffix(".gz")


@pytest.mark.usefixtures("tiny_official")
@pytest.mark.parametrize(
    "write", [packed, rewritten(lambda content: content.replace(b"\n", b"\r\n"))]
)
def test_archives_and_the_line_ends_of_lras_generator_give_the_same_set(write, tmp_path):
    task = tasks.make("listops", "full")
    whole = tasks.prepare(task, tmp_path / "a", source=official(tmp_path / "plain"))
    other = tasks.prepare(task, tmp_path / "b", source=write(tmp_path / "raw"))
    assert other.fingerprint == whole.fingerprint


def bad(row):
    return lambda folder: official(folder, bad=row)


def twice(folder):
    official(folder / "again")
    return official(folder)


@pytest.mark.usefixtures("tiny_official")
@pytest.mark.parametrize(
    ("write", "fragment"),
    [
        *((bad(row), "basic_val.tsv, line 3") for row in ("", "[MAX 4 3 ]", "[MAX 4 3 ]\t4\t4")),
        (bad("[MAX 4 3 ]\t10"), "line 3: expected the value 4"),
        (bad("[MAX 4 3 ]\t3"), "line 3: expected the value 4"),
        (bad("\t4"), "line 3: expected an expression, got none"),
        (bad("[FIRST 4 3 ]\t4"), r"line 3: .* got '\[FIRST'"),
        (bad("[MAX 4 9]\t9"), r"line 3: .* got '9\]'"),
        *(
            (bad(f"{row}\t4"), "line 3: expected one whole expression")
            for row in ("]", "[MAX ]", "1 2", "[MAX 4 3", "[MAX 4 3 ] ]", "[MAX 4 3 ] 1")
        ),
        (lambda folder: official(folder, header="Label"), "line 1: .*'Label'"),
        (lambda folder: official(folder, count=2), "expected 3 rows, got 2"),
        (twice, "one file for"),
        (lambda folder: folder.parent / "nowhere", "nowhere: no such file"),
    ],
)
def test_a_mistake_in_the_official_files_fails_with_one_line(write, fragment, tmp_path):
    source = write(tmp_path / "raw")
    assert_refused(tasks.make("listops", "full"), tmp_path, source, fragment)


LRAS = "Source\tTarget\n( ( ( [MAX 4 ) {0} ) ] )\t{0}\n7\t7\n"
NANGIAS = "{0}\t( ( ( [MAX 4 ) {0} ) ] )\n7\t7\n"


@pytest.mark.parametrize("form", [LRAS, NANGIAS, "\ufeff" + LRAS.replace("\n", "\r\n")])
@pytest.mark.parametrize("names", ["my_train.tsv dev test_d20s.tsv", "Train/a valid/a test/a"])
def test_files_of_any_size_are_the_set_own(tmp_path, form, names):
    paths = [tmp_path / "raw" / name for name in ("README", *names.split())]
    for i, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(form.format(i + 4) if i else "no expression", newline="")
    task = tasks.make("listops", "own")
    prepared = tasks.prepare(task, tmp_path / "data", paths[0].parent)
    assert [prepared.arrays(x).labels.tolist() for x in tasks.SPLITS] == [[5, 7], [6, 7], [7, 7]]
    assert detokenize(prepared.arrays("test").values[0, :4]) == "[MAX 4 7 ]"
    paths[2].write_text("4\t[MAX 4 3 ]\n5\t[MAX 4 3 ]\n")
    assert_refused(task, tmp_path / "b", paths[0].parent, "line 2: expected the value 4")


def test_without_validation_a_tenth_of_train_is_held_out(tmp_path):
    for name, count in (("train.tsv", 400), ("test.tsv", 50)):
        lines = (f"{label}\t{detokenize(values)}\n" for values, label in rows("short_128", count))
        (tmp_path / name).write_text("".join(lines))
    raw = tasks.make("listops", "own").raw(tmp_path, 1)
    counts = collections.Counter(split for split, _ in raw.rows())
    assert 20 <= counts["validation"] == 400 - counts["train"] <= 70


def test_duplicates_are_dropped():
    rows = list(itertools.islice(listops.generate("short_128", 0, 1), 50))
    doubled = (row for row in rows for _ in range(2))
    assert [v.tobytes() for v, _ in listops.unique(doubled)] == [v.tobytes() for v, _ in rows]


@pytest.mark.usefixtures("tiny_official")
def test_a_source_of_a_generated_set_is_refused(tmp_path):
    source, task = official(tmp_path / "raw"), tasks.make("listops", "full")
    tasks.prepare(task, tmp_path)
    with pytest.raises(UserError, match=rf"generator.*--source {source} --force`"):
        tasks.prepare(task, tmp_path, source=source)
    with pytest.raises(UserError, match="official files are the set full"):
        tasks.prepare(tasks.make("listops", "short_128"), tmp_path, source=source)
