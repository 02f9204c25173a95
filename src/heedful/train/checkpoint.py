"""Checkpoints of a run: written whole or not at all, and enough to go on exactly.

folder/
  checkpoints/step-001200/    the model in Hugging Face layout, plus
    training.json             step, loss, config, fingerprint of the data
    optimiser.safetensors     moments, under <optimiser>.<parameter>.<name>
    ema.safetensors           the averaged weights, if the run keeps them
    checksums.json            the SHA-256 of each of these files
  checkpoints/step-001200/    of a model that is shared out: all but tensors as above, and
    shards/                   a file from each process with its parts of weights, moments and averages
  last.json, best.json        which one
  run.lock                    the process that trains here, while it does
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError, NotFound, WrongShape
from heedful.core.files import make_folder_atomically, read_json, sha256, write_text
from heedful.core.locks import FileLock
from heedful.models.assembled import has_own_parts
from heedful.models.base import Model
from heedful.models.tensor_parallel import gather_dtensor, gather_weights
from heedful.nn.adapt import adapted_modules
from heedful.train.distributed import Processes, empty_like, load_shards, save_shards, shared_like
from heedful.weights.formats.tensor_files import (
    CHECKSUMS,
    SHARDS,
    SafeFile,
    ShardedFolder,
    TensorSource,
    is_sharded,
    save_tensors,
)
from heedful.weights.loading import load, skeleton
from heedful.weights.names import model_tensors
from heedful.weights.saving import save, save_without_weights

# Settings that a resumed run may change: those that change no step, and its length (fit.extend_schedule).
CHANGEABLE = {
    "folder", "save_every", "save_minutes", "keep", "resume", "compile", "graph",
    "steps", "minutes", "extended",
}  # fmt: skip


def optimiser_tensors(model: nn.Module, optimisers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the optimisers' state by parameter name."""
    names = {id(p): n for n, p in model.named_parameters()}
    out: dict[str, Tensor] = {}
    for i, optimiser in enumerate(optimisers):
        for p, state in optimiser.state.items():
            for key, value in state.items():
                tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                out[f"{i}/{names[id(p)]}/{key}"] = tensor.detach().clone().contiguous()
    return out


def restore_optimisers(
    model: nn.Module, optimisers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Put saved state back under the parameters it belongs to, shared out as they are."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        p, owner, key, counted = find_moment(name, parameters, optimisers)
        owner.state[p][key] = value if counted else shared_like(value, p).to(p.device)


def find_moment(
    name: str, parameters: Mapping[str, Tensor], optimisers: Sequence[Optimizer]
) -> tuple[Tensor, Optimizer, str, bool]:
    """Return the parameter, the optimiser and the key that a saved moment belongs to.

    The last value says whether it counts steps on the host: a fused kernel counts them on the device.
    """
    i, parameter, key = name.split("/")
    if parameter not in parameters:
        raise HeedfulError(
            f"the checkpoint's optimiser knows {parameter!r}, the model does not: is it another?"
        )
    owner = optimisers[int(i)]
    return parameters[parameter], owner, key, key == "step" and not owner.defaults.get("fused")


def write_checkpoint(
    folder: Path, step: int, training: Mapping[str, Any], model: Model,
    state: Mapping[str, Mapping[str, Tensor]], processes: Processes,
) -> Path:  # fmt: skip
    """Write a checkpoint next to the old ones, then make it the last. A full disk costs nothing old.

    `state` has the tensors besides the model's, by kind (optimiser, ema). All processes call this together.
    Process 0 writes whole tensors; of a model that is shared out, each process writes its own parts.
    """
    final = checkpoint_path(folder, step)
    part = final.with_name(final.name + ".part")
    adapted = next(adapted_modules(model), None) is not None  # which lies beside whole weights

    def write_whole() -> None:
        save(model, part)
        for kind, tensors in whole.items():
            save_tensors(tensors, part / f"{kind}.safetensors")

    try:
        with contextlib.ExitStack() as made:
            processes.run_on_first(lambda: made.enter_context(make_folder_atomically(final)))
            sums: dict[str, str] = {}  # of the shards; each process has taken those of its own
            if processes.sharded and not adapted:
                kinds = {"model": model_tensors(model)} | dict(state)
                named = {f"{kind}/{n}": t.detach() for kind, some in kinds.items() for n, t in some.items()}
                sums = save_shards(named, part / SHARDS, processes)
                processes.run_on_first(lambda: save_without_weights(model, part))
            else:
                gather = lambda tensors: {n: gather_dtensor(t).contiguous() for n, t in tensors.items()}
                whole = {kind: gather(tensors) for kind, tensors in state.items()}
                with gather_weights(model):
                    processes.run_on_first(write_whole)
            processes.run_on_first(lambda: seal(part, step, training, sums))
        pointer = json.dumps({"checkpoint": final.name, "step": step})
        processes.run_on_first(lambda: write_text(folder / "last.json", pointer))
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        last = newest(folder)
        hint = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
        reason = getattr(error, "strerror", None) or str(error)
        reason = "no space left on the disk" if "No space left" in reason else reason
        raise HeedfulError(f"could not write {final}: {reason}", hint=hint) from None
    return final


def seal(part: Path, step: int, training: Mapping[str, Any], shards: Mapping[str, str]) -> None:
    """Write training.json, and the checksums of all files; those of the `shards` are known."""
    write_text(part / "training.json", json.dumps({"step": step, **training}, indent=2))
    files = (path for path in part.rglob("*") if path.is_file() and path.parent.name != SHARDS)
    sums = {str(path.relative_to(part)): sha256([path]) for path in files}
    sums |= {f"{SHARDS}/{name}": digest for name, digest in shards.items()}
    write_text(part / CHECKSUMS, json.dumps(sums, indent=2) + "\n")


def verify_checksums(checkpoint: Path, share: tuple[int, int] = (0, 1)) -> None:
    """Raise CorruptFile for the first file of a checkpoint that is not as it was written.

    A checkpoint without checksums was written before there were any. `share` (r, n) looks at every n-th file.
    """
    table = checkpoint / CHECKSUMS
    if not table.is_file():
        return
    names = {p.name for p in checkpoint.iterdir() if p.suffix in (".json", ".safetensors")} - {CHECKSUMS}
    with name_earlier(checkpoint):
        sums = read_json(table)
        if unlisted := sorted(names - sums.keys()):
            raise CorruptFile(f"{table} has no checksum of {unlisted[0]!r:.80}")
        for name, expected in list(sums.items())[share[0] :: share[1]]:
            path = checkpoint / name
            if "\0" in name or not path.is_file():
                raise CorruptFile(f"{table} names {name!r:.80}, which is not there")
            if sha256([path]) != expected:
                raise CorruptFile(f"{path} is damaged: its checksum is not the one in {CHECKSUMS}")


def run_lock(folder: Path) -> FileLock:
    """Return the lock of a run's folder."""
    return FileLock(folder / "run.lock", str(folder), "wait for it to end, or use another folder")


def make_room(folder: Path) -> None:
    """Make the folder of a run before its first step: one that cannot be made would cost all of them."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"`folder={str(folder)!r}` cannot be created ({error.strerror})", hint="name another"
        ) from None


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all whole checkpoints of a run, the oldest first."""
    paths = [p for p in (folder / "checkpoints").glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return sorted(paths, key=lambda p: int(p.name.removeprefix("step-")))


def tidy_checkpoints(folder: Path, keep: int, best: Path | None = None) -> None:
    """Remove all but the newest `keep` checkpoints, the best (perhaps a new one) and the last.

    What a crash left behind goes too.
    """
    if best is not None:
        which = {"checkpoint": best.name, "step": int(best.name.removeprefix("step-"))}
        write_text(folder / "best.json", json.dumps(which))
    stay = {
        read_pointer(folder / "best.json"),
        read_pointer(folder / "last.json"),
        *list_checkpoints(folder)[-keep:],
    }
    for path in (folder / "checkpoints").glob("step-*"):
        if path not in stay:
            shutil.rmtree(path, ignore_errors=True)


def read_pointer(pointer: Path) -> Path | None:
    """Return the checkpoint that a pointer file names, or None if either is missing."""
    if not pointer.is_file():
        return None
    try:
        path = pointer.parent / "checkpoints" / json.loads(pointer.read_text())["checkpoint"]
    except (ValueError, KeyError):
        raise CorruptFile(f"{pointer} is damaged", hint="delete it to use the newest checkpoint") from None
    return path if path.is_dir() else None


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a run, or None."""
    named = read_pointer(folder / "last.json")
    if named is not None:
        return named
    whole = list_checkpoints(folder)
    return whole[-1] if whole else None


def of_run(name: str | Path) -> str | Path:
    """Return the best checkpoint of a run's folder, else its last; return any other name as it is."""
    folder = Path(name)
    if not (folder / "checkpoints").is_dir():
        return name
    return read_pointer(folder / "best.json") or newest(folder) or name


def read_training(checkpoint: Path) -> dict[str, Any]:
    """Return the training.json of a checkpoint: step, loss, config, fingerprint of the data, rate, seconds.

    `lr` is the learning rate of the step and `seconds` the time since the first, as far as they were written.
    """
    path = checkpoint / "training.json"
    with name_earlier(checkpoint):
        try:
            training: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            values = {key: training[key] for key in ("loss", "config", "data")}
            later = {"lr": training.get("lr", 0.0), "seconds": float(training.get("seconds", 0.0))}
            return {"step": int(training["step"]), **values, **later}
        except FileNotFoundError:
            raise NotFound(f"{checkpoint} has no training.json") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(f"{path} is damaged ({error})") from None


def config_values(config: Any) -> dict[str, Any]:
    """Return a config as plain values."""
    plain = lambda v: list(v) if isinstance(v, tuple) else str(v) if isinstance(v, Path) else v
    return {name: plain(value) for name, value in dataclasses.asdict(config).items()}


def check_resumable(path: Path, training: Mapping[str, Any], config: Any, fingerprint: str) -> None:
    """Raise ConfigError if a resumed run would change a value under way, or go on with other data."""
    old, new = training["config"], config_values(config)
    for name in sorted(set(old) | set(new)):
        if old.get(name) != new.get(name) and name not in CHANGEABLE:
            raise ConfigError(
                f"{path} was trained with `{name}={old.get(name)!r}` and would be resumed with "
                f"{new.get(name)!r}",
                hint="set it back, or use a new folder",
            )
    if training["data"] != fingerprint:
        mark = training["data"][:12]
        raise ConfigError(f"{path} was trained on other data (fingerprint {mark}…)", hint="use a new folder")


@contextlib.contextmanager
def name_earlier(checkpoint: Path) -> Iterator[None]:
    """Add to an error about the files of a checkpoint which earlier one is used once it is gone."""
    try:
        yield
    except (CorruptFile, NotFound) as error:
        earlier = [path for path in list_checkpoints(checkpoint.parent.parent) if path != checkpoint]
        way = f"the run goes on from {earlier[-1].name}" if earlier else "the run starts from scratch"
        raise type(error)(error.marked_message, hint=f"remove that folder, and {way}") from None


def read_tensors(checkpoint: Path, kind: str) -> dict[str, Tensor]:
    """Return copies of the tensors of a kind (optimiser, ema): a mapped file would keep its disk space."""
    path, sharded = checkpoint / f"{kind}.safetensors", is_sharded(checkpoint)
    with name_earlier(checkpoint):
        if not sharded and not path.is_file():
            raise NotFound(f"{path} is not there")
        source: TensorSource = ShardedFolder(checkpoint, f"{kind}/") if sharded else SafeFile(path)
        return {name: source.read(name) for name in source.entries}


def load_shared_tensors(
    model: Model, checkpoint: Path, optimisers: Sequence[Optimizer], ema: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read this process's parts of a sharded checkpoint: weights in place; return moments and averages."""
    with_shapes = lambda group: ShardedFolder(checkpoint, group).entries
    with name_earlier(checkpoint):
        moments, averages = with_shapes("optimiser/"), with_shapes("ema/") if ema else {}
        check_same_shapes(skeleton(checkpoint), model, checkpoint)
    own = model_tensors(model)
    into = {f"model/{name}": tensor.detach() for name, tensor in own.items()}
    for name, entry in moments.items():
        parameter, _, _, counted = find_moment(name, own, optimisers)
        like = torch.empty(0) if counted else parameter
        into[f"optimiser/{name}"] = empty_like(entry.shape, entry.dtype, like)
    into |= {f"ema/{n}": empty_like(e.shape, e.dtype, own[n]) for n, e in averages.items()}
    load_shards(into, checkpoint / SHARDS)
    return {n: into[f"optimiser/{n}"] for n in moments}, {n: into[f"ema/{n}"] for n in averages}


def copy_weights(model: Model, checkpoint: Path) -> None:
    """Put the weights of a checkpoint into a model of the same shape, in place, shared out as it is."""
    with name_earlier(checkpoint):
        source = load(checkpoint, into=copy.deepcopy(model) if has_own_parts(model) else None)
    check_same_shapes(source, model, checkpoint)
    ours = model_tensors(model)
    put_values(ours, {name: shared_like(value, ours[name]) for name, value in model_tensors(source).items()})


def check_same_shapes(source: Model, model: Model, checkpoint: Path) -> None:
    """Raise WrongShape if the model of a checkpoint is another one."""
    theirs, ours = model_tensors(source), model_tensors(model)
    shapes = [{name: tuple(t.shape) for name, t in tensors.items()} for tensors in (theirs, ours)]
    if shapes[0] != shapes[1]:
        had, have = vars(source.config), vars(model.config)
        fields = [n for n in model.config.field_names() if n in had and had[n] != have[n]][:3]
        listed = lambda values: ", ".join(f"`{n}={values[n]!r}`" for n in fields)
        odd = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        what = f"{listed(had)}, this one {listed(have)}" if fields else f"another {odd[0]}"
        raise WrongShape(
            f"{checkpoint} holds another model: it has {what}", hint="build the same one, or use a new folder"
        )


@torch.no_grad()
def put_values(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into tensors of the same names."""
    for name, value in values.items():
        into[name].copy_(value)
