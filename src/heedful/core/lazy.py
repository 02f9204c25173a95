"""Public names of a package that are imported when they are first used (PEP 562).

The stub next to a package's __init__.py, __init__.pyi, is the only list of its public names. Type checkers
and editors read it, and so does `lazy_names`. Importing the package therefore costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path


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
