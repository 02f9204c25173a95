"""steering, probes, features, tuned_lens: directions in a model's values, what they do and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import bars, lines, matrix, table
from heedful.classroom.figures.token_labels import cut_label, readable, text_argument, visible_text
from heedful.interp import tuned_lens as inspect_lens
from heedful.interp.activations import Texts
from heedful.interp.dictionary import Dictionary
from heedful.interp.dictionary_scores import feature_examples
from heedful.interp.lens import logit_lens
from heedful.interp.probes import ProbeResult
from heedful.interp.steering import Method, logit_change, steer
from heedful.interp.tuned_lens import TunedLens
from heedful.models.base import Model

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
