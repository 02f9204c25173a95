"""A server that has imported everything and forks a command of `heed` for each line: start-up costs nothing.

    {"command": ["train", …], "folder": …}        →   {"code": 0}
    {…, "after": 0.4}                             →   the same, killed with -9 after so many seconds
    {…, "at": 7}                                  →   killed with -9 before it changes a file the 7th time

Only the parent kills, before it has waited for its child, so the process id is always the child's own. What a
command says stands in folder/said.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

import torch

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
LOGS = ("said", "log.txt", "metrics.jsonl", "samples.jsonl")


class Watched:
    """Counts the changes a process makes to files in its folder, and waits to be killed before one."""

    def __init__(self, folder: str, at: int, pipe: int) -> None:
        self.folder, self.left, self.pipe = os.path.realpath(folder), at, pipe

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        written = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if not (written or event in CHANGES) or not isinstance(args[0], str | os.PathLike):
            return
        path = os.path.abspath(os.fspath(args[0]))
        if not path.startswith(self.folder) or path.endswith(LOGS):
            return
        self.left -= 1
        if self.left == 0:
            os.write(self.pipe, b".")
            time.sleep(60)


def run(command: list[str], folder: str) -> int:
    """A command in a process that has imported it already."""
    from heedful.cli import main

    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        main(command)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 0
    return 0


def start(job: dict[str, Any], pipe: int) -> int:
    """The process id of a command of its own."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        if job.get("at"):
            sys.addaudithook(Watched(job["folder"], job["at"], pipe))
        code = run(job["command"], job["folder"])
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        reader, writer = os.pipe()
        pid = start(job, writer)
        os.close(writer)
        if "after" in job or "at" in job:
            select.select([reader], [], [], job.get("after", 120))  # a dot, the child's end, or the time
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reader)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import heedful.cli.finetune
    import heedful.cli.training
    import heedful.cli.word2vec
    import heedful.tasks.finetune
    import heedful.train.recipes.train
    import heedful.word2vec.kernels
    import heedful.word2vec.vectors  # noqa: F401

    probe = torch.nn.Parameter(torch.ones(1))
    torch.optim.AdamW([probe]).step()  # imports the rest of torch, so that no run has to
    serve()
