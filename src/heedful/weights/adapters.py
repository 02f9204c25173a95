"""LoRA on any model: lora, merge, and adapters as separate files (adapter.json, adapter.safetensors).

Adapters of the PEFT library are merged into the model they stand on:

    W + α/r · B A, or α/√r · B A (Kalajdzievski 2023), for every published matrix W that the file names

They lie in adapter_config.json and adapter_model.safetensors (or .bin). Names begin with base_model.model.
Tensors that are neither A nor B were trained whole: mostly a head.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import (
    ConfigError,
    CorruptFile,
    InputError,
    NotFound,
    UnexpectedTensor,
    WrongShape,
    nearest,
)
from heedful.core.files import read_json, write_json
from heedful.models.tensor_parallel import check_whole
from heedful.nn.adapt import LoRA, adapted_modules, swap
from heedful.weights.formats.tensor_files import PickleFile, SafeFile, save_tensors
from heedful.weights.names import Row, connect, load_link, model_tensors

ADAPTER_FILES = SETTINGS, TENSORS = "adapter.json", "adapter.safetensors"
KINDS: dict[str, tuple[type, ...]] = {
    "rank": (int,),
    "alpha": (int, float),
    "layers": (list,),
    "whole": (list,),
}


def lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float | None = None,
    targets: Sequence[str] | None = None,
    train: Sequence[str] = (),
) -> list[str]:
    """Add LoRA adapters: W + alpha/rank * B A, where only A and B learn (Hu et al. 2022).

    >>> import heedful
    >>> model = heedful.build("gpt2", vocab=64, dim=32, layers=1, heads=2, seed=0)
    >>> heedful.lora(model, rank=4, targets=["q", "v"])
    ['blocks.0.attn.q', 'blocks.0.attn.v']

    Args:
        rank: The number of columns of B.
        alpha: The scale. The default is twice the rank.
        targets: The last words of names ("q", "v") or paths with a wildcard ("blocks.*.attn.*"). The default
            is every linear layer except the head.
        train: Parameters that also learn in full, such as ("head.*",).

    It returns the names of the adapted layers. `merge` adds what the adapters learned to the weights.
    """
    check_whole(model)
    check_integer("rank", rank, error=ConfigError)
    if alpha is not None:
        check_number("alpha", alpha, error=ConfigError)
    if next(adapted_modules(model), None) is not None:
        raise ConfigError("this model already has an adapter", hint="call heedful.merge(model) first")
    alpha = 2.0 * rank if alpha is None else float(alpha)
    names = swap(model, lambda name, m: LoRA(m, rank, alpha) if _is_target(name, m, targets) else None)  # type: ignore[arg-type]
    if not names:
        linear = [n for n, m in model.named_modules() if type(m) is nn.Linear]
        if not linear:
            raise ConfigError(
                "this model has no linear layer in floats to adapt", hint="load it without quantization"
            )
        hint = nearest(targets[0], {n.rpartition(".")[2] for n in linear}) if targets else ""
        hint = hint or f"it has {', '.join(linear[:6])}"
        raise ConfigError(f"no linear layer matches `targets={targets!r}`", hint=hint)
    for name, parameter in model.named_parameters():
        ours = name.endswith((".down", ".up")) and name.rpartition(".")[0] in names
        parameter.requires_grad_(ours or any(fnmatch.fnmatchcase(name, pattern) for pattern in train))
    return names


def _is_target(name: str, module: nn.Module, targets: Sequence[str] | None) -> bool:
    """Whether a layer is meant: by its last word ("q"), or by its path with * ("blocks.*.attn.q")."""
    if type(module) is not nn.Linear or targets is None:
        return type(module) is nn.Linear and name.split(".")[0] != "head"
    return any(fnmatch.fnmatchcase(word, t) for word in (name, name.rpartition(".")[2]) for t in targets)


def merge(model: nn.Module) -> nn.Module:
    """Add what LoRA adapters learned to the weights, in place, and return the model.

    Afterwards the model is a plain one again, and all of its weights can be trained.

    >>> import heedful
    >>> model = heedful.build("gpt2", vocab=64, dim=32, layers=1, heads=2, seed=0)
    >>> adapted = heedful.lora(model, rank=4)
    >>> heedful.merge(model) is model
    True
    """
    check_whole(model)
    swap(model, lambda name, module: module.merged() if isinstance(module, LoRA) else None)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return model


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """A and B of every adapted layer, by name."""
    parts = ((name, layer, part) for name, layer in adapted_modules(model) for part in ("down", "up"))
    return {f"{name}.{part}": getattr(layer, part) for name, layer, part in parts}


def save_adapter(
    model: nn.Module, folder: str | Path, *, base: str | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Write what is trained of an adapted model, apart from the model it stands on.

    `base` names that model, so that the folder can be loaded by itself; it may then be a trained head alone.
    `dtype` None keeps the tensors' own.
    """
    layers = dict(adapted_modules(model))
    if not layers and base is None:
        raise InputError(
            "this model has no adapter", hint="call heedful.lora(model) first, or save the whole model"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    small = adapter_tensors(model)
    whole = {n: p for n, p in model.named_parameters() if p.requires_grad and n not in small}
    first = next(iter(layers.values()), None)
    sizes = {"rank": 0, "alpha": 0.0} if first is None else {"rank": first.rank, "alpha": first.alpha}
    settings: dict[str, Any] = {"kind": "lora" if layers else "head"} | sizes
    settings |= {"layers": list(layers), "whole": list(whole)} | ({"base": base} if base else {})
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in {**small, **whole}.items()}
    save_tensors(tensors, folder / TENSORS, {"format": "pt"})
    write_json(folder / SETTINGS, settings)
    return folder


def has_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / SETTINGS).is_file()


def adapter_base(folder: Path) -> str | None:
    """The model that an adapter's folder says it stands on; None if its weights lie next to it."""
    if not has_adapter(folder):
        return None
    try:
        base = read_json(folder / SETTINGS).get("base")
    except CorruptFile:
        return None  # a damaged file is reported by whoever reads the adapter
    return base if isinstance(base, str) else None


@torch.no_grad()
def load_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put a saved adapter on top of the model it was trained on, in place."""
    settings, tensors = read_adapter(Path(folder))
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name in settings["layers"]:
        if name not in linears:
            hint = nearest(name, linears) or "it was trained on another model"
            raise InputError(f"{folder} adapts {name!r}, which this model does not have", hint=hint)
    if settings["layers"]:
        lora(model, settings["rank"], settings["alpha"], settings["layers"], settings["whole"])
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        if name not in parameters or parameters[name].shape != value.shape:
            have = tuple(parameters[name].shape) if name in parameters else "none"
            merge(model)
            raise WrongShape(f"{folder}: {name} has shape {tuple(value.shape)}, in the model it has {have}")
        parameters[name].copy_(value)
    return model


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not has_adapter(folder):
        raise NotFound(f"{folder} has no {SETTINGS}", hint="is it the folder of an adapter?")
    settings = read_json(folder / SETTINGS)
    try:
        tensors = load_file(folder / TENSORS)
    except Exception as error:
        raise CorruptFile(
            f"{folder} holds a damaged adapter ({str(error)[:80]})", hint="save it again"
        ) from None
    for key, kinds in KINDS.items():
        value = settings.get(key)
        named = not isinstance(value, list) or all(isinstance(name, str) for name in value)
        if not isinstance(value, kinds) or isinstance(value, bool) or not named:
            raise CorruptFile(f'{folder / SETTINGS} has "{key}": {value!r:.80}', hint="save it again")
    _check_tensors(folder, settings, tensors)
    return {key: settings[key] for key in KINDS}, tensors


def _check_tensors(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise CorruptFile for an adapter that lacks a tensor it says it has, or has one of another rank."""
    parts = [f"{layer}.{part}" for layer in settings["layers"] for part in ("down", "up")]
    for name in (*parts, *settings["whole"]):
        if name not in tensors:
            raise CorruptFile(f"{folder / TENSORS} has no {name!r:.80}", hint="save it again")
    for name in parts:
        shape, rank = tuple(tensors[name].shape), settings["rank"]
        if len(shape) != 2 or shape[0 if name.endswith("down") else 1] != rank:
            raise CorruptFile(
                f"{folder}: {name!r:.80} has shape {shape} and the rank is {rank}", hint="save it again"
            )


PEFT_SETTINGS = "adapter_config.json"
PEFT_KINDS: dict[str, tuple[type, ...]] = {
    "base_model_name_or_path": (str,), "r": (int,), "lora_alpha": (int, float), "use_rslora": (bool,),
    "fan_in_fan_out": (bool,), "alpha_pattern": (dict,),
}  # fmt: skip
# Other ways to adapt a matrix: what each of these settings may be here.
PEFT_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "use_dora": (None, False), "bias": (None, "none"),
    "layer_replication": (None,), "target_parameters": (None, []),
}  # fmt: skip


def has_peft(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, and no model."""
    return (folder / PEFT_SETTINGS).is_file() and not (folder / "config.json").is_file()


class PeftAdapter:
    """An opened adapter: `base` names the model it stands on, `whole` has the tensors trained in full."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings = folder, read_json(folder / PEFT_SETTINGS)
        for key, kinds in PEFT_KINDS.items():
            value = self.settings.get(key)
            if value is not None and not isinstance(value, kinds):
                raise CorruptFile(
                    f'{folder / PEFT_SETTINGS} has "{key}": {value!r:.80}', hint="fetch it again"
                )
        for key, allowed in PEFT_PLAIN.items():
            if self.settings.get(key) not in allowed:
                raise ConfigError(
                    f'{folder / PEFT_SETTINGS}: "{key}": {self.settings.get(key)!r:.80} is not supported',
                    hint="merge it into its model with peft (merge_and_unload), and load that",
                )
        self.base = self.settings.get("base_model_name_or_path") or ""
        tensors, pickled = (folder / f"adapter_model.{ending}" for ending in ("safetensors", "bin"))
        if not tensors.is_file() and not pickled.is_file():
            raise NotFound(f"{folder} has no {tensors.name}", hint="fetch it again")
        self.source = SafeFile(tensors) if tensors.is_file() else PickleFile(pickled)
        self.names: dict[str, str] = {}  # without what PEFT puts around them → in the file
        for name in self.source.entries:
            plain = name.removeprefix("base_model.model.").replace(".modules_to_save.", ".")
            self.names[re.sub(r"\.(default|original_module)(?=\.|$)", "", plain)] = name
        self.adapted = {name.partition(".lora_")[0] for name in self.names if ".lora_" in name}
        self.whole = {name for name in self.names if ".lora_" not in name}

    def read(self, name: str) -> Tensor:
        return self.source.read(self.names[name]).float()

    def change(self, layer: str) -> Tensor:
        """What is added to the published weight of a layer."""
        table = f"{layer}.lora_embedding_A" in self.names
        down, up = (f"lora_embedding_{x}" if table else f"lora_{x}.weight" for x in "AB")
        for part in (down, up):
            if f"{layer}.{part}" not in self.names:
                raise CorruptFile(f"{self.folder} has no {part} of {layer!r:.80}", hint="fetch it again")
        A, B = self.read(f"{layer}.{down}"), self.read(f"{layer}.{up}")
        if A.ndim != 2 or B.ndim != 2 or B.shape[1] != A.shape[0]:
            shapes = f"{tuple(B.shape)} and {tuple(A.shape)}"
            raise CorruptFile(f"{self.folder}: B and A of {layer!r:.80} have shapes {shapes}")
        alpha = float(self.settings.get("lora_alpha") or 8)
        for pattern, value in (self.settings.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?{re.escape(str(pattern))}", layer):
                alpha = float(value)
        rank = A.shape[0]
        change = alpha / (rank**0.5 if self.settings.get("use_rslora") else rank) * (B @ A)
        return change.t() if table or self.settings.get("fan_in_fan_out") else change


@torch.no_grad()
def merge_peft(model: nn.Module, adapter: PeftAdapter, rows: list[Row], prefix: str) -> None:
    """Add an adapter's changes to a model in place, and put what it trained whole in its place."""
    ours = model_tensors(model)
    links = {theirs: link for link in connect(rows, ours) for theirs in link.theirs}
    parts = [(f"{layer}.weight", True) for layer in sorted(adapter.adapted)]
    for name, is_change in parts + [(name, False) for name in sorted(adapter.whole)]:
        theirs = name if name in links else f"{prefix}.{name}"
        if theirs not in links:
            raise UnexpectedTensor(
                f"{adapter.folder} adapts {name!r:.80}, which its model does not have",
                hint=nearest(name, links) or "was it trained on another model?",
            )
        link = links[theirs]
        if len(link.theirs) > 1 and not is_change:
            raise UnexpectedTensor(
                f"{theirs!r:.80} was trained whole, and only together with others it makes {link.ours[0]!r}",
                hint="merge it into its model with peft (merge_and_unload), and load that",
            )
        value = adapter.change(name.removesuffix(".weight")) if is_change else adapter.read(name)
        # The other published tensors that make ours with this one change by zero.
        values = [value if other == theirs else torch.zeros_like(value) for other in link.theirs]
        loaded = load_link(link, values, ours, hint="was it trained on another model?")
        for own, part in zip(link.ours, loaded, strict=True):
            if is_change:
                ours[own].add_(part.to(ours[own].dtype))
            else:
                ours[own].copy_(part)
