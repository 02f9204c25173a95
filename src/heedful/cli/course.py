"""`heed course`: the chapters as notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import console, make_table


def course_command(
    folder: Annotated[Path, typer.Argument(help="Where the notebooks are put.")] = Path("heedful-course"),
    chapter: Annotated[
        str | None, typer.Option("--chapter", "-c", help="One chapter alone, by its number or name.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the chapters.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over notebooks that are there.")] = False,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Open the folder in Jupyter, where it is installed.")
    ] = True,
) -> None:
    """Write the chapters of the course as notebooks, and open them.

    Examples:

      heed course --list

      heed course

      heed course my-folder --chapter transformer
    """
    import importlib.util
    import shlex
    import subprocess
    import sys

    from heedful.classroom.course import chapters, find_chapter, write_notebooks

    if listing:
        table = make_table("chapter", "name", "what it is about", right=("chapter",), unbroken=("name",))
        for one in chapters():
            table.add_row(str(one.number), one.name, one.title)
        return console().print(table)
    chosen = chapters() if chapter is None else [find_chapter(chapter)]
    for path in write_notebooks(folder, chosen, overwrite=force):
        print(path)
    installed = [
        name for name in ("lab", "notebook") if importlib.util.find_spec(name.replace("lab", "jupyterlab"))
    ]
    if installed and start:
        raise typer.Exit(subprocess.call([sys.executable, "-m", "jupyter", installed[0], str(folder)]))
    program = "jupyter lab" if installed else "pip install jupyterlab && jupyter lab"
    print(f"to open them: {program} {shlex.quote(str(folder))}", file=sys.stderr)
