"""One of several processes of a test: measures how a model that is split differs from one that is whole.

    python -m tests.train.split JOBS.json      RANK and WORLD_SIZE say which one it is

A job is {"name", "family", "count", "files", "out"}: the family's tiny model, split over `count` processes.
With "settings" it is only trained. Process 0 writes what was measured to out/name.json.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh

import heedful
from heedful.decode.continuous import ContinuousBatch, GenerationTask, run_tasks
from heedful.decode.request import make_request
from heedful.decode.settings import GenerationSettings
from heedful.decode.slots import EagerSlots, follow_first
from heedful.models import FAMILIES
from heedful.models.base import LM, Model
from heedful.models.tensor_parallel import gather_dtensor
from heedful.train.config import TrainConfig
from heedful.train.distributed import DistributedProcesses, Processes, processes
from heedful.train.fit import fit
from heedful.weights.names import model_tensors
from tests.train import toys


def make(family: str) -> Model:
    """A tiny model whose heads four processes can share, in evaluation mode and without dropout."""
    tiny = FAMILIES[family].tiny
    changes: dict[str, Any] = {name: 0.0 for name in tiny.field_names() if "dropout" in name}
    if getattr(tiny, "heads", 4) % 4:
        changes |= {"heads": 4, "dim": 16}
    return toys.tiny(family, **changes).eval()


def held(tensor: Tensor) -> int:
    """How many numbers of a tensor this process holds."""
    local: Tensor = tensor.to_local() if isinstance(tensor, torch.distributed.tensor.DTensor) else tensor
    return local.numel()


def furthest(split: nn.Module, whole: nn.Module) -> float:
    """The largest difference between the weights of two models; all processes ask."""
    theirs, ours = model_tensors(split), model_tensors(whole)
    assert theirs.keys() == ours.keys()
    return max(float((gather_dtensor(theirs[n]) - ours[n]).detach().abs().max()) for n in ours)


def measure(family: str, count: int, files: dict[str, Path], folder: Path) -> dict[str, Any]:
    mesh = device_mesh.init_device_mesh(
        "cpu", (dist.get_world_size() // count, count), mesh_dim_names=("copy", "part")
    )
    mesh = mesh["part"]
    whole = make(family)
    if dist.get_rank() == 0:
        heedful.save(whole, folder)
    dist.barrier()
    split = heedful.load(folder, mesh=mesh)
    sizes = [sum(map(count_numbers, model.parameters())) for count_numbers, model in
             ((held, split), (Tensor.numel, whole))]  # fmt: skip
    found: dict[str, Any] = {"loaded": furthest(split, whole), "held": sizes[0] / sizes[1]}
    heedful.save(split, folder.with_name(f"{folder.name}-again"))
    vocab = whole.tables["tokens"].vocab
    ids = torch.randint(0, vocab, (2, 9), generator=torch.Generator().manual_seed(1))
    inputs = (ids,) if isinstance(whole, LM) else (ids, ids[:, :5])
    with torch.no_grad():
        found["logits"] = float((split(*inputs) - whole(*inputs)).abs().max())
    if whole.config.head == "lm" and whole.kind != "encoder":
        prompts = [ids[0].tolist(), ids[1, :4].tolist()]
        found["texts"] = [heedful.generate(model, prompts, max_tokens=6) for model in (split, whole)]
        if count == dist.get_world_size():
            found["served"] = [serve(model, prompts) for model in (split, whole)]
    return found | train(family, count, files)


def serve(model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """What the server's batch writes; a model that is split is led by the first process."""
    slots: Any = EagerSlots(model, 4)  # type: ignore[arg-type]
    texts: list[list[int]] = [[], []]

    def write() -> None:
        request = make_request(model, GenerationSettings(max_tokens=6))
        take = lambda piece: texts[piece.row].append(piece.token)
        run_tasks(ContinuousBatch(slots), [GenerationTask(request, prompts, on_piece=take)])

    if model.mesh is None:
        write()
        return texts
    with follow_first([slots]) as leads:
        if leads:
            write()
    return texts


def train(family: str, count: int, files: dict[str, Path], **settings: Any) -> dict[str, float]:
    """How far apart two training steps by the family's own objective leave the weights, in float64.

    With a folder, also how far a checkpoint that one process opens is from the weights.
    """
    models, purpose, folder = [], FAMILIES[family].objective, settings.pop("folder", None)
    rank = settings.pop("lora", 0)
    kind = "ddp" if count == dist.get_world_size() else "fsdp"
    for by, where in ((DistributedProcesses(kind, count), folder), (Processes(), None)):
        model = make(family).double()
        if rank:
            heedful.lora(model, rank)
        batches = toys.batches_of(purpose, files, model=model, batch=5)
        for _ in fit(model, purpose, batches, TrainConfig(steps=2, lr=1e-3, folder=where, **settings), by):
            pass
        models.append(model)
    found = {"step": furthest(*models)}
    if folder is not None:
        found["checkpoint"] = furthest(models[0], heedful.load(f"{folder}/checkpoints/step-000002"))
    return found


def main(path: str) -> None:
    torch.set_num_threads(1)
    # The groups of a mesh keep threads until the end, so that hundreds of models share the same few meshes.
    device_mesh.init_device_mesh = functools.cache(device_mesh.init_device_mesh)
    with processes():
        for job in json.loads(Path(path).read_text()):
            out, what = Path(job["out"]), (job["family"], job["count"])
            files = {key: Path(value) for key, value in job["files"].items()}
            trained = "settings" in job
            found = (
                train(*what, files, **job["settings"])
                if trained
                else measure(*what, files, out / job["name"])
            )
            if dist.get_rank() == 0:
                (out / f"{job['name']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
