"""steering: what a direction in a model's values does to what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.inspect.steering import Method, logit_change, steer
from heedful.models.base import Model
from heedful.view.figure import Figure
from heedful.view.panels import bars
from heedful.view.token_labels import cut_label, readable, visible_text

Text = Any


def steering(
    model: Model, text: Text, name: str, vector: Tensor | Sequence[float], strength: float = 1.0,
    how: Method = "add", *, value: float | None = None, count: int = 12,
) -> Figure:  # fmt: skip
    """The tokens that a steered value makes likelier and unlikelier after a text, in nats of log p."""
    found = logit_change(model, text, steer(model, name, vector, strength, how, value=value))
    panels = []
    for title, listed in zip(("likelier", "unlikelier"), found.most(model, count), strict=True):
        names = [visible_text(n) for n in readable(model, [token for token, _ in listed])]
        panels.append(bars(title, [change for _, change in listed], names, axes=("token", "change of log p")))
    said = cut_label(text if isinstance(text, str) else " ".join(readable(model, found.tokens)))
    more = "" if value is None else f", value={value}"
    call = f"heedful.view.steering(model, {said!r}, {name!r}, vector, {strength}, {how!r}{more})"
    note = "Among tokens of at least a thousandth of the likeliest one's probability, in either run."
    about = {"model": model.family.name, "text": said, "value": name, "strength": strength, "how": how}
    title = f"{name} steered ({how}, {strength:g}): what {model.family.name} predicts next"
    return Figure("steering", title, about, {"panels": panels}, note, call)
