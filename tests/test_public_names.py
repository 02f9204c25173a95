"""Public names, commands and their options: one that was there once may not go away.

public_names.txt has one line for each. New lines are added by `python -m tests.test_public_names`, which
keeps the old ones; a line is taken out by hand only. README.md and docs/ name nothing that is not public;
a name of a module below a package, such as heedful.interp.observe.lens.surprisal, is listed by hand.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import heedful
from heedful import cli

LIST = Path(__file__).with_name("public_names.txt")
ROOT = LIST.parents[1]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")), *(ROOT / "examples").glob("*.py")]
PACKAGES = (
    "heedful",
    "heedful.data",
    "heedful.interp",
    "heedful.nn",
    "heedful.view",
    "heedful.word2vec",
)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def public_names() -> list[str]:
    """Return what every `__all__` lists, and every command with its arguments and options."""
    names = [f"{p}.{name}" for p in PACKAGES for name in resolve(p).__all__]
    root = typer.main.get_command(cli.app)
    lines = [*(f"heed {option}" for option in options(root))]
    for command in cli.COMMANDS:
        lines += command_lines(f"heed {command}", cli.load_command(command))
    return sorted(names) + sorted(lines)


def command_lines(path: str, command: Any) -> Iterator[str]:
    """Yield a line for a command and for each of its options; a group's commands follow it."""
    yield path
    yield from (f"{path} {option}" for option in options(command))
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(f"{path} {name}", inner)


def options(command: Any) -> Iterator[str]:
    """Yield what may follow a command: each spelling of an option, and the arguments by their number."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    yield from (f"argument {number}" for number in range(1, len(arguments) + 1))
    for parameter in command.params:
        if parameter not in arguments and not parameter.name.endswith("_completion"):  # Typer's own
            yield from (*parameter.opts, *parameter.secondary_opts)


def listed() -> set[str]:
    """Return the lines of public_names.txt."""
    return set(LIST.read_text(encoding="utf-8").splitlines())


def exists(name: str) -> bool:
    """Return whether a dotted name of heedful leads somewhere; commands are no such names."""
    try:
        return name.startswith("heedful.") and resolve(name) is not None
    except AttributeError:
        return False


def resolve(name: str) -> Any:
    """Return the module, or the attribute of one, that a dotted name leads to."""
    try:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    except ModuleNotFoundError:  # a part before the last is no package
        pass
    module, _, attribute = name.rpartition(".")
    return getattr(resolve(module) if "." in module else importlib.import_module(module), attribute)


def test_no_public_name_command_or_option_is_lost() -> None:
    gone = sorted(name for name in listed() - set(public_names()) if not exists(name))
    assert not gone, f"gone: {', '.join(gone)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_imports_is_public(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    public = {".".join(name.split(".")[:n]) for name in listed() for n in range(1, 7)}  # and their packages
    unknown = sorted(documented_names(text, page.suffix == ".py") - public)
    assert not unknown, f"{page.name} names what is not public: {', '.join(unknown)}"


def documented_names(text: str, is_python: bool) -> set[str]:
    """Return the names of heedful that a page imports, uses in its Python or names in `backticks`."""
    blocks = [text] if is_python else PYTHON.findall(text)
    names: set[str] = set()
    for tree in map(ast.parse, blocks):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "heedful":
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "heedful"}
        code = ast.unparse(tree)
        names |= set(re.findall(r"\bheedful(?:\.[A-Za-z]\w*)+", code))
    quoted = re.findall(r"(?<!`)`(heedful(?:\.[A-Za-z]\w*)+)[^`]*`", "" if is_python else text)
    return {known_part(name) for name in [*names, *quoted]}


def known_part(name: str) -> str:
    """Return the part of a dotted name that is a name of heedful: heedful.Word2Vec.train is its method."""
    public = listed()
    parts = name.split(".")
    owners = [".".join(parts[:n]) for n in range(2, len(parts))]
    return next((owner for owner in owners if owner in public and isinstance(resolve(owner), type)), name)


def test_new_public_names_are_listed() -> None:
    new = set(public_names()) - listed()
    assert not new, f"run python -m tests.test_public_names to list: {', '.join(sorted(new))}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_leads_to_something(package: str) -> None:
    module = resolve(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("name", ["generate", "stream", "finetune", "evaluate", "predict", "TrainConfig"])
def test_help_shows_types_and_defaults_and_no_declarations_of_options(name: str) -> None:
    shown = str(inspect.signature(getattr(heedful, name)))
    assert "Option(" not in shown
    assert "Annotated" not in shown


if __name__ == "__main__":
    old = LIST.read_text(encoding="utf-8").splitlines() if LIST.is_file() else []
    lines = dict.fromkeys([*old, *public_names()])
    names = sorted(line for line in lines if line.startswith("heedful."))
    commands = [line for line in lines if not line.startswith("heedful.")]
    LIST.write_text("\n".join([*names, *commands]) + "\n", encoding="utf-8")
