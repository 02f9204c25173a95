"""Imports that wait: public names that are imported when they are first used (PEP 562), optional packages.

The stub next to a package's __init__.py, __init__.pyi, is the only list of its public names. Type checkers
and editors read it, and so does `lazy_names`. Importing the package therefore costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.core.errors import MissingPackage

# An optional module → the extra of heedful that installs it.
EXTRAS = {
    "PIL": "images", "anywidget": "notebook", "datasets": "data", "fastapi": "studio", "gguf": "gguf",
    "llguidance": "constrain", "matplotlib": "plot", "numba": "fast", "onnx": "onnx", "onnxscript": "onnx",
    "openpyxl": "excel", "pyarrow": "parquet", "pydantic": "studio", "pypandoc": "slides", "ray": "ray",
    "sacrebleu": "eval", "sentencepiece": "sentencepiece", "sklearn": "space", "starlette": "serve",
    "tensorboard": "train", "traitlets": "notebook", "usearch": "search", "uvicorn": "serve",
}  # fmt: skip
PACKAGES = {
    "PIL": "Pillow",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "PyYAML",
}  # names for pip


def lazy_names(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package from the imports of its stub.

    A line is `from MODULE import NAME as PUBLIC`, or `import MODULE as PUBLIC` for a whole module.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    places: dict[str, tuple[str, str]] = {}
    for line in stub.read_text(encoding="utf-8").splitlines():
        match line.split("#")[0].split():
            case ["from", module, "import", name, "as", public]:
                # What a package imports from itself is one of its modules.
                places[public] = (f"{module}.{name}", "") if module == package else (module, name)
            case ["import", module, "as", public]:
                places[public] = module, ""

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"{package} has no public name {name!r}; it offers {', '.join(places)}")
        module, attribute = places[name]
        imported = importlib.import_module(module)
        return getattr(imported, attribute) if attribute else imported

    return sorted(places), get, lambda: sorted(places)


def import_optional(module: str, purpose: str, instead: str = "") -> Any:
    """Return a module of an optional package; raise MissingPackage with the command that installs it.

    import_optional("openpyxl", "an Excel file", "save it as .csv")
    """
    try:
        importlib.import_module(module.partition(".")[0])  # a module below it may be loaded, and it gone
        return importlib.import_module(module)
    except ModuleNotFoundError as error:  # perhaps of a package that the optional one needs
        raise missing_package(error.name or module, purpose, instead) from None
    except ImportError as error:
        raise missing_package(module, purpose, instead, f"cannot be imported ({error})") from None


def missing_package(
    module: str, purpose: str, instead: str = "", reason: str = "is not installed"
) -> MissingPackage:
    """Return the error for a module that could not be imported; `instead` is what does without it."""
    name = module.partition(".")[0]
    package = PACKAGES.get(name, name)
    install = f'pip install "heedful[{EXTRAS[name]}]"' if name in EXTRAS else f"pip install {package}"
    hint = f"install it with: {install}" + (f"; or {instead}" if instead else "")
    return MissingPackage(f"{purpose} needs the package {package}, which {reason}", hint=hint)
