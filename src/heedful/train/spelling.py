"""A table of tokens in which words that are spelt alike learn from each other."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.core.errors import ConfigError
from heedful.models.base import Model

CONTINUES = "##"  # how WordPiece marks a piece that does not begin a word
ORDERS = (3, 4, 5)


def grams(token: str, orders: Sequence[int] = ORDERS) -> list[str]:
    """Return the n-grams of a token with its ends marked: "cat" → <ca cat at> <cat cat> <cat>"""
    begins = not token.startswith(CONTINUES)
    marked = "<" * begins + token.removeprefix(CONTINUES) + ">"
    return [marked[i : i + n] for n in orders for i in range(len(marked) - n + 1)]


def spelling(tokens: Sequence[str], buckets: int, orders: Sequence[int] = ORDERS) -> Tensor:
    """S (V, buckets), sparse: row v is the mean over the grams of token v, put into buckets by a hash."""
    groups = [grams(token, orders) for token in tokens]
    rows = [v for v, some in enumerate(groups) for _ in some]
    columns = [zlib.crc32(gram.encode()) % buckets for some in groups for gram in some]
    shares = [1 / len(some) for some in groups for _ in some]
    where = torch.tensor([rows, columns])
    size = (len(tokens), buckets)
    return torch.sparse_coo_tensor(where, torch.tensor(shares), size, check_invariants=True).coalesce()


class SpelledEmbedding(nn.Module):
    """E = W + S Z: one vector per token, and the mean of those its grams share

    (Bojanowski et al. 2017, arXiv 1607.04606, §3.2; theirs is a sum, which makes long words loud.)
    """

    def __init__(self, shares: Tensor, dim: int, std: float) -> None:
        super().__init__()
        self.register_buffer("shares", shares, persistent=False)
        self.grams = nn.Parameter(torch.randn(shares.shape[1], dim) * std)

    def forward(self, table: Tensor) -> Tensor:
        return table + torch.sparse.mm(self.shares, self.grams)


def check_spelling(model: Model, token: nn.Embedding, buckets: int) -> None:
    """Raise ConfigError for a model whose table cannot be learnt by its spelling."""
    if buckets < 1:
        raise ConfigError(f"`buckets={buckets}` must be at least 1")
    if model.tokenizer is None:
        raise ConfigError("this model has no tokenizer, so its tokens have no spelling", hint="give it one")
    if parametrize.is_parametrized(token):
        raise ConfigError("this table is already learned by spelling", hint="leave the inner `with` out")
    if any(p is token.weight for m in model.modules() if m is not token for p in m._parameters.values()):
        raise ConfigError(
            "the head of this model shares its table and would continue with W alone", hint="untie it"
        )
    if len(model.tokenizer) > token.num_embeddings:
        raise ConfigError(
            (f"the tokenizer has {len(model.tokenizer)} tokens and the table {token.num_embeddings} rows"),
            hint="give the model its own tokenizer",
        )


@contextmanager
def spell_embedding(model: Model, *, buckets: int = 40_000, std: float = 0.1) -> Iterator[None]:
    """Learn the token table of a model as E = W + S Z while a `with` lasts; afterwards E is a plain table.

    For small data: rare words, and pieces of unseen ones, learn from those that share their letters.
    The roles ([PAD], [MASK] …) have no spelling. A run in it takes no folder: save the model when it is over.
    """
    token, tokenizer = model.tables["tokens"].token, model.tokenizer
    check_spelling(model, token, buckets)
    names = [
        "" if name in tokenizer.roles.values() else name for name in tokenizer.tokens(range(len(tokenizer)))
    ]
    shares = spelling(names + [""] * (token.num_embeddings - len(names)), buckets)
    part = SpelledEmbedding(shares, token.embedding_dim, std).to(token.weight.device)
    parametrize.register_parametrization(token, "weight", part)
    try:
        yield
    finally:
        parametrize.remove_parametrizations(token, "weight", leave_parametrized=True)
