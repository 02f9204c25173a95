"""Two and four processes that hold slices of a model compute what one computes with the whole.

The core run starts two processes once, for four families. All families, four processes, and slices that are
sharded once more run under `make test-all`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.core.errors import ConfigError
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.models.tensor_parallel import check_splits, local_range, split_axes
from heedful.weights.formats.tensor_files import SafeFile
from heedful.weights.loading import assemble
from heedful.weights.names import Slices, fill_model
from tests.refusal import refused
from tests.train import toys
from tests.train.split import make
from tests.train.test_distributed import launch, once


def marks(is_quick: bool) -> Any:
    return () if is_quick else pytest.mark.slow


# Attention; fewer key heads than processes; a shared bias and cross-attention; latents and experts.
QUICK = ("llama", "palm", "t5", "deepseek-v2")
RECURRENT = ("rnn", "lstm", "gru", "seq2seq", "rnnsearch", "luong", "bilstm")
REFUSED = (*RECURRENT, "s4", "mamba", "mamba2", "falcon-mamba", "rwkv")
# Keys that are normalised together cannot be fewer than the processes.
ONLY_TWO = ("olmo2", "olmo3", "olmoe", "olmo-hybrid")
SPLIT = [name for name in FAMILIES if name not in REFUSED]
CASES = [
    pytest.param(name, count, marks=marks(name in QUICK and count == 2), id=f"{name}-{count}")
    for name in SPLIT
    for count in (2, 4)
    if count == 2 or name not in ONLY_TWO
]
# Convolutions, retention, pairs of heads and the delta rule stay whole, so that less than half is split.
# Keys stay whole where four processes share two heads of them, which are wide here.
KEPT = {
    "olmo-hybrid": 0.6,
    "qwen35": 0.6,
    "qwen3next": 0.6,
    "cnn": 0.75,
    "retnet": 0.9,
    "diffllama": 0.65,
    "cwm": 0.6,
    "ernie4-5": 0.6,
}

# Runs of tiny models with other settings: the name, the family, the processes, the settings.
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sharded twice": ("gpt2", 2, {"ema": 0.9, "accumulate": 2, "checkpointing": True, "folder": "twice"}),
    "one copy": ("gpt2", 2, {"ema": 0.9, "folder": "once"}),
    "muon": ("gpt2", 2, {"optimiser": "muon"}),
    "adafactor": ("llama", 2, {"optimiser": "adafactor"}),
    "adapter": ("llama", 2, {"lora": 2}),
}
FOUR = "sharded twice"  # the run that needs four processes: two copies of two slices
Measured = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Measured:
    """What the processes measured: two in the core run, four for all that is slow."""

    def of(name: str, count: int = 0) -> dict[str, Any]:
        quick = name != FOUR and (name in RUNS or (name in QUICK and count == 2))
        with once(tmp_path_factory, f"split-{quick}") as (where, is_new):
            if is_new:
                cases = [p.values for p in CASES if (p.marks == ()) == quick]
                jobs: list[dict[str, Any]] = [{"name": f"{f}-{n}", "family": f, "count": n} for f, n in cases]
                for run, (family, processes, settings) in RUNS.items():
                    own = {"folder": str(where / settings["folder"])} if "folder" in settings else {}
                    if (run != FOUR) == quick:
                        one = {"name": run, "family": family, "count": processes, "settings": settings | own}
                        jobs.append(one)
                texts = {k: str(v) for k, v in files.items()}
                jobs = [job | {"files": texts, "out": str(where)} for job in jobs]
                launch(jobs, where, world=2 if quick else 4, module="tests.train.split")
        results = (where / f"{name}-{count}.json" if count else where / f"{name}.json").read_text()
        return dict(json.loads(results)) | {"out": where}

    return of


@pytest.mark.parametrize(("name", "count"), CASES)
def test_processes_that_share_a_model_equal_one(name: str, count: int, measured: Measured) -> None:
    found = measured(name, count)
    assert found["loaded"] == 0.0
    assert found["logits"] < 1e-5
    assert found["step"] < 1e-10
    for kind in ("texts", "served"):
        if kind in found:
            assert found[kind][0] == found[kind][1]


@pytest.mark.parametrize("run", [pytest.param(run, marks=marks(run != FOUR)) for run in RUNS])
def test_other_settings_of_training_do_the_same_in_slices(run: str, measured: Measured) -> None:
    found = measured(run)
    assert found["step"] < 1e-10
    assert found.get("checkpoint", 0.0) == 0.0  # shards are put together by one process


@pytest.mark.parametrize(("name", "count"), CASES)
def test_a_process_holds_its_share_of_the_weights(name: str, count: int, measured: Measured) -> None:
    assert measured(name, count)["held"] < (KEPT.get(name, 0.6) if count == 2 else KEPT.get(name, 0.4))


@pytest.mark.parametrize(("name", "count"), CASES)
def test_a_model_that_is_split_is_saved_as_a_normal_folder(name: str, count: int, measured: Measured) -> None:
    folder = measured(name, count)["out"] / f"{name}-{count}"
    again = folder.with_name(f"{folder.name}-again")
    one, two = (load_file(where / "model.safetensors") for where in (folder, again))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert (folder / "config.json").read_text() == (again / "config.json").read_text()


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_without_attention_or_feed_forward_parts_is_refused(name: str) -> None:
    with torch.device("meta"), refused(ConfigError, name, hint="one process"):
        check_splits(assemble(FAMILIES[name], FAMILIES[name].tiny), 2)


def test_heads_that_cannot_be_shared_are_refused_with_the_numbers_that_can() -> None:
    with refused(ConfigError, "3 processes", "4 heads with 2 of keys", hint="use 1, 2 or 4 processes"):
        check_splits(toys.tiny("llama"), 3)
    with refused(ConfigError, "2 key heads", "4 processes", hint="at most 2"):
        check_splits(toys.tiny("olmo2"), 4)


def test_a_quantized_model_is_refused() -> None:
    with refused(ConfigError, "quantized", hint="one process"):
        check_splits(heedful.quantize(toys.tiny("llama"), "int8"), 2)


class Counting(SafeFile):
    """A file that counts the numbers read whole."""

    whole = 0

    def read(self, name: str) -> torch.Tensor:
        self.whole += torch.Size(self.entries[name].shape).numel()
        return super().read(name)


def load_part(whole: Model, folder: Path, count: int) -> tuple[Model, Slices, Counting]:
    """What the last of `count` processes loads of a saved model, which tensors are slices, and the file."""
    file = Counting(folder / "model.safetensors")
    with torch.device("meta"):
        model = assemble(whole.family, whole.config)
    slices: dict[str, tuple[int, int, int]] = {}
    for tensor, axis in split_axes(model, count).items():
        slices[tensor] = (axis, *local_range(model.get_parameter(tensor).shape[axis], count, count - 1))
    family, rows = whole.family, whole.family.rows(whole.config)
    drop = family.drop(whole.config) if callable(family.drop) else family.drop
    fill_model(model, file, rows, prefix=family.prefix, copies=family.copies, drop=drop, slices=slices)
    model.tie()
    return model, slices, file


@pytest.mark.parametrize("name", SPLIT)
def test_a_process_loads_its_slices_of_every_tensor(name: str, tmp_path: Path) -> None:
    whole = make(name)
    heedful.save(whole, tmp_path)
    for count in (2,) if name in ONLY_TWO else (2, 4):
        model, slices, _ = load_part(whole, tmp_path, count)
        for tensor, part in model.named_parameters():
            axis, start, end = slices.get(tensor, (0, 0, len(part)))
            assert torch.equal(part, whole.get_parameter(tensor).narrow(axis, start, end - start)), tensor


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_process_reads_only_small_tensors_whole(name: str, tmp_path: Path) -> None:
    heedful.save(toys.tiny(name), tmp_path)
    model, slices, file = load_part(toys.tiny(name), tmp_path, 2)
    assert file.whole == sum(p.numel() for tensor, p in model.named_parameters() if tensor not in slices)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())  # no mapped file is left
