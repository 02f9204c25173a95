"""word2vec beside gensim: speed, peak memory and quality on the ELTeC novels (11 M words).

    HEED_DATA=… python benchmarks/word2vec.py speed       # each combination, alternating, median of five
    HEED_DATA=… python benchmarks/word2vec.py quality     # five epochs, three seeds each
    HEED_DATA=… python benchmarks/word2vec.py record      # write results/word2vec-*.json from the runs so far

HEED_DATA is a folder with lm/eltec-eng/train.jsonl.xz and wordvec/. gensim is needed here and nowhere else.
Every run is a process of its own, so that neither warms up or weighs down the other. A run's seconds are from
known vocabulary to trained vectors: for gensim they include reading the text (its fastest way, corpus_file),
for heedful encoding it. Seconds of the processor are given too: on a busy machine they tell more.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import lzma
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORD = re.compile(r"[a-z]+(?:['’][a-z]+)*|[0-9]+")
COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]
SETS = ("EN-WS-353-ALL", "EN-SIMLEX-999", "EN-MEN-TR-3k")
HERE = Path(__file__).resolve().parent
THREADS = 2


def data_folder() -> Path:
    folder = os.environ.get("HEED_DATA")
    if not folder:
        sys.exit("error: HEED_DATA names no folder of data (lm/eltec-eng, wordvec)")
    return Path(folder)


def work_folder() -> Path:
    folder = Path(os.environ.get("HEED_WORK") or Path(tempfile.gettempdir()) / "heed-bench-word2vec")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def corpus() -> Path:
    """The training novels, lower-cased words, one paragraph a line."""
    path = work_folder() / "eltec.txt"
    if path.exists():
        return path
    packed = data_folder() / "lm/eltec-eng/train.jsonl.xz"
    partial = path.with_suffix(".partial")
    with lzma.open(packed, "rt", encoding="utf-8") as source, partial.open("w", encoding="utf-8") as target:
        for book in source:
            for paragraph in json.loads(book)["text"].split("\n"):
                if words := WORD.findall(paragraph.lower()):
                    target.write(" ".join(words) + "\n")
    partial.replace(path)
    return path


class Clock:
    """Seconds on the wall and of the processor, lap by lap."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = (time.perf_counter(), time.process_time())

    def lap(self, name: str) -> None:
        now = (time.perf_counter(), time.process_time())
        self.laps |= {f"{name}_s": now[0] - self.last[0], f"{name}_cpu_s": now[1] - self.last[1]}
        self.last = now


def train_gensim(mode: str, loss: str, epochs: int, seed: int, out: str) -> dict[str, Any]:
    from gensim.models import Word2Vec

    text, tree = str(corpus()), int(loss == "hierarchical")
    model = Word2Vec(
        vector_size=100,
        window=5,
        sg=int(mode == "skipgram"),
        hs=tree,
        sample=1e-3,
        min_count=5,
        negative=0 if tree else 5,
        workers=THREADS,
        seed=seed,
        epochs=epochs,
    )
    clock = Clock()
    model.build_vocab(corpus_file=text)
    clock.lap("count")
    model.train(
        corpus_file=text,
        total_words=model.corpus_total_words,
        total_examples=model.corpus_count,
        epochs=epochs,
    )
    clock.lap("train")
    if out:
        model.wv.save_word2vec_format(out, binary=True)
    return {"words": model.corpus_total_words * epochs} | clock.laps


def train_heedful(mode: str, loss: str, epochs: int, seed: int, out: str) -> dict[str, Any]:
    from heedful.word2vec import Settings, Word2Vec
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.session import Session

    clock = Clock()
    session = Session.new(Corpus(corpus()), Settings(mode=mode, loss=loss, epochs=epochs, seed=seed))
    clock.lap("count")
    for _ in session.steps(threads=THREADS):
        pass
    clock.lap("train")
    if out:
        Word2Vec.from_session(session).save(out)
    return {"words": session.vocabulary.total * epochs, "loss": session.cursor.history} | clock.laps


def one(who: str, mode: str, loss: str, epochs: int, seed: int, out: str) -> None:
    """One run, in this process; its numbers as one line of JSON."""
    train = train_gensim if who == "gensim" else train_heedful
    found = train(mode, loss, epochs, seed, out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found | {"peak_mb": peak}))


def apart(who: str, mode: str, loss: str, epochs: int, seed: int, out: str = "") -> dict[str, Any]:
    command = [sys.executable, str(HERE / "word2vec.py"), "one", who, mode, loss, str(epochs), str(seed), out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def speed(repeat: int, chosen: list[str]) -> None:
    """The two take turns; ratios of medians, of words per second on the wall and of the processor."""
    corpus()
    apart("heedful", "skipgram", "negative", 1, 0)  # compile once, before any clock runs
    for mode, loss in COMBINATIONS:
        if chosen and f"{mode}-{loss}" not in chosen:
            continue
        runs: dict[str, list[dict[str, Any]]] = {"gensim": [], "heedful": []}
        for seed in range(repeat):
            for who in runs:
                runs[who].append(apart(who, mode, loss, 1, seed))
        wall, cpu, peak, whole = (
            {who: pick(found) for who, found in runs.items()}
            for pick in (
                lambda found: statistics.median(run["words"] / run["train_s"] for run in found),
                lambda found: statistics.median(run["words"] / run["train_cpu_s"] for run in found),
                lambda found: max(run["peak_mb"] for run in found),
                lambda found: statistics.median(run["count_s"] + run["train_s"] for run in found),
            )
        )
        pairs = [g["train_s"] / h["train_s"] for g, h in zip(runs["gensim"], runs["heedful"])]
        ratio, of_processor = wall["heedful"] / wall["gensim"], cpu["heedful"] / cpu["gensim"]
        result = {
            "ratio": ratio,
            "ratio_of_processor_time": of_processor,
            "paired_ratios": pairs,
            "words_per_second": wall,
            "words_per_processor_second": cpu,
            "peak_mb": peak,
            "whole_seconds": whole,
        }
        keep("speed", f"{mode}-{loss}", result)
        print(
            f"{mode:9} {loss:13} {ratio:5.2f} x (processor {of_processor:.2f} x, pairs {min(pairs):.2f} to "
            f"{max(pairs):.2f})   gensim {wall['gensim']:,.0f}   heedful {wall['heedful']:,.0f} words/s   "
            f"peak {peak['gensim']:.0f} / {peak['heedful']:.0f} MB",
            flush=True,
        )


def score(path: Path) -> dict[str, float]:
    """Analogies over the whole vocabulary, so that both answer the same questions, and Spearman's ρ."""
    from heedful.word2vec import Word2Vec, evaluate

    sections, pairs = evaluate(Word2Vec.load(path), data_folder() / "wordvec", first=1_000_000)
    found = {s.name: 100 * s.accuracy for s in sections if s.name in ("semantic", "syntactic", "total")}
    return found | {p.name: p.rho for p in pairs if p.name in SETS}


def quality(seeds: int, chosen: list[str]) -> None:
    """Mean and standard deviation over seeds of everything scored, for both."""
    for mode, loss in COMBINATIONS:
        if chosen and f"{mode}-{loss}" not in chosen:
            continue
        result: dict[str, Any] = {}
        for who in ("gensim", "heedful"):
            scores = []
            for seed in range(1, seeds + 1):
                path = work_folder() / f"{who}-{mode}-{loss}-{seed}.bin"
                if not path.exists():
                    apart(who, mode, loss, 5, seed, str(path))
                scores.append(score(path))
            result[who] = {
                name: {
                    "mean": statistics.mean(s[name] for s in scores),
                    "sd": statistics.stdev(s[name] for s in scores),
                }
                for name in scores[0]
            }
        keep("quality", f"{mode}-{loss}", result)
        for name in result["gensim"]:
            g, h = result["gensim"][name], result["heedful"][name]
            verdict = "holds" if h["mean"] >= g["mean"] - g["sd"] else "BELOW"
            print(
                f"{mode:9} {loss:13} {name:15} gensim {g['mean']:8.4f} ± {g['sd']:.4f}   "
                f"heedful {h['mean']:8.4f} ± {h['sd']:.4f}   {verdict}",
                flush=True,
            )


def keep(kind: str, name: str, value: dict[str, Any]) -> None:
    (work_folder() / f"{kind}-{name}.json").write_text(json.dumps(value, indent=1))


def hardware(note: str = "") -> str:
    names = (
        [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        if Path("/proc/cpuinfo").exists()
        else [platform.processor()]
    )
    parts = [names[0], f"{os.cpu_count()} cores", f"{THREADS} threads", f"Python {platform.python_version()}"]
    return ", ".join([*parts, note] if note else parts)


def record(note: str) -> None:
    """One file per row of the ledger; `note` says what state the machine was in."""
    digest = hashlib.sha256(corpus().read_bytes()).hexdigest()
    folder = HERE.parent / "results"
    folder.mkdir(exist_ok=True)
    for path in sorted(work_folder().glob("*.json")):
        kind, found = path.stem.split("-")[0], json.loads(path.read_text())
        name = path.stem.split("-", 1)[1]
        claims = {
            "speed": f"words/s of {name}, dim 100, window 5, 5 negatives, 1 epoch, beside gensim's",
            "quality": f"analogies and word similarity of {name} after 5 epochs, beside gensim's",
        }
        row = {
            "claim": claims[kind],
            "figure": found,
            "published": None,
            "source": "gensim 4.4.0, same text" + (", same run, alternating" if kind == "speed" else ""),
            "command": f"HEED_DATA=… python benchmarks/word2vec.py {kind}",
            "seed": [0, 1, 2, 3, 4] if kind == "speed" else [1, 2, 3],
            "data_sha256": digest,
            "hardware": hardware(note),
            "date": datetime.date.today().isoformat(),
        }
        (folder / f"word2vec-{kind}-{name}.json").write_text(json.dumps(row, indent=1) + "\n")
        print(folder / f"word2vec-{kind}-{name}.json")


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("what", choices=["speed", "quality", "record", "one"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "one":
        who, mode, loss, epochs, seed = given.rest[:5]
        one(who, mode, loss, int(epochs), int(seed), (given.rest[5:] or [""])[0])
    elif given.what == "speed":
        speed(given.repeat, given.rest)
    elif given.what == "quality":
        quality(given.seeds, given.rest)
    else:
        record(" ".join(given.rest))


if __name__ == "__main__":
    main()
