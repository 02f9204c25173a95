"""Damage, by seed: bytes, JSON, safetensors headers. Each is a function of a generator and a file."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

NUMBERS = (0, 1, 2, 7, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, *NUMBERS, -1, -(2**63), 10**12, 10**30, 0.0, 0.5, 1e-320, 1e308, -1e308,
    float("inf"), float("-inf"), float("nan"), "", "x", "auto", "\ud800", "\x00", "ä" * 3, "y" * 3000,
    [], [0], [1, 2], ["x"], [None], [[]], {}, {"0": 1}, {"x": None}, {"rope_type": "yarn", "factor": "x"},
)  # fmt: skip


def hostile(rng: random.Random) -> Any:
    """A value that does not belong, as a new object."""
    return copy.deepcopy(rng.choice(VALUES))


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, overwrite, cut out, put in, repeat or cut off."""
    out, size = bytearray(data), len(data)
    at = rng.randrange(max(size, 1))
    span = min(rng.choice((1, 2, 4, 8, 40, 400)), max(size - at, 0))
    kind = rng.randrange(8)
    if kind == 0 and size:
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        out[at : at + span] = rng.randbytes(span)
    elif kind == 2:
        del out[at : at + span]
    elif kind == 3:
        out[at:at] = rng.randbytes(span)
    elif kind == 4:
        out[at:at] = out[at : at + span]
    elif kind == 5:
        del out[at:]
    elif kind == 6:
        out[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
    else:
        out[at : at + span] = bytes(span)
    return bytes(out)


def damage_tree(rng: random.Random, tree: Any) -> Any:
    """Replace, remove, rename or change one value somewhere in a JSON tree."""
    holders = list(_holders(tree))
    holder = rng.choice(holders) if holders else None
    if not holder:
        return hostile(rng)
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    value, kind = holder[key], rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[key + rng.choice(("s", " ", "\ud800", ""))] = holder.pop(key)
    elif kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = rng.choice(
            (value + 1, value - 1, value * 2, value * 10**6, -value, str(value), [value])
        )
    elif kind == 3:
        other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        holder[key] = hostile(rng)
    return tree


def _holders(tree: Any) -> Any:
    """Every table and list that has something in it; the outer ones as often as all the inner ones."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    if inner:
        yield tree
    for value in list(inner)[:200]:
        yield from _holders(value)


def damage_json(rng: random.Random, data: bytes) -> bytes:
    """Mostly the tree; now and then the text it is written in."""
    if rng.random() < 0.2:
        return damage_bytes(rng, data)
    if rng.random() < 0.05:
        return rng.choice((b"", b"{", b"[1]", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe{}"))
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        tree = damage_tree(rng, tree)
    text = json.dumps(tree)
    if rng.random() < 0.05 and isinstance(tree, dict) and tree:  # one key twice
        name = rng.choice(list(tree))
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(hostile(rng))}}}"
    return text.encode()


def damage_safetensors(rng: random.Random, data: bytes) -> bytes:
    """The header's tree, its text, or any byte of the file."""
    kind = rng.random()
    if kind < 0.2:
        return damage_bytes(rng, data)
    size = int.from_bytes(data[:8], "little")
    head, rest = data[8 : 8 + size], data[8 + size :]
    if kind < 0.4:
        return damage_bytes(rng, data[: 8 + size]) + rest
    header = json.loads(head)
    names = [name for name in header if name != "__metadata__"]
    a, b = rng.choice(names), rng.choice(names)
    if kind < 0.5:  # one key twice, with the place of another
        text = json.dumps(header)
        text = f"{text[:-1]}, {json.dumps(a)}: {json.dumps(header[b])}}}"
    elif kind < 0.6:  # two tensors in one place
        header[a]["data_offsets"] = [n + rng.choice((-4, 0, 4)) for n in header[b]["data_offsets"]]
        text = json.dumps(header)
    else:
        text = json.dumps(damage_tree(rng, header))
    head = text.encode()
    return struct.pack("<Q", len(head)) + head + rest
