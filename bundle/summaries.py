"""The summariser that comes with heedful: LoRA on SmolLM2-135M-Instruct, learnt from SciTLDR's abstracts.

    HEED_DATA=FOLDER python -m bundle.summaries [--seconds 300] [--out FOLDER] [--device cuda]

The model is asked in a conversation, in the words that pipeline("summarization") and `heed finetune --task
summarize` use; what it learns is the answer alone. The prompt is kept in config.json (`task_prompt`). Of the
weights after each epoch those with the lowest loss on dev are kept. Beside its ROUGE stand those of the first
sentence, of the first three, and of the model before it learnt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import heedful
from bundle import data_folder
from bundle.cards import Card, hash_of, write_card
from bundle.plans import base_folder
from bundle.summarising import learnt, summariser, written
from bundle.timed import options, parsed, places, seeded, write_sample
from heedful.classroom.experiments import ledger
from heedful.data.batch_options import BatchOptions
from heedful.tasks.examples import Examples
from heedful.tasks.metrics.generated import rouge_l, rouge_n, words
from heedful.tasks.pipelines.text2text import Summarization
from heedful.weights.saving import save_on_base

BASE = "smollm2-135m-instruct"
FILES = {part: f"summarisation/scitldr-a/{part}.jsonl.gz" for part in ("train", "dev", "test")}
# All but the first two layers: those tell words, not what matters of a text.
TARGETS = ("blocks.[2-9].attn.[qv]", "blocks.[12][0-9].attn.[qv]")
RULES: dict[str, Any] = {"max_tokens": 128}  # what the pipeline takes
CARD = Card(
    "what a text says, in a sentence or two",
    "summarization",
    "SciTLDR-A: abstracts of papers with one-sentence summaries (Cachola et al. 2020)",
    "Apache-2.0",
    "SciTLDR-A test, ROUGE-L, best of an abstract's references",
    learnt="LoRA",
)
OTHERS = (
    "Anna: Are you coming to the party on Saturday?\nBen: I can't, my sister is getting married.\nAnna: Oh, "
    "I forgot! Give her my best wishes.\nBen: I will. Let's have lunch next week instead.\nAnna: Tuesday?\n"
    "Ben: Tuesday is fine.",
    "Tom: My laptop won't start.\nLisa: Did you try another charger?\nTom: No, where would I get one?\n"
    "Lisa: There is one in my office, second drawer.\nTom: Thanks, I will bring it back this afternoon.",
    "Heavy rain has flooded parts of the city of York for the second time this month. About two hundred "
    "people left their homes on Monday night, and schools near the river stay closed until Thursday. The "
    "council said that the new flood barrier, which cost forty million pounds, had kept the old town dry. "
    "Forecasters expect the water to fall from Wednesday.",
)


Rows = list[tuple[list[str], list[str]]]  # the sentences of each abstract, and its summaries
Parts = dict[str, Rows]


def abstracts(path: Path, limit: int | None) -> Rows:
    """The sentences of each abstract, and its summaries."""
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    return [([s.strip() for s in r["source"]], [t.strip() for t in r["target"]]) for r in rows][:limit]


def pairs(rows: Rows) -> Examples:
    """Every summary with its abstract."""
    held = [(" ".join(source), one) for source, targets in rows for one in targets if one]
    return Examples(held, [str(i) for i in range(len(held))])


def best_rouge(truths: Sequence[Sequence[str]], guesses: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2, -L: F1 in per cent with the best of each text's references, the mean over texts."""
    kinds: dict[str, Callable[[list[str], list[str]], float]] = {
        "rouge1": lambda t, g: rouge_n(t, g, 1), "rouge2": lambda t, g: rouge_n(t, g, 2), "rougeL": rouge_l,
    }  # fmt: skip
    split = [([words(t) for t in some], words(g)) for some, g in zip(truths, guesses, strict=True)]
    return {
        n: 100 * sum(max(f(t, g) for t in some) for some, g in split) / len(split) for n, f in kinds.items()
    }


def train(task: Summarization, parts: dict[str, Examples], a: argparse.Namespace, began: float) -> float:
    """The adapter of the epoch with the lowest loss on dev is put in place; that loss."""
    batches, dev = (task.batches(parts[part], reading(a)) for part in ("train", "dev"))
    steps = a.steps or int(a.epochs * len(batches))
    config = heedful.TrainConfig(
        steps=steps, lr=a.lr, schedule="linear", final=0.0, warmup=max(1, steps // 20), weight_decay=0.0,
        betas=(0.9, 0.999), dtype="bfloat16", seed=a.seed,
    )  # fmt: skip
    until = math.inf if a.seconds is None else began + a.seconds
    return learnt(task, batches, dev, config, until, a.checks)


def reading(a: argparse.Namespace) -> BatchOptions:
    return BatchOptions(a.length, a.batch, a.seed, truncate=True)


def record(results: Path, found: dict[str, float], folder: Path, command: str, a: argparse.Namespace) -> None:
    """The row of the ledger."""
    check = {
        "steps": [["python", "-m", "bundle.summaries", *command.split()[4:], "--out", "{work}"]],
        "read": "figure", "figure": "rougeL", "tolerance": 1.0, "data": list(FILES.values()),
        "device": "cuda",
    }  # fmt: skip
    row = ledger.row(
        f"SciTLDR-A test: ROUGE (F1, no stemming, best reference) of {BASE} with LoRA of rank {a.rank}; "
        "before it learnt; of the first sentence and of the first three",
        {name: round(value, 2) for name, value in found.items() if name != "loss"}, command, seed=a.seed,
        check=check, data_sha256=ledger.sha256(folder / one for one in FILES.values()),
    )  # fmt: skip
    ledger.record_rows(results / "summaries.json", [row])


def taught(rows: Parts, a: argparse.Namespace, began: float) -> tuple[Summarization, float]:
    """The base with a trained adapter, and its loss on dev."""
    task = summariser(heedful.load(base_folder(BASE), dtype=torch.float32, device=a.device))
    torch.manual_seed(a.seed)
    heedful.lora(task.model, rank=a.rank, targets=TARGETS)
    loss = train(task, {part: pairs(rows[part]) for part in ("train", "dev")}, a, began)
    task.model.eval()
    return task, loss


def untaught(texts: Sequence[str], a: argparse.Namespace) -> list[str]:
    """What the base writes as it is."""
    plain = torch.bfloat16 if a.device.startswith("cuda") else torch.float32
    task = summariser(heedful.load(base_folder(BASE), dtype=plain, device=a.device))
    return written(task, texts, reading(a), a.rows, **RULES)


def made(a: argparse.Namespace, began: float) -> None:
    """Train, write, score, and everything that is kept of it."""
    folder, (out, results, samples) = data_folder(), places("summaries", a.out)
    rows = {part: abstracts(folder / path, a.limit) for part, path in FILES.items()}
    sources, truths = [" ".join(s) for s, _ in rows["test"]], [t for _, t in rows["test"]]
    task, loss = taught(rows, a, began)
    model = task.model
    save_on_base(model, out, BASE, torch.bfloat16)
    heedful.merge(model)
    model.to(torch.bfloat16 if a.device.startswith("cuda") else torch.float32)
    after = written(task, [*OTHERS, *sources], reading(a), a.rows, **RULES)
    print(
        f"after: {best_rouge(truths, after[len(OTHERS) :])} {time.perf_counter() - began:.0f} s", flush=True
    )
    before = untaught([*OTHERS, *sources], a)
    score = lambda texts: best_rouge(truths, texts)["rougeL"]
    lead = {f"lead{k}_rougeL": score([" ".join(s[:k]) for s, _ in rows["test"]]) for k in (1, 3)}
    found = best_rouge(truths, after[len(OTHERS) :]) | {"before_rougeL": score(before[len(OTHERS) :])}
    found |= lead | {"loss": loss}
    said = ["--steps", str(a.steps)] if a.steps else ["--epochs", f"{a.epochs:g}"]
    said += [*([] if a.seconds is None else ["--seconds", f"{a.seconds:.0f}"]), *seeded(a)]
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.summaries", *said])
    hashes, spent = {one: hash_of(folder / one) for one in FILES.values()}, time.perf_counter() - began
    write_card(out, "summaries", CARD, found, "rougeL", command, a.seed, hashes, BASE, spent)
    record(results, found, folder, command, a)
    shown = [*zip([*OTHERS, *sources], before, after, strict=True)][:15]
    text = "\n\n".join(f"TEXT {t}\nBEFORE {b}\nAFTER {c}" for t, b, c in shown)
    write_sample(samples, "summaries", lambda: f"{json.dumps(found)}\n\n{text}")
    print(json.dumps({"figure": round(found["rougeL"], 2), **found}))


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--steps", type=int, help="instead of epochs")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=448)
    parser.add_argument("--rows", type=int, default=103, help="abstracts that are summarised at once")
    parser.add_argument("--checks", type=int, default=40, help="batches of dev")
    parser.add_argument("--limit", type=int, help="only so many abstracts of each part, to try it")
    a = parsed(parser, "limit")
    made(a, began)


if __name__ == "__main__":
    main()
