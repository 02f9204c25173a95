"""Who may import whom, and that no part knows a model by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from heedful.models import FAMILIES, IMAGE_FAMILIES

ROOT = Path(__file__).parents[1] / "src" / "heedful"

# The floor: small modules that everyone may import, and that import nothing but each other.
FLOOR = {"errors", "checks", "files", "images", "locks", "devices", "option", "padding", "progress"}

# A folder or file of the package → what it may import beside the floor.
ALLOWED = {
    **{name: set() for name in FLOOR},
    "nn": {"kernels"},
    "kernels": set(),
    "weights": {"kernels"},
    "text": set(),
    "data": set(),
    "models": {"nn", "weights", "kernels"},
    "pooling": {"nn", "models", "text"},
    "adapters": {"nn", "weights"},
    "loading": {"models", "weights", "text", "nn", "pooling", "adapters"},
    "saving": {"models", "weights", "text", "nn", "pooling", "adapters"},
    "exporting": {"models", "weights", "text", "nn", "pooling", "saving"},
    "word2vec": {"weights", "evaluate"},
    "show": {"models", "nn", "loading"},
    "cli": {"*"},
    "commands": {"*"},
    "decode": {"models", "loading", "nn", "kernels", "text"},
    "train": {"models", "loading", "saving", "nn", "data", "weights", "kernels"},
    "inspect": {"models", "loading", "nn", "decode", "data", "text", "word2vec", "evaluate"},
    "exercises": {
        *("inspect", "models", "loading", "nn", "decode", "text", "data", "train", "word2vec", "evaluate"),
    },
    "course": set(),
    "evaluate": {"loading", "models", "data"},
    # torchrun starts a run as a module, which is then the command: hence cli
    "runs": {
        "data",
        "text",
        "models",
        "train",
        "evaluate",
        "decode",
        "loading",
        "saving",
        "weights",
        "nn",
        "pooling",
        "adapters",
        "cli",
        "tasks",
    },
    "tasks": {
        *("text", "data", "models", "decode", "evaluate", "loading", "weights", "nn", "pooling", "adapters"),
        "train",
    },
    "view": {"inspect", "models", "loading", "nn", "word2vec", "decode", "runs", "text"},
    # comparisons train, measure, fit and draw: they stand on all that does one of these
    "experiments": {
        *("data", "text", "models", "nn", "loading", "train", "runs", "inspect", "view", "decode"),
        *("evaluate", "saving"),
    },
    "studio": {"*"},
    "server": set(),
    "serve": {"decode", "loading", "models", "pooling", "tasks", "text", "server"},
    "__init__": {"*"},
}

# Parts that are named after their own paper, not after a model that uses them.
OWN_NAMES = {
    *("mamba", "mamba2", "gla", "based", "s4", "rnn", "lstm", "gru", "linear", "cnn", "luong", "bilstm"),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("heedful"):
            names = [node.module] if node.module != "heedful" else [f"heedful.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("heedful.")]
        else:
            continue
        found |= {n.split(".")[1] for n in names if "." in n}
    return found


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_layer_imports_only_what_stands_below_it(path: Path) -> None:
    here = layer(path)
    assert here in ALLOWED, f"{here} has no row in the table of layers"
    allowed = ALLOWED[here] | {here} | FLOOR
    assert "*" in allowed or imports(path) <= allowed, f"{path.name} imports {imports(path) - allowed}"


def test_parts_know_no_engine() -> None:
    """No part chooses a kernel of a decoding step or looks at a state's class to find out who asks."""
    engine = re.compile(
        r"heedful\.decode|kernels\.(gpu_step|gpu_products|gpu_attend|gpu_states)|Static\w*(KV|State)"
    )
    for path in (ROOT / "nn").glob("*.py"):
        assert not engine.search(path.read_text()), path


def test_only_the_registry_imports_a_family() -> None:
    families = {family.config.__module__ for family in (FAMILIES | IMAGE_FAMILIES).values()}
    for path in FILES:
        named = {n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)}
        assert layer(path) == "models" or not named & families, path


def test_the_tree_of_the_documentation_is_that_of_the_package() -> None:
    text = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE))
    assert drawn == {layer(path) for path in FILES} | {"bundled"}


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
    names -= {"v2", "v3", "transformer", "xlm"}
    for path in (ROOT / "nn").glob("*.py"):
        assert not words(path) & (names - {"seq2seq"}), f"{path.name}: {words(path) & names}"


def test_the_public_names_are_sorted_and_all_there() -> None:
    import heedful

    assert heedful.__all__ == sorted(heedful.__all__)
    for name in heedful.__all__:
        assert getattr(heedful, name) is not None
    with pytest.raises(AttributeError, match="no public name"):
        heedful.transform  # noqa: B018
