"""The numbers in prose are those of the tables."""

import csv
import re

from paths import ROOT

NUMBER = re.compile(r"(?<![\d.])\d+\.\d+(?: ± \d+\.\d+)?(?![\d.])")
PAGES = ("README.md", "docs/findings.md", "docs/pretraining.md")
TABLES = ("reproducing", "speed", "corpus", "literature")
# A run's printed lines; runs that were not kept; files of one row; S4's paper.
OTHERS = {"14.5", "39.54", "17.3", "17.6", "27.4", "28.1", "88.5"}
OTHERS |= {"7.5", "15.6", "54.2", "65.92", "165.5", "168.4"}


def test_the_numbers_of_prose_are_in_the_tables():
    pages = ((ROOT / name).read_text() for name in PAGES)
    told = {number for page in pages for number in NUMBER.findall(page)}
    known = {n for t in TABLES for n in NUMBER.findall((ROOT / f"docs/{t}.md").read_text())}
    with (ROOT / "results/accuracy.csv").open() as file:
        for row in csv.DictReader(file):
            gains = [row[name].lstrip("-") for name in row if name.startswith("gain")]
            single = filter(None, [row["mean"], row["baseline"], *row["values"].split(), *gains])
            known |= {f"{float(value):.{n}f}" for value in single for n in (1, 2)}
            if row["sd"]:
                known.add(f"{float(row['mean']):.2f} ± {float(row['sd']):.2f}")
    assert told - known <= OTHERS <= told
