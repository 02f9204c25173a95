"""docs/families.md says what each family cost to add: `python -m tests.test_families_page` writes it."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from heedful.models import FAMILIES
from heedful.models.family import Family
from tests.models.published_counts import CONFIRMED, UNCONFIRMED
from tests.parity.cases import CASES

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
HEAD = """# What a family costs

A published architecture is one file in `models/`, or a part of its parent's, and one line in
`models/__init__.py` ([CONTRIBUTING](../CONTRIBUTING.md)). *Lines* are those of the file for each family in
it: config, build function, names, keys, presets, imports. *Changed* is what the file says of its parent.
*Configs* are the rows in which each family equals `transformers`, both ways, padded on either side
(`pytest tests/parity`); the properties over the registry run for every family. Median: {median:g} lines.

This page is written by `python -m tests.test_families_page`.

| families | file | lines | changed | configs |
| --- | --- | ---: | --- | ---: |
"""


TAIL = """
## Sizes

{confirmed} presets of these families have the number of parameters that is published, to the unit;
`tests/models/published_counts.py` says for each who states it. Of {unconfirmed} no exact number was found in
public: {names}. They are counted from the sizes of their papers and cards.
A preset is the base model of its name: one that follows instructions may state another context.
"""


def module_of(family: Family) -> str:
    """Return the name of the module that builds a family."""
    build = getattr(family.build, "func", family.build)  # what a partial calls
    return str(build.__module__)


def lines_of(family: Family) -> int:
    """Return its file's lines, divided by the families in the file."""
    module = module_of(family)
    beside = [other for other in FAMILIES.values() if module_of(other) == module]
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    return round(len(text.splitlines()) / len(beside))


def changes_of(family: Family) -> str:
    """Return what the docstring of its file says after "From …:", or "" where it has no parent."""
    text = sys.modules[module_of(family)].__doc__ or ""
    joined = re.sub(r",?\n {8,}", ", ", text)  # a line that goes on
    found = re.findall(r"^(From [^:\n]*|[A-Z][^:\n]{0,24}):\s+(.*)$", joined, re.MULTILINE)
    return "; ".join(f"{parent.lower()}: {re.sub(',? {2,}', ', ', what.strip())}" for parent, what in found)


def configs_of(family: Family) -> int:
    """Return how many rows of the table of parity are its own: the longest name that begins a row's."""
    begins = lambda row, name: row == name or row.startswith(f"{name}-")
    owner = lambda row: max((name for name in FAMILIES if begins(row, name)), key=len, default="")
    return sum(owner(case.id) == family.name for case in CASES)


def page() -> str:
    """Return the page: a row for every file, with the families in it."""
    published = [family for family in FAMILIES.values() if family.model_types]
    rows = []
    for module in dict.fromkeys(map(module_of, published)):
        here = [family for family in published if module_of(family) == module]
        file = module.rpartition(".")[2]
        names = ", ".join(family.name for family in here)
        configs = " + ".join(str(configs_of(family)) for family in here)
        link = f"[{file}.py](../src/{module.replace('.', '/')}.py)"
        rows.append(f"| {names} | {link} | {lines_of(here[0])} | {changes_of(here[0])} | {configs} |")
    median = statistics.median(map(lines_of, published))
    tail = TAIL.format(
        confirmed=sum(map(len, CONFIRMED.values())),
        unconfirmed=len(UNCONFIRMED),
        names=", ".join(UNCONFIRMED),
    )
    return HEAD.format(median=median) + "\n".join(rows) + "\n" + tail


def test_every_published_family_is_on_the_page() -> None:
    listed = re.findall(r"^\| ([^|]*) \| \[", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    missing = {f.name for f in FAMILIES.values() if f.model_types} - set(", ".join(listed).split(", "))
    assert not missing, "run python -m tests.test_families_page"


def test_most_families_are_short() -> None:
    assert statistics.median(lines_of(family) for family in FAMILIES.values() if family.model_types) < 100


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
