"""Assignments for other graders: a notebook for nbgrader, and an autograder for Gradescope."""

from __future__ import annotations

import datetime
import json
import secrets
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heedful.classroom.exercises.classes import (
    Assignment,
    ClassFile,
    grade_submission,
    read_class,
    write_new,
)
from heedful.classroom.exercises.code_exercises import code_exercises
from heedful.classroom.exercises.number_exercises import Owner, new_problem
from heedful.classroom.exercises.sheets import READ, given_texts, question_line
from heedful.classroom.text_files import load_yaml, notebook
from heedful.core.files import read_json, write_text

EXPORTS = ("nbgrader", "gradescope")
IMPORTS = """import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor"""  # what a function in a notebook may use


def export_nbgrader(class_file: ClassFile, assignment: Assignment, folder: Path) -> Path:
    """Write source/NAME/NAME.ipynb for `nbgrader generate_assignment`; the tests are hidden from students.

    A notebook is the same for all students, so that its numbers are drawn for the class.
    """
    cells = [_cell("markdown", f"# {assignment.name}\n\n{class_file.name}")]
    for name, points in assignment.exercises.items():
        if exercise := code_exercises().get(name):
            solution = f"    ### BEGIN SOLUTION\n{exercise.body}\n    ### END SOLUTION"
            answer = f"{IMPORTS}\n\n{exercise.head}\n{solution}"
            test = f"check_function({name}, {points:g})"
        else:
            problem = new_problem(name, assignment.name, owner=class_file.owner(assignment))
            given = [f"- {name}: `{text}`" for name, text in given_texts(problem)]
            asked = [f"{question.number}. {question_line(question)}" for question in problem.questions]
            text = "\n".join([f"## {name}", "", problem.exercise.task, "", *given, "", *asked])
            cells.append(_cell("markdown", text))
            blanks = "".join(f"    {q.number}: [],\n" for q in problem.questions)
            answer = f"answers = {{\n{blanks}}}"
            drawn_from = (name, assignment.name, class_file.name, class_file.secret)
            test = f"check_numbers({', '.join(map(repr, drawn_from))}, answers, {points:g})"
        used = test.partition("(")[0]
        hidden = f"### BEGIN HIDDEN TESTS\nfrom {__name__} import {used}\n\n{test}\n### END HIDDEN TESTS"
        cells.append(_cell("code", answer, grade_id=name, solution=True))
        cells.append(_cell("code", hidden, grade_id=f"test-{name}", grade=True, locked=True, points=points))
    path = folder / "source" / assignment.name / f"{assignment.name}.ipynb"
    write_new(path, notebook(cells))
    return path


def _cell(kind: str, text: str, **grading: Any) -> dict[str, Any]:
    """Return a cell of a notebook; `grading` is what nbgrader needs to know of it."""
    own: dict[str, Any] = dict.fromkeys(("grade", "locked", "solution", "task"), False)
    own |= {"schema_version": 3, "cell_type": kind} | grading
    cell = {
        "cell_type": kind, "id": secrets.token_hex(4), "source": text.splitlines(keepends=True),
        "metadata": {"nbgrader": own} if grading else {},
    }  # fmt: skip
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def check_function(function: Callable[..., Any], points: float) -> float:
    """Return the points of a function that is right; raise AssertionError with what is wrong with it."""
    from heedful.classroom.exercises.code_grading import grade_function
    from heedful.classroom.exercises.sandbox import FunctionRun, SolutionError

    exercise, outputs = code_exercises()[function.__name__], []
    for case in exercise.cases():
        try:
            outputs.append(function(*case.arguments))
        except Exception as error:  # whatever the student's code does
            outputs.append(SolutionError(f"raised {type(error).__name__}: {error}", type(error).__name__))
    grade = grade_function(exercise, FunctionRun(outputs))
    if grade.verdict != "right":
        raise AssertionError("\n".join(grade.lines()))
    return points


def check_numbers(
    name: str, seed: str, class_name: str, secret: str, answers: Mapping[int, Any], points: float
) -> float:
    """Return the points of answers; raise AssertionError if there are none, with what is wrong with them."""
    from heedful.classroom.exercises.number_grading import grade_answers

    grade = grade_answers(new_problem(name, seed, owner=Owner(class_name, secret)), answers)
    for row in grade.rows():
        print(*row)
    if not grade.points:
        raise AssertionError(f"{name}: no answer is right")
    return points * grade.points / grade.total


def export_gradescope(class_path: Path, assignment: Assignment, path: Path) -> Path:
    """Write the zip file of an autograder for Gradescope, with the class file and its roster in it."""
    roster = load_yaml(class_path.read_text(encoding="utf-8"))["students"]
    run = f"from {__name__} import run_gradescope\n\nrun_gradescope({assignment.name!r})\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        setup = "#!/usr/bin/env bash\nset -e\npython3 -m pip install heedful\n"
        for name, text in (("setup.sh", setup), ("run_autograder", f"#!/usr/bin/env python3\n{run}")):
            program = zipfile.ZipInfo(name, time.localtime()[:6])
            program.external_attr = 0o100755 << 16  # a file that everybody may run
            archive.writestr(program, text)
        archive.write(class_path, "class.yaml")
        if isinstance(roster, str):
            archive.write(class_path.parent / roster, roster)
    return path


def run_gradescope(assignment_name: str, root: Path = Path("/autograder")) -> None:
    """Mark the submission that Gradescope put into `root`, and write its results.json."""
    class_file = read_class(root / "source" / "class.yaml")
    assignment = class_file.choose_assignment(assignment_name)
    about = read_json(root / "submission_metadata.json")
    names = [user[key].casefold() for user in about["users"] for key in ("email", "name")]
    student = next(
        (class_file.ids_by_name[name] for name in names if name in class_file.ids_by_name), names[0]
    )
    paths = [path for path in (root / "submission").rglob("*") if path.suffix in (*READ, ".py")]
    when = datetime.datetime.fromisoformat(about["created_at"])
    marks = grade_submission(student, paths, assignment, class_file.owner(assignment), when)
    most = assignment.exercises
    tests = [
        {"name": n, "score": mark.points, "max_score": most[n], "output": "\n".join(mark.lines)}
        for n, mark in marks.exercises.items()
    ]
    results = {"score": marks.total, "output": "\n".join(marks.notes), "tests": tests}
    (root / "results").mkdir(exist_ok=True)
    write_text(root / "results" / "results.json", json.dumps(results))
