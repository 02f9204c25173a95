"""The figures of heedful.view, of the model and the text of a trace; `view.FIGURES` lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from heedful.classroom import figures as view
from heedful.classroom.studio import snippets
from heedful.classroom.studio.figure_response import FigureFormat, figure_response
from heedful.classroom.studio.model_registry import Entry
from heedful.classroom.studio.shared_state import Here, Seen
from heedful.core.errors import InputError, nearest
from heedful.serve.guard import Json

router = APIRouter()


def known_figures(entry: Entry) -> dict[str, Callable[..., view.Figure]]:
    """Return the functions that draw something of a model, by name; word vectors have their map alone, and
    of a model that reads images comes first where it looks.
    """
    functions = (view.embeddings,) if entry.vectors else view.FIGURES
    if entry.reads_images:
        functions = (view.image_attention, *functions)
    return {function.__name__: function for function in functions}


@router.get("/api/models/{id}/figures")
def list_figures(id: str, studio: Here) -> Response:
    """The names of the figures, and what each shows: its documentation up to the first empty line."""
    known = known_figures(studio.registry.entry(id))
    docs = {name: (inspect.getdoc(function) or "").split("\n\n")[0] for name, function in known.items()}
    plain = str.maketrans({"\n": " ", "`": None})
    return Json({"figures": [{"name": name, "about": text.translate(plain)} for name, text in docs.items()]})


@router.get("/api/trace/{id}/figures/{name}")
def draw_figure(look: Seen, name: str, format: FigureFormat = "json") -> Response:
    """A figure as JSON, which the page draws whatever it is; or as a file that Python writes."""
    trace, known = look.trace, known_figures(look.trace.entry)
    if name not in known:
        hint = nearest(name, known) or f"there are {', '.join(known)}"
        raise InputError(f"no figure {name[:80]!r} of {trace.entry.id}", hint=hint)
    function = known[name]
    takes = inspect.signature(function).parameters
    drawn = trace.given.ids.is_floating_point()  # the text, as an image
    read = trace.given if trace.text is None or drawn else trace.text
    given: list[Any] = [read] if {"text", "image"} & set(takes) else []
    if trace.given.target is not None and "target" in takes:
        given.append(trace.given.target)
    options = {"name": trace.entry.id} if "name" in takes else {}  # what the model is called in the title
    figure = look.run(lambda held: function(held.model, *given, **options))
    python = snippets.of_call(trace, function, f".save({name + '.html'!r})", **options)
    return figure_response(figure, name, format, python)
