"""A class: sheets drawn with a secret, all submissions marked in one command, and other graders."""

from __future__ import annotations

import csv
import datetime
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heedful.classroom.exercises import classes, other_graders
from heedful.classroom.exercises.classes import ClassFile, read_class
from heedful.classroom.exercises.code_exercises import CodeExercise, code_exercises, edit_text
from heedful.classroom.exercises.number_exercises import new_problem
from heedful.classroom.exercises.sheets import FORMATS, key_numbers, read_sheet
from heedful.cli import main
from heedful.core.errors import InputError, NotFound
from tests.refusal import refused

FUNCTIONS = ("softmax", "bpe_merge", "layer_norm")
SHEETS = ("cat-sat", "temperature")
POINTS = {"cat-sat": 5, "temperature": 4, "softmax": 3, "bpe_merge": 2, "layer_norm": 3}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEED_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_class(count: int, points: Mapping[str, float] = POINTS) -> ClassFile:
    """Write class.yaml with a roster of so many students."""
    rows = [f"s{n:02},Student {n},s{n:02}@example.org" for n in range(count)]
    Path("students.csv").write_text("\n".join(["id,name,email", *rows]) + "\n")
    due = datetime.datetime.now() - datetime.timedelta(days=1.5)
    Path("class.yaml").write_text(
        f"class: Tests\nsecret: 0123456789abcdef\nstudents: students.csv\nassignments:\n  week-1:\n"
        f"    due: {due:%Y-%m-%d %H:%M}\n    late: 0.25\n    exercises: {json.dumps(dict(points))}\n"
    )
    return read_class(Path("class.yaml"))


def hand_in(class_file: ClassFile, number: int, functions: tuple[str, ...] = FUNCTIONS) -> float:
    """Write what student `number` hands in, with planted mistakes; return the points it should get."""
    student = list(class_file.students)[number]
    place = Path("submissions", [student, f"Student {number}_4711_assignsubmission_file"][number % 2])
    place.mkdir(parents=True)
    assignment, expected = class_file.assignments["week-1"], 0.0
    for n, name in enumerate(name for name in SHEETS if name in assignment.exercises):
        problem = new_problem(name, student, owner=class_file.owner(assignment))
        answers = {q.number: key_numbers(q) for q in problem.questions}
        share = 1.0
        if (number + n) % 3 == 1:  # one number of the last question, on which nothing else depends
            question = problem.questions[-1]
            answers[question.number][0] += 7.5
            share -= 1 / question.count / len(problem.questions)
        sheet = json.loads(FORMATS["json"](problem, False)) | {"answers": answers}
        if number % 7 != 6 or n:  # some hand in one sheet alone
            (place / f"{name}.json").write_text(json.dumps(sheet))
            expected += share * assignment.exercises[name]
    parts = [other_graders.IMPORTS]
    for n, name in enumerate(functions):
        exercise = code_exercises()[name]
        wrong = (number + n) % 4 == 0
        parts.append(exercise.head + "\n" + (plant(exercise, number) if wrong else exercise.body))
        expected += 0 if wrong else assignment.exercises[name]
    if functions:
        (place / "solution.py").write_text("\n\n".join(parts))
    on_time = assignment.due.timestamp() - 60 if assignment.due else 0
    for path in place.iterdir():
        os.utime(path, (on_time, on_time + DAYS_LATE[number % 5] * 86_400))
    return round(expected * max(0, 1 - 0.25 * DAYS_LATE[number % 5]), 4)


DAYS_LATE = (0, 0, 1, 0, 0)


def plant(exercise: CodeExercise, number: int) -> str:
    """Return the solution with one known mistake."""
    mistake = exercise.mistakes[number % len(exercise.mistakes)]
    return edit_text(exercise.body, [mistake.edit]) or ""


def heed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    out, error = capsys.readouterr()
    assert not stop.value.code, error
    return out


def marks_in(path: str) -> dict[str, float]:
    with Path(path).open() as file:
        return {row["id"]: float(row["total"]) for row in csv.DictReader(file)}


def test_a_small_class_is_marked_as_expected(capsys: pytest.CaptureFixture[str]) -> None:
    class_file = write_class(5, {"cat-sat": 5, "temperature": 4})
    expected = {f"s{n:02}": hand_in(class_file, n, ()) for n in range(4)} | {"s04": 0.0}
    heed(capsys, "grade", "submissions", "--class", "class.yaml", "--csv", "marks.csv", "--jobs", 1)
    assert marks_in("marks.csv") == pytest.approx(expected)
    report = Path("marks/s01.md").read_text()
    assert "## cat-sat: 4." in report
    assert "partly right: number 1 of" in report
    assert "1 days late: " in Path("marks/s02.md").read_text()
    assert "nothing was handed in" in Path("marks/s04.md").read_text()


@pytest.mark.slow
def test_a_class_of_30_is_marked_in_one_command_by_all_cores(capsys: pytest.CaptureFixture[str]) -> None:
    class_file = write_class(30)
    expected = {f"s{n:02}": hand_in(class_file, n) for n in range(30)}
    out = heed(capsys, "grade", "submissions", "--class", "class.yaml", "--csv", "marks.csv")
    assert marks_in("marks.csv") == pytest.approx(expected)
    assert len(set(expected.values())) > 8
    assert f"30 students, 17 points, {os.cpu_count()} processes" in out
    assert len(list(Path("marks").iterdir())) == 30


def test_marks_are_not_rounded_to_four_figures() -> None:
    points = (0.0, 5.0, 10.875, 1 / 3, 1234.5678)
    assert [*map(classes.format_points, points)] == ["0", "5", "10.875", "0.3333", "1234.5678"]


def test_a_key_cannot_be_printed_without_the_secret(capsys: pytest.CaptureFixture[str]) -> None:
    class_file = write_class(2, {"cat-sat": 5})
    heed(capsys, "exercise", "--class", "class.yaml", "--out", "sheets")
    sheet = Path("sheets/week-1/s00/cat-sat.yaml")
    text = sheet.read_text()
    assert 'class: "Tests"' in text
    assert "Due: " in text
    assert "0123456789abcdef" not in text
    drawn = new_problem("cat-sat", "s00", owner=class_file.owner(class_file.assignments["week-1"]))
    assert drawn.values != new_problem("cat-sat", "s00").values
    key = heed(capsys, "exercise", "cat-sat", "--seed", "s00", "--class", "class.yaml", "--key", "-f", "yaml")
    sheet.write_text(key)
    with refused(InputError, "class 'Tests'", hint="--class"):
        read_sheet(sheet)
    assert read_sheet(sheet, class_file.owner())[0].values == drawn.values


def test_a_sheet_of_another_student_and_a_broken_one_cost_themselves(folder: Path) -> None:
    class_file = write_class(2, {"cat-sat": 5, "temperature": 4})
    other = new_problem("cat-sat", "s01", owner=class_file.owner())
    place = folder / "submissions" / "s00"
    place.mkdir(parents=True)
    (place / "a.yaml").write_text(FORMATS["yaml"](other, True))
    (place / "b.yaml").write_text("exercise: [")
    mine = new_problem("temperature", "s00", owner=class_file.owner())
    (place / "c.csv").write_text(FORMATS["csv"](mine, True))
    result = classes.grade_class(folder / "submissions", class_file, jobs=1)
    one = result.marks[0]
    assert [mark.points for mark in one.exercises.values()] == [0, 4]
    assert any("was drawn for s01" in note for note in one.notes)
    assert any("b.yaml: cannot be read: line 1" in note for note in one.notes)
    assert "was drawn for s01" in one.exercises["cat-sat"].lines[0]


def test_an_empty_sheet_is_named_once_in_the_report_with_what_to_do(folder: Path) -> None:
    class_file = write_class(1, {"cat-sat": 5})
    place = folder / "submissions" / "s00"
    place.mkdir(parents=True)
    sheet = new_problem("cat-sat", "s00", owner=class_file.owner())
    (place / "a.yaml").write_text(FORMATS["yaml"](sheet, False))
    (mark,) = classes.grade_class(folder / "submissions", class_file, jobs=1).marks[0].exercises.values()
    assert mark.lines == ["a.yaml: has no answers yet (fill in the numbers, then grade it)"]
    (note,) = classes.grade_class(folder / "submissions", jobs=1).marks[0].notes
    assert note.endswith("(the teacher grades it with heed grade FOLDER --class FILE)")


def test_without_a_class_everything_that_was_handed_in_counts(folder: Path) -> None:
    for name, exercise in (("anna", "temperature"), ("ben", "cat-sat")):
        (folder / f"{name}.txt").write_text(FORMATS["text"](new_problem(exercise, name), True))
    result = classes.grade_class(folder, jobs=1)
    assert {one.student: one.total for one in result.marks} == {"anna": 1, "ben": 1}
    assert result.assignment.points == 2


@pytest.mark.parametrize(("lms", "head"), [
    ("moodle", ["id", "name", "email", "Grade", "Maximum Grade", "Feedback comments"]),
    ("canvas", ["id", "name", "email", "week-1"]),
])  # fmt: skip
def test_the_table_has_the_columns_of_the_platform(lms: str, head: list[str]) -> None:
    class_file = write_class(2, {"temperature": 4})
    hand_in(class_file, 0, ())
    result = classes.grade_class(Path("submissions"), class_file, jobs=1)
    rows = list(csv.reader(result.to_csv(lms).splitlines()))
    assert rows[0] == head
    assert rows[1 + (lms == "canvas")][:4] == ["s00", "Student 0", "s00@example.org", "4"]


def test_a_roster_from_canvas_has_its_students_alone() -> None:
    Path("students.csv").write_text(
        'Student,ID,SIS Login ID\n    Points Possible,,\n"Doe, Jo",17,jo@example.org\n'
    )
    Path("class.yaml").write_text(
        "class: a\nsecret: '12345678'\nstudents: students.csv\nassignments: {week: {exercises: [dragons]}}"
    )
    class_file = read_class(Path("class.yaml"))
    assert list(class_file.students) == ["Doe, Jo"]
    assert class_file.ids_by_name["jo@example.org"] == "Doe, Jo"


def test_a_new_class_file_has_a_secret_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    heed(capsys, "exercise", "--class", "mine.yaml")
    heed(capsys, "exercise", "--class", "other.yaml")
    first, second = (read_class(Path(name)) for name in ("mine.yaml", "other.yaml"))
    assert len(first.secret) == 32
    assert first.secret != second.secret


WEEK = "class: a\nsecret: '12345678'\nstudents: []\nassignments: {week: {%s}}"


@pytest.mark.parametrize(("text", "kind"), [
    ("hello", InputError), ("class: a\nsecret: short\nstudents: []\nassignments: {}", InputError),
    ("class: a\nsecret: [", InputError), (WEEK % "exercises: [cat-sit]", NotFound),
    (WEEK % "due: soon, exercises: [dragons]", InputError),
    (WEEK % "exercises: {dragons: five}", InputError), (WEEK % "late: 0.1", InputError),
])  # fmt: skip
def test_a_wrong_class_file_is_one_clear_line(text: str, kind: type[Exception]) -> None:
    Path("bad.yaml").write_text(text)
    with pytest.raises(kind) as error:
        read_class(Path("bad.yaml"))
    assert "\n" not in str(error.value)


def test_a_notebook_for_nbgrader_hides_its_tests_and_they_mark(capsys: pytest.CaptureFixture[str]) -> None:
    class_file = write_class(1, {"temperature": 4, "softmax": 3})
    heed(capsys, "exercise", "--class", "class.yaml", "--export", "nbgrader", "--out", "course")
    notebook = json.loads(Path("course/source/week-1/week-1.ipynb").read_text())
    cells = [(c["metadata"].get("nbgrader", {}), "".join(c["source"])) for c in notebook["cells"]]
    tests = [text for about, text in cells if about.get("grade")]
    assert [about["points"] for about, _ in cells if about.get("grade")] == [4, 3]
    assert all(text.startswith("### BEGIN HIDDEN TESTS") for text in tests)
    assert not any(class_file.secret in text for about, text in cells if not about.get("grade"))
    problem = new_problem("temperature", "week-1", owner=class_file.owner())
    answers = {q.number: key_numbers(q) for q in problem.questions}
    assert run_last(tests[0], {"answers": answers}) == 4
    assert run_last(tests[0], {"answers": answers | {1: [0, 0, 0]}}) == 3
    solution = next(text for about, text in cells if about.get("solution") and "def softmax" in text)
    names: dict[str, Any] = {}
    exec(solution, names)
    assert run_last(tests[1], names) == 3
    exec(solution.replace("power / total", "power"), names)
    with pytest.raises(AssertionError, match="not divided by its sum"):
        run_last(tests[1], names)


def run_last(text: str, names: dict[str, Any]) -> Any:
    """Run a cell and return what its last expression gives."""
    *lines, last = [line for line in text.splitlines() if line and not line.startswith("#")]
    exec("\n".join(lines), names)
    return eval(last, names)


def test_an_autograder_for_gradescope_writes_its_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class_file = write_class(2, {"temperature": 4})
    heed(capsys, "exercise", "--class", "class.yaml", "--export", "gradescope", "--out", "auto.zip")
    with zipfile.ZipFile("auto.zip") as archive:
        assert set(archive.namelist()) == {"setup.sh", "run_autograder", "class.yaml", "students.csv"}
        assert archive.getinfo("run_autograder").external_attr >> 16 & 0o111, "Gradescope runs it"
        archive.extractall(folder / "autograder" / "source")
    problem = new_problem("temperature", "s01", owner=class_file.owner())
    (folder / "autograder" / "submission").mkdir()
    (folder / "autograder" / "submission" / "sheet.yaml").write_text(FORMATS["yaml"](problem, True))
    now = datetime.datetime.now(datetime.UTC).astimezone() - datetime.timedelta(days=2)
    about = {"users": [{"email": "s01@example.org", "name": "Student 1"}], "created_at": now.isoformat()}
    (folder / "autograder" / "submission_metadata.json").write_text(json.dumps(about))
    run = (folder / "autograder" / "source" / "run_autograder").read_text()
    assert "run_gradescope('week-1')" in run
    other_graders.run_gradescope("week-1", folder / "autograder")
    results = json.loads((folder / "autograder" / "results" / "results.json").read_text())
    assert results["score"] == 4
    assert results["tests"][0]["max_score"] == 4
