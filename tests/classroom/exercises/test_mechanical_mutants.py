"""Mistakes that nobody chose: the plain solution with one operator, operand, constant or call changed.

All are found wrong; a part of them has a name. Students do not make most of these, so the share is low.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.classroom.exercises.code_exercises import CodeExercise, code_exercises
from heedful.classroom.exercises.code_grading import find_mistakes, first_difference
from heedful.classroom.exercises.sandbox import SolutionError

PLAIN = Path(__file__).parent / "variants" / "plain.py"
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
NEVER_ENDS = ("i += 0", "i += 1 - 1", "i -= ")  # a walk that stands still


class Replacement(ast.NodeTransformer):
    """Put another node in the place of one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand where a node stands."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in SWAPPED:
            yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        yield from (node.left, node.right)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        yield node.args[0]


def mutants(function: ast.FunctionDef) -> set[str]:
    """The source of a function with one thing changed, in every way."""
    found = set()
    for number, node in enumerate(ast.walk(function)):
        for choice, _ in enumerate(replacements(node)):
            changed = copy.deepcopy(function)
            old = list(ast.walk(changed))[number]
            new = list(replacements(old))[choice]
            found.add(ast.unparse(ast.fix_missing_locations(Replacement(old, new).visit(changed))))
    return {text for text in found if not any(words in text for words in NEVER_ENDS)}


def call(exercise: CodeExercise, source: str) -> list[Any]:
    """What a function gives on every input of its exercise; an error counts as one."""
    names: dict[str, Any] = {}
    exec("import math, torch\n" + source, names)  # our own file, with one thing changed
    found: list[Any] = []
    for case in exercise.cases():
        arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in case.arguments]
        try:
            found.append(names[exercise.name](*arguments))
        except Exception as error:
            found.append(SolutionError(str(error), type(error).__name__))
    return found


@pytest.mark.slow
def test_a_third_of_mechanical_mistakes_has_a_name() -> None:
    wrong = named = 0
    for function in ast.parse(PLAIN.read_text(encoding="utf-8")).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        exercise = code_exercises()[function.name]
        cases = exercise.cases()
        expected = [exercise.solution(*case.arguments) for case in cases]
        for source in sorted(mutants(function)):
            found = call(exercise, source)
            if all(isinstance(value, SolutionError) for value in found):
                continue
            if first_difference(exercise, cases, expected, found) is not None:
                wrong += 1
                named += bool(find_mistakes(exercise, cases, expected, found))
    print(f"{named} of {wrong} mechanical mistakes have a name")
    assert wrong > 200
    assert named >= 0.3 * wrong
