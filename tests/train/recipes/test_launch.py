"""`heed train --nproc 2`: one run in two processes, its result and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heedful

SIZES = (
    "model.dim=16",
    "model.layers=1",
    "model.heads=2",
    "evaluate.log=2",
    "evaluate.every=4",
    "data.batch=5",
)


def start(text: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    sets = [part for one in SIZES for part in ("--set", one)]
    command = [sys.executable, "-m", "heedful.cli", "train", "shakespeare-char-cpu", str(text), *sets, *more]
    command += ["--folder", str(folder), "--length", "16", "--json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_print_one_result_and_it_is_that_of_one(
    kind: str, files: dict[str, Path], tmp_path: Path
) -> None:
    two = start(files["text"], tmp_path / "two", "--steps", "8", "--nproc", "2", "--set", f"parallel={kind}")
    one = start(files["text"], tmp_path / "one", "--steps", "8")
    told = [json.loads(process.communicate()[0]) for process in (two, one)]
    assert told[0]["eval_loss"] == pytest.approx(told[1]["eval_loss"], abs=1e-4)
    assert told[0]["tokens"] == told[1]["tokens"]
    assert heedful.load(told[0]["checkpoint"]) is not None


@pytest.mark.slow
def test_a_signal_stops_both_at_one_step(files: dict[str, Path], tmp_path: Path) -> None:
    run = start(files["text"], tmp_path / "r", "--steps", "100000", "--nproc", "2")
    while not (tmp_path / "r" / "metrics.jsonl").is_file():
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert len(list((tmp_path / "r" / "checkpoints").iterdir())) >= 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_bad_input_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    run = start(tmp_path / "x.txt", tmp_path / "r", "--nproc", "2")
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 3
    assert len(out.splitlines()) == 1
