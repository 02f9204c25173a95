"""What stands on top: from hidden states (B, T, D) to logits.

A model without a head has one that raises. Each head names its matrices differently, so that one table of
names serves every head of a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, InputError
from heedful.nn.attention.attend import bend_scores
from heedful.nn.context import Context
from heedful.nn.ffn import Activation

POOLINGS = ("mean", "first", "last", "max")


class Head(nn.Module):
    """logits = head(hidden, ctx). `kind` is the word a config uses for it.

    `positions` is the axis of the logits that runs over tokens, counted from the end; None if the head gives
    one answer for the whole text.
    """

    kind = "none"
    positions: int | None = -2

    def keep(self, unread: nn.Module) -> Head:
        """Hold the parts of a checkpoint that this model does not read, so that saving gives them back."""
        self.add_module("kept", unread)
        return self

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        raise NotImplementedError

    def predict(self, x: Tensor, ctx: Context) -> Tensor:
        """The logits, shown to the watcher: with them a pass ends."""
        logits = ctx.at("head").see("logits", self(x, ctx), self.positions)
        ctx.end()
        return logits

    def tie(self, table: nn.Parameter) -> None:
        """Use the embedding's table as output matrix, if this head does."""

    @property
    def words(self) -> WordHead:
        """The part of this head that speaks of words."""
        raise InputError(
            f"a {self.kind!r} head predicts no words",
            hint="load or build the model with a language-model head",
        )


def pool_tokens(x: Tensor, valid: Tensor | None, mode: str) -> Tensor:
    """Return the mean, first, last or max of x over the valid tokens, (B, T, D) → (B, D)."""
    if mode in ("first", "last"):
        if valid is None:
            return x[:, 0 if mode == "first" else -1]
        at = valid.int().argmax(1) if mode == "first" else x.shape[1] - 1 - valid.flip(1).int().argmax(1)
        return x[torch.arange(x.shape[0], device=x.device), at]
    if valid is None:
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    keep = valid[..., None]
    if mode == "max":
        return x.masked_fill(~keep, -float("inf")).amax(1)
    return (x * keep).sum(1) / keep.sum(1).clamp(min=1)


class NoHead(Head):
    """Nothing: the model encodes. It may keep a pooler that its checkpoint has."""

    def __init__(self, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        raise InputError(
            "this model has no head and gives no logits",
            hint="load one that has a head, or take the vectors of this one: model.encode, heed embed",
        )


class WordHead(Head):
    """A head whose matrix `out` has a row for each word: the embedding's own table if tied."""

    out: nn.Linear
    tied: bool

    def tie(self, table: nn.Parameter) -> None:
        if self.tied:
            self.out.weight = table

    @property
    def words(self) -> WordHead:
        return self

    def features(self, x: Tensor) -> Tensor:
        """Return what the output matrix is multiplied with."""
        raise NotImplementedError


class LMHead(WordHead):
    """u = scale · x Eᵀ (+ b), E the embedding's own table if tied   (Press and Wolf 2017)

    `softcap` c keeps logits within ±c: c tanh(u / c)   (Gemma Team 2024, arXiv 2408.00118).
    `shift` is a bias that is stored with the weights but was never trained (BART, Marian).
    """

    kind = "lm"

    def __init__(
        self, dim: int, vocab: int, *, tied: bool = False, bias: bool = False, shift: bool = False,
        scale: float = 1.0, softcap: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out = nn.Linear(dim, vocab, bias=bias)
        self.tied, self.scale, self.softcap = tied, scale, softcap
        self.register_buffer("shift", torch.zeros(vocab) if shift else None)

    def features(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """The logits of hidden states."""
        products: Tensor = self.out(self.features(x))
        return bend_scores(
            products + self.shift if isinstance(self.shift, Tensor) else products, self.softcap
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.logits(x)


class PlainMLMHead(LMHead):
    """u = x Eᵀ (+ b) of a masked word, without a matrix and a norm before it   (Boizard et al. 2025)"""

    kind = "mlm"


class MLMHead(WordHead):
    """u = norm(act(dense x)) Eᵀ + b   (Devlin et al. 2019, their released code)

    `bias` is that of the matrix before the norm, `out_bias` is b. `spare` is a second bias that files with an
    untied matrix carry besides b; nothing reads it.
    """

    kind = "mlm"

    def __init__(
        self, dim: int, vocab: int, act: Activation, *, table_dim: int | None = None, eps: float = 1e-12,
        tied: bool = True, spare: bool = False, bias: bool = True, norm_bias: bool = True,
        out_bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        table_dim = table_dim or dim
        self.dense = nn.Linear(dim, table_dim, bias=bias)
        self.norm = nn.LayerNorm(table_dim, eps=eps, bias=norm_bias)
        self.out = nn.Linear(table_dim, vocab, bias=out_bias)
        self.act, self.tied = act, tied
        self.register_buffer("spare", torch.zeros(vocab) if spare else None)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.out(ctx.at("head").see("features", self.features(x)))


class DecoderMLMHead(MLMHead):
    """The same for the next word: a decoder with an encoder's head   (Rothe et al. 2020, arXiv 1907.12461)"""

    kind = "lm"


class Pooler(nn.Module):
    """norm(act(dense x₀)): a vector for the whole sequence, from its first token   (Devlin et al. 2019)

    `token` picks another one: a decoder's last has seen all others (Lewis et al. 2020 §3.1). Few have a norm.
    """

    def __init__(
        self, dim: int, act: Activation = torch.tanh, dropout: float = 0.0, token: str = "first", *,
        bias: bool = True, norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dense = nn.Linear(dim, dim, bias=bias)
        self.act, self.dropout, self.token, self.norm = act, dropout, token, norm

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        picked = F.dropout(pool_tokens(x, ctx.valid_new, self.token), self.dropout, self.training)
        pooled: Tensor = self.act(self.dense(picked))
        return pooled if self.norm is None else self.norm(pooled)


class Transform(nn.Module):
    """norm(act(dense x)) at every position, before a head's own matrix   (Warner et al. 2024, their code)"""

    def __init__(self, dim: int, act: Activation, norm: nn.LayerNorm, *, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim, bias=bias)
        self.act, self.norm = act, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))


class PooledTokens(nn.Module):
    """x at the last token, which has seen all others under a causal mask, or its mean over all tokens

    (GPT §3.2.) `mode` is last, or mean for encoders none of whose positions has seen all others. CLIP's image
    encoder has its last norm here, after the choice of a token.
    """

    def __init__(self, mode: str, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.mode, self.norm = mode, norm

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled = pool_tokens(x, ctx.valid_new, self.mode)
        return pooled if self.norm is None else self.norm(pooled)


class ClassifyHead(Head):
    """(B, C): W pool(x) + b, a label for the sequence"""

    kind = "classify"
    positions = None

    def __init__(
        self, pool: nn.Module, dim: int, labels: int, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.pool, self.dropout = pool, dropout
        self.label = nn.Linear(dim, labels, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled = ctx.at("head").see("pooled", self.pool(x, ctx), positions=None)
        return self.label(F.dropout(pooled, self.dropout, self.training))


class ProjectHead(Head):
    """(B, P): W pool(x), a vector in a space that another model shares   (Radford et al. 2021 §2.3)"""

    kind = "project"
    positions = None

    def __init__(self, pool: nn.Module, dim: int, size: int) -> None:
        super().__init__()
        self.pool = pool
        self.project = nn.Linear(dim, size, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.project(ctx.at("head").see("pooled", self.pool(x, ctx), positions=None))


class ContrastHead(Head):
    """(A, B): e^s · cos(a, b) of every vector a with every vector b   (Radford et al. 2021, figure 3)

    s is learned; it begins with e^s = 1 / 0.07.
    """

    kind = "contrast"
    positions = None

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(-math.log(0.07)))

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the logits of vectors (A, P) and (B, P)."""
        return self.scale.exp() * (F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT)


class SentenceHead(Head):
    """(B, C): W v/‖v‖ + b, v = pool(x): a label for the sequence, read off its sentence vector"""

    kind = "classify"
    positions = None

    def __init__(self, dim: int, labels: int, pooling: str = "mean") -> None:
        super().__init__()
        check_choice("classifier_pooling", pooling, POOLINGS, ConfigError)
        self.linear = nn.Linear(dim, labels)
        self.pooling = pooling

    def vectors(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """v/‖v‖, (B, D): what the linear layer reads."""
        return F.normalize(pool_tokens(x, valid, self.pooling), dim=-1)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        vector = ctx.at("head").see("pooled", self.vectors(x, ctx.valid_new), positions=None)
        return self.linear(vector)


class TagHead(Head):
    """(B, T, C): W x + b, a label for every token; x may be transformed before"""

    kind = "tag"

    def __init__(
        self, dim: int, labels: int, *, dropout: float = 0.0, transform: Transform | None = None
    ) -> None:
        super().__init__()
        self.transform = transform
        self.tag = nn.Linear(dim, labels)
        self.dropout = dropout

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.transform is not None:
            x = ctx.at("head").see("features", self.transform(x))
        return self.tag(F.dropout(x, self.dropout, self.training))


class SpanHead(Head):
    """(B, T, 2): scores of being the first and the last token of the answer   (Devlin et al. 2019 §4.2)"""

    kind = "span"

    def __init__(self, dim: int, *, transform: Transform | None = None) -> None:
        super().__init__()
        self.transform = transform
        self.span = nn.Linear(dim, 2)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.transform is not None:
            x = ctx.at("head").see("features", self.transform(x))
        return self.span(x)


class NextHead(Head):
    """(B, 2): does the second sentence follow (0) or not (1)?   (Devlin et al. 2019 §3.1)"""

    kind = "next"
    positions = None

    def __init__(self, pool: nn.Module, dim: int) -> None:
        super().__init__()
        self.pool = pool
        self.next = nn.Linear(dim, 2)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.next(ctx.at("head").see("pooled", self.pool(x, ctx), positions=None))


class PretrainHead(Head):
    """The masked-word logits; `next` also gives those of sentence order   (Devlin et al. 2019 §3.1)"""

    kind = "pretrain"

    def __init__(self, mlm: MLMHead, next: NextHead) -> None:
        super().__init__()
        self.mlm, self.next = mlm, next

    def tie(self, table: nn.Parameter) -> None:
        self.mlm.tie(table)

    @property
    def words(self) -> MLMHead:
        return self.mlm

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.mlm(x, ctx)


class DetectHead(Head):
    """(B, T): w·act(dense x) + b, was this token replaced?   (ELECTRA §2)"""

    kind = "detect"
    positions = -1

    def __init__(self, dim: int, act: Activation) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.replaced = nn.Linear(dim, 1)
        self.act = act

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        features = ctx.at("head").see("features", self.act(self.dense(x)))
        return self.replaced(features).squeeze(-1)


def choose_head(kind: str, **makers: Callable[[], Head]) -> Head:
    """The head a config asks for, made now; an error that lists the others if there is none of that kind."""
    if kind not in makers:
        raise ConfigError("is not one this model has", argument="head", value=kind, allowed=makers)
    return makers[kind]()
