"""Adapters on all-MiniLM-L6-v2 that come with heedful: what each learns, from what, and how well.

    HEED_DATA=FOLDER python -m bundle.adapters sentiment [--out FOLDER] [--seed 0] [--device cuda]
        [--rank 16] [--epochs 4] [--lr 5e-4] [--batch 64] [--start ADAPTER]

Each run trains LoRA and a head, keeps the best weights by a score on held-back data, measures the test data
once, and writes adapter, config and card. `--start` goes on from an adapter that was learnt before. Those
whose data may not be passed on stay outside the package.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import heedful
from bundle import SCRATCH, contexts, data_folder
from bundle.cards import hash_of, write_card
from bundle.plans import BASE, PLANS, Plan, base_folder, percent, scored
from bundle.timed import learn, options, parsed, places
from heedful.classroom.experiments import ledger
from heedful.weights.adapters import load_adapter
from heedful.weights.loading import with_head
from heedful.weights.saving import save_on_base


def train(name: str, plan: Plan, folder: Path, out: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Learn, choose, measure, write: the scores."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began, seed = time.perf_counter(), given.seed
    body = heedful.load(base_folder(BASE), dtype=torch.float32)
    batches = plan.batches(folder, body.tokenizer, plan.batch)
    labels = [plan.names.get(label, label) for label in batches.labels] if batches.labels else None
    model = with_head(body, plan.head, labels, seed=seed).to(given.device)
    torch.manual_seed(seed)
    if given.start is None:
        heedful.lora(model, rank=plan.rank, train=("head.*",))
    else:
        load_adapter(model, given.start)
    steps = given.steps or int(plan.epochs * len(batches))
    config = heedful.TrainConfig(
        steps=steps, lr=plan.lr, schedule="linear", final=0.0, warmup=steps // 16, weight_decay=0.01,
        betas=(0.9, 0.999), dtype="bfloat16", seed=seed,
    )  # fmt: skip
    best, kept = -1.0, dict[str, torch.Tensor]()
    held, until = plan.held(folder), None if given.seconds is None else began + given.seconds
    for step in learn(model, plan.objective, batches, config, until):
        over = step.number == steps or (until is not None and time.perf_counter() >= until)
        if step.number % 50 == 0:
            spent = time.perf_counter() - began
            print(f"{name} {step.number}/{steps} loss {step.loss:.4f} {spent:.0f} s", flush=True)
        if step.number % max(1, steps // plan.checks) == 0 or over:
            score = scored(model, plan, held, quickly=True)[plan.score]
            print(f"{name} {step.number}/{steps} held-back {plan.score} {score:.4f}", flush=True)
            if score >= best:
                best = score
                kept = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    model.load_state_dict(kept, strict=False)
    found = scored(model, plan, plan.test(folder))
    save_on_base(model, out, BASE)
    told = {k: v for k, v in found.items() if isinstance(v, (int, float))}
    hashes = {one: hash_of(folder / one) for one in plan.files}
    words = [name, "--seed", str(seed), *changed(given)]
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.adapters", *words])
    spent = time.perf_counter() - began
    write_card(out, name, plan.card, told, plan.score, command, seed, hashes, BASE, spent)
    record(given.results, name, plan, told[plan.score], folder, command, words)
    return {"held": best, **told, "seconds": spent, "hashes": hashes}


CHANGES = ("rank", "epochs", "lr", "batch", "checks")  # of a plan, by options


def changed(given: argparse.Namespace) -> list[str]:
    """The options that differ from the plan, as they are typed."""
    named = {name: getattr(given, name) for name in (*CHANGES, "seconds", "steps")}
    words = [w for name, value in named.items() if value is not None for w in (f"--{name}", f"{value:g}")]
    words += ["--mixed"] if given.mixed else []
    return words + ([] if given.start is None else ["--start", given.start.name])


def record(
    results: Path, name: str, plan: Plan, score: float, folder: Path, command: str, words: list[str]
) -> None:
    """The row of the ledger."""
    claim = f"{plan.card.measure} × 100: all-minilm-l6-v2 with LoRA of rank {plan.rank}"
    step = ["python", "-m", "bundle.adapters", *words, "--out", "{work}"]
    check = {"steps": [step], "read": "figure", "tolerance": 1.0, "data": list(plan.files)}
    row = ledger.row(
        claim, round(percent(plan, score), 2), command, published=plan.published, source=plan.source,
        seed=int(words[2]), data_sha256=ledger.sha256(folder / one for one in plan.files), check=check,
    )  # fmt: skip
    ledger.record_rows(results / f"{name}.json", [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    options(parser)
    for name in CHANGES:
        parser.add_argument(
            f"--{name}", type=float if name in ("epochs", "lr") else int, help="not as planned"
        )
    parser.add_argument("--steps", type=int, help="so many, not as planned; needs --out")
    parser.add_argument("--mixed", action="store_true", help="learn from everyday examples of our own too")
    parser.add_argument("--start", type=Path, help="the folder of an adapter to go on from")
    given = parsed(parser, "steps")
    plan = PLANS[given.name]
    plan = replace(plan, **{n: v for n in CHANGES if (v := getattr(given, n)) is not None})
    if given.mixed:
        if plan.mixed is None:
            parser.error(f"{given.name} has no everyday examples")
        told = f"{plan.card.data}; QAMR, dev and test (Michael et al. 2018); questions of our own templates"
        card = replace(plan.card, data=told, licence=f"{plan.card.licence}; {contexts.LICENCE}")
        plan = replace(plan, batches=plan.mixed, card=card, files=(*plan.files, *contexts.QAMR))
    out, given.results, _ = places(given.name, given.out, plan.card.bundled)
    found = train(given.name, plan, data_folder(), out, given)
    print(json.dumps({"figure": round(percent(plan, found[plan.score]), 2), **found}))


if __name__ == "__main__":
    main()
