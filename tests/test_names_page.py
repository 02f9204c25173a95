"""docs/names.md lists the names of values and what they mean: `python -m tests.test_names_page` writes it."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from heedful import Watch
from heedful.interp.observe.show import ValueRow, value_rows
from heedful.models import FAMILIES
from heedful.models.value_names import MEANINGS, value_meaning
from heedful.weights.loading import assemble
from tests.properties.tiny import ALL, ids, run, tiny

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
SHOWN = {  # family → the layers that are built of its first preset
    "gpt2": 2, "llama": 2, "palm": 2, "bert": 2, "deberta-v2": 2, "t5": 2, "bart": 2, "deepseek-v3": 4,
    "mamba": 2, "s4": 2, "gla": 2, "based": 4, "lstm": 2, "luong": 2,
}  # fmt: skip
HEAD = """# Names of values

Every value that a model computes has a name: the path of the part that computes it, as `heed show MODEL`
prints it, and one word. A `Watch` takes names, and patterns of them; see [Looking inside](inside.md).
`model.names()` lists those of a model with their shapes, and so does `heed show MODEL --names`, before
anything is computed. B is the batch, T the length, S the length of an encoder-decoder's source; other numbers
are those of the model. In a step that goes on from a cache T is the number of new tokens, and keys and values
are those of all tokens so far.

This page is written by `python -m tests.test_names_page`.

## Words

| word | what it is | in |
|---|---|---|
"""


@functools.cache
def names_of(family: str) -> tuple[str, ...]:
    """Return the names of the values that a pass of a tiny model shows."""
    model, watch = tiny(family), Watch("*")
    with torch.no_grad():
        run(model, ids(model, 1, 5), watch=watch)
    return tuple(watch)


def family_rows(family: str) -> list[ValueRow]:
    config = next(iter(FAMILIES[family].presets.values())).change(layers=SHOWN[family])
    with torch.device("meta"):
        return value_rows(assemble(FAMILIES[family], config).eval())


def words_of(family: str) -> set[str]:
    """Return the words of a family, with the part that has it where that matters."""
    meant = set(map(value_meaning, names_of(family)))
    return {word for word, meaning in MEANINGS.items() if meaning in meant}


def page() -> str:
    known = {family: words_of(family) for family in ALL}
    lines = []
    for word, meaning in MEANINGS.items():
        having = [family for family in ALL if word in known[family]]
        where = (
            "all"
            if len(having) == len(ALL)
            else ", ".join(having)
            if len(having) < 8
            else f"{len(having)} families"
        )
        lines.append(f"| `{word.replace('part.', '….')}` | {meaning} | {where or 'classifiers'} |")
    out = HEAD + "\n".join(lines) + "\n"
    for family in SHOWN:
        preset = next(iter(FAMILIES[family].presets))
        out += f"\n## {family}\n\nThe values of `{preset}`, with {SHOWN[family]} layers:\n\n"
        out += "| name | shape |\n|---|---|\n"
        rows = family_rows(family)
        out += "".join(f"| `{row.name}` | ({', '.join(map(str, row.shape))}) |\n" for row in rows)
    return out


def test_the_page_of_names_is_the_one_that_is_written() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.test_names_page"


@pytest.mark.parametrize("family", ALL)
def test_every_name_of_every_family_has_a_meaning(family: str) -> None:
    assert all(value_meaning(name) for name in names_of(family))


if __name__ == "__main__":
    PAGE.write_text(page())
