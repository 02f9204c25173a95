"""Every formula that a worked calculation shows is on the list that the page's own tests typeset.

`python -m tests.classroom.arithmetic.test_formulas` writes the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import heedful
from heedful.classroom.arithmetic.explain import examples
from tests.classroom.arithmetic.test_explain import MODELS, subject

LIST = Path(__file__).parents[3] / "web" / "tests" / "formulas.json"


def formulas() -> Iterator[str]:
    """The formulas of all exercises and of models, with any number as 1."""
    derivations = [heedful.explain(name) for name in examples()]
    for family, topic, part, _ in MODELS:
        model, text = subject(family, 1)
        derivations.append(heedful.explain(model, text, topic=topic, part=part, head=1, token=2))
    for derivation in derivations:
        yield from (re.sub(r"\d+(,\d+)*", "1", line.formula) for line in derivation.walk())


def test_the_page_typesets_every_formula_that_is_shown() -> None:
    assert sorted(set(formulas())) == json.loads(LIST.read_text(encoding="utf-8"))


if __name__ == "__main__":
    text = json.dumps(sorted(set(formulas())), indent=1, ensure_ascii=False)
    LIST.write_text(text + "\n", encoding="utf-8")
