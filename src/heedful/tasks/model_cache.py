"""Models by their names: the last ones used are kept, so that a second call does not read them again."""

from __future__ import annotations

import threading
from pathlib import Path

from heedful.models.base import Model
from heedful.weights.adapters import adapter_base
from heedful.weights.hub import resolve
from heedful.weights.loading import load

MAX_MODELS = 2  # one may score while another finds

Stamp = tuple[tuple[str, int, int], ...]  # name, time of the last change and size of each file

_models: dict[Path, tuple[Stamp, Model]] = {}  # the one used last stands last
_lock = threading.Lock()


def open_model(model: Model | str | Path) -> Model:
    """Return the model, or the one of that name: as it was kept if none of its files changed, else loaded.

    Whoever asks for the same name gets the same object; `heedful.load` makes one of your own.
    """
    if isinstance(model, Model):
        return model
    where = resolve(model).resolve()
    with _lock:
        stamp = file_stamp(where)
        kept = _models.pop(where, None)
        if kept is None or kept[0] != stamp:
            while len(_models) >= MAX_MODELS:
                _models.pop(next(iter(_models)))  # before another one takes its memory
            kept = stamp, load(where)
        _models[where] = kept
        return kept[1].eval()


def forget_models() -> None:
    """Let go of the models that are kept, and of their memory."""
    with _lock:
        _models.clear()


def file_stamp(where: Path) -> Stamp:
    """Return what changes with a model's files; those of the model that an adapter stands on count too."""
    files = sorted(p for p in where.rglob("*") if p.is_file()) if where.is_dir() else [where]
    stamps = [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in files]
    base = adapter_base(where) if where.is_dir() else None
    return (*stamps, *(file_stamp(resolve(base).resolve()) if base is not None else ()))
