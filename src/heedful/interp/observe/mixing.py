"""How the tokens of a sequence reach each other, and how a model knows their order.

A Transformer mixes tokens by attention, an RNN by its recurrence, a state space by its state. Attention alone
is blind to order, so it needs positions: added to the embedding, rotated into queries and keys, or added to
the scores. The functions here read this off the parts of a model and never from its name. Captions of figures
and pages come from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_integer
from heedful.interp.inputs import Result, Side, attends_to_source, key_side, row_side, stacks_of
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.attention.attentive import Decoding
from heedful.nn.attention.differential import DifferentialAttention
from heedful.nn.attention.disentangled import DisentangledAttention, Distances, Neighbours
from heedful.nn.attention.latent import LatentAttention
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.attention.relative import RelativeAttention
from heedful.nn.context import Context, Mask, Part
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, RoundedALiBi, Sinusoidal, frequencies
from heedful.nn.recurrent import Recurrence
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.linear_attention import (
    GatedConv,
    GatedLinearAttention,
    LinearAttention,
    Retention,
)
from heedful.nn.state_space.rwkv import TimeMix
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba

# The first that fits names how a part mixes tokens.
MIXERS: tuple[tuple[str, tuple[type[Part], ...]], ...] = (
    ("cross-attention", (CrossAttention,)),
    ("alignment", (Decoding,)),
    ("recurrence", (Recurrence,)),
    ("state space", (Mamba, Mamba2, S4)),
    ("delta rule", (GatedDeltaNet,)),
    ("gated linear attention", (GatedLinearAttention,)),
    ("linear attention", (LinearAttention,)),
    ("retention", (Retention,)),
    ("time mixing", (TimeMix,)),
    ("convolution", (GatedConv, Neighbours)),
    ("attention", (Attention, LatentAttention, DisentangledAttention, DifferentialAttention)),
)
# The first that a model has says how it knows where a token stands; else the way its tokens mix does.
POSITION_TYPES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("sinusoidal", (Sinusoidal,)), ("learned", (Learned,)), ("alibi", (ALiBi,)),
    ("disentangled", (DisentangledAttention,)), ("relative", (RelativeAttention,)),
    ("buckets", (BucketBias,)), ("rotary", (Rotary, LatentAttention)), ("fading", (TimeMix,)),
)  # fmt: skip
ORDER_OF_MIXERS = {
    "recurrence": "recurrence", "state space": "state space", "delta rule": "delta rule",
    "gated linear attention": "decay", "convolution": "convolution",
}  # fmt: skip
NOTES = {
    "recurrence": "order comes from its recurrence: each state is made from the one before",
    "state space": "order comes from its state: h_t is made from h_(t−1), linearly",
    "delta rule": "order comes from its memory: each token corrects what others wrote, and all fades",
    "decay": "order comes from forgetting: what was read before is multiplied by a forget gate at each token",
    "convolution": "order comes from its convolution: a layer sees {window} tokens in their order",
    "fading": "order comes from fading: at every token, a fixed share of what was read before is lost",
    "none": "no order: the same words in any order are the same",
    "relative": "the distance between query and key is scored: no vector is added to a token",
    "disentangled": "content and distance are scored apart: no vector is added to a token",
}


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
    leaves_out: str = ""  # what the layer does next to its pattern

    @property
    def title(self) -> str:
        side = {"encoder": "source", "decoder": "target"}.get(self.stack, "")
        plain = f"{side} over source" if self.cross else f"{side} over itself".strip() if side else "self"
        return f"{plain}, {self.kind}" if self.name.endswith(f".{self.kind}") else plain


def attention_groups(model: Model) -> list[AttentionGroup]:
    """Return every part that has a pattern, by its stack, its word in the block and the pattern's kind.

    A hybrid's layers may have one word for parts of both kinds: then the kind is part of the group's name.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, Part]]] = {}
    for path, part in parts_of(model):
        if part.pattern_kind is not None:
            stack, _, *rest = path.split(".")
            groups.setdefault((stack, ".".join(rest) or "look", part.pattern_kind), []).append((path, part))
    out, words = [], Counter((stack, word) for stack, word, _ in groups)
    for (stack, word, kind), parts in groups.items():
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
    parts = [part for _, part in parts_of(model)]
    told: list[object] = [embed.position for embed in model.tables.values()]
    told += [*(stack.bias for stack in stacks_of(model).values()), *parts]
    told += [getattr(part, name, None) for part in parts for name in ("position_bias", "rotary")]
    for kind, types in POSITION_TYPES:
        if any(isinstance(one, types) for one in told):
            return kind
    mixed = {mixer_of(part) for part in parts}
    return next((kind for by, kind in ORDER_OF_MIXERS.items() if by in mixed), "none")


def order_note(model: Model) -> str:
    """Return one line that says where the order of tokens comes from; "" where a figure shows it."""
    note = NOTES.get(position_type(model), "")
    parts = [part for _, part in parts_of(model)]
    short = [part.conv.width for part in parts if isinstance(part, Mamba | Mamba2 | GatedDeltaNet)]
    if short:
        more = f"from a convolution over the last {short[0]} tokens"
        note = f"{note}, and {more}" if note else f"order also comes {more}"
    windows = [window_of(part) for _, part in parts_of(model) if mixer_of(part) == "convolution"]
    return note.format(window=windows[0]) if windows else note


def state_note(model: Model) -> str:
    """Return one line about what a model without visible states carries from token to token."""
    rows, name = mixers_of(model), model.family.name
    kinds = {row["by"] for row in rows}
    matrix = [by for by in ("linear attention", "gated linear attention", "retention") if by in kinds]
    if matrix:
        reason = f"carries one matrix per head from token to token ({matrix[0]}), which is not shown here"
        return f"{name} {reason}. The Attention page shows its effect as weights."
    if "time mixing" in kinds:
        reason = "carries sums of keys and values that fade from token to token, which are not shown here"
        return f"{name} {reason}. The Attention page shows their effect as weights."
    if kinds == {"convolution"}:
        seen = rows[0]["window"]
        return f"{name} carries no state: a layer sees {seen} tokens. Below are its layers and neurons."
    reason = "carries no state from token to token, because attention reads the other tokens directly"
    return f"{name} {reason}. Below are its layers and neurons."


# The parts that tell a model where a token stands, as tables of numbers.


def position_formula(part: nn.Module | None) -> str:
    """Return the formula of a part that tells positions, with its own layout, first position and size."""
    start = getattr(part, "offset", 0)
    at = f"t + {start}" if start else "t"
    match part:
        case Learned():
            return f"p(t) = table[{at}]"
        case Sinusoidal():
            angle = f"{f'({at})' if start else at} / {part.base:g}^(2i/D)"
            sine, cosine = ("i", "i + D/2") if part.layout == "halves" else ("2i", "2i+1")
            return f"p(t, {sine}) = sin({angle}), p(t, {cosine}) = cos({angle})"
        case Rotary():
            return f"q_t → R_t q_t, k_s → R_s k_s; pair i turns by t · base^(−2i/{part.dim})"
        case RoundedALiBi():
            return "b_h(j) = m_h j / √K"
        case ALiBi():
            return "b_h(i, j) = −m_h (i − j)"
        case BucketBias():
            return "b_h(i, j) = table[bucket(j − i), h]"
    return ""


def position_parts(model: Model) -> dict[str, nn.Module]:
    """Map where it stands to each part that tells positions; of parts that compute alike the first.

    A table that is added to the embedding stands under its side (tokens, target), others under their path.
    """
    added = {side: embed.position for side, embed in model.tables.items() if embed.position is not None}
    kinds = Rotary | ALiBi | BucketBias | Distances
    scored = {name: part for name, part in model.named_modules() if isinstance(part, kinds)}
    first_alike: dict[tuple[Any, ...], tuple[str, nn.Module]] = {}
    for where, part in (added | scored).items():
        alike: tuple[Any, ...] = (id(part),)
        if isinstance(part, Sinusoidal):
            alike = (part.dim, part.base, part.layout)
        elif isinstance(part, Rotary):
            alike = ("rotary", part.dim, part.base, part.scaling)
        first_alike.setdefault(alike, (where, part))
    return dict(first_alike.values())


def main_part(model: Model) -> nn.Module | None:
    """Return the part to look at: the last table, else the last bias (a decoder's), else a rotation."""
    parts = position_parts(model).values()
    for kinds in (Learned | Sinusoidal, ALiBi | BucketBias, Rotary):
        matching = [part for part in parts if isinstance(part, kinds)]
        if matching:
            return matching[0] if kinds is Rotary else matching[-1]
    return None


def rotary_frequencies(rotary: Rotary, length: int) -> Tensor:
    """f_i (K/2,): the angle at position 1, scalings included."""
    return frequencies(rotary.dim, rotary.base, rotary.scaling, torch.tensor([[length]]))[0][0].float()


def rotary_note(model: Model) -> str:
    """Return what a table of angles leaves unsaid: which layers turn otherwise, which entries do not."""
    shown = main_part(model)
    if not isinstance(shown, Rotary):
        return ""
    layers: dict[float | None, list[str]] = {}
    entries: set[tuple[int, int]] = set()  # of a head: those turned, and all
    for path, part in parts_of(model):
        if isinstance(part, Attention):
            base = None if part.rotary is None else part.rotary.base
            layers.setdefault(base, []).append(path.split(".")[1])
            entries |= set() if part.rotary is None else {(part.rotary.dim, part.head_dim)}
    listed = lambda base: f"layer{'s' * (len(layers[base]) > 1)} {', '.join(layers[base])}"
    bases = [base for base in layers if base is not None]
    notes = [f"{listed(base)}: base {base:,.0f}" for base in bases] if len(layers) > 1 else []
    if None in layers:
        notes.append(f"{listed(None)}: no rotation")
    if len(bases) > 1:
        notes.append(f"the angles shown are those of base {shown.base:,.0f}")
    partial = [(dim, size) for dim, size in sorted(entries) if dim < size]
    notes += [f"the first {dim} of {size} entries of a head turn" for dim, size in partial]
    if shown.scaling is not None:
        notes.append("the frequencies are rescaled for longer texts")
    return "; ".join(notes)


@torch.no_grad()
def position_tensors(model: Model, length: int = 64) -> dict[str, Tensor]:
    """Return the numbers of `main_part` for the first positions, by name.

    A table gives its rows, their cosines and dot products; a bias what it adds to the scores, (H, T, T); a
    rotation its angles and what the mean pair leaves of a dot product at each distance.
    """
    check_integer("length", length, 2, 512)
    part = main_part(model)
    length = min(length, getattr(part, "context", None) or length)
    pos = torch.arange(length, device=model.device)[None]
    if isinstance(part, Learned | Sinusoidal):
        rows = part(pos)[0].float()
        unit = F.normalize(rows, dim=-1)
        return {"table": rows, "cosine": unit @ unit.T, "dot": rows @ rows.T}
    if isinstance(part, ALiBi | BucketBias):
        return {"bias": part(Context(pos, pos, Mask()))[0].float()}
    if isinstance(part, Rotary):
        angles = torch.arange(length)[:, None] * rotary_frequencies(part, length)
        return {"angles": angles, "decay": angles.cos().mean(-1)}
    return {}


def describe_positions(model: Model, length: int = 64) -> dict[str, Any]:
    """Describe a model's positions: their kind, formula and settings, and the shapes of the tensors."""
    kind, tensors, part = position_type(model), position_tensors(model, length), main_part(model)
    length = min(length, getattr(part, "context", None) or length)
    rotary = next((p for p in position_parts(model).values() if isinstance(p, Rotary)), None)
    at = torch.arange(min(length, 64))
    return {
        "type": kind, "length": length, "tensors": {name: list(t.shape) for name, t in tensors.items()},
        "slopes": part.slopes(torch.device("cpu")).tolist() if isinstance(part, ALiBi) else None,
        "buckets": part.bucket(at[None, :] - at[:, None]).tolist() if isinstance(part, BucketBias) else None,
        "frequencies": None if rotary is None else rotary_frequencies(rotary, length).tolist(),
        "base": getattr(rotary or part, "base", None), "note": order_note(model) or rotary_note(model),
        "formula": position_formula(part),
    }  # fmt: skip
