"""positions: what tells a model where a token stands, as that model has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.classroom.figures.attention_figures import Text, check_pattern
from heedful.classroom.figures.figure import Figure, figure
from heedful.classroom.figures.panels import Panel, bars, lines, matrix, table
from heedful.classroom.figures.token_labels import caption_of, percent, readable, visible_text
from heedful.core.errors import InputError
from heedful.interp.activations import Activations, Texts
from heedful.interp.inputs import position_of
from heedful.interp.intervene.comparison import PatchingResult
from heedful.interp.intervene.patching import AttributionGraph
from heedful.interp.intervene.steering import Method, logit_change, steer
from heedful.interp.learn import head_catalogue as catalogue
from heedful.interp.learn.dictionary import Dictionary, FeatureExample, feature_examples
from heedful.interp.learn.features import describe_features
from heedful.interp.learn.probes import ProbeResult
from heedful.interp.observe import attention as flows
from heedful.interp.observe import lens as inspect_lens
from heedful.interp.observe.attention import rollout
from heedful.interp.observe.lens import TunedLens, logit_lens
from heedful.interp.observe.logit_attribution import LogitAttribution
from heedful.interp.observe.mixing import order_note, position_formula, position_parts
from heedful.models.base import Model
from heedful.nn.attention.disentangled import Distances
from heedful.nn.context import Context, Mask
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal

MAX_POSITIONS = 2048  # a map of all pairs has four million cells then


@figure
@torch.no_grad()
def positions(model: Model, length: int = 64) -> Figure:
    """Draw how a model knows positions, for `length` of them.

    Vectors of positions are drawn with the cosine between any two. A rotation is drawn with what it leaves of
    a dot product at each distance, and a bias by head and distance.
    """
    if not isinstance(model, Model):
        raise InputError(f"positions belong to a model; got a {type(model).__name__}")
    if not 2 <= length <= MAX_POSITIONS:
        raise InputError(
            f"`length={length}` must lie between 2 and {MAX_POSITIONS}, the positions that can be drawn"
        )
    name, parts = model.family.name, position_parts(model)
    panels = [panel for where, part in parts.items() for panel in part_panels(model, where, part, length)]
    if not panels:
        raise InputError(
            f"{name} has no positions: {order_note(model)}",
            hint="view.attention(model, text) shows what it carries from token to token",
        )
    drawn = min([length, *(part.context for part in parts.values() if isinstance(part, Learned))])
    return Figure(
        "positions", f"Positions of {name}: {panels[0]['title']}", {"model": name, "positions": drawn},
        {"panels": panels},
    )  # fmt: skip


def part_panels(model: Model, where: str, part: nn.Module, length: int) -> Iterator[Panel]:
    """Yield the panels of one part that tells positions."""
    at = torch.arange(length, device=model.device)
    match part:
        case Sinusoidal() | Learned():
            vectors = part(at[: part.context or length]).float()
            side = f" ({where})" if len(model.tables) > 1 else ""
            kind, note = "learned" if isinstance(part, Learned) else "sinusoidal", position_formula(part)
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


@figure
def steering(
    model: Model, text: Text, name: str, vector: Tensor | Sequence[float], strength: float = 1.0,
    method: Method = "add", *, value: float | None = None, count: int = 12,
) -> Figure:  # fmt: skip
    """Draw the tokens that a steered value makes more or less likely after a text, in nats of log p."""
    change = logit_change(model, text, steer(model, name, vector, strength, method, value=value))
    panels = []
    for title, listed in zip(
        ("more likely", "less likely"), change.largest_changes(model, count), strict=True
    ):
        names = [visible_text(n) for n in readable(model, [token for token, _ in listed])]
        panels.append(bars(title, [change for _, change in listed], names, axes=("token", "change of log p")))
    caption = caption_of(text, readable(model, change.tokens))
    note = "Among tokens of at least a thousandth of the most likely one's probability, in either run."
    about = {
        "model": model.family.name, "text": caption, "value": name, "strength": strength, "method": method
    }  # fmt: skip
    title = f"{name} steered ({method}, {strength:g}): how the prediction of {model.family.name} changes"
    return Figure("steering", title, about, {"panels": panels}, note)


@figure
def probes(result: ProbeResult) -> Figure:
    """Draw the accuracy of linear probes at each layer, next to the control task, from a `ProbeResult`."""
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
    note = "The control task gives each word a random label; accuracy is that on sentences held out."
    return Figure("probes", title, about, {"panels": [drawn, numbers]}, note)


@figure
def features(
    model: Model, dictionary: Dictionary, texts: Texts, features: Sequence[int] | None = None, *,
    count: int = 6, context: int = 6,
) -> Figure:  # fmt: skip
    """Draw the tokens on which features of a sparse dictionary are strongest, in context."""
    strongest = feature_examples(model, dictionary, texts, features, count=count, context=context)
    examples = [example for listed in strongest.values() for example in listed]
    panel = example_table(model, examples, [f"feature {e.feature}" for e in examples], "feature")
    name = dictionary.config.source
    title = f"Features of a dictionary of {name}: {len(strongest)} of {dictionary.config.width:,}"
    about = {"model": model.family.name, "value": name, "texts": len(texts)}
    return Figure("features", title, about, {"panels": [panel]})


def example_table(model: Model, examples: Sequence[FeatureExample], names: Sequence[str], axis: str) -> Panel:
    """Return the tokens on which features are strong, in context."""
    show = lambda tokens: " ".join(visible_text(token) for token in readable(model, tokens))
    rows: list[list[float | str]] = [
        [e.activation, show(e.before), show([e.token]), show(e.after)] for e in examples
    ]
    columns = ["activation", "before", "token", "after"]
    return table("strongest tokens", rows, names, columns, axes=(axis, ""))


@figure
def feature(
    model: Model, dictionary: Dictionary, texts: Texts | Activations, feature: int, *, count: int = 10,
    context: int = 6,
) -> Figure:  # fmt: skip
    """Draw one feature of a sparse dictionary.

    The figure shows the tokens on which it is strongest, how often it is active, the next tokens that its
    direction promotes and suppresses, and the nearest features.
    """
    (seen,) = describe_features(model, dictionary, texts, [feature], count=count, context=context)
    places = [f"text {e.text}, token {e.position}" for e in seen.examples]
    panels = [example_table(model, seen.examples, places, "where")] if places else []
    if seen.counts:
        middles = [(low + high) / 2 for low, high in itertools.pairwise(seen.edges)]
        axes = ("tokens", "activation")
        panels.append(lines("activations above zero", [seen.counts], ["tokens"], middles, axes=axes))
    for title, pairs in (("promoted", seen.promoted), ("suppressed", seen.suppressed)):
        if pairs:
            names = [visible_text(name) for name in readable(model, [name for name, _ in pairs])]
            logits = [value for _, value in pairs]
            panels.append(bars(f"next tokens {title}", logits, names, axes=("token", "logit, direct effect")))
    names = [f"feature {other}" for other, _ in seen.neighbours]
    cosines = [cosine for _, cosine in seen.neighbours]
    panels.append(bars("nearest features", cosines, names, axes=("feature", "cosine of directions")))
    config = dictionary.config
    title = f"Feature {feature} of {config.width:,} in a dictionary of {config.source}"
    about = {"model": model.family.name, "value": config.source, "feature": feature}
    note = (
        f"Active on {percent(seen.density)} of {seen.tokens:,} tokens. Logits are the direct effect of the "
    )
    note += "direction alone, compared with the mean over the vocabulary."
    return Figure("feature", title, about, {"panels": panels, "together": True}, note)


@figure
def tuned_lens(model: Model, text: Text, lens: TunedLens, target: Text = None) -> Figure:
    """Draw what each layer would predict through a tuned lens, and its distance from the last layer."""
    tuned = inspect_lens.tuned_lens(model, text, lens, target)
    plain = logit_lens(model, text, target)
    tokens = [visible_text(name) for name in readable(model, tuned.tokens)]
    gaps = [inspect_lens.lens_divergence(one) for one in (tuned, plain)]
    panels = [
        matrix(f"KL to the last layer in nats, {name}", gap, tuned.layers, tokens, axes=("layer", "token"))
        for name, gap in zip(("tuned lens", "logit lens"), gaps, strict=True)
    ]
    best = [[visible_text(readable(model, [t[0][0]])[0]) for t in row] for row in tuned.top(1)]
    panels.append(table("most likely token, tuned lens", best, tuned.layers, tokens, axes=("layer", "")))
    caption = caption_of(text, tokens)
    title = f"Tuned lens of {model.family.name}"
    return Figure("tuned_lens", title, {"model": model.family.name, "text": caption}, {"panels": panels})


# patching, logit_attribution: which values carry an answer; matrix, lines: numbers of your own.


@figure
def patching(*results: PatchingResult) -> Figure:
    """Draw how much of an answer each patch restores: 0 is nothing and 1 is all of it.

    It takes one or several results of `activation_patching`, `attribution_patching`, `path_patching` or
    `edge_attribution`.
    """
    if not results or not all(isinstance(result, PatchingResult) for result in results):
        raise InputError("give the result of activation_patching or another patching function")
    drawn, first = [], results[0]
    for result in results:
        by_head = result.columns == tuple(map(str, range(len(result.columns))))
        axes = ("value", "head" if by_head else "position")
        axes = ("sender", "receiver") if result.what == "paths" else axes
        names = result.names, result.columns
        drawn.append(matrix(result.what, result.values, *names, axes=axes, note=result.method))
    about = {"what": ", ".join(r.what for r in results), "method": first.method}
    title = f"Patching of {about['what']}: the share of the answer that each brings back"
    note = f"d is {first.corrupt:.3f} in the corrupt run (0) and {first.clean:.3f} in the clean one (1)."
    return Figure("patching", title, about, {"panels": drawn}, note)


@figure
def logit_attribution(result: LogitAttribution) -> Figure:
    """Draw what every part, head and token adds to a logit by itself. The shares sum to the logit."""
    names, rows = [str(h) for h in range(max(map(len, result.heads.values()), default=0))], []
    for name, share in zip(result.names, result.values.tolist(), strict=True):
        heads = result.heads.get(name, result.values.new_zeros(0)).tolist()
        blank = [np.nan] * (len(names) - len(heads))
        rows.append([*heads, *blank, share - sum(heads)])
    columns = [*(f"head {h}" for h in names), "the rest" if names else "share"]
    parts = matrix("parts", np.array(rows), result.names, columns, axes=("part", ""), note=result.note)
    tokens = matrix(
        "tokens", result.by_token()[None], ["share"], result.tokens,
        axes=("", "token"), note="What heads brought from each token, and at the position itself all else.",
    )  # fmt: skip
    against = "" if result.wrong is None else f" over {result.wrong}"
    about = {"answer": result.answer, "wrong": result.wrong, "position": result.position}
    title = f"Shares in the logit of token {result.answer}{against}: {result.logit:.3f}"
    return Figure("logit_attribution", title, about, {"panels": [parts, tokens]}, result.note)


# head_catalogue, find_heads: what heads look at over many texts; which look from one token at another.


@figure
def head_catalogue(
    model: Model, texts: Texts, *, max_length: int = 128, repeats: int = 16, count: int = 5
) -> Figure:
    """Draw what every head looks at over many texts: a map of each score, and the heads with the highest."""
    heads = catalogue.catalogue_heads(model, texts, max_length=max_length, repeats=repeats)
    panels: list[Panel] = []
    rows: list[list[float | str]] = []
    names: list[str] = []
    for score in heads.values:
        parts, means = heads.by_part(score)
        note = f"An even look has {heads.chance[score]:.3f}."
        panels.append(matrix(score, means.nan_to_num(0.0), parts, axes=("part", "head"), note=note))
        for entry in heads.top(score, count):
            names.append(score)
            rows.append([f"{entry.name} head {entry.head}", entry.mean, entry.low, entry.high])
    columns = ["head", "mean", "from", "to"]
    panels.insert(0, table("highest", rows, names, columns, axes=("score", "")))
    title = f"Heads of {model.family.name} over {len(texts)} texts"
    about = {"model": model.family.name, "texts": len(texts), "repeats": repeats}
    note = "Means over sequences with 95 % intervals by bootstrap; duplicate and induction on random tokens."
    return Figure("head_catalogue", title, about, {"panels": panels}, note)


@figure
def find_heads(
    model: Model, text: Text, from_token: int | str, to_token: int | str, target: Text = None, *,
    count: int = 15,
) -> Figure:  # fmt: skip
    """Draw the heads that look from one token at another, the strongest first."""
    looks = catalogue.find_heads(model, text, from_token, to_token, target, count=count)
    names = [f"{look.name} head {look.head}" for look in looks]
    panel = bars("weight", [look.weight for look in looks], names, axes=("head", "weight"))
    caption = caption_of(text if isinstance(text, str) else str(text), ())
    title = f"Heads of {model.family.name} that look from {from_token!r} at {to_token!r}"
    about = {"model": model.family.name, "text": caption, "from": from_token, "to": to_token}
    note = f"An even look gives {looks[0].chance:.3f}."
    return Figure("find_heads", title, about, {"panels": [panel]}, note)


# attribution_graph, attention_flow: the way to an answer through the parts, and through attention alone.


@figure
def attribution_graph(graph: AttributionGraph) -> Figure:
    """Draw the strongest edges between parts that lead to an answer, from the embedding up to the logits."""
    if not isinstance(graph, AttributionGraph):
        raise InputError("give what heedful.interp.intervene.patching.attribution_graph returned")
    rows, columns = [sender for sender, _, _ in graph.edges], ["receiver", "value"]
    cells: list[list[float | str]] = [[receiver, value] for _, receiver, value in graph.edges]
    data = {
        "panels": [table("edges", cells, rows, columns, axes=("sender", ""))],
        "nodes": list(graph.nodes), "edges": [list(edge) for edge in graph.edges],
    }  # fmt: skip
    result = graph.all_edges
    title = f"The {len(graph.edges)} strongest edges that lead to the answer"
    note = (
        f"A value is the share of the answer that an edge brings back, by {result.method}: d is "
        f"{result.corrupt:.3f} in the corrupt run (0) and {result.clean:.3f} in the clean one (1). "
        "Dashed edges take away."
    )
    about = {"edges": len(graph.edges), "method": result.method}
    return Figure("attribution_graph", title, about, data, note)


@figure
def attention_flow(
    model: Model, text: Text, target: Text = None, *, side: str = "", position: int | str = -1
) -> Figure:
    """Draw how much can flow from each token to a position through all attention layers, next to rollout."""
    given = check_pattern(model, text, target)
    flowed = flows.attention_flow(model, given, side=side, position=position)
    names = given.names if len(given.names) == len(flowed) else given.tokens
    at = position_of(names, position)
    rolled = rollout(model, given, side=side)[at].cpu()
    tokens = [f"{i}: {name}" for i, name in enumerate(readable(model, names))]
    drawn = [
        bars("flow", flowed.numpy(), tokens, axes=("token", "the most that can flow")),
        bars("rollout", rolled.numpy(), tokens, axes=("token", "product of the layers")),
    ]
    caption = caption_of(text, readable(model, names))
    title = f"Attention flow of {model.family.name} into “{tokens[at]}”"
    about = {"model": model.family.name, "text": caption, "position": at}
    note = "Attention alone: what values, matrices and feed-forward layers do is not in it."
    return Figure("attention_flow", title, about, {"panels": drawn}, note)
