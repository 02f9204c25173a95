"""Attention that sees a few blocks equals attention with the rule as a matrix, and costs O(T)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.core.errors import HeedfulError
from heedful.nn.attention.attend import Call, attend
from heedful.nn.attention.blocks import attend_window
from heedful.nn.attention.sparse import BlockSparseAttention, WindowedAttention
from heedful.nn.context import Context, Mask, Watch
from tests.properties.tiny import ids, tiny

DIM, HEADS, LENGTH = 12, 3, 23


def context(
    valid: Tensor | None = None, documents: Tensor | None = None, watch: Watch | None = None
) -> Context:
    length = LENGTH if valid is None else valid.shape[1]
    pos = torch.arange(length)[None] if valid is None else (valid.long().cumsum(1) - 1).clamp(min=0)
    lengths = None
    if documents is not None:
        starts = torch.searchsorted(documents, documents)
        pos = torch.arange(length)[None] - starts
        lengths = (documents[:, :, None] == documents[:, None]).sum(-1)
    mask = Mask(valid=valid, q_documents=documents, k_documents=documents)
    return Context(pos, pos, mask, valid_new=valid, text_length=lengths, watch=watch)


def paddings() -> list[Tensor | None]:
    """No padding; on either side; within the text; a row of padding alone."""
    rows = torch.ones(4, LENGTH, dtype=torch.bool)
    rows[0, :9], rows[1, 15:], rows[2, 5:8], rows[3] = False, False, False, False
    return [None, rows]


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("reach", [1, 2, 5])
@pytest.mark.parametrize("valid", paddings(), ids=["whole", "padded"])
@torch.no_grad()
def test_a_window_block_by_block_equals_the_matrix(reach: int, first: int, valid: Tensor | None) -> None:
    torch.manual_seed(0)
    part, x = (
        WindowedAttention(DIM, HEADS, reach=reach, first=first).double(),
        torch.randn(4, LENGTH, DIM).double(),
    )
    plain, watched = part(x, context(valid)), part(x, context(valid, watch=Watch("*.pattern")))
    keep = torch.ones(4, LENGTH, dtype=torch.bool) if valid is None else valid
    assert (plain - watched)[keep].abs().max() <= 1e-12


@pytest.mark.parametrize("random", [0, 2])
@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("valid", paddings(), ids=["whole", "padded"])
@torch.no_grad()
def test_bigbird_block_by_block_equals_the_matrix(block: int, random: int, valid: Tensor | None) -> None:
    torch.manual_seed(0)
    part = BlockSparseAttention(DIM, HEADS, block=block, random=random, bias=True).double().eval()
    x = torch.randn(4, LENGTH, DIM).double()
    plain, watched = part(x, context(valid)), part(x, context(valid, watch=Watch("*.pattern")))
    keep = torch.ones(4, LENGTH, dtype=torch.bool) if valid is None else valid
    assert (plain - watched)[keep].abs().max() <= 1e-12


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt-oss", "modernbert"])
@pytest.mark.parametrize("valid", paddings(), ids=["whole", "padded"])
@torch.no_grad()
def test_a_model_with_windows_gives_the_same_by_blocks(family: str, valid: Tensor | None) -> None:
    """Windows of four tokens: grouped heads, capped scores, sinks, both sides."""
    model = tiny(family, **({"window": 4} if family == "mistral" else {})).double()
    tokens = ids(model, 4, LENGTH)
    by_blocks, dense = (model.encode(tokens, valid=valid, backend=name) for name in ("auto", "reference"))
    keep = torch.ones(4, LENGTH, dtype=torch.bool) if valid is None else valid
    assert (by_blocks - dense)[keep].abs().max() <= 1e-10
    if model.causal:
        state = model.start(tokens, valid=valid)
        alive = keep.any(1)
        expected = model.head(by_blocks, context(valid))
        last = torch.where(keep, torch.arange(LENGTH), -1).amax(1).clamp(min=0)
        assert (state.logits - expected[torch.arange(4), last])[alive].abs().max() <= 1e-10


@torch.no_grad()
def test_who_sees_whom_in_a_long_text() -> None:
    watch = Watch("*.pattern")
    BlockSparseAttention(DIM, HEADS, block=2, random=0).eval()(torch.randn(1, 16, DIM), _path(16, watch))
    seen = watch["attn.pattern"][0, 0] > 0
    i, j = torch.arange(16)[:, None] // 2, torch.arange(16)[None] // 2
    assert torch.equal(seen, ((i - j).abs() <= 1) | (i % 7 == 0) | (j % 7 == 0))
    watch = Watch("*.pattern")
    WindowedAttention(DIM, HEADS, reach=3, first=2)(torch.randn(1, 16, DIM), _path(16, watch))
    seen = watch["attn.pattern"][0, 0] > 0
    i, j = torch.arange(16)[:, None], torch.arange(16)[None]
    assert torch.equal(seen, ((i - j).abs() <= 3) | (i < 2) | (j < 2))


def _path(length: int, watch: Watch) -> Context:
    pos = torch.arange(length)[None]
    return Context(pos, pos, Mask(), watch=watch, path="attn")


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_packed_documents_stay_apart(causal: bool) -> None:
    torch.manual_seed(0)
    documents = torch.tensor([[0] * 9 + [1] * 3 + [2] * 11])
    ctx = context(documents=documents)
    q, k, v = (torch.randn(1, HEADS, LENGTH, 4).double() for _ in range(3))
    call = Call(q, k, v, ctx.q_pos, ctx.k_pos, replace(ctx.mask, causal=causal, window=4), None, 0.5, 0.0)
    assert (attend_window(call, ctx) - attend(call, ctx)).abs().max() <= 1e-12
    part = WindowedAttention(DIM, HEADS, reach=2, first=1).double()
    x = torch.randn(1, LENGTH, DIM).double()
    alone = part(x[:, 12:], replace(context(), q_pos=torch.arange(11)[None], k_pos=torch.arange(11)[None]))
    assert (part(x, ctx)[:, 12:] - alone).abs().max() <= 1e-12


def test_blocks_that_training_scatters_differ_from_layer_to_layer_and_lie_in_the_text() -> None:
    parts = [BlockSparseAttention(DIM, HEADS, block=1, random=3, layer=i).train() for i in range(2)]
    length = torch.tensor([[LENGTH], [LENGTH - 5]])
    tables = [part.table(length, LENGTH)[..., 5:8] for part in parts]
    assert (tables[0] != tables[1]).float().mean() > 0.5
    for table in tables:
        assert table.min() >= 1
        assert (table.amax((1, 2)) < length[:, 0] - 1).all()
        assert len(table[0].unique()) > LENGTH // 2
    x = torch.randn(2, LENGTH, DIM)
    parts[0](x, context()).sum().backward()
    assert (parts[0](x, context()) - parts[0].eval()(x, context())).abs().max() > 1e-4
    assert parts[0].k.weight.grad is not None


@pytest.mark.parametrize("kind", ["longformer", "bigbird"])
def test_a_text_four_times_as_long_costs_about_four_times_as_much(kind: str) -> None:
    """Counted, not timed: the multiplications of products, which are nearly all there are."""
    from torch.utils.flop_counter import FlopCounterMode

    part = WindowedAttention(DIM, HEADS, reach=8, first=1)
    if kind == "bigbird":
        part = BlockSparseAttention(DIM, HEADS, block=8, random=1).eval()
    costs = []
    for length in (512, 2048):
        pos = torch.arange(length)[None]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            part(torch.randn(1, length, DIM), Context(pos, pos, Mask()))
        costs.append(counter.get_total_flops())
    assert costs[1] <= 4.2 * costs[0]


def test_a_table_with_an_odd_window_is_refused() -> None:
    from heedful.models.encoders.sparse import LongformerConfig

    with pytest.raises(HeedfulError):
        LongformerConfig(windows=(3, 4))
