"""A trained instrument (a dictionary, a lens) as one safetensors file: its tensors, and how to make it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from heedful.core.errors import CorruptFile
from heedful.core.files import missing_file, open_atomically

M = TypeVar("M", bound=nn.Module)


def save_module(module: nn.Module, path: str | Path, format: str, settings: Any) -> Path:
    """Write the tensors of a module, the name of its format, and the settings it is made from."""
    from safetensors.torch import save

    path = Path(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}
    with open_atomically(path) as file:
        file.write(save(tensors, {"format": format, "settings": json.dumps(settings)}))
    return path


def load_module(
    path: str | Path, format: str, make: Callable[[Any], M], device: str | torch.device, saved_by: str
) -> M:
    """Read what `save_module` wrote; `make` gives the module of its settings, whose tensors are then read."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CorruptFile(f"{path} is no safetensors file: {error}", hint="save it again") from None
    hint = f"give a file that {saved_by} wrote"
    if metadata.get("format") != format:
        raise CorruptFile(f"{path} is a safetensors file of another kind", hint=hint)
    try:
        module = make(json.loads(metadata["settings"]))
        module.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptFile(f"{path} does not fit together: {reason}", hint=hint) from None
    return module.to(device)
