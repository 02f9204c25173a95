"""Activations of a corpus on disk: computed once, in the order of the texts, and read a few shards at a time.

A dictionary needs the vectors of millions of tokens, which do not fit into memory. `save_activations` runs a
corpus through a model and writes shards of safetensors. Each shard has whole texts, about `shard_tokens`
tokens of them, and appears under its name only when it is complete. So a run that was killed continues with
the text after the last shard, and memory holds one shard, for a corpus of any length.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.core.errors import ConfigError, CorruptFile, InputError, nearest
from heedful.core.files import missing_file, open_atomically
from heedful.interp.activations import MAX_TOKENS, Activations, collect_activations, prepare_inputs
from heedful.interp.inputs import Input, Text, check_names, check_texts
from heedful.models.base import Model

COLUMNS = ("ids", "text", "position")


class ActivationStore:
    """The shards in a folder: iterate for the `Activations` of each, in the order of the texts."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.shards = sorted(self.folder.glob("shard-*.safetensors"))
        if not self.shards:
            raise missing_file(self.folder / "shard-00000.safetensors")
        self.settings = _metadata(self.shards[-1])
        self.names: tuple[str, ...] = tuple(self.settings["names"])
        self.texts: int = self.settings["texts"]  # that were read so far
        self.tokens: int = self.settings["tokens"]

    def read(self, shard: int, names: Sequence[str] | None = None) -> dict[str, Activations]:
        """Return the activations of one shard; `names` leaves out other values."""
        from safetensors import safe_open

        for name in names or ():
            if name not in self.names:
                hint = nearest(name, self.names) or f"there are {', '.join(self.names)}"
                raise InputError(f"{self.folder} has no values {name!r}", hint=hint)
        with safe_open(self.shards[shard], framework="pt") as file:
            columns = [file.get_tensor(name) for name in COLUMNS]
            return {n: Activations(n, file.get_tensor(n), *columns) for n in names or self.names}

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[dict[str, Activations]]:
        return map(self.read, range(len(self)))

    def pools(
        self, names: Sequence[str] | None = None, *, shards: int = 4, seed: int = 0
    ) -> Iterator[dict[str, Activations]]:
        """Yield the activations of a few shards together, without end, every epoch in another order."""
        draw = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self), generator=draw).tolist()
            for start in range(0, len(order), shards):
                listed = [self.read(i, names) for i in order[start : start + shards]]
                yield {name: _join(name, [one[name] for one in listed]) for name in listed[0]}


def _join(name: str, parts: Sequence[Activations]) -> Activations:
    columns: Iterable[tuple[Tensor, ...]] = zip(*((p.values, p.ids, p.text, p.position) for p in parts))
    return Activations(name, *map(torch.cat, columns))


def _metadata(shard: Path) -> dict[str, Any]:
    from heedful.weights.formats.tensor_layout import read_layout

    try:
        settings: dict[str, Any] = json.loads(read_layout(shard)[1]["heedful.activations"])
    except (KeyError, ValueError) as error:
        raise CorruptFile(f"{shard} has no activations of heedful: {error}", hint="delete it") from None
    return settings


def save_activations(
    model: Model, texts: Iterable[Text], names: Sequence[str], folder: str | Path, *,
    max_length: int | None = None, shard_tokens: int = 2**16, max_tokens: int = MAX_TOKENS,
    dtype: torch.dtype = torch.float32,
) -> ActivationStore:  # fmt: skip
    """Write the values called `names` of every token of a corpus into a folder, and return what reads them.

    `texts` may be a generator. If the folder has shards of the same settings, the texts in them are skipped,
    so that the same call continues after it was stopped. Give it the same texts. `max_tokens` is how many
    tokens one pass of the model reads, `dtype` what the values are stored in.
    """
    from safetensors.torch import save

    check_names(names)
    check_texts(texts)
    folder, texts = Path(folder), iter(texts)
    parameters = sum(p.numel() for p in model.parameters())
    settings = {
        "names": list(names), "model": model.family.name, "parameters": parameters,
        "max_length": max_length, "shard_tokens": shard_tokens, "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    number = text_count = token_count = 0
    if any(folder.glob("shard-*.safetensors")):
        store = ActivationStore(folder)
        other = {key: store.settings[key] for key, value in settings.items() if store.settings[key] != value}
        if other:
            before = ", ".join(f"`{key}={value}`" for key, value in other.items())
            raise ConfigError(
                f"{folder} was written with {before}", hint="choose another folder, or delete it"
            )
        number, text_count, token_count = len(store), store.texts, store.tokens
        if sum(1 for _ in islice(texts, text_count)) < text_count:
            raise InputError(f"{folder} has {text_count} texts, more than you passed")
    for chunk in _chunks(model, texts, max_length, shard_tokens):
        values = collect_activations(model, chunk, names, max_length=max_length, max_tokens=max_tokens)
        first = values[names[0]]
        tensors = {name: one.values.to(dtype) for name, one in values.items()}
        tensors |= {"ids": first.ids.int(), "text": first.text + text_count, "position": first.position.int()}
        text_count, token_count = text_count + len(chunk), token_count + len(first.ids)
        metadata = json.dumps(settings | {"texts": text_count, "tokens": token_count})
        with open_atomically(folder / f"shard-{number:05d}.safetensors") as file:
            file.write(save(tensors, {"heedful.activations": metadata}))
        number += 1
    if not number:
        raise InputError("no text was given to run", hint="give a list, or a fresh generator")
    return ActivationStore(folder)


def _chunks(
    model: Model, texts: Iterator[Text], max_length: int | None, tokens: int
) -> Iterator[list[Input]]:
    """Yield lists of whole texts with `tokens` tokens or a few more."""
    chunk, count = list[Input](), 0
    for text in texts:
        chunk += prepare_inputs(model, [text], max_length=max_length)
        count += chunk[-1].ids.shape[1]
        if count >= tokens:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk
