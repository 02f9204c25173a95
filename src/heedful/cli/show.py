"""`heed show`: the assembled tree of a model."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.output import Json, as_json, console
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from rich.text import Text

    from heedful.interp.show import Node
    from heedful.models.base import Model


def show_command(
    model: Annotated[str, typer.Argument(help="A preset (gpt2), a family, a folder or a .gguf file.")],
    names: Annotated[
        bool, typer.Option("--names", help="List the values that a Watch can see, with shapes, instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the tree of a model: its parts, their shapes, parameters and equations.

    Layers that are alike are drawn once.

    Examples:

      heed show gpt2

      heed show gpt2 --names

      heed show ./my-model --json
    """
    with show_progress(f"assembling {model}"):
        from heedful.interp.show import model_tree, node_to_dict
        from heedful.weights.loading import skeleton

        outline = skeleton(model)
    if names:
        return _show_names(outline, json)
    root = model_tree(outline)
    root.name = model
    if json:
        about = {"model": model, "family": outline.family.name, "config": _config(outline)}
        return as_json(about | {"tree": node_to_dict(root)})
    out = console()
    out.print(_heading(model, outline, root))
    for line in _tree_lines(root, "", "", set(), out.width):
        out.print(line, overflow="fold", no_wrap=False)


def _show_names(model: Model, json: bool) -> None:
    """Print the names that a Watch takes: B is the batch, T the length, S that of a source."""
    from rich.text import Text

    from heedful.interp.show import value_rows

    if json:
        return as_json({name: list(shape) for name, shape in model.names().items()})
    out, rows = console(), value_rows(model)
    shapes = [f"({', '.join(map(str, row.shape))})" for row in rows]
    wide, high = max(len(row.name) for row in rows), max(map(len, shapes))
    for row, shape in zip(rows, shapes, strict=True):
        line = Text.assemble((f"{row.name:{wide}}  ", "bold cyan"), (f"{shape:{high}}  ", "green"))
        out.print(line.append(row.meaning, "dim"), overflow="fold", no_wrap=True)


def _config(model: Model) -> dict[str, object]:
    from dataclasses import fields

    values = {f.name: getattr(model.config, f.name) for f in fields(model.config)}
    return {k: v if isinstance(v, (int, float, str, bool, type(None))) else str(v) for k, v in values.items()}


def _heading(name: str, model: Model, root: Node) -> Text:
    from rich.text import Text

    out = Text.assemble((name, "bold"), f"  ·  {model.family.paper}\n" if model.family.paper else "\n")
    config = _config(model)
    known = ("layers", "dim", "heads", "kv_heads", "hidden", "context", "vocab", "head")
    values = {k: config[k] for k in known if config.get(k) is not None}
    sizes = [f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in values.items()]
    return out.append(f"{root.parameters:,} parameters  ·  {', '.join(sizes)}\n", "dim")


def _tree_lines(node: Node, first: str, indent: str, kinds_shown: set[str], width: int) -> list[Text]:
    """Return the lines of a node and everything below it.

    `first` and `indent` are the branches before its first and its other lines. The equation of a kind in
    `kinds_shown` is not repeated.
    """
    from rich.text import Text

    count = f"{node.parameters:,}" + (f" × {node.times}" if node.times > 1 else "")
    note = f"= {node.tied}" if node.tied else count if node.parameters else ""
    settings = "  ".join(f"{k} {v:,}" for k, v in node.settings.items())
    line = Text.assemble(
        (first, "dim"), (node.name, "bold cyan"), "  ", (node.kind, "" if node.equation else "dim"),
        (f"  {node.shape}" if node.shape else "", "green"), (f"  {settings}" if settings else "", "dim"),
    )  # fmt: skip
    gap = max(2, min(width, 100) - line.cell_len - len(note))
    out = [line.append(" " * gap + note, "yellow") if note else line]
    below = indent + ("│   " if node.children else "    ")
    if node.equation and node.kind not in kinds_shown:
        kinds_shown.add(node.kind)
        for piece in textwrap.wrap(node.equation, max(20, min(width, 110) - len(below))):
            out.append(Text.assemble((below, "dim"), (piece, "italic magenta")))
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1
        branch, trunk = ("└── ", "    ") if last else ("├── ", "│   ")
        out += _tree_lines(child, indent + branch, indent + trunk, kinds_shown, width)
    return out
