"""A server that has imported everything and forks a training run for each line: start-up costs nothing.

    {"kind": "lm", "files": …, "folder": …, "steps": 12, …}   →   its exit code
    {…, "kill": [at, late]}   →   the same, after a kill -9 `late` seconds after it has taken step `at`

A run writes how far it is to folder/progress and, at its end, the SHA-256 of its weights to folder/digest.
Only the parent kills, before it has waited for its child, so the process id is always the child's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from heedful.models.base import Model
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.names import model_tensors
from tests.train import toys

KINDS: dict[str, tuple[str, str]] = {  # the objective and the family
    "lm": ("next_token", "gpt2"),
    "mlm": ("masked", "roberta"),
    "seq2seq": ("translate", "transformer"),
    "rnn": ("next_token", "lstm"),
}


def digest(model: Model) -> str:
    """SHA-256 of all weights, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(model_tensors(model).items()):
        found.update(name.encode())
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def train(kind: str, files: dict[str, str], folder: str, **settings: Any) -> str:
    """One run, from its beginning or from where it died."""
    torch.set_num_threads(1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    purpose, family = KINDS[kind]
    model = toys.tiny(family, dropout=0.1)
    batches = toys.batches_of(purpose, {k: Path(v) for k, v in files.items()}, model=model)
    usual = {"lr": 3e-3, "warmup": 3, "folder": folder, "save_every": 2, "resume": True}
    config = TrainConfig(**(usual | settings))
    for step in fit(model, purpose, batches, config):
        (Path(folder) / "progress").write_text(str(step.number))
    found = digest(model)
    (Path(folder) / "digest").write_text(found)
    return found


def start(job: dict[str, Any]) -> int:
    """The process id of a run of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        train(**job)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def kill(pid: int, progress: Path, at: int, late: float) -> None:
    """kill -9, `late` seconds after the run has taken step `at` (or half a minute after nothing happens)."""
    for _ in range(6000):
        if progress.is_file() and (text := progress.read_text()) and int(text) >= at:
            break
        time.sleep(0.005)
    time.sleep(late)
    os.kill(pid, signal.SIGKILL)


def serve() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        when = job.pop("kill", None)
        pid = start(job)
        if when:
            kill(pid, Path(job["folder"]) / "progress", *when)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    probe = torch.nn.Parameter(torch.ones(1))
    torch.optim.AdamW([probe]).step()  # imports the rest of torch, so that no run has to
    serve()
