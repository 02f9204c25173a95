"""How parts are joined: residual blocks, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.context import Context, Part, PartState
from heedful.nn.norm import show_norm, show_scale
from heedful.nn.state import StateGroup, child

MakeNorm = Callable[[], nn.Module]


class NamedParts(Part):
    """Parts under the names they were given by keyword, each with its norm and its state."""

    def __init__(self, norm: MakeNorm, dropout: float = 0.0, **parts: Part) -> None:
        super().__init__()
        self.dropout, self.names = dropout, tuple(parts)
        for name, part in parts.items():
            self.add_module(name, part)
            self.add_module(self.norm_name(name), norm())

    def part(self, name: str) -> Part:
        """The part called `name`."""
        return cast(Part, getattr(self, name))

    def new_state(self, batch: int, length: int) -> StateGroup:
        return StateGroup({name: self.part(name).new_state(batch, length) for name in self.names})

    def norm_name(self, name: str) -> str:
        """Return the name of the norm of the part called `name`."""
        return f"{name}_norm"

    def _run(self, name: str, x: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        """Return what the part called `name` adds."""
        here = ctx.at(name)
        added = self.part(name)(x, here, child(state, name))
        return here.see("output", F.dropout(added, self.dropout, self.training))


class Block(NamedParts):
    """x = x + part(norm(x)) for each part in turn (order "pre"), or x = norm(x + part(x)) (order "post")

    (Vaswani et al. 2017 §3.1, post; Baevski and Auli 2019, Radford et al. 2019, pre.) The keyword a part
    comes under is its name everywhere: as a module, in states, in checkpoints and when watched.
    Block(norm, attn=…, cross=…, ffn=…). Watched: input, attn_norm.{input,scale,output}, attn.output, which
    is added, after_attn, the sum that the next part finds, and so on; output.
    """

    def __init__(
        self, norm: MakeNorm, order: Literal["pre", "post"] = "pre", dropout: float = 0.0, **parts: Part
    ) -> None:
        super().__init__(norm, dropout, **parts)
        self.order = order

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        for name in self.names:
            norm, at_norm = getattr(self, self.norm_name(name)), ctx.at(self.norm_name(name))
            if self.order == "pre":
                x = x + self._run(name, show_norm(norm, x, at_norm), ctx, state)
            else:
                x = show_norm(norm, x + self._run(name, x, ctx, state), at_norm)
            x = x if name == self.names[-1] else ctx.see(f"after_{name}", x)
        return ctx.see("output", x)


class SandwichBlock(Block):
    """x = x + post(part(norm(x))) for each part in turn   (Ding et al. 2021, arXiv 2105.13290 §3.2)

    `post` makes the norm of a part's output. With nn.Identity as `norm` parts read x as it is: the norm is
    inside the sum and after the part (Liu et al. 2022, arXiv 2111.09883 §3.2).
    Watched besides: attn_post_norm.{input,scale,output} and so on; attn.output is what is added.
    """

    def __init__(self, norm: MakeNorm, post: MakeNorm, dropout: float = 0.0, **parts: Part) -> None:
        super().__init__(norm, "pre", dropout, **parts)
        for name in parts:
            self.add_module(f"{name}_post_norm", post())

    def _run(self, name: str, x: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        here, at_norm = ctx.at(name), ctx.at(f"{name}_post_norm")
        given = self.part(name)(x, here, child(state, name))
        normed = show_norm(self.get_submodule(f"{name}_post_norm"), given, at_norm)
        return here.see("output", F.dropout(normed, self.dropout, self.training))


class NormedResidualBlock(NamedParts):
    """n = norm(x),  x = n + part(n) for each part in turn: the sum begins with what the part reads

    (Shoeybi et al. 2019, `apply_residual_connection_post_layernorm`.) No path leads past the norms, so that
    what earlier layers added cannot be followed through the sum.
    """

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        for name in self.names:
            x = show_norm(getattr(self, self.norm_name(name)), x, ctx.at(self.norm_name(name)))
            x = x + self._run(name, x, ctx, state)
            x = x if name == self.names[-1] else ctx.see(f"after_{name}", x)
        return ctx.see("output", x)


class ParallelBlock(NamedParts):
    """x = x + Σ part(norm_part(x)): all parts read the same x   (Wang and Komatsuzaki 2021; PaLM §2)

    The norms are one and the same, called norm, or with `separate` one for each part, called attn_norm,
    ffn_norm (Black et al. 2022 §2.1).
    """

    def __init__(
        self, norm: MakeNorm, dropout: float = 0.0, *, separate: bool = False, **parts: Part
    ) -> None:
        super().__init__(norm, dropout)
        self.names, self.separate = tuple(parts), separate
        for name in self.norm_names:
            self.add_module(name, norm())
        for name, part in parts.items():
            self.add_module(name, part)

    def norm_name(self, name: str) -> str:
        return f"{name}_norm" if self.separate else "norm"

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The names of the norms, each once."""
        return tuple(dict.fromkeys(self.norm_name(name) for name in self.names))

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        normed = {name: show_norm(getattr(self, name), x, ctx.at(name)) for name in self.norm_names}
        for name in self.names:
            x = x + self._run(name, normed[self.norm_name(name)], ctx, state)
        return ctx.see("output", x)


class Stack(Part):
    """x = norm(block_L(… block_1(x)))

    `bias` is added to the scores of every layer and computed once (ALiBi, T5). `depth` lists which block
    stands at each depth, so that layers can share their weights (ALBERT): by default each block stands once.
    `narrow` is a matrix after the norm, where token vectors are narrower than the layers (Zhang et al. 2022).
    """

    def __init__(
        self,
        blocks: Sequence[Part],
        norm: nn.Module | None = None,
        *,
        narrow: nn.Module | None = None,
        bias: nn.Module | None = None,
        depth: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        for i, block in enumerate(blocks):
            self.add_module(str(i), block)
        self.norm, self.narrow, self.bias = norm, narrow, bias
        self.depth = tuple(range(len(blocks)) if depth is None else depth)

    def __len__(self) -> int:
        return len(self.depth)

    def __getitem__(self, layer: int) -> Part:
        return cast(Part, self.get_submodule(str(self.depth[layer])))

    def new_state(self, batch: int, length: int) -> StateGroup:
        return StateGroup({str(i): self[i].new_state(batch, length) for i in range(len(self))})

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        return self.run_from(0, x, ctx, state)

    def run_from(self, layer: int, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        """Return the output for an x given to the block at depth `layer`, without the blocks before it."""
        if self.bias is not None:
            ctx = replace(ctx, bias=ctx.see("bias", self.bias(ctx), keys=-1))
        for i in range(layer, len(self)):
            x = self[i](x, ctx.at(str(i)), child(state, str(i)))
        # The last norm's input is the last block's output, and its own output that of the stack.
        x = x if self.norm is None else show_scale(self.norm, x, ctx.at("norm"))
        return ctx.see("output", x if self.narrow is None else self.narrow(x))

    def finish(self, x: Tensor) -> Tensor:
        """narrow(norm(x)): what the head would be given if x came out of the last block."""
        x = x if self.norm is None else self.norm(x)
        return x if self.narrow is None else self.narrow(x)
