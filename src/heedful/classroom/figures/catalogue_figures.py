"""head_catalogue, find_heads: what heads look at over many texts; which look from one token at another."""

from __future__ import annotations

from typing import Any

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Panel, bars, matrix, table
from heedful.classroom.figures.token_labels import cut_label, text_argument
from heedful.interp import head_catalogue as catalogue
from heedful.interp.activations import Texts
from heedful.models.base import Model

Text = Any


def head_catalogue(
    model: Model, texts: Texts, *, max_length: int = 128, repeats: int = 16, count: int = 5
) -> Figure:
    """What every head looks at, over many texts: a map of each score, and the heads with the highest ones."""
    found = catalogue.catalogue_heads(model, texts, max_length=max_length, repeats=repeats)
    panels: list[Panel] = []
    rows: list[list[float | str]] = []
    names: list[str] = []
    for score in found.values:
        parts, means = found.by_part(score)
        note = f"An even look has {found.chance[score]:.3f}."
        panels.append(matrix(score, means.nan_to_num(0.0), parts, axes=("part", "head"), note=note))
        for entry in found.top(score, count):
            names.append(score)
            rows.append([f"{entry.name} head {entry.head}", entry.mean, entry.low, entry.high])
    columns = ["head", "mean", "from", "to"]
    panels.insert(0, table("highest", rows, names, columns, axes=("score", "")))
    title = f"Heads of {model.family.name} over {len(texts)} texts"
    about = {"model": model.family.name, "texts": len(texts), "repeats": repeats}
    note = "Means over sequences with 95 % intervals by bootstrap; duplicate and induction on random tokens."
    call = f"heedful.view.head_catalogue(model, texts, max_length={max_length}, repeats={repeats})"
    return Figure("head_catalogue", title, about, {"panels": panels}, note, call)


def find_heads(
    model: Model, text: Text, from_token: int | str, to_token: int | str, target: Text = None, *,
    count: int = 15,
) -> Figure:  # fmt: skip
    """The heads that look from one token at another, the strongest first."""
    looks = catalogue.find_heads(model, text, from_token, to_token, target, count=count)
    names = [f"{look.name} head {look.head}" for look in looks]
    panel = bars("weight", [look.weight for look in looks], names, axes=("head", "weight"))
    said = cut_label(text if isinstance(text, str) else str(text))
    title = f"Heads of {model.family.name} that look from {from_token!r} at {to_token!r}"
    call = f"heedful.view.find_heads(model, {text_argument(text)}, {from_token!r}, {to_token!r})"
    about = {"model": model.family.name, "text": said, "from": from_token, "to": to_token}
    note = f"An even look gives {looks[0].chance:.3f}."
    return Figure("find_heads", title, about, {"panels": [panel]}, note, call)
