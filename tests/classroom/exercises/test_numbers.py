"""Number exercises: keys computed again by torch, right sheets, planted errors, errors carried forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from heedful.classroom.arithmetic.explain import examples
from heedful.classroom.arithmetic.worked import evaluate_tree
from heedful.classroom.exercises.number_exercises import EXERCISES, Problem, new_problem
from heedful.classroom.exercises.number_grading import SheetGrade, grade_answers, hint_lines, read_numbers
from heedful.classroom.exercises.sheets import key_numbers
from heedful.core.errors import InputError, NotFound
from tests.classroom.exercises.number_answers import AGAIN, tensor

NAMES = list(EXERCISES)
SEEDS = [f"student {n}" for n in range(10)]


def key_of(problem: Problem) -> dict[int, Any]:
    return {question.number: key_numbers(question) for question in problem.questions}


def grade_of(problem: Problem, answers: dict[int, Any]) -> SheetGrade:
    return grade_answers(problem, answers)


def test_every_worked_example_has_an_exercise_and_every_exercise_is_computed_again_here() -> None:
    assert set(NAMES) == set(examples()) == set(AGAIN)


@pytest.mark.parametrize("name", NAMES)
def test_the_key_is_right_by_another_computation(name: str) -> None:
    for seed in SEEDS:
        problem = new_problem(name, seed)
        again = AGAIN[name](problem.values)
        seen: dict[str, int] = {}
        for question in problem.questions:
            label = question.line.label
            at = seen[label] = seen.get(label, -1) + 1
            value = torch.as_tensor(again[label][at], dtype=torch.float64).detach().numpy()
            np.testing.assert_allclose(
                question.line.value, value, atol=1e-9, rtol=1e-12, err_msg=f"{seed}, {label}"
            )


@pytest.mark.parametrize("name", NAMES)
def test_a_right_sheet_gets_full_marks_and_is_another_one_for_another_student(name: str) -> None:
    problems = [new_problem(name, seed) for seed in SEEDS]
    for problem in problems:
        grade = grade_of(problem, key_of(problem))
        assert grade.points == grade.total > 1
        assert grade.first_error is None
        assert key_of(new_problem(name, problem.seed)) == key_of(problem), "the seed decides"
    assert len({str(problem.values) for problem in problems}) > 4


@pytest.mark.parametrize("name", NAMES)
def test_one_planted_wrong_number_names_its_step(name: str) -> None:
    for n, seed in enumerate(SEEDS):
        problem = new_problem(name, seed)
        question = problem.questions[n % len(problem.questions)]
        answers = key_of(problem)
        entry = n % question.count
        answers[question.number][entry] += 3.7
        grade = grade_of(problem, answers)
        assert grade.first_error is not None
        assert grade.first_error.question is question
        assert 1 / (1 - grade.first_error.points) == pytest.approx(counted(grade.first_error.points))
        assert question.count == 1 or str(entry + 1) in grade.first_error.message


@pytest.mark.parametrize("name", NAMES)
def test_an_error_carried_forward_keeps_the_later_points(name: str) -> None:
    """A wrong first answer, and all that follows from it worked rightly, costs that one number alone."""
    for seed in SEEDS[:5]:
        problem = new_problem(name, seed)
        asked = {question.line: question for question in problem.questions}
        first, answers, results = problem.questions[0], {}, {}
        for line in problem.derivation.walk():
            value = line.value if line.operands is None else evaluate_tree(line.operands, results)
            if line is first.line:
                value = value + np.where(np.arange(value.size).reshape(value.shape) == 0, 0.25, 0.0)
            results[line] = value
            if line in asked:
                answers[asked[line].number] = [round(float(x), 4) for x in value.ravel()]
        grade = grade_of(problem, answers)
        lost = grade.total - grade.points
        assert 1 / lost == pytest.approx(counted(1 - lost)), seed
        assert 1 / lost <= first.count + 1e-9, seed
        assert grade.first_error is not None
        assert grade.first_error.question is first


def counted(points: float) -> int:
    """The number of entries that counted in a question in which one is wrong: not all zeros do."""
    return round(1 / (1 - points))


def test_a_zero_beside_wrong_entries_earns_nothing() -> None:
    problem = new_problem("cat-sat", "alice")
    question = problem.questions[1]
    assert (question.line.value == 0).sum() >= 2
    wrong = {**key_of(problem), 2: (question.line.value * 1.3).tolist()}
    grade = grade_of(problem, wrong).questions[1]
    assert grade.verdict == "wrong"
    assert grade.points == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_rounds_to_zero_earns_nothing_with_a_wrong_sign(name: str) -> None:
    for seed in SEEDS[:4]:
        problem = new_problem(name, seed)
        for question in problem.questions:
            if np.abs(question.line.value).max() > 10.0**-question.digits:
                answers = {**key_of(problem), question.number: (-question.line.value).ravel().tolist()}
                assert grade_of(problem, answers).questions[question.number - 1].points == 0, seed


def column_exponents(problem: Problem) -> list[float]:
    t, d = problem.values["positions"][0], problem.values["dim"]
    return [(math.cos if j % 2 else math.sin)(t / 10000 ** (j / d)) for j in range(d)]


def degrees(problem: Problem) -> list[float]:
    t, d = problem.values["positions"][0], problem.values["dim"]
    angles = [math.radians(t / 10000 ** (2 * (j // 2) / d)) for j in range(d)]
    return [(math.cos if j % 2 else math.sin)(angle) for j, angle in enumerate(angles)]


def causal_weights(problem: Problem) -> np.ndarray:
    scores = problem.questions[1].line.value.copy()
    scores[problem.values["tokens"].index(problem.values["query"]) + 1 :] = -np.inf
    return np.exp(scores) / np.exp(scores).sum()


def gates_swapped(problem: Problem) -> Any:
    x, h, W, U, b = (np.asarray(problem.values[key]) for key in ("x", "h", "W", "U", "b"))
    return 1 / (1 + np.exp(-(x @ W[1] + h @ U[1] + b[1])))  # f in the place of i


def planted(name: str, seed: str, number: int, wrong: Callable[[Problem, np.ndarray], Any]) -> str:
    """What is said of an answer that is wrong in one way."""
    problem = new_problem(name, seed)
    answers = key_of(problem)
    question = problem.questions[number - 1]
    answers[number] = np.asarray(wrong(problem, question.line.value)).ravel().tolist()
    grade = grade_of(problem, answers)
    return grade.questions[number - 1].message


MISTAKES: list[tuple[str, int, Callable[[Problem, np.ndarray], Any], str]] = [
    ("cat-sat", 2, lambda p, v: v * math.sqrt(2), "division by the root is left out"),
    ("cat-sat", 4, lambda p, v: v * p.questions[2].line.value, "division is left out"),
    ("cat-sat", 1, lambda p, v: tensor(p.values["Q"]) @ tensor(p.values["Q"])[
        p.values["tokens"].index(p.values["query"])], "query vectors stand where keys belong"),
    ("add-norm", 3, lambda p, v: v * 4 / 3, "n − 1"),
    ("add-norm", 3, lambda p, v: v * 4, "the sum stands where the mean belongs"),
    ("positions", 1, lambda p, v: v[[1, 0, 3, 2]], "order"),
    ("temperature", 4, lambda p, v: v * math.log(2), "ln stands where log₂ belongs"),
    ("cross-entropy-gradient", 2, lambda p, v: v / math.log(2), "log₂ stands where ln belongs"),
    ("cross-entropy-gradient", 4, lambda p, v: -v, "sign"),
    ("hello-lstm", 2, lambda p, v: np.tanh(p.questions[0].line.value), "tanh stands where σ belongs"),
    ("alignment", 4, lambda p, v: v * 10, "decimal point"),
    ("distilbert", 3, lambda p, v: 1 / v, ""),
    ("positions", 1, lambda p, v: column_exponents(p), "j/d"),
    ("positions", 1, lambda p, v: degrees(p), "radians"),
    ("cat-sat", 3, lambda p, v: (2 ** p.questions[1].line.value).sum(), "2 to the power x"),
    ("temperature", 4, lambda p, v: v * math.log10(2), "log₁₀ stands where log₂ belongs"),
    ("cross-entropy-gradient", 2, lambda p, v: v / math.log(10), "log₁₀ stands where ln belongs"),
    ("cat-sat", 4, lambda p, v: causal_weights(p), "causal mask"),
    ("hello-lstm", 2, lambda p, v: gates_swapped(p), "the rows of i and f are swapped"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "wrong", "said"), MISTAKES)
def test_common_mistakes_are_named(name: str, number: int, wrong: Any, said: str) -> None:
    messages = [planted(name, seed, number, wrong) for seed in SEEDS]
    named = [message for message in messages if said in message]
    wrongs = [message for message in messages if message]
    assert wrongs
    assert len(named) >= 0.8 * len(wrongs), messages


def test_numbers_are_read_as_people_write_them() -> None:
    for text, values in (
        ("0.5 -1 .25", [0.5, -1, 0.25]), ("[1, 2, 3]", [1, 2, 3]), ("−0.5; 2", [-0.5, 2]), ("1e-3", [0.001]),
        ([1, [2, 3]], [1, 2, 3]), (7, [7]), ("96.9%", [96.9]), ("(1 0)(0 1)", [1, 0, 0, 1]), ("1.", [1]),
        ("1/2 -1/4", [0.5, -0.25]), ("[1/3]", [1 / 3]),
    ):  # fmt: skip
        found = read_numbers(text)
        assert found is not None
        assert found.tolist() == values
    for text in ("one half", True, {"a": 1}, "0.5x", ["1", "b"], "1/2 of it", "1/0", "1 / 2"):
        assert read_numbers(text) is None


def test_what_cannot_be_read_or_has_the_wrong_size_costs_its_question_alone() -> None:
    problem = new_problem("cat-sat", "alice")
    answers = key_of(problem) | {2: "about a half", 3: "1,5", 4: [0.1]}
    grade = grade_of(problem, answers)
    verdicts = [row.verdict for row in grade.questions]
    assert verdicts == ["right", "unreadable", "wrong", "wrong", "right"]
    assert "a comma separates two numbers" in grade.questions[2].message
    assert "6 numbers expected, 1 given" in grade.questions[3].message


def test_digits_asked_for_decide_what_is_near_enough() -> None:
    for digits, gap, right in ((2, 0.009, True), (2, 0.011, False), (4, 0.00009, True), (4, 0.00011, False)):
        problem = new_problem("temperature", "alice", digits)
        answers = {q.number: (q.line.value.ravel()).tolist() for q in problem.questions}
        answers[1][0] += gap
        assert (grade_of(problem, answers).points == 4) == right


def test_hints_go_from_the_numbers_to_the_answer() -> None:
    question = new_problem("cat-sat", "alice").questions[1]
    asked, numbers, answer = hint_lines(question, new_problem("cat-sat", "alice").questions)
    assert asked.startswith("Which numbers go into s / √d_k?")
    assert "√(2)" in numbers
    assert read_numbers(answer) is not None


def test_a_hint_to_numbers_side_by_side_says_how_each_is_worked() -> None:
    question = new_problem("cat-sat", "alice").questions[0]
    assert hint_lines(question)[1].startswith("These side by side: [0 1]·[1 0], [0 1]·[1 0], [0 1]·[1 1]")
    for name in NAMES:
        for question in new_problem(name, "alice").questions:
            numbers = any(letter.isdigit() for letter in hint_lines(question)[1])
            assert numbers == (question.line.operands is not None), (name, question.prompt)


def test_a_wrong_name_or_seed_is_one_clear_line() -> None:
    with pytest.raises(NotFound, match="did you mean 'cat-sat'"):
        new_problem("cat-sit", "1")
    for seed in ("", " a", "x" * 101, "a\nb"):
        with pytest.raises(InputError, match="not a student's name"):
            new_problem("cat-sat", seed)
    with pytest.raises(InputError, match="is out of range"):
        new_problem("cat-sat", "1", 0)
