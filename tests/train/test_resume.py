"""A run that was killed goes on as if nothing had happened: the final weights are the same bytes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train import runner

ROOT = Path(__file__).parents[2]
STEPS = 12


class Server:
    """Runs that can be killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.train.runner"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def ask(self, **job: Any) -> int:
        """The exit code of a run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def killed(self, at: int, late: float, **job: Any) -> None:
        """A run that gets a kill -9 `late` seconds after step `at`; a fast one may have ended by then."""
        assert self.ask(kill=[at, late], **job) in (-signal.SIGKILL, 0)

    def finished(self, **job: Any) -> str:
        assert self.ask(**job) == 0
        return (Path(job["folder"]) / "digest").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.process.kill()
    made.process.communicate()


CORE = [("lm", 1), ("rnn", 1), ("seq2seq", 2)]
CASES = [
    *CORE,
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("mlm", 1), ("seq2seq", 1), ("lm", 3))),
]


@pytest.mark.parametrize(("kind", "accumulate"), CASES, ids=lambda v: str(v))
def test_a_killed_run_ends_with_the_same_bytes(
    kind: str, accumulate: int, files: dict[str, Path], tmp_path: Path, server: Server
) -> None:
    chance = random.Random()
    job = dict(kind=kind, files={k: str(v) for k, v in files.items()}, steps=STEPS, accumulate=accumulate)
    whole = runner.train(**job, folder=str(tmp_path / "whole"))  # type: ignore[arg-type]
    job["folder"] = str(tmp_path / "killed")
    server.killed(chance.randrange(1, STEPS - 2), chance.random() * 0.05, **job)
    assert server.finished(**job) == whole


OTHERS = [{"optimiser": "muon"}, {"optimiser": "adafactor"}, {"ema": 0.9}]


@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_every_optimiser_goes_on_exactly(
    settings: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    job = dict(kind="lm", files={k: str(v) for k, v in files.items()}, schedule="constant", **settings)
    whole = runner.train(**job, steps=6, folder=str(tmp_path / "whole"))
    runner.train(**job, steps=3, folder=str(tmp_path / "parts"))
    assert runner.train(**job, steps=6, folder=str(tmp_path / "parts")) == whole
    for name in ("optimiser.safetensors", *(["ema.safetensors"] if "ema" in settings else [])):
        one, two = (tmp_path / f / "checkpoints" / "step-000006" / name for f in ("whole", "parts"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_twenty_kills_in_a_row_lose_nothing(files: dict[str, Path], tmp_path: Path, server: Server) -> None:
    chance = random.Random()
    job = dict(kind="lm", files={k: str(v) for k, v in files.items()}, steps=60, save_every=1)
    whole = runner.train(**job, folder=str(tmp_path / "whole"))  # type: ignore[arg-type]
    job["folder"] = str(tmp_path / "killed")
    for k in range(20):
        server.killed(2 * k + 2, chance.random() * 0.03, **job)
    assert server.finished(**job) == whole
