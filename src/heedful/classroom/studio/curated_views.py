"""Curated views: views worth opening, each set to the model, layer, head and row that show what it promises.

They stand in curated_views.yaml, where teachers write them. A view has a caption, which says what is shown,
and a notice, which says what to look for. What they say of the model is its promise, as a value: a test holds
every promise against the model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.classroom.arithmetic.explain import sentences
from heedful.classroom.text_files import load_yaml


@dataclass(frozen=True)
class CuratedView:
    """A view of the studio: `page` and `address` say where it is, `text` what is read there.

    `question` marks the views that answer what people come with. A promise is a mapping with its kind under
    "promise"; curated_views.yaml explains the kinds.
    """

    id: str
    title: str
    caption: str
    notice: str
    model: str
    page: str
    address: Mapping[str, str | int] = field(default_factory=dict)
    text: str = ""  # or the name of an example sentence
    promises: Sequence[Mapping[str, Any]] = ()
    part: str = ""  # of the page that the caption speaks of; its first figure or answer by default
    question: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the view shows: Compare has two."""
        both = ("a", "b") if self.page == "compare" else ()
        return tuple(dict.fromkeys([self.model, *(str(self.address[side]) for side in both)]))

    def to_dict(self) -> dict[str, Any]:
        """Return the view as the page reads it; `with` is its whole address."""
        examples = sentences()
        text = examples[self.text]["text"] if self.text in examples else self.text
        address = {"m": self.model} | ({"x": text} if text else {}) | dict(self.address)
        names = ("id", "title", "caption", "notice", "question", "page", "part")
        return {name: getattr(self, name) for name in names} | {
            "text": text, "with": {k: str(v) for k, v in address.items()},
        }  # fmt: skip


@functools.cache
def curated_views() -> tuple[CuratedView, ...]:
    """Return every curated view: first the questions, then the other example sentences."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return tuple(CuratedView(**row) for row in load_yaml(text))
