"""The code exercises, and the file of stubs that a student fills in.

code_solutions.py has every function written out, code_exercises.yaml its title, hints and known mistakes,
code_cases.py the inputs it is tried on, and code_models.py the model it then stands in. A mistake is an edit
of the solution's text.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.core.errors import InputError, NotFound, find_named
from heedful.core.files import write_text

if TYPE_CHECKING:
    from torch import Tensor

SOLUTIONS = Path(__file__).with_name("code_solutions.py")
HEADER = '''"""Fill in the functions, then: heed grade {name}

Each function is tried on several inputs, then stands in the place of the library's own in a real model.
A hint: heed exercise code {first} --hint
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
'''
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One input that a function is tried on; `about` says what is special about it."""

    about: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake that grading knows: what it says to the student, and the edits that make it."""

    name: str
    message: str
    edit: Mapping[str, str]


@dataclass(frozen=True)
class Output:
    """The output of a model with a function in it: a text for people, and numbers if these count."""

    text: str
    numbers: Tensor | None = None


@dataclass(frozen=True)
class CodeExercise:
    """One function to write. Its solution, its inputs and its model are imported when they are asked for.

    `head` is the source of the solution up to the end of its docstring, `body` its lines. The hints are a
    question, what to compute, and nearly the line itself.
    """

    name: str
    title: str
    model: str  # the real model that it stands in
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    head: str
    body: str
    outputs: tuple[str, ...] = ()  # names of the values that are returned, if there are several
    ready_made: tuple[str, ...] = ()  # functions of libraries that are the exercise already

    @property
    def stub(self) -> str:
        """The source that a student fills in."""
        return f"{self.head}\n    raise NotImplementedError"

    @property
    def equation(self) -> str:
        """The first line of the docstring."""
        return self.head.partition('"""')[2].partition("\n")[0]

    @property
    def solution(self) -> Function:
        """The function as a textbook would write it."""
        from heedful.classroom.exercises import code_solutions

        function: Function = getattr(code_solutions, self.name)
        return function

    def cases(self) -> Sequence[Case]:
        """Return the inputs that a function is tried on."""
        from heedful.classroom.exercises import code_cases

        cases: Sequence[Case] = getattr(code_cases, self.name)()
        return cases

    def place_in_model(self, function: Function) -> Output:
        """Return the model's output with a function in its place."""
        from heedful.classroom.exercises import code_models

        output: Output = getattr(code_models, f"place_{self.name}")(function)
        return output

    def with_mistakes(self, *mistakes: Mistake) -> Function | None:
        """Return the solution with mistakes in it; None if their edits do not go together."""
        from heedful.classroom.exercises import code_solutions

        edited = edit_text(self.body, [mistake.edit for mistake in mistakes])
        if edited is None:
            return None
        namespace = dict(vars(code_solutions))
        try:
            exec(f"{self.head}\n{edited}", namespace)  # the package's own text
        except SyntaxError:
            return None
        function: Function = namespace[self.name]
        return function


def edit_text(text: str, edits: Iterable[Mapping[str, str]]) -> str | None:
    """Return a text with every occurrence of some texts replaced; None if two edits overlap."""
    changes: list[tuple[int, int, str]] = []
    same = lambda pair: pair[0] == pair[1]
    shared_length = lambda a, b: len(list(takewhile(same, zip(a, b, strict=False))))
    for old, new in (pair for edit in edits for pair in edit.items()):
        # What both texts begin and end with stays, so that edits side by side do not exclude each other.
        start = shared_length(old, new)
        end = shared_length(old[start:][::-1], new[start:][::-1])
        for place in re.finditer(re.escape(old), text):
            changes.append((place.start() + start, place.end() - end, new[start : len(new) - end]))
    changes.sort()
    if any(second[0] < first[1] for first, second in pairwise(changes)):
        return None
    for first, last, new in reversed(changes):
        text = text[:first] + new + text[last:]
    return text


@functools.cache
def code_exercises() -> dict[str, CodeExercise]:
    """Return the exercises by name, in their order."""
    from heedful.classroom.text_files import load_yaml

    source = SOLUTIONS.read_text(encoding="utf-8")
    lines, exercises = source.splitlines(), {}
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    texts = load_yaml(SOLUTIONS.with_name("code_exercises.yaml").read_text(encoding="utf-8"))
    for name, row in texts.items():
        node = functions[name]
        after_docstring = node.body[0].end_lineno
        exercises[name] = CodeExercise(
            name, row["title"], row["model"], tuple(row["hints"]),
            tuple(Mistake(mistake, **texts) for mistake, texts in row["mistakes"].items()),
            "\n".join(lines[node.lineno - 1 : after_docstring]),
            "\n".join(lines[after_docstring : node.end_lineno]),
            tuple(row.get("outputs", ())), tuple(row.get("ready_made", ())),
        )  # fmt: skip
    return exercises


def check_names(names: Sequence[str] | None) -> list[str]:
    """Return names of exercises, all of them for None; an unknown one is an error."""
    for name in names or ():
        find_named(code_exercises(), name, f"no code exercise is called {name[:60]!r}", NotFound)
    return list(dict.fromkeys(names or code_exercises()))


def stub_file(names: Sequence[str] | None = None, name: str = "solution.py") -> str:
    """Return the text of a file with the stubs of these exercises, or of all."""
    names = check_names(names)
    header = HEADER.format(name=name, first=names[0])
    return "\n\n\n".join([header.rstrip("\n"), *(code_exercises()[one].stub for one in names)]) + "\n"


def write_stubs(path: str | Path, names: Sequence[str] | None = None, *, force: bool = False) -> Path:
    """Write a file of stubs; one that already exists stays, unless `force`."""
    path = Path(path)
    text = stub_file(names, path.name)
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint=f"name a file: {path / 'solution.py'}")
    if path.exists() and not force:
        raise InputError(
            f"{path} exists already, perhaps with your work",
            hint="choose another name, or replace it with `force=True`",
        )
    write_text(path, text)
    return path
