"""A model that predicts words in any order, by two streams (Yang et al. 2019, arXiv 1906.08237 §2.3).

To predict a word from those before it in some order, a position must know where it stands and not what. To
help predict later words, it must know both. So every position has two vectors: one of content, as usual, and
one that begins with a learned vector in the place of the word, and looks at the content of earlier positions.
Here the second vectors stand behind the first as further positions of one text. A mask says who sees whom,
and every layer is the same as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.models.base import LM, State
from heedful.models.calls import advance, check_beside, positions
from heedful.nn.context import Context, Mask, Watch

NEVER = 2**30  # the rank of a key that nobody sees


@dataclass(frozen=True)
class OrderMask(Mask):
    """A query sees the keys whose rank in the order lies below its own limit; both are (B, N)."""

    ranks: Tensor | None = None
    limits: Tensor | None = None

    @property
    def is_causal_only(self) -> bool:
        return False

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        assert self.ranks is not None
        assert self.limits is not None
        seen = self.ranks[:, None, None] < self.limits[:, None, :, None]
        return seen & super().dense(q_pos, k_pos)


class PermutedLM(LM):
    """An encoder that also predicts its words in a given order, and reads a text segment by segment."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, causal=False, **more)
        self.unknown = nn.Parameter(
            torch.zeros(self.embed.table.shape[1])
        )  # stands for a word to be predicted

    def in_order(
        self, tokens: Tensor, order: Tensor, *, valid: Tensor | None = None, types: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:  # fmt: skip
        """The vectors (B, T, D) from which each word is predicted, having seen those of lower `order`.

        `order` (B, T) is the rank of each position; where ranks are equal, none sees the other.
        """
        self.check(tokens, self.embed, valid)
        check_beside(tokens, order, "order")
        T, pos = tokens.shape[1], positions(valid, tokens.shape[1], tokens.device)
        twice = lambda t: None if t is None else torch.cat((t, t), 1)
        mask = OrderMask(
            valid=twice(valid), ranks=torch.cat((order, torch.full_like(order, NEVER)), 1),
            limits=torch.cat((order + 1, order), 1),
        )  # fmt: skip
        if watch is not None:
            watch.begin()
        plain = Context(pos, pos, Mask(valid=valid), valid_new=valid, watch=watch)
        content = self.embed(tokens, plain.at("embed"))
        both = torch.cat((content, self.unknown.to(content.dtype).expand_as(content)), 1)
        ctx = replace(
            plain,
            q_pos=pos.repeat(1, 2),
            k_pos=pos.repeat(1, 2),
            mask=mask,
            valid_new=twice(valid),
            types=twice(types),
        )
        hidden = self.blocks(both, ctx.at("blocks"))[:, T:]
        ctx.end()
        return hidden

    def read_on(self, tokens: Tensor, state: State) -> Tensor:
        """The vectors (B, T, D) of a further segment, which sees those before it: what `state` remembers."""
        ctx = advance(tokens, state)
        return self.decode(tokens, replace(ctx, mask=replace(ctx.mask, causal=False)), state.parts)
