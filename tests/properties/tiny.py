"""Tiny models of every family, and one way to call them all."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.models import FAMILIES
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Part, Watch
from heedful.nn.init import initialise
from heedful.weights.loading import assemble

ALL = sorted(FAMILIES)
# A family is asked once what it is; nothing here knows one by name.


@functools.cache
def outline(family: str) -> Model:
    """A tiny model that is only looked at."""
    return assemble(FAMILIES[family], FAMILIES[family].tiny)


@functools.cache
def shape_of(family: str) -> str:
    model = outline(family)
    if isinstance(model, Seq2Seq):
        return "seq2seq"
    assert isinstance(model, LM)
    return "decoder" if model.causal else "encoder"


DECODERS = [f for f in ALL if shape_of(f) == "decoder"]
ENCODERS = [f for f in ALL if shape_of(f) == "encoder"]
SEQ2SEQS = [f for f in ALL if shape_of(f) == "seq2seq"]
GENERATORS = [f for f in ALL if shape_of(f) != "encoder"]


@functools.cache
def joints_of(family: str) -> frozenset[tuple[str, ...]]:
    """Which part stands where in which other one, and which weights each has, in models of this kind."""
    found: set[tuple[str, ...]] = set()
    for part in outline(family).modules():
        kind = type(part).__qualname__
        found |= {(kind, name) for name, _ in part.named_parameters(recurse=False)}
        for name, child in part.named_children():
            found.add((kind, "layer" if name.isdigit() else name, type(child).__qualname__))
    return frozenset((shape_of(family), *joint) for joint in found)


@functools.cache
def variants() -> frozenset[str]:
    """Families made only of parts, put together only in ways, that families before them have: new values."""
    seen: set[tuple[str, ...]] = set()
    found = set()
    for family in FAMILIES:
        if joints_of(family) <= seen:
            found.add(family)
        seen |= joints_of(family)
    return frozenset(found)


@functools.cache
def new_parts() -> frozenset[str]:
    """Families that have a kind of part which none before them has."""
    seen: set[str] = set()
    families = set()
    for family in FAMILIES:
        parts = {f"{shape_of(family)} {kind}" for kind, *_ in (joint[1:] for joint in joints_of(family))}
        if not parts <= seen:
            families.add(family)
        seen |= parts
    return frozenset(families)


# One family of each kind: attention, windows and sinks, experts, latents, states, recurrence, two stacks.
KINDS = frozenset(
    ("bert", "deberta-v2", "gpt2", "llama", "gpt-oss", "deepseek-v3", "mamba2", "olmo-hybrid", "gla", "lstm",
     "transformer", "t5", "rnnsearch")
)  # fmt: skip


def by_parts(families: Iterable[str]) -> list[Any]:
    """Return parameters of a test that takes long and depends on parts: the core run has each part once."""
    return [f if f in new_parts() else pytest.param(f, marks=pytest.mark.slow) for f in families]


def by_kinds(families: Iterable[str]) -> list[Any]:
    """Return parameters of a test that takes long and depends on no family: the core run has one a kind."""
    return [f if f in KINDS else pytest.param(f, marks=pytest.mark.slow) for f in families]


def loops(family: str) -> bool:
    """Whether a part walks over time in Python, which a compiler would unroll."""
    return any(type(m).__module__.endswith("nn.recurrent") for m in outline(family).modules())


TRANSFORMERS = [f for f in ALL if not loops(f)]


def tiny(family: str, seed: int = 0, std: float = 0.15, **changes: Any) -> Model:
    """A tiny random model in eval mode, with weights large enough that every term matters."""
    torch.manual_seed(seed)
    config = FAMILIES[family].tiny
    model = assemble(FAMILIES[family], config.change(**changes) if changes else config)
    initialise(model, std)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def ids(model: Model, batch: int, length: int, seed: int = 1) -> Tensor:
    """Random tokens of the target side."""
    return torch.randint(
        5, model.config.vocab, (batch, length), generator=torch.Generator().manual_seed(seed)
    )


def source_ids(model: Model, batch: int, length: int, seed: int = 2) -> Tensor:
    vocab = model.embed.vocab  # type: ignore[union-attr]
    return torch.randint(5, int(vocab), (batch, length), generator=torch.Generator().manual_seed(seed))


def run(
    model: Model, tokens: Tensor, *, valid: Tensor | None = None, watch: Watch | None = None, **more: Any
) -> Tensor:
    """Logits; an encoder-decoder gets a fixed source and reads `tokens` as its target."""
    if isinstance(model, Seq2Seq):
        source = source_ids(model, len(tokens), 6)
        return model(source, tokens, target_valid=valid, watch=watch, **more)
    return model(tokens, valid=valid, watch=watch, **more)


def hidden(model: Model, tokens: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Per-token output of any model: hidden states of an LM, memory of an encoder-decoder."""
    return model.encode(tokens, valid=valid)  # type: ignore[operator]


def loss(model: Model, tokens: Tensor) -> Tensor:
    """The family's own kind of loss on one batch, as simple as can be."""
    if isinstance(model, Seq2Seq):
        logits = model(source_ids(model, len(tokens), 6), tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert isinstance(model, LM)
    if model.causal:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    if model.config.head == "detect":
        replaced = torch.arange(tokens.shape[1]) % 3 == 0
        swapped = torch.where(replaced, (tokens + 7) % model.config.vocab, tokens)
        return F.binary_cross_entropy_with_logits(model(swapped), replaced.float().expand(tokens.shape))
    hide = torch.arange(tokens.shape[1]) % 3 == 0
    logits = model(torch.where(hide, 3, tokens))
    return F.cross_entropy(logits[:, hide].flatten(0, 1), tokens[:, hide].flatten())


def patterns_of(model: Model) -> dict[str, str]:
    """Watched name of every pattern → its kind, 'softmax' or 'effective'."""
    watch = Watch("*.pattern")
    with torch.no_grad():
        run(model, ids(model, 1, 5))
        run(model, ids(model, 1, 5), watch=watch)
    out = {}
    for name in watch:
        part = module_at(model, name.removesuffix(".pattern"))
        out[name] = part.pattern_kind
    return out


def module_at(model: Model, path: str) -> Part:
    """The part that shows values under `path`; layers that share weights have fewer modules than depths."""
    from heedful.nn.block import Stack

    module: Any = model
    for word in path.split("."):
        layer = isinstance(module, Stack) and word.isdigit()
        module = module[int(word)] if layer else module.get_submodule(word)
    return module
