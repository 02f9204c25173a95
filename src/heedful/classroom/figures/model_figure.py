"""model: one text on its way through a model, from its tokens to its answer, with every number its own."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from torch import Tensor

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.model_picture import ModelPicture, model_picture
from heedful.classroom.figures.token_labels import cut_label, readable, short, text_argument, visible_text
from heedful.interp.inputs import Result
from heedful.models.base import Model

Text = Any
SIDES = ("tokens", "target", "written")


def model(
    model: Model, text: Text, target: Text = None, *, layer: int | str | None = None, head: int | None = None,
    row: int | str | None = None, beside: Text = None, name: str = "",
) -> Figure:  # fmt: skip
    """One text on its way through a model: tokens, vectors and positions, each layer, one head, the answer.

    `layer` and `head` are what is unfolded, `row` the token whose way is told: its name or its position; the
    word written, where the model looks at a source. What is left out is the strongest look at another word
    (see picture_choice.py). `beside` is a second text to change to, such as one with another last word;
    `name` is what the model is called in the title.
    """
    picture = model_picture(model, text, target, layer=layer, head=head, row=row)
    pictures = [picture]
    if beside is not None:
        at = picture.row if row is None else row
        pictures.append(model_picture(model, beside, layer=picture.path, head=picture.head, row=at))
    name = name or model.family.name
    excerpt = cut_label(text if isinstance(text, str) else " ".join(picture.tokens))
    looks = [stage.pattern for stage in picture.stages if stage.pattern and stage.path == picture.path]
    side = looks[0].queries if looks else "target" if picture.stack == "decoder" else "tokens"
    row_label = visible_text(readable(model, getattr(picture, side))[picture.row]).strip("·")
    where = f"layer {picture.layer}" + "".join(f", {look.unit} {look.head}" for look in looks[:1])
    data = {
        "name": name,
        "texts": [t if isinstance(t, str) else "" for t in (text, beside)[: len(pictures)]],
        "labels": text_labels(text, beside)[: len(pictures)],
        "pictures": [to_data(model, one) | {"row_side": side} for one in pictures],
    }
    arguments = {"target": target, "layer": picture.path, "head": picture.head, "beside": beside}
    arguments["row"] = picture.row if row is None else row
    arguments["name"] = "" if name == model.family.name else name
    texts = ("target", "beside")
    options = [
        f"{word}={text_argument(value) if word in texts else repr(value)}"
        for word, value in arguments.items()
        if value not in (None, "")
    ]
    call = f"heedful.view.model(model, {', '.join([text_argument(text), *options])})"
    about = {"model": name, "text": excerpt, "layer": picture.layer, "head": picture.head, "row": row_label}
    return Figure("model", f"One text in {name}: {where}, the row of “{row_label}”", about, data, "", call)


def text_labels(text: Text, comparison: Text) -> list[str]:
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
        prediction = stage["answer"]
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
