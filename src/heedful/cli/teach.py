"""`heed explain`, `exercise`, `grade` and `course`: worked arithmetic, exercises, marks and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.classroom.exercises.code_exercises import check_names, code_exercises, write_stubs
from heedful.classroom.exercises.student_record import (
    count_done,
    describe_states,
    next_exercise,
    read_progress,
    record_hint,
    record_verdicts,
)
from heedful.cli.models import load_model
from heedful.cli.terminal import Json, as_json, console, print_table, text_or_file
from heedful.core.checks import Argument, Option, check_choice
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from heedful.classroom.arithmetic.worked import Derivation
    from heedful.classroom.exercises.number_exercises import Problem
    from heedful.classroom.exercises.number_grading import SheetGrade


ClassPath = Annotated[
    Path | None,
    Option("Use the students, dates and the secret of this class file.", ("--class",), metavar="FILE"),
]
AssignmentName = Annotated[str | None, Option("Choose one assignment of the class.")]


def explain_command(
    source: Annotated[
        str | None, Argument("An exercise (cat-sat), a .yaml or .json file, or a model's folder.")
    ] = None,
    text: Annotated[
        str | None, Argument("The model's input: a text, or the name of a sentence (fox).")
    ] = None,
    topic: Annotated[
        str | None,
        Option(
            "Explain attention, block, positions, norm, lstm, alignment, softmax, cross-entropy-gradient "
            "or attention-gradient. [default: attention]"
        ),
    ] = None,
    part: Annotated[
        str | None, Option("Explain this part, such as blocks.0.attn; by default the first that fits.")
    ] = None,
    head: Annotated[int | None, Option("Explain this head. [default: 0]", minimum=0)] = None,
    token: Annotated[
        str | None, Option("Explain this token, or the one at this position; -1 is the last. [default: -1]")
    ] = None,
    target: Annotated[str | None, Option("Give an encoder-decoder this output text.")] = None,
    temperature: Annotated[float | None, Option("Divide the input of a softmax by this temperature.")] = None,
    format: Annotated[str, Option("Write text, markdown, latex or html.", ("--format", "-f"))] = "text",
    digits: Annotated[int, Option("Show N digits after the point.", minimum=1, maximum=15)] = 4,
    max_columns: Annotated[
        int, Option("Cut vectors after this many numbers; 0 shows all.", ("--wide",), minimum=0)
    ] = 16,
    list_all: Annotated[bool, Option("List the exercises and sentences.", ("--list",))] = False,
    json: Json = False,
) -> None:
    """Work out the arithmetic of an exercise, of a file of vectors and matrices, or of a model on a text.

    Examples:
      heed explain --list
      heed explain cat-sat
      heed explain ./my-model "The cat sat on the mat." --token cat --head 2
      heed explain ./my-model fox --topic block --format latex
    """
    if list_all or source is None:
        return _print_examples(json)
    at = int(token) if token is not None and token.removeprefix("-").isdigit() else token
    options = {"topic": topic, "part": part, "head": head, "token": at, "temperature": temperature}
    options = {name: value for name, value in options.items() if value is not None}
    derivation = _derive(source, text, target, options)
    if json:
        return as_json(derivation.to_dict())
    from heedful.classroom.arithmetic.render import FORMATS, render_text

    check_choice("format", format, FORMATS)
    if format == "text":
        columns = console().width if sys.stdout.isatty() else None
        return print(render_text(derivation, digits, max_columns or None, columns=columns))
    print(FORMATS[format](derivation, digits, max_columns or None))


def _derive(source: str, text: str | None, target: str | None, options: dict[str, Any]) -> Derivation:
    from heedful.classroom.arithmetic.explain import examples, explain

    if text is None and not _is_model(source):
        if options or target is not None:
            name = next(iter(options), "target")
            raise InputError(f"--{name} is for a model, and {source} is an exercise", hint="leave it out")
        return explain(source)  # its error names the nearest exercise
    if text is not None and source in examples():
        raise InputError(f"{source} is an exercise with its own numbers", hint="leave the text out")
    if text is None:
        raise InputError(f"{source} is a model", hint=f'give it a text as well: heed explain {source} "…"')
    defaults: dict[str, Any] = {"topic": "attention", "part": "", "head": 0, "token": -1}
    text = text_or_file(text)
    model = load_model(source, "cpu", None)
    with show_progress("computing"):
        return explain(model, text, target, **defaults | options)


def _is_model(source: str) -> bool:
    """Return whether this names a folder, a .gguf file or a trained model, and no exercise."""
    from heedful.classroom.arithmetic.explain import examples
    from heedful.weights.hub import bundled_models, installed_models

    if source in examples() or Path(source).suffix in (".yaml", ".yml", ".json"):
        return False
    return Path(source).exists() or source.lower() in {**installed_models(), **bundled_models()}


def _print_examples(json: bool) -> None:
    from heedful.classroom.arithmetic.explain import examples, sentences

    if json:
        return as_json({"exercises": examples(), "sentences": sentences()})
    print_table(("exercise", "what it works out"), list(examples().items()), unbroken=("exercise",))
    print()
    texts = [(name, row["text"], row["look"]) for name, row in sentences().items()]
    print_table(("sentence", "text", "look for"), texts, unbroken=("sentence",))


# `heed exercise`: exercises with the numbers of one student, and stubs of code.


def exercise_command(
    names: Annotated[
        list[str] | None,
        Argument("An exercise, or code and what to write.", metavar="NAME | code [FUNCTION]..."),
    ] = None,
    seed: Annotated[str | None, Option("Draw the numbers for this student, by name or number.")] = None,
    format: Annotated[
        str | None,
        Option(
            "Write text, yaml, json, csv, html or latex; by default what the name of --out says.",
            ("--format", "-f"),
        ),
    ] = None,
    key: Annotated[bool, Option("Write the answers, with the worked solution.")] = False,
    digits: Annotated[int | None, Option("Ask for N digits after the point.")] = None,
    output: Annotated[Path | None, Option("Write it to this file.", ("--out", "-o"))] = None,
    force: Annotated[bool, Option("Replace an existing file.")] = False,
    hint: Annotated[bool, Option("Show one more hint for a code exercise.")] = False,
    list_all: Annotated[bool, Option("List the exercises.", ("--list",))] = False,
    class_path: ClassPath = None,
    assignment: AssignmentName = None,
    export: Annotated[
        str | None, Option("With --class: write the assignment for nbgrader or gradescope instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Write an exercise as a sheet, or ask it here; with code, write stubs of functions to fill in.

    Every exercise is a worked example of `heed explain` with other numbers, which follow from the seed.
    In a terminal, without --out and --format, the questions are asked one by one.

    Examples:
      heed exercise --list
      heed exercise cat-sat --seed alice
      heed exercise cat-sat --seed alice --out alice.html
      heed exercise cat-sat --seed alice --key
      heed exercise code attention softmax
      heed exercise --class class.yaml --out sheets
    """
    if class_path is not None and not names:
        return write_class(class_path, assignment, format, key, output, export)
    if names and names[0] == "code":
        return exercise_code(names[1:], list_all, hint, output, force, json)
    if list_all or not names:
        from heedful.classroom.arithmetic.explain import LEARNING_ORDER, read_exercise

        tasks = {name: read_exercise(name)["exercise"]["task"] for name in LEARNING_ORDER}
        print_progress("task", tasks, json)
        return None if json else print("heed exercise code --list names the functions to write.")
    if len(names) > 1:
        raise InputError(f"{names[1]!r} is a second exercise", hint="write one at a time")
    if hint:
        raise InputError("--hint is for code", hint="a number exercise gives hints while it asks: type ?")
    owner = None
    if class_path is not None:
        from heedful.classroom.exercises.classes import read_class

        class_file = read_class(class_path)
        owner = class_file.owner(class_file.choose_assignment(assignment) if assignment else None)
    from heedful.classroom.exercises.number_exercises import new_problem
    from heedful.classroom.exercises.sheets import FORMATS, SUFFIXES

    problem = new_problem(names[0], "0" if seed is None else seed, digits, owner)
    if format is None and output is not None:
        format = SUFFIXES.get(output.suffix.lower())
        if format is None:
            raise InputError(
                f"{output} has no ending that says its format", hint=f"end it in {', '.join(SUFFIXES)}"
            )
    if format is None and not key and not json and sys.stdin.isatty() and sys.stdout.isatty():
        return ask_in_terminal(problem)
    format = "json" if json else format or "text"
    check_choice("format", format, FORMATS)
    text = FORMATS[format](problem, key)
    if output is None:
        return print(text, end="")
    if output.exists() and not force:
        raise InputError(f"{output} already exists", hint="give another name, or --force")
    from heedful.core.files import write_text

    write_text(output, text)
    print(output)


def write_class(
    path: Path, assignment_name: str | None, form: str | None, key: bool, output: Path | None,
    export: str | None,
) -> None:  # fmt: skip
    """Write the sheets of a class, or its assignment for another grader; without a file, a new class."""
    from heedful.classroom.exercises import classes, other_graders
    from heedful.core.files import write_text

    if not path.exists():
        write_text(path, classes.new_class_text())
        return print(
            f"{path}: a new class with its own secret. Fill in students and assignments, then run this again."
        )
    class_file = classes.read_class(path)
    every = list(class_file.assignments.values())
    chosen = [class_file.choose_assignment(assignment_name)] if assignment_name else every
    for one in chosen:
        if export is None:
            folder = (output or Path("sheets")) / one.name
            written = classes.write_sheets(class_file, one, folder, form or "yaml", key=key)
            print(f"{folder}: {len(written)} students")
        elif check_choice("export", export, other_graders.EXPORTS) == "nbgrader":
            print(other_graders.export_nbgrader(class_file, one, output or Path()))
        else:
            print(other_graders.export_gradescope(path, one, output or Path(f"{one.name}.zip")))


def print_progress(column: str, exercises: Mapping[str, str], json: bool) -> None:
    """Print exercises, given by name with their task or equation (`column`), and how far the student is."""
    progress = read_progress(list(exercises))
    states, following = describe_states(progress), next_exercise(progress)
    if json:
        rows = [
            {"name": name, column: text, "state": states[name]} | vars(progress[name])
            for name, text in exercises.items()
        ]
        return as_json({"exercises": rows, "next": following})
    hints = {name: str(entry.hints or "") for name, entry in progress.items()}
    cells = [(name, states[name], hints[name], text) for name, text in exercises.items()]
    print_table(
        ("exercise", "state", "hints", column), cells, right=("hints",), unbroken=("exercise", "state")
    )
    print(f"\n{format_done(progress)}")


def format_done(progress: Mapping[str, Any]) -> str:
    """Return how many exercises are done, and which one is next."""
    following = next_exercise(progress)
    done = f"{count_done(progress.values())} of {len(progress)} done"
    return f"{done}; next: {following}" if following else done


# `heed exercise code`: the code exercises: their list, their stubs in a file, their hints.


DEFAULT_FILE = Path("solution.py")


def exercise_code(
    names: Sequence[str], list_all: bool, hint: bool, output: Path | None, force: bool, json: bool
) -> None:
    """List the code exercises, give a hint for one, or write a file of their stubs."""
    chosen = check_names(names or None)
    if list_all:
        return print_progress(
            "equation", {name: one.equation for name, one in code_exercises().items()}, json
        )
    if hint:
        if len(names) > 1:
            raise InputError(f"a hint is for one exercise, and {len(names)} were named", hint="name one")
        name = names[0] if names else next_exercise(read_progress(list(code_exercises()))) or chosen[0]
        hints = code_exercises()[name].hints
        level = record_hint(name, len(hints))
        text = hints[level - 1]
        if json:
            return as_json({"exercise": name, "level": level, "levels": len(hints), "hint": text})
        return print(f"{name}, hint {level} of {len(hints)}: {text}")
    path = write_stubs(output or DEFAULT_FILE, chosen, force=force)
    if json:
        return as_json({"path": str(path), "exercises": chosen})
    print(path)


# A number exercise in the terminal: `heed exercise NAME`.


def ask_in_terminal(problem: Problem) -> None:
    """Ask the questions on stdin, print the marks, and keep the progress."""
    from heedful.classroom.exercises.number_grading import run_quiz

    def ask(prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None

    grade, hints = run_quiz(problem, ask, print)
    taken = f", {hints} hint{'s' * (hints != 1)}" if hints else ""
    print(f"\n{grade.points:.4g} of {grade.total} points{taken}")
    keep_sheet_progress(grade)


def keep_sheet_progress(grade: SheetGrade) -> None:
    """Count a try of a number exercise."""
    from heedful.classroom.exercises.number_grading import is_passed

    keep_progress({grade.problem.exercise.name: "right" if is_passed(grade) else "wrong"})


def keep_progress(verdicts: Mapping[str, str]) -> None:
    """Count a try of each exercise; a folder that cannot be written costs no marks."""
    try:
        record_verdicts(verdicts)
    except OSError as error:
        print(f"warning: progress could not be kept: {error.filename}: {error.strerror}", file=sys.stderr)


# `heed grade`: mark a filled sheet of numbers, or a file of code.


def grade_command(
    path: Annotated[
        Path, Argument("A filled sheet, a .py file, or a folder of submissions.", metavar="FILE")
    ],
    names: Annotated[
        list[str] | None, Argument("Grade only these functions of a .py file.", metavar="FUNCTION")
    ] = None,
    csv: Annotated[
        Path | None, Option("Write the marks of a folder to this table, and a report per student next to it.")
    ] = None,
    lms: Annotated[str, Option("Write the table as plain, moodle or canvas reads it.")] = "plain",
    class_path: ClassPath = None,
    assignment: AssignmentName = None,
    jobs: Annotated[
        int | None, Option("Mark N submissions at a time. [default: one per core]", minimum=1)
    ] = None,
    json: Json = False,
) -> None:
    """Mark a filled sheet of `heed exercise`, a file of code, or all submissions of a class.

    Each question of a sheet counts one point, each of its numbers the same share. A number that follows
    rightly from a wrong one before it counts. The exit code is 0 if all is right, and 1 if not. For a folder
    it is 0.

    Examples:
      heed grade alice.yaml
      heed grade solution.py attention
      heed grade submissions --csv marks.csv
      heed grade submissions --class class.yaml --csv marks.csv --lms moodle
    """
    if path.is_dir():
        return grade_folder(path, csv, lms, class_path, assignment, jobs, json)
    if path.suffix.lower() == ".py":
        return grade_code(path, names or [], json=json)
    if names:
        raise InputError(
            f"{names[0]!r}: a sheet is graded as a whole", hint="functions are named for a .py file"
        )
    from heedful.classroom.exercises.number_grading import grade_answers, is_passed
    from heedful.classroom.exercises.sheets import read_sheet

    grade = grade_answers(*read_sheet(path))
    keep_sheet_progress(grade)
    if json:
        as_json(grade.to_dict())
    else:
        print_table(("", "step", "points", ""), grade.rows(), right=("points",))
        name, first = f"{grade.problem.exercise.name}, {grade.problem.seed}", grade.first_error
        where = f"; step {first.question.number}, {first.question.prompt}, went wrong first" if first else ""
        print(f"\n{name}: {grade.points:.4g} of {grade.total} points{where}")
    if not is_passed(grade):
        raise typer.Exit(1)


def grade_folder(
    folder: Path, csv: Path | None, lms: str, class_path: Path | None, assignment: str | None,
    jobs: int | None, json: bool,
) -> None:  # fmt: skip
    """Mark a folder of submissions; write the table and the reports, or print the table."""
    from heedful.classroom.exercises.classes import LMS_FORMATS, format_points, grade_class, read_class
    from heedful.core.files import write_text

    check_choice("lms", lms, LMS_FORMATS)
    class_file = None if class_path is None else read_class(class_path)
    with show_progress(f"marking {folder}"):
        result = grade_class(folder, class_file, assignment, jobs)
    if csv is not None:
        write_text(csv, result.to_csv(lms))
        reports = csv.with_suffix("")
        reports.mkdir(exist_ok=True)
        for one in result.marks:
            write_text(reports / f"{one.student.replace('/', '_')}.md", result.report(one))
    points = result.assignment.points
    if json:
        return as_json({"points": points, "students": {one.student: one.total for one in result.marks}})
    rows = [
        (one.student, format_points(one.total), str(one.days_late or ""), "; ".join(one.notes))
        for one in result.marks
    ]
    print_table(("student", "points", "days late", "notes"), rows, right=("points", "days late"))
    processes = len({one.process for one in result.marks})
    print(f"\n{result.assignment.name}: {len(rows)} students, {points:g} points, {processes} processes")
    if csv is not None:
        print(f"{csv} and {csv.with_suffix('')}/")


# `heed grade solution.py`: a student's functions, graded in their own process.


def grade_code(path: Path, names: Sequence[str] = (), *, json: bool = False) -> None:
    """Grade a file, keep the progress, and leave with exit code 1 if a function is wrong."""
    from heedful.classroom.exercises.sandbox import NURSERY

    NURSERY.start()  # it imports torch while the next line does
    from heedful.classroom.exercises.code_grading import grade_solution

    result = grade_solution(path, names or None)
    marked = {grade.name: grade.verdict for grade in result.grades}
    keep_progress({name: verdict for name, verdict in marked.items() if verdict in ("right", "wrong")})
    if json:
        as_json(result.to_dict())
    else:
        for grade in result.grades:
            if grade.verdict != "missing" or names:
                print("\n".join(grade.lines()))
        for note in result.notes:
            print(f"note: {note}")
        print(f"protected by: {', '.join(result.protections)}")
        print(f"\n{result.right} right in {path}, {format_done(read_progress(list(code_exercises())))}")
    if any(grade.verdict == "wrong" for grade in result.grades):
        raise typer.Exit(1)


# `heed course`: the chapters as notebooks.


def course_command(
    folder: Annotated[Path, Argument("Where the notebooks are put.")] = Path("heedful-course"),
    chapter: Annotated[
        str | None, Option("Write only this chapter, by its number or name.", ("--chapter", "-c"))
    ] = None,
    listing: Annotated[bool, Option("List the chapters.", ("--list",))] = False,
    force: Annotated[bool, Option("Replace existing notebooks or slides.")] = False,
    instructor: Annotated[bool, Option("Add the instructor's answers.")] = False,
    slides: Annotated[bool, Option("Write slides instead: HTML, and PDF with Chromium.")] = False,
    start: Annotated[
        bool, Option("Open the folder in Jupyter, if it is installed.", ("--start/--no-start",))
    ] = True,
) -> None:
    """Write the chapters of the course as notebooks, and open them; or write slides.

    Examples:
      heed course --list
      heed course
      heed course my-folder --chapter transformer
      heed course slides --slides
    """
    import importlib.util
    import shlex
    import subprocess
    import sys

    from heedful.classroom.course import chapters, find_chapter, write_notebooks, write_slides

    if listing:
        rows = [(str(one.number), one.name, one.title) for one in chapters()]
        return print_table(("chapter", "name", "about"), rows, right=("chapter",), unbroken=("name",))
    chosen = chapters() if chapter is None else [find_chapter(chapter)]
    if slides:
        paths = write_slides(folder, chosen, overwrite=force, instructor=instructor)
        return print("\n".join(map(str, paths)))
    for path in write_notebooks(folder, chosen, overwrite=force, instructor=instructor):
        print(path)
    installed = [
        name for name in ("lab", "notebook") if importlib.util.find_spec(name.replace("lab", "jupyterlab"))
    ]
    if installed and start:
        raise typer.Exit(subprocess.call([sys.executable, "-m", "jupyter", installed[0], str(folder)]))
    program = "jupyter lab" if installed else "pip install jupyterlab && jupyter lab"
    print(f"to open them: {program} {shlex.quote(str(folder))}", file=sys.stderr)
