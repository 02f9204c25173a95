"""RetNet: one text read in parallel, token by token and in chunks gives one result, that of the formulas.

Positions turn by angles in float32, so that the comparison is not exact.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.nn.context import Context, Mask
from heedful.nn.init import initialise
from heedful.nn.position import Rotary
from heedful.nn.state_space.linear_attention import Retention

DIM, HEADS, LENGTH = 24, 3, 70


@pytest.fixture
def part() -> Retention:
    torch.manual_seed(0)
    made = Retention(DIM, HEADS, 2 * DIM, Rotary(DIM // HEADS)).double()
    initialise(made, 0.3)
    return made


def context(first: int, last: int, backend: str = "auto") -> Context:
    pos = torch.arange(first, last)[None]
    return Context(pos, torch.arange(last)[None], Mask(causal=True), past=first, backend=backend)


def written_out(part: Retention, x: Tensor) -> Tensor:
    """Equations 5 and 8 of the paper with a pair of complex numbers turned for each position."""
    size, rows = DIM // HEADS, []
    angles = torch.arange(LENGTH).double()[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = lambda y: torch.complex(*y.chunk(2, -1)) * turn
    for h in range(HEADS):
        q, k = (pairs(x @ m.weight[h * size : (h + 1) * size].T) for m in (part.q, part.k))
        v = x @ part.v.weight[2 * h * size : 2 * (h + 1) * size].T
        n = torch.arange(LENGTH)
        decay = torch.tril((1 - 2.0 ** (-5 - h)) ** (n[:, None] - n).double())
        y = ((q @ k.conj().T).real / size**0.5 * decay) @ v
        rows.append((y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt())
    gate = x @ part.gate.weight.T
    return (torch.cat(rows, -1) * gate * gate.sigmoid()) @ part.o.weight.T


@torch.no_grad()
def test_parallel_recurrent_and_chunked_forms_are_the_formulas_of_the_paper(part: Retention) -> None:
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    expected = written_out(part, x[0])
    token_by_token, state = [], part.new_state(1, LENGTH)
    for t in range(LENGTH):
        token_by_token.append(part(x[:, t : t + 1], context(t, t + 1), state))
    pieces, state = [], part.new_state(1, LENGTH)
    for a, b in ((0, 33), (33, 64), (64, LENGTH)):
        pieces.append(part(x[:, a:b], context(a, b), state))
    forms = {
        "chunked": part(x, context(0, LENGTH)),
        "recurrent": part(x, context(0, LENGTH, "reference")),
        "token by token": torch.cat(token_by_token, 1),
        "pieces": torch.cat(pieces, 1),
    }
    for name, form in forms.items():
        assert (form[0] - expected).abs().max() < 1e-5, name
