"""Weights in 8 and 4 bits: how far they are from those they stand for, and that files keep them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import heedful
from heedful.cli import app
from heedful.core.errors import ConfigError
from heedful.models.base import Model
from heedful.nn.quantised import Int4Linear, Int8Embedding, Int8Linear, TiedLinear
from heedful.weights.loading import skeleton
from tests.properties.tiny import hidden, ids, run, tiny


@pytest.fixture(autouse=True)
def _no_slopes() -> Iterator[None]:
    with torch.no_grad():
        yield


def size(model: Model) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def test_eight_bits_are_within_half_a_step_of_the_weight() -> None:
    base = nn.Linear(48, 20)
    layer = Int8Linear(base)
    gap = (layer.dequantise(torch.float32) - base.weight).abs()
    assert (gap <= layer.scale[:, None] * 0.501).all()
    x = torch.randn(7, 48)
    assert torch.allclose(layer(x), F.linear(x, layer.dequantise(torch.float32), base.bias), atol=1e-5)
    assert torch.allclose(layer(x[:2]), layer(x)[:2], atol=1e-5)  # few rows take another product


ODD_SIZES = """
import torch
from torch import nn
from heedful.nn.quantised import Int4Linear, Int8Linear

torch.set_num_threads(1)
for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
    for size in (1, 2, 12, 16, 20, 24, 33, 48, 50, 96):
        for kind in (Int8Linear, Int4Linear) if size == 96 else (Int8Linear,):
            layer = kind(nn.Linear(size, 7)).to(dtype)
            wide = torch.nn.functional.linear(x := torch.randn(9, size, dtype=dtype), layer.dequantise(dtype))
            exact = wide + layer.bias
            limit = {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, 5e-2)
            for rows in (1, 2, 3, 4, 5, 9):
                off = (layer(x[:rows]) - exact[:rows]).abs().max()
                assert off <= limit, (kind, dtype, size, rows, off)
            beside = torch.nn.functional.pad(x, (3, 0))[:1, 3:]  # one row inside another: its address is odd
            assert (layer(beside) - exact[:1]).abs().max() <= limit, (kind, dtype, size)
"""


def test_few_rows_of_any_size_type_and_address_are_multiplied_as_defined() -> None:
    """In a process of its own: torch's product of whole numbers reads past the end of what it cannot take."""
    done = subprocess.run([sys.executable, "-c", ODD_SIZES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])


@pytest.mark.parametrize("group", [32, 64])
def test_four_bits_are_within_half_a_step_of_the_weight(group: int) -> None:
    base = nn.Linear(128, 20)
    layer = Int4Linear(base, group)
    gap = (layer.dequantise(torch.float32) - base.weight).abs().unflatten(1, (-1, group))
    assert (gap <= layer.scale[..., :1] * 0.501).all()
    assert layer.weight.numel() == base.weight.numel() // 2


def test_a_tied_table_stays_one() -> None:
    model = heedful.quantize(tiny("gpt2"), "int8")
    assert isinstance(model.embed.token, Int8Embedding)  # type: ignore[union-attr]
    assert isinstance(model.head.out, TiedLinear)  # type: ignore[union-attr]
    assert model.head.out.weight is model.embed.token.weight  # type: ignore[union-attr]
    assert size(model) < 0.45 * size(tiny("gpt2"))  # norms, biases and positions are a third of a tiny model


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bloom", "deepseek-v3"])
def test_logits_change_little_and_a_saved_folder_gives_them(family: str, kind: str, tmp_path: Path) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 9)
    before = run(model, tokens)
    after = run(heedful.quantize(model, kind), tokens)
    limit = 0.05 if kind == "int8" else 0.6
    assert 0 < float((after - before).abs().max()) < limit * float(before.abs().max())
    again = heedful.load(heedful.save(model, tmp_path / "saved", quantized=True))
    assert torch.equal(run(again, tokens), after)
    twice = heedful.load(heedful.save(again, tmp_path / "twice", quantized=True))
    assert torch.equal(run(twice, tokens), after)
    assert size(again) == size(model)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_transformers_opens_what_is_saved_of_a_rounded_model(family: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = heedful.quantize(tiny(family), kind)
    folder = heedful.save(model, tmp_path / "saved")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = ids(model, 2, 9)
    torch.testing.assert_close(theirs.eval()(tokens).logits, run(model, tokens), atol=1e-4, rtol=1e-4)
    again = heedful.load(folder)
    assert "quantization" not in again.hf_config
    torch.testing.assert_close(run(again, tokens), run(model, tokens), atol=1e-4, rtol=1e-4)
    assert "quantization" in model.hf_config  # the model itself stays as it was


def test_transformers_refuses_a_folder_of_rounded_weights_instead_of_drawing_its_own(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = heedful.save(heedful.quantize(tiny("gpt2")), tmp_path, quantized=True)
    with pytest.raises(ValueError, match="heedful-gpt2"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bert", {"head": "mlm", "pooler": True}),
        ("roberta", {"head": "mlm", "pooler": True}),
        ("albert", {"head": "none", "pooler": True}),
        ("t5", {"tied": False}),
        ("t5", {"tied": True, "scale_logits": False}),
        ("mt5", {"tied": True}),
    ],
    ids=str,
)
def test_what_published_names_would_tell_is_kept_with_the_rounded_weights(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = heedful.quantize(tiny(family, **changes), "int8")
    again = heedful.load(heedful.save(model, tmp_path / "saved", quantized=True))
    assert again.config == model.config
    twice = heedful.load(heedful.save(again, tmp_path / "twice", quantized=True))
    tokens = ids(model, 2, 7)
    assert torch.equal(hidden(twice, tokens), hidden(model, tokens))
    assert skeleton(tmp_path / "saved").config == model.config


@pytest.mark.parametrize("family", ["bert", "cnn", "gpt2", "llama", "rnnsearch"])
def test_a_table_that_a_head_shares_is_one_after_rounding_tables_too(family: str, tmp_path: Path) -> None:
    model = heedful.quantize(tiny(family), "int8", tables=True)
    assert size(model) < size(heedful.quantize(tiny(family), "int8")) + 1
    tokens = ids(model, 2, 7)
    assert torch.equal(
        run(heedful.load(heedful.save(model, tmp_path, quantized=True)), tokens), run(model, tokens)
    )


def test_a_masked_language_model_that_the_command_rounded_can_be_opened(tmp_path: Path) -> None:
    folder = heedful.save(tiny("roberta"), tmp_path / "whole")
    done = CliRunner().invoke(app, ["quantize", str(folder), str(tmp_path / "small")])
    assert done.exit_code == 0, done.output
    small = heedful.load(tmp_path / "small")
    assert small.head.out.weight is small.embed.token.weight  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("rows", [1, 9])
def test_slopes_go_through_rounded_layers_however_few_the_rows(
    kind: type[Int8Linear | Int4Linear], rows: int
) -> None:
    layer = kind(nn.Linear(64, 8))
    with torch.enable_grad():
        x = torch.randn(rows, 64, requires_grad=True)
        (slope,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(slope, layer.dequantise(torch.float32).sum(0).expand_as(slope))


def test_what_cannot_be_quantised_is_said() -> None:
    with pytest.raises(ConfigError, match="int8', 'int4"):
        heedful.quantize(tiny("gpt2"), "int3")
    with pytest.raises(ConfigError, match="already"):
        heedful.quantize(heedful.quantize(tiny("gpt2"), "int8"), "int8")
    with pytest.raises(ConfigError, match="even"):
        heedful.quantize(tiny("gpt2"), "int4", group=7)


def test_trained_weights_keep_their_perplexity(weights_folder: Path) -> None:
    def loss(model: Model) -> float:
        assert model.tokenizer is not None
        tokens = torch.tensor([model.tokenizer.encode(STORY)])
        return float(F.cross_entropy(model(tokens[:, :-1])[0].float(), tokens[0, 1:]))

    folder = weights_folder / "stories15M"
    exact = loss(heedful.load(folder, dtype=torch.float32))
    eight = loss(heedful.quantize(heedful.load(folder, dtype=torch.float32), "int8"))
    four = loss(heedful.quantize(heedful.load(folder, dtype=torch.float32), "int4"))
    assert abs(eight - exact) < 0.01
    assert abs(four - exact) < 0.15


STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. "
    "One day, she saw a big, red ball in the sky. It was the sun! She thought it was so pretty. "
    "Lily wanted to play with the ball, but it was too high up in the sky. "
    "She tried to jump and reach it, but she couldn't."
)
