"""A number exercise asked question by question, with hints and a second try."""

from __future__ import annotations

from collections.abc import Callable

from heedful.classroom.exercises.numbers import Problem
from heedful.classroom.exercises.numbers_grading import SheetGrade, grade_answers, hint_lines
from heedful.classroom.exercises.sheets import head_lines, key_text, question_line

TRIES = 2
HELP = "Numbers of a vector are parted by spaces. ? gives a hint, an empty line skips, q stops."


def run_quiz(
    problem: Problem, read_line: Callable[[str], str | None], write_line: Callable[[str], None]
) -> tuple[SheetGrade, int]:
    """Ask every question and return the marks and the number of hints taken.

    `read_line(prompt)` returns None at the end of input.
    """
    for line in head_lines(problem, key=True)[1:]:
        write_line(line)
    write_line(HELP)
    answers: dict[int, str] = {}
    hints = 0
    for question in problem.questions:
        write_line("")
        write_line(f"{question.number} of {len(problem.questions)}   {question_line(question)}")
        left, tries = hint_lines(question), 0
        while tries < TRIES:
            answer = read_line("> ")
            if answer is None or answer.strip().lower() == "q":
                return grade_answers(problem, answers), hints
            if answer.strip() == "?":
                write_line(left.pop(0) if left else "There is no further hint.")
                hints += 1
                continue
            if not answer.strip():
                break
            answers[question.number] = answer
            grade = grade_answers(problem, answers).questions[question.number - 1]
            if grade.points == 1.0:
                write_line(grade.verdict)
                break
            tries += 1
            again = "; try again" if tries < TRIES else f"; it is {key_text(question)}"
            write_line(f"{grade.verdict}: {grade.message}{again}")
    return grade_answers(problem, answers), hints
