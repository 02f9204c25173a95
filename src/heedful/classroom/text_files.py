"""YAML that teachers write, in which words stay words; notebooks; pages from the templates in templates/."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from heedful.core.errors import InputError
from heedful.core.files import missing_file

if TYPE_CHECKING:
    import jinja2


class WordLoader(yaml.SafeLoader):
    """A loader for which “on”, “off”, “no” and “yes” are words; YAML 1.1 has them as true and false."""


WordLoader.yaml_implicit_resolvers = {
    letter: [rule for rule in rules if not rule[0].endswith(":bool")]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
WordLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))


MAX_BYTES = 1_000_000  # of a sheet, or of a file of code


def read_submission(path: Path) -> str:
    """Return the text of a file that a student handed in; raise InputError for what is no such text."""
    if not path.is_file():
        raise missing_file(path)
    if path.stat().st_size > MAX_BYTES:
        size = f"{path.stat().st_size:,} bytes"
        raise InputError(f"{path} is too large: {size}", hint="a sheet or a solution is a few kilobytes")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8", hint="save it as UTF-8") from None


def load_yaml(text: str) -> Any:
    """Return the values of a YAML text."""
    return yaml.load(text, WordLoader)


def describe_yaml_error(error: Exception) -> str:
    """Return in one line what is wrong with a YAML or JSON text, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())[:200]


def notebook(cells: list[dict[str, Any]]) -> str:
    """Return a Jupyter notebook for Python, format 4.5, with these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates; what is put into a page of HTML is escaped."""
    import jinja2

    loader = jinja2.PackageLoader("heedful.classroom", "templates")
    return jinja2.Environment(
        loader=loader, autoescape=jinja2.select_autoescape(), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def fill_template(name: str, **values: Any) -> str:
    """Return a page: the template NAME with these values."""
    return templates().get_template(name).render(values)
