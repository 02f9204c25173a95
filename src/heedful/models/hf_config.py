"""Published config.json files: to our configs and back, strictly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from heedful.core.errors import ConfigError, HeedfulError, NotFound, WeightsError
from heedful.core.files import read_json
from heedful.models.family import Config, Family, check_value
from heedful.nn.position import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    NTKScaling,
    Scaling,
    YarnScaling,
    frequencies,
    yarn_gain,
)
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.formats.tensor_files import TensorEntry
from heedful.weights.hub import bundled_vectors

TRAINED = "original_max_position_embeddings"  # the length that a model was trained on before
# rope_type → its class, and the fields of that by their keys.
SCALINGS: dict[str, tuple[type[Scaling], dict[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "dynamic": (NTKScaling, {"factor": "factor"}),
    "yarn": (YarnScaling, {
        "factor": "factor", TRAINED: "context", "beta_fast": "fast", "beta_slow": "slow", "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim", "attention_factor": "attention_factor", "truncate": "truncate",
    }),
    "llama3": (Llama3Scaling, {
        "factor": "factor", TRAINED: "context", "low_freq_factor": "low", "high_freq_factor": "high",
    }),
    "longrope": (LongScaling, {
        "factor": "factor", TRAINED: "context", "short_factor": "short", "long_factor": "long",
        "attention_factor": "attention_factor",
    }),
}  # fmt: skip
NEEDED = ("low_freq_factor", "high_freq_factor", "short_factor", "long_factor")


def read_rope(hf_config: dict[str, Any], context: int) -> tuple[float, Scaling | None]:
    """Base and scaling of rotary positions: `rope_parameters`, or the older `rope_theta`, `rope_scaling`."""
    check_kinds("config.json:", hf_config, {"rope_scaling": "dict", "rope_parameters": "dict"})
    check_rope("", {"rope_theta": hf_config.get("rope_theta")})
    older, newer = (dict(hf_config.get(key) or {}) for key in ("rope_scaling", "rope_parameters"))
    for stated in (older, newer):
        if "long_factor" in stated:  # early files call it su, or yarn, with which it shares no equation
            stated["rope_type"] = "longrope"
        if "short_mscale" in stated:  # Phi-3.5-MoE states the gain under two names, and one number
            stated["attention_factor"] = stated["short_mscale"]
    kinds = [stated.get("rope_type", stated.get("type")) for stated in (older, newer)]
    if None not in kinds and kinds[0] != kinds[1]:  # as after an edit of a file that a newer program saved
        raise ConfigError(
            f"config.json has rope_scaling of type {kinds[0]!r:.40} and rope_parameters of {kinds[1]!r:.40}",
            hint="leave only what is meant, in rope_parameters, with its rope_theta",
        )
    rope = older | newer
    check_rope("rope_scaling", rope)
    base = float(rope.get("rope_theta", hf_config.get("rope_theta", 10000.0)))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default" or not rope:
        return base, None
    if kind not in SCALINGS:
        raise ConfigError(
            f"`rope_type={kind!r:.80}` is unknown", hint=f"this version builds default, {', '.join(SCALINGS)}"
        )
    scaling, keys = SCALINGS[kind]
    beside = hf_config.get(TRAINED) if kind == "longrope" else None  # Phi-3 has it next to its rope_scaling
    trained = int(rope.get(TRAINED) or beside or context)
    values: dict[str, Any] = {"factor": context / trained if kind in ("yarn", "longrope") else 1.0}
    for theirs, ours in keys.items():
        value = rope[theirs] if theirs in NEEDED else rope.get(theirs)
        if value is not None and (value or theirs != "factor"):
            number = float(value) if ours in ("factor", "low", "high") else value
            values[ours] = tuple(map(float, value)) if isinstance(value, list) else number
    lengths = {"context": context if kind == "dynamic" else trained} if kind != "linear" else {}
    return base, scaling(**values | lengths)


def read_rope_fields(family: Family, hf_config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of rotary positions, where a family's config has some and `read` did not tell them.

    Where a part of each head is turned, its share stands in `rope_parameters`, or next to it. Layers with a
    window are those that `layer_types` lists; without a list, the config's own default.
    """
    field_names, fields = family.config.field_names(), dict[str, Any]()
    if "local" in field_names and "local" not in values:
        every, layers = hf_config.get("sliding_window_pattern"), values.get("layers")
        if hf_config.get("layer_types") is not None:
            fields["local"] = read_local_layers(hf_config, ())
        elif isinstance(every, int) and every > 0 and layers:
            fields["local"] = tuple(i for i in range(layers) if (i + 1) % every)
    if "rope_scaling" not in field_names or "rope_scaling" in values:
        return fields
    context = values.get("context") or default_value(family.config, "context")
    if "local_rope_base" in field_names:
        return fields | read_rope_by_kind(family, hf_config, context)
    older = hf_config.get("rotary_emb_base")
    rope_values = hf_config if older is None else {"rope_theta": older, **hf_config}
    fields["rope_base"], fields["rope_scaling"] = read_rope(rope_values, context)
    if "rope_dim" in field_names and "rope_dim" not in family.keys.values():
        share, rope = 1.0, (hf_config.get("rope_scaling") or {}) | (hf_config.get("rope_parameters") or {})
        for key in ("rotary_pct", "partial_rotary_factor"):
            share = rope.get(key, hf_config.get(key, share))
        size = values.get("head_dim") or values["dim"] // values["heads"]
        fields["rope_dim"] = int(size * share)
    return fields


GLOBAL, LOCAL = "full_attention", "sliding_attention"
KINDS = {GLOBAL: "", LOCAL: "local_"}  # of layers, and how the names of their fields begin
# What older files call their bases: as the family declares in `reads`, otherwise as Gemma 3 does.
OLDER = {GLOBAL: ("rope_theta", "global_rope_theta"), LOCAL: ("rope_local_base_freq", "local_rope_theta")}


def read_rope_by_kind(family: Family, hf_config: dict[str, Any], context: int) -> dict[str, Any]:
    """Return the fields of rotary positions that differ between layers with and without a window."""
    check_kinds("config.json:", hf_config, {"rope_parameters": "dict"})
    stated, out = hf_config.get("rope_parameters") or {}, dict[str, Any]()
    for kind, prefix in KINDS.items():
        gemma, own = OLDER[kind]
        older = hf_config.get(own if own in family.reads else gemma)
        usual = default_value(family.config, f"{prefix}rope_base") or out["rope_base"]
        rope = {"rope_theta": usual if older is None else older}
        rope["rope_parameters"] = stated.get(kind)
        scalable = f"{prefix}rope_scaling" in family.config.field_names()
        scaled = {"rope_scaling": hf_config.get("rope_scaling")} if scalable else {}
        out[f"{prefix}rope_base"], scaling = read_rope(rope | scaled, context)
        if scalable:
            out[f"{prefix}rope_scaling"] = scaling
        elif scaling is not None:
            raise ConfigError(
                "config.json rescales the rotary positions of layers with a window",
                hint=f"no published {family.name} does",
            )
    return out


def write_rope_fields(family: Family, config: Config) -> dict[str, Any]:
    """The published keys that `read_rope_fields` reads back."""
    values, field_names, out = vars(config), config.field_names(), dict[str, Any]()
    if "local" in field_names and values["window"] is not None:
        out["layer_types"] = write_layer_types(config.layers, values["local"])
    if "rope_scaling" not in field_names:
        return out
    if "local_rope_base" in field_names:
        ropes = {k: (values[f"{p}rope_base"], values.get(f"{p}rope_scaling")) for k, p in KINDS.items()}
        return out | {"rope_parameters": {kind: write_rope(*rope) for kind, rope in ropes.items()}}
    rope = write_rope(values["rope_base"], values["rope_scaling"])
    if "rope_dim" in field_names and "rope_dim" not in family.keys.values():
        size, turned = getattr(config, "head_dim"), values["rope_dim"]  # noqa: B009
        share = turned / size
        # A quotient rounded down would leave out a pair.
        rope["partial_rotary_factor"] = math.nextafter(share, 1.0) if int(size * share) < turned else share
    return out | {"rope_parameters": rope}


def default_value(kind: type[Config], name: str) -> Any:
    """Return the default of a config's field."""
    return next(f.default for f in fields(kind) if f.name == name)


def read_local_layers(
    hf_config: Mapping[str, Any], default: Iterable[int], local: str = "sliding_attention"
) -> tuple[int, ...]:
    """The layers whose positions see only a window: by `layer_types`, or the `default` ones if it has none.

    `local` is what such a layer is called there; others have another word, and remember instead.
    """
    check_kinds("config.json:", hf_config, {"layer_types": "tuple[str, ...]"})
    kinds = hf_config.get("layer_types")
    if kinds is None:
        return tuple(default)
    other = [kind for kind in kinds if kind not in (local, "full_attention")]
    if other:
        raise ConfigError(
            f"config.json: layer_types has {other[0]!r:.80}",
            hint=f"layers are built here for {local!r} and 'full_attention'",
        )
    return tuple(i for i, kind in enumerate(kinds) if kind == local)


def write_layer_types(layers: int, local: Sequence[int], word: str = "sliding_attention") -> list[str]:
    """The `layer_types` that `read_local_layers` reads back."""
    return [word if i in local else "full_attention" for i in range(layers)]


def read_gguf_rope(
    rope_settings: Mapping[str, Any], divisors: Sequence[float], base: float, context: int
) -> Scaling | None:
    """The scaling of a GGUF file, by its metadata (linear, yarn) or by a divisor of each frequency.

    Llama 3.1 and later list divisors and nothing else: where its rule makes them, the largest is its factor;
    others are kept as they are. A factor without a rule is linear, as llama.cpp has it.
    """
    kind, factor = rope_settings.get("type", "linear"), rope_settings.get("factor") or 1.0
    more = sorted(rope_settings.keys() - GGUF_ROPE.keys())
    gain, listed = rope_settings.get("attn_factor", 1.0), any(d != 1 for d in divisors)
    if listed and kind in ("none", "linear") and factor == gain == 1 and not more:
        size = torch.tensor([[context]])
        for trained in (8192, rope_settings.get("original_context_length", 8192)):
            guess = Llama3Scaling(max(divisors), int(trained))
            plain, scaled = (frequencies(2 * len(divisors), base, s, size)[0][0] for s in (None, guess))
            if torch.allclose(plain / scaled, torch.tensor(divisors), rtol=1e-3):
                return guess
        return LongScaling(max(divisors), context, tuple(divisors), tuple(divisors), 1.0)
    if (kind == "none" and not listed) or (kind == "linear" and factor == 1 and gain == 1 and not more):
        return None
    if kind not in ("linear", "yarn") or more or (kind == "linear" and gain != 1) or listed:
        beside = more or (["rope_freqs"] if listed else ["attn_factor"] if gain != 1 else [])
        what = f"rope scaling {kind!r:.40}" + (f" with {', '.join(beside)}" if beside else "")
        raise WeightsError(
            f"{what} is not read from GGUF", hint="load the model's safetensors folder instead"
        )
    rope = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        names = {
            "original_context_length": "original_max_position_embeddings", "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
        }  # fmt: skip
        rope |= {theirs: rope_settings.get(name) for name, theirs in names.items()}
        rope["attention_factor"] = None if gain == 1 else gain * yarn_gain(factor)
    return read_rope({"rope_scaling": rope}, context)[1]


def config_from_gguf(family: Family, source: GGUFFile) -> Config:
    """Our config from the metadata of a GGUF file."""
    for theirs, ours in family.gguf_keys.items():
        if theirs in source.metadata:
            family.config.check_field(ours, source.metadata[theirs], f"{source.path}: {theirs}")
    values = {"head": family.gguf_head} | source.config(family.gguf_keys)
    for ours, (tensor, present, absent) in family.gguf_tensors.items():
        values[ours] = present if tensor in source.entries else absent
    values |= family.gguf_read(source) if family.gguf_read else {}
    scaling, divisors = source.rope()
    check_kinds(f"{source.path}: rope scaling", scaling, GGUF_ROPE, minimum=1)
    if "rope_scaling" in family.config.field_names() and "rope_scaling" not in values:
        base = values.setdefault("rope_base", 10000.0)  # what llama.cpp takes where a file has none
        values["rope_scaling"] = read_gguf_rope(scaling, divisors, base, values.get("context", 2048))
    return family.config.strict(**values)


GGUF_ROPE = {
    "type": "str", "factor": "float", "original_context_length": "int", "finetuned": "bool",
    "attn_factor": "float", "yarn_beta_fast": "float", "yarn_beta_slow": "float",
}  # fmt: skip


def write_rope(base: float, scaling: Scaling | None) -> dict[str, Any]:
    """The `rope_parameters` that `read_rope` reads back."""
    out: dict[str, Any] = {"rope_theta": base, "rope_type": "default"}
    for kind, (made, keys) in SCALINGS.items():
        if type(scaling) is made:
            values = {theirs: getattr(scaling, ours) for theirs, ours in keys.items()}
            stated = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
            out |= {"rope_type": kind} | {k: v for k, v in stated.items() if k != "truncate" or not v}
    return out


def config_from(family: Family, hf_config: dict[str, Any], names: Iterable[str] = ()) -> Config:
    """Our config from a published one; `names` are those of the file's tensors, for what only they tell."""
    check_hf_config(family, hf_config)
    check_unquantised(names)
    absent = dict(family.absent)
    if "rope_parameters" in absent and hf_config.get("rope_scaling"):  # then only the base is left out
        absent["rope_theta"] = absent.pop("rope_parameters").get("rope_theta")
    hf_config = absent | hf_config
    values: dict[str, Any] = {}
    optional = {f.name for f in fields(family.config) if "None" in str(f.type)}
    for theirs, ours in family.keys.items():
        # null is silence, but for fields that may be None
        if hf_config.get(theirs) is not None or (theirs in hf_config and ours in optional):
            values.setdefault(ours, hf_config[theirs])
    stated = {k: v for k, v in hf_config.items() if v is not None or "None" in family.reads.get(k, "")}
    try:
        values |= family.read(stated) if family.read else {}
        values |= read_rope_fields(family, stated, values)
    except KeyError as error:
        raise ConfigError(
            f"config.json has no {error.args[0]!r:.80}, which a {family.name} needs", hint="fetch it again"
        ) from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, HeedfulError):
            raise
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"config.json does not describe a {family.name} ({problem:.160})", hint="fetch it again"
        ) from None
    values["head"] = head_kind(family, hf_config)
    if hf_config.get("id2label"):
        values["labels"] = len(hf_config["id2label"])
    elif hf_config.get("num_labels"):
        values["labels"] = hf_config["num_labels"]
    own = str(hf_config.get("model_type")).startswith("heedful-")  # a published class may mean its own head
    if own and values["head"] == "classify" and hf_config.get("classifier_pooling"):
        values["classifier_pooling"] = hf_config["classifier_pooling"]
    field_names = set(family.config.field_names())
    wrong = {n: v for n, v in values.items() if n not in field_names}
    if wrong:
        raise ConfigError(
            f"{family.name} has no field for {wrong}", hint="the family's table of keys is wrong"
        )
    if family.infer is not None:
        values |= family.infer(set(names), values)
    # A quantised or a sharded model states further fields: its tensors do not bear published names.
    for part in (hf_config.get("quantization"), hf_config.get("sharding")):
        further = part.get("fields") if isinstance(part, dict) else None
        values |= further if isinstance(further, dict) else {}
    return family.config.strict(**values)


def read_part(
    config: type[Config], part: Mapping[str, Any], keys: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Our fields from a config that stands within a published one; null is silence."""
    stated = {theirs: ours for theirs, ours in keys.items() if part.get(theirs) is not None}
    for theirs, ours in stated.items():
        config.check_field(ours, part[theirs], f"config.json: {where} {theirs}")
    return {ours: part[theirs] for theirs, ours in stated.items()}


def head_kind(family: Family, hf_config: dict[str, Any]) -> str:
    """The kind of head that `architectures` names; without one the backbone alone."""
    named = hf_config.get("architectures") or []
    if not named:
        return "none"
    for kind, architecture in family.heads.items():
        if named[0] == architecture:
            return kind
    own = own_architecture(family, "")
    if str(named[0]).startswith(own):
        return str(named[0]).removeprefix(own)
    names = ", ".join(family.heads.values())
    raise ConfigError(
        f'config.json has "architectures": {named!r:.80}', hint=f"{family.name} is built here as {names}"
    )


def own_architecture(family: Family, head: str) -> str:
    """The name of a model that `transformers` has no class for."""
    return f"heedful-{family.name}-{head}"


def config_to(family: Family, config: Config, hf_config: dict[str, Any]) -> dict[str, Any]:
    """The published config of ours: what it came with, with every value of ours put in place."""
    out = (family.usual(config) if family.usual else {}) | hf_config
    out.pop("classifier_pooling", None)
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    done: set[str] = set()
    for theirs, ours in family.keys.items():
        # Where several of their keys mean one of ours, the first speaks; the others follow only if new.
        if ours not in done or theirs not in out:
            out[theirs] = values[ours]
        done.add(ours)
    written = write_rope_fields(family, config) | (family.write(config) if family.write else {})
    out |= written | {name: (out.get(name) or {}) | written[name] for name in family.merges}
    own, types = own_architecture(family, config.head), family.model_types or (f"heedful-{family.name}",)
    out["architectures"] = [family.heads.get(config.head, own)]
    ours_alone = str(written.get("model_type", "")).startswith("heedful-")
    if config.classifier_pooling:
        out["classifier_pooling"] = config.classifier_pooling
    if ours_alone or config.classifier_pooling:  # no other program may take it for the published class
        out["architectures"] = [own]
        types = (f"heedful-{family.name}",)
    out["model_type"] = hf_config.get("model_type") if hf_config.get("model_type") in types else types[0]
    if config.head in ("classify", "tag") and len(out.get("id2label") or {}) != config.labels:
        out["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.labels)}
        out["label2id"] = {f"LABEL_{i}": i for i in range(config.labels)}
    return out


# What a published config says, looked at before it is believed: kinds of values, sizes against the weights.
#
# Kinds come from the fields of the family's config (`Config.check_field`); what only `read` looks at, from
# the family's `reads`; and what is the same for all families stands here.


GENERATION = "generation_config.json"  # the rules of decoding that a model comes with
TOKEN_IDS = dict.fromkeys(
    ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), "int | tuple[int, ...]"
)
COMMON = {
    **TOKEN_IDS,
    "architectures": "tuple[str, ...]", "id2label": "dict", "label2id": "dict", "num_labels": "int",
    "quantization": "dict", "sharding": "dict", "task_specific_params": "dict", "task_prompt": "str",
    "problem_type": "str", "classifier_pooling": "str", "partial_rotary_factor": "float",
    "rotary_pct": "float", "rotary_emb_base": "float", "sliding_window_pattern": "int | str",
    "rope_local_base_freq": "float",
}  # fmt: skip
ROPE = {
    "rope_theta": "float", "rope_type": "str", "type": "str", "factor": "float", "truncate": "bool",
    "original_max_position_embeddings": "int", "low_freq_factor": "float", "high_freq_factor": "float",
    "beta_fast": "float", "beta_slow": "float", "mscale": "float", "mscale_all_dim": "float",
    "attention_factor": "float", "partial_rotary_factor": "float", "short_factor": "tuple[float, ...]",
    "long_factor": "tuple[float, ...]", "short_mscale": "float", "long_mscale": "float",
}  # fmt: skip
QUANTIZATION = {"kind": "str", "group": "int", "tables": "bool", "fields": "dict"}
DEQUANTISED = "fetch the bfloat16 copy that it was made from"
QUANTISED = {
    ".weight_scale_inv": (
        "FP8", "convert them with fp8_cast_bf16.py of the DeepSeek-V3 repository, or fetch a bfloat16 copy"
    ),
    "_proj_blocks": (
        "MXFP4", "fetch a bfloat16 copy, or save one with transformers (`Mxfp4Config(dequantize=True)`)"
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
    """The config.json of a folder; for a model that also reads images, that of its text model."""
    path = folder / name
    if not path.is_file():
        if folder in (file.parent for file in bundled_vectors().values()):
            raise NotFound(
                f"{folder.name} are word vectors, no model",
                hint=f"heedful.word2vec opens them; heed word2vec neighbours {folder.name} WORD asks them",
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
                f'config.json has "{key}": {hf_config[key]!r:.80}',
                hint=f"{family.name} is built here for {' or '.join(repr(a) for a in allowed)} only",
            )
    for theirs, ours in family.keys.items():
        if hf_config.get(theirs) is not None and theirs not in family.reads:
            family.config.check_field(ours, hf_config[theirs], f"config.json: {theirs}")
    check_kinds("config.json:", hf_config, {**COMMON, **family.reads})
    for key in hf_config.get("id2label") or {}:
        if not key.isdecimal():
            raise ConfigError(f"config.json: id2label has {key!r:.80}, which is not the number of a label")


def check_unquantised(names: Iterable[str]) -> None:
    """Raise ConfigError if the names of a file's tensors tell that another program quantised its matrices."""
    listed = sorted(names)
    for end, (kind, hint) in QUANTISED.items():
        matches = [name for name in listed if name.endswith(end)]
        if matches:
            raise ConfigError(
                f"the file holds {kind} weights ({matches[0]!r} is one of {len(matches)}), not supported",
                hint=hint,
            )


def check_rope(where: str, rope: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first setting of rotary positions that is none."""
    check_kinds(f"config.json: {where}".rstrip(), rope, ROPE, minimum=1)
    for name in ("factor", "rope_theta"):
        if rope.get(name) == 0:
            raise ConfigError(f'config.json: "{name}": 0 of {where} must be above 0')


def read_quantization(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the matrices of a model in whole numbers were rounded: `kind`, `group`, `tables`."""
    stored = hf_config["quantization"]
    check_kinds("config.json: quantization", stored, QUANTIZATION)
    if "kind" not in stored or not isinstance(group := stored.get("group"), int) or group < 2 or group % 2:
        raise ConfigError(
            f'config.json has "quantization": {stored!r:.80}',
            hint='it should be like {"kind": "int4", "group": 32}, the group even',
        )
    return {"kind": stored["kind"], "group": group, "tables": stored.get("tables", False)}


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
            contents = f"{len(entries):,} tensors" if counted else f"no tensor with a side over {side:,}"
            raise ConfigError(
                f'{where} has "{theirs.get(name, name)}": {value:,}, and the file has {contents}',
                hint="does it belong to these weights?",
            )
