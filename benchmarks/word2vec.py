"""word2vec beside gensim: speed, peak memory and quality on the ELTeC novels (11 M words).

    HEED_DATA=… python benchmarks/word2vec.py speed       # each combination, alternating, median of five
    HEED_DATA=… python benchmarks/word2vec.py quality     # five epochs, three seeds each
    HEED_DATA=… python benchmarks/word2vec.py record      # write results/word2vec-*.json from the runs so far

HEED_DATA is a folder with lm/eltec-eng/train.jsonl.xz and wordvec/. gensim is needed here and nowhere else. Every run is
a process of its own, so that neither warms up or weighs down the other. A run's seconds are from known vocabulary to
trained vectors: for gensim they include reading the text (its fastest way, corpus_file), for heedful encoding it.
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
    with lzma.open(data_folder() / "lm/eltec-eng/train.jsonl.xz", "rt", encoding="utf-8") as source, \
            path.with_suffix(".partial").open("w", encoding="utf-8") as target:
        for book in source:
            for paragraph in json.loads(book)["text"].split("\n"):
                if words := WORD.findall(paragraph.lower()):
                    target.write(" ".join(words) + "\n")
    path.with_suffix(".partial").replace(path)
    return path


def train_gensim(mode: str, loss: str, epochs: int, seed: int, out: str) -> dict[str, Any]:
    from gensim.models import Word2Vec

    text, tree = str(corpus()), int(loss == "hierarchical")
    model = Word2Vec(vector_size=100, window=5, sg=int(mode == "skipgram"), hs=tree, negative=0 if tree else 5,
                     sample=1e-3, min_count=5, workers=THREADS, seed=seed, epochs=epochs)
    began = time.perf_counter()
    model.build_vocab(corpus_file=text)
    counted = time.perf_counter()
    model.train(corpus_file=text, total_words=model.corpus_total_words, total_examples=model.corpus_count, epochs=epochs)
    done = time.perf_counter()
    if out:
        model.wv.save_word2vec_format(out, binary=True)
    return {"words": model.corpus_total_words * epochs, "count_s": counted - began, "train_s": done - counted}


def train_heedful(mode: str, loss: str, epochs: int, seed: int, out: str) -> dict[str, Any]:
    from heedful.word2vec import Settings, Word2Vec
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.session import Session

    began = time.perf_counter()
    session = Session.new(Corpus(corpus()), Settings(mode=mode, loss=loss, epochs=epochs, seed=seed))
    counted = time.perf_counter()
    reports = list(session.steps(threads=THREADS))
    done = time.perf_counter()
    if out:
        Word2Vec.from_session(session).save(out)
    return {"words": session.vocabulary.total * epochs, "count_s": counted - began, "train_s": done - counted,
            "loss": session.cursor.history, "kernel_words_per_second": statistics.median(r.words_per_second for r in reports)}


def one(who: str, mode: str, loss: str, epochs: int, seed: int, out: str) -> None:
    """One run, in this process; its numbers as one line of JSON."""
    train = train_gensim if who == "gensim" else train_heedful
    found = train(mode, loss, epochs, seed, out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found | {"peak_mb": peak, "words_per_second": found["words"] / found["train_s"]}))


def apart(who: str, mode: str, loss: str, epochs: int, seed: int, out: str = "") -> dict[str, Any]:
    command = [sys.executable, str(HERE / "word2vec.py"), "one", who, mode, loss, str(epochs), str(seed), out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def speed(repeat: int) -> None:
    """Ratio of medians, the two taking turns; and the medians of the ratios of neighbours in time."""
    corpus()
    apart("heedful", "skipgram", "negative", 1, 0)          # compile once, before any clock runs
    for mode, loss in COMBINATIONS:
        runs: dict[str, list[dict[str, Any]]] = {"gensim": [], "heedful": []}
        for seed in range(repeat):
            for who in runs:
                runs[who].append(apart(who, mode, loss, 1, seed))
        median = {who: statistics.median(run["words_per_second"] for run in found) for who, found in runs.items()}
        paired = [b["words_per_second"] / a["words_per_second"] for a, b in zip(runs["gensim"], runs["heedful"])]
        peak = {who: max(run["peak_mb"] for run in found) for who, found in runs.items()}
        whole = {who: statistics.median(r["count_s"] + r["train_s"] for r in found) for who, found in runs.items()}
        result = {"combination": f"{mode} {loss}", "ratio": median["heedful"] / median["gensim"],
                  "paired_ratios": paired, "words_per_second": median, "peak_mb": peak, "whole_seconds": whole}
        keep("speed", f"{mode}-{loss}", result)
        print(f"{mode:9} {loss:13} {result['ratio']:5.2f} x   gensim {median['gensim']:>10,.0f}   heedful "
              f"{median['heedful']:>10,.0f} words/s   peak {peak['gensim']:.0f} / {peak['heedful']:.0f} MB   "
              f"pairs {min(paired):.2f} to {max(paired):.2f}", flush=True)


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
            result[who] = {name: {"mean": statistics.mean(s[name] for s in scores),
                                  "sd": statistics.stdev(s[name] for s in scores)} for name in scores[0]}
        keep("quality", f"{mode}-{loss}", result)
        for name in result["gensim"]:
            g, h = result["gensim"][name], result["heedful"][name]
            print(f"{mode:9} {loss:13} {name:15} gensim {g['mean']:8.4f} ± {g['sd']:.4f}   heedful {h['mean']:8.4f} "
                  f"± {h['sd']:.4f}   {'holds' if h['mean'] >= g['mean'] - g['sd'] else 'BELOW'}", flush=True)


def keep(kind: str, name: str, value: dict[str, Any]) -> None:
    (work_folder() / f"{kind}-{name}.json").write_text(json.dumps(value, indent=1))


def hardware() -> str:
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else [platform.processor()]
    return f"{names[0]}, {os.cpu_count()} cores, {THREADS} threads, Python {platform.python_version()}"


def record() -> None:
    """One file per row of the ledger."""
    digest = hashlib.sha256(corpus().read_bytes()).hexdigest()
    folder = HERE.parent / "results"
    folder.mkdir(exist_ok=True)
    for path in sorted(work_folder().glob("*.json")):
        kind, found = path.stem.split("-")[0], json.loads(path.read_text())
        name = path.stem.split("-", 1)[1]
        claims = {"speed": f"words/s of {name}, dim 100, window 5, 5 negatives, 1 epoch, beside gensim's",
                  "quality": f"analogies and word similarity of {name} after 5 epochs, beside gensim's"}
        row = {"claim": claims[kind], "figure": found, "published": None,
               "source": "gensim 4.4.0 in the same run, alternating" if kind == "speed" else "gensim 4.4.0, same text",
               "command": f"HEED_DATA=… python benchmarks/word2vec.py {kind}",
               "seed": [0, 1, 2, 3, 4] if kind == "speed" else [1, 2, 3], "data_sha256": digest,
               "hardware": hardware(), "date": datetime.date.today().isoformat()}
        (folder / f"word2vec-{kind}-{name}.json").write_text(json.dumps(row, indent=1) + "\n")
        print(folder / f"word2vec-{kind}-{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "quality", "record", "one"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "one":
        who, mode, loss, epochs, seed = given.rest[:5]
        one(who, mode, loss, int(epochs), int(seed), (given.rest[5:] or [""])[0])
    elif given.what == "speed":
        speed(given.repeat)
    elif given.what == "quality":
        quality(given.seeds, given.rest)
    else:
        record()


if __name__ == "__main__":
    main()
