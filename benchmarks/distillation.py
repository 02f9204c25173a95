"""Distillation: half the layers, nearly the score, on SST-2.

    HEED_DATA=… python benchmarks/distillation.py              writes results/distillation.json
    HEED_DATA=… python benchmarks/distillation.py --json       prints the figures, writes nothing

The teacher is all-MiniLM-L6-v2 fine-tuned on SST-2 by finetuned.py, in one run whose weights are averaged
along the way and with a tenth of the words hidden (trained here if --work has none).
The student begins as every other layer of it, and learns from the teacher's softened answers, the labels and
the teacher's hidden states (Sanh et al. 2019 §2, their weights), each of its layers from every other one of
the teacher's (Sun et al. 2019, arXiv 1908.09355); a tenth of the words is hidden from both.

Half of MiniLM's parameters are its table of 30,522 pieces, which no halving of layers touches. So the student
keeps only some of its rows: those of all pieces that occur in the training text, of ASCII characters, and of
the most common others (the first of the vocabulary) until it has 59 % of the teacher's parameters. Text of
training is cut into the same pieces as before, rare words elsewhere into smaller ones. `parameters` counts
everything.

`kept` is the student's accuracy on dev in per cent of the teacher's, `speed` how many times as many sentences
it reads in a second on a CPU, one at a time, both in turns on one thread; `speed of batches` the same for 32
at once, on the device that trained it.
The base is found as finetuned.py finds it. HEED_DATA is a folder with classification/sst2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))  # the plans lie in bundle/, which is not installed

from bundle import data_folder
from bundle.plans import BASE, Plan, percent, rows, scored

import heedful
from finetuned import TASKS, find_plan, hide_words, learn, model_folder, train_config, train_run
from heedful.classroom.experiments import ledger
from heedful.data.batch import Batch
from heedful.models.base import LM, Model
from heedful.nn.context import Watch
from heedful.text.tokenizer import Tokenizer
from heedful.text.vocabularies import set_template
from heedful.train.objectives import Objective, Term, soft_cross_entropy
from heedful.weights.loading import assemble

ROOT = Path(__file__).parents[1]
SHARE = 0.59  # of the teacher's parameters
TEACHER: dict[str, Any] = {"lr": 1e-4, "runs": 1, "checks": 6, "ema": 0.999, "hidden": 0.1}
STUDENT: dict[str, Any] = {"epochs": 5, "lr": 2e-4, "batch": 64, "checks": 5, "ema": 0.999}
LAYERS = "blocks.[0-9].output"


def select_pieces(tokenizer: Tokenizer, texts: Sequence[str], more: int = 0) -> list[int]:
    """The ids that occur in texts, special tokens, ASCII characters and so many more, in order."""
    seen = {i for ids in tokenizer.encode_all(texts) for i in ids}
    every = tokenizer.backend.get_vocab(with_added_tokens=True)
    seen |= {every[token] for token in tokenizer.roles.values()}
    seen |= {i for name, i in every.items() if len(name.removeprefix("##")) == 1 and name.isascii()}
    others = sorted(i for name, i in every.items() if i not in seen and name.isascii() and name[0] != "[")
    return sorted(seen | set(others[: max(more, 0)]))


def cut_tokenizer(tokenizer: Tokenizer, ids: Sequence[int]) -> Tokenizer:
    """The same rules with these pieces alone, numbered anew."""
    vocab = {name: i for i, name in enumerate(tokenizer.tokens(ids))}
    roles, old = tokenizer.roles, tokenizer.backend
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token=roles["unk"]))
    made.normalizer, made.pre_tokenizer, made.decoder = old.normalizer, old.pre_tokenizer, old.decoder
    made.add_special_tokens(list(roles.values()))
    cls, sep = roles["cls"], roles["sep"]
    set_template(made, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    return Tokenizer(made, roles)


@torch.no_grad()
def cut_model(model: Model, layers: Sequence[int], ids: Sequence[int], tokenizer: Tokenizer) -> Model:
    """A copy with these layers and these rows of the table."""
    made = assemble(model.family, model.config.change(layers=len(layers), vocab=len(ids)))
    held = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        first, *rest = name.split(".")
        if first == "blocks":
            name = ".".join(["blocks", str(layers[int(rest[0])]), *rest[1:]])
        value = held[name]
        parameter.copy_(value[list(ids)] if name == "embed.token.weight" else value)
    made.tie()
    made.tokenizer, made.hf_config, made.pooling = tokenizer, dict(model.hf_config), model.pooling
    return made.to(model.device)


def distil_layers(teacher: Model, temperature: float = 2.0) -> Objective:
    """5 · KL(teacher_T ‖ student_T) T² + 2 · −log p(label) + Σ_l (1 − cos(h_l, h_teacher,2l))"""

    def purpose(model: Model, batch: Batch) -> dict[str, Term]:
        assert isinstance(model, LM)
        assert isinstance(teacher, LM)
        own, theirs = Watch(LAYERS), Watch(LAYERS)
        given = {"valid": batch.valid, "types": batch.types}
        got = model(batch.tokens, **given, watch=own)
        with torch.no_grad():
            wanted = teacher(batch.tokens, **given, watch=theirs)
        many = len(list(theirs)) // len(list(own))
        pairs = [(own[n], theirs[f"blocks.{many * i + many - 1}.output"]) for i, n in enumerate(own)]
        far = torch.stack([1 - F.cosine_similarity(h, t, dim=-1) for h, t in pairs]).sum(0)  # (B, T)
        far = far if batch.valid is None else far * batch.valid
        return {
            "soft": Term(soft_cross_entropy(got, wanted, temperature), "row", 5.0),
            "hard": Term(F.cross_entropy(got, batch.extra["label"], reduction="sum"), "row", 2.0),
            "cosine": Term(far.sum(), "token", 1.0),
        }

    return purpose


def parameter_count(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def reading_times(
    models: Sequence[Model], texts: Sequence[str], turns: int, batch: int = 1
) -> list[list[float]]:
    """Sentences per second of each, so many at once, in turns; a first round warms up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    read = [[put.to(m.device) for put in pad_batches(m.tokenizer.encode_all(texts), batch)] for m in models]
    found: list[list[float]] = [[] for _ in models]
    for turn in range(turns + 1):
        for model, sentences, seen in zip(models, read, found, strict=True):
            began = time.perf_counter()
            with torch.inference_mode():
                for one in sentences:
                    said = model(one.tokens, valid=one.valid)
                said.sum().item()  # waits for a GPU
            if turn:
                seen.append(len(texts) / (time.perf_counter() - began))
    torch.set_num_threads(threads)
    return found


def pad_batches(ids: Sequence[Sequence[int]], batch: int) -> list[Batch]:
    """Sentences of like length side by side."""
    found = []
    rows = sorted(ids, key=len)
    for start in range(0, len(rows), batch):
        some = [torch.tensor(row) for row in rows[start : start + batch]]
        tokens = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)
        lengths = torch.tensor([len(row) for row in some])[:, None]
        found.append(Batch(tokens, valid=torch.arange(tokens.shape[1]) < lengths if batch > 1 else None))
    return found


def speed_ratio(models: Sequence[Model], texts: Sequence[str], turns: int, batch: int = 1) -> float:
    """How many times as fast as the first the second is, the median of some turns."""
    slow, quick = reading_times(models, texts, turns, batch)
    return round(statistics.median(q / s for q, s in zip(quick, slow, strict=True)), 2)


def train_student(teacher: Model, plan: Plan, a: argparse.Namespace) -> tuple[Model, float]:
    """The student, and its score on held-back data."""
    texts = [line.split("\t", 1)[1] for line in rows(a.data / "classification/sst2/train.tsv.gz")[1:]]
    depth, width, old = teacher.config.layers, teacher.config.dim, teacher.tokenizer
    ids = select_pieces(old, texts)
    least = parameter_count(cut_model(teacher, range(0, depth, 2), ids, old))
    ids = select_pieces(old, texts, more=int((SHARE * parameter_count(teacher) - least) / width))
    tokenizer = cut_tokenizer(old, ids)
    alike = cut_model(teacher, range(depth), ids, tokenizer).eval()  # reads the student's ids, says the same
    student = cut_model(teacher, range(0, depth, 2), ids, tokenizer)
    for parameter in alike.parameters():
        parameter.requires_grad_(False)
    settings = replace(TASKS["sst2"], **STUDENT)
    batches, held = plan.batches(a.data, tokenizer, settings.batch), plan.held(a.data)
    config = train_config(settings, batches, a.seed, a.steps, ema=settings.ema)
    purpose = hide_words(distil_layers(alike), tokenizer, 0.1)
    check = lambda: float(scored(student, plan, held)[plan.score])
    return student, learn(student, purpose, batches, config, check, settings.checks, "student")


def measure_distillation(a: argparse.Namespace) -> dict[str, Any]:
    """Teacher and student side by side."""
    plan = find_plan("sentiment", a.data)
    scores = train_run("teacher", replace(TASKS["sst2"], **TEACHER), plan, 0, 0, a, weights=True)
    teacher = heedful.load(model_folder("teacher", 0, a), dtype=torch.float32, device=a.device)
    student, held = train_student(teacher, plan, a)
    score = float(scored(student, plan, plan.test(a.data))[plan.score])
    texts = [line.split("\t", 1)[1] for line in rows(a.data / "classification/sst2/dev.tsv.gz")[1:]]
    texts = texts[: a.sentences]
    at_once = speed_ratio([teacher.eval(), student.eval()], texts, 5, batch=32)
    speed = speed_ratio([teacher.cpu(), student.cpu()], texts, 5)
    heedful.save(student, a.work / "student")
    return {
        "kept": round(100 * score / scores[plan.score], 2),
        "speed": speed,
        "parameters": round(100 * parameter_count(student) / parameter_count(teacher), 1),
        "accuracy": round(percent(plan, score), 2), "teacher": round(percent(plan, scores[plan.score]), 2),
        "held_back": round(percent(plan, held), 2),
        "speed of batches": at_once, "device of batches": a.device,
        "pieces": len(student.tokenizer),
    }  # fmt: skip


def row(figure: dict[str, Any], a: argparse.Namespace) -> dict[str, Any]:
    """What the ledger keeps."""
    files = list(find_plan("sentiment", a.data).files)
    again = ["python", "benchmarks/distillation.py", "--json", "--work", "{work}"]
    check = {
        "steps": [again], "read": "figure.kept", "figure": "kept", "tolerance": 1.5, "data": files,
        "device": "cuda",
    }  # fmt: skip
    return ledger.row(
        "SST-2 dev: a student of 3 layers, its table cut to the pieces of the training text and common ones, "
        f"taught by {BASE} fine-tuned (6 layers): per cent of its accuracy kept, times its speed on a CPU, "
        "per cent of its parameters",
        figure, "HEED_DATA=… python benchmarks/distillation.py",
        published={"kept": 97, "speed": 1.6, "parameters": 60}, source="DistilBERT, Sanh et al. 2019",
        seed=a.seed, check=check, data_sha256=ledger.sha256(a.data / file for file in files),
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--work", type=Path, default=Path("runs/finetuned"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--base", help="a folder with all-MiniLM-L6-v2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="stop so early, to try it; writes nothing")
    parser.add_argument("--sentences", type=int, default=128, help="read in each turn of the measurement")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    a.fold = None  # dev is scored
    a.data = data_folder()
    torch.set_float32_matmul_precision("high")
    figure = measure_distillation(a)
    print(json.dumps({"schema": "heed/1", "row": "distillation", "figure": figure}), flush=True)
    if not (a.json or a.steps):
        ledger.record_rows(a.results / "distillation.json", [row(figure, a)])


if __name__ == "__main__":
    main()
