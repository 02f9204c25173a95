"""A fine-tuning run that was killed goes on from its last checkpoint, and ends as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError, CorruptFile
from heedful.tasks.finetune import FinetuneRequest, FinetuneResult, finetune
from heedful.tasks.finetune import result as saving
from tests.refusal import refused
from tests.tasks.finetune import finetuning as toy

KILLED = """
import os, signal
from heedful.tasks.finetune import FinetuneRequest, finetune
from heedful.tasks.finetune import result as saving

saving.CHECKPOINT_SECONDS = 0.0
write = saving.KeptWeights.checkpoint

def write_and_die(self, step):
    if step.number >= {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, step)

saving.KeptWeights.checkpoint = write_and_die
finetune(FinetuneRequest({model!r}, {file!r}, out={out!r}, {options}), quiet=True)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.models(tmp_path_factory.mktemp("bases"))["encoder"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return toy.classes(tmp_path / "rows.csv")


def kill(base: Path, file: Path, out: Path, options: str, after: int) -> None:
    """Run a fine-tuning in another process, which is killed at an evaluation."""
    code = KILLED.format(after=after, model=str(base), file=str(file), out=str(out), options=options)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not out.exists()


LEARN: dict[str, Any] = {"lora": True, "epochs": 6, "lr": 2e-3}


@pytest.fixture(scope="module")
def killed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed at a late evaluation, with its rows."""
    where = tmp_path_factory.mktemp("killed")
    options = ", ".join(f"{name}={value}" for name, value in LEARN.items())
    kill(base, toy.classes(where / "rows.csv"), where / "out", options, after=20)
    assert list(saving.checkpoint_folder(where / "out").glob("checkpoints/step-*"))
    return where


@pytest.fixture
def left(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """The same folder, which is put back afterwards: a checkpoint names the paths of its command."""
    shutil.copytree(killed, tmp_path / "copy")
    yield killed
    shutil.rmtree(killed)
    shutil.copytree(tmp_path / "copy", killed)


def learn(base: Path, where: Path, out: str = "out", **changes: Any) -> FinetuneResult:
    request = FinetuneRequest(str(base), str(where / "rows.csv"), out=str(where / out), **LEARN | changes)
    result: FinetuneResult = finetune(request, quiet=True)
    return result


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    base: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn(base, left, "whole")
    monkeypatch.setattr(saving, "CHECKPOINT_SECONDS", 0.0)
    result = learn(base, left)
    assert not saving.checkpoint_folder(left / "out").exists()
    assert result.training.history == whole.training.history
    assert result.scores == whole.scores
    ours, theirs = (heedful.load(left / name).state_dict() for name in ("out", "whole"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_best_weights_of_before_come_back(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES for _ in range(1)]
    file = toy.table(tmp_path / "rows.csv", ("text", "label"), rows)
    first = tmp_path / "first"
    finetune(FinetuneRequest(str(base), str(file), out=str(first), lora=False, epochs=8, lr=2e-3), quiet=True)
    # It does the task already, and a rate this high only spoils it: the weights of step 0 are the best.
    options = "lora=False, epochs=6, lr=0.05"
    whole = finetune(
        FinetuneRequest(str(first), str(file), out=str(tmp_path / "whole"), lora=False, epochs=6, lr=0.05),
        quiet=True,
    )
    assert whole.training.best_step == 0
    out = tmp_path / "out"
    kill(first, file, out, options, after=len(whole.training.history) * 3)
    monkeypatch.setattr(saving, "CHECKPOINT_SECONDS", 0.0)
    request = FinetuneRequest(str(first), str(file), out=str(out), lora=False, epochs=6, lr=0.05)
    result = finetune(request, quiet=True)
    assert (result.training.best_step, result.training.before) == (0, whole.training.before)
    assert result.scores == whole.scores
    ours, theirs = (heedful.load(folder).state_dict() for folder in (out, first))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_another_command_or_a_damaged_file_is_refused(base: Path, left: Path) -> None:
    with refused(ConfigError, "of another command"):
        learn(base, left, lr=1e-3)
    for best in saving.checkpoint_folder(left / "out").glob("best-*"):
        best.write_bytes(b"half")
    with refused(CorruptFile, "damaged"):
        learn(base, left)


def test_a_short_run_writes_no_checkpoints(base: Path, file: Path, tmp_path: Path) -> None:
    seen = []
    watched = saving.KeptWeights.checkpoint

    def look(self: saving.KeptWeights, step: object) -> None:
        seen.append(self.folder)
        watched(self, step)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving.KeptWeights, "checkpoint", look)
        finetune(FinetuneRequest(str(base), str(file), out=str(tmp_path / "out"), lora=False), quiet=True)
    assert set(seen) == {None}


def test_a_folder_of_that_name_which_is_somebodys_own_is_left_alone(
    base: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "out.training" / "checkpoints" / "step-000001"
    own.mkdir(parents=True)
    (own / "notes.txt").write_text("mine")
    request = FinetuneRequest(str(base), str(file), out=str(tmp_path / "out"), lora=False, epochs=1)
    finetune(request, quiet=True)
    assert (own / "notes.txt").read_text() == "mine"
    monkeypatch.setattr(saving, "CHECKPOINT_SECONDS", 0.0)
    moved = (tmp_path / "out.training").rename(tmp_path / "other.training")
    with refused(ConfigError, "is in the way"):
        finetune(FinetuneRequest(str(base), str(file), out=str(tmp_path / "other"), epochs=1), quiet=True)
    assert (moved / "checkpoints" / "step-000001" / "notes.txt").is_file()
