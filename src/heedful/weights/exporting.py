"""A model as one file for other programs: GGUF for llama.cpp and what stands on it, ONNX for encoders."""

from __future__ import annotations

import copy
import errno
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, InputError
from heedful.core.files import make_file_atomically
from heedful.core.lazy import import_optional, missing_package
from heedful.models import FAMILIES, by_gguf
from heedful.models.base import LM, Config, Model
from heedful.models.gguf_config import check_same_config, config_to_gguf, write_gguf_rope
from heedful.models.hf_config import config_from_gguf
from heedful.models.tensor_parallel import check_whole
from heedful.nn.adapt import adapted_modules
from heedful.text.gguf import gguf_tokenizer
from heedful.weights.formats.gguf import FILE_TYPES, GGUFFile, write_gguf
from heedful.weights.names import model_tensors, published_tensors
from heedful.weights.pooling import gguf_pooling, pool
from heedful.weights.saving import dequantised_model

HF = "save it as a Hugging Face folder: heed export MODEL FOLDER --format hf"
# Architectures of which llama.cpp wants an output matrix, and those of which it takes none.
NEVER_TIED = {"gptneox", "phi2", "stablelm", "olmo2", "qwen2moe", "gpt-oss"}
ALWAYS_TIED = {"gemma", "gemma2"}
MAX_ONNX_BYTES = 2**31 - 2**24  # of the weights in one file
ENCODER_HEADS = ("none", "mlm", "pretrain")  # whose encoder alone is what others want of it


@contextmanager
def write_whole(path: Path, ending: str) -> Iterator[Path]:
    """Give a neighbour of `path` to be written, which gets its name at the end."""
    if path.suffix != ending:
        raise InputError(f"{path} does not end in {ending}", hint=f"call it {path}{ending}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file that can be replaced", hint="give the name of a new file")
    try:
        with make_file_atomically(path) as partial:
            yield partial
    except OSError as error:
        if error.errno is None:  # how NumPy says that less was written than asked
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise


def dense_model(model: Model) -> Model:
    """The model itself, or a copy of one that was quantised with its matrices in float32 again."""
    if model.device.type == "meta":
        raise InputError(
            "this model is on device 'meta' and has no weights", hint="build it on a device, or load it"
        )
    if next(adapted_modules(model), None) is not None:
        raise ConfigError("this model has an adapter", hint="call heedful.merge(model) first")
    return dequantised_model(model)


def export_gguf(model: Model, path: str | Path, quantize: str = "f16", *, tokenizer: bool = True) -> Path:
    """Write a model as a GGUF file with its config and tokenizer, for llama.cpp and similar programs.

    >>> import heedful
    >>> model = heedful.load("prose")
    >>> heedful.export_gguf(model, "prose.gguf", "q8_0").name
    'prose.gguf'

    Args:
        quantize: f32, f16, q8_0, q4_0 or q4_k.
        tokenizer: Include the tokenizer.

    The file is read back before it gets its name. A model that GGUF cannot express is refused.
    """
    check_whole(model)
    check_choice("quantize", quantize, FILE_TYPES, ConfigError)
    import_optional("gguf", "writing GGUF")
    path, family = Path(path), model.family
    if not family.gguf:
        names = ", ".join(f.name for f in FAMILIES.values() if f.gguf)
        raise ConfigError(f"GGUF has no names for a {family.name}", hint=f"it has for {names}; else {HF}")
    model = dense_model(model)
    reader = by_gguf({"general.architecture": family.gguf, family.gguf_when: 1}, family.name)
    config = config_for_gguf(model, reader.gguf_head)
    rotary, divisors = write_gguf_rope(family.gguf, config)
    metadata = {"general.name": path.stem} | config_to_gguf(family, config) | rotary
    metadata[f"{family.gguf}.vocab_size"] = config.vocab
    gguf_tokenizer_source = model.tokenizer if tokenizer else None
    if gguf_tokenizer_source is not None and len(gguf_tokenizer_source) > config.vocab:
        raise InputError(
            f"the tokenizer has {len(gguf_tokenizer_source):,} tokens and the model {config.vocab:,}",
            hint="it is another model's; `tokenizer=False` leaves it out",
        )
    metadata |= gguf_tokenizer(gguf_tokenizer_source, config.vocab)
    if model.pooling is not None:
        metadata |= gguf_pooling(model.pooling, family.gguf)
    leave = [n for n in model_tensors(model) if reader.gguf_head == "none" and n.startswith("head.")]
    tensors = published_tensors(model, family.gguf_rows(config), None, leave=leave) | divisors
    if family.gguf in NEVER_TIED:
        tensors.setdefault("output.weight", tensors["token_embd.weight"])
    with write_whole(path, ".gguf") as partial:
        write_gguf(partial, metadata, tensors, quantize)
        check_same_config(reader, config, config_from_gguf(reader, GGUFFile(partial)))
    return path


def config_for_gguf(model: Model, head: str) -> Config:
    """The config of the model that a GGUF file with such a head will hold; ConfigError if there is none."""
    family, config = model.family, model.config
    if config.head != head and not (head == "none" and config.head in ENCODER_HEADS):
        raise ConfigError(f"GGUF has no place for a {config.head!r} head", hint=HF)
    if "pruned" in model.hf_config:
        raise ConfigError("heads were pruned from it, which GGUF cannot express", hint="export it unpruned")
    tied = getattr(config, "tied", True)
    if family.gguf in ALWAYS_TIED and not tied:
        raise ConfigError(
            f"GGUF has no place for an output matrix of a {family.name}", hint=f"tie it, or {HF}"
        )
    if family.gguf in NEVER_TIED and tied:
        config = config.change(tied=False)  # what is written has the matrix twice
    window = getattr(config, "window", None)
    if window is not None and f"{family.gguf}.attention.sliding_window" not in config_to_gguf(family, config):
        # The file cannot say so: it gets as many positions as every layer sees.
        config = config.change(window=None, context=min(window, getattr(config, "context")))  # noqa: B009
    return config


class _OnnxEncoder(nn.Module):
    """An encoder as a function of the tensors that other programs feed it."""

    def __init__(self, model: LM) -> None:
        super().__init__()
        self.model = model

    @property
    def output_name(self) -> str:
        """sentence_embedding of a model that pools, logits of one with a head, else last_hidden_state."""
        if self.model.config.head != "none":
            return "logits"
        return "last_hidden_state" if self.model.pooling is None else "sentence_embedding"

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        valid, plain = attention_mask.bool(), "reference"  # the others ask for sizes, which are not known yet
        if self.output_name == "logits":
            return self.model(input_ids, valid=valid, types=token_type_ids, backend=plain)
        hidden = self.model.encode(input_ids, valid=valid, types=token_type_ids, backend=plain)
        return hidden if self.model.pooling is None else pool(hidden, valid, self.model.pooling)


def export_onnx(model: Model, path: str | Path) -> Path:
    """Write an encoder as an ONNX file, and its tokenizer next to it as NAME.tokenizer.json.

    >>> import heedful
    >>> encoder = heedful.load("all-minilm-l6-v2")
    >>> heedful.export_onnx(encoder, "minilm.onnx").name     # doctest: +SKIP
    'minilm.onnx'

    The inputs are input_ids and attention_mask (rows, length), and token_type_ids for a model with several
    types. The output is sentence_embedding, logits or last_hidden_state. Any number of rows and any length
    work.
    """
    check_whole(model)
    if not isinstance(model, LM) or model.kind != "encoder":
        raise ConfigError(
            f"a {model.family.name} is not an encoder",
            hint="only encoders are exported to ONNX; export decoders to GGUF",
        )
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise missing_package(name, "writing ONNX")
    dense = copy.deepcopy(dense_model(model)).float().cpu().eval()
    assert isinstance(dense, LM)
    program = trace_encoder(_OnnxEncoder(dense))
    path = Path(path)
    size = sum(p.numel() * p.element_size() for p in dense.parameters())
    if size > MAX_ONNX_BYTES:  # its weights lie beside it, under a name that the file has in it
        program.save(str(path), external_data=True)
    else:
        with write_whole(path, ".onnx") as partial:
            program.save(str(partial), external_data=False)
    if model.tokenizer is not None:
        model.tokenizer.backend.save(str(path.with_suffix(".tokenizer.json")))
    return path


def trace_encoder(encoder: _OnnxEncoder) -> torch.onnx.ONNXProgram:
    """The encoder as ONNX, for any number of rows and any length that it reads."""
    config = encoder.model.config
    ids = torch.zeros(3, 8, dtype=torch.long)  # sizes that stand for any: 0 and 1 would stand for themselves
    inputs = {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": None}
    if getattr(config, "types", 0) > 1:
        inputs["token_type_ids"] = ids.clone()  # one tensor in two places would be one input
    longest = getattr(config, "context", 2**20)
    any_size = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", max=longest)}
    loggers = {name: logging.getLogger(name) for name in ("torch.onnx", "onnxscript")}
    levels = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                encoder, kwargs=inputs, dynamo=True, verbose=False, output_names=[encoder.output_name],
                input_names=[name for name, value in inputs.items() if value is not None],
                dynamic_shapes={name: None if value is None else any_size for name, value in inputs.items()},
            )  # fmt: skip
    finally:
        for name, logger in loggers.items():
            logger.setLevel(levels[name])
    assert program is not None
    fixed = [size for one in program.model.graph.inputs for size in one.shape or () if isinstance(size, int)]
    if fixed:
        raise ConfigError(
            f"ONNX would fix the sizes of this {encoder.model.family.name}'s input to {fixed}",
            hint=HF,
        )
    return program
