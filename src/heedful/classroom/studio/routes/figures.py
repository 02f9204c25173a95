"""The figures of heedful.view, of the model and the text of a trace; `view.FIGURES` lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from heedful.classroom import figures as view
from heedful.classroom.studio import snippets
from heedful.classroom.studio.features import FeatureSource
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.responses import FigureFormat, figure_response
from heedful.classroom.studio.routes.models import DEFAULTS
from heedful.classroom.studio.traces import Here, Look, Seen, Studio
from heedful.core.errors import HeedfulError, find_named
from heedful.core.images import draw_text
from heedful.decode.request import context_length
from heedful.interp.learn.dictionary import strongest_features
from heedful.interp.observe.prediction import default_position, is_causal
from heedful.models.base import Model, Seq2Seq
from heedful.serve.json_response import Json

router = APIRouter()


def known_figures(studio: Studio, loaded_model: LoadedModel) -> dict[str, Callable[..., view.Figure]]:
    """Return the functions that can draw something of a model, by name; word vectors have their map alone.
    Those of features come with a dictionary.
    """
    if loaded_model.entry.vectors:
        return {"embeddings": view.embeddings}
    model = loaded_model.sequence
    drawable = lambda: [function for function, fits in view.FIGURES.items() if fits(model)]
    functions = loaded_model.once("figures", drawable)
    if studio.features is not None and studio.features.fits(loaded_model):
        functions = [*functions, view.feature, view.features]
    return {function.__name__: function for function in functions}


@router.get("/api/models/{id}/figures")
def list_figures(id: str, studio: Here) -> Response:
    """The figures: name, what each shows (its documentation up to the first empty line), and its numbers."""
    plain, rows = str.maketrans({"\n": " ", "`": None}), []
    for name, function in known_figures(studio, studio.registry.get(id)).items():
        about = (inspect.getdoc(function) or "").split("\n\n")[0].translate(plain)
        numbers = {}
        if name == "feature" and studio.features is not None:
            numbers["feature"] = [0, studio.features.dictionary.config.width - 1]
        rows.append({"name": name, "about": about, "numbers": numbers})
    return Json({"figures": rows})


@router.get("/api/trace/{id}/figures/{name}")
def draw_figure(
    look: Seen, studio: Here, name: str, format: FigureFormat = "json", feature: int | None = None
) -> Response:
    """A figure of any kind as JSON, which the page draws; or as a file that Python writes."""
    trace, figures = look.trace, known_figures(studio, look.loaded_model)
    function = find_named(figures, name, f"no figure {name[:80]!r} of {trace.entry.id}")
    if studio.features is not None and "dictionary" in inspect.signature(function).parameters:
        return draw_features(studio.features, look, name, format, feature)
    takes = inspect.signature(function).parameters
    drawn = trace.given.ids.is_floating_point()  # the text, as an image
    read = trace.given if trace.text is None or drawn else trace.text
    given: list[Any] = [read] if {"text", "image"} & set(takes) else []
    if trace.given.target is not None and "target" in takes:
        given.append(trace.given.target)
    options: dict[str, Any] = {}
    if "name" in takes:  # of the model, in the title
        options["name"] = trace.entry.id
    if "position" in takes:  # the last token of an encoder's text without a mask
        options["position"] = default_position(look.loaded_model.sequence, trace.given)
    figure = look.run(lambda loaded_model: function(loaded_model.model, *given, **options))
    python = snippets.of_call(trace, function, f".save({name + '.html'!r})", **options)
    return figure_response(figure, name, format, python)


def draw_features(
    source: FeatureSource, look: Look, name: str, format: FigureFormat, feature: int | None
) -> Response:
    """Draw one feature over the texts of the studio, or the strongest features of what a trace read."""
    loaded_model, ids = look.loaded_model, look.trace.given.ids[0].tolist()
    if name == "features":
        draw = lambda: view.features(loaded_model.sequence, source.dictionary, [ids])
        call = f"heedful.view.features(model, dictionary, [{ids}])"
    else:
        values = source.activations(loaded_model)
        number = feature
        if number is None:
            (number,) = strongest_features(loaded_model.sequence, values, 1)
        draw = lambda: view.feature(loaded_model.sequence, source.dictionary, values, number)
        call = f"heedful.view.feature(model, dictionary, texts, {number})"
    python = source.script(loaded_model, f"{call}.save({name + '.html'!r})")
    return figure_response(loaded_model.run(draw), name, format, python)


# The picture of one text in a model, which the first screen shows: as a figure's JSON, or as a file.


TEXTS = ("text", "comparison")  # what a model that reads images is shown as images
FIRST_TEXT = "The animal didn't cross the street because it was too tired."
FIRST_COMPARISON = FIRST_TEXT.replace("tired", "wide")
# Found by a search over all heads: in no other does the look of "it" move as far from "animal" to "street",
# and in no other does each German word look as much at the English one that it translates.
FIRST_HEADS: dict[str, dict[str, Any]] = {
    "masked": {"layer": "blocks.3.attn", "head": 1, "row": "it"},
    "translate-en-de": {"layer": "decoder.3.cross", "head": 2, "row": 5},
}


@router.get("/api/picture")
def draw_picture(
    studio: Here, model: str = "", text: str = "", comparison: str = "", target: str = "", layer: str = "",
    head: int | None = None, row: str = "", format: FigureFormat = "json",
) -> Response:  # fmt: skip
    """The figure of `heedful.view.model`. Without a text it is the first picture of the model. `row` is a
    position or a token, `layer` a number or a path; what is left out is found by the rule of the figure.
    """
    loaded_model = studio.registry.get(model or first_model(studio))
    if text:
        number = lambda text: int(text) if text.isdigit() else text or None
        request: dict[str, Any] = {
            "text": text, "target": target or None, "comparison": comparison or None, "layer": number(layer),
            "head": head, "row": number(row),
        }  # fmt: skip
        options = {name: value for name, value in request.items() if value is not None}
        figure = loaded_model.run(lambda: view_model(loaded_model, options))
    else:
        options, figure = first_picture(loaded_model)
    size = loaded_model.sequence.image_processor
    code = lambda value: snippets.Code(f"draw_text({value!r}, {size.height}, {size.width})")
    values = {n: code(v) if size is not None and n in TEXTS else v for n, v in options.items()}
    arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
    call = f"figure = heedful.view.model(model, {arguments}, name={loaded_model.id!r})"
    call += "\nfigure.save('model.html')"
    imports = "" if size is None else snippets.import_lines(draw_text)
    python = snippets.script(loaded_model.entry, call, imports)
    return figure_response(figure, "model", format, python)


def first_picture(loaded_model: LoadedModel) -> tuple[dict[str, Any], view.Figure]:
    """Return the first picture of a model, drawn once, and what it was asked for with."""
    options = first_request(loaded_model.id, loaded_model.sequence)
    figure = loaded_model.once("picture", lambda: view_model(loaded_model, options))
    return options, figure


def view_model(loaded_model: LoadedModel, options: dict[str, Any]) -> view.Figure:
    """Return the picture of a model; one that reads images reads the texts as they are drawn."""
    model = loaded_model.sequence
    size = model.image_processor
    draw = lambda text: draw_text(text, size.height, size.width)
    read = {n: draw(v) if size is not None and n in TEXTS else v for n, v in options.items()}
    figure = view.model(model, **read, name=loaded_model.id)
    if size is None:
        return figure
    texts = [options[name] for name in TEXTS if name in options]  # a figure of an image knows no text
    return replace(figure, data={**figure.data, "texts": texts})


def first_request(id: str, model: Model) -> dict[str, Any]:
    """Return what is shown of a model before anything is asked for: a text that suits what it does, or one
    that its context has room for.
    """
    request: dict[str, Any] = {"text": FIRST_TEXT, "comparison": FIRST_COMPARISON} | FIRST_HEADS.get(id, {})
    if model.image_processor is not None:
        return {"text": "2026"}
    if is_causal(model):
        request = {
            "text": "The old man reads a book." if isinstance(model, Seq2Seq) else "The cat sat on the"
        } | FIRST_HEADS.get(id, {})
    limit = context_length(model, source=isinstance(model, Seq2Seq))
    if (
        limit is not None
        and model.tokenizer is not None
        and len(model.tokenizer.encode(request["text"])) > limit
    ):
        return {"text": "The cat sat"}
    return request


def first_model(studio: Studio) -> str:
    """Return the model that a page begins with: one given on the command line, else a small bundled one."""
    arguments = (id for id, entry in studio.registry.entries().items() if entry.source == "given")
    return next(arguments, DEFAULTS[0])


def prepare_first_picture(studio: Studio) -> None:
    """Load the model that a page begins with and draw its picture, before the page asks for both.

    A model that cannot be loaded is an error of the request that asks for it.
    """
    try:
        first_picture(studio.registry.get(first_model(studio)))
    except HeedfulError:
        return
