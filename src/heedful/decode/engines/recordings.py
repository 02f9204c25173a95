"""What was recorded of a model outlives the call it was recorded in: the next call takes it over.

A recording (buffers at fixed addresses and the graphs over them) belongs to one stepper at a time. When that
stepper is gone, it waits in the `ModelRecordings` of its model, the one place that remembers anything of
earlier calls. They go when the model goes.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from heedful.models.base import Model

if TYPE_CHECKING:
    from heedful.decode.engines.graph_stepper import Recording

MAX_IDLE = 4  # recordings that wait for a model
MAX_IDLE_BYTES = 4 * 2**30  # and what their buffers take at most


class ModelRecordings:
    """The recordings of one model that no stepper has at the moment.

    `refused` says what the model was (its fingerprint) when its step could not be recorded, and why.
    """

    def __init__(self) -> None:
        self.idle: list[Recording] = []
        self.refused: tuple[list[object], str] | None = None
        self.lock = threading.Lock()

    def take(self, key: object) -> Recording | None:
        """Take a recording that waits under this key; None if there is none."""
        with self.lock:
            found = next((recording for recording in self.idle if recording.key == key), None)
            if found is not None:
                self.idle.remove(found)
            return found

    def lend(self, recording: Recording, stepper: object) -> weakref.finalize[..., object]:
        """Let a stepper have a recording until it is gone, or what is returned is called."""
        back = weakref.finalize(stepper, self.store, recording)
        back.atexit = False
        return back

    def store(self, recording: Recording) -> None:
        """Let a recording wait; the oldest go when there are too many."""
        with self.lock:
            self.idle.append(recording)
            while len(self.idle) > MAX_IDLE or sum(r.nbytes for r in self.idle) > MAX_IDLE_BYTES:
                self.idle.pop(0)


RECORDINGS: weakref.WeakKeyDictionary[Model, ModelRecordings] = weakref.WeakKeyDictionary()
LOCK = threading.Lock()


def recordings_of(model: Model) -> ModelRecordings:
    """Return the one object that remembers what was recorded of a model."""
    with LOCK:
        return RECORDINGS.setdefault(model, ModelRecordings())
