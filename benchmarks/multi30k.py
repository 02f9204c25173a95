"""Multi30k, English to German: a small Transformer, RNNsearch and seq2seq on the same data and vocabulary.

    HEED_DATA=… python benchmarks/multi30k.py                       all, then rows and figure
    HEED_DATA=… python benchmarks/multi30k.py transformer --seeds 0 --part       one run; no rows yet
    HEED_DATA=… python benchmarks/multi30k.py rnnsearch --json      prints the figures, writes nothing
    HEED_DATA=… python benchmarks/multi30k.py --figure              the figure of all, from what is done

The Transformer is Transformer-Tiny of Wu et al. 2021: 4 + 4 layers of width 128, 10,000 pieces for both
languages, batches of 4,096 tokens, 8,000 steps, five beams. It begins with smaller weights than theirs
(`first_weights`), and its learning rate falls linearly. The recurrent ones run until the validation loss was
no better for ten epochs. Tested are the mean of the last ten epochs, every second of which is kept, or the
epoch with the lowest loss, whichever translates the validation sentences better, greedily.

Text is lower-cased, its punctuation normalised and set apart as by Moses' scripts (`tokenise`). `bleu` is
counted on these words (sacrebleu, tokenize=none: what multi-bleu.perl counts), as the published figure is.
`sacrebleu` is counted on the text put together again, against the original file: lower case, 13a.

Everything is kept in --work: a call that was interrupted goes on at the last epoch.
HEED_DATA is a folder with translation/multi30k.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.models.base import Model
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.tasks.metrics.generated import bleu
from heedful.train.checkpoint import list_checkpoints, read_pointer
from heedful.train.stopping import EarlyStopping, soup

ROOT = Path(__file__).parents[1]
FILES = [f"translation/multi30k/{part}.{side}.gz" for part in ("train", "val", "test_2016_flickr")
         for side in ("en", "de")]  # fmt: skip
PARTS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
LAST = 10  # epochs whose weights are averaged
EVERY = 2  # epochs between evaluations, which are also checkpoints


@dataclass(frozen=True)
class System:
    """One model and how it learns."""

    name: str
    family: str
    sizes: dict[str, Any]
    train: dict[str, Any]
    tokens: int  # rows × longest row of a batch
    multiple: int = 1  # lengths are rounded up to it; above 1, steps are recorded on a GPU
    patience: int = LAST  # epochs without a better loss before it stops
    seeds: tuple[int, ...] = (0,)
    published: float | None = None
    source: str | None = None


SYSTEMS = {
    "transformer": System(
        "Transformer, 4 + 4 layers of width 128", "transformer",
        {"dim": 128, "layers": 4, "heads": 4, "hidden": 256, "dropout": 0.3},
        {"steps": 8000, "lr": 4e-3, "warmup": 1000, "schedule": "linear", "final": 0.02}, 4096, 4, 100,
        (0, 1, 2), 41.02,
        "Wu et al. 2021 (ACL), Transformer-Tiny, multi-bleu of tokenised lower-cased text",
    ),
    "rnnsearch": System(
        "RNNsearch, width 384", "rnnsearch", {"dim": 384, "table_dim": 256, "dropout": 0.4},
        {"steps": 4000, "lr": 2e-3, "warmup": 500, "schedule": "inverse_sqrt"}, 6144,
    ),
    "seq2seq": System(
        "seq2seq, 2 + 2 LSTMs of width 512, no attention", "seq2seq",
        {"dim": 512, "table_dim": 256, "layers": 2, "dropout": 0.3},
        {"steps": 6000, "lr": 2e-3, "warmup": 500, "schedule": "inverse_sqrt"}, 6144,
    ),
}  # fmt: skip

SAME = {"„": '"', "“": '"', "”": '"', "«": '"', "»": '"', "’": "'", "‘": "'", "´": "'", "`": "'", "‚": "'",
        "–": "-", "—": "-", "…": "...", "\u00a0": " ", "\u00ad": ""}  # fmt: skip


def tokenise(text: str, language: str) -> str:
    """Lower case, plain quotes and dashes, punctuation set apart: what Moses' scripts do, in their order."""
    for odd, plain in SAME.items():
        text = text.replace(odd, plain)
    text = re.sub(r"([^\w\s.',-]|_)", r" \1 ", text.lower())
    text = re.sub(r"\.{2,}", r" \g<0> ", text)
    text = re.sub(r"(?<!\d),|,(?!\d)", " , ", text)
    if language == "en":
        text = re.sub(r"(?<!\w)'|'(?!\w)", " ' ", text)
        text = re.sub(r"(?<=\w)'(?=\w)", " '", text)  # it 's
    else:
        text = text.replace("'", " ' ")
    words = text.split()
    return " ".join(split_point(word, words[i + 1 : i + 2]) for i, word in enumerate(words))


def split_point(word: str, following: Sequence[str]) -> str:
    """A word without its sentence's full stop; that of an abbreviation stays (u.s., or in mid-sentence)."""
    bare = word.removesuffix(".")
    if bare == word or not bare.strip("."):
        return word
    short = "." in bare and any(c.isalpha() for c in bare)
    return word if short or (following and following[0][0].islower()) else f"{bare} ."


def detokenise(text: str) -> str:
    """Words as a sentence again: no space before a stop, none inside quotes and brackets."""
    text = re.sub(r" ([.,!?;:%)\]]|\.\.\.)(?= |$)", r"\1", text)
    text = re.sub(r"(^| )([(\[]) ", r"\1\2", text)
    text = re.sub(r'" (.*?) "', r'"\1"', text)
    return re.sub(r" ?' ?", "'", text)


def write(path: Path, text: str) -> None:
    """Whole or not at all: several runs may prepare the same files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def lines(folder: Path, part: str, side: str) -> list[str]:
    path = folder / "translation" / "multi30k" / f"{PARTS[part]}.{side}.gz"
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def prepare_texts(folder: Path, work: Path) -> dict[str, tuple[Path, Path]]:
    """The tokenised text of every part, English and German."""
    made = {}
    for part in PARTS:
        paths = work / f"{part}.en", work / f"{part}.de"
        for path, side in zip(paths, ("en", "de"), strict=True):
            if not path.is_file():
                write(path, "".join(tokenise(line, side) + "\n" for line in lines(folder, part, side)))
        made[part] = paths
    return made


@dataclass(frozen=True)
class Task:
    """One run: a system, its seed, and where it takes place."""

    system: str
    seed: int
    folder: Path  # of data
    work: Path
    device: str
    seconds: float = 1e9  # of training, at most
    steps: int | None = None
    vocab: int = 10_000
    dtype: str = "float32"
    lr: float | None = None
    graph: bool = False

    @property
    def place(self) -> Path:
        return self.work / f"{self.system}-{self.seed}"


@torch.no_grad()
def first_weights(model: Model, seed: int) -> None:
    """Glorot and Bengio's (2010), halved in what is added to the stream; the table N(0, 1/D).

    norm(x + part(x)) then begins as nearly x, and gradients reach the encoder whole (as in Wang et al. 2022,
    DeepNet §3). Not halved, and with the published schedule, one of three seeds never came to look at the
    source (16.7 BLEU); a short run had gradients ten times as large. There is no dropout inside attention.
    """
    tables = [part for part in model.modules() if isinstance(part, torch.nn.Embedding)]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(part.weight, gain=1.0 if name.endswith((".q", ".k")) else 0.5)
            elif isinstance(part, Attention | CrossAttention):
                part.dropout = 0.0
        for table in tables:  # last: the output matrix is one of them
            torch.nn.init.normal_(table.weight, std=table.embedding_dim**-0.5)


def build_learner(task: Task, texts: dict[str, tuple[Path, Path]]) -> Model:
    """The model of a task with its tokenizer, before it learns."""
    system = SYSTEMS[task.system]
    tokenizer = heedful.train_tokenizer(
        "bpe", list(texts["train"]), vocab=task.vocab, special=("bos", "eos", "pad")
    )
    model = heedful.build(
        system.family, vocab=len(tokenizer), seed=task.seed, device=task.device, start_token=tokenizer.bos,
        **system.sizes,
    )  # fmt: skip
    model.tokenizer = tokenizer
    if system.family == "transformer":
        first_weights(model, task.seed)
    return model


def train(task: Task, texts: dict[str, tuple[Path, Path]]) -> None:
    """Until the validation loss stops falling, the steps are done or the time is over; epochs are kept."""
    system, began, model = SYSTEMS[task.system], time.perf_counter(), build_learner(task, texts)
    read = lambda part, seed, multiple: data.parallel(
        list(texts[part]), model.tokenizer, length=128, batch=512, max_tokens=system.tokens, seed=seed,
        start=model.tokenizer.bos, truncate=True, multiple=multiple,
    )  # fmt: skip
    batches, valid = read("train", task.seed, system.multiple), read("val", 0, 1)
    epochs = EVERY * len(batches)
    settings = system.train | ({"steps": task.steps, "warmup": task.steps // 4} if task.steps else {})
    settings |= {"lr": task.lr} if task.lr else {}
    config = heedful.TrainConfig(
        **settings, betas=(0.9, 0.98), weight_decay=0.0, dtype=task.dtype, seed=task.seed, folder=task.place,
        save_every=epochs, keep=LAST, resume=True, graph=task.graph and system.multiple > 1,
    )  # fmt: skip
    stopping = EarlyStopping(patience=system.patience // EVERY)
    for step in heedful.fit(model, "translate", batches, config):
        if step.number % epochs == 0 or step.number == config.steps:
            loss, spent = step.evaluate(valid)["loss"], time.perf_counter() - began
            step.save(best=stopping.better(loss))
            where = f"{task.place.name} step {step.number}"
            print(f"{where} train {step.loss:.3f} valid {loss:.3f} {spent:.0f} s", flush=True)
            if stopping.stop or spent > task.seconds:
                break


def candidates(place: Path, most: int) -> dict[str, Model]:
    """The mean of the last checkpoints, and the one with the lowest validation loss."""
    last, best = list_checkpoints(place)[-most:], read_pointer(place / "best.json")
    made = {f"mean of the last {len(last)}": soup(last)}
    return made if best is None else made | {"lowest loss": heedful.load(best)}


def translate(model: Model, sentences: Sequence[str], beams: int | None) -> list[str]:
    """Alike lengths together, in the order given."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    out = [""] * len(sentences)
    for at in range(0, len(order), 256):
        some = order[at : at + 256]
        room = 10 + 2 * max(len(sentences[i].split()) for i in some)
        for i, text in zip(
            some, heedful.generate(model, [sentences[i] for i in some], beams=beams, max_tokens=room)
        ):
            out[i] = " ".join(text.split())
    return out


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def word_bleu(truths: Sequence[str], guesses: Sequence[str]) -> float:
    """BLEU of text whose words are set apart already."""
    return float(bleu(truths, guesses, tokenize="none", force=True)["bleu"])


def run_task(task: Task) -> dict[str, Any]:
    """Train, choose on the validation sentences, translate the test: kept as done.json."""
    kept = task.place / "done.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    began = time.perf_counter()
    texts = prepare_texts(task.folder, task.work)
    train(task, texts)
    sources, truths = (read_lines(path) for path in texts["val"])
    models = {
        name: model.to(task.device).eval() for name, model in candidates(task.place, LAST // EVERY).items()
    }
    scores = {name: word_bleu(truths, translate(model, sources, None)) for name, model in models.items()}
    chosen = max(scores, key=lambda name: scores[name])
    guesses = translate(models[chosen], read_lines(texts["test"][0]), beams=5)
    told = {
        "chosen": chosen, "valid": scores, "guesses": guesses, "seconds": time.perf_counter() - began,
        "step": int(list_checkpoints(task.place)[-1].name.removeprefix("step-")),
    }  # fmt: skip
    write(kept, json.dumps(told, ensure_ascii=False))
    return told


def measure_figure(guesses: Sequence[Sequence[str]], folder: Path, work: Path) -> dict[str, Any]:
    """BLEU on words and sacreBLEU, means over the seeds."""
    words = read_lines(prepare_texts(folder, work)["test"][1])
    whole = lines(folder, "test", "de")
    ours = [round(word_bleu(words, one), 2) for one in guesses]
    theirs = [bleu(whole, [detokenise(g) for g in one], lowercase=True) for one in guesses]
    told: dict[str, Any] = {"bleu": round(statistics.mean(ours), 2)}
    if len(ours) > 1:
        told |= {"sd": round(statistics.stdev(ours), 2), "seeds": ours}
    scores = [float(one["bleu"]) for one in theirs]
    return told | {"sacrebleu": round(statistics.mean(scores), 2), "signature": theirs[0]["signature"]}


BUCKETS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 19), (20, 99))


def by_length(guesses: Sequence[Sequence[str]], sources: Sequence[str], truths: Sequence[str]) -> list[float]:
    """BLEU on words of the sentences of each bucket, mean over the seeds."""
    out = []
    for low, high in BUCKETS:
        rows = [i for i, s in enumerate(sources) if low <= len(s.split()) <= high]
        each = [word_bleu([truths[i] for i in rows], [one[i] for i in rows]) for one in guesses if rows]
        out.append(round(statistics.mean(each), 2) if rows else 0.0)
    return out


def plot(curves: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "heedful"
    names = [f"{low}–{high}" if high < 99 else f"{low} and more" for low, high in BUCKETS]
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, values in curves.items():
        axes.plot(names, values, marker="o", label=name)
    axes.set_xlabel("words of the English sentence")
    axes.set_ylabel("BLEU, tokenised lower case")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    path.with_suffix(".json").write_text(json.dumps({"words": names, "bleu": curves}, indent=1) + "\n")


def row(name: str, figure: dict[str, Any], seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """What the ledger keeps of a system."""
    system = SYSTEMS[name]
    words = f"python benchmarks/multi30k.py {name} --seeds {' '.join(map(str, seeds))} --json --work {{work}}"
    check = {
        "steps": [words.split()], "read": "figure.bleu", "figure": "bleu", "tolerance": 1.0, "data": FILES,
        "device": "cuda",
    }  # fmt: skip
    mean = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    return ledger.row(
        f"Multi30k en→de, test 2016 (Flickr): BLEU of tokenised lower-cased words, {mean}; {system.name}",
        figure, f"HEED_DATA=… python benchmarks/multi30k.py {name}", published=system.published,
        source=system.source, seed=list(seeds), check=check,
        data_sha256=ledger.sha256(folder / one for one in FILES),
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SYSTEMS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", help="the Transformer's are 0 1 2, the others' 0")
    parser.add_argument("--work", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--part", action="store_true", help="train and translate: a later call writes rows")
    parser.add_argument("--figure", action="store_true", help="draw the figure again, write no rows")
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--seconds", type=float, default=1e9, help="train one model no longer than that")
    parser.add_argument("--steps", type=int, help="another number of steps, to try it; writes nothing")
    parser.add_argument("--lr", type=float, help="another learning rate, to try it; take another --work")
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                        help="so small a model waits for launches, and bfloat16 only adds some")  # fmt: skip
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True,
                        help="record the Transformer's steps on a GPU and replay them")  # fmt: skip
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if unknown := [name for name in a.names if name not in SYSTEMS]:
        parser.error(f"no system is called {unknown[0]!r}; there are {', '.join(SYSTEMS)}")
    folder = Path(os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets"))
    torch.set_float32_matmul_precision("high")
    trial = a.json or a.steps or a.lr
    guesses: dict[str, list[list[str]]] = {}
    for name in a.names or SYSTEMS:
        seeds = a.seeds or SYSTEMS[name].seeds
        tasks = [Task(name, seed, folder, a.work, a.device, a.seconds, a.steps, a.vocab, a.dtype, a.lr,
                      a.graph) for seed in seeds]  # fmt: skip
        runs = [run_task(task) for task in tasks]
        guesses[name] = [one["guesses"] for one in runs]
        figure = measure_figure(guesses[name], folder, a.work)
        told = {k: [one[k] for one in runs] for k in ("chosen", "valid", "step", "seconds")}
        print(json.dumps({"schema": "heed/1", "row": "multi30k", "system": name, "figure": figure, **told}),
              flush=True)  # fmt: skip
        if not (trial or a.part or a.figure):
            ledger.record_rows(a.results / "multi30k.json", [row(name, figure, seeds, folder)])
    if set(guesses) == set(SYSTEMS) and not (trial or a.part):
        sources, truths = (read_lines(path) for path in prepare_texts(folder, a.work)["test"])
        curves = {SYSTEMS[name].name: by_length(texts, sources, truths) for name, texts in guesses.items()}
        plot(curves, a.figures / "multi30k-lengths.svg")


if __name__ == "__main__":
    main()
