"""Code exercises: the list with stubs and progress, hints, and grading in its own process. Number exercises:
the sheet of a seed, and its marks.
"""

from __future__ import annotations

import threading
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.classroom.exercises.code_exercises import (
    check_names,
    code_exercises,
    stub_file,
)
from heedful.classroom.exercises.code_grading import grade_solution, grade_source
from heedful.classroom.exercises.number_exercises import EXERCISES, new_problem
from heedful.classroom.exercises.number_grading import grade_answers, hint_lines
from heedful.classroom.exercises.sheets import check_answers, given_texts
from heedful.classroom.exercises.student_record import (
    describe_states,
    next_exercise,
    read_progress,
    record_hint,
    record_verdicts,
)
from heedful.core.errors import InputError
from heedful.serve.json_response import Json

router = APIRouter()
GRADING = threading.Lock()  # one file at a time: each has its own process
MAX_LETTERS = 1_000_000


class Solution(BaseModel):
    """A file on this machine by its path, or a text of Python; perhaps only some of its functions."""

    path: str = Field("", max_length=4096)
    text: str = Field("", max_length=MAX_LETTERS)
    names: list[str] = Field(default_factory=list, max_length=32)


@router.get("/api/exercises")
def list_exercises() -> Response:
    """The code exercises in order: what to write, how far the student is, the hints taken so far."""
    exercises = code_exercises()
    progress = read_progress(list(exercises))
    states = describe_states(progress)
    rows: list[dict[str, Any]] = []
    for name, exercise in exercises.items():
        entry = progress[name]
        rows.append({
            "name": name, "state": states[name], "levels": len(exercise.hints), "stub": exercise.stub,
            "file": stub_file([name]), "title": exercise.title, "equation": exercise.equation,
            "model": exercise.model, **vars(entry), "hints": exercise.hints[: entry.hints],
        })  # fmt: skip
    return Json({"exercises": rows, "next": next_exercise(progress), "file": stub_file()})


@router.post("/api/exercises/{name}/hint")
def give_hint(name: str) -> Response:
    """The next hint, which is remembered as taken."""
    check_names([name])
    hints = code_exercises()[name].hints
    level = record_hint(name, len(hints))
    return Json({"name": name, "level": level, "levels": len(hints), "hint": hints[level - 1]})


@router.post("/api/exercises/grade")
def grade(body: Solution) -> Response:
    """Grade a file or a text; what is right is remembered as done."""
    if bool(body.path.strip()) == bool(body.text.strip()):
        raise InputError("a path or a text is graded", hint="give one of them")
    names = body.names or None
    with GRADING:
        given = body.path.strip()
        result = grade_solution(given, names) if given else grade_source(body.text, names)
    tried = {one.name: one.verdict for one in result.grades if one.verdict in ("right", "wrong")}
    notes = list(result.notes)
    try:
        record_verdicts(tried)
    except OSError as error:
        notes.append(f"progress could not be kept: {error.strerror}")
    arguments = repr(given or "solution.py") + (f", {names!r}" if names else "")
    python = "from heedful.classroom.exercises.code_grading import grade_solution\n\n"
    python += f"print(grade_solution({arguments}).to_dict())"
    return Json(result.to_dict() | {"notes": notes, "python": python})


class Answers(BaseModel):
    """What a student answers, by the numbers of the questions."""

    seed: str = Field("studio", max_length=100)
    answers: dict[int, str] = Field(default_factory=dict, max_length=1000)


@router.get("/api/exercises/numbers")
def list_number_exercises() -> Response:
    """The number exercises in order, with what is to be done."""
    return Json({"exercises": [{"name": name, "task": one.task} for name, one in EXERCISES.items()]})


@router.get("/api/exercises/numbers/{name}")
def number_sheet(name: str, seed: str = "studio") -> Response:
    """The sheet that follows from a seed: the given values, the questions, and the hints of each."""
    problem = new_problem(name, seed)
    questions = [
        {
            "number": question.number, "prompt": question.prompt, "formula": question.line.formula,
            "format": question.answer_format, "hints": hint_lines(question, problem.questions),
        }
        for question in problem.questions
    ]  # fmt: skip
    sheet = {"name": name, "seed": seed, "task": problem.exercise.task, "given": given_texts(problem)}
    return Json(sheet | {"questions": questions, "command": problem.command})


@router.post("/api/exercises/numbers/{name}")
def grade_number_sheet(name: str, body: Answers) -> Response:
    """The marks of the answers to the sheet of a seed; a mistake is carried forward."""
    problem = new_problem(name, body.seed)
    answers = check_answers(problem, body.answers, name)
    grade = grade_answers(problem, answers)
    return Json(grade.to_dict())
