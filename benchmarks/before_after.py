"""Another version of heedful beside this one: what common calls cost in processor seconds.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before/src             3 rounds, alternating
    python benchmarks/before_after.py ../before/src --rounds 5 --only pipeline generate

Machine code is made first. Every measurement is a process of its own, in which OMP_NUM_THREADS=1. `first` is
a new process from its start to the answer: imports, loading, computing. `again` is the same call in that
process, the median of three more (of the studio: one more trace). Both are processor time, user and system,
of all threads. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

REPEATS = 3  # of the same call after the first
ROOT = Path(__file__).resolve().parents[1]
TEXTS = [f"{what} {verdict}." for what in ("The film", "This book", "Her new song", "The long meal")
         for verdict in ("is a joy", "was too slow", "made me laugh", "is not worth it", "is fine, I think",
                         "left us all cold", "is the best I know", "could have been good")]  # fmt: skip


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def prepare_pipeline() -> Callable[[], object]:
    from heedful import pipeline

    classify = pipeline("sentiment-analysis")
    return lambda: classify(TEXTS)


def prepare_generate(name: str) -> Callable[[], object]:
    import heedful

    model = heedful.load(name)
    return lambda: heedful.generate(model, "Once upon a time", max_tokens=64)


def prepare_word2vec() -> Callable[[], object]:
    from heedful import Word2Vec

    pages = [page.read_text(encoding="utf-8").lower() for page in sorted((ROOT / "docs").glob("*.md"))]
    lines = [re.findall(r"[a-z]+", line) for page in pages for line in page.splitlines()]
    return lambda: Word2Vec.train(lines * 4, threads=1, min_count=2)


WORKLOADS: dict[str, Callable[[], Callable[[], object]]] = {
    "pipeline": prepare_pipeline,
    "generate": lambda: prepare_generate("smollm2-135m-instruct"),
    "generate-small": lambda: prepare_generate("prose"),
    "word2vec": prepare_word2vec,
}
TITLES = {
    "pipeline": '`pipeline("sentiment-analysis")`, 32 short texts',
    "generate": "`heedful.generate`, 64 tokens, smollm2-135m-instruct",
    "generate-small": "`heedful.generate`, 64 tokens, bundled `prose`",
    "word2vec": "`Word2Vec.train`, skip-gram, the text of docs/ four times",
    "studio": "a trace in the studio, `prose`, 40 words",
}


def compile_kernels() -> None:
    """Have machine code made and kept where it is not yet: `generate` takes the fast path if it is there."""
    import heedful

    model = heedful.load("prose")
    heedful.generate(heedful.fast(model), "Once", max_tokens=2)
    prepare_word2vec()()


def measure_call(name: str) -> dict[str, float]:
    """Return the processor seconds of this process until the first answer, and of the same call again."""
    call = WORKLOADS[name]()
    call()
    marks = [processor_seconds()]
    for _ in range(REPEATS):
        call()
        marks.append(processor_seconds())
    return {"first": marks[0], "again": statistics.median(b - a for a, b in pairwise(marks))}


def measure_studio(environment: dict[str, str]) -> dict[str, float]:
    """Start `heed studio`, ask it for two traces, and read its processor seconds from /proc."""
    command = [sys.executable, "-m", "heedful.cli", "studio", "prose", "--port", "0", "--no-browser"]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    try:
        found = next(filter(None, (re.search(r"http://\S+", line) for line in server.stdout)))
        address, _, token = found[0].rstrip("/").partition("/?token=")
        used = []
        for start in ("the cat", "a dog"):
            body = json.dumps({"model": "prose", "text": f"{start} sat " + "on the mat " * 13}).encode()
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"{address}/api/trace", body, headers)
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
            fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            used.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        return {"first": used[0], "again": used[1] - used[0]}
    finally:
        server.terminate()
        server.wait()


def measure(name: str, source: Path) -> dict[str, float]:
    """Measure a workload with the heedful in `source`, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    if name == "studio":
        return measure_studio(environment)
    command = [sys.executable, __file__, "--measure", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("before", type=Path, nargs="?", help="src of the other version")
    parser.add_argument("--after", type=Path, default=ROOT / "src", help="src of this version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--measure", choices=["compile", *WORKLOADS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "compile":
        return compile_kernels()
    if options.measure:
        return print(json.dumps(measure_call(options.measure)))
    if options.before is None:
        parser.error("name the src folder of the other version")
    sources = {"before": options.before.resolve(), "after": options.after.resolve()}
    for source in sources.values():
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run([sys.executable, __file__, "--measure", "compile"], env=environment, check=True)
    print("| processor seconds | before, first | after, first | before, again | after, again |")
    print("|---|---|---|---|---|", flush=True)
    for name in options.only:
        rows: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
        for number in range(options.rounds):
            for version in sorted(sources, reverse=number % 2 == 0):  # neither is always the second
                rows[version].append(measure(name, sources[version]))
                time.sleep(0.2)
        cells = [
            f"{statistics.median(row[when] for row in rows[version]):.2f}"
            for when in ("first", "again")
            for version in sources
        ]
        print(f"| {TITLES[name]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
