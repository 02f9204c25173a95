"""A filled sheet read from a file: the problem it belongs to, and its answers by their numbers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.classroom.exercises.numbers import Problem, new_problem
from heedful.classroom.exercises.numbers_grading import is_blank
from heedful.core.errors import InputError
from heedful.core.files import missing_file

READ = (".txt", ".yaml", ".yml", ".json", ".csv")
LARGEST_SHEET = 1_000_000  # bytes
ANSWER = re.compile(r"\s*(\d+)\s*=(.*)")
HEADER = re.compile(r"\s*(exercise|seed|digits)\s*:(.*)")


def read_sheet(path: Path) -> tuple[Problem, dict[int, Any]]:
    """The problem a sheet names, drawn again, and what was answered."""
    if not path.exists():
        raise missing_file(path)
    if path.is_dir() or path.suffix.lower() not in READ:
        raise InputError(
            f"{path} is no filled sheet", hint=f"its name ends in {', '.join(READ)}, or in .py for code"
        )
    if path.stat().st_size > LARGEST_SHEET:
        raise InputError(f"{path} is too large for a sheet", hint="give the file that heed exercise wrote")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8", hint="save it as UTF-8") from None
    fields = parse_sheet(text, path.suffix.lower(), str(path))
    answers = fields.pop("answers", None)
    for name in ("exercise", "seed"):
        if is_blank(fields.get(name)):
            raise InputError(
                f"{path} does not say its {name}", hint="keep the lines that heed exercise wrote"
            )
    digits = fields.get("digits")
    if digits is not None and not str(digits).strip().isdigit():
        raise InputError(
            f"{path}: digits: {digits} is no whole number", hint="keep the line that heed exercise wrote"
        )
    problem = new_problem(
        str(fields["exercise"]).strip(), str(fields["seed"]).strip(), None if digits is None else int(digits)
    )
    return problem, check_answers(problem, answers, str(path))


def parse_sheet(text: str, suffix: str, name: str) -> dict[str, Any]:
    """The fields of a sheet: exercise, seed, digits, answers."""
    if suffix == ".csv":
        return parse_csv(text)
    if suffix == ".txt":
        return parse_text(text)
    import yaml

    try:
        if suffix != ".json" and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise InputError(f"{name} has a YAML alias", hint="write every answer out")  # they may multiply
        fields = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    except InputError:
        raise
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{name} is no sheet", hint="it must name its exercise, its seed and its answers")
    return dict(fields)


def parse_text(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"answers": {}}
    for line in text.splitlines():
        if found := HEADER.fullmatch(line):
            fields[found[1]] = found[2].strip()
        elif found := ANSWER.fullmatch(line):
            fields["answers"][found[1]] = found[2].strip()
    return fields


def parse_csv(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"answers": {}}
    lines = text.splitlines()
    comma = (
        ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    )  # as some spreadsheets save it
    for row in csv.reader(io.StringIO(text), delimiter=comma):
        if row and row[0].strip() in ("exercise", "seed", "digits") and len(row) > 1:
            fields[row[0].strip()] = row[1].strip()
        elif row and row[0].strip().isdigit():
            fields["answers"][row[0].strip()] = " ".join(row[2:]).strip()
    return fields


def check_answers(problem: Problem, answers: Any, name: str) -> dict[int, Any]:
    """Answers by number, all of them to questions that there are."""
    if answers is not None and not isinstance(answers, Mapping):
        raise InputError(f"{name}: answers must name the question of each, as 1: [0.5, 0.25]")
    found: dict[int, Any] = {}
    count = len(problem.questions)
    for key, answer in (answers or {}).items():
        if not str(key).strip().isdigit() or not 1 <= int(key) <= count:
            raise InputError(
                f"{name} has an answer to {key!r}", hint=f"{problem.exercise.name} has questions 1 … {count}"
            )
        found[int(key)] = answer
    if all(is_blank(answer) for answer in found.values()):
        raise InputError(f"{name} has no answers yet", hint="fill in the numbers, then grade it")
    return found
