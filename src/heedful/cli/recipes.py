"""`heed recipes` lists the training recipes; `heed recipe cp` copies one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import Json, as_json, console, make_table
from heedful.core.errors import InputError, NotFound, nearest

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Copy a recipe to a file, to change it.",
)


def recipes_command(json: Json = False) -> None:
    """List the training recipes and what each is for.

    Examples:

      heed recipes

      heed recipe cp gpt2 mine.yaml
    """
    from heedful.train.recipes.recipes import RECIPES

    if json:
        rows = [
            {"name": n, "family": r.family, "objective": r.objective, "what": r.what}
            for n, r in RECIPES.items()
        ]
        return as_json({"recipes": rows})
    listing = make_table(
        "recipe", "family", "objective", "steps", "what for", right=("steps",), unbroken=("recipe", "family")
    )
    for name, r in RECIPES.items():
        listing.add_row(name, r.family, r.objective, f"{r.train.steps:,}", r.what)
    console().print(listing)


@app.callback()
def recipe() -> None:
    """Copy a recipe to a file, to change it."""


@app.command()
def cp(
    name: Annotated[str, typer.Argument(help="The name of a recipe.")],
    path: Annotated[Path | None, typer.Argument(help="The file to write. [default: NAME.yaml]")] = None,
) -> None:
    """Write a recipe to a YAML file, for `heed train FILE.yaml DATA`.

    Examples:

      heed recipe cp gpt2 mine.yaml
    """
    from heedful.train.recipes.recipes import RECIPES, ResolvedSettings, settings_yaml

    if name not in RECIPES:
        raise NotFound(
            f"no recipe is called {name!r}", hint=nearest(name, RECIPES) or "list them with: heed recipes"
        )
    path = path or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(f"{path} exists already", hint="choose another name")
    settings = ResolvedSettings(name, RECIPES[name])
    path.write_text(f"# {RECIPES[name].what}\n{settings_yaml(settings)}", encoding="utf-8")  # makes no folder
    print(path)
