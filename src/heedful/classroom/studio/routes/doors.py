"""Views worth opening, of the models that are here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from heedful.classroom.studio.capabilities import summary
from heedful.classroom.studio.curated_views import doors
from heedful.classroom.studio.shared_state import Here
from heedful.serve.guard import Json

router = APIRouter()


@router.get("/api/doors")
def list_doors(studio: Here) -> Response:
    """The doors whose models can be loaded here."""
    entries = studio.registry.entries()
    usable = {id for id, e in entries.items() if summary(e, studio.summaries)["error"] is None}
    return Json({"doors": [door.to_dict() for door in doors() if usable.issuperset(door.models)]})
