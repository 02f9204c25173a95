"""Measure a row of the ledger again: run its commands and compare the new figure with the stored one.

A row's `check` has
    steps       commands, one after another, each a list of words: ["heed", …], ["python", "-m", "heedful…"],
                ["python", "-m", "bundle…"] or ["python", "benchmarks/….py", …]. {data} stands for the
                folder of HEED_DATA, {work} for one that is made for the occasion and deleted. No shell
                reads them.
    read        where the figure stands in the last JSON object the last step prints: "figure", "test.bleu"
    figure      which of the row's figures that is, if it has several: "tokens_per_second"
    tolerance   how far off the new figure may be, in its own unit
    data        the files needed, below HEED_DATA; their SHA-256 is the row's
    device      "cuda" if only a GPU will do
All but `steps` and `tolerance` may be left out.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from heedful.classroom.experiments import ledger
from heedful.core.errors import CorruptFile, HeedfulError, NotFound, nearest
from heedful.core.files import sha256


class Unavailable(HeedfulError):
    """A row that cannot be measured here: its data, a GPU or a command for it is missing."""

    exit_code = 3


class CommandFailed(HeedfulError):
    """A command of a row that ended with an error, or printed no figure."""

    code = "failed"


@dataclass(frozen=True)
class Check:
    """How a row is measured again."""

    steps: Sequence[Sequence[str]]
    tolerance: float
    read: str = "figure"
    figure: str = ""
    data: Sequence[str] = ()
    device: str = ""


@dataclass(frozen=True)
class Verdict:
    """The stored figure, the new one, and whether they are the same."""

    row: str
    claim: str
    stored: float
    now: float
    tolerance: float
    seconds: float

    @property
    def same(self) -> bool:
        # the last digit of a stored figure is rounded: a figure exactly at the edge must not fail by a bit
        return math.isfinite(self.now) and abs(self.now - self.stored) <= self.tolerance * (1 + 1e-9) + 1e-12


def verify_row(folder: Path, name: str) -> Verdict:
    """Run a row of the ledger in `folder` again, with the scripts next to that folder."""
    rows = ledger.rows_by_name(folder)
    if name not in rows:
        hint = nearest(name, rows) or "heed verify --list has them all"
        raise NotFound(f"no row of {folder}/ is called {name!r}", hint=hint)
    row = rows[name]
    check = read_check(row, name)
    stored = read_number(row["figure"], check.figure, f"row {name!r}")
    data = available(row, check, name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        folders = {"{data}": str(data or ""), "{work}": work}
        output, root = "", folder.resolve().parent
        for step in check.steps:
            words = command_line(step, folders, root)
            done = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
            output = done.stdout  # what goes to stderr goes to ours
            if done.returncode:
                last = (output.strip().splitlines() or [""])[-1][:200]
                ended = f"{' '.join(words[1:])[:120]} ended with code {done.returncode} {last}"
                raise CommandFailed(ended.rstrip())
    now = read_number(last_object(output, name), check.read, f"the output of row {name!r}")
    return Verdict(name, row["claim"], stored, now, check.tolerance, time.monotonic() - began)


def read_check(row: Mapping[str, Any], name: str) -> Check:
    """Return the check of a row; raise CorruptFile for one with unknown keys."""
    given = row.get("check")
    if not given:
        raise Unavailable(
            f"row {name!r} has no check that runs by itself", hint=f"its figure came from: {row['command']}"
        )
    names = {f.name for f in fields(Check)}
    if not isinstance(given, Mapping) or set(given) - names or not {"steps", "tolerance"} <= set(given):
        raise CorruptFile(
            f"row {name!r}: a check has steps and tolerance, and may have {', '.join(sorted(names))}"
        )
    steps = given["steps"]
    is_command = lambda step: isinstance(step, list) and step and all(isinstance(word, str) for word in step)
    if not isinstance(steps, list) or not steps or not all(map(is_command, steps)):
        raise CorruptFile(f"row {name!r}: the steps of a check are lists of words, not {str(steps)[:60]!r}")
    return Check(**{key: value for key, value in given.items() if value is not None})


def available(row: Mapping[str, Any], check: Check, name: str) -> Path | None:
    """Return the folder of data, if any; raise Unavailable if the row's data or device is missing."""
    if check.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise Unavailable(
                f"row {name!r} needs a GPU and there is none here", hint=f"run it on {row['hardware']}"
            )
    root = os.environ.get("HEED_DATA") or None
    files = [Path(root or "") / one for one in check.data]
    missing = next((file for file in files if root is None or not file.is_file()), None)
    if missing is not None:
        needs = f"row {name!r} needs {missing}" + (", which is not there" if root else "")
        raise Unavailable(needs, hint="set HEED_DATA to the folder it is in")
    if files and row["data_sha256"] and sha256(files) != row["data_sha256"]:
        raise Unavailable(
            f"row {name!r}: the data in {root} is not what it was measured on",
            hint="fetch the data whose SHA-256 the row names",
        )
    return None if root is None else Path(root)


def command_line(step: Sequence[str], folders: Mapping[str, str], root: Path) -> list[str]:
    """Return the words of a step with this Python and these folders. Only heedful's own code is run."""
    filled = [re.sub(r"\{data\}|\{work\}", lambda field: folders[field[0]], word) for word in step]
    if filled[0] == "heed":
        return [sys.executable, "-m", "heedful.cli", *filled[1:]]
    module = filled[:2] == ["python", "-m"] and re.fullmatch(
        r"(heedful|bundle)(\.\w+)*", (filled[2:] or [""])[0]
    )
    script = filled[0] == "python" and re.fullmatch(r"benchmarks/\w+\.py", (filled[1:] or [""])[0])
    if not module and not script:
        raise CorruptFile(
            f"{' '.join(step)[:80]!r} is not run",
            hint="a step is heed …, python -m heedful… (or bundle…) or python benchmarks/….py",
        )
    if script and not (root / filled[1]).is_file():
        raise Unavailable(
            f"{filled[1]} is not next to the results", hint="verify rows in a checkout of heedful"
        )
    return [sys.executable, *filled[1:]]


def last_object(output: str, name: str) -> Mapping[str, Any]:
    """Return the last line that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.lstrip().startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
    raise CommandFailed(f"the command of row {name!r} printed no JSON object with a figure")


def read_number(value: Any, path: str, where: str) -> float:
    """Return the number at a dotted path; the value itself if the path is empty."""
    for key in path.split(".") if path else []:
        if not isinstance(value, Mapping) or key not in value:
            raise CorruptFile(f"{where} has no {path!r}")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CorruptFile(f"{where}: {path or 'figure'} is {str(value)[:60]}, not a number")
    return float(value)
