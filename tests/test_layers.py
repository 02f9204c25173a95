"""Who may import whom, and that no part knows a model by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from heedful.models import FAMILIES, MEDIA_MODULES, MODULES

ROOT = Path(__file__).parents[1] / "src" / "heedful"

# A package → the packages that it may import; everybody may import core and itself. Bottom up, as in
# docs/architecture.md. Where a part of a package stands elsewhere than the rest, it has a row of its own.
TABLES = ("weights.names", "weights.ops", "weights.formats", "weights.hub")  # they know no model
LAYERS: dict[str, tuple[str, ...]] = {
    "core": (),
    "kernels": (),
    "text": (),
    "data": (),
    **{table: ("kernels", *TABLES) for table in TABLES},
    "nn": ("kernels",),
    "models": ("nn", "kernels", *TABLES),
    "weights": ("models", "nn", "kernels", "text", *TABLES),
    "tasks.metrics": ("models",),
    "word2vec": ("weights.formats", "weights.hub", "tasks.metrics"),
    "decode": ("models", "nn", "kernels", "text"),
    "train": ("weights", "models", "nn", "kernels", "data", *TABLES),
    # torchrun starts a run as a module, which is then the command: hence cli
    "train.recipes": ("train", "decode", "tasks.metrics", "weights", "models", "nn", "text", "data", "cli"),
    "tasks": (
        "train",
        "train.recipes",
        "decode",
        "weights",
        "models",
        "nn",
        "text",
        "data",
        "tasks.metrics",
        *TABLES,
    ),
    "interp": ("train", "decode", "weights", "weights.formats", "models", "nn", "text", "data", "word2vec"),
    "serve": ("tasks", "decode", "weights", "models", "text"),
    "classroom": ("*",),
    "cli": ("*",),
    "__init__": ("*",),
}

# Parts that are named after their own paper, not after a model that uses them.
OWN_NAMES = {
    *("mamba", "mamba2", "gla", "based", "s4", "rnn", "lstm", "gru", "linear", "cnn", "luong", "bilstm"),
}


def layer(name: str) -> str:
    """Return the row of LAYERS that a module belongs to: the longest one that its name begins with."""
    return max((row for row in LAYERS if f"{name}.".startswith(f"{row}.")), key=len)


def module_name(path: Path) -> str:
    """Return the name of a module below heedful: "nn.attend"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])


def imports(path: Path) -> set[str]:
    """Return the modules of heedful that a file imports, by their names below it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "heedful":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("heedful.")}
    return {name.partition(".")[2] for name in names}


FILES = sorted(ROOT.rglob("*.py"))


def test_a_layer_imports_only_what_stands_below_it() -> None:
    above = []
    for path in FILES:
        here = layer(module_name(path))
        allowed = {here, "core", "__init__", *LAYERS[here]}
        if "*" not in allowed:
            above += [f"{path}: {name}" for name in sorted(imports(path)) if layer(name) not in allowed]
    assert not above


def test_parts_know_no_engine() -> None:
    """No part chooses a kernel of a decoding step or looks at a state's class to find out who asks."""
    engine = re.compile(r"heedful\.decode|kernels\.gpu\.(step|products|attend|states)|Static\w*(KV|State)")
    for path in (ROOT / "nn").rglob("*.py"):
        assert not engine.search(path.read_text()), path


def test_only_the_registry_imports_a_family() -> None:
    families = {module.__name__ for module in (*MODULES, *MEDIA_MODULES)}
    for path in FILES:
        named = {n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)}
        assert layer(module_name(path)) == "models" or not named & families, path


def test_the_tree_of_the_documentation_is_that_of_the_package() -> None:
    text = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE))
    assert drawn == {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} | {"bundled"}


def words(path: Path) -> set[str]:
    """Identifiers and strings of a file, docstrings left out, in lower-case words."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            text = node.name
        elif isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.arg):
            text = node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value
        else:
            continue
        found |= {w.lower() for w in re.findall(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])[0-9]*", text)}
    return found


def test_no_part_knows_a_model_by_name() -> None:
    names = {piece for family in FAMILIES for piece in family.replace("-", "_").split("_")} - OWN_NAMES
    names -= {"v2", "v3", "transformer", "xlm", "text", "decoder", "generation", "small"}
    for path in (ROOT / "nn").rglob("*.py"):
        assert not words(path) & (names - {"seq2seq"}), f"{path.name}: {words(path) & names}"


def test_the_public_names_are_sorted_and_all_there() -> None:
    import heedful

    assert heedful.__all__ == sorted(heedful.__all__)
    for name in heedful.__all__:
        assert getattr(heedful, name) is not None
    with pytest.raises(AttributeError, match="no public name"):
        heedful.transform  # noqa: B018
