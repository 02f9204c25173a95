"""Weights that stay as a GGUF file stores them: their values, their products, and whole models."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful.decode.engines.numba_stepper import NumbaStepper
from heedful.decode.stepper import EagerStepper
from heedful.kernels.cpu.block_tensor import SCALES, SIZES, BlockTensor, interleave, separate
from heedful.models.base import Model
from heedful.weights.exporting import export_gguf

pytest.importorskip("numba")
pytest.importorskip("gguf")

LLAMA = {"dim": 256, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 512, "context": 64, "vocab": 300}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = (*FLOATS, *SCALES)
WITH_OFFSETS = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def random_blocks(kind: str, rows: int = 37, columns: int = 512) -> Tensor:
    """Return rows of blocks with random numbers, and scales that are finite and of ordinary size."""
    size, stored = SIZES[kind]
    rng = np.random.default_rng(sum(map(ord, kind)))
    if kind in FLOATS:
        values = torch.from_numpy(rng.standard_normal((rows, columns), np.float32))
        return values.to(FLOATS[kind]).view(torch.uint8)
    blocks = rng.integers(0, 256, (rows, columns // size, stored), np.uint8)
    for place in (208,) if kind == "Q6_K" else (0, 2) if kind in WITH_OFFSETS else (0,):
        blocks[..., place + 1] = blocks[..., place + 1] & 0x83 | 0x20  # the upper byte of a float16
    return torch.from_numpy(blocks.reshape(rows, -1))


def reference_widen(blocks: Tensor, kind: str) -> Tensor:
    """The definition of the values, by the `gguf` library."""
    from gguf import GGMLQuantizationType, quants

    values = quants.dequantize(blocks.numpy(), GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


@pytest.mark.parametrize("kind", SCALES)
def test_stripes_hold_the_bytes_of_rows_in_another_order(kind: str) -> None:
    rows = random_blocks(kind).numpy()
    stripes = interleave(rows, kind)
    assert stripes.size == 48 * rows.shape[1]
    assert np.array_equal(separate(stripes, kind)[: len(rows)], rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [32, 37])
def test_values_of_blocks_are_those_of_the_gguf_library(kind: str, rows: int) -> None:
    blocks = random_blocks(kind, rows)
    values = reference_widen(blocks, kind)
    weight = BlockTensor.from_rows(blocks.clone().numpy(), kind)
    assert torch.equal(weight.widen(), values)
    for some in (torch.arange(16, 32), torch.arange(3, 19), torch.tensor([5, 30, 30, 2])):
        assert torch.equal(weight.take_rows(some).widen(), values[some])
        assert torch.equal(
            F.embedding(some.view(2, -1), weight.requires_grad_(False)), values[some].view(2, -1, 512)
        )


@pytest.mark.parametrize("kind", [*KINDS, "I8"])
@pytest.mark.parametrize("vectors", [1, 5, 40])
def test_a_product_with_blocks_equals_the_product_with_their_values(kind: str, vectors: int) -> None:
    from heedful.kernels.cpu import rows as R
    from heedful.kernels.cpu.blocks import GROUP, RECORD, dot_kernel, stripe_kernel

    size, count, stripes, floats = 512, 37, kind in SCALES, kind in FLOATS
    x = torch.randn(vectors, size, generator=torch.Generator().manual_seed(0))
    if kind == "I8":
        stored = torch.randint(-127, 128, (count, size), dtype=torch.int8)
        values, scale = stored.float(), torch.ones(count)
    else:
        rows = random_blocks(kind, count)
        values, scale = reference_widen(rows, kind), torch.zeros(0)
        stored = BlockTensor.from_rows(rows.numpy(), kind).blocks
    workspace = torch.cat((x, torch.zeros(vectors, count)), 1)
    rounded = torch.zeros(vectors, RECORD * size // GROUP, dtype=torch.uint8)
    now, line = np.zeros(7, np.int64), np.zeros(R.FIELDS, np.int64)
    now[[R.WORK, R.STRIDE, R.ROWS]] = workspace.data_ptr(), workspace.shape[1], vectors
    now[[R.ROUNDED, R.ROUNDED_BYTES]] = rounded.data_ptr(), rounded.shape[1]
    line[[R.IN, R.OUT, R.TO, R.SCALE]] = size, count, size, scale.data_ptr()
    line[[R.WEIGHT, R.ROW_BYTES, R.ROW_BLOCKS]] = stored.data_ptr(), stored.shape[1], size // SIZES[kind][0]
    line[[R.KIND, R.GROUP]] = (R.FLOAT16, 0) if floats else (R.BLOCKS if stripes else R.INT8, GROUP)
    line[R.KERNEL] = stripe_kernel(kind) if stripes else dot_kernel(kind)
    for row in range(0 if floats else vectors):
        R.round_row(line, now, row)
    wanted, products = x @ values.T, []
    kernels = [(0, stripe_kernel(kind))] if stripes else [(0, 0), (dot_kernel(kind, R.SEVERAL_VECTORS), 0)]
    for line[R.SEVERAL], line[R.STRIPES] in [*kernels, (0, stripe_kernel(kind))]:
        for low, high in ((0, 16), (16, count)):
            R.linear_rows(line, np.float32(1.0), now, low, high)
        products.append(workspace[:, -count:].clone())
        assert (products[-1] - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert torch.equal(*products[:2])  # a vector's product does not depend on what stands beside it
    if stripes:
        for now[R.ROWS] in range(1, min(vectors, 6)):
            workspace[0, -count:] = 0
            R.linear_rows(line, np.float32(1.0), now, 0, count)
            assert torch.equal(workspace[0, -count:], products[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_vectors_times_blocks_is_the_product_with_their_values(kind: str) -> None:
    blocks = random_blocks(kind)
    values, weight = reference_widen(blocks, kind), BlockTensor.from_rows(blocks.numpy(), kind)
    for shape in ((3,), (2, 9), (51,), (200,)):
        x = torch.randn(*shape, 512, generator=torch.Generator().manual_seed(0))
        wanted = F.linear(x, values)
        assert torch.allclose(F.linear(x, weight), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.fixture(scope="module", params=["f16", "q8_0", "q4_0", "q4_k"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A small model written in one of the schemes, and read back."""
    path = tmp_path_factory.mktemp("blocks") / "model.gguf"
    export_gguf(heedful.build("llama", **LLAMA, seed=0).eval(), path, request.param)
    return path, heedful.load(path)


def test_a_loaded_model_keeps_the_bytes_of_its_file(loaded: tuple[Path, Model]) -> None:
    path, model = loaded
    held = sum(p.blocks.nbytes if isinstance(p, BlockTensor) else p.nbytes for p in model.parameters())
    filled = 4 * 256 // 32 * 34  # bytes that fill up the last 16 rows of a vocabulary of 300
    assert held < path.stat().st_size + filled
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in heedful.build("llama", **LLAMA).parameters()
    )


def test_steps_from_blocks_equal_plain_steps_with_their_values(loaded: tuple[Path, Model]) -> None:
    model = loaded[1]
    wide = copy.deepcopy(model).float()
    assert not any(isinstance(p, BlockTensor) for p in wide.parameters())
    prompt = torch.arange(5)[None]
    for rows in (1, 3):
        quick, plain = NumbaStepper(model), EagerStepper(wide)
        got, logits = (s.prefill(prompt.repeat(rows, 1), None, 16) for s in (quick, plain))
        assert (got - logits).abs().max() < 1e-4 * logits.abs().max()
        for _ in range(3):
            tokens = logits.argmax(-1)
            got, logits = quick.step(tokens), plain.step(tokens)
            assert quick.fallback_reason is None
            assert (got - logits).abs().max() < 1e-4 * logits.abs().max()


def test_training_widens_and_learns(loaded: tuple[Path, Model]) -> None:
    model = copy.deepcopy(loaded[1]).train()
    assert not any(isinstance(p, BlockTensor) for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_saving_writes_the_values(loaded: tuple[Path, Model], tmp_path: Path) -> None:
    model = loaded[1]
    again = heedful.load(heedful.save(model, tmp_path / "saved"))
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.allclose(again(tokens), model(tokens), atol=1e-5)


@pytest.fixture
def matrix() -> nn.Parameter:
    return BlockTensor.from_rows(random_blocks("Q8_0").numpy(), "Q8_0").as_parameter()


def test_a_block_tensor_has_gradients_like_its_values(matrix: nn.Parameter) -> None:
    values = nn.Parameter(matrix.widen())
    for weight in (matrix, values):
        F.linear(torch.ones(2, 512), weight).square().sum().backward()
        F.embedding(torch.tensor([3, 3, 5]), weight).sum().backward()
    assert matrix.grad is not None
    assert torch.allclose(matrix.grad, values.grad)


def test_a_vector_gets_its_gradient_through_frozen_blocks(matrix: nn.Parameter) -> None:
    x = torch.randn(9, 512, requires_grad=True)
    F.linear(x, matrix.requires_grad_(False)).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, matrix.widen().sum(0).expand(9, 512), atol=1e-4)


def test_what_is_written_to_a_block_tensor_stays_and_leaves_copies_alone(matrix: nn.Parameter) -> None:
    before, other = matrix.widen(), copy.deepcopy(matrix)
    optimizer = torch.optim.AdamW([matrix], lr=0.1)
    matrix.grad = torch.ones(matrix.shape)
    optimizer.step()
    with torch.no_grad():
        matrix[0] = 7.0
    assert (matrix[0] == 7).all()
    assert (matrix[1:] < before[1:]).all()
    assert torch.equal(other.detach() + 0, before)


def test_a_pickled_block_tensor_is_an_ordinary_one(matrix: nn.Parameter) -> None:
    again = pickle.loads(pickle.dumps(matrix))
    assert type(again) is nn.Parameter
    assert torch.equal(again, matrix.widen())
