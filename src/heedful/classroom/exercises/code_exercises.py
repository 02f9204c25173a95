"""The ten code exercises, and the file of stubs that a student fills in.

The functions and the mistakes are in code_*.py and mutations_*.py, one pair of files for each group.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.core.errors import InputError, NotFound, nearest
from heedful.core.files import write_text

if TYPE_CHECKING:
    from heedful.classroom.exercises.code_exercise import CodeExercise

STUBS = Path(__file__).with_name("code_stubs.py")
HEADER = '''"""Fill in the functions, then: heed grade {name}

Each function is tried on several inputs, then stands in the place of the library's own in a real model.
A hint: heed exercise code {first} --hint
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
'''


@functools.cache
def stubs() -> dict[str, str]:
    """Return the source of each stub by its name, in the order of the exercises."""
    source = STUBS.read_text(encoding="utf-8")
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions}


@functools.cache
def summaries() -> dict[str, str]:
    """Return the equation of each exercise: the first line of its stub's docstring."""
    docs = {name: text.partition('"""')[2] for name, text in stubs().items()}
    return {name: text.partition("\n")[0] for name, text in docs.items()}


def code_exercises() -> dict[str, CodeExercise]:
    """Return the exercises by name; torch and the models are imported here, not before."""
    from heedful.classroom.exercises import code_recurrent, code_text, code_training, code_transformer

    groups = (code_transformer, code_recurrent, code_text, code_training)
    return {exercise.name: exercise for group in groups for exercise in group.EXERCISES}


def check_names(names: Sequence[str] | None) -> list[str]:
    """Return names of exercises, all of them for None; an unknown one is an error."""
    for name in names or ():
        if name not in stubs():
            hint = nearest(name, stubs()) or f"there are {', '.join(stubs())}"
            raise NotFound(f"no code exercise is called {name[:60]!r}", hint=hint)
    return list(dict.fromkeys(names)) if names else list(stubs())


def stub_file(names: Sequence[str] | None = None, name: str = "solution.py") -> str:
    """Return the text of a file with the stubs of these exercises, or of all."""
    names = check_names(names)
    header = HEADER.format(name=name, first=names[0])
    return "\n\n\n".join([header.rstrip("\n"), *(stubs()[one] for one in names)]) + "\n"


def write_stubs(path: str | Path, names: Sequence[str] | None = None, *, force: bool = False) -> Path:
    """Write a file of stubs; one that is there already stays, unless `force`."""
    path = Path(path)
    text = stub_file(names, path.name)
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint=f"name a file: {path / 'solution.py'}")
    if path.exists() and not force:
        raise InputError(
            f"{path} exists already, perhaps with your work",
            hint="choose another name, or replace it with force=True",
            shell="choose another name with --out, or replace it with --force",
        )
    write_text(path, text)
    return path
