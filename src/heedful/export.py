"""A model as one file for other programs: GGUF for llama.cpp and what stands on it, ONNX for encoders."""

from __future__ import annotations

import copy
from pathlib import Path

from heedful.errors import ConfigError
from heedful.models import FAMILIES
from heedful.models.base import Family, Model
from heedful.models.gguf_config import check_same_config, config_to_gguf, write_gguf_rope
from heedful.models.hf_config import config_from_gguf
from heedful.nn.adapt import adapted_modules
from heedful.nn.quantised import dequantise_modules
from heedful.pooling import gguf_pooling
from heedful.text.to_gguf import gguf_tokenizer
from heedful.weights.gguf import GGUFFile
from heedful.weights.gguf_blocks import check_scheme
from heedful.weights.gguf_writer import write_gguf
from heedful.weights.names import model_tensors
from heedful.weights.published_tensors import published_tensors

HF = "save it as a Hugging Face folder (--format hf)"
ENCODER_HEADS = ("none", "mlm", "pretrain")  # whose encoder alone is what others want of it


def dense_model(model: Model) -> Model:
    """The model itself, or a copy of one that was quantised with its matrices in float32 again."""
    if next(adapted_modules(model), None) is not None:
        raise ConfigError("this model has an adapter", hint="call heedful.merge(model) first")
    if "quantization" not in model.hf_config:
        return model
    made = copy.deepcopy(model)
    dequantise_modules(made)
    made.tie()
    made.hf_config = {name: value for name, value in model.hf_config.items() if name != "quantization"}
    return made


def export_gguf(model: Model, path: str | Path, quantize: str = "f16", *, tokenizer: bool = True) -> Path:
    """Write a model as a GGUF file: f32, f16, q8_0, q4_0 or q4_k, with its config and its tokenizer.

    The file is read again before it gets its name; a model that GGUF cannot describe is refused.
    """
    check_scheme(quantize)
    path, family = Path(path), model.family
    if not family.gguf or family.gguf_names is None:
        known = ", ".join(f.name for f in FAMILIES.values() if f.gguf)
        raise ConfigError(f"GGUF has no names for a {family.name}", hint=f"it has for {known}; else {HF}")
    model = dense_model(model)
    reader = reading_family(family.gguf)
    head = reader.gguf_head
    if model.config.head != head and not (head == "none" and model.config.head in ENCODER_HEADS):
        raise ConfigError(f"GGUF has no place for a {model.config.head!r} head", hint=HF)
    config = model.config
    window = getattr(config, "window", None)
    if window is not None and f"{family.gguf}.attention.sliding_window" not in config_to_gguf(family, config):
        # The file cannot say so: it gets as many positions as every layer sees.
        config = config.change(window=None, context=min(window, getattr(config, "context")))  # noqa: B009
    rotary, divisors = write_gguf_rope(family.gguf, config)
    metadata = {"general.name": path.stem} | config_to_gguf(family, config) | rotary
    metadata[f"{family.gguf}.vocab_size"] = config.vocab
    metadata |= gguf_tokenizer(model.tokenizer if tokenizer else None, config.vocab)
    if model.pooling is not None:
        metadata |= gguf_pooling(model.pooling, family.gguf)
    leave = [name for name in model_tensors(model) if head == "none" and name.startswith("head.")]
    tensors = published_tensors(model, family.gguf_names(config), None, leave=leave) | divisors
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    try:
        write_gguf(partial, metadata, tensors, quantize)
        check_same_config(reader, config, config_from_gguf(reader, GGUFFile(partial)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def reading_family(architecture: str) -> Family:
    """The family that a GGUF architecture is read as: the first, where several are written alike."""
    return next(family for family in FAMILIES.values() if family.gguf == architecture)
