"""What one more token costs behind a text that grows: time with a cache, time without, memory.

A recurrence remembers a vector, attention every key and value: its cache and the time to read it grow with
the text. Without a cache the whole text is read again for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from heedful.classroom.experiments.layer_times import shortest_seconds
from heedful.classroom.experiments.systems import SizedSystem, build_system
from heedful.core.devices import one_thread
from heedful.models.counting import count

FLOAT_BYTES = 4


@torch.no_grad()
def measure_generation(
    sized_system: SizedSystem, contexts: Sequence[int], *, vocab: int, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Return seconds for one token behind each context, with and without memory, and the memory in bytes.

    The weights are random: time and memory do not depend on them. Steps are plain, without fused kernels.
    """
    device = torch.device(device)
    room = max(contexts) + 64
    sizes = {"context": room} if "context" in sized_system.model else {}
    model = build_system(sized_system, vocab=vocab, device=device, **sizes).eval()
    found: dict[str, Any] = {"contexts": list(contexts), "step": [], "whole": [], "bytes": []}
    with one_thread():
        for context in contexts:
            tokens = torch.arange(context, device=device)[None] % vocab
            state = model.start(tokens, length=room)
            step, whole = partial(model.step, tokens[:, :1], state), partial(model, tokens)
            found["step"].append(shortest_seconds(step, device))
            found["whole"].append(shortest_seconds(whole, device))
            found["bytes"].append(count(model, length=context, width=FLOAT_BYTES).cache_bytes)
    return found
