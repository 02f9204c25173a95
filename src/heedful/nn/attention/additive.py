"""Scores e(q, m_j) of a decoder's state q against each vector m_j of a memory: attention before 2017.

Each is a class with two methods: `keys` is what can be computed once per source, `forward` what a step adds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError


class Score(nn.Module):
    """e_j = score(q, keys_j), keys = score.keys(memory)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__()
        self.query_dim, self.memory_dim, self.dim = query_dim, memory_dim, dim

    def keys(self, memory: Tensor) -> Tensor:
        """The part of the score that the memory (B, S, M) gives alone."""
        raise NotImplementedError

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, S) from a query (B, Q) and the keys of the memory."""
        raise NotImplementedError


class Additive(Score):
    """e_j = vᵀ tanh(W q + U m_j)   (Bahdanau et al. 2015, A.1.2); U m_j does not depend on q"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.q = nn.Linear(query_dim, dim, bias=False)
        self.k = nn.Linear(memory_dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        out: Tensor = self.k(memory)  # (B, S, A)
        return out

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        score: Tensor = self.v(torch.tanh(self.q(query)[:, None] + keys))
        return score[..., 0]


class Dot(Score):
    """e_j = qᵀ m_j   (Luong et al. 2015, eq. 8, dot)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        if query_dim != memory_dim:
            raise ConfigError(
                f"the dot score needs states and memory of one size, got {query_dim} and {memory_dim}",
                hint="use the general score",
            )

    def keys(self, memory: Tensor) -> Tensor:
        return memory

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.einsum("bq,bsq->bs", query, keys)


class General(Score):
    """e_j = qᵀ W m_j   (Luong et al. 2015, eq. 8, general)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.k = nn.Linear(memory_dim, query_dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        out: Tensor = self.k(memory)  # (B, S, Q)
        return out

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.einsum("bq,bsq->bs", query, keys)


class Concat(Score):
    """e_j = vᵀ tanh(W [q ; m_j])   (Luong et al. 2015, eq. 8, concat)

    W [q ; m] = W₁ q + W₂ m, so this is `Additive` with one matrix in place of two.
    """

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.w = nn.Linear(query_dim + memory_dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return memory @ self.w.weight[:, self.query_dim :].t()  # (B, S, A)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        score: Tensor = self.v(torch.tanh((query @ self.w.weight[:, : self.query_dim].t())[:, None] + keys))
        return score[..., 0]


SCORES: dict[str, type[Score]] = {"additive": Additive, "dot": Dot, "general": General, "concat": Concat}
