"""A class: its students, assignments and secret, and the marks of all its submissions.

A class file is YAML that only the teacher has:

    class: Language models, spring 2027
    secret: 5f0c…                  the numbers on the sheets follow from it: nobody else can print a key
    students: students.csv         the first column names a student; or a list: [alice, bob]
    assignments:
      week-5:
        due: 2027-02-12 18:00
        late: 0.1                  the share of the points that each day begun after it costs
        exercises: {cat-sat: 5, attention: 10}      sheets and functions with their points

A submission is a folder with the student's name, or files in one folder: a sheet says whose it is, and a .py
file is named after its student.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import multiprocessing
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import repeat
from pathlib import Path
from typing import Any

import yaml

from heedful.classroom.exercises.code_exercises import code_exercises, stub_file
from heedful.classroom.exercises.number_exercises import EXERCISES, Owner, new_problem
from heedful.classroom.exercises.sheets import FORMATS, READ, SUFFIXES, read_sheet
from heedful.classroom.text_files import describe_yaml_error, load_yaml
from heedful.core.checks import check_choice
from heedful.core.errors import HeedfulError, InputError, NotFound, nearest
from heedful.core.files import missing_file, write_text

LMS_FORMATS = ("plain", "moodle", "canvas")
MOODLE_FOLDER = re.compile(r"_\d+_assignsubmission_\w+$")  # what Moodle adds to the name of a student
Student = Mapping[str, str]  # a row of the roster


@dataclass(frozen=True)
class Assignment:
    """The exercises of an assignment with their points, and when it is due."""

    name: str
    exercises: Mapping[str, float]
    due: datetime.datetime | None = None
    late: float = 0.0  # the share of the points that each day begun after the date costs

    @property
    def points(self) -> float:
        """The most points that the assignment gives."""
        return sum(self.exercises.values())


@dataclass(frozen=True)
class ClassFile:
    """What a class file says; the rows of `students` stand under the name in their first column."""

    name: str
    secret: str
    students: Mapping[str, Student]
    assignments: Mapping[str, Assignment]

    def owner(self, assignment: Assignment | None = None) -> Owner:
        """Return what a sheet of this class is drawn from."""
        due = f"{assignment.due:%Y-%m-%d %H:%M}" if assignment and assignment.due else ""
        return Owner(self.name, self.secret, due)

    def choose_assignment(self, name: str | None, folder: Path | None = None) -> Assignment:
        """Return the assignment of this name; by default the only one, or the one a folder is named after."""
        if name is None:
            only = list(self.assignments) if len(self.assignments) == 1 else []
            name = folder.name if folder and folder.name in self.assignments else only[0] if only else None
        if name is None:
            raise InputError(
                f"the class has {len(self.assignments)} assignments",
                hint=f"use --assignment {'|'.join(self.assignments)}",
            )
        check_choice("assignment", name, self.assignments)
        return self.assignments[name]

    @cached_property
    def ids_by_name(self) -> dict[str, str]:
        """Every name by which a student may submit, such as an e-mail address, with the student's own."""
        names = {cell.casefold(): key for key, row in self.students.items() for cell in row.values() if cell}
        return names | {key.casefold(): key for key in self.students}


def new_class_text() -> str:
    """Return the text of a class file to fill in, with its own secret."""
    template = files("heedful.classroom.exercises") / "class_template.yaml"
    return template.read_text(encoding="utf-8").replace("SECRET", secrets.token_hex(16))


def read_class(path: Path) -> ClassFile:
    """Return the class of a file; raise InputError for one that says something else."""
    if not path.is_file():
        raise missing_file(path)
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
        name, secret = str(values["class"]), str(values["secret"])
        students = _read_students(values["students"], path.parent)
        assignments = {str(key): _read_assignment(key, row) for key, row in values["assignments"].items()}
    except HeedfulError:
        raise
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        missing = isinstance(error, KeyError)
        problem = f"{error.args[0]} is missing" if missing else describe_yaml_error(error)
        raise InputError(
            f"{path} is not a class file: {problem}",
            hint="it has class, secret, students and assignments: heed exercise --class NEW.yaml writes one",
        ) from None
    if len(secret) < 8:
        raise InputError(f"the secret of {path} has {len(secret)} letters", hint="use 8 or more")
    return ClassFile(name, secret, students, assignments)


def _read_students(value: Any, folder: Path) -> dict[str, Student]:
    """Return the rows of a roster: a CSV file, or a list of names."""
    if not isinstance(value, str):
        return {str(name): {"student": str(name)} for name in value}
    path = folder / value
    if not path.is_file():
        raise missing_file(path)
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")))
    cells = [{column: (cell or "").strip() for column, cell in row.items() if column} for row in rows]
    students = {next(iter(row.values())): row for row in cells}
    # The second row of a file from Canvas says what its columns count.
    return {name: row for name, row in students.items() if name not in ("", "Points Possible")}


def _read_assignment(name: str, row: Mapping[str, Any]) -> Assignment:
    points = row["exercises"]
    points = points if isinstance(points, Mapping) else dict.fromkeys(points, 1)
    known = [*EXERCISES, *code_exercises()]
    for exercise in points:
        if exercise not in known:
            raise NotFound(f"{name}: no exercise is called {exercise!r}", hint=nearest(str(exercise), known))
    due = row.get("due")
    if isinstance(due, str):
        due = datetime.datetime.fromisoformat(due)
    elif isinstance(due, datetime.date) and not isinstance(due, datetime.datetime):
        due = datetime.datetime.combine(due, datetime.time(23, 59))
    return Assignment(name, {k: float(v) for k, v in points.items()}, due, float(row.get("late", 0.0)))


def write_sheets(
    class_file: ClassFile, assignment: Assignment, folder: Path, form: str = "yaml", *, key: bool = False
) -> list[Path]:
    """Write the sheets and stubs of an assignment into a folder for each student; return the folders."""
    suffix = next(
        suffix for suffix, name in SUFFIXES.items() if name == check_choice("format", form, FORMATS)
    )
    functions = [name for name in assignment.exercises if name in code_exercises()]
    for student in class_file.students:
        for name in assignment.exercises:
            if name in EXERCISES:
                problem = new_problem(name, student, owner=class_file.owner(assignment))
                write_new(folder / student / f"{name}{suffix}", FORMATS[form](problem, key))
        if functions and not key:
            write_new(folder / student / "solution.py", stub_file(functions))
    return [folder / student for student in class_file.students]


def write_new(path: Path, text: str) -> None:
    if path.exists():
        raise InputError(f"{path} already exists", hint="name another folder with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


# The marks of a folder of submissions: a row for each student, taken in as many processes as there are cores.


@dataclass
class ExerciseMark:
    """The points of one exercise and its lines in the report."""

    points: float = 0.0
    lines: list[str] = field(default_factory=lambda: ["nothing was handed in"])


@dataclass
class StudentMarks:
    """All marks of one student."""

    student: str
    exercises: dict[str, ExerciseMark]
    notes: list[str] = field(default_factory=list)
    days_late: int = 0
    lost: float = 0.0  # the points that being late costs
    process: int = 0  # which one took the marks

    @property
    def total(self) -> float:
        """The points of all exercises, less what being late costs."""
        return round(max(0.0, sum(mark.points for mark in self.exercises.values()) - self.lost), 4)


def format_points(points: float) -> str:
    """Return points with up to four digits after the point, of which no zero stands at the end."""
    return f"{round(points, 4):.10g}"


@dataclass(frozen=True)
class ClassMarks:
    """The marks of a class on one assignment."""

    assignment: Assignment
    students: Mapping[str, Student]
    marks: Sequence[StudentMarks]

    def to_csv(self, lms: str = "plain") -> str:
        """Return a table with the columns of the roster and the marks, as Moodle or Canvas reads it."""
        out, roster = io.StringIO(), next(iter(self.students.values()), {"student": ""})
        writer = csv.writer(out, lineterminator="\n")
        name, points = self.assignment.name, f"{self.assignment.points:g}"
        heads = {
            "plain": [*self.assignment.exercises, "total", "of", "days late", "notes"],
            "moodle": ["Grade", "Maximum Grade", "Feedback comments"], "canvas": [name],
        }  # fmt: skip
        writer.writerow([*roster, *heads[lms]])
        if lms == "canvas":  # its second row says what the column counts
            writer.writerow(["Points Possible", *[""] * (len(roster) - 1), points])
        for one in self.marks:
            each = [format_points(mark.points) for mark in one.exercises.values()]
            notes, total = "; ".join(one.notes), format_points(one.total)
            cells: dict[str, list[Any]] = {
                "plain": [*each, total, points, one.days_late, notes],
                "moodle": [total, points, self.report(one)], "canvas": [total],
            }  # fmt: skip
            student = self.students.get(one.student, {next(iter(roster)): one.student})
            writer.writerow([*(student.get(column, "") for column in roster), *cells[lms]])
        return out.getvalue()

    def report(self, one: StudentMarks) -> str:
        """Return the report of a student as Markdown."""
        lines = [f"# {self.assignment.name}: {one.student}", ""]
        lines += [f"**{format_points(one.total)} of {self.assignment.points:g} points**", ""]
        if one.lost:
            lines += [f"{one.days_late} days late: {format_points(one.lost)} points are lost.", ""]
        for name, mark in one.exercises.items():
            points = f"{format_points(mark.points)} of {self.assignment.exercises[name]:g}"
            lines += [f"## {name}: {points}", "", *(f"    {line}" for line in mark.lines), ""]
        return "\n".join([*lines, *(f"- {note}" for note in one.notes)]).rstrip() + "\n"


def grade_class(
    folder: Path,
    class_file: ClassFile | None = None,
    assignment_name: str | None = None,
    jobs: int | None = None,
) -> ClassMarks:
    """Mark all submissions in a folder; without a class file, everything that anybody handed in."""
    if not folder.is_dir():
        raise missing_file(folder)
    handed_in = find_submissions(folder, class_file)
    if not handed_in:
        raise InputError(f"{folder} has no submissions", hint=f"they end in {', '.join((*READ, '.py'))}")
    if class_file is not None:
        assignment = class_file.choose_assignment(assignment_name, folder)
        students, owner = class_file.students, class_file.owner(assignment)
    else:
        names = {name for paths in handed_in.values() for path in paths for name in exercises_in(path)}
        assignment, owner = Assignment(folder.name, dict.fromkeys(sorted(names), 1.0)), None
        students = {student: {"student": student} for student in handed_in}
    everyone = list(dict.fromkeys([*students, *handed_in]))
    work = everyone, [handed_in.get(student, []) for student in everyone], repeat(assignment), repeat(owner)
    jobs = min(jobs or os.cpu_count() or 1, len(handed_in))
    if jobs == 1:
        marks = list(map(grade_submission, *work))
    else:  # started again, as torch does not survive a fork
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as executor:
            marks = list(executor.map(grade_submission, *work))
    for one in marks:
        if one.student not in students:
            one.notes.append("this student is not on the roster")
    return ClassMarks(assignment, students, marks)


def find_submissions(folder: Path, class_file: ClassFile | None) -> dict[str, list[Path]]:
    """Return the files of each student, by the name on the roster where it has one."""
    handed_in: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in (*READ, ".py") or any(
            part.startswith((".", "__")) for part in inside.parts
        ):
            continue
        if len(inside.parts) > 1:
            name = MOODLE_FOLDER.sub("", inside.parts[0])
        else:
            name = path.stem if path.suffix == ".py" else sheet_field(path, "seed") or path.stem
        known = class_file.ids_by_name if class_file else {}
        handed_in.setdefault(known.get(name.casefold(), name), []).append(path)
    return handed_in


def sheet_field(path: Path, name: str) -> str:
    """Return a field of a sheet such as its seed, in any format; an empty text if there is none."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    place = re.search(rf'^\s*"?{name}"?\s*[:,;]\s*"?([^"\n]*?)"?,?\s*$', text, re.MULTILINE)
    return place[1].strip() if place else ""


def exercises_in(path: Path) -> list[str]:
    """Return the exercises that a file answers."""
    if path.suffix != ".py":
        name = sheet_field(path, "exercise")
        return [name] if name in EXERCISES else []
    defined = re.findall(r"^def (\w+)", path.read_text(encoding="utf-8-sig", errors="replace"), re.MULTILINE)
    return [name for name in defined if name in code_exercises()]


def grade_submission(
    student: str, paths: Sequence[Path], assignment: Assignment, owner: Owner | None,
    when: datetime.datetime | None = None,
) -> StudentMarks:  # fmt: skip
    """Mark everything that one student handed in; what cannot be read costs that exercise alone.

    It was handed in at the time of the newest file, unless `when` says another time.
    """
    unmarked = {name: ExerciseMark() for name in assignment.exercises}
    marks = StudentMarks(student, unmarked, process=os.getpid())
    by_time = sorted(paths, key=lambda path: path.stat().st_mtime)
    for path in by_time:  # the newest answer to an exercise counts
        try:
            if path.suffix == ".py":
                marks.exercises |= _grade_code(path, assignment)
            else:
                marks.exercises |= _grade_sheet(path, student, assignment, owner)
        except HeedfulError as error:
            problem = error.message.removeprefix(str(path)).lstrip(": ")
            problem = f"{path.name}: {problem}" + (f" ({error.hint})" if error.hint else "")
            marks.notes.append(problem)
            for name in {*exercises_in(path)} & {*unmarked}:
                unmarked[name].lines = [problem]
    if by_time and assignment.due is not None:
        when = when or datetime.datetime.fromtimestamp(by_time[-1].stat().st_mtime)
        late = (when.replace(tzinfo=None) - assignment.due) / datetime.timedelta(days=1)
        marks.days_late = max(0, math.ceil(late))
        marks.lost = round(min(1.0, assignment.late * marks.days_late) * marks.total, 4)
    return marks


def _grade_sheet(
    path: Path, student: str, assignment: Assignment, owner: Owner | None
) -> dict[str, ExerciseMark]:
    from heedful.classroom.exercises.number_grading import grade_answers

    problem, answers = read_sheet(path, owner)
    name = problem.exercise.name
    if name not in assignment.exercises:
        raise InputError(f"{name} is not an exercise of {assignment.name}")
    if problem.seed.casefold() != student.casefold():
        raise InputError(f"{name} was drawn for {problem.seed}, not for {student}")
    grade = grade_answers(problem, answers)
    lines = ["  ".join(cell for cell in row if cell) for row in grade.rows()]
    return {name: ExerciseMark(assignment.exercises[name] * grade.points / grade.total, lines)}


def _grade_code(path: Path, assignment: Assignment) -> dict[str, ExerciseMark]:
    from heedful.classroom.exercises.code_grading import grade_solution

    names = [name for name in exercises_in(path) if name in assignment.exercises]
    if not names:
        return {}
    result = grade_solution(path, names)
    notes = [f"note: {note}" for note in result.notes]
    points = lambda grade: assignment.exercises[grade.name] if grade.verdict == "right" else 0.0
    return {grade.name: ExerciseMark(points(grade), [*grade.lines(), *notes]) for grade in result.grades}
