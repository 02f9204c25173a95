"""Adapters of PEFT, written here by hand under published names, merged into the model they stand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.core.errors import ConfigError, CorruptFile, NotFound, UnexpectedTensor, WrongShape
from heedful.models import FAMILIES
from heedful.weights.loading import skeleton
from tests.properties.tiny import ALL, ids, run, tiny
from tests.refusal import refused

PUBLISHED = [name for name in ALL if FAMILIES[name].model_types]
SETTINGS: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "use_dora": False}


def write_adapter(folder: Path, base: str | Path, tensors: dict[str, torch.Tensor], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = SETTINGS | {"base_model_name_or_path": str(base)} | more
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file({f"base_model.model.{n}": t for n, t in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def matrices(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of linear layers as they are published; a table of vectors is none."""
    tensors = load_file(folder / "model.safetensors")
    wide = {n: t for n, t in tensors.items() if t.ndim == 2 and n.endswith(".weight")}
    return {n: t for n, t in wide.items() if "embed" not in n and "wte" not in n and "wpe" not in n}


def low_rank(weight: torch.Tensor, *, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, into = weight.shape[::-1] if transposed else weight.shape
    return torch.randn(2, into) * 0.1, torch.randn(out, 2) * 0.1


@pytest.mark.parametrize("family", PUBLISHED)
@torch.no_grad()
def test_an_adapter_is_what_its_matrices_say(family: str, tmp_path: Path) -> None:
    """Merging is the same as adding B A to the published file and loading that."""
    heedful.save(tiny(family), tmp_path / "base")
    transposed = family in ("gpt", "gpt2", "gpt3")  # stored (in, out): PEFT calls it fan_in_fan_out
    tensors, parts = load_file(tmp_path / "base" / "model.safetensors"), {}
    for name, weight in sorted(matrices(tmp_path / "base").items())[:5]:
        down, up = low_rank(weight, transposed=transposed)
        layer = name.removesuffix(".weight")
        parts |= {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
        tensors[name] = weight + 3.0 * ((up @ down).t() if transposed else up @ down)
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", parts, fan_in_fan_out=transposed)
    found = heedful.load(adapter)
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    expected, tokens = heedful.load(tmp_path / "base"), ids(found, 2, 7)
    plain = run(tiny(family), tokens)
    assert (run(found, tokens) - run(expected, tokens)).abs().max() < 1e-4
    assert (run(found, tokens) - plain).abs().max() > 1e-3


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return heedful.save(tiny("llama"), tmp_path / "base")


def some_layer(rank: int = 2) -> dict[str, torch.Tensor]:
    layer = "model.layers.0.self_attn.q_proj"
    return {f"{layer}.lora_A.weight": torch.randn(rank, 32), f"{layer}.lora_B.weight": torch.randn(32, rank)}


def test_scales_by_the_root_of_the_rank_and_of_a_layer_by_itself(base: Path, tmp_path: Path) -> None:
    weight = lambda model: model.blocks[0].attn.q.weight.detach()
    parts = some_layer()
    A, B = parts.values()
    plain, rooted, own = (
        weight(heedful.load(write_adapter(tmp_path / f"a{i}", base, parts, **more)))
        - weight(heedful.load(base))
        for i, more in enumerate(({}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 2}}))
    )
    for found, scale in ((plain, 3.0), (rooted, 6 / 2**0.5), (own, 1.0)):
        assert torch.allclose(found, scale * (B @ A), atol=1e-5)


def test_a_head_that_was_trained_whole_comes_along(base: Path, tmp_path: Path) -> None:
    score = torch.randn(3, 32)
    tensors = some_layer() | {"score.weight": score}
    model = heedful.load(write_adapter(tmp_path / "a", base, tensors, task_type="SEQ_CLS"))
    assert model.config.head == "classify"
    assert torch.equal(model.head.label.weight, score)  # type: ignore[union-attr]
    assert model(torch.arange(5, 12)[None]).shape == (1, 3)


def test_what_cannot_be_merged_is_one_line(base: Path, tmp_path: Path) -> None:
    folder, parts = tmp_path / "a", some_layer()
    with refused(ConfigError, '"use_dora": True', hint="merge_and_unload"):
        heedful.load(write_adapter(folder, base, parts, use_dora=True))
    with refused(ConfigError, "\"peft_type\": 'IA3'"):
        heedful.load(write_adapter(folder, base, parts, peft_type="IA3"))
    with refused(CorruptFile, "\"lora_alpha\": 'x'"):
        heedful.load(write_adapter(folder, base, parts, lora_alpha="x"))
    with refused(NotFound, "adapter of 'nobody/nothing'", hint="base_model_name_or_path"):
        heedful.load(write_adapter(folder, "nobody/nothing", parts))
    other = {name.replace("layers.0", "layers.9"): tensor for name, tensor in parts.items()}
    with refused(UnexpectedTensor, "layers.9"):
        heedful.load(write_adapter(folder, base, other))
    with refused(CorruptFile, "lora_B"):
        heedful.load(write_adapter(folder, base, {n: t for n, t in parts.items() if "lora_A" in n}))
    wide = {
        name: torch.randn(tensor.shape[0] * 2, 2) if "_B" in name else tensor
        for name, tensor in parts.items()
    }
    with refused(WrongShape, "q_proj"):
        heedful.load(write_adapter(folder, base, wide))
    rounded = heedful.save(heedful.quantize(tiny("llama")), tmp_path / "rounded", quantized=True)
    with refused(ConfigError, "rounded", hint="unquantised"):
        heedful.load(write_adapter(folder, rounded, parts))
    with refused(NotFound, "config.json", hint="adapter"):
        skeleton(folder)
    (folder / "adapter_model.safetensors").unlink()
    with refused(NotFound, "adapter_model.safetensors"):
        heedful.load(folder)
