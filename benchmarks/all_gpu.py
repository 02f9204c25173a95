"""The rows of the ledger that want a GPU, many at once, within a given time.

    HEED_DATA=… python benchmarks/all_gpu.py                            everything, as long as it takes
    HEED_DATA=… python benchmarks/all_gpu.py --seconds 560 --jobs 14    what fits; the same call again goes on
    HEED_DATA=… python benchmarks/all_gpu.py sst2 distillation --out FOLDER

Stages run as processes beside each other: such small models leave a GPU waiting for its host. Where NVIDIA's
MPS daemon starts, it lets their kernels overlap. A stage that is done is not run again; one that was stopped
goes on where it can (docs/ledger-runs.md). Results and figures go where the scripts put them, and with --out
also into an archive, FOLDER/ledger.tar.gz, to be unpacked in the root of a checkout; models that come along
into FOLDER/models.tar.gz. Both are written anew every minute. Logs are in --work/logs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIN_SECONDS_LEFT = 20  # with less left nothing is begun
EARLY_SECONDS = 90  # whoever falls sooner may have fallen over recording
PACK_SECONDS = 60  # between archives
TRIAL = "import torch; x = torch.ones(64, 64, device='cuda'); assert float((x @ x).sum()) == 64**3"
BROKEN = ("CUDA error", "cuda error", "MPS", "CUBLAS_STATUS", "CUDNN_STATUS", "device-side assert")


@dataclass(frozen=True)
class Stage:
    """One process: what is run, what must be done before, and how long before the end it should be done.

    The first of the words is a script of benchmarks/, or -m with a module that makes a model.
    """

    words: tuple[str, ...]
    after: tuple[str, ...] = ()
    spare: int | None = None  # seconds left for what follows training; the script is told the rest: --seconds
    recorded: bool = False  # its steps are recorded; if it falls early it is begun once more with --no-graph


def seed_stages(task: str, seeds: Sequence[int], runs: Sequence[int]) -> dict[str, Stage]:
    """A process for each run of each seed of a task, and one that puts them together."""
    parts = {
        f"{task}-{seed}-{run}": Stage(
            ("finetuned.py", task, "--seeds", str(seed), "--run", str(run), "--part")
        )
        for seed in seeds
        for run in runs
    }
    return parts | {task: Stage(("finetuned.py", task), tuple(parts))}


def scratch_stages(kind: str, seeds: Sequence[int]) -> dict[str, Stage]:
    """The same for a model from random weights, one run a seed."""
    parts = {
        f"scratch-{kind}-{seed}": Stage(("from_scratch.py", kind, "--seeds", str(seed), "--part"))
        for seed in seeds
    }
    return parts | {f"scratch-{kind}": Stage(("from_scratch.py", kind), tuple(parts))}


def translator(*words: str, recorded: bool = False) -> Stage:
    return Stage(("multi30k.py", *words), spare=80, recorded=recorded)


def model(*words: str, recorded: bool = False) -> Stage:
    return Stage(("-m", *words), spare=90, recorded=recorded)


THREE = (0, 1, 2)
TRANSFORMERS = {
    f"transformer-{seed}": translator("transformer", "--seeds", str(seed), "--part", recorded=True)
    for seed in THREE
}
# The longest first: whoever begins late should be short.
STAGES = {
    **TRANSFORMERS,
    **{name: translator(name) for name in ("rnnsearch", "seq2seq")},
    "lstm-wikitext2": Stage(("wikitext2.py", "--recipes", "lstm-wikitext2", "--steps", "6000")),
    "samsum": Stage(("summaries.py", "samsum"), spare=150),
    **seed_stages("sst2", THREE, THREE),
    "distillation": Stage(("distillation.py",)),
    "squad": Stage(("finetuned.py", "squad")),
    **scratch_stages("bilstm", THREE),
    "conll2003": Stage(("finetuned.py", "conll2003")),
    "transformer-wikitext2": Stage(("wikitext2.py", "--recipes", "transformer-wikitext2", "--steps", "6000")),
    "clinc150": Stage(("finetuned.py", "clinc150")),
    "blimp": Stage(("lm_tasks.py", "blimp")),
    "hellaswag": Stage(("lm_tasks.py", "hellaswag")),
    "rte": Stage(("finetuned.py", "rte")),
    **scratch_stages("bert", THREE),
    **scratch_stages("cnn", THREE),
    "mrpc": Stage(("finetuned.py", "mrpc")),
    "lambada": Stage(("lm_tasks.py", "lambada")),
    "transformer": Stage(("multi30k.py", "transformer"), tuple(TRANSFORMERS)),
    "multi30k": Stage(("multi30k.py",), ("transformer", "rnnsearch", "seq2seq")),  # with their figure
    "masked": model("bundle.masked"),
    "prose": model("bundle.prose", "gpt"),
    "prose-lstm": model("bundle.prose", "lstm"),
    "prose-mamba": model("bundle.prose", "mamba"),
    "translate-en-de": model("bundle.translators", "translate-en-de", "--large"),
    "translate-en-fr": model("bundle.translators", "translate-en-fr", "--large"),
    "rnnsearch-en-de": model("bundle.translators", "rnnsearch-en-de", recorded=True),
    "summariser": model("bundle.summaries"),
    "dialogsum": Stage(("summaries.py", "dialogsum"), spare=150),
}
RESULTS = (
    "multi30k*", "finetuned-*", "scratch-*", "distillation*", "summaries-*", "lm-*", "*-wikitext2.json",
)  # fmt: skip
# What a row can still be made from if the time did not suffice for it.
SCORES = ("multi30k/*/done.json", "finetuned/*/scores.json", "summaries/*/written.json")


def select_stages(names: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """The stages that are named, or all, and those that must be done before them."""
    found = list(names or STAGES)
    for name in found:  # grows while it is read
        found += [other for other in STAGES[name].after if other not in found]
    return [name for name in STAGES if name in found and name not in without]


@dataclass
class Running:
    """A stage under way."""

    process: subprocess.Popen[bytes]
    began: float
    shared: bool  # under MPS


@contextmanager
def share_gpu(try_mps: bool, log: Path) -> Iterator[dict[str, str]]:
    """What the environment of a process says so that MPS serves it; nothing where MPS does not work.

    The daemon is asked for one small product first, and ended afterwards.
    """
    control = shutil.which("nvidia-cuda-mps-control") if try_mps else None
    if control is None:
        print("no MPS: processes take turns on the GPU", flush=True)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        found = {f"CUDA_MPS_{kind}_DIRECTORY": str(Path(folder, kind.lower())) for kind in ("PIPE", "LOG")}
        for place in found.values():
            Path(place).mkdir()
        inside = os.environ | found
        works = start_daemon(control, inside, log)
        try:
            if not works:
                end_daemon(control, inside)
            else:
                print("MPS works: processes share the GPU", flush=True)
            yield found if works else {}
        finally:
            if works:
                end_daemon(control, inside)


def start_daemon(control: str, inside: dict[str, str], log: Path) -> bool:
    """Start the daemon, and have a process do something under it."""
    try:
        with log.open("ab") as output:
            for words, seconds in (([control, "-d"], 20), ([sys.executable, "-c", TRIAL], 45)):
                subprocess.run(words, env=inside, check=True, timeout=seconds, stdout=output, stderr=output)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"MPS does not work here ({error}): processes take turns on the GPU", flush=True)
        return False
    return True


def end_daemon(control: str, inside: dict[str, str]) -> None:
    """Ask the daemon to go; one that does not answer ends with the machine."""
    try:
        subprocess.run(
            [control], env=inside, input=b"quit -t 5\n", timeout=15, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the MPS daemon did not end: {error}", flush=True)


class Session:
    """What is waiting, what runs, and how each stage ended."""

    def __init__(self, names: Sequence[str], a: argparse.Namespace, shared: dict[str, str]) -> None:
        self.a, self.shared = a, shared
        self.waiting, self.running = list(names), dict[str, Running]()
        self.ended: dict[str, str] = {}
        self.over = False
        self.plain = set[str]()  # stages that do without recorded steps
        for name in [name for name in names if self.mark(name).is_file()]:
            self.waiting.remove(name)
            self.ended[name] = "done before"

    def mark(self, name: str) -> Path:
        """The file that says that a stage is done."""
        return self.a.work / f"{name}.done"

    def log(self, name: str) -> Path:
        return self.a.work / "logs" / f"{name}.log"

    def ready(self) -> str | None:
        """The first stage whose predecessors are done, now or by an earlier call."""
        for name in self.waiting:
            if all(self.mark(other).is_file() for other in STAGES[name].after):
                return name
        return None

    def command(self, name: str, left: float) -> list[str]:
        """How a stage is called: every script is told where to work and what to write where."""
        stage, a = STAGES[name], self.a
        first, *words = stage.words
        options = [] if stage.spare is None else ["--seconds", f"{max(20.0, left - stage.spare):.0f}"]
        options += ["--no-graph"] if name in self.plain else []
        if first == "-m":
            options += ["--out", str(a.models), *([] if a.device is None else ["--device", a.device])]
            return [sys.executable, "-m", *words, *options, *a.extra]
        kind = first.removesuffix(".py")
        place = "finetuned" if kind in ("distillation", "from_scratch") else kind
        options += ["--work", str(a.work / place), "--results", str(a.results)]
        options += ["--figures", str(a.figures)] if kind == "multi30k" else []
        options += [] if a.device is None else ["--device", a.device]
        return [sys.executable, str(ROOT / "benchmarks" / first), *words, *options, *a.extra]

    def start(self, name: str, left: float) -> None:
        """Run a stage, its output into a log."""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        threads = str(max(1, (os.cpu_count() or 1) // self.a.jobs))
        changed = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": threads,
                   "RAYON_NUM_THREADS": threads, **self.shared}  # fmt: skip
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                self.command(name, left), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                env=os.environ | changed,
            )  # fmt: skip
        self.waiting.remove(name)
        self.running[name] = Running(process, time.monotonic(), bool(self.shared))
        print(f"{name} begun", flush=True)

    def check_processes(self) -> None:
        """Take note of what ended; end everything if the time is over."""
        if self.over:
            for one in self.running.values():
                one.process.terminate()
        for name, one in list(self.running.items()):
            if self.over:  # it was asked to end, and is waited for, not for ever
                try:
                    one.process.wait(6)
                except subprocess.TimeoutExpired:
                    one.process.kill()
                    one.process.wait()
            spent, code = time.monotonic() - one.began, one.process.poll()
            if code is None:
                continue
            if code == 0:
                self.mark(name).touch()
                self.ended[name] = f"done in {spent:.0f} s"
            elif self.over:
                self.ended[name] = f"out of time after {spent:.0f} s"
            else:
                self.ended[name] = f"failed after {spent:.0f} s with code {code}"
            del self.running[name]
            print(f"{name} {self.ended[name]}\n{self.tail(name)}", flush=True)
            if code != 0 and not self.over:
                self.retry(name, spent, one.shared)

    def retry(self, name: str, spent: float, shared: bool) -> None:
        """Begin again without what a stage may have fallen over: recorded steps, or MPS.

        A process in which recording failed cannot always go on, so that the next one does not try. Under MPS
        one process can take others down with it.
        """
        if STAGES[name].recorded and name not in self.plain and spent < EARLY_SECONDS:
            print(f"{name} is begun again without recorded steps", flush=True)
            self.plain.add(name)
            self.waiting.insert(0, name)
        elif shared and any(word in self.end(name) for word in BROKEN):
            print(f"{name} is begun again without MPS, as is all that begins from now on", flush=True)
            self.shared = {}
            self.waiting.insert(0, name)

    def end(self, name: str) -> str:
        """The last lines of a log."""
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(f"  {line[:500]}" for line in lines[-15:])

    def tail(self, name: str) -> str:
        """The figures, or what went wrong."""
        done = self.ended[name].startswith("done")
        return self.end(name).rpartition("\n")[2] if done else self.end(name)

    def run(self, seconds: float) -> None:
        """Until all is done or the time is over."""
        end, packed = time.monotonic() + seconds, time.monotonic()
        while True:
            left = end - time.monotonic()
            self.over = self.over or left <= 0
            self.check_processes()
            while (
                not self.over and left > MIN_SECONDS_LEFT and len(self.running) < self.a.jobs
                and (name := self.ready()) is not None
            ):  # fmt: skip
                self.start(name, left)
            if not self.running:
                return
            if self.a.out and time.monotonic() - packed > PACK_SECONDS:
                pack_all(self.a)
                packed = time.monotonic()
            time.sleep(0.5)


def pack(out: Path, name: str, work: Path, files: Iterable[tuple[Path, str]]) -> None:
    """An archive, whole or the one before."""
    out.mkdir(parents=True, exist_ok=True)
    made = work / name
    with tarfile.open(made, "w:gz", compresslevel=5) as archive:
        for path, inside in files:
            archive.add(path, inside)
    shutil.copyfile(made, out / f"{name}.part")
    (out / f"{name}.part").replace(out / name)


def pack_all(a: argparse.Namespace) -> None:
    """Rows, figures, logs and what rows are made from, under the names they have in a checkout; models."""
    found: list[tuple[Path, str]] = []
    for folder, inside in ((a.results, "results"), (a.figures, "docs/figures")):
        written = sorted({path for pattern in RESULTS for path in folder.glob(pattern)})
        found += [(path, f"{inside}/{path.name}") for path in written]
    kept = [path for pattern in ("logs/*.log", *SCORES) for path in sorted(a.work.glob(pattern))]
    found += [(path, f"runs/{path.relative_to(a.work)}") for path in kept]
    try:
        pack(a.out, "ledger.tar.gz", a.work, found)
        made = sorted(path for path in a.models.rglob("*") if path.is_file())
        if made:
            files = [(path, str(path.relative_to(a.models))) for path in made]
            pack(a.out, "models.tar.gz", a.work, files)
    except OSError as error:  # a file that is being replaced: the next archive has it
        print(f"not packed: {error}", flush=True)


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument(
        "names", nargs="*", metavar="NAME",
        help=f"of {', '.join(STAGES)}, with what must be done before; all by default",
    )  # fmt: skip
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="stages to leave out")
    parser.add_argument("--seconds", type=float, default=1e9, help="everything is over after that")
    parser.add_argument("--jobs", type=int, default=5, help="processes at once")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--models", type=Path, help="where models that come along are written; --work/models")
    parser.add_argument("--out", type=Path, help="a folder for the archives of what was written")
    parser.add_argument("--device", help="for every script, instead of what it finds")
    parser.add_argument("--mps", choices=("try", "off"), default="try")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="options for every script")
    a = parser.parse_args()
    if unknown := [name for name in (*a.names, *a.without) if name not in STAGES]:
        parser.error(f"no stage is called {unknown[0]!r}; there are {', '.join(STAGES)}")
    if not os.environ.get("HEED_DATA"):
        parser.error("HEED_DATA names no folder of data sets")
    a.work, a.results, a.figures = a.work.resolve(), a.results.resolve(), a.figures.resolve()
    a.models = (a.models or a.work / "models").resolve()
    (a.work / "logs").mkdir(parents=True, exist_ok=True)
    return a


def main() -> None:
    a, began = parse_arguments(), time.monotonic()
    with share_gpu(a.mps == "try" and a.device in (None, "cuda"), a.work / "logs" / "mps.log") as shared:
        session = Session(select_stages(a.names, a.without), a, shared)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(session, "over", True))
        session.run(a.seconds - (time.monotonic() - began))
    if a.out:
        pack_all(a)
    for name in session.waiting:
        missing = [other for other in STAGES[name].after if not session.mark(other).is_file()]
        session.ended[name] = "not begun" + (f": {', '.join(missing)} not done" if missing else "")
    for name, ending in session.ended.items():
        print(f"{name:24} {ending}")
    sys.exit(0 if all(ending.startswith("done") for ending in session.ended.values()) else 1)


if __name__ == "__main__":
    main()
