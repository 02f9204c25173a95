"""GGUF files of decoders other than LLaMA, written here by the `gguf` library under llama.cpp's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.position import LongScaling
from heedful.weights.names import published_tensors
from tests.properties.tiny import ids, tiny

gguf = pytest.importorskip("gguf", reason="the gguf library writes the files read here")

LONG = LongScaling(4.0, 16, (1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 8.0, 9.0), 1.25)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "neox": ("gpt-neox", {}),
    "neox-one-after-the-other": ("gpt-neox", {"parallel": False, "bias": False, "tied": True}),
    "falcon-7b": ("falcon", {}),
    "falcon-40b": ("falcon", {"kv_heads": 2, "norms": 2, "tied": False}),
    "falcon-biases": ("falcon", {"bias": True}),
    "phi": ("phi", {"rope_dim": 2}),
    "phi3": ("phi3", {"window": 5}),
    "phi3-long-rope": ("phi3", {"rope_scaling": LONG, "tied": True}),
    "mamba": ("mamba", {}),
    "mamba2": ("mamba2", {"groups": 1, "tied": False}),
    "stablelm-3b": ("stablelm", {"qk_norm": False, "parallel": False}),
    "stablelm-2-1.6b": ("stablelm", {"qk_norm": False, "parallel": False, "bias": True}),
    "stablelm-2-12b": ("stablelm", {}),
    "starcoder2": ("starcoder2", {"window": None}),
    "arcee": ("arcee", {"ffn_bias": True}),
    "seedoss": ("seedoss", {}),
    "nemotron": ("nemotron", {}),
    "granite": ("granite", {}),
    "olmoe": ("olmoe", {}),
    "olmo3": ("olmo3", {"local": None}),
    "exaone4": ("exaone4", {"local": None}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {"bias": False}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", {"local": None}),
    "bigcode": ("gpt-bigcode", {}),
    "mpt": ("mpt", {}),
    "starcoder2-no-biases": ("starcoder2", {"window": None, "bias": False}),
}


def write(model: Model, path: Path, beside: dict[str, Any]) -> Path:
    """Write a model as llama.cpp's converter does: its numbers by the family's keys, and `beside` them."""
    family = model.family
    assert family.gguf_names
    writer = gguf.GGUFWriter(path, family.gguf)
    stated = {key: getattr(model.config, field) for key, field in family.gguf_keys.items()} | beside
    for key, value in stated.items():
        if value is None:
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(key, value)
    rows = family.gguf_rows(model.config)
    tensors = {n: t.float().numpy() for n, t in published_tensors(model, rows, None).items()}
    scaling = getattr(model.config, "rope_scaling", None)
    if isinstance(scaling, LongScaling):
        for name, factors in (("short", scaling.short), ("long", scaling.long)):
            tensors[f"rope_factors_{name}.weight"] = torch.tensor(factors).numpy()
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("case", MODELS)
def test_a_model_written_as_gguf_gives_the_same_logits(case: str, tmp_path: Path) -> None:
    family, changes = MODELS[case]
    model, beside = tiny(family, **changes), {}
    if family == "phi3":
        beside = {"phi3.attention.sliding_window": changes.get("window") or 0}
        if "rope_scaling" in changes:
            gain = {"phi3.rope.scaling.attn_factor": LONG.attention_factor}
            beside |= {"phi3.rope.scaling.original_context_length": LONG.context, **gain}
    again = heedful.load(write(model, tmp_path / "model.gguf", beside))
    tokens = ids(model, 2, 20)
    assert again.config.change(norm_eps=model.config.norm_eps) == model.config
    with torch.no_grad():
        assert (again(tokens) - model(tokens)).abs().max() < 1e-5


def known_tensors(architecture: str) -> set[str]:
    """Return the names of tensors that the library knows of an architecture."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return {gguf.TENSOR_NAMES[tensor].replace("{bid}", "0") for tensor in gguf.MODEL_TENSORS[arch]}


@pytest.mark.parametrize("family", sorted({family for family, _ in MODELS.values()}))
def test_names_are_those_of_llama_cpp(family: str) -> None:
    known = known_tensors(FAMILIES[family].gguf)
    for each, changes in MODELS.values():
        if each == family:
            model = tiny(family, layers=1, **changes)
            assert model.family.gguf_names
            written = published_tensors(model, model.family.gguf_rows(model.config), None)
            assert {name if name in known else name.rpartition(".")[0] for name in written} <= known
