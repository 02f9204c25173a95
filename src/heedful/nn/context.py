"""What the parts of a model share: the Part signature, the Mask, the Context of one forward pass.

A part answers three questions: what do I transform (x), what do we share (ctx), what do I remember (state).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from heedful.nn.watch import Axes, Watch


class PartState(Protocol):
    """The memory of one part between steps: keys and values, a hidden state, or a group of those."""

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was (beam search)."""

    def crop(self, length: int) -> None:
        """Forget everything after the first `length` positions (speculative decoding)."""


class Part(nn.Module):
    """y = part(x, ctx, state): one equation of a paper.

    `x` is (B, T, D). A part that remembers nothing has no state; one that does makes its own.
    `pattern_kind` says what a part's `pattern` is: "softmax" (rows sum to 1, with a sink to less),
    "effective" (signed; what a recurrence amounts to), or None if it has none. pattern @ v = heads;
    `pattern_leaves_out` says what else than heads goes into the part's output matrix, for captions.
    """

    pattern_kind: Literal["softmax", "effective"] | None = None
    pattern_leaves_out: str = ""

    def new_state(self, batch: int, length: int) -> PartState | None:
        """An empty memory for `batch` rows, with room for about `length` positions."""
        return None

    def mixing_flops(self, length: int) -> int | None:
        """The FLOPs that a token spends on the others in a text of `length` tokens, for `heedful.count`.

        None lets it estimate them from the state: each remembered number is multiplied and added once, one of
        a recurrent state is also updated.
        """
        return None

    def state_numbers(self, length: int) -> dict[str, int] | None:
        """How many numbers a part remembers of `length` tokens, by what they grow with, for `heedful.count`:
        "token", "source" (tokens of an encoder) or "fixed". None lets it try the part out.
        """
        return None

    def initialise(self) -> None:
        """Set first weights that are not plain normal ones; most parts have none."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        raise NotImplementedError

    def __call__(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        return super().__call__(x, ctx, state)


@dataclass(frozen=True)
class Mask:
    """Who may look at whom, as a description: a backend decides whether to build the matrix.

    keep(i, j) = valid[j]  and  (not causal or j ≤ i)  and  |i − j| < window  and  document[i] = document[j]

    The `first` tokens of a text are within every window, and everything is within theirs.
    """

    causal: bool = False
    window: int | None = None
    valid: Tensor | None = None  # (B, S), False on padding
    q_documents: Tensor | None = None  # (B, T)
    k_documents: Tensor | None = None  # (B, S)
    first: int = 0

    @property
    def is_causal_only(self) -> bool:
        """True if the rule is causality alone, or nothing at all."""
        return self.valid is None and self.window is None and self.k_documents is None

    def columns(self, span: slice) -> Mask:
        """The rule for some of the keys."""
        cut = lambda t: None if t is None else t[:, span]
        return replace(self, valid=cut(self.valid), k_documents=cut(self.k_documents))

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The matrix (B or 1, 1, T, S), True where the query may look at the key."""
        i, j = q_pos[:, None, :, None], k_pos[:, None, None, :]
        keep = (j <= i) if self.causal else torch.ones_like(i == j)
        if self.window is not None:
            near = (i - j).abs() < self.window
            keep = keep & (near | (torch.minimum(i, j) < self.first) if self.first else near)
        if self.valid is not None:
            keep = keep & self.valid[:, None, None, :]
        if self.q_documents is not None and self.k_documents is not None:
            keep = keep & (self.q_documents[:, None, :, None] == self.k_documents[:, None, None, :])
        return keep


@dataclass(frozen=True)
class Context:
    """The values that all layers of one pass share. Passed along: two passes may run on one model at once."""

    q_pos: Tensor  # (B or 1, T) positions of the queries, counted in valid tokens
    k_pos: Tensor  # (B or 1, S) positions of the keys, those remembered included
    mask: Mask
    past: int | Tensor = 0  # how many positions the state holds; (B,) on the device if it is static
    valid_new: Tensor | None = None  # (B, T) False where x itself is padding
    fresh: Tensor | None = None  # (B, T) True where a packed document starts: recurrent parts forget there
    types: Tensor | None = None  # (B, T) the sentence or segment of each token of x
    # The tokens of each query's prompt or document, (B, 1) or (B, T). None: this pass reads the whole text.
    text_length: int | Tensor | None = None
    bias: Tensor | None = None  # (B or 1, H, T, S) added to scores
    memory: Tensor | None = None  # (B, S', D) what an encoder made
    memory_mask: Mask | None = None
    watch: Watch | None = None
    path: str = ""
    backend: str = "auto"
    in_order: bool = True  # whether keys stand as in the text; those of a window stand in its slots
    memo: dict[tuple[int, int], tuple[Tensor, tuple[Tensor, Tensor]]] = field(default_factory=dict)

    @property
    def length(self) -> Tensor:
        """(B or 1, 1 or T): how many tokens the text of each query has so far; padding is none."""
        if self.text_length is None:
            return self.q_pos.amax(-1, keepdim=True) + 1
        if isinstance(self.text_length, int):
            return (self.q_pos + 1).clamp(min=self.text_length)
        return torch.maximum(self.q_pos + 1, self.text_length)

    def once(
        self, maker: nn.Module, pos: Tensor, make: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Two tables that a module makes of `pos`, once per pass for all layers that share the module."""
        if torch.compiler.is_compiling():  # the compiler shares common expressions by itself
            return make()
        key = (id(maker), id(pos))
        if key not in self.memo:  # `pos` is kept with its tables, so that its id stays its own
            self.memo[key] = pos, make()
        return self.memo[key][1]

    def at(self, name: str) -> Context:
        """This context inside the child called `name`. Costs nothing while nobody watches."""
        if self.watch is None:
            return self
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def see(self, name: str, value: Tensor, positions: int | None = -2, keys: int | None = None) -> Tensor:
        """Show `value` to the watcher under this path; what comes back is used from here on.

        `positions` is the axis that runs over tokens (of a pattern: the queries), counted from the end, as
        (B, T, D) and (B, H, T, K) have it; None if there is none. `keys` is the one over what is looked at.
        """
        if self.watch is None:
            return value
        axes = Axes(positions, keys, self.valid_new, self.in_order)
        return self.watch.show(f"{self.path}.{name}", value, axes)

    def watches(self, *names: str) -> bool:
        """Whether somebody wants one of these values of this part: then it must be computed openly."""
        if self.watch is None:
            return False
        paths = [f"{self.path}.{name}" for name in names]
        self.watch.seen.update(paths)
        return any(map(self.watch.wants, paths))

    def withhold(self, name: str, reason: str, hint: str) -> None:
        """Tell the watcher that this part cannot show `name` in this pass."""
        if self.watch is not None:
            self.watch.withhold(f"{self.path}.{name}", reason, hint)

    def end(self) -> None:
        """End the pass: an error if a name was watched or edited that did not come."""
        if self.watch is not None:
            self.watch.check()
