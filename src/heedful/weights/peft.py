"""Adapters as the PEFT library keeps them: adapter_config.json and adapter_model.safetensors (or .bin).

    W + α/r · B A, or α/√r · B A (Kalajdzievski 2023), for every published matrix W that the file names

Names begin with base_model.model; tensors that are neither A nor B were trained whole: mostly a head.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError, CorruptFile, NotFound, UnexpectedTensor, WrongShape, nearest
from heedful.core.files import read_json
from heedful.weights.formats.tensor_files import PickleFile, SafeFile, TensorSource
from heedful.weights.names import Link, Row, connect, model_tensors

SETTINGS = "adapter_config.json"
KINDS: dict[str, tuple[type, ...]] = {
    "base_model_name_or_path": (str,), "r": (int,), "lora_alpha": (int, float), "use_rslora": (bool,),
    "fan_in_fan_out": (bool,), "alpha_pattern": (dict,),
}  # fmt: skip
# Other ways to adapt a matrix: what each of these settings may be here.
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "use_dora": (None, False), "bias": (None, "none"),
    "layer_replication": (None,), "target_parameters": (None, []),
}  # fmt: skip


def has_peft(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, and no model."""
    return (folder / SETTINGS).is_file() and not (folder / "config.json").is_file()


class PeftAdapter:
    """An opened adapter: `base` names the model it stands on, `whole` has the tensors trained in full."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings = folder, read_json(folder / SETTINGS)
        for key, kinds in KINDS.items():
            value = self.settings.get(key)
            if value is not None and not isinstance(value, kinds):
                raise CorruptFile(f'{folder / SETTINGS} has "{key}": {value!r:.80}', hint="fetch it again")
        for key, allowed in PLAIN.items():
            if self.settings.get(key) not in allowed:
                raise ConfigError(
                    f'{folder / SETTINGS}: "{key}": {self.settings.get(key)!r:.80} is not supported',
                    hint="merge it into its model with peft (merge_and_unload), and load that",
                )
        self.base = self.settings.get("base_model_name_or_path") or ""
        self.source = _open_tensors(folder)
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


def _open_tensors(folder: Path) -> TensorSource:
    if (folder / "adapter_model.safetensors").is_file():
        return SafeFile(folder / "adapter_model.safetensors")
    if (folder / "adapter_model.bin").is_file():
        return PickleFile([folder / "adapter_model.bin"])
    raise NotFound(f"{folder} has no adapter_model.safetensors", hint="fetch it again")


@torch.no_grad()
def merge_peft(model: nn.Module, adapter: PeftAdapter, rows: list[Row], prefix: str) -> None:
    """Add an adapter's changes to a model in place, and put what it trained whole in its place."""
    ours = model_tensors(model)
    links = {theirs: link for link in connect(rows, ours) for theirs in link.theirs}
    for layer in sorted(adapter.adapted):
        theirs, link = _find(links, f"{layer}.weight", prefix, adapter)
        change = adapter.change(layer)
        for name, value in _as_ours(link, theirs, change, ours, zero=True).items():
            ours[name].add_(value.to(ours[name].dtype))
    for name in sorted(adapter.whole):
        theirs, link = _find(links, name, prefix, adapter)
        for own, value in _as_ours(link, theirs, adapter.read(name), ours, zero=False).items():
            ours[own].copy_(value)


def _find(links: dict[str, Link], name: str, prefix: str, adapter: PeftAdapter) -> tuple[str, Link]:
    for theirs in (name, f"{prefix}.{name}"):
        if theirs in links:
            return theirs, links[theirs]
    raise UnexpectedTensor(
        f"{adapter.folder} adapts {name!r:.80}, which its model has not",
        hint=nearest(name, links) or "was it trained on another model?",
    )


def _as_ours(
    link: Link, theirs: str, value: Tensor, ours: dict[str, Tensor], *, zero: bool
) -> dict[str, Tensor]:
    """Our tensors of a link of which one published tensor is known; the others change by `zero`."""
    if len(link.theirs) > 1 and not zero:
        raise UnexpectedTensor(
            f"{theirs!r:.80} is one of several that make {link.ours[0]!r}", hint="merge it"
        )
    values = [value if name == theirs else torch.zeros_like(value) for name in link.theirs]
    shapes = [ours[name].shape for name in link.ours]
    try:
        loaded = link.op.load(values, shapes)
    except RuntimeError:
        loaded = []
    if [t.shape for t in loaded] != shapes:
        raise WrongShape(
            f"{theirs!r:.80} changes by {tuple(value.shape)}, which does not fit {link.ours[0]!r} of shape "
            f"{tuple(shapes[0])}",
            hint="was it trained on another model?",
        )
    return dict(zip(link.ours, loaded, strict=True))
