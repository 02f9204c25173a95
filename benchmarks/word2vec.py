"""Compare word2vec with gensim: speed, peak memory and quality on the ELTeC novels (11 M words).

    HEED_DATA=… python benchmarks/word2vec.py speed       # each combination, alternating, median of five
    HEED_DATA=… python benchmarks/word2vec.py quality     # five epochs, three seeds each
    HEED_DATA=… python benchmarks/word2vec.py record      # write results/word2vec-*.json from the runs so far

`speed` takes --words (of the text, from its beginning), --epochs, --threads, --repeat, and --compare FOLDER,
the `src` of another version of heedful that takes its turn as "other". HEED_DATA is a folder with
lm/eltec-eng/train.jsonl.xz and wordvec/. gensim is needed here and nowhere else. Every run is a process of
its own, so that neither warms up or weighs down the other.

Two speeds are measured, on the wall and in processor time (on a busy machine the second tells more): words
per second of training, for gensim all of `train` with its fastest way of reading (corpus_file), for heedful
from the first report to the last; and seconds from text to vectors, with counting, encoding and imports.
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
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

WORD = re.compile(r"[a-z]+(?:['’][a-z]+)*|[0-9]+")
COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]
SETS = ("EN-WS-353-ALL", "EN-SIMLEX-999", "EN-MEN-TR-3k")
HERE = Path(__file__).resolve().parent

Run = dict[str, Any]


def data_folder() -> Path:
    folder = os.environ.get("HEED_DATA")
    if not folder:
        sys.exit("error: HEED_DATA names no folder of data (lm/eltec-eng, wordvec)")
    return Path(folder)


def work_folder() -> Path:
    folder = Path(os.environ.get("HEED_WORK") or Path(tempfile.gettempdir()) / "heed-bench-word2vec")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def corpus(words: int | None = None) -> Path:
    """Return a file of the training novels, lower-cased words, one paragraph a line; the first `words`."""
    path = work_folder() / ("eltec.txt" if words is None else f"eltec-{words}.txt")
    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as target:
        if words is None:
            packed = data_folder() / "lm/eltec-eng/train.jsonl.xz"
            with lzma.open(packed, "rt", encoding="utf-8") as source:
                for book in source:
                    for paragraph in json.loads(book)["text"].split("\n"):
                        if found := WORD.findall(paragraph.lower()):
                            target.write(" ".join(found) + "\n")
        else:
            with corpus().open(encoding="utf-8") as source:
                lines = source.readlines()
            totals = takewhile(lambda total: total < words, accumulate(len(line.split()) for line in lines))
            target.writelines(lines[: len(list(totals))])
    partial.replace(path)
    return path


def clock() -> tuple[float, float]:
    """Return seconds on the wall and of the processor."""
    return time.perf_counter(), time.process_time()


def rates(words: int, start: tuple[float, float], end: tuple[float, float]) -> Run:
    wall, cpu = (b - a for a, b in zip(start, end))
    return {"words_per_second": words / wall, "words_per_processor_second": words / cpu}


def train_gensim(path: str, mode: str, loss: str, epochs: int, threads: int, seed: int, out: str) -> Run:
    start = clock()
    from gensim.models import Word2Vec

    tree = int(loss == "hierarchical")
    model = Word2Vec(
        vector_size=100, window=5, sg=int(mode == "skipgram"), hs=tree, sample=1e-3, min_count=5,
        negative=0 if tree else 5, workers=threads, seed=seed, epochs=epochs,
    )  # fmt: skip
    model.build_vocab(corpus_file=path)
    counted = clock()
    words, lines = model.corpus_total_words, model.corpus_count
    model.train(corpus_file=path, total_words=words, total_examples=lines, epochs=epochs)
    end = clock()
    if out:
        model.wv.save_word2vec_format(out, binary=True)
    whole = {"seconds": end[0] - start[0], "processor_seconds": end[1] - start[1]}
    return rates(words * epochs, counted, end) | whole


def train_heedful(path: str, mode: str, loss: str, epochs: int, threads: int, seed: int, out: str) -> Run:
    start = clock()
    from heedful.word2vec import Word2Vec

    reports = []
    vectors = Word2Vec.train(
        path, mode=mode, loss=loss, subsample=1e-3, epochs=epochs, threads=threads, seed=seed,
        split_punctuation=False,  # as the others read it
        report=lambda progress: reports.append((progress.words, clock())),
    )  # fmt: skip
    end = clock()
    if out:
        vectors.save(out)
    (first, began), (last, ended) = reports[0], reports[-1]
    whole = {"seconds": end[0] - start[0], "processor_seconds": end[1] - start[1], "loss": vectors.history}
    return rates(last - first, began, ended) | whole


def one(who: str, *rest: str) -> None:
    """Train once in this process; print the numbers as one line of JSON."""
    path, mode, loss, epochs, threads, seed, out = (*rest, "")[:7]
    train = train_gensim if who == "gensim" else train_heedful
    found = train(path, mode, loss, int(epochs), int(threads), int(seed), out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found | {"peak_mb": peak}))


def run_apart(who: str, *rest: object, source: Path | None = None) -> Run:
    """Train once in a process of its own; `source` is the `src` folder heedful is imported from."""
    command = [sys.executable, str(HERE / "word2vec.py"), "one", who, *map(str, rest)]
    environment = os.environ | {"PYTHONPATH": str((source or HERE.parent / "src").resolve())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def speed(options: argparse.Namespace) -> None:
    """Let the programs take turns; keep the medians and their ratios to gensim's."""
    text = corpus(options.words)
    programs = {"gensim": None, "heedful": None} | ({"other": options.compare} if options.compare else {})
    for who in list(programs)[1:]:  # compile once, before any clock runs
        run_apart(who, corpus(20_000), "skipgram", "negative", 1, 1, 0, source=programs[who])
    for mode, loss in COMBINATIONS:
        if options.rest and f"{mode}-{loss}" not in options.rest:
            continue
        runs: dict[str, list[Run]] = {who: [] for who in programs}
        for seed in range(options.repeat):
            for who, source in programs.items():
                what = (text, mode, loss, options.epochs, options.threads, seed)
                runs[who].append(run_apart(who, *what, source=source))
        result = compare(runs)
        keep("speed", f"{mode}-{loss}", result)
        for who in programs:
            show(f"{mode:9} {loss:13} {who:8}", {name: of[who] for name, of in result.items() if who in of})


def show(title: str, figures: Run) -> None:
    """Print the medians of one program."""
    text = f"{title} {figures['words_per_second']:>10,.0f} words/s, {figures['seconds']:6.1f} s whole"
    if pairs := figures.get("paired_ratios"):
        text += f", ratios: wall {figures['ratio']:.2f} ({min(pairs):.2f} to {max(pairs):.2f}), processor "
        text += f"{figures['processor_ratio']:.2f}, whole {figures['whole_processor_ratio']:.2f}"
    print(f"{text}, peak {figures['peak_mb']:.0f} MB", flush=True)


def compare(runs: dict[str, list[Run]]) -> dict[str, dict[str, Any]]:
    """Return medians of each program, and their ratios to gensim's: above 1 is faster."""
    median = lambda field: {
        who: statistics.median(run[field] for run in found) for who, found in runs.items()
    }
    names = ("words_per_second", "words_per_processor_second", "seconds", "processor_seconds")
    medians = {name: median(name) for name in names}
    base = {name: value["gensim"] for name, value in medians.items()}
    faster = lambda name: {who: v / base[name] for who, v in medians[name].items() if who != "gensim"}
    wall = [run["words_per_second"] for run in runs["gensim"]]
    return {
        "ratio": faster("words_per_second"),
        "processor_ratio": faster("words_per_processor_second"),
        "whole_processor_ratio": {who: 1 / v for who, v in faster("processor_seconds").items()},
        "paired_ratios": {
            who: [run["words_per_second"] / other for run, other in zip(found, wall)]
            for who, found in runs.items()
            if who != "gensim"
        },
        "peak_mb": {who: max(run["peak_mb"] for run in found) for who, found in runs.items()},
        **medians,
    }


def score(path: Path) -> dict[str, float]:
    """Analogies over the whole vocabulary, so that both answer the same questions, and Spearman's ρ."""
    from heedful.word2vec import Word2Vec, evaluate

    sections, pairs = evaluate(Word2Vec.load(path), data_folder() / "wordvec", first=1_000_000)
    found = {s.name: 100 * s.accuracy for s in sections if s.name in ("semantic", "syntactic", "total")}
    return found | {p.name: p.rho for p in pairs if p.name in SETS}


def quality(options: argparse.Namespace) -> None:
    """Mean and standard deviation over seeds of everything scored, for both."""
    for mode, loss in COMBINATIONS:
        if options.rest and f"{mode}-{loss}" not in options.rest:
            continue
        result: dict[str, Any] = {}
        for who in ("gensim", "heedful"):
            scores = []
            for seed in range(1, options.seeds + 1):
                path = work_folder() / f"{who}-{mode}-{loss}-{seed}.bin"
                if not path.exists():
                    run_apart(who, corpus(), mode, loss, 5, options.threads, seed, path)
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
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [f"model name: {platform.processor()}"]
    name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    parts = [name, f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    return ", ".join([*parts, note] if note else parts)


def record(options: argparse.Namespace) -> None:
    """Write one file per row of the ledger; the remaining arguments say what state the machine was in."""
    folder = HERE.parent / "results"
    folder.mkdir(exist_ok=True)
    shown = f" --epochs {options.epochs} --threads {options.threads}"
    shown += "" if options.words is None else f" --words {options.words}"
    claims = {
        "speed": "words/s of {}, dim 100, window 5, 5 negatives, compared with gensim's",
        "quality": "analogies and word similarity of {} after 5 epochs, compared with gensim's",
    }
    for path in sorted(work_folder().glob("*.json")):
        kind, name = path.stem.split("-", 1)
        of_speed, figure = kind == "speed", json.loads(path.read_text())
        for values in figure.values() if of_speed else ():
            values.pop("other", None)
        row = {
            "claim": claims[kind].format(name),
            "figure": figure,
            "published": None,
            "source": "gensim 4.4.0, same text" + (", same run, alternating" if of_speed else ""),
            "command": f"HEED_DATA=… python benchmarks/word2vec.py {kind}{shown if of_speed else ''}",
            "seed": [0, 1, 2, 3, 4] if of_speed else [1, 2, 3],
            "data_sha256": hashlib.sha256(
                corpus(options.words if of_speed else None).read_bytes()
            ).hexdigest(),
            "hardware": hardware(" ".join(options.rest)),
            "date": datetime.date.today().isoformat(),
        }
        (folder / f"word2vec-{kind}-{name}.json").write_text(json.dumps(row, indent=1) + "\n")
        print(folder / f"word2vec-{kind}-{name}.json")


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("what", choices=["speed", "quality", "record", "one"])
    parser.add_argument("rest", nargs="*", help="combinations, such as cbow-negative; for record, a note")
    parser.add_argument("--words", type=int)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compare", type=Path)
    options = parser.parse_intermixed_args()
    if options.what == "one":
        one(*options.rest)
    else:
        {"speed": speed, "quality": quality, "record": record}[options.what](options)


if __name__ == "__main__":
    main()
