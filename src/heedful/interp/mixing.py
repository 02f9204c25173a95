"""How the tokens of a sequence reach each other, and where a model knows their order from: told by its parts.

Captions of figures and pages come from here; no model is known by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from heedful.interp.results import Result
from heedful.interp.row_labels import Side, attends_to_source, key_side, row_side
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.attention import Attention, CrossAttention
from heedful.nn.attentive import Decoding
from heedful.nn.block import Stack
from heedful.nn.context import Part
from heedful.nn.delta import GatedDeltaNet
from heedful.nn.disentangled import DisentangledAttention, Neighbours
from heedful.nn.latent import LatentAttention
from heedful.nn.linear import GatedConv, GatedLinearAttention, LinearAttention
from heedful.nn.position import ALiBi, BucketBias, Learned, Sinusoidal
from heedful.nn.recurrent import Recurrence
from heedful.nn.ssd import Mamba2
from heedful.nn.ssm import S4, Mamba

# The first that fits names how a part mixes tokens.
MIXERS: tuple[tuple[str, tuple[type[Part], ...]], ...] = (
    ("cross-attention", (CrossAttention,)),
    ("alignment", (Decoding,)),
    ("recurrence", (Recurrence,)),
    ("state space", (Mamba, Mamba2, S4)),
    ("delta rule", (GatedDeltaNet,)),
    ("gated linear attention", (GatedLinearAttention,)),
    ("linear attention", (LinearAttention,)),
    ("convolution", (GatedConv, Neighbours)),
    ("attention", (Attention, LatentAttention, DisentangledAttention)),
)
NOTES = {
    "recurrence": "order comes from its recurrence: each state is made from the one before",
    "state space": "order comes from its state: h_t is made from h_(t−1), linearly",
    "delta rule": "order comes from its memory: each token corrects what others wrote, and all fades",
    "decay": "order comes from forgetting: what was read before is multiplied by a forget gate at each token",
    "convolution": "order comes from its convolution: a layer sees {window} tokens in their order",
    "none": "no order: the same words in any order are the same",
    "disentangled": "content and distance are scored apart: no vector is added to a token",
}


def stacks_of(model: Model) -> dict[str, Stack]:
    """Return the stacks by name, in the order they run."""
    if isinstance(model, Seq2Seq):
        return {"encoder": model.encoder, "decoder": model.decoder}
    assert isinstance(model, LM)
    return {"blocks": model.blocks}


def parts_of(model: Model) -> Iterator[tuple[str, Part]]:
    """Every part with the path it shows its values under; a part at several depths comes once for each."""
    for name, stack in stacks_of(model).items():
        for layer in range(len(stack)):
            for inner, module in stack[layer].named_modules():
                if isinstance(module, Part):
                    yield f"{name}.{layer}{'.' if inner else ''}{inner}", module


def mixer_of(part: Part) -> str | None:
    """Return how a part lets tokens reach each other; None if it looks at each alone."""
    for name, kinds in MIXERS:
        if isinstance(part, kinds):
            return name
    return {"softmax": "attention", "effective": "recurrence", None: None}[part.pattern_kind]


def window_of(part: Part) -> int | None:
    """Return how many tokens a part sees at most, its own included; None where there is no such bound."""
    if isinstance(part, Neighbours):
        return part.conv.kernel_size[0]
    if isinstance(part, GatedConv):
        return part.conv.width
    return part.window if isinstance(part, Attention) else None


def mixers_of(model: Model) -> list[dict[str, Any]]:
    """One row for each stack, way of mixing and window, with the paths of the parts that mix so."""
    rows: dict[tuple[str, str, int | None], list[str]] = {}
    for path, part in parts_of(model):
        by = mixer_of(part)
        if by is not None:
            rows.setdefault((path.partition(".")[0], by, window_of(part)), []).append(path)
    return [{"stack": s, "by": by, "window": w, "paths": paths} for (s, by, w), paths in rows.items()]


@dataclass(frozen=True)
class AttentionGroup(Result):
    """Layers that attend alike, such as decoder.cross: one row of thumbnails each."""

    also = ("title",)

    name: str
    stack: str
    layers: tuple[str, ...]
    kind: str
    causal: bool
    cross: bool
    queries: Side  # whose tokens label the rows: those read, or the words written
    keys: Side
    windows: tuple[int | None, ...] = ()  # of each layer: how many tokens it sees at most
    leaves_out: str = ""  # what the layer does beside its pattern

    @property
    def title(self) -> str:
        side = {"encoder": "source", "decoder": "target"}.get(self.stack, "")
        plain = f"{side} over source" if self.cross else f"{side} over itself".strip() if side else "self"
        return f"{plain}, {self.kind}" if self.name.endswith(f".{self.kind}") else plain


def attention_groups(model: Model) -> list[AttentionGroup]:
    """Return every part that has a pattern, by its stack, its word in the block and the pattern's kind.

    A hybrid's layers may have one word for parts of both kinds: then the kind is part of the group's name.
    """
    found: dict[tuple[str, str, str], list[tuple[str, Part]]] = {}
    for path, part in parts_of(model):
        if part.pattern_kind is not None:
            stack, _, *rest = path.split(".")
            found.setdefault((stack, ".".join(rest) or "look", part.pattern_kind), []).append((path, part))
    out, words = [], Counter((stack, word) for stack, word, _ in found)
    for (stack, word, kind), parts in found.items():
        path, part = parts[0]
        cross, has_target = attends_to_source(part), isinstance(model, Seq2Seq)
        name = f"{stack}.{word}" if words[stack, word] == 1 else f"{stack}.{word}.{kind}"
        out.append(AttentionGroup(
            name, stack, tuple(path for path, _ in parts), kind,
            not cross and (stack == "decoder" or (isinstance(model, LM) and model.causal)), cross,
            row_side(path, part, has_target=has_target), key_side(path, part, has_target=has_target),
            tuple(window_of(part) for _, part in parts), part.pattern_leaves_out,
        ))  # fmt: skip
    return out


def position_type(model: Model) -> str:
    """Return how the model knows where a token stands."""
    for embed in model.tables.values():
        if isinstance(embed.position, Sinusoidal | Learned):
            return "sinusoidal" if isinstance(embed.position, Sinusoidal) else "learned"
    for stack in stacks_of(model).values():
        if isinstance(stack.bias, ALiBi | BucketBias):
            return "alibi" if isinstance(stack.bias, ALiBi) else "buckets"
    parts = [part for _, part in parts_of(model)]
    if any(isinstance(p, DisentangledAttention) for p in parts):
        return "disentangled"
    if any(
        isinstance(p, LatentAttention) or (isinstance(p, Attention) and p.rotary is not None) for p in parts
    ):
        return "rotary"
    mixed = {mixer_of(part) for part in parts}
    order = {
        "recurrence": "recurrence", "state space": "state space", "delta rule": "delta rule",
        "gated linear attention": "decay",
        "convolution": "convolution",
    }  # fmt: skip
    return next((kind for by, kind in order.items() if by in mixed), "none")


def order_note(model: Model) -> str:
    """Return one line that says where the order of tokens comes from; "" where a figure shows it."""
    note = NOTES.get(position_type(model), "")
    parts = [part for _, part in parts_of(model)]
    short = [part.conv.width for part in parts if isinstance(part, Mamba | Mamba2 | GatedDeltaNet)]
    if short:
        note += f", and from a convolution over the last {short[0]} tokens"
    windows = [window_of(part) for _, part in parts_of(model) if mixer_of(part) == "convolution"]
    return note.format(window=windows[0]) if windows else note


def state_note(model: Model) -> str:
    """Return one line about what a model without visible states carries from token to token."""
    rows, name = mixers_of(model), model.family.name
    kinds = {row["by"] for row in rows}
    matrix = [by for by in ("linear attention", "gated linear attention") if by in kinds]
    if matrix:
        reason = f"carries a matrix for each head from token to token ({matrix[0]}), which is not shown here"
        return f"{name} {reason}; what it amounts to is drawn as its attention"
    if kinds == {"convolution"}:
        return (
            f"{name} carries no state: a layer sees {rows[0]['window']} tokens; layers and neurons are shown"
        )
    reason = "carries no state from token to token: attention reads the others themselves"
    return f"{name} {reason}; layers and neurons are shown"
