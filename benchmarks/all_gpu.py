"""The rows of the ledger that want a GPU, several at once, within a given time.

    HEED_DATA=… python benchmarks/all_gpu.py                            everything, as long as it takes
    HEED_DATA=… python benchmarks/all_gpu.py --seconds 570 --jobs 5     what fits; the same call again goes on
    HEED_DATA=… python benchmarks/all_gpu.py sst2 distillation --out FOLDER

Stages run as processes beside each other: such small models leave a GPU waiting for its host, so that five
take little longer than one. A stage that is done is not run again; one that was stopped goes on where it can
(docs/ledger-runs.md). Results and figures go where the scripts put them, and with --out also into one
archive, FOLDER/ledger.tar.gz, to be unpacked in the root of a checkout. Logs are in --work/logs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST = 20  # seconds: with less left nothing is begun


@dataclass(frozen=True)
class Stage:
    """One process: what is run, how long it may take, and what must be done before."""

    words: tuple[str, ...]
    seconds: int
    after: tuple[str, ...] = ()


def multi30k(*words: str) -> Stage:
    return Stage(("multi30k.py", *words, "--part", "--seconds", "330"), 480)


def tuned(name: str, seconds: int) -> Stage:
    return Stage(("finetuned.py", name), seconds)


RUNS = {f"transformer-{seed}": multi30k("transformer", "--seeds", str(seed)) for seed in (0, 1, 2)} | {
    name: multi30k(name) for name in ("rnnsearch", "seq2seq")
}
# The longest first: whoever begins late should be short.
STAGES = {
    **RUNS,
    "sst2": tuned("sst2", 540),
    "squad": tuned("squad", 300),
    "multi30k": Stage(("multi30k.py",), 60, tuple(RUNS)),
    "distillation": Stage(("distillation.py",), 540, ("sst2",)),
    "samsum": Stage(("summaries.py", "samsum"), 480),
    "dialogsum": Stage(("summaries.py", "dialogsum"), 480),
    "conll2003": tuned("conll2003", 240),
    "clinc150": tuned("clinc150", 240),
    "scratch-bilstm": tuned("scratch-bilstm", 300),
    "scratch-cnn": tuned("scratch-cnn", 240),
    "scratch-bert": tuned("scratch-bert", 240),
    "mrpc": tuned("mrpc", 180),
    "rte": tuned("rte", 180),
}
WRITTEN = ("multi30k*", "finetuned-*", "scratch-*", "distillation*", "summaries-*")


@dataclass
class Running:
    """A stage under way."""

    process: subprocess.Popen[bytes]
    began: float
    limit: float


class Session:
    """What is waiting, what runs, and how each stage ended."""

    def __init__(self, names: Sequence[str], a: argparse.Namespace) -> None:
        self.a, self.waiting, self.running = a, list(names), dict[str, Running]()
        self.ended: dict[str, str] = {}
        (a.work / "logs").mkdir(parents=True, exist_ok=True)
        for name in [name for name in names if self.mark(name).is_file()]:
            self.waiting.remove(name)
            self.ended[name] = "done before"

    def mark(self, name: str) -> Path:
        """The file that says that a stage is done."""
        return self.a.work / f"{name}.done"

    def log(self, name: str) -> Path:
        return self.a.work / "logs" / f"{name}.log"

    def ready(self) -> str | None:
        """The first stage whose predecessors are done, or are no part of this session and done before."""
        for name in self.waiting:
            if all(self.mark(other).is_file() for other in STAGES[name].after):
                return name
        return None

    def start(self, name: str, left: float) -> None:
        """Run a stage, its output into a log."""
        script, *words = STAGES[name].words
        kind = script.removesuffix(".py")
        place = "finetuned" if kind == "distillation" else kind
        command = [sys.executable, str(ROOT / "benchmarks" / script), *words,
                   "--work", str(self.a.work / place), "--results", str(self.a.results)]  # fmt: skip
        if kind == "multi30k":
            command += ["--figures", str(self.a.figures)]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        threads = max(1, (os.cpu_count() or 1) // self.a.jobs)
        changed = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*command, *self.a.extra], stdout=log, stderr=subprocess.STDOUT, env=os.environ | changed
            )
        self.waiting.remove(name)
        self.running[name] = Running(process, time.monotonic(), min(left, STAGES[name].seconds))
        print(f"{name} begun", flush=True)

    def look(self, over: bool) -> None:
        """Take note of what ended; end what is out of time."""
        for name, one in list(self.running.items()):
            spent, code = time.monotonic() - one.began, one.process.poll()
            if code is None and not over and spent < one.limit:
                continue
            if code is None:
                one.process.terminate()
                try:
                    one.process.wait(10)
                except subprocess.TimeoutExpired:
                    one.process.kill()
                    one.process.wait()
                self.ended[name] = f"out of time after {spent:.0f} s"
            elif code == 0:
                self.mark(name).touch()
                self.ended[name] = f"done in {spent:.0f} s"
            else:
                self.ended[name] = f"failed after {spent:.0f} s with code {code}"
            del self.running[name]
            print(f"{name} {self.ended[name]}\n{self.tail(name)}", flush=True)

    def tail(self, name: str) -> str:
        """The end of a log: the figures, or what went wrong."""
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        many = 1 if self.ended[name].startswith("done") else 12
        return "\n".join(f"  {line[:600]}" for line in lines[-many:])

    def run(self, seconds: float) -> None:
        """Until all is done or the time is over."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            self.look(over=left <= 0)
            while left > LEAST and len(self.running) < self.a.jobs and (name := self.ready()) is not None:
                self.start(name, left)
            if not self.running:
                return
            time.sleep(0.5)


def pack(out: Path, results: Path, figures: Path, work: Path) -> None:
    """Rows, figures and logs as one archive, under the names they have in a checkout."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "ledger.tar.gz", "w:gz") as archive:
        for folder, inside in ((results, "results"), (figures, "docs/figures")):
            for path in sorted({p for pattern in WRITTEN for p in folder.glob(pattern)}):
                archive.add(path, f"{inside}/{path.name}")
        for path in sorted((work / "logs").glob("*.log")):
            archive.add(path, f"runs/logs/{path.name}")


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STAGES)}; all by default")
    parser.add_argument("--seconds", type=float, default=1e9, help="everything is over after that")
    parser.add_argument("--jobs", type=int, default=5, help="processes at once")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--out", type=Path, help="a folder for the archive of what was written")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="options for every script")
    a = parser.parse_args()
    if unknown := [name for name in a.names if name not in STAGES]:
        parser.error(f"no stage is called {unknown[0]!r}; there are {', '.join(STAGES)}")
    if not os.environ.get("HEED_DATA"):
        parser.error("HEED_DATA names no folder of data sets")
    session = Session(a.names or list(STAGES), a)
    session.run(a.seconds)
    for name in session.waiting:
        session.ended[name] = "not begun"
    for name, how in session.ended.items():
        print(f"{name:16} {how}")
    if a.out:
        pack(a.out, a.results, a.figures, a.work)
    sys.exit(0 if all(how.startswith("done") for how in session.ended.values()) else 1)


if __name__ == "__main__":
    main()
