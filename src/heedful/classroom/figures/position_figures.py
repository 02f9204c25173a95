"""positions: what tells a model where a token stands, as that model has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Panel, bars, lines, matrix, table
from heedful.classroom.figures.token_labels import cut_label, readable, text_argument, visible_text
from heedful.core.errors import InputError
from heedful.interp import lens as inspect_lens
from heedful.interp.activations import Texts
from heedful.interp.dictionary import Dictionary, feature_examples
from heedful.interp.lens import TunedLens, logit_lens
from heedful.interp.mixing import order_note, position_parts
from heedful.interp.probes import ProbeResult
from heedful.interp.steering import Method, logit_change, steer
from heedful.models.base import Model
from heedful.nn.context import Context, Mask
from heedful.nn.disentangled import Distances
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal

MAX_POSITIONS = 2048  # a map of all pairs has four million cells then


@torch.no_grad()
def positions(model: Model, length: int = 64) -> Figure:
    """Sinusoids, learned vectors, rotations, slopes or buckets: what the model has, for `length` positions.

    A vector for each position is drawn with the cosine between any two; a rotation with what it leaves of a
    dot product at each distance; a bias by head and distance.
    """
    if not isinstance(model, Model):
        raise InputError(f"positions are a model's; got a {type(model).__name__}")
    if not 2 <= length <= MAX_POSITIONS:
        raise InputError(f"length={length}: 2 to {MAX_POSITIONS} positions can be drawn")
    name, parts = model.family.name, position_parts(model)
    panels = [panel for where, part in parts.items() for panel in part_panels(model, where, part, length)]
    if not panels:
        raise InputError(
            f"{name} has no positions: {order_note(model)}",
            hint="view.attention(model, text) shows what it carries along",
        )
    drawn = min([length, *(part.context for part in parts.values() if isinstance(part, Learned))])
    return Figure(
        "positions", f"Positions of {name}: {panels[0]['title']}", {"model": name, "positions": drawn},
        {"panels": panels}, "", f"heedful.view.positions(model, length={length})",
    )  # fmt: skip


def part_panels(model: Model, where: str, part: nn.Module, length: int) -> Iterator[Panel]:
    """Yield the panels of one part that tells positions."""
    at = torch.arange(length, device=model.device)
    match part:
        case Sinusoidal() | Learned():
            vectors = part(at[: part.context or length]).float()
            side = f" ({where})" if len(model.tables) > 1 else ""
            kind, note = "learned", "a row of a table"
            if isinstance(part, Sinusoidal):
                kind, note = "sinusoidal", f"p(t, 2i) = sin(t / {part.base:g}^(2i/D))"
            unit = F.normalize(vectors, dim=-1)
            yield matrix(f"{kind}{side}", vectors, axes=("position", "dimension"), note=note)
            yield matrix(f"cosine between positions{side}", unit @ unit.T, axes=("position", "position"))
        case Rotary():
            cos = part.table(at[None], torch.tensor([[length]], device=model.device))[0][0, 0]  # (T, K/2)
            formula = f"f_i = {part.base:g}^(−2i/{part.dim})"
            formula += "" if part.scaling is None else f", changed by {type(part.scaling).__name__}"
            note = f"the pair (i, i + {part.dim // 2}) of q and k is turned by t · f_i, {formula}"
            yield matrix("rotary: cos of the angle", cos, axes=("position", "pair"), note=note)
            note = "mean over pairs of cos(d · f_i): what is left of q·k for q = k"
            axes = ("mean cos", "distance")
            yield lines("rotary: by distance", cos.mean(1)[None], ["mean cos"], axes=axes, note=note)
        case ALiBi():
            slopes = part.slopes(model.device)
            note = "slopes " + " ".join(f"{m:.4g}" for m in slopes.tolist())
            yield matrix(
                "ALiBi: −m_h · distance", -slopes[:, None] * at, axes=("head", "distance"), note=note
            )
        case BucketBias():
            far = torch.arange(1 - length, 1 if part.causal else length, device=model.device)
            note = f"b_h(i, j) = table[bucket(j − i)], {part.buckets} buckets up to distance {part.far}"
            bias, axes = part.table(part.bucket(far)).T, ("head", "key − query")  # (H, distances)
            yield matrix(f"bias of {where}", bias, columns=far.tolist(), axes=axes, note=note)
        case Distances():
            vectors, rows = part(Context(at[None], at[None], Mask()))
            rows = rows.reshape(length, -1)
            which = torch.cat((rows[0, 1:].flip(0), rows[:, 0]))
            apart, axes = list(range(1 - length, length)), ("query − key", "dimension")
            note = "the vector that stands for each distance query − key; all layers share them"
            yield matrix("vectors of distances", vectors[0][which], apart, axes=axes, note=note)


# steering, probes, features, tuned_lens: directions in a model's values, what they do and what they tell.


Text = Any


def steering(
    model: Model, text: Text, name: str, vector: Tensor | Sequence[float], strength: float = 1.0,
    method: Method = "add", *, value: float | None = None, count: int = 12,
) -> Figure:  # fmt: skip
    """The tokens that a steered value makes likelier and unlikelier after a text, in nats of log p."""
    found = logit_change(model, text, steer(model, name, vector, strength, method, value=value))
    panels = []
    for title, listed in zip(("likelier", "unlikelier"), found.largest_changes(model, count), strict=True):
        names = [visible_text(n) for n in readable(model, [token for token, _ in listed])]
        panels.append(bars(title, [change for _, change in listed], names, axes=("token", "change of log p")))
    said = cut_label(text if isinstance(text, str) else " ".join(readable(model, found.tokens)))
    more = "" if value is None else f", value={value}"
    call = (
        f"heedful.view.steering(model, {text_argument(text)}, {name!r}, vector, {strength}, {method!r}{more})"
    )
    note = "Among tokens of at least a thousandth of the likeliest one's probability, in either run."
    about = {"model": model.family.name, "text": said, "value": name, "strength": strength, "method": method}
    title = f"{name} steered ({method}, {strength:g}): how the prediction of {model.family.name} changes"
    return Figure("steering", title, about, {"panels": panels}, note, call)


def probes(result: ProbeResult) -> Figure:
    """What linear probes tell of words, layer by layer, beside the control task; of a `ProbeResult`."""
    layers = range(len(result.names))
    curves = [result.accuracy.mean(1).tolist(), result.control.mean(1).tolist(), result.selectivity.tolist()]
    names = ["the task", "the control task", "selectivity"]
    curves.append([result.majority] * len(layers))
    drawn = lines("accuracy", curves, [*names, "the most frequent label"], layers, axes=("accuracy", "layer"))
    rows = [
        [float(real.mean()), float(real.std()), float(control.mean()), float(real.mean() - control.mean())]
        for real, control in zip(result.accuracy, result.control, strict=True)
    ]
    columns = ["task", "± over folds", "control", "selectivity"]
    numbers = table("by value", rows, result.names, columns, axes=("value", ""))
    best = int(result.selectivity.argmax())
    title = f"Probes of {len(result.labels)} labels, {result.words:,} words: best at {result.names[best]}"
    about = {"words": result.words, "labels": len(result.labels), "folds": result.accuracy.shape[1]}
    call = "heedful.view.probes(heedful.interp.probes.linear_probes(model, sentences))"
    note = "The control task gives each word a random label; accuracy is that on sentences held out."
    return Figure("probes", title, about, {"panels": [drawn, numbers]}, note, call)


def features(
    model: Model, dictionary: Dictionary, texts: Texts, features: Sequence[int] | None = None, *,
    count: int = 6, context: int = 6,
) -> Figure:  # fmt: skip
    """The tokens on which features of a sparse dictionary are strongest, in context."""
    found = feature_examples(model, dictionary, texts, features, count=count, context=context)
    show = lambda names: " ".join(visible_text(n) for n in readable(model, names))
    rows: list[list[float | str]] = []
    names: list[str] = []
    for feature, examples in found.items():
        names += [f"feature {feature}"] * len(examples)
        rows += [[e.activation, show(e.before), show([e.token]), show(e.after)] for e in examples]
    columns = ["activation", "before", "token", "after"]
    panel = table("strongest tokens", rows, names, columns, axes=("feature", ""))
    name = dictionary.config.source
    title = f"Features of a dictionary of {name}: {len(found)} of {dictionary.config.width:,}"
    about = {"model": model.family.name, "value": name, "texts": len(texts)}
    call = f"heedful.view.features(model, dictionary, texts, {list(found)!r})"
    return Figure("features", title, about, {"panels": [panel]}, "", call)


def tuned_lens(model: Model, text: Text, lens: TunedLens, target: Text = None) -> Figure:
    """What each layer would predict through a tuned lens; how far it and the logit lens are from the last."""
    tuned = inspect_lens.tuned_lens(model, text, lens, target)
    plain = logit_lens(model, text, target)
    tokens = [visible_text(name) for name in readable(model, tuned.tokens)]
    gaps = [inspect_lens.lens_divergence(found) for found in (tuned, plain)]
    panels = [
        matrix(f"KL to the last layer in nats, {name}", gap, tuned.layers, tokens, axes=("layer", "token"))
        for name, gap in zip(("tuned lens", "logit lens"), gaps, strict=True)
    ]
    best = [[visible_text(readable(model, [t[0][0]])[0]) for t in row] for row in tuned.top(1)]
    panels.append(table("likeliest token, tuned lens", best, tuned.layers, tokens, axes=("layer", "")))
    said = cut_label(text if isinstance(text, str) else " ".join(tokens))
    title = f"Tuned lens of {model.family.name}"
    call = f"heedful.view.tuned_lens(model, {text_argument(text)}, lens)"
    about = {"model": model.family.name, "text": said}
    return Figure("tuned_lens", title, about, {"panels": panels}, "", call)
