"""Two processes take the steps that one would, go on exactly, and hand over to another number of them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from heedful.cli import app
from heedful.core.errors import CorruptFile, NotFound
from heedful.train.checkpoint import verify_checksums
from heedful.train.distributed import Processes
from heedful.train.stopping import ema_model
from heedful.weights.loading import load
from heedful.weights.names import model_tensors
from tests.refusal import refused
from tests.train import together

ROOT = Path(__file__).parents[2]
KINDS = ("ddp", "fsdp")
Job = dict[str, Any]


def job(name: str, family: str = "gpt2", purpose: str = "next_token", **more: Any) -> Job:
    return {"name": name, "family": family, "purpose": purpose, "double": True, "settings": {}, **more}


# Odd rows fall unevenly on two processes; of a batch of one row, one process has nothing at all.
EQUAL = [
    job("single", double=False, settings={"steps": 4}),
    job("translate", "transformer", "translate", batch=7, settings={"steps": 4, "accumulate": 3}),
    job("experts", "deepseek-v2", batch=5, settings={"steps": 4}),
    job("two terms", "bert", "masked_and_next", batch=7, settings={"steps": 4}),
    job("one row", batch=1, settings={"steps": 4}),
    job("muon", settings={"steps": 4, "optimiser": "muon"}),
    # Without biases: that of keys has no gradient but rounding, which Adafactor makes as large as any other.
    job("adafactor", "llama", settings={"steps": 4, "optimiser": "adafactor"}),
]


def kinds(one: Job) -> tuple[str, ...]:
    """Copies of a model take the optimiser's step as one process does; shards are put together for it."""
    return ("fsdp",) if "optimiser" in one["settings"] else KINDS


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def launch(jobs: list[Job], where: Path, world: int = 2, module: str = "tests.train.together") -> None:
    """Several processes do all jobs, one after another."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", module, str(where / "jobs.json")]
    shared = os.environ | {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port()),
        "OMP_NUM_THREADS": "1",
    }
    all_of_them = [subprocess.Popen(command, cwd=ROOT, env=shared | {"RANK": str(r)}) for r in range(world)]
    assert [p.wait(3600) for p in all_of_them] == [0] * world


@contextmanager
def once(folders: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that all workers share, locked, and whether nobody has filled it yet."""
    base = folders.getbasetemp()
    where = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    where.mkdir(exist_ok=True)
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield where, not (where / "done").is_file()
        (where / "done").touch()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Callable[[str], Path]:
    """Where the results of a job are, run by two processes: once, whichever worker comes first."""
    with once(tmp_path_factory, "two") as (where, is_new):
        if is_new:
            launch(all_jobs(where, {k: str(v) for k, v in files.items()}), where)
    return lambda name: where / name


def all_jobs(where: Path, files: dict[str, str]) -> list[Job]:
    steady = {"schedule": "constant", "ema": 0.9}
    parts = (("whole", "whole", 6), ("begun", "parts", 3), ("parts", "parts", 6), ("left", "left", 3))
    jobs: list[Job] = []
    for kind in KINDS:
        jobs += [one | {"name": f"{kind} {one['name']}", "kind": kind} for one in EQUAL if kind in kinds(one)]
        for name, folder, steps in parts:
            settings = steady | {"steps": steps, "folder": str(where / kind / folder), "resume": True}
            jobs.append(job(f"{kind} {name}", kind=kind, settings=settings))
        for optimiser in ("muon", "adafactor") if kind == "fsdp" else ():
            for name, steps in (("begun", 3), ("ended", 6), ("straight", 6)):
                folder = str(where / kind / optimiser / ("straight" if name == "straight" else "parts"))
                settings = {"schedule": "constant", "steps": steps, "folder": folder, "resume": True}
                jobs.append(
                    job(f"{kind} {optimiser} {name}", kind=kind, settings=settings | {"optimiser": optimiser})
                )
        settings = steady | {"folder": str(where / kind / "taken over"), "resume": True}
        alone = job(f"{kind} alone", settings=settings | {"steps": 3}, files=files, out=str(where))
        together.do(alone, Processes())
        jobs.append(job(f"{kind} taken over", kind=kind, settings=settings | {"steps": 6}))
    return [one | {"files": files, "out": str(where)} for one in jobs]


def alone(one: Job, files: dict[str, Path], out: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same job, by this process."""
    together.do(one | {"files": {k: str(v) for k, v in files.items()}, "out": str(out)}, Processes())
    return results(out / one["name"])


def results(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads(path.with_suffix(".json").read_text()), load_file(path.with_suffix(".safetensors"))


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert set(a) == set(b)
    return max(float((a[n].detach().double() - b[n].detach().double()).abs().max()) for n in a)


@pytest.mark.parametrize("one", EQUAL, ids=lambda j: j["name"])
def test_two_processes_equal_one(
    one: Job, ran: Callable[[str], Path], files: dict[str, Path], tmp_path: Path
) -> None:
    told, weights = alone(one, files, tmp_path)
    for kind in kinds(one):
        theirs, shared = results(ran(f"{kind} {one['name']}"))
        assert len(theirs["losses"]) == len(told["losses"]) == one["settings"].get("steps", 50)
        assert theirs["losses"] == pytest.approx(told["losses"], abs=1e-5)
        assert theirs["evaluated"] == pytest.approx(told["evaluated"], rel=1e-5)
        if one["double"]:
            assert furthest(shared, weights) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_exactly(kind: str, ran: Callable[[str], Path]) -> None:
    assert furthest(results(ran(f"{kind} whole"))[1], results(ran(f"{kind} parts"))[1]) == 0.0
    one, two = (ran(kind) / folder / "checkpoints" / "step-000006" for folder in ("whole", "parts"))
    check_same_bytes(one, two, FILES[kind])


FILES = {
    "ddp": {"model.safetensors", "optimiser.safetensors", "ema.safetensors"},
    "fsdp": {f"shards/shard-{i:05d}-model-00001-of-00001.safetensors" for i in (1, 2)},
}


def check_same_bytes(one: Path, two: Path, names: set[str]) -> None:
    found = {str(path.relative_to(one)) for path in one.rglob("*.safetensors")}
    assert found == names
    for name in names:
        if name.startswith("shards/"):  # the order of what a header says besides is not fixed
            assert furthest(load_file(one / name), load_file(two / name)) == 0.0
        else:
            assert (one / name).read_bytes() == (two / name).read_bytes(), name


@pytest.mark.parametrize("optimiser", ["muon", "adafactor"])
def test_shards_of_any_optimiser_go_on_exactly(optimiser: str, ran: Callable[[str], Path]) -> None:
    one, two = (ran("fsdp") / optimiser / f / "checkpoints" / "step-000006" for f in ("straight", "parts"))
    check_same_bytes(one, two, FILES["fsdp"])


@pytest.mark.parametrize("kind", KINDS)
def test_two_go_on_with_what_one_began(
    kind: str, ran: Callable[[str], Path], files: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"schedule": "constant", "ema": 0.9, "steps": 6}
    _, weights = alone(job("straight", settings=settings), files, tmp_path)
    assert furthest(results(ran(f"{kind} taken over"))[1], weights) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_one_goes_on_with_what_two_began(
    kind: str, ran: Callable[[str], Path], files: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"schedule": "constant", "ema": 0.9, "steps": 6}
    _, weights = alone(job("straight", settings=settings), files, tmp_path)
    folder = shutil.copytree(ran(kind) / "left", tmp_path / "left")
    again = settings | {"folder": str(folder), "resume": True}
    _, resumed = alone(job("resumed", settings=again), files, tmp_path)
    assert furthest(resumed, weights) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_two_is_a_model_like_any_other(kind: str, ran: Callable[[str], Path]) -> None:
    where = ran(kind) / "whole" / "checkpoints" / "step-000006"
    model = load(where)
    assert furthest(dict(model_tensors(model)), results(ran(f"{kind} whole"))[1]) == 0.0
    averaged = dict(model_tensors(ema_model(where)))
    assert 0.0 < furthest(averaged, dict(model_tensors(model))) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_two_is_exported_as_one_published_folder(
    kind: str, ran: Callable[[str], Path], tmp_path: Path
) -> None:
    done = CliRunner().invoke(
        app, ["export", str(ran(kind) / "whole"), str(tmp_path / "out"), "--format", "hf"]
    )
    assert done.exit_code == 0, done.output
    assert "sharding" not in json.loads((tmp_path / "out" / "config.json").read_text())
    published = load_file(tmp_path / "out" / "model.safetensors")
    assert "transformer.h.0.attn.c_attn.weight" in published
    assert furthest(dict(model_tensors(load(tmp_path / "out"))), results(ran(f"{kind} whole"))[1]) == 0.0


@pytest.mark.slow  # three further processes
def test_three_go_on_with_the_shards_of_two(
    ran: Callable[[str], Path], files: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"schedule": "constant", "ema": 0.9, "steps": 6}
    _, weights = alone(job("straight", settings=settings), files, tmp_path)
    folder = shutil.copytree(ran("fsdp") / "left", tmp_path / "left")
    again = settings | {"folder": str(folder), "resume": True}
    told = {"files": {k: str(v) for k, v in files.items()}, "out": str(tmp_path)}
    launch([job("three", kind="fsdp", settings=again) | told], tmp_path, world=3)
    assert furthest(results(tmp_path / "three")[1], weights) < 1e-10
    shards = sorted((folder / "checkpoints" / "step-000006" / "shards").iterdir())
    assert len(shards) == 3
    averaged = dict(model_tensors(ema_model(folder / "checkpoints" / "step-000006")))
    assert 0.0 < furthest(averaged, weights) < 0.1


def test_a_damaged_or_missing_shard_is_one_clear_error(ran: Callable[[str], Path], tmp_path: Path) -> None:
    where = shutil.copytree(
        ran("fsdp") / "whole" / "checkpoints" / "step-000006", tmp_path / "c" / "step-000006"
    )
    first, second = sorted((where / "shards").iterdir())
    whole = second.read_bytes()
    second.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refused(CorruptFile, second.name, "checksum"):
        verify_checksums(where)
    second.unlink()
    with refused(NotFound, second.name, hint="another checkpoint"):
        load(where)
    (where / "checksums.json").unlink()
    second.write_bytes(whole)
    first.unlink()
    with refused(CorruptFile, "the parts of", hint="a shard is missing"):
        load(where)
    second.unlink()
    with refused(NotFound, "holds no shards"):
        load(where)
