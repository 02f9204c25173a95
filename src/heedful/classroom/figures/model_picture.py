"""One text on its way through a model: tokens, vectors, every layer, the answer; told by the assembled parts.

The model runs once with a Watch. The chosen layer is shown part by part, with the pattern of one head;
the others are folded, with the length of what each of their parts gives. No model is known by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from heedful.classroom.figures.figure import Figure, figure
from heedful.classroom.figures.layer_stages import LayerStages, Stage, StagePrediction, VectorRows
from heedful.classroom.figures.part_equations import title_of
from heedful.classroom.figures.picture_choice import candidate_parts, choose_layer_and_head
from heedful.classroom.figures.token_labels import caption_of, readable, short, visible_text
from heedful.core.errors import InputError
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    attends_to_source,
    names_of,
    reading,
    stacks_of,
    written_names,
)
from heedful.interp.observe.attention import patterns_of
from heedful.interp.observe.mixing import parts_of, position_type
from heedful.interp.observe.prediction import (
    answer_chances,
    answer_names,
    default_position,
    is_causal,
    predicts,
)
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.nn.embedding import MediaEmbedding
from heedful.nn.head import Head, NoHead

LONGEST = 128  # tokens of a picture
COUNT = 5  # answers that are listed


@dataclass(frozen=True)
class ModelPicture(Result):
    """The stages of a text in a model, in order. `written` are the words that an encoder-decoder writes.

    `row` is the token whose path is shown, a place in the stack of `path`; `layer` and `head` are what is
    shown of that stack, `path` the part that attends there.
    """

    family: str
    tokens: tuple[str, ...]
    target: tuple[str, ...]
    written: tuple[str, ...]
    stack: str
    layer: int
    path: str
    head: int | None
    row: int
    stages: list[Stage]


@torch.no_grad()
def model_picture(
    model: Model, text: Text, target: Text | None = None, *, layer: int | str | None = None,
    head: int | None = None, row: int | str | None = None,
) -> ModelPicture:  # fmt: skip
    """Return the picture of `text` in a model.

    `layer` is a layer of the stack that predicts, or the path of a layer or part ("encoder.2"); `row` is a
    token by its name or position: the word written, where the model looks at a source. What is left out is
    found by the rule of `picture_choice`.
    """
    inputs = reading(model, text, target)
    length = max(inputs.ids.shape[1], inputs.read.shape[1])
    if length > LONGEST:
        raise InputError(
            f"the text has {length} tokens", hint=f"a picture shows at most {LONGEST}: shorten the text"
        )
    candidates = candidate_parts(model, layer)
    stack, number, paths = candidates
    # All values of the layers that may be shown; of the others what they and their parts give.
    layers = {".".join(path.split(".")[:2]) for path in paths} or {f"{stack}.{number}"}
    names = ["*.output", "embed.*", "target_embed.*", "head.*", *(f"{layer}.*" for layer in sorted(layers))]
    watch = Watch(*names, detach=True)
    output = inputs.run(model, watch)
    patterns = patterns_of(model, inputs, watch, output)
    choice = choose_layer_and_head(model, inputs, candidates, patterns, head, row)
    sides = [LayerStages(model, inputs, watch, patterns, choice, name) for name in stacks_of(model)]
    stages = [stage for layers in sides if layers.side in model.tables for stage in side_stages(layers)]
    stages.append(prediction_stage(sides[-1], output))
    written = () if inputs.target is None else written_names(model, inputs, output)
    return ModelPicture(
        model.family.name, inputs.tokens, inputs.target_tokens, written, choice.stack, choice.layer,
        choice.path, choice.head, choice.row, stages,
    )  # fmt: skip


def side_stages(layers: LayerStages) -> list[Stage]:
    """Return the stages of one side of a model: its tokens, its vectors, the layers of its stack."""
    model, watch, name, decodes = layers.model, layers.watch, layers.stack, layers.side == "target"
    table = "target_embed" if decodes else "embed"
    embed = model.tables["target"] if decodes else cast(LM | Seq2Seq, model).embed  # which may read an image
    title = "Target so far" if decodes else "Source" if name == "encoder" else "Tokens"
    note = PIECES[embed.media if isinstance(embed, MediaEmbedding) else "text"]
    note = "What was written so far: each word is written by the row before it." if decodes else note
    param = "" if decodes else "i"
    tokens = Stage("tokens", title, "", layers.side, note=note, page="tokens", row_param=param)
    words = [w for w in ("token", "position", "types", "output") if f"{table}.{w}" in watch]
    if torch.equal(watch[f"{table}.token"], watch[f"{table}.output"]):
        words = ["token"]
    result = "normed sum" if embed.norm is not None else "sum" if len(words) > 2 else "scaled"
    labels = {"token": "token", "position": "position", "types": "segment", "output": result}
    vectors = [layers.vectors(labels[w], f"{table}.{w}") for w in words]
    adds_position = embed.position is not None
    kind = position_type(model)
    page = "positions" if adds_position else "space"
    title = "Vectors + positions" if adds_position else "Vectors"
    note = "" if adds_position else f"No position is added here: order comes from {ORDERS.get(kind, kind)}."
    first = layers.stage("embedding", table, embed, vectors, note, title=title, page=page)
    stages = [tokens, first, *layers.stages()]
    stack = stacks_of(model)[name]
    if stack.norm is not None:
        last = [layers.vectors("output", f"{name}.output")]
        title = f"Last norm ({title_of(stack.norm)})"
        stages.append(layers.stage("norm", f"{name}.norm", stack.norm, last, title=title, page="layers",
                                   row_param="pos"))  # fmt: skip
    return [*stages, memory_stage(model, layers)] if name == "encoder" else stages


PIECES = {  # what is read, in pieces
    "text": "The text, cut into the tokens of the vocabulary.",
    "images": "The image, cut into patches. Each has the number of its row and of its column.",
    "sounds": "The sound, cut into moments.",
}
ORDERS = {
    "rotary": "turning queries and keys", "alibi": "biases that grow with distance",
    "buckets": "a bias for every distance", "disentangled": "scores of distances",
    "relative": "scores of distances", "decay": "forgetting", "recurrence": "the recurrence",
    "state space": "the state", "delta rule": "a memory that newer tokens correct",
    "convolution": "the convolution",
    "none": "nowhere",
}  # fmt: skip


def memory_stage(model: Model, layers: LayerStages) -> Stage:
    """Return what an encoder hands to its decoder: one vector per token, or its last state alone."""
    bridge = cast(Seq2Seq, model).bridge
    attends = any(attends_to_source(part) for _, part in parts_of(model))
    note = "The decoder looks at these vectors, one for each source token, whenever it writes a word."
    if not attends:
        note = "Only the state after the last token goes on: the decoder starts from it and sees no other."
    elif bridge is not None:
        note += " Its first state is made from the encoder's last."
    title, vectors = "Memory", [layers.vectors("memory", "encoder.output")]
    return Stage("memory", title, "encoder.output", layers.side, [], note, vectors, page="layers")


def prediction_stage(layers: LayerStages, output: Tensor) -> Stage:
    """Return what the head makes of the last vectors."""
    model, inputs, watch, choice = layers.model, layers.inputs, layers.watch, layers.choice
    here = choice.row if choice.stack == layers.stack else default_position(model, inputs)
    vectors: list[VectorRows] = []
    if "head.features" in watch:
        vectors.append(layers.vectors("features", "head.features"))
    if "head.pooled" in watch:
        vectors.append(layers.vectors("pooled", "head.pooled", side="text"))
    prediction = read_prediction(model, inputs, output[0], here)
    page = "layers" if isinstance(model.head, NoHead) else "predict"
    head = cast(Head, model.head)
    return layers.stage("head", "head", head, vectors, prediction=prediction, page=page, row_param="pos")


def read_prediction(model: Model, inputs: Input, output: Tensor, row: int) -> StagePrediction:
    """Return the most likely words, labels, tags or ends of a span, by the head's own numbers."""
    kind, chances = predicts(model), answer_chances(model, output)
    if kind == "vectors":
        return StagePrediction(kind, False, [], [], chances, row)
    rows = {"spans": ["start", "end"], "labels": ["text"]}.get(kind, list(inputs.names))
    choices = list(inputs.names) if kind == "spans" else answer_names(model) or []
    best = chances.topk(min(COUNT, chances.shape[-1]))
    ids = best.indices.tolist()
    names = [list(names_of(model, of)) if kind == "words" else [choices[i] for i in of] for of in ids]
    mask_filling = fill_row(model, inputs, row) if kind == "words" else ([], [])
    follows = kind == "words" and is_causal(model)
    return StagePrediction(kind, follows, rows, names, best.values, row, *mask_filling)


def fill_row(model: Model, inputs: Input, row: int) -> tuple[list[str], list[float]]:
    """Return what an encoder puts in place of the row when it is masked; nothing where it needs no mask."""
    mask = None if model.tokenizer is None else model.tokenizer.mask
    if not isinstance(model, LM) or model.causal or mask is None or mask in inputs.ids[0].tolist():
        return [], []
    ids = inputs.ids.clone()
    ids[0, row] = mask
    hidden = Input(ids, (), types=inputs.types).run(model)[0, row].float().softmax(-1)
    best = hidden.topk(COUNT)
    return list(names_of(model, best.indices)), best.values.tolist()


# model: one text on its way through a model, from its tokens to its answer, with every number its own.


SIDES = ("tokens", "target", "written")


@figure
def model(
    model: Model, text: Text, target: Text = None, *, layer: int | str | None = None, head: int | None = None,
    row: int | str | None = None, comparison: Text = None, name: str = "",
) -> Figure:  # fmt: skip
    """Draw one text on its way through a model: tokens, vectors, layers, one head and the prediction.

    The figure opens `layer` and `head`. `row` is the token whose path it shows, by its name or position. If
    the model looks at a source, this is a word that it writes. By default, the figure chooses the place where
    a word looks most at another word (see picture_choice.py). `comparison` is a second text that can be shown
    instead, such as one with another last word. `name` is the name of the model in the title.
    """
    picture = model_picture(model, text, target, layer=layer, head=head, row=row)
    pictures = [picture]
    if comparison is not None:
        at = picture.row if row is None else row
        pictures.append(model_picture(model, comparison, layer=picture.path, head=picture.head, row=at))
    name = name or model.family.name
    excerpt = caption_of(text, picture.tokens)
    looks = [stage.pattern for stage in picture.stages if stage.pattern and stage.path == picture.path]
    side = looks[0].queries if looks else "target" if picture.stack == "decoder" else "tokens"
    row_label = visible_text(readable(model, getattr(picture, side))[picture.row]).strip("·")
    where = f"layer {picture.layer}" + "".join(f", {look.unit} {look.head}" for look in looks[:1])
    data = {
        "name": name,
        "texts": [t if isinstance(t, str) else "" for t in (text, comparison)[: len(pictures)]],
        "labels": text_labels(text, comparison)[: len(pictures)],
        "pictures": [to_data(model, one) | {"row_side": side} for one in pictures],
    }
    about = {"model": name, "text": excerpt, "layer": picture.layer, "head": picture.head, "row": row_label}
    return Figure("model", f"One text in {name}: {where}, the row of “{row_label}”", about, data)


def text_labels(text: Any, comparison: Any) -> list[str]:
    """Return what tells two texts apart: the words in which they differ, or the texts themselves."""
    words = [re.findall(r"[\w'’-]+", t) if isinstance(t, str) else [] for t in (text, comparison)]
    if len(words[0]) == len(words[1]):
        differ = [i for i, (a, b) in enumerate(zip(*words, strict=True)) if a != b]
        if differ:
            return [" ".join(of[i] for i in differ) for of in words]
    return [short(t, 40) for t in (text, comparison)] if isinstance(comparison, str) else ["first", "second"]


def to_data(model: Model, picture: ModelPicture) -> dict[str, Any]:
    """Return a picture as plain values and arrays, tokens as a reader wants them."""
    values: dict[str, Any] = to_arrays(picture)
    for side in SIDES:
        values[side] = readable(model, values[side])
    for stage in values["stages"]:
        prediction = stage["prediction"]
        if prediction is not None and prediction["kind"] == "words":
            prediction["names"] = [readable(model, names) for names in prediction["names"]]
            prediction["filled_names"] = readable(model, prediction["filled_names"])
    return values


def to_arrays(value: Any) -> Any:
    """Return results as dictionaries and tensors as arrays."""
    if isinstance(value, Result):
        return {field.name: to_arrays(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Tensor):
        return value.numpy()
    return [to_arrays(v) for v in value] if isinstance(value, list | tuple) else value
