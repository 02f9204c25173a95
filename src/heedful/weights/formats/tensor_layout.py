"""Where the tensors of a safetensors file lie, as the `safetensors` library finds them.

That library refuses a header with holes, with tensors that overlap, with a name twice or with sizes that are
not the file's. A header it accepts covers the file without a gap, so each tensor begins where the one before
it ends. Nothing here parses the header a second time, and nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from safetensors import SafetensorError, safe_open

from heedful.core.errors import CorruptFile, WeightsError

# Bytes of one number, by the names that headers use.
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorSpan:
    """One tensor in a file: its kind, its shape, and its first byte."""

    kind: str
    shape: tuple[int, ...]
    start: int


def check_fetched(path: Path) -> None:
    """Raise CorruptFile for the few lines that git-lfs leaves in the place of a file it has not fetched."""
    with path.open("rb") as file:  # a path that is missing or a folder says so in the words of the system
        if file.read(len(POINTER)) == POINTER:
            raise CorruptFile(
                f"{path} is a pointer of git-lfs, not the file itself", hint="fetch that with: git lfs pull"
            )


def read_layout(path: Path) -> tuple[dict[str, TensorSpan], dict[str, str]]:
    """Return the span of every tensor by its name, in the order of the file, and the file's metadata."""
    check_fetched(path)
    with path.open("rb") as file:
        first = file.read(2)
    try:
        with safe_open(path, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.offset_keys()}
            layout = {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
            metadata = dict(opened.metadata() or {})
    except SafetensorError as error:
        if first == b"PK" or (first[:1] == b"\x80" and first[1:] in (b"\2", b"\3", b"\4", b"\5")):
            raise CorruptFile(
                f"{path} is a pickle with a .safetensors name and is not opened",
                hint="convert it at its source",
            ) from None
        reason = str(error).partition(": ")[2] or str(error)
        raise CorruptFile(
            f"{path} is truncated, damaged or no safetensors file ({reason!r:.160})",
            hint="fetch or save it again",
        ) from None
    for name, (kind, _) in layout.items():
        if kind not in ITEM_BYTES:
            types = ", ".join(ITEM_BYTES)
            raise WeightsError(
                f"{path} holds {name!r:.80} as {kind}, which is not supported", hint=f"convert it to {types}"
            )
    sizes = [math.prod(shape) * ITEM_BYTES[kind] for kind, shape in layout.values()]
    starts = accumulate(sizes, initial=path.stat().st_size - sum(sizes))
    spans = {name: TensorSpan(*entry, start) for (name, entry), start in zip(layout.items(), starts)}
    return spans, metadata
