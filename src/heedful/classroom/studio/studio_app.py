"""The server: routes, the page, errors as the page reads them, headers that keep everything here."""

from __future__ import annotations

import base64
import hashlib
import importlib
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from heedful.classroom.studio import routes
from heedful.classroom.studio.features import FeatureSource
from heedful.classroom.studio.model_registry import ModelRegistry
from heedful.classroom.studio.responses import error_response
from heedful.classroom.studio.routes.runs import runs_in
from heedful.classroom.studio.traces import Studio
from heedful.core.errors import HeedfulError, InputError
from heedful.serve.guard import AccessRules, Guard, RequestRefused
from heedful.serve.json_response import Json

STATIC = Path(__file__).parent / "static"
WIDGETS = Path(__file__).parents[1] / "figures" / "static"  # what a figure saved as one file carries
PAGES = (
    "/", "/play", "/tokens", "/attention", "/steps", "/predict", "/layers", "/states", "/positions",
    "/space", "/figures", "/train", "/compare", "/reports", "/tour", "/glossary", "/exercises",
)  # fmt: skip
MAX_BODY_BYTES = 2_000_000
HEADERS = {  # of every answer
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin",
}  # fmt: skip
MISSING = "<!doctype html><title>heed studio</title><p>The page was not built: npm run build in web/."


def create_studio_app(
    names: Sequence[str] = (), *, models_folder: str | Path = "models", runs_folder: str | Path = "runs",
    static: Path = STATIC, token: str | None = None, dictionary: str | Path | None = None,
    texts: str | Path | None = None,
) -> FastAPI:  # fmt: skip
    """The studio on these models; `app.state.studio` is what its routes share.

    With a `dictionary`, models whose values it reads have figures of its features in `texts`, a file.

    With a `token`, every request must carry it: the routes read files and run Python that is to be graded.
    """
    root = Path(runs_folder)
    registry = ModelRegistry(names, Path(models_folder), lambda: runs_in(root))
    app = FastAPI(title="heed studio", docs_url=None, redoc_url=None, openapi_url=None)
    features = None
    if dictionary is None and texts is not None:
        raise InputError(
            "texts are searched for the features of a dictionary", hint="give `dictionary=` as well"
        )
    if dictionary is not None:
        features = FeatureSource(Path(dictionary), None if texts is None else Path(texts))
        features.dictionary, features.lines  # noqa: B018  a file that cannot be read is an error at once
    app.state.studio = Studio(registry, root, features)
    for module in pkgutil.iter_modules(routes.__path__, f"{routes.__name__}."):
        app.include_router(importlib.import_module(module.name).router)
    index = static / "index.html"
    page = index.read_text(encoding="utf-8") if index.is_file() else MISSING
    for path in PAGES:
        app.add_api_route(path, lambda: HTMLResponse(page, headers={"Cache-Control": "no-cache"}))
    app.add_api_route("/static/widget.js", lambda: _file(WIDGETS, "widget.js"))
    app.add_api_route("/static/{name}", lambda name: _file(static, name))
    app.add_api_route("/{path:path}", lambda path: _elsewhere(static, page, path))
    for kind in (HeedfulError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, lambda request, error: render_error(error))
    rules = AccessRules(
        max_body_bytes=MAX_BODY_BYTES, api_key=token,
        headers=HEADERS | {"content-security-policy": content_security_policy(page)},
        # Browsers send cookies to every port of a host: two studios must not overwrite each other's.
        cookie=f"heed-studio-{hashlib.sha256(token.encode()).hexdigest()[:8]}" if token else None,
        key_hint="open the address that heed studio printed, or send Authorization: Bearer TOKEN",
    )  # fmt: skip
    app.add_middleware(Guard, rules=rules, render_refusal=render_error)
    return app


def _file(static: Path, name: str) -> Response:
    """A file of the page. Names have no folders, so none can lead elsewhere."""
    file = static / name
    if name.startswith(".") or file.parent != static or not file.is_file():
        raise RequestRefused(404, "not_found", f"there is no {name[:80]!r} here")
    return FileResponse(file, headers={"Cache-Control": "no-cache"})


def _elsewhere(static: Path, page: str, path: str) -> Response:
    """A file of the page; else the page itself, which says that there is nothing at this address."""
    if "/" not in path and (static / path).is_file():
        return _file(static, path)
    if path.startswith(("api/", "static/")) or "." in path:
        raise RequestRefused(404, "not_found", f"there is no {path[:80]!r} here")
    return HTMLResponse(page, 404, headers={"Cache-Control": "no-cache"})


def render_error(error: Exception) -> Response:
    """Return any error as an answer in the shape that the page reads."""
    status, body = error_response(error)
    return Json(body, status_code=status)


# What a browser may do with the page: load and run what comes from this server, and nothing else.


def content_security_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: all from here, inline elements by their hashes."""

    def hashes(pattern: str) -> str:
        texts = dict.fromkeys(re.findall(pattern, page, re.DOTALL | re.IGNORECASE))
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        return "".join(f" 'sha256-{digest}'" for digest in digests)

    scripts = hashes(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>")
    styles = hashes(r"<style[^>]*>(.*?)</style>")
    return (
        f"default-src 'self'; script-src 'self'{scripts}; style-src 'self'{styles}; "
        "img-src 'self' data: blob:; worker-src 'self' blob:; connect-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
