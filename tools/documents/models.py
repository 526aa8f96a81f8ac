"""docs/models.md: every model, what it mixes by, what it costs, and whether it sees padding."""

import re
from pathlib import Path

from lra_fnet import config, experiment

TARGET = Path(__file__).parents[2] / "docs/models.md"
HEAD = """# Models

`make lra TASK=text MODEL=fnet PRESET=cpu` trains one. A line for each file in gin/models, written
by `make documents` from that file's first comment and from what its mixer declares. Time is in
powers of the length L, without logarithms. Padding that is mixed in changes outputs at real tokens.

| MODEL | title | mixes positions by | time | padding | paper |
|---|---|---|---|---|---|
"""


def table() -> str:
    """Returns the page."""
    return HEAD + "".join(map(_row, config.known("models")))


def _row(name: str) -> str:
    encoder = experiment.load("listops", name, "paper").model.encoder
    power = max(mixer.growth[0] for mixer in encoder.mixers)
    time = "L" if power == 1 else f"L^{power}"
    padding = "masked" if encoder.uses_mask else "mixed in"
    lines = (config.GIN_DIR / f"models/{name}.gin").read_text().partition("\nimport")[0]
    papers = dict.fromkeys(re.findall(r"arXiv:(\d{4}\.\d{5})", re.sub(r"\n?# ?", "", lines)))
    links = ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in papers)
    about = config.about("models", name).rstrip(".").replace("|", "\\|")
    return f"| `{name}` | {config.title(name)} | {about} | {time} | {padding} | {links} |\n"


def write() -> None:
    """Writes the page."""
    TARGET.write_text(table())
