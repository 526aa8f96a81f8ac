"""Your own rows: tables of any form, folders of images, their classes, splits and mistakes."""

import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import gin
import numpy as np
import pytest
import serving
from PIL import Image, ImageDraw

import lra_fnet
from lra_fnet import config, experiment, tasks
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.run import execute, job
from lra_fnet.tasks import csv_table, own_rows, prepare
from lra_fnet.testing import check_task

TEXTS = ['a "quoted" text, with commas; and\ttabs', "two\nlines", "Zoë", "x" * 200_000]


def rows(count=200):
    """Texts and labels: every third one is spam, in capital letters."""
    rng = np.random.default_rng(0)
    for i in range(count):
        text = f"{i} " + "".join(rng.choice([*"abc"], rng.integers(3, 30)))
        yield (text.upper(), "spam") if i % 3 == 0 else (text, "ham")


def write(path, lines, header=("text", "label"), **form):
    """Writes a table by Python's csv module; returns its path."""
    text = io.StringIO()
    writer = csv.writer(text, **form)
    writer.writerows([header, *lines])
    path.write_bytes(text.getvalue().encode())
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("table") / "mail.csv", rows())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Circles and squares in one folder for each."""
    source = tmp_path_factory.mktemp("pictures") / "shapes"
    rng = np.random.default_rng(0)
    for label in ("circle", "square"):
        (source / label).mkdir(parents=True)
        for i in range(40):
            image = Image.new(("RGB", "L")[i % 2], (40, 36))
            x, y = rng.integers(0, 20, 2).tolist()
            draw = ImageDraw.Draw(image)
            shape = draw.ellipse if label == "circle" else draw.rectangle
            shape((x, y, x + 14, y + 14), fill="white")
            image.save(source / label / f"{i}.{('png', 'JPG')[i % 2]}")
    (source / "notes.txt").write_text("not an image")
    return source


def raw(source, task="csv"):
    """Reads a source; returns its rows as (split, values, label), and the details of the set."""
    made = tasks.make(task).raw(source, 1)
    return [(split, *row) for split, row in made.rows()], made.details


# Tables


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv", {}),
        ("a.csv", {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}),
        ("a.tsv", {"delimiter": "\t"}),
        ("a.txt", {"delimiter": ";"}),
    ],
)
def test_every_form_of_a_table_gives_the_texts_that_were_written(tmp_path, name, form):
    lines = [(text, i, f" {label}\n") for i, text in enumerate(TEXTS) for label in "ab"]
    path = write(tmp_path / name, lines, header=("Text", "id", " LABEL"), **form)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n")  # a byte order mark
    want = [("ab"[i % 2], (TEXTS[i // 2].encode(),)) for i in range(2 * len(TEXTS))]
    assert [(row.label, row.texts) for row in csv_table.read(path)] == want
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [(row.label, row.texts) for row in csv_table.read(packed)] == want


def test_a_table_is_prepared_whole_and_passes_check_task(table, tmp_path):
    prepared = tasks.prepare(tasks.make("csv"), tmp_path, table)
    assert prepared.task.label_names == ("ham", "spam")
    kept = set()
    for split in tasks.SPLITS:
        for (values,), label in store.read(prepared, split):
            kept.add((values.tobytes().decode(), prepared.task.class_names[label]))
    assert kept == set(rows())
    check_task(tasks.make("csv"), table)


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        (["yes", "no", "maybe"], []),
        (["1", "01", "2", "1.0"], ["'01' and '1'", "'1' and '1.0'"]),
        (["Yes", "yes", "no"], ["'Yes' and 'yes'"]),
        (["caf\u00e9", "cafe\u0301"], ["'cafe\u0301' and 'caf\u00e9'"]),  # two encodings of é
        (["b", "\ufeffb"], [r"'b' and '\ufeffb'"]),
        ([":apple:", "pear"], []),  # no emoji
        (["12345678901234567890", "12345678901234567891"], []),  # equal as float64
    ],
)
def test_classes_are_printed_and_labels_that_look_like_one_class(tmp_path, capfd, labels, alike):
    lines = [(f"text {i}", labels[i % len(labels)]) for i in range(99)]
    _, details = raw(write(tmp_path / "mine.csv", lines))
    err = capfd.readouterr().err
    listed = ", ".join(map(repr, details["labels"]))
    assert f"mine.csv: {len(labels)} classes: {listed}\n" in err
    assert re.findall(r"the labels ('.*') are two classes", err) == alike


def test_labels_that_stand_for_none_are_named(tmp_path, capfd):
    raw(write(tmp_path / "mine.csv", [(f"text {i}", ["NaN", "yes"][i % 2]) for i in range(99)]))
    assert "'NaN' is a class; if it stands for a missing label, remove" in capfd.readouterr().err


def test_a_measured_value_is_no_label(tmp_path):
    lines = [(f"text {i}", str(i / 7)) for i in range(99)]
    with pytest.raises(UserError, match="99 labels in 99 rows: a label names the class of a row"):
        raw(write(tmp_path / "mine.csv", lines))


def test_a_row_stays_in_its_split_when_others_are_added(tmp_path):
    """The split is recomputed here from the text alone."""
    before, _ = raw(write(tmp_path / "a.csv", rows()))
    after, _ = raw(write(tmp_path / "b.csv", [("added", "other")] * 40 + [*rows(300)][::-1]))
    place = {values.tobytes(): split for split, values, _ in after}
    for split, values, _ in before:
        assert place[values.tobytes()] == split
        digest = hashlib.sha256(len(values).to_bytes(8, "little") + values.tobytes()).digest()
        tenth = int.from_bytes(digest[:8], "little") % 10
        assert split == {0: "test", 1: "validation"}.get(tenth, "train")


def test_repeated_texts_share_a_split_and_are_reported(tmp_path, capfd):
    lines = [*rows(), *rows(50), ("0 ABC", "spam"), ("0 ABC", "ham"), (" 0 ABC ", "ham")]
    made, details = raw(write(tmp_path / "a.csv", lines))
    sides = {(values.tobytes(), split) for split, values, _ in made}
    assert len(sides) == 201
    wanted = {"repeated_rows": 52, "texts_with_several_labels": 1, "texts_in_several_splits": 0}
    assert {name: details[name] for name in wanted} == wanted
    assert "52 of 253 rows repeat another one; 1 of the" in capfd.readouterr().err


def test_swapped_pairs_share_a_split_and_shared_texts_are_reported(tmp_path, capfd):
    pairs = [(f"a {i}", f"b {i % 60}", "x" if i % 3 else "y") for i in range(300)]
    lines = [*pairs, *((b, a, label) for a, b, label in pairs)]
    made, details = raw(write(tmp_path / "a.csv", lines, header=("text1", "text2", "label")))
    splits = {frozenset(value.tobytes() for value in values): set() for _, values, _ in made}
    texts = {text: set() for pair in splits for text in pair}
    for split, values, _ in made:
        splits[frozenset(value.tobytes() for value in values)].add(split)
        for value in values:
            texts[value.tobytes()].add(split)
    assert len(splits) == 300
    assert all(len(found) == 1 for found in splits.values())
    shared = sum(len(found) > 1 for found in texts.values())
    assert 0 < shared == details["single_texts_in_several_splits"] <= 60
    assert f"{shared} texts are in pairs of several splits" in capfd.readouterr().err
    assert details["repeated_rows"] == 300


def test_named_splits_are_kept_and_validation_is_held_out_of_train(tmp_path):
    lines = [*rows()]
    named = [(text, label, "train" if i < 150 else "test") for i, (text, label) in enumerate(lines)]
    column, details = raw(write(tmp_path / "a.csv", named, header=("text", "label", "split")))
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "test.csv", lines[150:])
    write(folder / "train.csv", lines[:150])
    files, _ = raw(folder)
    assert details["split_by"] == "name"
    for made in (column, files):
        texts = {
            split: {v.tobytes().decode() for s, v, _ in made if s == split} for split, *_ in made
        }
        assert texts["test"] == {text for text, _ in lines[150:]}
        assert texts["train"] | texts["validation"] == {text for text, _ in lines[:150]}
        assert 5 <= len(texts["validation"]) <= 30


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("my_train.csv", "my_test.csv"),
        ("train-00000-of-00001.csv", "test-00000-of-00001.csv"),
        ("training/part.csv", "Testing/part.csv"),
    ],
)
def test_a_word_in_the_name_of_a_file_names_its_split(tmp_path, capfd, train, test):
    lines = [*rows()]
    for name, part in ((train, lines[:150]), (test, lines[150:])):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / "files" / name, part)
    made, details = raw(tmp_path / "files")
    assert details["split_by"] == "name"
    tested = {values.tobytes().decode() for split, values, _ in made if split == "test"}
    assert tested == {text for text, _ in lines[150:]}
    assert "by their content" not in capfd.readouterr().err


def test_division_by_content_is_announced(tmp_path, capfd):
    for name in ("latest.csv", "train_and_test.csv"):  # no split, and two
        _, details = raw(write(tmp_path / name, rows()))
        assert details["split_by"] == "sha256 of the content"
        assert f"{name}: nothing names a split, so rows are divided" in capfd.readouterr().err


def test_labels_of_many_digits_are_words(tmp_path):
    long = "9" * 5000
    path = write(tmp_path / "a.csv", [(f"text {i}", ("10", "9", long)[i % 3]) for i in range(300)])
    _, details = raw(path)
    assert details["labels"] == ["10", "9", long]


def test_a_column_and_a_file_that_name_different_splits_are_a_mistake(tmp_path):
    lines = [(text, label, "train") for text, label in rows()]
    folder = tmp_path / "folder"
    folder.mkdir()
    path = write(folder / "train.csv", lines, header=("text", "label", "split"))
    assert {row.split for row in csv_table.read(folder)} == {"train"}
    lines[100] = (*lines[100][:2], "test")
    write(path, lines, header=("text", "label", "split"))
    with pytest.raises(UserError, match=r"line 102: expected train, which the file's .* 'test'"):
        list(csv_table.read(folder))


def test_whole_numbers_are_sorted_by_value_and_the_user_may_order_labels(tmp_path):
    path = write(tmp_path / "a.csv", [(f"text {i}", i % 12 - 2) for i in range(600)])
    _, details = raw(path)
    assert details["labels"] == [str(i) for i in range(-2, 10)]
    write(path, [(f"text {i}", i % 12) for i in range(600)])
    task = csv_table.Csv("full", 9, labels=tuple("210") + tuple(map(str, range(3, 12))))
    assert task.raw(path, 1).details["labels"][:3] == ["2", "1", "0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mine.csv: expected the columns label and text (or label, text1 and text2) in the"),
        (b"ham,hello\n", "in the first line, got 'ham,hello': name them so"),
        (b"label,text\n", "mine.csv: expected a table with the columns"),
        (
            b"label,text,Text\nham,a,b\n",
            "mine.csv, line 1: expected one column text, got 'text' and 'Text': rename or remove",
        ),
        (b"label,Label ,text\nham,a,b\n", "expected one column label, got 'label' and 'Label':"),
        (b"label,text,split,split\nham,a,test,train\n", "expected one column split, got 'split'"),
        (
            b"label,text\nham,a\nspam,b\nLabel,text\nham,c\n",
            "mine.csv, line 4: this line repeats the first one: remove it",
        ),
        (
            b'label,text\nham, "a, b"\n',
            "mine.csv, line 2: expected 2 columns, got 3: remove the space before the quotation",
        ),
        (
            b'label,text\nham,a\nspam, "he said ""b"""\n',
            "mine.csv, line 3: a space before a quotation mark makes it part of the text: remove",
        ),
        (
            b"label,text,text1,text2\nham,a,b,c\n",
            "mine.csv, line 1: expected the column text, or text1 and text2, got all three: rename",
        ),
        (b"label,text\rham,a\rspam,b\r", "mine.csv, line 1: new-line character seen in unquoted"),
        (b"label,text\rham,a\rspam,b\r", "save the table with line ends as \\n or \\r\\n"),
        (b"label,text\nham,a\rspam,b\n", "save the table with line ends as \\n or \\r\\n"),
        (b"x" * 200_000 + b"\nham,a\n", "mine.csv: expected the columns label and text (or"),
        (b"label,text\nham,a\nham\n", "line 3: expected 2 columns, got 1: add the missing column"),
        (b"label,text1,text2\nham\n", "line 2: expected 3 columns, got 1: add the missing columns"),
        (
            b"label,text\nham,a,b\n",
            "line 2: expected 2 columns, got 3: put a text that has the sep",
        ),
        (b"label,text\nham, \n", "line 2: expected a text in the column text, got none"),
        (b"label,text\n,a\n", "line 2: expected a label, got none: remove the row"),
        (b"label,text\nham,a\xff\n", "mine.csv, line 2: expected UTF-8, got 'utf-8' codec can't"),
        ("label,text\nham,a\n".encode("utf-16"), "line 1: expected UTF-8, got 'utf-8' codec can't"),
        *(
            (
                b"label,text\n" + rows + b'ham,"a\nspam,b\nspam,c\n',
                f"mine.csv, line {line}: a quotation mark in the row that begins here is not clo",
            )
            for rows, line in ((b"", 2), (b'ham,"two\nlines"\n\n', 5))
        ),
        (b"label,text\nham,a\nham,b\n", "expected 2 to 1,000 different labels, got 1 ('ham')"),
        (
            b"label,text\n0.1,a\n" + b"".join(b"%d,a\n" % i for i in range(1000)),
            "got more ('0', '0.1', '1' ...)",
        ),
        (b"label,text\na,x\nb,y\n", "none of its 2 rows fell to the split"),
        (b"label,text,split\na,x,dve\n", "line 2: expected train, validation or test in the colu"),
        (
            b"label,text,split\na,x,train\nb,y,dev\n",
            "for none of them, got train, validation: name",
        ),
        (
            b"label,text,split\na,x,train\na,z,dev\nb,y,test\n",
            "no training row has the label 'b', which has 1 of all rows",
        ),
    ],
)
def test_a_mistake_in_a_table_fails_with_one_line(tmp_path, content, message):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        raw(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["mine.csv.xz", "mine.parquet", "mine.parquet.gz"])
def test_a_file_that_is_no_text_fails_with_the_formats_that_are_read(tmp_path, name):
    content = lzma.compress(b"label,text\nham,a\n")
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    line = f"{name}: expected a table in UTF-8 (.csv, .tsv, .tab, each perhaps .gz), got another"
    with pytest.raises(UserError, match=re.escape(line)):
        raw(path)


def test_a_set_whose_name_no_folder_may_have_fails_with_one_line():
    assert tasks.make("csv", "n" * 200).config
    with pytest.raises(UserError, match=r"must have at most 200 bytes, got 201 \(nnn"):
        tasks.make("csv", "n" * 201)


def test_an_open_quotation_mark_that_swallows_lines_is_noticed(tmp_path, capfd):
    """Between tabs a line inside a text that has all columns is a mistake; elsewhere it may be."""
    lines = [
        "label{}text",
        'pos{}"I liked it.',
        "neg{}It was weak.",
        'pos{}Still fine."',
        "neg{}Dull.",
    ]
    (tmp_path / "tabs.tsv").write_text("\n".join(lines).format(*"\t" * 5))
    with pytest.raises(UserError, match=r"tabs.tsv, line 4: .* so a quotation mark is not closed"):
        raw(tmp_path / "tabs.tsv")
    many = [*rows(60), ("two\nlines", "ham"), ("a\nb,c", "spam")]
    raw(write(tmp_path / "commas.csv", many))
    assert "commas.csv: 2 of 62 rows have line breaks in a text; if" in capfd.readouterr().err


def test_lines_of_a_text_with_as_many_tabs_as_rows_are_no_rows(tmp_path):
    code = "def f():\n\treturn 1\nx = 1\t# one"
    lines = [(f"{code} {i}", f" {i % 2}") for i in range(20)]
    path = write(tmp_path / "code.tsv", lines, delimiter="\t")
    assert [row.texts[0].decode() for row in csv_table.read(path)] == [text for text, _ in lines]
    write(path, [*lines, ("a\n\tb\n1", "0"), ("a\nb\t 1\nc", "0")], delimiter="\t")
    with pytest.raises(UserError, match=r"line 67: .*such lines, save the table with commas\)$"):
        list(csv_table.read(path))
    write(path, [("a\nb\tc", "d")], header=("text1", "text2"), delimiter="\t")
    with pytest.raises(UserError, match=r"code.tsv, line 3: .* so a quotation mark is not closed"):
        list(csv_table.read(path, labelled=False))


def test_a_text_may_begin_with_a_space_and_a_quotation_mark(tmp_path):
    lines = [(' "To be"', "ham"), ('a, "b"', ' "x"'), (' "or ""not"""', "spam")]
    for form in ({}, {"delimiter": "\t"}):
        path = write(tmp_path / "mine.csv", lines, **form)
        got = [(row.texts[0].decode(), row.label) for row in csv_table.read(path)]
        assert got == [(text.strip(), label.strip()) for text, label in lines]


def test_a_zip_archive_is_refused_by_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("mine.csv", "label,text\nham,a\n")
    for task in ("csv", "images"):
        with pytest.raises(UserError, match=r"mine.zip is a zip archive, which is not read: unpa"):
            raw(tmp_path / "mine.zip", task)
    table = write(tmp_path / "a.csv", rows())
    with tarfile.open(tmp_path / "mine.tar", "w") as archive:
        for path in (table, tmp_path / "mine.zip"):
            archive.add(path, path.name)
    assert zipfile.is_zipfile(tmp_path / "mine.tar")
    assert len(raw(tmp_path / "mine.tar")[0]) == 200


def test_a_source_that_changes_while_it_is_read_makes_no_set(tmp_path, monkeypatch):
    path, task = write(tmp_path / "a.csv", rows()), tasks.make("csv")
    read = csv_table.Csv._rows

    def slow(self, source, *arguments):
        yield from read(self, source, *arguments)
        write(path, rows(400))

    def between(self, source, *arguments):
        write(path, [*rows(), ("a text of a new class", "new")])
        yield from read(self, source, *arguments)

    for changing in (slow, between):
        monkeypatch.setattr(csv_table.Csv, "_rows", changing)
        with pytest.raises(UserError, match=r"a.csv changed while it was read: run the same"):
            tasks.prepare(task, tmp_path, path)
        assert not task.folder(tmp_path).exists()


def test_long_rows_are_written_and_read_in_batches_of_fewer(table, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    want = tasks.prepare(tasks.make("csv"), tmp_path / "a", table)
    monkeypatch.setattr(store, "_BATCH_BYTES", 100)
    written, add = [], tfds.core.SequentialWriter.add_examples

    def spy(writer, examples):
        written.append(sum(map(len, examples.values())))
        return add(writer, examples)

    monkeypatch.setattr(tfds.core.SequentialWriter, "add_examples", spy)
    prepared = tasks.prepare(tasks.make("csv"), tmp_path / "b", table)
    assert max(written) < 20 < sum(written) == sum(prepared.rows.values())
    assert prepared.fingerprint == want.fingerprint
    for split in tasks.SPLITS:
        np.testing.assert_array_equal(prepared.arrays(split).values, want.arrays(split).values)


def test_a_column_of_different_labels_is_not_read_to_the_end(tmp_path):
    lines = [f"text,{i}" for i in range(own_rows.MOST_CLASSES + 1)]
    path = tmp_path / "swapped.csv"
    path.write_text("\n".join(["text,label", *lines, "too,many,columns"]))
    with pytest.raises(UserError, match=r"expected 2 to 1,000 different labels, got more \('0', "):
        raw(path)


def test_long_labels_are_cut_in_errors(tmp_path):
    lines = [(f"text {i}", "ham") for i in range(60)] + [("text", "x" * 10_000, "test")]
    lines = [
        line if len(line) == 3 else (*line, ["train", "test"][i % 2])
        for i, line in enumerate(lines)
    ]
    path = write(tmp_path / "mine.csv", lines, header=("text", "label", "split"))
    with pytest.raises(UserError, match=f"no training row has the label '{'x' * 40}', which"):
        raw(path)


def test_columns_that_are_not_read_may_have_equal_names(tmp_path):
    lines = [("a", "ham", "x", "", "")]
    path = write(tmp_path / "a.csv", lines, header=("text", "label", "id", "Id", ""))
    assert [row.texts for row in csv_table.read(path)] == [(b"a",)]
    path = write(tmp_path / "b.csv", lines, header=("text", "label", "label", "split", "split"))
    assert [row.texts for row in csv_table.read(path, labelled=False)] == [(b"a",)]


def test_a_changed_table_is_an_error_until_it_is_prepared_anew(tmp_path):
    path, task = write(tmp_path / "a.csv", rows()), tasks.make("csv")
    tasks.prepare(task, tmp_path, path)
    write(path, [*rows(), *(("added", "other") for _ in range(40))])
    line = rf"does not hold the rows of .* --data {tmp_path} --source {path} --force`"
    with pytest.raises(UserError, match=line):
        tasks.prepare(task, tmp_path, path)
    anew = tasks.prepare(task, tmp_path, path, force=True)
    assert anew.task.label_names == ("ham", "other", "spam")
    with pytest.raises(
        UserError,
        match=r"labels 'ham', 'spam', the prepared set has 'ham', .* with DATASET and --source",
    ):
        csv_table.tasks.open(Csv("full", 9, labels=("ham", "spam")), tmp_path)
    path.unlink()
    tasks.prepare(task, tmp_path, path)  # a source that is gone is compared by its name
    for gone in ("other.csv", "x" * 300):
        with pytest.raises(UserError, match=r"no such file or folder|is damaged, unreadable"):
            tasks.prepare(task, tmp_path, tmp_path / gone)


def test_labels_that_are_given_must_differ():
    with pytest.raises(UserError, match="csv: labels must differ, got yes, yes, no"):
        csv_table.Csv("full", 9, labels=("yes", "yes", "no"))


@pytest.mark.parametrize("labels", [None, ["ham"], 3])
def test_a_fingerprint_without_the_labels_of_its_rows_is_damaged(table, tmp_path, labels):
    prepared = tasks.prepare(tasks.make("csv"), tmp_path, table)
    file = prepared.folder / "fingerprint.json"
    record = json.loads(file.read_text())
    record["details"] |= {"labels": labels}
    if labels is None:
        del record["details"]["labels"]
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"fingerprint.json is damaged: .* prepare the set again"):
        tasks.open(tasks.make("csv"), tmp_path)


@pytest.mark.parametrize("given", [(), ("no", "yes")])
def test_a_text_in_the_place_of_a_label_is_shown_in_part(tmp_path, given):
    path = write(tmp_path / "a.csv", [("a", f"{i} {'x' * 5000}") for i in range(1200)])
    with pytest.raises(UserError) as raised:
        csv_table.Csv("full", 9, labels=given).raw(path, 1)
    assert len(str(raised.value)) < 500


def test_other_files_beside_a_table_change_nothing(tmp_path):
    """Such as those of a run in the same folder."""
    write(tmp_path / "a.csv", rows())
    task = tasks.make("csv")
    tasks.prepare(task, tmp_path / "data", tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "result.json").write_text("{}")
    (tmp_path / "runs" / ".lock").touch()
    tasks.prepare(task, tmp_path / "data", tmp_path)
    write(tmp_path / "b.csv", rows())
    with pytest.raises(UserError, match="does not hold the rows of"):
        tasks.prepare(task, tmp_path / "data", tmp_path)


@pytest.fixture
def drawn(monkeypatch):
    """The titles of the images that are drawn, and whether each is read as a formula."""
    titles = []

    def save(figure, path, **_):
        titles.extend((axes.get_title(), axes.title.get_parse_math()) for axes in figure.axes)
        Path(path).write_bytes(b"drawn")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
    return titles


def test_names_of_classes_are_drawn_as_they_are(tmp_path, pictures, drawn):
    source = tmp_path / "prices"
    for folder, name in (("circle", "$10_$20"), ("square", "$20_$50")):
        shutil.copytree(pictures / folder, source / name)
    prepared = tasks.prepare(tasks.make("images", "gray_8"), tmp_path, source)
    prepared.task.illustrate(prepared)
    labels = prepared.arrays("train").labels[:32]
    assert drawn == [(("$10_$20", "$20_$50")[label], False) for label in labels]


def test_a_set_of_ones_own_does_not_get_the_settings_of_the_run_that_was_built_last():
    gin.bind_parameter("Csv.labels", ("spam", "ham"))
    assert tasks.make("csv").labels == ()


def test_a_class_folder_whose_name_is_not_utf_8_fails_with_one_line(tmp_path, pictures):
    shutil.copytree(pictures / "circle", tmp_path / "shapes" / "caf\udce9")
    shutil.copytree(pictures / "square", tmp_path / "shapes" / "square")
    with pytest.raises(UserError, match=r"expected names in UTF-8, got 'caf\\udce9': rename the f"):
        raw(tmp_path / "shapes", "images")


def test_urls_of_one_file_name_are_different_sources(tmp_path):
    tables = {f"mail.csv?id={i}": [(text, f"{label}{i}") for text, label in rows()] for i in (1, 2)}
    for name, lines in tables.items():
        write(tmp_path / name, lines)
    with serving.serve(tmp_path) as url:
        one, two = (url + name for name in tables)
        prepared = tasks.prepare(tasks.make("csv"), tmp_path / "data", one)
        assert (prepared.source, prepared.task.label_names) == ("mail.csv", ("ham1", "spam1"))
        assert tasks.prepare(tasks.make("csv"), tmp_path / "data", Path(one)) == prepared
        line = (
            r"not hold .*id=2 as .*\(made from: http:.*id=1\).*; to keep both, name another set "
            r"with --set DATASET=NAME .*, where NAME is any name of letters, digits, _ and -$"
        )
        with pytest.raises(UserError, match=line):
            tasks.prepare(tasks.make("csv"), tmp_path / "data", two)
        other = tasks.prepare(tasks.make("csv", "other"), tmp_path / "data", two)
        assert other.task.label_names == ("ham2", "spam2")
        write(tmp_path / "mail.csv?id=2", rows())
        anew = tasks.prepare(tasks.make("csv", "other"), tmp_path / "data", two, force=True)
        assert anew.task.label_names == ("ham", "spam")


# Images


def test_images_are_gray_and_their_mean_is_that_of_the_training_pixels(pictures, tmp_path):
    task = tasks.make("images")
    prepared = tasks.prepare(task, tmp_path, pictures)
    arrays = prepared.arrays("train")
    mean, deviation = arrays.values.mean(), arrays.values.std()
    assert prepared.task.pixel_mean == pytest.approx(mean, abs=0.006)
    assert prepared.task.pixel_sd == pytest.approx(deviation, abs=0.006)
    assert prepared.task.label_names == ("circle", "square")
    assert sum(prepared.rows.values()) == 80
    white = (arrays.values > 200).mean(axis=1)
    assert white[arrays.labels == 1].mean() > white[arrays.labels == 0].mean() > 0.05
    check_task(task, pictures)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("top.png", "expected a folder of PNG or JPEG files for each class, found none"),
        ("circle/1.png", "expected 2 to 1,000 different labels, got 1 ('circle')"),
        ("circle/1.txt", "expected a folder of PNG or JPEG files for each class, found none"),
        ("circle/1.gif", "circle/1.gif: expected PNG or JPEG images only: convert it, or remove"),
    ],
)
def test_a_mistake_in_a_folder_of_images_fails_with_one_line(tmp_path, name, message):
    path = tmp_path / "shapes" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no image")
    with pytest.raises(UserError) as raised:
        raw(tmp_path / "shapes", "images")
    assert message in str(raised.value)


def test_a_single_image_is_no_source(pictures):
    line = r"0.png: expected a folder with a folder for each class, or an archive of it, got an im"
    with pytest.raises(UserError, match=line):
        raw(pictures / "circle/0.png", "images")


def test_folders_without_an_image_are_named(tmp_path, pictures, capfd):
    source = tmp_path / "shapes"
    shutil.copytree(pictures, source)
    for name in ("triangle", ".git"):
        (source / name).mkdir()
    (source / "triangle/notes.txt").touch()
    raw(source, "images")
    assert f"{source}: no image in triangle, so that is no class\n" in capfd.readouterr().err


def test_rows_that_are_all_equal_are_reported_before_the_split_that_they_leave_empty(
    tmp_path, capfd
):
    (tmp_path / "mine.csv").write_text("label,text\n" + "a,x\nb,x\n" * 100)
    with pytest.raises(UserError, match="none of its 200 rows fell to the split"):
        raw(tmp_path / "mine.csv", "csv")
    said = "199 of 200 rows repeat another one; 1 of the repeated ones have several labels"
    assert said in capfd.readouterr().err


def test_files_that_are_left_out_are_counted(tmp_path, pictures, capfd):
    source = tmp_path / "shapes"
    shutil.copytree(pictures, source)
    shutil.copy(source / "circle/0.png", source / "top.png")
    (source / "circle/README").touch()
    made, _ = raw(source, "images")
    assert len(made) == 80
    assert (
        "left out, because they are not images in a class folder: 1 .png, 1 .txt, 1 README\n"
        in capfd.readouterr().err
    )


def test_folders_inside_a_class_are_refused_and_classes_are_named(tmp_path, pictures, capfd):
    source = tmp_path / "shapes"
    for name in ("circle", "square"):
        shutil.copytree(pictures / name, source / "train" / name)
        shutil.copytree(pictures / name, source / "test" / name)
    raw(source, "images")
    words = f"{source}: 2 classes: 'circle', 'square'\n"
    assert words in capfd.readouterr().err
    shutil.copytree(pictures / "circle", source / "train" / "circle" / "large")
    with pytest.raises(
        UserError, match=r"all of them in one folder .* and in train/circle/large: move"
    ):
        raw(source, "images")


def test_labels_in_an_order_keep_the_mean_of_the_pixels(tmp_path, pictures):
    """The two settings become known together, but a user gives only one of them."""
    for labels in ("('circle', 'square')", None):
        bindings = [f"Images.labels={labels}"] if labels else []
        built = experiment.load("images", "fnet", "cpu", bindings, data=tmp_path, source=pictures)
        prepared = built.tasks.open(task, tmp_path)
        assert built.model.encoder.pixel_mean == prepared.task.pixel_mean != 127.5


def test_folders_of_splits_are_no_classes(tmp_path, pictures):
    for name, split in (("circle", "train"), ("square", "Test")):
        shutil.copytree(pictures / name, tmp_path / "shapes" / split)
    with pytest.raises(UserError, match="a folder for each class in Test, train, got images dir"):
        raw(tmp_path / "shapes", "images")


@pytest.mark.usefixtures("drawn")
def test_prepared_sets_in_the_source_are_no_classes(tmp_path, pictures):
    source = tmp_path / "shapes"
    shutil.copytree(pictures, source)
    task, data = tasks.make("images"), source / "data"
    for _ in range(2):
        prepared = tasks.prepare(task, data, source, force=True)
        assert prepared.task.label_names == ("circle", "square")
        assert prepared.task.illustrate(prepared).exists()
    shutil.rmtree(prepared.folder)  # as errors tell users to do; the drawing stays
    assert tasks.prepare(task, data, source).task.label_names == ("circle", "square")


@pytest.mark.usefixtures("drawn")
def test_examples_are_drawn_for_each_set_once(tmp_path, pictures):
    task = tasks.make("images")

    def illustrated(prepared):
        return prepared.task.illustrate(prepared)

    sheet = illustrated(tasks.prepare(task, tmp_path, pictures))
    sheet.write_text("kept")
    illustrated(tasks.open(task, tmp_path))
    assert sheet.read_text() == "kept"
    illustrated(tasks.prepare(task, tmp_path, pictures, force=True))
    assert sheet.read_text() == "drawn"


def test_an_image_is_read_upright():
    """As cameras write it: lying, with a note of how it was held."""
    upright = np.zeros((8, 8), np.uint8)
    upright[:3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    file = io.BytesIO()
    Image.fromarray(np.rot90(upright)).save(file, "PNG", exif=exif)
    read = tasks.make("images", "gray_8").encode(file.getvalue()).reshape(8, 8)
    assert (read == upright).all()


@pytest.mark.parametrize("more", [1, 2])  # Pillow warns, or refuses
def test_an_image_of_too_many_pixels_is_refused(monkeypatch, more):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99 // more)
    file = io.BytesIO()
    Image.new("L", (10, 10)).save(file, "PNG")
    with pytest.raises(ValueError, match=rf"found more than {99 // more} pixels$"):
        tasks.make("images", "gray_8").encode(file.getvalue())


def test_transparent_pixels_are_white():
    """A black stroke on a transparent ground, as in scanned letters."""
    ink = np.zeros((8, 8, 2), np.uint8)  # black everywhere
    ink[2:6, 3, 1] = 255  # and opaque here
    file = io.BytesIO()
    Image.fromarray(ink, "LA").save(file, "PNG")
    read = tasks.make("images", "gray_8").encode(file.getvalue()).reshape(8, 8)
    assert (read == 255 - ink[..., 1]).all()


def test_a_damaged_image_is_named(tmp_path, pictures):
    for place in ("circle/1.png", "square/1.png"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_bytes(b"no image")
    with pytest.raises(UserError, match=r"circle/1.png: expected a PNG or JPEG of 8 bits, gray or"):
        raw(tmp_path, "images")


@pytest.mark.parametrize("name", ["gray", "gray_0", "../x_32"])
def test_the_name_of_a_set_of_images_has_its_side(name):
    assert tasks.make("images", "pets_64").max_len == 4096
    with pytest.raises(UserError, match="unknown data set"):
        tasks.make("images", name)


# Experiments


@pytest.mark.parametrize("preset", ["cpu", "small", "paper"])
def test_presets_have_both_tasks(table, pictures, tmp_path, preset):
    for task, source in (("csv", table), ("images", pictures)):
        built = experiment.load(task, "fnet", preset, data=tmp_path, source=source)
        prepared = tasks.open(tasks.make(task), tmp_path)
        assert built.task.class_names == prepared.task.class_names
        assert built.model.head.num_classes == 2
        again = experiment.restore(built.config)  # without the data
        assert again.task == built.task
        assert config.differing(built.config, again.config) == []
    assert built.model.encoder.pixel_mean == prepared.task.pixel_mean


def test_two_texts_have_a_head_for_two_and_a_set_of_any_name_is_described(tmp_path, capsys):
    lines = [(f"one {i}", f"two {i * 7 % 13}", i % 2) for i in range(100)]
    path = write(tmp_path / "a.csv", lines, header=("text1", "text2", "label"))
    built = experiment.load("csv", "fnet", "cpu", ["DATASET=pairs"], data=tmp_path, source=path)
    prepare.describe("csv", tmp_path)
    assert re.search(r"csv/pairs .* 2 .* a.csv", capsys.readouterr().out)
    assert (built.task.num_inputs, built.model.head.interaction) == (2, "nli")
    prepared = built.tasks.prepare(task, tmp_path, path)
    values, lengths, _ = prepared.arrays("train")
    assert values.shape == (prepared.rows["train"], 2, 512)
    assert bytes(values[0, 1, : lengths[0, 1]]).startswith(b"two ")


def test_without_rows_the_classes_must_be_given():
    with pytest.raises(
        UserError, match=r"the classes of task csv are those of its rows.*--set 'Csv"
    ):
        experiment.load("csv", "fnet", "cpu")
    given = ["Csv.labels=('no', 'yes')", "Csv.texts=1"]
    assert experiment.load("csv", "fnet", "cpu", given).task.num_classes == 2


@pytest.mark.parametrize("empty", [["Csv.labels=()"], ["Csv.labels=[]"], ["Csv.texts=0"]])
def test_an_empty_setting_is_found_in_the_rows(empty, tmp_path):
    lines = [(f"one {i}", f"two {i * 7 % 13}", i % 2) for i in range(100)]
    path = write(tmp_path / "a.csv", lines, header=("text1", "text2", "label"))
    built = experiment.load("csv", "fnet", "cpu", empty, data=tmp_path, source=path)
    assert (built.task.labels, built.task.num_inputs) == (("0", "1"), 2)
    assert experiment.restore(built.config).task == built.task


@pytest.mark.slow
def test_baselines_are_computed_at_one_of_the_lengths_that_cut_no_text(table, tmp_path, capsys):
    prepare.command("csv", None, tmp_path, table)
    folder = tasks.make("csv", "full").folder(tmp_path)
    assert [file.name for file in folder.glob("shallow.*")] == ["shallow.512.json"]
    long = write(tmp_path / "long.csv", [(text + "d" * 600, label) for text, label in rows()])
    prepare.command("csv", "long", tmp_path, long)
    folder = tasks.make("csv", "long").folder(tmp_path)
    names = sorted(file.name for file in folder.glob("shallow.*"))
    assert names == ["shallow.2048.json", "shallow.512.json"]


def test_the_command_trains_on_a_table(command, table):
    tiny = ["Encoder.dim=8", "Encoder.qkv_dim=8", "Encoder.mlp_dim=8", "Head.mlp_dim=8"]
    tiny += ["Encoder.num_layers=1", "Run.num_steps=4", "Run.batch_size=4", "MAX_LEN=32"]
    which = ["--task", "csv", "--model", "ff_only", "--preset", "cpu", "--name", "tiny"]
    code, err, out = command("train", *which, "--source", table, *(f"--set={t}" for t in tiny))
    assert code == 0, err
    assert "tiny on Own texts, preset cpu" in out
    run = lra_fnet.load_run("runs/cpu/csv/ff_only+tiny/seed0")
    assert run.task.class_names == ("ham", "spam")
    assert run.data().task == run.task


def test_training_says_where_examples_of_images_are_drawn(pictures, tmp_path, capfd):
    asked = job.Job("images", "ff_only", "cpu", data=tmp_path, source=pictures)
    times = set()
    for _ in range(2):  # drawn once, and named each time
        prepared = execute._prepare(asked, asked.load())
        sheet = prepared.folder.parent / "contact_sheet.png"
        assert f"examples: {sheet}" in capfd.readouterr().err.splitlines()
        times.add(sheet.stat().st_mtime_ns)
    with Image.open(sheet) as image:
        assert image.size == (2400, 1400)
    assert len(times) == 1
    os.utime(sheet, (0, 0))  # it shows an earlier version of the set
    execute._prepare(asked, asked.load())
    assert sheet.stat().st_mtime_ns > 0


def test_an_image_of_another_size_is_resized_bicubically():
    gray = np.random.default_rng(0).integers(0, 256, (20, 24), np.uint8)
    file = io.BytesIO()
    Image.fromarray(gray).save(file, "PNG")
    read = tasks.make("images", "gray_8").encode(file.getvalue()).reshape(8, 8)
    want = np.asarray(Image.fromarray(gray).resize((8, 8), Image.Resampling.BICUBIC))
    assert (read == want).all()
