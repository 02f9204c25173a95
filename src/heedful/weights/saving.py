"""save: a model as a folder in Hugging Face's layout, all of it, or what it learnt on top of another."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.files import write_json
from heedful.core.images import write_image_processor
from heedful.core.sound import write_sound_processor
from heedful.models.assembled import MODEL_TYPE, has_own_parts
from heedful.models.base import Model
from heedful.models.hf_config import GENERATION, config_from, config_to, own_architecture
from heedful.models.tensor_parallel import gather_weights, is_shared
from heedful.nn.quantised import Int8Embedding, dequantise_modules
from heedful.text import save_tokenizer
from heedful.weights.adapters import ADAPTER_FILES, adapter_tensors, save_adapter
from heedful.weights.formats.tensor_files import write_safetensors
from heedful.weights.names import OWN_NAMES, Origin, published_tensors
from heedful.weights.pooling import write_pooling


def save(model: Model, folder: str | Path, *, quantized: bool = False) -> Path:
    """Write a model as a folder in the Hugging Face layout, and return the path.

    The folder has config.json, model.safetensors and the tokenizer. `heedful.load` and `transformers` open
    it.

    >>> import heedful
    >>> model = heedful.build("gpt2", vocab=64, dim=32, layers=1, heads=2, seed=0)
    >>> folder = heedful.save(model, "my-model")
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'model.safetensors']
    >>> heedful.load("my-model").config.dim
    32

    A model that was loaded gets every tensor back under its published name, in the type it has in memory.

    - An adapter is written next to the weights of its base. Call `merge` first to get one model.
    - The matrices of a quantized model are written as plain floats. With `quantized=True` they stay rounded,
      in a folder that only heedful opens.
    - A model that you assembled from parts keeps our names. Fill such a model again with `load(folder,
      into=model)`.
    - A classifier of sentence vectors has no class in `transformers`, so only heedful opens it.
    - If a model is split over processes, all of them call this function, and the first one writes.
    """
    folder = Path(folder)
    if folder.is_file():
        raise InputError(f"{folder} is a file", hint="give a folder to save in")
    if model.device.type == "meta":
        raise InputError(
            "this model is on device 'meta' and has no weights", hint="build it on a device, or load it"
        )
    if "pruned" in model.hf_config:
        raise InputError(
            "heads were pruned from it, or its table was untied, which config.json cannot express",
            hint="keep it with torch.save",
        )
    if any(map(is_shared, model.parameters())):
        with gather_weights(model):
            if dist.get_rank() == 0:
                _write_folder(model, folder)
        dist.barrier()
        return folder
    return _write_folder(model if quantized else dequantised_model(model), folder)


def _write_folder(model: Model, folder: Path) -> Path:
    """Write a model whose tensors are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    family, origin = model.family, model.origin
    adapter = adapter_tensors(model)
    if "quantization" in model.hf_config or has_own_parts(model):
        tensors, origin = published_tensors(model, OWN_NAMES, None, leave=adapter), Origin()
    else:
        tensors = published_tensors(model, family.rows(model.config), origin, leave=adapter)
    if origin is None and model.config.head == "none" and family.prefix:
        tensors = {name.removeprefix(f"{family.prefix}."): tensor for name, tensor in tensors.items()}
    write_safetensors(folder, tensors)
    write_json(folder / "config.json", _saved_config(model, tensors))
    _write_beside(model, folder)
    if adapter:
        save_adapter(model, folder)
    else:
        for name in ADAPTER_FILES:  # of an earlier model in the same folder
            (folder / name).unlink(missing_ok=True)
    return folder


def dequantised_model(model: Model) -> Model:
    """Return the model itself, or a copy of a quantised one whose matrices are plain floats again."""
    if "quantization" not in model.hf_config:
        return model
    made = copy.deepcopy(model)
    dequantise_modules(made)
    made.tie()
    made.hf_config = {name: value for name, value in model.hf_config.items() if name != "quantization"}
    return made


def save_without_weights(model: Model, folder: Path) -> None:
    """Write all of a model but its tensors, which lie in shards next to it under our own names.

    `sharding` in config.json has the fields that published names would tell.
    """
    hf_config = _saved_config(model, {})
    hf_config |= {"sharding": {"fields": _untold_fields(model, hf_config)}}
    write_json(folder / "config.json", hf_config)
    _write_beside(model, folder)


def save_on_base(model: Model, folder: str | Path, base: str, dtype: torch.dtype = torch.float16) -> Path:
    """Write only what was learnt on top of `base`: adapter, trained head, config.

    `base` is anything `load` accepts (an installed model's name, a folder, a hub id), which finds it again.
    """
    folder = save_adapter(model, folder, base=base, dtype=dtype)
    hf_config = config_to(model.family, model.config, model.hf_config)
    write_json(folder / "config.json", hf_config)
    return folder


def _write_beside(model: Model, folder: Path) -> None:
    """Write what belongs to a model besides its config and its tensors: settings, tokenizer, pooling."""
    (folder / GENERATION).unlink(missing_ok=True)  # an earlier model's rules are not this one's
    if model.generation:
        write_json(folder / GENERATION, model.generation)
    typed = "types" in model.config.field_names() and getattr(model.config, "types") > 1  # noqa: B009
    save_tokenizer(model.tokenizer, folder, types=typed)
    write_pooling(model.pooling, folder, model.config.dim)
    if model.image_processor is not None:
        write_image_processor(model.image_processor, folder)
    if model.sound_processor is not None:
        write_sound_processor(model.sound_processor, folder)


def _saved_config(model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config.json of published `tensors`; a quantised model's has the fields that neither tells."""
    hf_config = config_to(model.family, model.config, model.hf_config)
    if has_own_parts(model):
        own = f"{MODEL_TYPE}-{type(getattr(model, 'head', None)).__name__}"
        hf_config |= {"model_type": MODEL_TYPE, "architectures": [own]}
    elif "quantization" in hf_config:
        stored = {k: v for k, v in hf_config.pop("quantization").items() if k != "fields"}
        # Another program would miss every rounded matrix and draw one of its own: it must not know the type.
        hf_config["model_type"] = f"heedful-{model.family.name}"
        hf_config["architectures"] = [own_architecture(model.family, model.config.head)]
        more = _untold_fields(model, hf_config, tensors)
        hf_config["quantization"] = stored | ({"fields": more} if more else {})
    # What it computes in: the type of a rounded table's vectors, or of the first float weight.
    rounded = [m.dtype for m in model.modules() if isinstance(m, Int8Embedding)]
    floats = (p for n, p in model.named_parameters() if p.is_floating_point() and not n.endswith(".scale"))
    hf_config["dtype"] = str(rounded[0] if rounded else next(floats).dtype).removeprefix("torch.")
    if model.origin is None:  # built here: other programs would take the ids of the published vocabulary
        for role in ("bos", "eos", "pad"):
            token = getattr(model.tokenizer, role, None)
            if token is not None and hf_config.get(f"{role}_token_id") is None:
                hf_config[f"{role}_token_id"] = token
    return hf_config


def _untold_fields(model: Model, hf_config: dict[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of the model's config that config.json and the names of its tensors do not tell."""
    given = config_from(model.family, hf_config, names)
    ours = {f.name: getattr(model.config, f.name) for f in fields(model.config)}
    return {name: value for name, value in ours.items() if value != getattr(given, name)}
