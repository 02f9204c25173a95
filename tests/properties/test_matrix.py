"""Every family can do everything, or says in one line why not: the cells of families × capabilities.

A column that has tests of its own over all families is not repeated here.

| capability                  | where it is tested                                                         |
|-----------------------------|----------------------------------------------------------------------------|
| train in float32            | train/test_matrix.py, test_weights.py                                      |
| train in bfloat16           | here: alone, with recomputed layers, with adapters                         |
| activation checkpointing    | train/test_recompute.py in float32; here in bfloat16                       |
| gradient accumulation       | here by family; train/test_accumulation.py by objective, on ragged rows    |
| save and load               | test_weights.py in float32; here in bfloat16 and float16                   |
| generate                    | decode/test_loop.py; refusals: decode/test_bad_input.py                    |
| beams                       | decode/test_search.py in float32; here in bfloat16 and float16             |
| check in three types        | decode/test_check.py in float32; here in bfloat16 and float16              |
| int8, int4, and read again  | here, in three types                                                       |
| LoRA                        | train/test_lora.py: starts, learns, merges; here: saved and loaded         |
| packing                     | test_inputs.py; refusals here                                              |
| padding                     | test_inputs.py, test_decoding.py                                           |
| exact resume                | here by family; train/test_resume.py with kill -9 and every optimiser      |

On a machine with a GPU the cells run there; HEED_TEST_DEVICE=cpu keeps them on the CPU.
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError, InputError
from heedful.data import Batch
from heedful.decode.check import check
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.adapt import LoRA
from heedful.nn.quantised import Int8Embedding, Quantised
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import objective
from heedful.weights.adapters import load_adapter, lora, merge, save_adapter
from tests.properties import tiny as small
from tests.properties.tiny import ALL, ENCODERS, GENERATORS, SEQ2SEQS, by_kinds, by_parts
from tests.refusal import refused
from tests.train import toys
from tests.train.test_matrix import Same

DEVICE = os.environ.get("HEED_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
TYPES = [torch.float32, torch.bfloat16, torch.float16]
HALVES = TYPES[1:]
Files = dict[str, Path]

# Families none of whose parts calls its matrices without reading them.
UNROUNDED = ["bilstm"]
ROUNDED = [f for f in ALL if f not in UNROUNDED]
# Families whose gathered scores get their gradients in no fixed order on a GPU: alike, not the same bytes.
UNORDERED = ["deberta", "deberta-v2"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return toys.write(tmp_path_factory.mktemp("toys"))


def tiny(family: str, dtype: torch.dtype = torch.float32) -> Model:
    return small.tiny(family).to(DEVICE, dtype)


def ids(model: Model, batch: int, length: int) -> Tensor:
    return small.ids(model, batch, length).to(DEVICE)


def run(model: Model, tokens: Tensor) -> Tensor:
    """Logits of any model; see tests/properties/tiny.py."""
    if model.family.name not in SEQ2SEQS:
        return small.run(model, tokens)
    source = small.source_ids(model, len(tokens), 6).to(DEVICE)
    logits: Tensor = model(source, tokens)
    return logits


def reloaded(model: Model, folder: Path) -> Model:
    return heedful.load(heedful.save(model, folder, quantized=True), device=DEVICE)


def learner(family: str, **changes: Any) -> Model:
    """A model to be trained, without dropout."""
    still = {name: 0.0 for name in FAMILIES[family].tiny.field_names() if "dropout" in name}
    return toys.tiny(family, **still | changes).to(DEVICE)


def one_batch(model: Model, files: Files) -> Batch:
    return toys.batches_of(model.family.objective, files, batch=4, model=model)[0]


def losses(model: Model, files: Files, **settings: Any) -> list[float]:
    """The losses of a few steps on one batch by the family's own objective."""
    usual: dict[str, Any] = {"steps": 4, "lr": 3e-3, "schedule": "constant", "weight_decay": 0.0}
    config = TrainConfig(**usual | settings)
    same: Any = Same(one_batch(model, files))
    return [step.loss for step in fit(model, model.family.objective, same, config)]


def falls(found: list[float]) -> bool:
    return all(map(math.isfinite, found)) and found[-1] < found[0]


@pytest.mark.parametrize("family", by_parts(ALL))
def test_bfloat16_products_let_a_loss_fall(family: str, files: Files) -> None:
    found = losses(learner(family), files, dtype="bfloat16")
    assert falls(found), found


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_bfloat16_products_are_the_same_where_layers_are_recomputed(family: str, files: Files) -> None:
    plain, again = (
        losses(learner(family), files, dtype="bfloat16", steps=2, checkpointing=checkpointing)
        for checkpointing in (False, True)
    )
    assert again == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_bfloat16_products_let_adapters_learn(family: str, files: Files) -> None:
    model = learner(family)
    lora(model, rank=4)
    found = losses(model, files, dtype="bfloat16", lr=1e-2)
    assert falls(found), found


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_accumulated_parts_take_the_step_of_the_whole_batch(family: str, files: Files) -> None:
    found = []
    for parts in (1, 2):
        model = learner(family).double()
        # A larger eps: a gradient that is rounding alone moves nothing.
        seen = losses(model, files, steps=2, accumulate=parts, eps=1e-4)
        found.append((seen, [p.detach() for p in model.parameters()]))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    for whole, summed in zip(found[0][1], found[1][1], strict=True):
        assert (whole - summed).abs().max() <= 1e-7


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_a_run_that_goes_on_ends_with_the_same_bytes(family: str, files: Files, tmp_path: Path) -> None:
    """With dropout: step k draws the same noise whether or not the run was interrupted."""
    for name, parts in (("whole", [2]), ("parts", [1, 2])):
        for steps in parts:
            model = toys.tiny(family).to(DEVICE)
            batches = toys.batches_of(model.family.objective, files, batch=4, model=model)
            config = TrainConfig(
                steps=steps, lr=3e-3, schedule="constant", folder=tmp_path / name, resume=True
            )
            taken = list(fit(model, model.family.objective, batches, config))
        assert len(taken) == (2 if name == "whole" else 1)
    ends = [tmp_path / name / "checkpoints" / "step-000002" for name in ("whole", "parts")]
    for file in ("model.safetensors", "optimiser.safetensors"):
        if DEVICE == "cuda" and family in UNORDERED:
            whole, parts = (load_file(end / file) for end in ends)
            torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)
        else:
            assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_folder_in_fewer_bits_gives_the_same_logits(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny(family, dtype)
    tokens = ids(model, 2, 7)
    again = reloaded(model, tmp_path)
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert torch.equal(run(again, tokens), run(model, tokens))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", by_kinds(ALL))
def test_every_mode_writes_alike_in_fewer_bits(family: str, dtype: torch.dtype) -> None:
    model = tiny(family, dtype)
    report = check(model, tokens=6, fast=None if family in ENCODERS else heedful.fast(model))
    assert report.dtype == str(dtype).removeprefix("torch.")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", GENERATORS)
def test_beams_search_in_fewer_bits(family: str, dtype: torch.dtype) -> None:
    model = tiny(family, dtype)
    prompts = small.source_ids(model, 2, 4).tolist()
    found = heedful.generate(model, prompts, max_tokens=5, beams=3, eos=())
    assert [len(text) for text in found] == [5, 5]


@pytest.mark.parametrize("family", by_parts(ALL))
@torch.no_grad()
def test_adapters_come_back_from_a_folder_of_their_own_beside_the_weights_and_merged(
    family: str, tmp_path: Path
) -> None:
    base = tiny(family)
    model = copy.deepcopy(base)
    lora(model, rank=2)
    for layer in model.modules():
        if isinstance(layer, LoRA):
            layer.up.normal_(std=0.1)
    tokens = ids(model, 2, 7)
    learned = run(model, tokens)
    load_adapter(base, save_adapter(model, tmp_path / "apart"))
    assert torch.equal(run(base, tokens), learned)
    assert torch.equal(run(reloaded(model, tmp_path / "beside"), tokens), learned)
    merge(model)
    assert torch.equal(run(reloaded(model, tmp_path / "merged"), tokens), run(model, tokens))


@pytest.mark.parametrize("family", SEQ2SEQS)
def test_an_encoder_decoder_takes_no_packed_documents(family: str, files: Files) -> None:
    model = learner(family)
    batch = one_batch(model, files).to(DEVICE)
    documents = torch.zeros_like(batch.tokens)
    with pytest.raises(TypeError, match="documents"):
        model(batch.tokens, batch.target, documents=documents)
    with pytest.raises(InputError, match="packs several"):
        objective(model.family.objective)(model, replace(batch, documents=documents))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_quantised_model_is_near_the_exact_one_and_its_folder_gives_it_back(
    family: str, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny(family, dtype)
    tokens = ids(model, 2, 7)
    exact = run(model, tokens)
    if family in UNROUNDED:
        with refused(ConfigError, "quantised"):
            heedful.quantize(model, kind)
        return
    heedful.quantize(model, kind)
    few, many = run(model, tokens[:1, :3]), run(model, tokens)  # few rows take another product
    assert 0 < (many - exact).abs().max() < (0.1 if kind == "int8" else 0.8) * exact.abs().max()
    again = reloaded(model, tmp_path)
    assert again.config == model.config
    assert torch.equal(run(again, tokens[:1, :3]), few)
    assert torch.equal(run(again, tokens), many)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", by_kinds(f for f in GENERATORS if f in ROUNDED))
def test_a_quantised_model_in_bfloat16_writes_alike_in_every_mode(family: str, kind: str) -> None:
    model = heedful.quantize(tiny(family, torch.bfloat16), kind)
    report = check(model, tokens=6)
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ROUNDED)
@torch.no_grad()
def test_a_quantised_model_moves_to_bfloat16_and_keeps_its_scales(family: str, kind: str) -> None:
    model = heedful.quantize(tiny(family), kind)
    tokens = ids(model, 2, 7)
    before, held = run(model, tokens), scales(model)
    model.to(torch.bfloat16)
    assert all(torch.equal(scale, held[name]) for name, scale in scales(model).items())
    assert (run(model, tokens) - before).abs().max() < 0.1 * before.abs().max()


def scales(model: Model) -> dict[str, Tensor]:
    found = {n: m.scale for n, m in model.named_modules() if isinstance(m, (Quantised, Int8Embedding))}
    return {name: scale.detach().clone() for name, scale in found.items()}
