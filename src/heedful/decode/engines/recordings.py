"""Recordings that outlive the call they were made in: the next call of the same model takes one over.

A recording (buffers at fixed addresses and the graphs over them) belongs to one stepper at a time. When that
stepper is gone, it waits beside its model, which it does not keep alive, for the next stepper that needs the
same size.
"""

from __future__ import annotations

import threading
import weakref
from typing import Generic, Protocol, TypeVar

from heedful.models.base import Model

MAX_IDLE = 4  # recordings that wait beside a model
MAX_IDLE_BYTES = 4 * 2**30  # and what their buffers take at most


class Reusable(Protocol):
    """Something recorded for a model; it must not hold the model itself."""

    key: object  # recordings with equal keys can stand in for each other

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers."""


R = TypeVar("R", bound=Reusable)


class RecordingPool(Generic[R]):
    """The recordings of all models that no stepper has at the moment."""

    def __init__(self) -> None:
        self.idle: weakref.WeakKeyDictionary[Model, list[R]] = weakref.WeakKeyDictionary()
        self.lock = threading.Lock()

    def take(self, model: Model, key: object) -> R | None:
        """Take a recording that waits under this key; None if there is none."""
        with self.lock:
            waiting = self.idle.get(model, [])
            found = next((r for r in waiting if r.key == key), None)
            if found is not None:
                waiting.remove(found)
            return found

    def lend(self, recording: R, stepper: object, model: Model) -> weakref.finalize:
        """Let a stepper have a recording until it is gone, or what is returned is called."""
        back = weakref.finalize(stepper, self.store_recording, weakref.ref(model), recording)
        back.atexit = False
        return back

    def store_recording(self, owner: weakref.ref[Model], recording: R) -> None:
        """Let a recording wait beside its model; the oldest go when there are too many."""
        model = owner()
        if model is None:
            return
        with self.lock:
            waiting = self.idle.setdefault(model, [])
            waiting.append(recording)
            while len(waiting) > MAX_IDLE or sum(r.nbytes for r in waiting) > MAX_IDLE_BYTES:
                waiting.pop(0)

    def clear(self, model: Model) -> None:
        """Forget what waits beside a model."""
        with self.lock:
            self.idle.pop(model, None)
