"""Fills in the files in templates/."""

import re
from pathlib import Path
from typing import Any

import jinja2


def slug(words: str) -> str:
    """Returns text as a word for names of files and places: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def render(name: str, **values: Any) -> str:
    """Returns the text of a template. In HTML, values are escaped.

    Args:
      name: of the file.
      **values: everything that the template names; a callable that takes text is a filter too.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {key: value for key, value in values.items() if callable(value)}
    return environment.get_template(name).render(values)
