"""`heed recipes` and `heed recipe cp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.output import Json, as_json, console, table
from heedful.errors import InputError, NotFound, nearest

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Copy a recipe, to change it.",
)


def recipes(json: Json = False) -> None:
    """Every recipe: what it trains and what for.

    Examples:

      heed recipes

      heed recipe cp gpt2 mine.yaml
    """
    from heedful.runs.recipes import RECIPES

    if json:
        rows = [
            {"name": n, "family": r.family, "objective": r.objective, "what": r.what}
            for n, r in RECIPES.items()
        ]
        return as_json({"recipes": rows})
    listed = table(
        "recipe", "family", "objective", "steps", "what for", right=("steps",), whole=("recipe", "family")
    )
    for name, r in RECIPES.items():
        listed.add_row(name, r.family, r.objective, f"{r.train.steps:,}", r.what)
    console().print(listed)


@app.callback()
def recipe() -> None:
    """Copy a recipe, to change it."""


@app.command()
def cp(
    name: Annotated[str, typer.Argument(help="A recipe.")],
    path: Annotated[Path | None, typer.Argument(help="The file to write; NAME.yaml.")] = None,
) -> None:
    """Write a recipe as YAML; `heed train FILE.yaml DATA` takes it.

    Examples:

      heed recipe cp gpt2 mine.yaml
    """
    from heedful.runs.recipes import RECIPES
    from heedful.runs.settings import Chosen, write

    if name not in RECIPES:
        raise NotFound(
            f"no recipe is called {name!r}", hint=nearest(name, RECIPES) or "list them with: heed recipes"
        )
    path = path or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(f"{path} is there already", hint="name another file")
    path.write_text(f"# {RECIPES[name].what}\n{write(Chosen(name, RECIPES[name]))}", encoding="utf-8")
    print(path)
