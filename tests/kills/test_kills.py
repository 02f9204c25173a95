"""kill -9 at random moments, while saving and on a full disk: what goes on ends with the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.tasks.finetune import finetuning
from tests.train import toys

ROOT = Path(__file__).parents[2]
SMALL = (
    "--set", "model.dim=16", "--set", "model.layers=1", "--length", "16", "--batch", "4", "--steps", "24",
    "--set", "train.save_every=2", "--set", "evaluate.every=8", "--set", "evaluate.sample=0",
)  # fmt: skip


def of_run(folder: Path) -> list[Path]:
    last = folder / "run" / "checkpoints" / json.loads((folder / "run/last.json").read_text())["checkpoint"]
    return [last / "model.safetensors", last / "optimiser.safetensors"]


@dataclass(frozen=True)
class Command:
    """A command that is killed and started again: what it is given, and which files it leaves."""

    given: Callable[[Path], tuple[str, ...]]
    made: Callable[[Path], list[Path]]

    def digest(self, folder: Path) -> str:
        found = hashlib.sha256()
        for path in self.made(folder):
            found.update(path.read_bytes())
        return found.hexdigest()


def word2vec(folder: Path) -> tuple[str, ...]:
    more = ("--resume",) if (folder / "run.safetensors").is_file() else ()
    sizes = ("--dim", "16", "--min-count", "1", "--epochs", "6", "--threads", "1")
    return (
        "word2vec",
        "train",
        "text",
        "-o",
        "v.safetensors",
        "--checkpoint",
        "run.safetensors",
        *sizes,
        *more,
    )


COMMANDS = {
    "gpt": Command(
        lambda f: ("train", "shakespeare-char-cpu", "text", "--folder", "run", "--resume", *SMALL,
                   "--set", "model.heads=2"),
        of_run,
    ),
    "lstm": Command(
        lambda f: ("train", "lstm-wikitext2", "text", "--folder", "run", "--resume", *SMALL,
                   "--set", "tokenizer.vocab=100"),
        of_run,
    ),
    "finetune": Command(
        lambda f: ("finetune", "encoder", "classes.csv", "--out", "tuned",
                   "--epochs", "3", "--full"),
        lambda f: [f / "tuned" / "model.safetensors"],
    ),
    "word2vec": Command(word2vec, lambda f: [f / "v.safetensors"]),
}  # fmt: skip


class Server:
    """Commands that can be killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.kills.server"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def run(self, command: Command, folder: Path, **how: Any) -> int:
        """The exit code of a command; negative is the signal it died of."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"command": command.given(folder), "folder": str(folder), **how}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())["code"])


class Unkilled(NamedTuple):
    """What a command leaves that nobody kills, how long it takes, and how much room on the disk."""

    digest: str
    seconds: float
    room: int


class Place(Protocol):
    """Makes a new folder for a command to work in."""

    def __call__(self, folder: Path | None = None) -> Path: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """New folders, each with the files that all commands read."""
    above = tmp_path_factory.mktemp("kills")
    model = finetuning.models(above / "models")["encoder"]

    def new(folder: Path | None = None) -> Path:
        folder = folder or above / f"run{len(list(above.iterdir()))}"
        folder.mkdir()
        (folder / "text").write_text((toys.LM_TEXT + "\n") * 40)
        (folder / "encoder").symlink_to(model)
        finetuning.classes(folder / "classes.csv")
        return folder

    return new


class Whole(dict[str, Unkilled]):
    """Commands that nobody kills, each run once, when it is first asked for."""

    def __init__(self, server: Server, place: Place) -> None:
        super().__init__()
        self.server, self.place = server, place

    def __missing__(self, name: str) -> Unkilled:
        command, folder, before = COMMANDS[name], self.place(), room(self.place())
        began = time.monotonic()
        assert self.server.run(command, folder) == 0, (folder / "said").read_text()
        seconds = min(time.monotonic() - began, 3.0)
        self[name] = Unkilled(command.digest(folder), seconds, room(folder) - before)
        return self[name]


@pytest.fixture(scope="module")
def whole(server: Server, place: Place) -> Whole:
    return Whole(server, place)


def room(folder: Path) -> int:
    """What files take in blocks of 4 KiB."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def go_on(server: Server, name: str, folder: Path) -> None:
    """Let a command run to its end, if it has not reached it; a fine-tuning that has is refused."""
    if name == "finetune" and COMMANDS[name].made(folder)[0].is_file():
        (folder / "tuned.lock").unlink(missing_ok=True)  # of a process that was killed after its last word
        return
    assert server.run(COMMANDS[name], folder) == 0, (folder / "said").read_text()


def kill_at_random(name: str, kills: int, server: Server, place: Place, whole: Whole) -> None:
    """Kill a command again and again until it ends, and begin anew until it was killed so many times."""
    chance, left = random.Random(f"{name} {kills}"), kills
    while left:
        folder, code = place(), -signal.SIGKILL
        while code == -signal.SIGKILL and left:
            code = server.run(COMMANDS[name], folder, after=1.2 * chance.random() * whole[name].seconds)
            left -= code == -signal.SIGKILL
        go_on(server, name, folder)
        assert COMMANDS[name].digest(folder) == whole[name].digest


def kill_while_writing(name: str, at: int, server: Server, place: Place, whole: Whole) -> bool:
    """Kill a command before a change of a file, and let it go on; whether it made that many."""
    folder = place()
    code = server.run(COMMANDS[name], folder, at=at)
    assert code in (0, -signal.SIGKILL), (folder / "said").read_text()
    go_on(server, name, folder)
    assert COMMANDS[name].digest(folder) == whole[name].digest
    left = {path.name for path in folder.rglob("*") if path.suffix in (".part", ".old", ".lock", ".partial")}
    assert not left, left
    return code != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_killed_at_random_moments_ends_with_the_same_bytes(
    name: str, server: Server, place: Place, whole: Whole
) -> None:
    kill_at_random(name, 2, server, place, whole)


@pytest.mark.parametrize(
    ("name", "at"),
    [("gpt", 9), pytest.param("gpt", 21, marks=pytest.mark.slow), ("finetune", 4), ("word2vec", 6)],
)
def test_a_command_killed_while_it_writes_ends_with_the_same_bytes(
    name: str, at: int, server: Server, place: Place, whole: Whole
) -> None:
    assert kill_while_writing(name, at, server, place, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "name", [n if n == "gpt" else pytest.param(n, marks=pytest.mark.slow) for n in COMMANDS]
)
def test_on_a_full_disk_a_command_ends_in_one_line_and_goes_on_when_there_is_room(
    name: str, small_disk: Path, server: Server, place: Place, whole: Whole
) -> None:
    folder = place(small_disk / "run")
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - whole[name].room // 2))
    assert server.run(COMMANDS[name], folder) == 1, (folder / "said").read_text()
    said = (folder / "said").read_text()
    error = next(line for line in said.splitlines() if line.startswith("error: "))
    assert "could not write" in error
    assert "o space left" in error
    assert "bug in heedful" not in said
    (small_disk / "filler").unlink()
    go_on(server, name, folder)
    assert COMMANDS[name].digest(folder) == whole[name].digest


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_twenty_kills_at_random_moments_lose_nothing(
    name: str, server: Server, place: Place, whole: Whole
) -> None:
    kill_at_random(name, 20, server, place, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_twenty_kills_while_files_are_written_lose_nothing(
    name: str, server: Server, place: Place, whole: Whole
) -> None:
    most = {"finetune": 20, "word2vec": 30}.get(name, 150)  # changes that a command makes to files, about
    places = random.Random(name).sample(range(1, most), min(20, most - 1))
    assert sum(kill_while_writing(name, at, server, place, whole) for at in places) > 5


HOLD = """
import sys
from pathlib import Path
from heedful.core.locks import FileLock
FileLock(Path(sys.argv[1]), "", "").acquire()
print("held", flush=True)
sys.stdin.read()
"""
LOCKS = {"gpt": "run/run.lock", "finetune": "tuned.lock", "word2vec": "v.safetensors.lock"}


@pytest.mark.parametrize("name", LOCKS)
def test_a_second_command_in_the_same_place_is_refused_in_one_line(
    name: str, server: Server, place: Place
) -> None:
    folder = place()
    path = folder / LOCKS[name]
    path.parent.mkdir(exist_ok=True)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        there = {p for p in folder.rglob("*")}
        assert server.run(COMMANDS[name], folder) == 3
        said = (folder / "said").read_text().splitlines()
        assert f"is in use by process {first.pid}" in said[0]
        assert len(said) == 2, said  # what is wrong, and what to do
        assert {p for p in folder.rglob("*")} - there <= {folder / "said"}
        first.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_nobody_holds_stops_no_command(
    name: str, server: Server, place: Place, whole: Whole
) -> None:
    folder = place()
    path = folder / LOCKS[name]
    path.parent.mkdir(exist_ok=True)
    path.touch()
    go_on(server, name, folder)
    assert COMMANDS[name].digest(folder) == whole[name].digest
