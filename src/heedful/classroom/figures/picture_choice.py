"""Which layer, head and row a picture of a model shows: as asked for, else found by one rule.

The rule takes the head with the strongest look from the row that tells most. The word it looks at is not
itself, not next to it, not special, and not the first of a text read from left to right (idle heads look
there). That row is the last token of a decoder, the mask of an encoder, and otherwise the row of that
strongest look. An encoder-decoder is shown where it looks at its source, a mixture of experts in a layer that
has some. Where every channel is a head (a state space), the last layer is searched alone; a model that
attends to nothing is shown at its last layer that carries a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.inputs import Input, part_at, position_of, stack_of, stacks_of
from heedful.interp.observe.attention import Pattern, shares
from heedful.interp.observe.mixing import AttentionGroup, attention_groups, parts_of
from heedful.interp.observe.prediction import default_position, is_causal, special_ids
from heedful.interp.observe.recurrent_states import recurrent_parts
from heedful.models.base import Model
from heedful.nn.moe import MoE
from heedful.nn.state_space.ssm import S4, Mamba

Candidates = tuple[str, int, list[str]]  # a stack, a layer of it, the paths of the parts to search


@dataclass(frozen=True)
class HeadChoice:
    """The layer, the path of the part that attends in it (or the layer's own), its head and the row shown."""

    stack: str
    layer: int
    path: str
    head: int | None
    row: int


def choose_layer_and_head(
    model: Model, inputs: Input, candidates: Candidates, patterns: Mapping[str, Pattern], head: int | None,
    row: int | str | None,
) -> HeadChoice:  # fmt: skip
    """Return what is asked for; what is None is found by the rule of this module among the candidates."""
    stack, number, paths = candidates
    if paths:
        searched = [patterns[f"{path}.pattern"] for path in paths]
        name, head, at = strongest_look(model, inputs, searched, head, row)
        path = name.removesuffix(".pattern")
        return HeadChoice(path.split(".")[0], int(path.split(".")[1]), path, head, at)
    if head is not None:
        raise InputError(f"`head={head}`: layer {number} of the {stack} has no heads", hint="leave it out")
    names = inputs.tokens if stack == "encoder" else inputs.names
    at = default_position(model, inputs) if stack != "encoder" else len(names) - 1
    return HeadChoice(
        stack, number, f"{stack}.{number}", None, at if row is None else position_of(names, row)
    )


def candidate_parts(model: Model, layer: int | str | None) -> Candidates:
    """Return the stack and the number of a layer, and the parts to search: those of the layer, or of all.

    Where every channel is a head, the last part is searched alone: all their patterns would fill the memory.
    """
    groups, stacks = attention_groups(model), stacks_of(model)
    main_stack = stack_of(model)[0]
    if layer is None:
        groups = over_source([g for g in groups if g.stack == main_stack])
        paths = [path for g in groups for path in g.layers]
        expert_layers = {path.rpartition(".")[0] for path, part in parts_of(model) if isinstance(part, MoE)}
        paths = [path for path in paths if path.rpartition(".")[0] in expert_layers] or paths
        carrying = [part.path for part in recurrent_parts(model) if part.path.startswith(main_stack)]
        last = [f"{main_stack}.{len(stacks[main_stack]) - 1}", *carrying, *paths][-1]
        stack, number = main_stack, last.split(".")[1]
    else:
        path = f"{main_stack}.{layer}" if isinstance(layer, int) else layer.removesuffix(".pattern")
        stack, _, inner = path.partition(".")
        number = inner.partition(".")[0]
        if stack not in stacks or not number.isdigit() or int(number) >= len(stacks[stack]):
            layers = ", ".join(f"{name}.0 … {name}.{len(s) - 1}" for name, s in stacks.items())
            raise InputError(f"`layer={layer!r}` is not a layer of this model", hint=f"there are {layers}")
        part_at(model, path)
        inside = lambda part: part == path or part.startswith(f"{path}.")
        groups = over_source([g for g in groups if any(map(inside, g.layers))])
        paths = [part for g in groups for part in g.layers if inside(part)]
    if paths and isinstance(part_at(model, paths[-1]), S4 | Mamba):
        paths = paths[-1:]
    return stack, int(number), paths


def over_source(groups: list[AttentionGroup]) -> list[AttentionGroup]:
    """Return the groups that look at a source, if there are some; else all."""
    return [g for g in groups if g.cross] or groups


def strongest_look(
    model: Model, inputs: Input, patterns: Sequence[Pattern], head: int | None, row: int | str | None
) -> tuple[str, int, int]:
    """Return the pattern, the head and the row with the greatest share on a telling key."""
    best: tuple[float, str, int, int] | None = None
    for pattern in patterns:
        check_head(pattern.name, head, pattern.heads)
        heads = range(pattern.heads) if head is None else [head]
        rows = telling_rows(model, inputs, pattern) if row is None else [position_of(pattern.queries, row)]
        size = shares(pattern.values[list(heads)][:, rows]).cpu() * telling_keys(model, pattern)[rows]
        at = int(size.argmax())
        h, i = divmod(at // size.shape[2], len(rows))
        candidate = (float(size.flatten()[at]), pattern.name, list(heads)[h], rows[i])
        best = candidate if best is None or candidate[0] > best[0] else best
    assert best is not None
    return best[1:]


def clearest_head(model: Model, patterns: Sequence[Pattern]) -> tuple[Pattern, int]:
    """Return the pattern and head in which each word gives most of its weight to one other word."""
    best: tuple[float, Pattern, int] | None = None
    for pattern in patterns:
        T, S = pattern.values.shape[1:]
        rows = torch.tensor([is_word(model, name) for name in pattern.queries])
        keys = torch.tensor([is_word(model, name) for name in pattern.keys]).expand(T, S)
        if not pattern.cross:
            keys = keys & ~torch.eye(T, S, dtype=torch.bool)
            keys = keys & (torch.arange(S) > 0) if is_causal(model) else keys
        largest = (shares(pattern.values).cpu() * keys).amax(-1)  # (H, T)
        means = largest[:, rows if rows.any() else torch.ones(T, dtype=torch.bool)].mean(-1)
        head = int(means.argmax())
        best = (float(means[head]), pattern, head) if best is None or means[head] > best[0] else best
    assert best is not None
    return best[1:]


def check_head(name: str, head: int | None, count: int) -> None:
    """One clear error for a head that a layer has not."""
    if head is not None and not 0 <= head < count:
        raise InputError(f"`head={head}` is outside 0 … {count - 1} of {name}", hint="choose one of them")


def telling_rows(model: Model, inputs: Input, pattern: Pattern) -> list[int]:
    """Return the last token of a decoder, the mask of an encoder; else every row that is a word."""
    ids, mask = inputs.ids[0].tolist(), None if model.tokenizer is None else model.tokenizer.mask
    own_tokens = not pattern.cross and not pattern.name.startswith("encoder")
    if own_tokens and (is_causal(model) or mask in ids):
        return [default_position(model, inputs)]
    words = [i for i, name in enumerate(pattern.queries) if is_word(model, name)]
    return words or list(range(len(pattern.queries)))


def telling_keys(model: Model, pattern: Pattern) -> Tensor:
    """Return (T, S): 1 where the key is a word and, over oneself, neither the row itself nor next to it, nor
    the first of a decoder. A row that has no such key counts them all.
    """
    T, S = pattern.values.shape[1:]
    counts = torch.tensor([is_word(model, name) for name in pattern.keys]).expand(T, S)
    if not pattern.cross:
        counts = counts & ((torch.arange(T)[:, None] - torch.arange(S)).abs() > 1)
        counts = counts & (torch.arange(S) > 0) if is_causal(model) else counts
    visible = counts & (pattern.values != 0).any(0).cpu()
    return torch.where(visible.any(-1, keepdim=True), counts, True).double()


def is_word(model: Model, name: str) -> bool:
    """Return whether a token stands for text, and is more than punctuation or one Latin letter."""
    if model.tokenizer is not None and model.tokenizer.id(name) in special_ids(model):
        return False
    letters = [letter for letter in name if letter.isalnum()]
    return len(letters) > 1 or not all(letter.isascii() and letter.isalpha() for letter in letters)
