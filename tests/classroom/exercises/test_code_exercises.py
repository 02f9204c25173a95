"""The code exercises themselves: examples, definitions, mistakes that can be told apart, their models."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.classroom.exercises import code_grading as code_compare
from heedful.classroom.exercises import code_models
from heedful.classroom.exercises.code_exercises import (
    SOLUTIONS,
    CodeExercise,
    Mistake,
    code_exercises,
    edit_text,
    stub_file,
    write_stubs,
)
from heedful.classroom.exercises.code_grading import find_difference, is_finite
from heedful.core.errors import InputError, NotFound
from tests.classroom.exercises.library_parts import PARTS
from tests.refusal import refused

EXERCISES = code_exercises()


def outcomes(exercise: CodeExercise, *mistakes: Mistake) -> list[Any]:
    """What the solution gives on every input with these mistakes in it; None for an error."""
    function, found = exercise.with_mistakes(*mistakes), []
    assert function is not None
    for case in exercise.cases():
        try:
            found.append(function(*case.arguments))
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            found.append(None)
    return found


def alike(exercise: CodeExercise, a: Any, b: Any) -> bool:
    """Whether grading takes two outcomes for the same."""
    if a is None or b is None:
        return a is b
    if not is_finite(a) or not is_finite(b):
        return is_finite(a) == is_finite(b)
    return find_difference(a, b, exercise.outputs) is None


def test_there_are_fifteen_exercises_in_the_order_of_their_solutions() -> None:
    solutions = re.findall(r"^def (\w+)", SOLUTIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert list(EXERCISES) == solutions
    assert len(EXERCISES) == 15


@pytest.mark.parametrize("name", EXERCISES)
def test_hints_ask_a_question_before_they_tell(name: str) -> None:
    hints = EXERCISES[name].hints
    assert len(hints) == 3
    assert "?" in hints[0]
    assert "?" not in hints[2]


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_the_example_of_a_stub_is_right(exercise: CodeExercise) -> None:
    names = {"torch": torch, exercise.name: exercise.solution}
    text = inspect.getdoc(exercise.solution)
    test = doctest.DocTestParser().get_doctest(text, names, exercise.name, None, 0)
    assert test.examples
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
    assert result.failed == 0


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_every_edit_of_a_mistake_finds_its_text_in_the_solution(exercise: CodeExercise) -> None:
    texts = [(mistake.name, text) for mistake in exercise.mistakes for text in mistake.edit]
    assert [pair for pair in texts if pair[1] not in exercise.body] == []


def test_edits_side_by_side_go_together_and_edits_of_one_text_do_not() -> None:
    assert edit_text("scores / root", [{"scores /": "scores *"}, {"root": "size"}]) == "scores * size"
    assert edit_text("top = x", [{"top": "a = 1; top"}, {"top": "b = 2; top"}]) == "a = 1; b = 2; top = x"
    assert edit_text("x + y", [{"x + y": "x * y"}, {"x + y": "x - y"}]) is None


@pytest.mark.parametrize("name", PARTS)
def test_a_solution_gives_what_the_library_gives(name: str) -> None:
    exercise = EXERCISES[name]
    parameters = [list(inspect.signature(f).parameters) for f in (PARTS[name], exercise.solution)]
    assert parameters[0] == parameters[1]
    for case in exercise.cases():
        ours, written = PARTS[name](*case.arguments), exercise.solution(*case.arguments)
        assert find_difference(ours, written, exercise.outputs) is None, case


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_every_mistake_shows_on_some_input_far_above_rounding(
    exercise: CodeExercise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_compare, "RELATIVE", 10 * code_compare.RELATIVE)
    monkeypatch.setattr(code_compare, "ABSOLUTE", 10 * code_compare.ABSOLUTE)
    right = outcomes(exercise)
    hidden = [
        mistake.name
        for mistake in exercise.mistakes
        if all(alike(exercise, a, b) for a, b in zip(right, outcomes(exercise, mistake), strict=True))
    ]
    assert hidden == []


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_no_two_mistakes_look_alike(exercise: CodeExercise) -> None:
    found = {mistake.name: outcomes(exercise, mistake) for mistake in exercise.mistakes}
    same = [
        {a, b}
        for a, b in combinations(found, 2)
        if all(alike(exercise, x, y) for x, y in zip(found[a], found[b], strict=True))
    ]
    assert same == []


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_a_function_is_really_called_inside_its_model(exercise: CodeExercise) -> None:
    calls = 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return exercise.solution(*arguments)

    assert exercise.place_in_model(counted).text
    assert calls > 0


@pytest.mark.parametrize(
    ("name", "model"),
    [(n, code_models.TRANSLATOR) for n in ("attention", "softmax", "layer_norm", "positional_encoding")]
    + [("bahdanau_score", code_models.ALIGNER)],
)
def test_the_solution_in_its_place_translates_as_the_untouched_model(name: str, model: str) -> None:
    texts = heedful.generate(
        heedful.load(model), list(code_models.SENTENCES), max_tokens=code_models.MAX_TOKENS
    )
    found = EXERCISES[name].place_in_model(EXERCISES[name].solution).text
    assert re.findall("“(.*?)”", found) == texts


def test_the_searched_translation_is_that_of_the_library_s_own_beams() -> None:
    model = heedful.load(code_models.TRANSLATOR)
    text = heedful.generate(model, code_models.SHORT, beams=2, max_tokens=8)
    search = EXERCISES["beam_search"]
    assert search.place_in_model(search.solution).text == f"“{text}”"


def test_adamw_in_its_place_trains_as_fit_does() -> None:
    config = heedful.TrainConfig(steps=8, lr=2e-2)
    with code_models.small_corpus(length=16, batch=4) as (tokenizer, batches):
        sizes: dict[str, Any] = {"vocab": len(tokenizer), "dim": 16, "heads": 2, "layers": 1, "context": 16}
        model = heedful.build("gpt2", **sizes, dropout=0.0, seed=0)
        losses = [step.loss for step in heedful.fit(model, "next_token", batches, config)]
    found = EXERCISES["adamw_step"].place_in_model(EXERCISES["adamw_step"].solution)
    assert torch.allclose(found.numbers, torch.tensor(losses), atol=1e-4)


@pytest.mark.slow  # a process that imports torch
def test_the_lstm_is_trained_without_the_second_that_an_optimiser_of_torch_takes_to_import() -> None:
    code = "import sys\nfrom heedful.classroom.exercises import code_models\n"
    code += "code_models.trained_lstm(); sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    text = code_models.write_greedily(code_models.trained_lstm(), ["the cat"], 24, before="the cat").text
    assert text.startswith("“the cat sat on the ")


def test_a_file_of_stubs_is_python_with_the_chosen_functions(tmp_path: Path) -> None:
    path = write_stubs(tmp_path / "mine.py", ["attention", "bpe_merge"])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == [
        "attention",
        "bpe_merge",
    ]
    assert "heed grade mine.py" in path.read_text(encoding="utf-8")
    compile(stub_file(), "solution.py", "exec")


def test_a_file_of_stubs_is_never_written_over_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text("my work", encoding="utf-8")
    with refused(InputError, "exists already", hint="force"):
        write_stubs(path)
    assert path.read_text(encoding="utf-8") == "my work"
    write_stubs(path, force=True)
    assert "def attention" in path.read_text(encoding="utf-8")


def test_an_unknown_exercise_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with refused(NotFound, "'atention'", hint="attention"):
        write_stubs(tmp_path / "solution.py", ["atention"])
    assert not list(tmp_path.iterdir())


def test_the_table_of_the_documentation_counts_inputs_and_mistakes() -> None:
    text = (Path(__file__).parents[3] / "docs/exercises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| .* \| (\d+) \|$", text, re.MULTILINE)
    counted = {n: (len(e.cases()), len(e.mistakes)) for n, e in EXERCISES.items()}
    assert {name: (int(inputs), int(mistakes)) for name, inputs, mistakes in rows} == counted
    assert f"{sum(mistakes for _, mistakes in counted.values())} known mistakes" in text


def test_lists_and_hints_come_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_STATE", str(tmp_path))
    source = "import sys, heedful.cli.teach as e\n"
    source += "e.exercise_code([], True, False, None, False, True)\n"
    source += "e.exercise_code(['softmax'], False, True, None, False, True)"
    found = subprocess.run(
        [sys.executable, "-c", source + "; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert found.stdout.split()[-1] == "False", found.stderr
