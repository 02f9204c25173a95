"""attention and heads: who looks at whom, of our models, of others' models, and of weights you have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.canvas import PALETTES, SCALES
from heedful.classroom.figures.figure import Figure, figure
from heedful.classroom.figures.panels import matrix
from heedful.classroom.figures.patterns import SIDES, attention_patterns, figure_entry, marks_of, side
from heedful.classroom.figures.token_labels import caption_of, labels, readable
from heedful.core.checks import check_choice
from heedful.core.errors import InputError, nearest
from heedful.core.images import ImageProcessor, open_image
from heedful.interp.inputs import Input, ids_of, is_pair, part_at, reading
from heedful.interp.observe.attention import attention as attended
from heedful.interp.observe.attention import head_scores, pattern_scores
from heedful.interp.observe.mixing import window_of
from heedful.models.base import DualEncoder, MediaLM, Model, Seq2Seq
from heedful.nn.embedding import PatchEmbedding

LONGEST = 4096  # tokens whose patterns are drawn at all
WEIGHTS = 1 << 27  # and how many weights together
CHANNELS = 64  # heads of one layer; a state space model has one for each of its channels

Text = Any  # a string, ids, or what a foreign tokenizer gave
Entry = dict[str, Any]  # a layer's pattern, as `figure_entry` makes it


@dataclass
class CollectedPatterns:
    """The patterns of one pass, and what they are of; the states where nothing attends."""

    patterns: list[Entry]
    name: str = ""
    text: str = ""
    note: str = ""
    states: dict[str, np.ndarray] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    input: Input | None = None  # of a model of ours

    @property
    def about(self) -> dict[str, Any]:
        return {"model": self.name, "text": self.text}

    @property
    def title(self) -> str:
        return f"Attention of {self.name}" if self.name else "Attention"


@figure
def attention(
    model: Any = None, text: Text = None, target: Text = None, *, tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None, pattern: Any = None, tokenizer: Any = None, layer: int | str = 0,
    head: int | str = 0, scale: str = "linear", hide_first: bool = False, palette: str = "blue",
    words: bool = False, between: str = "", second: int | None = None, only: Sequence[str] = ("*",),
) -> Figure:  # fmt: skip
    """Draw the attention of a model on a text.

    An encoder reads a pair of texts, such as ("How old are you?", "I am six."), as it was trained to. An
    encoder-decoder without a target writes its own. A model without attention gives a figure of its states.

    `layer` is a name ("blocks.3.attn") or a number, and `head` a number, "mean" or "max" over heads. The
    figure opens on them, and .svg, .png and .csv contain them. `scale` is linear, sqrt or log. `hide_first`
    leaves out the first token and rescales the rows to sum to 1. `words` draws words instead of pieces:
    weights to a word are summed over its pieces, and weights from a word are averaged. `between` shows how
    one of two texts looks at the other ("A→A", "A→B", "B→A" or "B→B") without rescaling.

    `tokens` and `pattern` draw your own weights: (T, S), (H, T, S), (L, H, T, S) or a list of layers, such as
    `outputs.attentions`. `keys` names the columns if they are another sequence, and `second` is where a
    second text begins. A model of `transformers` works as well, with its tokenizer.
    """
    given = collect_patterns(model, text, target, tokens, keys, pattern, tokenizer, only, second)
    if not given.patterns:
        return states_of(given)
    at, head = choose_head(given.patterns, layer, head)
    check_look(scale, palette)
    one, sides = given.patterns[at], side(between)
    if sides and one["second"] is None:
        raise InputError(f"`between={sides!r}` needs two texts: give a pair, or `second=` with your weights")
    parts = [
        one["name"], f"{head} of heads" if isinstance(head, str) else f"head {head}",
        "signed" if one["kind"] == "effective" else "",
        f"without {one['leaves_out']}" if one.get("leaves_out") else "", scale,
        "first token hidden, rows renormalised" if hide_first and not one["cross"] else "",
        "by words" if words else "", SIDES[sides] if sides else "",
    ]  # fmt: skip
    data = {
        "patterns": given.patterns, "scores": [], "pattern": at, "head": head, "scale": scale,
        "hide_first": hide_first, "palette": palette, "words": words, "view": "matrix", "between": sides,
    }  # fmt: skip
    about = given.about | {"layer": one["name"], "head": head, "scale": scale}
    return Figure("attention", f"{given.title}: {', '.join(filter(None, parts))}", about, data, given.note)


@figure
def heads(
    model: Any = None, text: Text = None, target: Text = None, *, tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None, pattern: Any = None, tokenizer: Any = None, scale: str = "sqrt",
    palette: str = "blue", only: Sequence[str] = ("*",),
) -> Figure:  # fmt: skip
    """Draw every head as a small picture, with its scores.

    The scores are the entropy in bits, the mean distance, the share of the previous and of the first token,
    and induction. The arguments are those of `attention`.
    """
    given = collect_patterns(model, text, target, tokens, keys, pattern, tokenizer, only)
    if not given.patterns:
        return states_of(given)
    check_look(scale, palette)
    scores: list[Entry] = []
    if given.input is not None:
        names = {p["name"] for p in given.patterns}
        for score in head_scores(model, given.input):
            name = score.name.removesuffix(".pattern")
            if name in names and score.head < CHANNELS:
                scores.append(score.to_dict() | {"name": name})
    else:  # from the patterns alone; induction needs the model
        for p in given.patterns:
            same = not p["cross"] and p["values"].shape[1] == p["values"].shape[2]
            values = torch.from_numpy(p["values"])
            found = pattern_scores(p["name"], values, same_tokens=same, kind=p["kind"])
            scores += [score.to_dict() for score in found]
    data = {
        "patterns": given.patterns, "scores": scores, "pattern": 0, "head": 0, "scale": scale,
        "hide_first": False, "palette": palette, "words": False, "view": "grid", "between": "",
    }  # fmt: skip
    title = f"{given.title}: {len(given.patterns)} layers, all heads"
    return Figure("heads", title, given.about, data, given.note)


def check_look(scale: str, palette: str) -> None:
    """Raise InputError for a scale or a palette that there is not."""
    check_choice("scale", scale, SCALES)
    check_choice("palette", palette, PALETTES)


def choose_head(patterns: list[Entry], layer: int | str, head: int | str) -> tuple[int, int | str]:
    """Return the place of a layer and the number of a head, as they were asked for."""
    names = [p["name"] for p in patterns]
    there = f"there are {', '.join(names)}"
    if isinstance(layer, str):
        name = layer.removesuffix(".pattern")
        if name not in names:
            raise InputError(f"no layer {layer!r}", hint=nearest(name, names) or there)
        layer = names.index(name)
    if not -len(names) <= layer < len(names):
        raise InputError(f"`layer={layer}` is outside 0 … {len(names) - 1}", hint=there)
    at = layer % len(names)
    count = len(patterns[at]["values"])
    if isinstance(head, str):
        if head not in ("mean", "max"):
            raise InputError(f"`head={head!r}`: give a number, 'mean' or 'max'")
        return at, head
    if not -count <= head < count:
        raise InputError(f"`head={head}` is outside 0 … {count - 1} of {names[at]}")
    return at, head % count


def collect_patterns(
    model: Any, text: Text, target: Text, tokens: Sequence[str] | None, keys: Sequence[str] | None,
    pattern: Any, tokenizer: Any, only: Sequence[str], second: int | None = None,
) -> CollectedPatterns:  # fmt: skip
    """Return weights that were given, or those of a pass of a model."""
    if pattern is not None or tokens is not None:
        if pattern is None or tokens is None or model is not None:
            raise InputError("your own weights need both `tokens=` and `pattern=`, and no model")
        return CollectedPatterns(given_patterns(tokens, keys, pattern, second))
    if model is None or text is None:
        raise InputError(
            "give a model and a text: view.attention(model, 'The cat sat')",
            hint="or `tokens=` and `pattern=`",
        )
    if isinstance(model, Model):
        return own_patterns(model, text, target, only)
    patterns = attention_patterns(model, text, target, tokenizer)
    return CollectedPatterns(patterns, type(model).__name__, caption_of(text, patterns[0]["keys"]))


def given_patterns(
    tokens: Sequence[str], keys: Sequence[str] | None, pattern: Any, second: int | None = None
) -> list[dict[str, Any]]:
    """Weights of any depth as layers of heads."""
    if isinstance(pattern, list | tuple) and pattern and isinstance(pattern[0], torch.Tensor | np.ndarray):
        layers = list(pattern)
    else:
        try:
            whole = torch.as_tensor(pattern)
        except (TypeError, ValueError) as error:
            raise InputError(f"pattern must be rows of numbers, all of the same length: {error}") from None
        if not 2 <= whole.dim() <= 4:
            raise InputError(
                f"pattern has shape {tuple(whole.shape)}",
                hint="give (T, S), (H, T, S), (L, H, T, S) or a list",
            )
        layers = list(whole) if whole.dim() == 4 else [whole if whole.dim() == 3 else whole[None]]
    if isinstance(tokens, str):
        raise InputError("tokens is one string", hint="give the list of its pieces: `tokens=text.split()`")
    names, columns = [str(t) for t in tokens], [str(k) for k in (tokens if keys is None else keys)]
    if second is not None and not 0 < second < len(names):
        raise InputError(f"a second text cannot begin at `second={second}`: choose 1 … {len(names) - 1}")
    depth = lambda layer: layer if torch.as_tensor(layer).dim() > 2 else torch.as_tensor(layer)[None]
    name = lambda i: f"layer {i}" if len(layers) > 1 else "pattern"
    more: dict[str, Any] = {"cross": keys is not None, "second": second}
    return [figure_entry(name(i), depth(x), names, columns, **more) for i, x in enumerate(layers)]


def own_patterns(model: Model, text: Text, target: Text, only: Sequence[str]) -> CollectedPatterns:
    """Return the patterns of a model of ours, and its states."""
    given = check_pattern(model, text, target)
    seen = attended(model, given, only=only)
    patterns, note, mark = [], "", marks_of(model)
    for pattern in seen.patterns.values():
        if pattern.heads > CHANNELS:
            note = f"The first {CHANNELS} of {pattern.heads:,} channels of each layer are kept."
        path = pattern.name.removesuffix(".pattern")
        entry = figure_entry(
            path, pattern.values[:CHANNELS], readable(model, pattern.queries), readable(model, pattern.keys),
            cross=pattern.cross, predicted_rows=pattern.written, window=window_of(part_at(model, path)),
            kind=pattern.kind, mark=mark, second=given.second,
        )  # fmt: skip
        patterns.append(entry | {"leaves_out": pattern.leaves_out})
    return CollectedPatterns(
        patterns, model.family.name, caption_of(text, labels(model, given.ids)),
        " ".join(filter(None, (note, seen.note))),
        {name: state.detach().float().cpu().flatten(1).numpy() for name, state in seen.states.items()},
        labels(model, given.read), given,
    )  # fmt: skip


def check_pattern(model: Model, text: Text, target: Text = None) -> Input:
    """The input of a model, refused where its patterns would fill the memory."""
    if isinstance(text, Input):
        return text
    if model.image_processor is not None:  # which has as many patches as its model was made for
        return reading(model, text, target)
    given = reading(model, text) if is_pair(text) else None
    ids = ids_of(model, text) if given is None else given.ids
    T = ids.shape[1]
    weights = T * T * model.config.layers * int(getattr(model.config, "heads", None) or 1)
    if T > LONGEST or weights > WEIGHTS:
        raise InputError(
            f"the text is {T:,} tokens, {weights:,} weights to draw",
            hint=f"shorten it to {min(LONGEST, int(T * (WEIGHTS / weights) ** 0.5)):,} tokens or fewer",
        )
    return reading(model, ids, target) if given is None else given


def states_of(inputs: CollectedPatterns) -> Figure:
    """What a model without attention has instead: its states, units down, tokens across."""
    panels = []
    for name, state in sorted(inputs.states.items(), key=lambda item: item[0].startswith("embed")):
        columns = inputs.tokens if len(inputs.tokens) == len(state) else None
        panels.append(matrix(name, state.T, columns=columns, axes=("unit", "token")))
    note = f"{inputs.name} has no attention, so this figure shows its states instead of patterns."
    return Figure("states", f"States of {inputs.name}", inputs.about, {"panels": panels}, note)


# image_attention: where in an image a model looks, layer by layer, or while it writes each token.


LARGEST = 384  # pixels of a side of the image that is kept in a figure


@figure
def image_attention(
    model: Model, image: Any, target: Any = None, *, layer: int | str = "mean", head: int | str = "mean",
    name: str = "",
) -> Figure:  # fmt: skip
    """Draw where in an image the model looks: in every layer, or while it writes each token.

    If the model writes, these are the weights of its cross-attention over the patches. Without a target, it
    writes its own. If it writes nothing, as a ViT, these are the weights of its class token in each layer, or
    with a `layer` in each of its heads. `image` is a path, an array of pixels or an image of Pillow. `layer`
    and `head` are numbers, or "mean" over all of them. `name` is the name of the model in the title.
    """
    model = model.image if isinstance(model, DualEncoder) else model
    embed = model.embed if isinstance(model, Seq2Seq | MediaLM) else None
    if not isinstance(embed, PatchEmbedding):
        raise InputError(
            f"a {model.family.name} reads {'sound' if model.sound_processor else 'text'}, not images",
            hint="load a ViT or a vision-encoder-decoder",
        )
    given, writes = reading(model, image, target), isinstance(model, Seq2Seq)
    seen = attended(model, given, only=("decoder.*.cross",) if writes else ("blocks.*.attn",))
    every = torch.stack([pattern.values for pattern in seen.patterns.values()])  # (L, H, T, S)
    names, first, name = list(given.tokens), len(embed.first), name or model.family.name
    said_of = lambda what, value: f"all {what}s" if value == "mean" else f"{what} {value}"
    which = f"{said_of('layer', layer)}, {said_of('head', head)}"
    if writes:
        chosen = _choose(_choose(every, "layer", layer), "head", head)  # (T, S)
        rows, unit = readable(model, next(iter(seen.patterns.values())).queries), "token written"
        title = f"Where {name} looks while it writes: {which}"
    else:
        chosen, rows, unit = class_token_weights(every[:, :, 0], layer, head)
        which = which.replace("all layers", "each layer")
        which = which if unit == "layer" else which.replace("all heads", "each head")
        title = f"Where the class token of {name} looks: {which}"
    chosen = chosen.float().cpu()
    off = float(chosen[:, :first].sum() / chosen.sum().clamp(min=1e-9))
    panel = matrix("weights", chosen, rows, names, axes=(unit, "patch: row, column"))
    data = {
        "panels": [panel], "pixels": shown_pixels(model.image_processor, image, given), "first": first,
        "grid": list(embed.grid),
    }  # fmt: skip
    source = str(image) if isinstance(image, str | Path) else "image"
    learned = " and ".join(names[:first])
    note = f"{100 * off:.0f} % of all weight goes to {learned}, which belongs to no place in the image."
    about = {"model": name, "image": source, "layer": layer, "head": head}
    return Figure("image_attention", title, about, data, note)


def class_token_weights(
    weights: torch.Tensor, layer: int | str, head: int | str
) -> tuple[torch.Tensor, list[str], str]:
    """Return some of the weights (L, H, S) of a token as rows, the names of the rows, and what they are.

    There is a row for each layer, or with a layer for each of its heads, or with both for that head.
    """
    if layer == "mean":
        chosen, unit = torch.stack([_choose(heads, "head", head) for heads in weights]), "layer"
    elif head == "mean":
        chosen, unit = _choose(weights, "layer", layer), "head"
    else:
        return _choose(_choose(weights, "layer", layer), "head", head)[None], [f"head {head}"], "head"
    return chosen, [f"{unit} {i}" for i in range(len(chosen))], unit


def _choose(values: torch.Tensor, axis: str, which: int | str) -> torch.Tensor:
    """One entry of the first axis, or the mean over it."""
    if which == "mean":
        return values.mean(0)
    if not isinstance(which, int) or not -len(values) <= which < len(values):
        raise InputError(f"`{axis}={which!r}` is unknown", hint=f"give 0 … {len(values) - 1}, or 'mean'")
    return values[which]


def shown_pixels(processor: ImageProcessor, image: Any, source: Input) -> np.ndarray:
    """The image (H, W, 3) in bytes: as it came where all of it is read, else as the model reads it."""
    if isinstance(image, torch.Tensor | Input) or processor.crop is not None:
        column = lambda each: torch.tensor(each)[:, None, None]
        values = source.ids[0].float().cpu() * column(processor.std) + column(processor.mean)
        values = (values / processor.rescale).clamp(0, 255).round().permute(1, 2, 0)  # (H, W, C)
        return values.expand(-1, -1, 3).to(torch.uint8).numpy()
    opened = open_image(image).convert("RGB")
    scale = min(1.0, LARGEST / max(opened.size))
    small = (
        opened if scale == 1 else opened.resize(tuple(max(1, round(side * scale)) for side in opened.size))
    )
    return np.asarray(small, dtype=np.uint8)
