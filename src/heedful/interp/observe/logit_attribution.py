"""Direct logit attribution: how much each part adds to one logit by itself.

A logit is the product of a direction and the vector that the last layer hands on, and that vector is the sum
of what all parts added. The direction is carried back from the head through the norms, each frozen at the
scale it had in this run. Its product with what a part added is the part's share, and the shares add up to the
logit (Elhage et al. 2021). A share counts the direct path alone: a head that only helps later heads has a
share near 0, though patching shows that it matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    answer_id,
    output_matrix,
    position_of,
    reading,
    stack_of,
)
from heedful.models.base import Model, Seq2Seq, evaluation_mode
from heedful.nn.attention.attend import bend_scores
from heedful.nn.attention.multi_head import Attention, join_heads
from heedful.nn.block import Block, NamedParts, ParallelBlock, SandwichBlock
from heedful.nn.context import Part, Watch
from heedful.nn.head import Head, LMHead, MLMHead, SpanHead, TagHead, Transform
from heedful.nn.norm import RMSNorm, gain_and_shift
from heedful.nn.state_space.ssm import Widen
from heedful.nn.watch import matches

POST_NORM = (
    "Norms stand after the parts: a share is divided by every later norm as this run set it, so that it also "
    "depends on what came after."
)
OPAQUE = "{} adds to nothing: what came before it reaches the answer only through it, and has no share."
ACTIVATION = "The activation of the head is frozen: a share is multiplied by what it let through in this run."

CAPPED = "The soft cap of the logits is frozen: a share is multiplied by how much of its logit the cap left."


# What is read of a run: what was added, the scales of norms, and what heads said and looked at.
WATCHED = ("output", "**.output", "**norm.scale", "**.heads", "**.hidden", "**.pattern", "**.v")


@dataclass(frozen=True)
class LogitAttribution(Result):
    """The share of every part in a logit, or in the difference of two.

    `names` are parts and `values` their shares, which sum to `logit`: embed.token, blocks.3.attn and so on,
    and "bias" for the biases of norms and head. `heads` splits a part by its heads (the rest is its bias),
    `sources` each head by the token it looked at (heads, keys). `note` says what else is frozen.
    """

    also = ("total",)

    answer: int
    wrong: int | None
    position: int
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...]  # what cross-attention looks at
    names: tuple[str, ...]
    values: Tensor  # (parts,)
    heads: dict[str, Tensor]
    sources: dict[str, Tensor]
    logit: float
    note: str = ""

    @property
    def total(self) -> float:
        """The sum of the shares."""
        return float(self.values.sum())

    def __getitem__(self, name: str) -> float:
        """The share of a part: "blocks.3.attn", "bias"."""
        if name not in self.names:
            raise InputError(f"no part {name!r}", hint=f"there are {', '.join(self.names[:8])} …")
        return float(self.values[self.names.index(name)])

    def by_token(self) -> Tensor:
        """Return the share of every token (T,): what heads brought from it, and at `position` all else."""
        over_source = {path for path in self.sources if path.endswith("cross")}
        out = torch.zeros(len(self.tokens), dtype=self.values.dtype)
        moved = 0.0
        for path, values in self.sources.items():
            if path not in over_source and values.shape[1] == len(self.tokens):
                out += values.sum(0)
                moved += float(values.sum())
        out[self.position] += self.total - moved
        return out

    def top(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the parts, or heads where a part has them, with the largest shares."""
        split = {
            f"{path} head {h}": v for path, row in self.heads.items() for h, v in enumerate(row.tolist())
        }
        whole = {n: v for n, v in zip(self.names, self.values.tolist(), strict=True) if n not in self.heads}
        return sorted((split | whole).items(), key=lambda item: -abs(item[1]))[:count]


@torch.no_grad()
def logit_attribution(
    model: Model, text: Text, answer: int | str | None = None, wrong: int | str | None = None,
    position: int = -1, *, target: Text | None = None, watch: Watch | None = None,
) -> LogitAttribution:  # fmt: skip
    """Return what each part adds by itself to the logit of `answer`, or to its lead over `wrong`

    (Elhage et al. 2021; nostalgebraist 2020.) `position` is by default the last, and `answer` the most likely
    one. Only the direct path counts: what a part does through later parts is in their shares. Norms are
    frozen: each divides by the scale it had in this run. The shares sum to the logit for every block: parts
    side by side, experts, state spaces; where layers do not add up, as in an LSTM, the last has all.
    `watch` may change the run, as `without(model, heads)` does; a part whose heads it edits is not split by
    tokens.
    """
    given = reading(model, text, target)
    position = position_of(given.names, position)
    where, embed = stack_of(model)[0], "target_embed" if isinstance(model, Seq2Seq) else "embed"
    seen = Watch(f"{embed}.*", *(f"{where}.{name}" for name in WATCHED))
    with evaluation_mode(model):
        given.run(model, seen if watch is None else watch + seen)
        edited = [] if watch is None else [name for name, _ in watch.edits()]
        path = _DirectPath(model, given, seen, position, edited)
        path.start(answer, wrong)
        path.walk()
    return path.result()


class _DirectPath:
    """A direction on the residual stream, carried back from the head, and the shares found on the way.

    `edited` are names of values that were changed in the run.
    """

    def __init__(self, model: Model, given: Input, seen: Watch, position: int, edited: list[str]) -> None:
        self.model, self.given, self.seen, self.position, self.edited = model, given, seen, position, edited
        self.shares: dict[str, float] = {}
        self.heads: dict[str, Tensor] = {}
        self.sources: dict[str, Tensor] = {}
        self.notes: list[str] = []
        self.bias = 0.0

    def start(self, answer: int | str | None, wrong: int | str | None) -> None:
        """Set the direction before the head, and what its biases add."""
        head, (where, _) = _linear_head(self.model), stack_of(self.model)
        x = self._row(f"{where}.output")
        logits = _apply_head(head, x)
        self.answer = answer_id(self.model, answer, logits)
        self.wrong = None if wrong is None else answer_id(self.model, wrong, logits)
        choose = torch.zeros_like(logits)
        choose[self.answer] += 1
        if self.wrong is not None:
            choose[self.wrong] -= 1
        cap = head.softcap if isinstance(head, LMHead) else None
        bent = bend_scores(logits, cap)
        self.logit = float(bent.double() @ choose.double())
        if cap is not None:
            self.notes.append(CAPPED)
            choose = choose * torch.where(logits == 0, 1.0, bent / logits)
        first = head.transform if isinstance(head, TagHead | SpanHead) else head
        if isinstance(first, MLMHead | Transform):
            self.notes.append(ACTIVATION)
            z = first.dense(x)
            a = first.act(z)
            self.direction = choose
            self._through_module(_output_matrix(head), a)
            self._through_norm(first.norm, (a.double().var(unbiased=False) + first.norm.eps).sqrt())
            self.direction = self.direction * torch.where(z == 0, 0.0, a / z)
            self._through_module(first.dense, x)
            return
        self.direction = choose
        self._through_module(partial(_apply_head, head), x)

    def walk(self) -> None:
        """Go back through the stack to the embedding."""
        where, stack = stack_of(self.model)
        if stack.narrow is not None:
            self._through_module(stack.narrow, self._row(f"{where}.{len(stack) - 1}.output"))
        if stack.norm is not None:
            self._through_norm(stack.norm, self._row(f"{where}.norm.scale"))
        for i in reversed(range(len(stack))):
            block, path = stack[i], f"{where}.{i}"
            if not isinstance(block, Block | ParallelBlock):
                self.notes.append(OPAQUE.format(path))
                self._share(path, f"{path}.output")
                return
            self._through_block(block, path)
        self._through_embedding()

    def _through_block(self, block: NamedParts, path: str) -> None:
        for name in reversed(block.names):
            if isinstance(block, Block) and block.order == "post":
                self._through_norm(getattr(block, f"{name}_norm"), self._row(f"{path}.{name}_norm.scale"))
                if POST_NORM not in self.notes:
                    self.notes.append(POST_NORM)
            self._share(f"{path}.{name}", f"{path}.{name}.output")
            after = self.direction, self.bias
            if isinstance(block, SandwichBlock):  # heads speak before this norm, and the sum is after it
                post = block.get_submodule(f"{name}_post_norm")
                self._through_norm(post, self._row(f"{path}.{name}_post_norm.scale"))
            self._split_heads(block.part(name), f"{path}.{name}")
            self.direction, self.bias = after

    def _split_heads(self, part: Part, path: str) -> None:
        """Split what attention adds by its heads, and each of them by the token it looked at."""
        out = output_matrix(self.model, path)
        if out is None:
            return
        count, plain = cast(Attention, part).heads, not part.pattern_leaves_out
        joined = join_heads(self.seen[f"{path}.heads"]) if plain else self.seen[f"{path}.hidden"]
        row = joined[0, self.position]
        direction, _ = _pull_back(out, self.direction, row)
        per_head = direction.unflatten(0, (count, -1))  # (H, K)
        self.heads[path] = (per_head * row.double().unflatten(0, (count, -1))).sum(-1).cpu()
        if plain and not any(matches(f"{path}.heads", name) for name in self.edited):
            pattern = self.seen[f"{path}.pattern"][0, :, self.position].double()  # (H, S)
            v = self.seen[f"{path}.v"][0].double()  # (G, S, K)
            v = v.repeat_interleave(count // len(v), 0)
            self.sources[path] = (pattern * torch.einsum("hsk,hk->hs", v, per_head)).cpu()

    def _through_embedding(self) -> None:
        name = "target_embed" if isinstance(self.model, Seq2Seq) else "embed"
        embed = self.model.tables["target" if isinstance(self.model, Seq2Seq) else "tokens"]
        project = embed.project
        pieces = list(project) if isinstance(project, nn.Sequential) else [] if project is None else [project]
        pieces = [module for module in pieces if not isinstance(module, nn.Identity | Widen)]  # types alone
        if any(isinstance(m, nn.LayerNorm | RMSNorm) for m in pieces):
            self._share(name, f"{name}.output")  # a norm after a projection: its scale is not shown
            return
        for module in reversed(pieces):
            self._through_module(module, self._row(f"{name}.token"))
        if embed.norm is not None:
            self._through_norm(embed.norm, self._row(f"{name}.norm.scale"))
        self.direction = self.direction.double()
        terms = {
            word: f"{name}.{word}" for word in ("types", "position", "token") if f"{name}.{word}" in self.seen
        }
        for word, path in terms.items():
            scale = embed.scale if word == "token" else 1.0
            self.shares[path] = scale * float(self.direction @ self._row(path).double())

    def _share(self, part: str, value: str) -> None:
        self.shares[part] = float(self.direction.double() @ self._row(value).double())

    def _row(self, name: str) -> Tensor:
        """A value at the position; what is the same in all rows has one."""
        value = self.seen[name][0]
        return value[self.position if value.shape[0] > 1 else 0]

    def _through_module(self, module: object, x: Tensor) -> None:
        """direction · module(x) = (direction · W) · x + direction · b"""
        self.direction, constant = _pull_back(module, self.direction, x)
        self.bias += constant

    def _through_norm(self, norm: nn.Module, scale: Tensor) -> None:
        """direction · norm(x) = (γ direction / scale, centred) · x + direction · β"""
        if not isinstance(norm, nn.LayerNorm | RMSNorm):
            raise InputError(
                f"a {type(norm).__name__} cannot be frozen", hint="only LayerNorm and RMSNorm can"
            )
        d = self.direction.double()
        gain, shift = gain_and_shift(norm)
        self.bias += float(d @ shift.double()) if isinstance(shift, Tensor) else 0.0
        d = d * (gain.double() if isinstance(gain, Tensor) else gain) / scale.double()
        self.direction = d - d.mean() if isinstance(norm, nn.LayerNorm) else d

    def result(self) -> LogitAttribution:
        """Return the shares, from the first part to the last."""
        names = [*reversed(self.shares), "bias"]
        values = torch.tensor([*(self.shares[n] for n in names[:-1]), self.bias], dtype=torch.float64)
        order = lambda shares: dict(reversed(shares.items()))
        source = self.given.tokens if isinstance(self.model, Seq2Seq) else ()
        return LogitAttribution(
            self.answer, self.wrong, self.position, self.given.names, source, tuple(names), values,
            order(self.heads), order(self.sources), self.logit, " ".join(self.notes),
        )  # fmt: skip


def _linear_head(model: Model) -> Head:
    """Return the head that is linear in one position's vector; an error where the model has another."""
    head = cast(Head, model.head)
    if isinstance(head, TagHead | SpanHead):
        return head
    try:
        return head.words
    except InputError:
        raise InputError(
            f"a {head.kind!r} head is not a sum of shares: it pools or gates what it reads",
            hint="take a model that predicts words, tags or spans, or use activation_patching",
        ) from None


def _apply_head(head: Head, x: Tensor) -> Tensor:
    """The logits (C,) of one position's vector."""
    if isinstance(head, TagHead | SpanHead):
        features = x if head.transform is None else head.transform(x)
        return cast(Tensor, _output_matrix(head)(features))
    assert isinstance(head, LMHead | MLMHead)
    logits: Tensor = head.out(head.features(x))
    shift = getattr(head, "shift", None)
    return logits + shift if isinstance(shift, Tensor) else logits


def _output_matrix(head: Head) -> nn.Module:
    """The last matrix of a head that is a sum of shares."""
    if isinstance(head, TagHead | SpanHead):
        return head.tag if isinstance(head, TagHead) else head.span
    assert isinstance(head, LMHead | MLMHead)
    return head.out


def _pull_back(module: object, direction: Tensor, x: Tensor) -> tuple[Tensor, float]:
    """direction · W in float64 and direction · b of module(x) = W x + b, for any module that is affine."""
    run = cast(nn.Module, module)
    d = direction.to(x.dtype)
    with torch.enable_grad():
        leaf = torch.zeros_like(x).requires_grad_()
        value = run(leaf) @ d
        (slope,) = torch.autograd.grad(value, leaf)
    return slope.double(), float(value)
