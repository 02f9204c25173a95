"""One of several processes of a test: does the jobs of a file, one after another.

    python -m tests.train.together JOBS.json      RANK and WORLD_SIZE say which one it is

A job is {"name", "family", "purpose", "kind", "double", "settings", "out"}. Process 0 writes losses and
weights to out/name.json and out/name.safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from heedful.models.tensor_parallel import gather_weights
from heedful.train.config import TrainConfig
from heedful.train.distributed import DistributedProcesses, Processes, processes
from heedful.train.fit import fit
from heedful.weights.names import model_tensors
from tests.train import toys


def do(job: dict[str, Any], by: Processes) -> list[float]:
    """One run; its losses."""
    family, purpose = job["family"], job["purpose"]
    known = toys.FAMILIES[family].tiny.field_names()
    model = toys.tiny(family, **{n: 0.0 for n in known if "dropout" in n}, **job.get("model", {}))
    model = model.double() if job["double"] else model
    files = {k: Path(v) for k, v in job["files"].items()}
    batches = toys.batches_of(purpose, files, model=model, batch=job.get("batch", 8))
    config = TrainConfig(**{"steps": 50, "lr": 3e-3, "warmup": 3, "weight_decay": 0.1, **job["settings"]})
    losses, evaluated = [], {}
    for step in fit(model, purpose, batches, config, by):
        losses.append(step.loss)
        if step.number in (config.steps // 2, config.steps):  # training goes on after an evaluation
            evaluated = step.evaluate(batches, 5)
    with gather_weights(model):
        if by.is_first:
            out = Path(job["out"])
            out.mkdir(parents=True, exist_ok=True)
            save_file(
                {n: t.detach().contiguous() for n, t in model_tensors(model).items()},
                out / f"{job['name']}.safetensors",
            )
            told = {"losses": losses, "evaluated": evaluated}
            (out / f"{job['name']}.json").write_text(json.dumps(told))
    return losses


def main(path: str) -> None:
    torch.set_num_threads(1)
    with processes() as by:
        for job in json.loads(Path(path).read_text()):
            do(job, DistributedProcesses(job["kind"]) if isinstance(by, DistributedProcesses) else by)


if __name__ == "__main__":
    main(sys.argv[1])
