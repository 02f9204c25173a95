"""Adapters on all-MiniLM-L6-v2 that come with heedful: what each learns, from what, and how well.

    HEED_DATA=FOLDER python -m bundle.adapters sentiment [--out FOLDER] [--seed 0] [--threads 2]

Each run trains LoRA and a head, keeps the best weights by a score on held-back data, measures the test data
once, and writes adapter, config and card. Those whose data may not be passed on stay outside the package.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

import heedful
from bundle.cards import PACKAGE, hash_of, write_card
from bundle.plans import BASE, PLANS, SCRATCH, Plan, percent, scored
from heedful.loading import save_on_base, with_head
from heedful.runs import ledger


def train(name: str, plan: Plan, folder: Path, out: Path, seed: int, limit: int | None) -> dict[str, Any]:
    """Learn, choose, measure, write: the scores."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    body = heedful.load(BASE)
    batches = plan.batches(folder, body.tokenizer, plan.batch)
    labels = [plan.names.get(label, label) for label in batches.labels] if batches.labels else None
    model = with_head(body, plan.head, labels, seed=seed)
    heedful.lora(model, rank=plan.rank, train=("head.*",))
    steps = limit or int(plan.epochs * len(batches))
    config = heedful.TrainConfig(
        steps=steps, lr=plan.lr, schedule="linear", final=0.0, warmup=steps // 16, weight_decay=0.01,
        betas=(0.9, 0.999), dtype="bfloat16", seed=seed,
    )  # fmt: skip
    best, kept = -1.0, dict[str, torch.Tensor]()
    held = plan.held(folder)
    for step in heedful.fit(model, plan.objective, batches, config):
        if step.number % 50 == 0:
            spent = time.perf_counter() - began
            print(f"{name} {step.number}/{steps} loss {step.loss:.4f} {spent:.0f} s", flush=True)
        if step.number % max(1, steps // plan.checks) == 0 or step.number == steps:
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
    command = f"HEED_DATA=FOLDER python -m bundle.adapters {name} --seed {seed}"
    spent = time.perf_counter() - began
    write_card(out, name, plan.card, told, plan.score, command, seed, hashes, BASE, spent)
    record(name, plan, told[plan.score], folder, command, seed)
    return {"held": best, **told, "seconds": spent, "hashes": hashes}


def record(name: str, plan: Plan, score: float, folder: Path, command: str, seed: int) -> None:
    """The row of the ledger."""
    claim = f"{plan.card.measure} × 100: all-minilm-l6-v2 with LoRA of rank {plan.rank}"
    step = ["python", "-m", "bundle.adapters", name, "--seed", str(seed), "--out", "{work}/model"]
    check = {"steps": [step], "read": "figure", "tolerance": 1.0, "data": list(plan.files)}
    row = ledger.row(
        claim, round(percent(plan, score), 2), command, published=plan.published, source=plan.source,
        seed=seed, data_sha256=ledger.sha256(folder / one for one in plan.files), check=check,
    )  # fmt: skip
    ledger.record(Path(__file__).parents[1] / "results" / f"{name}.json", [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, help="stop so early, to try it")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    plan = PLANS[given.name]
    out = given.out or (PACKAGE / given.name if plan.card.bundled else Path("models") / given.name)
    found = train(given.name, plan, Path(os.environ["HEED_DATA"]), out, given.seed, given.steps)
    print(json.dumps({"figure": round(percent(plan, found[plan.score]), 2), **found}))


if __name__ == "__main__":
    main()
