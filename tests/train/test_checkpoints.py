"""Checkpoints are written whole or not at all, and a run that cannot go on says why in one line."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError, InputError, WrongShape
from heedful.data import Batches
from heedful.models.base import Model
from heedful.train import checkpoint as store
from heedful.train import fit as fitting
from heedful.train.config import TrainConfig
from heedful.train.fit import DivergedError, Step, fit
from heedful.train.objectives import next_token
from heedful.weights.loading import load
from tests.train import toys

Files = dict[str, Path]


def steps(
    folder: Path, files: Files, model: Model | None = None, batches: Batches | None = None,
    report: Callable[[str], object] = print, **changes: Any,
) -> Iterator[Step]:  # fmt: skip
    settings = {"steps": 4, "lr": 1e-3, "folder": folder, "save_every": 1, "schedule": "constant", **changes}
    data = batches or toys.batches_of("next_token", files)
    return fit(model or toys.tiny("gpt2"), "next_token", data, TrainConfig(**settings), report=report)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def run(folder: Path, files: Files, **changes: Any) -> list[Step]:
    return list(steps(folder, files, **changes))


def test_a_checkpoint_is_a_model_anybody_can_load(tmp_path: Path, files: Files) -> None:
    model = toys.tiny("gpt2")
    run(tmp_path, files, model=model)
    loaded = load(tmp_path / "checkpoints" / "step-000004")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), loaded.parameters(), strict=True))
    files_there = {p.name for p in (tmp_path / "checkpoints" / "step-000004").iterdir()}
    assert {"config.json", "model.safetensors", "optimiser.safetensors", "training.json"} <= files_there
    assert not any(name.endswith((".pt", ".bin", ".pkl")) for name in files_there)


def test_the_newest_and_the_best_stay(tmp_path: Path, files: Files) -> None:
    for step in steps(tmp_path, files, steps=6, keep=2):
        if step.number == 2:
            step.save(best=True)
    assert names(tmp_path) == ["step-000002", "step-000005", "step-000006"]
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 2
    assert store.newest(tmp_path) == tmp_path / "checkpoints" / "step-000006"


def test_checkpoints_are_sorted_by_number_not_by_letters(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 2):
        store.checkpoint_path(tmp_path, step).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000003.part").mkdir()
    assert [p.name for p in store.list_checkpoints(tmp_path)] == [
        "step-000002",
        "step-999999",
        "step-1000000",
    ]


CRASHES = [f"heedful.train.checkpoint.{name}" for name in ("optimiser_tensors", "write_text", "save_tensors")]
CRASHES += ["heedful.core.files.sync", "shutil.rmtree"]


@pytest.mark.parametrize("where", CRASHES)
def test_a_crash_between_files_leaves_the_old_checkpoint_usable(
    where: str, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    wanted = toys.tiny("gpt2")
    run(whole, files, model=wanted)
    with monkeypatch.context() as patch:
        taken = steps(tmp_path / "crash", files)
        next(taken), next(taken)  # step 1 is written, step 2 taken
        patch.setattr(where, crash)
        with pytest.raises(KeyboardInterrupt):
            next(taken)
        taken.close()  # type: ignore[attr-defined]
    last = store.newest(tmp_path / "crash")
    assert last is not None
    assert last.name in ("step-000001", "step-000002")
    model = toys.tiny("gpt2", seed=9)
    run(tmp_path / "crash", files, model=model, resume=True)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), wanted.parameters(), strict=True))
    assert not any(name.endswith((".part", ".old")) for name in names(tmp_path / "crash"))


def crash(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt  # as sudden as a signal: nothing tidies up


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_keeps_the_old_checkpoint_and_says_so(small_disk: Path, files: Files) -> None:
    taken = steps(small_disk, files)
    next(taken), next(taken)
    kept = small_disk / "checkpoints" / "step-000001"
    before = (kept / "model.safetensors").read_bytes()
    room = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"x" * (room - 30_000))
    with pytest.raises(HeedfulError) as caught:
        next(taken)
    text = str(caught.value)
    assert "no space left on the disk" in text
    assert f"the last good checkpoint is {kept}" in text
    assert "\n" not in text
    assert names(small_disk) == ["step-000001"]
    assert (kept / "model.safetensors").read_bytes() == before
    load(kept)
    (small_disk / "filler").unlink()
    assert [step.number for step in steps(small_disk, files, resume=True, keep=1)] == [2, 3, 4]


CHANGES = [
    ("lr", 1e-2), ("seed", 5), ("optimiser", "muon"), ("weight_decay", 0.0), ("schedule", "linear"),
    ("ema", 0.9),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), CHANGES, ids=lambda v: str(v))
def test_going_on_with_another_config_names_the_field(
    field: str, value: Any, tmp_path: Path, files: Files
) -> None:
    run(tmp_path, files, steps=1)
    with pytest.raises(ConfigError, match=f"was trained with {field}=") as caught:
        run(tmp_path, files, resume=True, **{field: value})
    assert repr(value) in str(caught.value)


def test_a_run_that_has_ended_can_be_extended_and_its_rate_rises_again(tmp_path: Path, files: Files) -> None:
    ended = run(tmp_path, files, steps=4, schedule="cosine", warmup=2)[-1].lr
    lines: list[str] = []
    more = {"steps": 14, "schedule": "cosine", "warmup": 2, "resume": True}
    rates = {s.number: s.lr for s in steps(tmp_path, files, report=lines.append, **more)}
    assert lines == [
        "the run is extended from 4 steps to 14 steps; its learning rate rises from 0.00055 to 0.001 and "
        "falls until the end"
    ]
    assert ended < rates[5] < rates[6] == 1e-3
    assert rates[14] < rates[13] < 1e-3


def test_an_extended_run_resumes_on_its_new_schedule(tmp_path: Path, files: Files) -> None:
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    settings = {"schedule": "linear", "warmup": 2}
    for folder in (whole, parts):
        run(folder, files, steps=4, **settings)
    wanted = {s.number: (s.lr, s.loss) for s in steps(whole, files, steps=10, resume=True, **settings)}
    for step in steps(parts, files, steps=10, resume=True, **settings):
        if step.number == 6:
            step.save()
            break
    found = {s.number: (s.lr, s.loss) for s in steps(parts, files, steps=10, resume=True, **settings)}
    assert found == {n: pair for n, pair in wanted.items() if n > 6}


def test_a_rate_that_does_not_depend_on_the_length_goes_on(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=2)
    assert [s.number for s in run(tmp_path, files, steps=4, resume=True)] == [3, 4]
    assert {s.lr for s in run(tmp_path, files, steps=6, resume=True)} == {1e-3}


def test_a_flat_schedule_is_extended_before_it_falls(tmp_path: Path, files: Files) -> None:
    for step in steps(tmp_path, files, steps=10, schedule="wsd", decay=2):
        if step.number == 4:
            break
    rates = [s.lr for s in run(tmp_path, files, steps=12, schedule="wsd", decay=2, resume=True)]
    assert rates[:6] == [1e-3] * 6
    assert rates[-1] < 1e-3


def test_a_run_cannot_end_before_where_it_is(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=4)
    with pytest.raises(ConfigError, match="already trained for 4 steps and cannot end after 2 steps"):
        run(tmp_path, files, steps=2, resume=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by two seconds whenever it is read."""
    ticks = itertools.count(step=2.0)
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: next(ticks))


def test_a_run_of_minutes_ends_with_its_time_and_so_does_its_schedule(
    tmp_path: Path, files: Files, clock: None
) -> None:
    found = run(tmp_path, files, minutes=1, schedule="linear", final=0.0, warmup=100, save_every=None)
    assert 5 < len(found) < 20
    assert [s.last for s in found] == [False] * (len(found) - 1) + [True]
    rates = [s.lr for s in found]
    peak = rates.index(max(rates))
    assert 0 < peak < len(found) / 2  # the warm-up ends after a tenth of the time
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.25 * max(rates)


def test_a_resumed_run_of_minutes_has_the_rest_of_its_time(tmp_path: Path, files: Files, clock: None) -> None:
    whole = len(run(tmp_path / "whole", files, minutes=2))
    for step in steps(tmp_path / "parts", files, minutes=2):
        if step.number == 6:
            break
    rest = run(tmp_path / "parts", files, minutes=2, resume=True)
    assert rest[0].number == 6  # the checkpoint of step 5 is the last that was written
    assert abs(rest[-1].number - whole) <= 2
    with pytest.raises(ConfigError, match="minutes and cannot end after 1 minutes"):
        run(tmp_path / "parts", files, minutes=1, resume=True)


def test_checkpoints_are_written_by_the_clock(tmp_path: Path, files: Files, clock: None) -> None:
    settings = {"steps": 12, "save_every": None, "save_minutes": 0.25, "keep": 99}
    run(tmp_path, files, **settings)
    assert 2 < len(names(tmp_path)) < 10
    run(tmp_path / "end", files, **{**settings, "save_minutes": None})
    assert names(tmp_path / "end") == ["step-000012"]


def test_other_data_is_refused(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=1)
    other = toys.batches_of("next_token", files, batch=4)
    with pytest.raises(ConfigError, match="was trained on other data"):
        run(tmp_path, files, batches=other, resume=True)


def test_another_vocabulary_is_named(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=1)
    with pytest.raises(WrongShape, match="it has vocab=128, this one vocab=96"):
        run(tmp_path, files, model=toys.tiny("gpt2", vocab=96), resume=True)


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=1)
    with pytest.raises(ConfigError, match="holds a run already"):
        run(tmp_path, files)


def test_resuming_where_nothing_is_starts_at_the_beginning(tmp_path: Path, files: Files) -> None:
    assert next(steps(tmp_path, files, resume=True)).number == 1


def test_a_finished_run_has_nothing_more_to_do(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files)
    assert run(tmp_path, files, resume=True) == []


@pytest.mark.parametrize("file", ["training.json", "optimiser.safetensors", "model.safetensors"])
def test_a_damaged_file_is_named_and_so_is_the_checkpoint_before(
    file: str, tmp_path: Path, files: Files
) -> None:
    run(tmp_path, files, steps=2)
    newest = tmp_path / "checkpoints" / "step-000002"
    (newest / file).write_text("{")
    with pytest.raises(CorruptFile, match=rf"{file}.*; remove that folder, and .* from step-000001"):
        run(tmp_path, files, steps=3, resume=True)
    shutil.rmtree(newest)
    assert len(run(tmp_path, files, steps=3, resume=True)) == 2


def test_a_folder_that_cannot_be_made_is_said_before_the_first_step(tmp_path: Path, files: Files) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="taken' cannot be created"):
        next(steps(tmp_path / "taken", files))


def test_an_evaluation_of_nothing_is_refused(tmp_path: Path, files: Files) -> None:
    step = next(steps(tmp_path, files))
    with pytest.raises(InputError, match="max_batches=0"):
        step.evaluate(toys.batches_of("next_token", files), max_batches=0)


def breaking(at: int, kind: str) -> Any:
    """An objective whose loss, or only whose gradient, is no number from some step on."""
    taken = 0

    def purpose(model: Model, batch: Any) -> Any:
        nonlocal taken
        taken += 1
        ((name, term),) = next_token(model, batch).items()
        if taken < at:
            return {name: term}
        bad = term.total * float("nan") if kind == "loss" else SpoiledGradient.apply(term.total)
        return {name: type(term)(bad)}

    return purpose


class SpoiledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, up: torch.Tensor) -> torch.Tensor:
        return up * float("inf")


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_run_that_diverges_stops_and_names_the_last_good_checkpoint(
    kind: str, tmp_path: Path, files: Files
) -> None:
    config = TrainConfig(steps=9, folder=tmp_path, save_every=1)
    batches = toys.batches_of("next_token", files)
    with pytest.raises(DivergedError) as caught:
        list(fit(toys.tiny("gpt2"), breaking(4, kind), batches, config))
    good = tmp_path / "checkpoints" / "step-000003"
    assert str(good) in str(caught.value)
    assert "step 4" in str(caught.value)
    assert caught.value.exit_code == 5
    assert store.newest(tmp_path) == good
    assert all(p.isfinite().all() for p in load(good).parameters())


def test_a_run_without_a_folder_that_diverges_says_that_nothing_was_kept(files: Files) -> None:
    batches = toys.batches_of("next_token", files)
    with pytest.raises(DivergedError, match="no checkpoint was written yet"):
        list(fit(toys.tiny("gpt2"), breaking(2, "loss"), batches, TrainConfig(steps=5)))


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path, files: Files) -> None:
    model = toys.tiny("gpt2")
    for step in steps(tmp_path, files, model=model, save_every=None):
        if step.number == 2:
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("inf")
            with pytest.raises(DivergedError, match="a weight is not a number"):
                step.save()
            break
    assert store.newest(tmp_path) is None


def test_a_step_that_is_past_cannot_be_saved(tmp_path: Path, files: Files) -> None:
    taken = steps(tmp_path, files)
    first = next(taken)
    next(taken)
    with pytest.raises(HeedfulError, match="step 1 is over"):
        first.save()


def test_without_a_folder_nothing_is_saved(files: Files) -> None:
    batches = toys.batches_of("next_token", files)
    step = next(fit(toys.tiny("gpt2"), "next_token", batches, TrainConfig(steps=1)))
    with pytest.raises(ConfigError, match="no folder"):
        step.save()


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimiser.safetensors", "config.json", "training.json", "checksums.json"]
)
def test_a_flipped_bit_is_named_when_the_run_goes_on(name: str, tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=2)
    path = tmp_path / "checkpoints" / "step-000002" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        CorruptFile, match=f"{name}.*remove that folder, and the run goes on from step-000001"
    ):
        run(tmp_path, files, steps=2, resume=True)


def test_a_checkpoint_without_checksums_is_gone_on_with(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=2)
    (tmp_path / "checkpoints" / "step-000002" / "checksums.json").unlink()
    assert [step.number for step in run(tmp_path, files, steps=3, resume=True)] == [3]


def test_a_file_that_lost_its_checksum_is_named(tmp_path: Path, files: Files) -> None:
    run(tmp_path, files, steps=1)
    table = tmp_path / "checkpoints" / "step-000001" / "checksums.json"
    sums = json.loads(table.read_text())
    del sums["model.safetensors"]
    table.write_text(json.dumps(sums))
    with pytest.raises(CorruptFile, match="no checksum of 'model.safetensors'"):
        run(tmp_path, files, steps=2, resume=True)


def test_a_second_run_in_a_folder_is_refused_before_anything_is_written(tmp_path: Path, files: Files) -> None:
    code = (
        "import sys; from pathlib import Path; from heedful.core.locks import FileLock\n"
        "FileLock(Path(sys.argv[1]), '', '').acquire(); print('held', flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run.lock")], **pipes)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"is in use by process {other.pid}; wait for it"):
            run(tmp_path, files)
        assert {p.name for p in tmp_path.rglob("*")} == {"checkpoints", "run.lock"}
    finally:
        other.communicate()
    assert len(run(tmp_path, files)) == 4
    assert not (tmp_path / "run.lock").exists()
