"""The four scores of 2015 against their equations, vector by vector."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.core.errors import ConfigError
from heedful.nn.attention.attentive import SCORES, Additive, Concat, Dot, General, Score

B, S, Q, A = 2, 5, 4, 6

EQUATIONS: dict[str, Callable[..., Tensor]] = {
    "additive": lambda s, q, m: s.v.weight[0] @ torch.tanh(s.q.weight @ q + s.k.weight @ m),
    "dot": lambda s, q, m: q @ m,
    "general": lambda s, q, m: q @ s.k.weight @ m,
    "concat": lambda s, q, m: s.v.weight[0] @ torch.tanh(s.w.weight @ torch.cat((q, m))),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_its_equation(name: str) -> None:
    M = Q if name == "dot" else 3
    score, query, memory = SCORES[name](Q, M, A), torch.randn(B, Q), torch.randn(B, S, M)
    got = score(query, score.keys(memory))
    assert got.shape == (B, S)
    for b in range(B):
        for j in range(S):
            assert (got[b, j] - EQUATIONS[name](score, query[b], memory[b, j])).abs() <= 1e-6


@pytest.mark.parametrize("kind", [Additive, Dot, General, Concat])
def test_all_scores_have_one_signature(kind: type[Score]) -> None:
    score = kind(Q, Q, A)
    memory = torch.randn(B, S, Q)
    assert score(torch.randn(B, Q), score.keys(memory)).shape == (B, S)


def test_a_dot_product_needs_one_size() -> None:
    with pytest.raises(ConfigError, match="4 and 3"):
        Dot(4, 3, 1)
