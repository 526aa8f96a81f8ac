"""Your own table: its texts, classes and splits, and mistakes in it."""

import csv
import gzip
import hashlib
import io
import json
import re

import pytest
import serving

from lra_fnet import config, experiment, tasks
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.tasks import command, csv_table
from lra_fnet.testing import check_task

TEXTS = ['a "quoted" text, with commas; and\ttabs', "two\nlines", "Zoë", "x" * 200_000]


def rows(count=200):
    """Texts and labels: every third one is spam, in capital letters."""
    for i in range(count):
        text = f"{i} " + hashlib.md5(b"%d" % i).hexdigest()[: 3 + i % 27]
        yield (text.upper(), "spam") if i % 3 == 0 else (text, "ham")


def write(path, lines, header=("text", "label"), **form):
    """Writes a table by Python's csv module; returns its path."""
    text = io.StringIO()
    csv.writer(text, **form).writerows([header, *lines])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.getvalue().encode())
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("table") / "mail.csv", rows())


def raw(source):
    """Reads a source; returns its rows as (split, values, label), and the details of the set."""
    made = tasks.make("csv").raw(source, 1)
    return [(split, *row) for split, row in made.rows()], made.details


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv", {}),
        ("a.csv", {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}),
        ("a.tsv", {"delimiter": "\t"}),
    ],
)
def test_a_table_gives_the_texts_that_were_written(tmp_path, name, form):
    lines = [(text, i, f" {label}\n") for i, text in enumerate(TEXTS) for label in "ab"]
    path = write(tmp_path / name, lines, header=("text", "id", "label"), **form)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n")  # a byte order mark
    want = [("ab"[i % 2], (TEXTS[i // 2].encode(),)) for i in range(2 * len(TEXTS))]
    assert [(row.label, row.texts) for row in csv_table.read(path)] == want
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [(row.label, row.texts) for row in csv_table.read(packed)] == want


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz", "a.json", "in/b.jsonl", "in/test.json"])
def test_lines_of_json_are_a_table(tmp_path, name):
    labels = {"x": "x", 3: "3", True: "true", 0.5: "0.5"}
    lines = [{"id": [], "text": text, "label": label} for text in TEXTS for label in labels]
    content = b"\xef\xbb\xbf" + "\n\n".join(map(json.dumps, lines)).encode()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (path.parent / "result.json").write_text("{}")  # not a table in a folder
    source = path.parent if "/" in name else path
    want = [(label, (text.encode(),)) for text in TEXTS for label in labels.values()]
    assert [(row.label, row.texts) for row in csv_table.read(source)] == want
    assert [texts for _, texts in tasks.make("csv").inputs(path)] == [texts for _, texts in want]


def test_a_table_is_prepared_whole_and_passes_check_task(table, tmp_path):
    prepared = tasks.prepare(tasks.make("csv"), tmp_path, table)
    assert prepared.task.label_names == ("ham", "spam")
    kept = set()
    for split in tasks.SPLITS:
        for (values,), label in store.read(prepared, split):
            kept.add((values.tobytes().decode(), prepared.task.class_names[label]))
    assert kept == set(rows())
    check_task(tasks.make("csv"), table)


def test_a_row_stays_in_its_split_when_others_are_added(tmp_path):
    """The split is recomputed here from the text alone."""
    before, details = raw(write(tmp_path / "a.csv", rows()))
    after, _ = raw(write(tmp_path / "b.csv", [("added", "other")] * 40 + [*rows(300)][::-1]))
    place = {values.tobytes(): split for split, values, _ in after}
    for split, values, _ in before:
        assert place[values.tobytes()] == split
        digest = hashlib.sha256(len(values).to_bytes(8, "little") + values.tobytes()).digest()
        tenth = int.from_bytes(digest[:8], "little") % 10
        assert split == {0: "test", 1: "validation"}.get(tenth, "train")
    assert details["split_by"] == "sha256 of the content"


def test_repeated_texts_share_a_split_and_are_counted(tmp_path):
    lines = [*rows(), *rows(50), ("0 ABC", "spam"), ("0 ABC", "ham"), (" 0 ABC ", "ham")]
    made, details = raw(write(tmp_path / "a.csv", lines))
    assert len({(values.tobytes(), split) for split, values, _ in made}) == 201
    forms = [(f"{e} {i}", i % 2) for i in range(99) for e in ("\u00e9", "e\u0301")]
    _, facts = raw(write(tmp_path / "b.csv", forms))
    assert (facts["repeated_rows"], facts["texts_in_several_splits"]) == (99, 0)
    wanted = {"repeated_rows": 52, "texts_with_several_labels": 1, "texts_in_several_splits": 0}
    assert {name: details[name] for name in wanted} == wanted


def test_swapped_pairs_share_a_split(tmp_path):
    pairs = [(f"a {i}", f"b {i % 60}", "x" if i % 3 else "y") for i in range(300)]
    lines = [*pairs, *((b, a, label) for a, b, label in pairs)]
    made, details = raw(write(tmp_path / "a.csv", lines, header=("text1", "text2", "label")))
    sides = {(frozenset(value.tobytes() for value in values), split) for split, values, _ in made}
    assert len(sides) == 300
    assert details["repeated_rows"] == 300


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("my_train.csv", "my_test.csv"),
        ("train-00000-of-00001.csv", "test-00000-of-00001.csv"),
        ("training/part.csv", "Testing/part.csv"),
    ],
)
def test_named_splits_are_kept_and_validation_is_held_out_of_train(tmp_path, train, test):
    lines = [*rows()]
    for name, part in ((train, lines[:150]), (test, lines[150:])):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / "files" / name, part)
    made, details = raw(tmp_path / "files")
    texts = {split: {v.tobytes().decode() for s, v, _ in made if s == split} for split, *_ in made}
    assert details["split_by"] == "name"
    assert texts["test"] == {text for text, _ in lines[150:]}
    assert texts["train"] | texts["validation"] == {text for text, _ in lines[:150]}
    assert 5 <= len(texts["validation"]) <= 30


def test_whole_numbers_are_sorted_by_value_and_the_user_may_order_labels(tmp_path):
    path = write(tmp_path / "a.csv", [(f"text {i}", i % 12 - 2) for i in range(600)])
    assert raw(path)[1]["labels"] == [str(i) for i in range(-2, 10)]
    task = csv_table.Csv("full", 9, labels=("9", *map(str, range(-2, 9))))
    assert task.raw(path, 1).details["labels"][:2] == ["9", "-2"]


ALIKE = ["ham\u200b", "Ham", '"ham"', "\u201eham\u201c", "\uff48am"]


@pytest.mark.parametrize("other", ALIKE)
def test_labels_equal_to_the_eye_are_named_and_stay_classes(tmp_path, other, capfd):
    lines = [(f"text {i}", ("ham", other, "ham!")[i % 3]) for i in range(300)]
    assert len(raw(write(tmp_path / "a.csv", lines))[1]["labels"]) == 3
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "alike" in line]
    assert [name in line for name in (ascii(other), "'ham'", "ham!")] == [True, True, False]


HEAD = b"label,text\n"
OBJECT = b'{"label": 1, "text": "a"}\n'
NO_OBJECTS = (b"[1]", b"{", b'{"label": 1, "text": 5}', b'{"label": "\\ud800", "text": "a"}')
SWALLOWED = HEAD + b'a,x\na,"two\nlines, and more"\nb,"x\na,y\nb,y\na,z"\n'


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "the columns label and text"),
        (b"ham,hello\n", "line 1.*ham, hello"),
        (HEAD, "rows below it"),
        (b"label,text,text\nham,a,b\n", "line 1"),
        (b"label,text,text1,text2\nham,a,b,c\n", "line 1"),
        (b"label,text\rham,a\rspam,b\r", "line 1"),
        (HEAD + b"ham,a\nham\n", "line 3: expected 2 columns"),
        (HEAD + b"ham,a,b\n", "line 2: expected 2 columns"),
        (SWALLOWED, "line 5"),
        *((OBJECT + bad, "line 2") for bad in NO_OBJECTS),
        (HEAD + b"ham, \n", "line 2: expected a text and a label"),
        (HEAD + b",a\n", "line 2: expected a text and a label"),
        (HEAD + b"ham,a\xff\n", "line 2.*utf-8"),
        ((HEAD + b"ham,a\n").decode().encode("utf-16"), "line 1.*utf-8"),
        (HEAD + b'ham,"a\nspam,b\nspam,c\n', "line 2: unexpected end of data"),
        (HEAD + b'ham,"two\nlines"\nham,"a"b\n', "line 4"),
        (HEAD + b"ham,a\nham,b\n", "2 to 1,000 labels, got 1"),
        (HEAD + b"".join(b"%d,a\n" % i for i in range(1001)), "got 1,001"),
        (HEAD + b"a,x\nb,y\n", "rows of (train|validation|test)"),
    ],
)
def test_a_mistake_in_a_table_fails_with_one_line(tmp_path, content, fragment):
    path = tmp_path / ("mine.jsonl" if content.startswith(OBJECT) else "mine.csv")
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name}.*{fragment}") as raised:
        raw(path)
    assert "\n" not in str(raised.value)


def test_line_breaks_are_texts_where_they_cannot_be_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(SWALLOWED.replace(b"a,y", b"a, y, and"))
    assert len([*csv_table.read(path)]) == 3


@pytest.mark.parametrize(
    ("labels", "fragment"),
    [
        (("ham", "spam", "spam"), "rows of 'spam'"),
        ("ham", "expected the labels 'h', 'a', 'm', got 'ham'"),
        (("ham", "eggs"), "expected the labels 'ham', 'eggs', got 'spam'"),
    ],
)
def test_labels_in_an_order_are_each_label_of_the_table_once(table, tmp_path, labels, fragment):
    with pytest.raises(UserError, match=fragment):
        tasks.prepare(csv_table.Csv("full", 9, labels=labels), tmp_path, table)


@pytest.mark.parametrize("name", ["n" * 201, 7, "../x"])
def test_the_name_of_a_set_is_short_and_of_letters(name):
    with pytest.raises(UserError, match=str(name)):
        csv_table.Csv(name, 9)


def test_a_changed_table_is_an_error_until_it_is_prepared_anew(tmp_path):
    """Other files beside it change nothing, such as those of a run in the same folder."""
    path, task = write(tmp_path / "raw" / "a.csv", rows()), tasks.make("csv")
    tasks.prepare(task, tmp_path, path.parent)
    (path.parent / "result.json").write_text("{}")
    tasks.prepare(task, tmp_path, path.parent)
    write(path, [*rows(), *(("added", "other") for _ in range(40))])
    with pytest.raises(UserError, match=rf"--data {tmp_path} --source {path.parent} --force`"):
        tasks.prepare(task, tmp_path, path.parent)
    anew = tasks.prepare(task, tmp_path, path.parent, force=True)
    assert anew.task.label_names == ("ham", "other", "spam")
    with pytest.raises(UserError, match="labels ham, spam, the prepared set has ham, other"):
        tasks.open(csv_table.Csv("full", 9, labels=("ham", "spam")), tmp_path)
    path.rename(tmp_path / "gone")
    with pytest.raises(UserError, match="no such file"):
        tasks.prepare(task, tmp_path, tmp_path / "other.csv")


def test_urls_of_one_file_name_are_different_sources(tmp_path):
    tables = {f"mail.csv?id={i}": [(text, f"{label}{i}") for text, label in rows()] for i in (1, 2)}
    for name, lines in tables.items():
        write(tmp_path / name, lines)
    with serving.serve(tmp_path) as url:
        one, two = (url + name for name in tables)
        prepared = tasks.prepare(tasks.make("csv"), tmp_path / "data", one)
        assert (prepared.source, prepared.task.label_names) == ("mail.csv", ("ham1", "spam1"))
        assert tasks.prepare(tasks.make("csv"), tmp_path / "data", one) == prepared
        with pytest.raises(UserError, match=r"id=2.*id=1.*DATASET=NAME"):
            tasks.prepare(tasks.make("csv"), tmp_path / "data", two)
        other = tasks.prepare(tasks.make("csv", "other"), tmp_path / "data", two)
        assert other.task.label_names == ("ham2", "spam2")


# Experiments


@pytest.mark.parametrize("preset", ["cpu", "small", "paper"])
def test_presets_have_the_task(table, tmp_path, preset):
    built = experiment.load("csv", "fnet", preset, data=tmp_path, source=table)
    assert built.task.class_names == ("ham", "spam")
    assert built.model.head.num_classes == 2
    again = experiment.restore(built.config)  # without the data
    assert again.task == built.task
    assert config.differing(built.config, again.config) == []


def pairs(path):
    lines = [(f"one {i}", f"two {i * 7 % 13}", i % 2) for i in range(100)]
    return write(path, lines, header=("text1", "text2", "label"))


def test_two_texts_have_a_head_for_two_and_a_set_of_any_name_is_described(tmp_path, capsys):
    path = pairs(tmp_path / "a.csv")
    built = experiment.load("csv", "fnet", "cpu", ["DATASET=pairs"], data=tmp_path, source=path)
    command.describe("csv", tmp_path)
    assert re.search(r"csv/pairs .* 2 .* a.csv", capsys.readouterr().out)
    assert (built.task.num_inputs, built.model.head.interaction) == (2, "nli")
    prepared = tasks.open(built.task, tmp_path)
    values, lengths, _ = prepared.arrays("train")
    assert values.shape == (prepared.rows["train"], 2, 512)
    assert bytes(values[0, 1, : lengths[0, 1]]).startswith(b"two ")


def test_without_rows_the_classes_must_be_given():
    with pytest.raises(UserError, match="--set 'Csv"):
        experiment.load("csv", "fnet", "cpu")
    given = ["Csv.labels=('no', 'yes')", "Csv.texts=1"]
    assert experiment.load("csv", "fnet", "cpu", given).task.num_classes == 2
