"""What a published config says, looked at before it is believed: kinds of values, sizes against the weights.

Kinds come from the fields of the family's config (`Config.check_field`); what only `read` looks at, from the
family's `reads`; and what is the same for all families stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from heedful.core.errors import ConfigError, NotFound
from heedful.core.files import read_json
from heedful.models.family import Config, Family, check_value
from heedful.weights.bases import bundled_vectors
from heedful.weights.formats.tensor_files import TensorEntry

GENERATION = "generation_config.json"  # the rules of decoding that a model comes with
TOKEN_IDS = dict.fromkeys(
    ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), "int | tuple[int, ...]"
)
COMMON = {
    **TOKEN_IDS,
    "architectures": "tuple[str, ...]", "id2label": "dict", "label2id": "dict", "num_labels": "int",
    "quantization": "dict", "sharding": "dict", "task_specific_params": "dict", "task_prompt": "str",
    "problem_type": "str", "classifier_pooling": "str",
}  # fmt: skip
ROPE = {
    "rope_theta": "float", "rope_type": "str", "type": "str", "factor": "float", "truncate": "bool",
    "original_max_position_embeddings": "int", "low_freq_factor": "float", "high_freq_factor": "float",
    "beta_fast": "float", "beta_slow": "float", "mscale": "float", "mscale_all_dim": "float",
    "attention_factor": "float", "partial_rotary_factor": "float", "short_factor": "tuple[float, ...]",
    "long_factor": "tuple[float, ...]",
}  # fmt: skip
QUANTIZATION = {"kind": "str", "group": "int", "tables": "bool", "fields": "dict"}
DEQUANTISED = "fetch the bfloat16 copy that it was made from"
QUANTISED = {
    ".weight_scale_inv": (
        "FP8", "convert them with fp8_cast_bf16.py of the DeepSeek-V3 repository, or fetch a bfloat16 copy"
    ),
    "_proj_blocks": (
        "MXFP4", "fetch a bfloat16 copy, or save one with transformers (Mxfp4Config(dequantize=True))"
    ),
    ".weight_scale": ("FP8 or 4-bit", DEQUANTISED), ".weight_packed": ("4-bit", DEQUANTISED),
    ".qweight": ("GPTQ or AWQ", DEQUANTISED), ".weight.absmax": ("bitsandbytes", DEQUANTISED),
    ".SCB": ("bitsandbytes", DEQUANTISED),
}  # fmt: skip
# Published models that read images, too, and the type and class of the text model in them, which is read.
TEXT_MODELS = {"gemma3": ("gemma3_text", "Gemma3ForCausalLM")}
LENGTHS = {"context", "window", "far", "start_token", "labels"}  # which no tensor need be as long as
FEW = 1000  # of anything, however small the file: it costs nothing


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The config.json of a folder; of a model that reads images, too, that of the text model in it."""
    path = folder / name
    if not path.is_file():
        if folder in (file.parent for file in bundled_vectors().values()):
            raise NotFound(
                f"{folder.name} are word vectors, no model",
                hint=f"open them with Word2Vec.load({folder.name!r})",
                shell=f"ask them: heed word2vec neighbours {folder.name} WORD",
            )
        files = sorted(folder.glob("*.gguf"))
        hint = f"load one of its files: {files[0]}" if files else "is it the folder of a model?"
        if (folder / "adapter_config.json").is_file():
            hint = "it is an adapter: load it, or name the model that it stands on"
        raise NotFound(f"{folder} has no {name}", hint=hint)
    hf_config: dict[str, Any] = read_json(path)
    check_kinds(f"{name}:", hf_config, TOKEN_IDS | {"text_config": "dict"})
    kind, inner = hf_config.get("model_type"), hf_config.get("text_config")
    if isinstance(kind, str) and kind in TEXT_MODELS and inner:
        text_type, architecture = TEXT_MODELS[kind]
        ids = {key: hf_config[key] for key in TOKEN_IDS if key in hf_config}
        return {**inner, **ids, "model_type": text_type, "architectures": [architecture]}
    return hf_config


def check_kinds(where: str, values: Mapping[str, Any], kinds: Mapping[str, str], minimum: int = -1) -> None:
    """Raise ConfigError for the first value that is not of its kind. What is null or missing is silence."""
    for name, kind in kinds.items():
        if values.get(name) is not None:
            check_value(f"{where} {name}", values[name], kind, minimum)


def check_hf_config(family: Family, hf_config: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first value of a config.json that its field cannot have."""
    for key, allowed in family.require.items():
        if key in hf_config and hf_config[key] not in allowed:
            raise ConfigError(
                f"config.json has {key}={hf_config[key]!r:.80}",
                hint=f"{family.name} is built here for {' or '.join(repr(a) for a in allowed)} only",
            )
    for theirs, ours in family.keys.items():
        if hf_config.get(theirs) is not None and theirs not in family.reads:
            family.config.check_field(ours, hf_config[theirs], f"config.json: {theirs}")
    check_kinds("config.json:", hf_config, {**COMMON, **family.reads})
    for key in hf_config.get("id2label") or {}:
        if not key.isdecimal():
            raise ConfigError(f"config.json: id2label has {key!r:.80}, which is no number of a label")


def check_unquantised(names: Iterable[str]) -> None:
    """Raise ConfigError if the names of a file's tensors tell that another program quantised its matrices."""
    listed = sorted(names)
    for end, (kind, hint) in QUANTISED.items():
        found = [name for name in listed if name.endswith(end)]
        if found:
            raise ConfigError(
                f"the file holds {kind} weights ({found[0]!r} is one of {len(found)}), not read here",
                hint=hint,
            )


def check_rope(where: str, rope: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first setting of rotary positions that is none."""
    check_kinds(f"config.json: {where}", rope, ROPE, minimum=1)
    for name in ("factor", "rope_theta"):
        if rope.get(name) == 0:
            raise ConfigError(f"config.json: {where} {name}=0 must be above 0")


def read_quantization(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the matrices of a model in whole numbers were rounded: `kind`, `group`, `tables`."""
    told = hf_config["quantization"]
    check_kinds("config.json: quantization", told, QUANTIZATION)
    if "kind" not in told or not isinstance(group := told.get("group"), int) or group < 2 or group % 2:
        raise ConfigError(
            f"config.json has quantization={told!r:.80}",
            hint='it should be like {"kind": "int4", "group": 32}, the group even',
        )
    return {"kind": told["kind"], "group": group, "tables": told.get("tables", False)}


def check_sizes(
    config: Config, keys: Mapping[str, str], entries: Mapping[str, TensorEntry], where: str = "config.json"
) -> None:
    """Raise ConfigError for a size that the weights cannot have, before a model of that size is made.

    No layer is without a tensor and no size without a side of one; a byte may hold two numbers.
    """
    side = max((max(entry.shape, default=0) for entry in entries.values()), default=0)
    theirs = {ours: name for name, ours in keys.items()}
    for name, value in vars(config).items():
        if isinstance(value, bool) or not isinstance(value, int) or name in LENGTHS:
            continue
        counted = name.endswith("layers")
        most = max(FEW, len(entries) if counted else 2 * side)
        if value > most:
            held = f"{len(entries):,} tensors" if counted else f"no tensor with a side over {side:,}"
            raise ConfigError(
                f"{where} has {theirs.get(name, name)}={value:,}, and the file has {held}",
                hint="does it belong to these weights?",
            )
