"""Damaged files by the thousand: each opens rightly or ends in one typed line, soon, in little memory."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from heedful.core.errors import HeedfulError
from tests.fuzz.bounds import SECONDS, bounded
from tests.fuzz.targets import TARGETS

CORE, LONG = 200, 5000


def fuzz(name: str, folder: Path, count: int) -> Counter[str]:
    """Damage a format `count` times; what came of it."""
    target, outcomes, failures = TARGETS[name](folder / name), Counter[str](), []
    for seed in range(count):
        began = time.process_time()
        try:
            with bounded():
                target.attempt(random.Random(f"{name} {seed}"))
            outcomes["opened"] += 1
        except HeedfulError as error:
            outcomes[type(error).__name__] += 1
            text = str(error)
            if "\n" in text or not text.isprintable() or len(text) > 1000:
                failures.append(f"{seed}: no plain line: {text[:200]!r}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            failures.append(f"{seed}: {type(error).__name__}: {str(error)[:200]}")
        if time.process_time() - began > SECONDS:
            failures.append(f"{seed}: took {time.process_time() - began:.1f} s")
    assert not failures, f"{len(failures)} of {count} in {name}:\n" + "\n".join(failures[:40])
    return outcomes


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_one_typed_error_or_opens_rightly(name: str, tmp_path: Path) -> None:
    outcomes = fuzz(name, tmp_path, CORE)
    assert outcomes.total() == CORE
    assert outcomes["opened"] < CORE


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_five_thousand_damaged_files_of_each_format(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, LONG).total() == LONG
