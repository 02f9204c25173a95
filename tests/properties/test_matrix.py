"""Every family can do everything, or says in one line why not: the cells of families × capabilities.

A column that has tests of its own over all families is not repeated here.

| capability                  | where it is tested                                                         |
|-----------------------------|----------------------------------------------------------------------------|
| train in float32            | train/test_matrix.py, test_weights.py                                      |
| train in bfloat16           | here, alone, with recomputed layers and with adapters                      |
| activation checkpointing    | train/test_recompute.py in float32; here in bfloat16                       |
| gradient accumulation       | here by family; train/test_accumulation.py by objective, on ragged rows    |
| save and load               | test_weights.py in float32; here in bfloat16 and float16                   |
| generate                    | decode/test_loop.py; test_decoding.py; refusals: decode/test_bad_input.py  |
| beams                       | here                                                                       |
| check in three types        | decode/test_check.py in float32; here in bfloat16 and float16              |
| int8, int4, and read again  | here, in three types                                                       |
| LoRA                        | train/test_lora.py (start, learn, merge); here: files                      |
| packing, padding            | test_inputs.py; refusals here                                              |
| exact resume                | here by family; train/test_resume.py with kill -9 and every optimiser      |
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from heedful.errors import ConfigError
from heedful.models.base import Model
from heedful.nn.quantised import Int8Embedding, Quantised
from tests.properties.tiny import ALL, ids, run, tiny

TYPES = [torch.float32, torch.bfloat16, torch.float16]
# Families none of whose parts calls its matrices without reading them.
UNROUNDED = ["bilstm"]


def rounded(family: str, kind: str, dtype: torch.dtype) -> Model:
    return heedful.quantize(tiny(family).to(dtype), kind)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_quantised_model_is_near_the_exact_one_and_its_folder_gives_it_back(
    family: str, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny(family).to(dtype)
    tokens = ids(model, 2, 7)
    exact = run(model, tokens)
    if family in UNROUNDED:
        with pytest.raises(ConfigError, match="nothing here can be quantised"):
            heedful.quantize(model, kind)
        return
    heedful.quantize(model, kind)
    few, many = run(model, tokens[:1, :3]), run(model, tokens)  # few rows take another product
    assert 0 < (many - exact).abs().max() < (0.1 if kind == "int8" else 0.8) * exact.abs().max()
    again = heedful.load(heedful.save(model, tmp_path))
    assert again.config == model.config
    assert torch.equal(run(again, tokens[:1, :3]), few)
    assert torch.equal(run(again, tokens), many)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", [f for f in ALL if f not in UNROUNDED])
@torch.no_grad()
def test_a_quantised_model_moves_to_bfloat16_and_keeps_its_scales(family: str, kind: str) -> None:
    model = heedful.quantize(tiny(family), kind)
    tokens = ids(model, 2, 7)
    before, held = run(model, tokens), scales(model)
    model.to(torch.bfloat16)
    assert all(torch.equal(scale, held[name]) for name, scale in scales(model).items())
    assert (run(model, tokens) - before).abs().max() < 0.1 * before.abs().max()


def scales(model: Model) -> dict[str, torch.Tensor]:
    found = {n: m.scale for n, m in model.named_modules() if isinstance(m, (Quantised, Int8Embedding))}
    return {name: scale.detach().clone() for name, scale in found.items()}
