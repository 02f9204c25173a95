"""Training on a GPU takes the steps it takes elsewhere: recorded, in float8, over NCCL, resumed, adapted.

    pytest tests/train/test_gpu.py tests/decode/engines/test_gpu.py

HEED_TEST_DEVICE=cpu rehearses on the CPU what does not need the device.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from heedful import data
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.models.tensor_parallel import gather_dtensor
from heedful.nn.state_space.chunked import fast_linear
from heedful.nn.state_space.scan import linear_scan, selective
from heedful.nn.state_space.selective import fast_selective
from heedful.train import speed
from heedful.train.config import TrainConfig
from heedful.train.crossentropy import cross_entropy_reference, linear_cross_entropy
from heedful.train.distributed import DistributedProcesses, Processes
from heedful.train.fit import TrainingRun, fit
from heedful.train.objectives import objective
from heedful.train.speed import GraphedStep
from heedful.weights.adapters import load_adapter, lora, save_adapter
from tests.train import toys

DEVICE = os.environ.get("HEED_TEST_DEVICE", "cuda")
CUDA = torch.cuda.is_available()

# Libraries of the device warn of what they like; only results count here.
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not CUDA, reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore"),
]
Files = dict[str, Path]
Found = tuple[list[float], dict[str, Tensor]]

# With a larger eps a gradient that is rounding alone, as that of a key's bias, moves nothing.
STEADY: dict[str, Any] = {"lr": 3e-3, "warmup": 3, "eps": 1e-4, "schedule": "constant"}


@pytest.fixture
def group() -> Iterator[None]:
    """This process as a group of one, for one test: no step is recorded while NCCL watches the device."""
    backend = "cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(
    model: Model, purpose: str, files: Files, by: Processes | None = None, batch: int = 8, **settings: Any
) -> Found:
    """Losses and weights of a run on the device."""
    model = model.to(DEVICE)
    batches = toys.batches_of(purpose, files, model=model, batch=batch)
    config = TrainConfig(**STEADY | settings)
    losses = [step.loss for step in fit(model, purpose, batches, config, by)]
    by = by or Processes()
    weights = {n: gather_dtensor(p.detach()).clone() for n, p in model.named_parameters()}
    return losses, weights


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert set(a) == set(b)
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_group_of_one_takes_the_plain_steps(kind: str, files: Files, group: None) -> None:
    own = lambda: toys.tiny("llama").double()
    for optimiser in ("adamw", "muon", "adafactor"):
        usual: dict[str, Any] = {"steps": 5, "optimiser": optimiser}
        plain, before = trained(own(), "next_token", files, **usual)
        losses, weights = trained(own(), "next_token", files, DistributedProcesses(kind), **usual)
        assert losses == pytest.approx(plain, rel=1e-3 if optimiser == "muon" else 1e-6)
        # Muon multiplies in bfloat16 on a GPU; the others stay in float64.
        assert furthest(weights, before) < (1e-3 if optimiser == "muon" else 1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama", "transformer"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_equal_plain_ones(family: str, dtype: str, files: Files) -> None:
    """Two of them have dropout: noise follows the seed of the step, recorded or not."""
    purpose = "translate" if family == "transformer" else "next_token"
    found = [
        trained(toys.tiny(family), purpose, files, steps=10, dtype=dtype, graph=graph)
        for graph in (False, True)
    ]
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4 if dtype == "float32" else 2e-2)
    assert furthest(found[0][1], found[1][1]) < (1e-4 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("family", ["transformer", "rnnsearch"])
def test_recorded_steps_of_several_shapes_equal_plain_ones(family: str, files: Files) -> None:
    """Every shape is recorded, all in one memory, and replayed in any order; with dropout."""
    found = []
    for graph in (False, True):
        model = toys.tiny(family, dropout=0.1).to(DEVICE)
        batches = data.parallel(
            [files["source"], files["target"]], toys.WORDS, batch=8, multiple=2, start=model.start_token
        )
        run = TrainingRun(
            model, objective("translate"), batches, TrainConfig(**STEADY | {"graph": graph}), Processes()
        )
        losses = [run.step().loss for _ in range(40)]
        found.append((losses, {n: p.detach().clone() for n, p in model.named_parameters()}))
        if graph and DEVICE == "cuda":
            assert isinstance(run.change, GraphedStep)
            assert run.change.works
            assert len(run.change.recorded) > 2
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-3)
    assert furthest(found[0][1], found[1][1]) < 1e-3


def test_recorded_muon_equals_the_plain_one(files: Files) -> None:
    found = [
        trained(toys.tiny("gpt2"), "next_token", files, steps=10, optimiser="muon", graph=graph)[0]
        for graph in (False, True)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-2)


@pytest.mark.parametrize("purpose", ["next_token", "masked", "translate", "spans"])
def test_losses_are_those_of_the_cpu(purpose: str, files: Files) -> None:
    still = toys.still(purpose)
    here, _ = trained(toys.model_of(purpose, **still), purpose, files, steps=6)
    model = toys.model_of(purpose, **still)
    batches = toys.batches_of(purpose, files, model=model)
    there = [s.loss for s in fit(model, purpose, batches, TrainConfig(**STEADY | {"steps": 6}))]
    assert here == pytest.approx(there, rel=2e-3)


@pytest.mark.skipif(not CUDA or torch.cuda.get_device_capability() < (8, 9), reason="no GPU with float8")
@pytest.mark.parametrize("graph", [False, True])
def test_float8_learns_as_bfloat16_does(graph: bool, files: Files) -> None:
    sizes = {"dim": 64, "heads": 4, "dropout": 0.0}
    runs = [
        trained(
            toys.tiny("gpt2", **sizes), "next_token", files, batch=16, steps=30, dtype="bfloat16",
            float8=float8, graph=graph,
        )[0]
        for float8 in (False, True)
    ]  # fmt: skip
    assert all(map(math.isfinite, runs[1]))
    assert runs[1] == pytest.approx(runs[0], rel=0.05)
    assert runs[1][-1] < 0.8 * runs[1][0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_fused_loss_and_its_gradients_are_near_the_definition(
    smoothing: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(512, 64, device=DEVICE), torch.randn(50_257, 64, device=DEVICE) * 0.1
    labels = torch.randint(0, 50_257, (512,), device=DEVICE)
    labels[::7] = -100
    made = []
    for use in (linear_cross_entropy, cross_entropy_reference):
        # The definition multiplies what the kernel multiplies, rounded as there, in float32.
        kind = dtype if use is linear_cross_entropy else torch.float32
        a, b = (t.to(dtype).to(kind).clone().requires_grad_() for t in (x, w))
        loss = use(a, b, None, labels, smoothing)
        (loss / 439).backward()
        assert a.grad is not None
        assert b.grad is not None
        made.append((loss.detach().float(), a.grad.float(), b.grad.float()))
    off = 1e-4 if dtype == torch.float32 else 2e-2
    for fast, slow in zip(*made, strict=True):
        assert float((fast - slow).norm() / slow.norm()) < off


@pytest.mark.parametrize(
    ("family", "purpose", "settings"),
    [
        ("gpt2", "next_token", {}),
        ("gpt2", "next_token", {"dtype": "bfloat16", "ema": 0.9}),
        ("gpt2", "next_token", {"optimiser": "muon"}),
        ("lstm", "next_token", {}),
        ("transformer", "translate", {"accumulate": 2}),
    ],
    ids=str,
)
def test_a_run_goes_on_exactly(
    family: str, purpose: str, settings: dict[str, Any], files: Files, tmp_path: Path
) -> None:
    usual = settings | {"resume": True}
    _, whole = trained(toys.tiny(family), purpose, files, steps=6, folder=tmp_path / "whole", **usual)
    trained(toys.tiny(family), purpose, files, steps=3, folder=tmp_path / "parts", **usual)
    losses, parts = trained(toys.tiny(family), purpose, files, steps=6, folder=tmp_path / "parts", **usual)
    assert len(losses) == 3
    assert furthest(whole, parts) == 0.0
    ends = [tmp_path / name / "checkpoints" / "step-000006" for name in ("whole", "parts")]
    for name in ("model.safetensors", "optimiser.safetensors"):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes()


def test_a_recorded_run_goes_on(files: Files, tmp_path: Path) -> None:
    own = lambda: toys.tiny("gpt2")
    _, whole = trained(own(), "next_token", files, steps=12, graph=True)
    usual: dict[str, Any] = {"graph": True, "folder": tmp_path / "parts", "resume": True}
    trained(own(), "next_token", files, steps=6, **usual)
    _, parts = trained(own(), "next_token", files, steps=12, **usual)
    assert furthest(whole, parts) < 1e-4


@pytest.mark.skipif(not CUDA, reason="steps are compiled and recorded on a GPU alone")
def test_a_run_goes_on_as_its_checkpoint_was_made_fast(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice is that of the first part, although the second alone would choose otherwise."""
    monkeypatch.setattr(speed, "COMPILE_SECONDS", 0.0)
    usual: dict[str, Any] = {"dtype": "bfloat16", "resume": True, "schedule": "constant", "lr": 1e-3}
    _, whole = trained(toys.tiny("gpt2"), "next_token", files, steps=30, folder=tmp_path / "whole", **usual)
    trained(toys.tiny("gpt2"), "next_token", files, steps=20, folder=tmp_path / "parts", **usual)
    monkeypatch.setattr(speed, "COMPILE_SECONDS", 1e9)
    capsys.readouterr()
    _, parts = trained(toys.tiny("gpt2"), "next_token", files, steps=30, folder=tmp_path / "parts", **usual)
    assert "speed: as in the checkpoint, steps are compiled, recorded\n" in capsys.readouterr().err
    assert furthest(whole, parts) < 1e-4


needs_graphs = pytest.mark.skipif(not CUDA, reason="graphs are recorded on a GPU alone")


@needs_graphs
def test_garbage_of_earlier_runs_does_not_end_a_recording(files: Files) -> None:
    """A run in a cycle of references dies whenever Python collects, and its graphs with it."""
    found = []
    thresholds = gc.get_threshold()
    for graph in (False, True, True):
        batches = toys.batches_of("next_token", files, model=toys.tiny("gpt2"))
        model = toys.tiny("gpt2", dropout=0.1).to(DEVICE)
        config = TrainConfig(**STEADY | {"graph": graph, "dtype": "bfloat16"})
        run = TrainingRun(model, objective("next_token"), batches, config, Processes())
        gc.set_threshold(1)
        losses = [run.step().loss for _ in range(12)]
        gc.set_threshold(*thresholds)
        if graph:
            assert isinstance(run.change, GraphedStep)
            assert run.change.works
        found.append(losses)
        run.myself = run  # type: ignore[attr-defined]
        del run
    assert found[1] == pytest.approx(found[0], rel=2e-2)
    assert found[2] == found[1]


@needs_graphs
def test_after_a_recording_that_failed_this_run_goes_on_and_the_next_is_recorded(files: Files) -> None:
    """With dropout: the generator of random numbers must not stay in the capture that failed."""
    wanted = trained(toys.tiny("gpt2", dropout=0.1), "next_token", files, steps=10)[0]
    model = toys.tiny("gpt2", dropout=0.1)
    look = model.get_submodule("embed").register_forward_hook(
        lambda _, __, out: None if out.sum().item() else out
    )
    with pytest.warns(UserWarning, match="could not be recorded"):
        losses = trained(model, "next_token", files, steps=10, graph=True)[0]
    look.remove()
    assert losses == pytest.approx(wanted, rel=1e-4)
    again = trained(toys.tiny("gpt2", dropout=0.1), "next_token", files, steps=10, graph=True)[0]
    assert again == pytest.approx(wanted, rel=1e-4)
    assert trained(toys.tiny("gpt2", dropout=0.1), "next_token", files, steps=10)[0] == wanted


def test_adapters_learn_on_the_device_and_come_back(files: Files, tmp_path: Path) -> None:
    model, base = toys.tiny("llama").to(DEVICE), toys.tiny("llama").to(DEVICE)
    lora(model, rank=4)
    fixed = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    losses, after = trained(model, "next_token", files, steps=40, lr=1e-2, graph=DEVICE == "cuda")
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(after[n], value) for n, value in fixed.items())
    save_adapter(model, tmp_path)
    tokens = torch.arange(18, device=DEVICE).view(2, 9)
    with torch.no_grad():
        wanted = model.eval()(tokens)
        torch.testing.assert_close(load_adapter(base, tmp_path).to(DEVICE).eval()(tokens), wanted)


@pytest.mark.parametrize(("dtype", "forgets"), [(torch.float32, True), (torch.bfloat16, False)], ids=str)
@pytest.mark.parametrize("length", [1, 40, 64, 150])
def test_the_selective_scan_and_its_gradients_are_the_definition(
    length: int, dtype: torch.dtype, forgets: bool
) -> None:
    """From a state, at lengths that no chunk divides, with channels and states that fill no block."""
    torch.manual_seed(0)
    made = [torch.randn(2, length, 40).to(dtype), torch.rand(2, length, 40), -4 * torch.rand(40, 5)]
    made += [torch.randn(2, length, 5), torch.randn(2, length, 5), torch.randn(2, 40, 5)]
    keep = (torch.rand(2, length) > 0.1).float().to(DEVICE) if forgets else None
    found = []
    for form, wide in ((selective, torch.float64), (fast_selective, None)):
        leaves = [x.to(DEVICE, wide or x.dtype).requires_grad_() for x in made]
        y, last = form(*leaves[:5], keep, leaves[5])
        (y.double().square().sum() + last.double().sin().sum()).backward()
        found.append([y, last, *(x.grad for x in leaves)])
    for slow, fast in zip(*found, strict=True):
        assert fast is not None
        assert slow is not None
        assert float((fast.double() - slow).norm()) <= (1e-5 if dtype == torch.float32 else 1e-2) * float(
            slow.norm()
        )


@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("length", [1, 70, 300])
def test_chunks_of_linear_attention_and_their_gradients_are_the_definition(length: int, decays: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, n, device=DEVICE, dtype=torch.float64) for n in (5, 5, 6))
    log_a = -5 * torch.rand_like(q) if decays else None
    fresh, S = torch.rand(2, length, device=DEVICE) < 0.1, torch.randn(2, 3, 5, 6, device=DEVICE).double()
    found = []
    for form in (linear_scan, fast_linear):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, S, *([] if log_a is None else [log_a]))]
        y, last = form(*leaves[:3], leaves[4] if decays else None, fresh, leaves[3])
        (y.square().sum() + last.sin().sum()).backward()
        found.append([y, last, *(x.grad for x in leaves)])
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)


def some(*families: str, among: Iterable[str]) -> list[Any]:
    """These families, and the others as slow tests."""
    return [n if n in families else pytest.param(n, marks=pytest.mark.slow) for n in sorted(among)]


@pytest.mark.parametrize("family", some("mamba", "gla", "deepseek-v3", among=FAMILIES))
def test_every_family_trains_in_half_precision_recorded(family: str, files: Files) -> None:
    """Then with float8 where there is any: products whose sizes are multiples of 16."""
    purpose, known = FAMILIES[family].objective, FAMILIES[family].tiny.field_names()
    own = lambda: toys.tiny(family, **{f: 0.0 for f in known if "dropout" in f})
    usual: dict[str, Any] = {"batch": 16, "steps": 6}
    plain = trained(own(), purpose, files, **usual)[0]
    float8 = CUDA and torch.cuda.get_device_capability() >= (8, 9)
    for narrow in ({}, {"float8": True}) if float8 else ({},):
        losses = trained(own(), purpose, files, **usual, dtype="bfloat16", graph=True, **narrow)[0]
        assert losses == pytest.approx(plain, rel=0.1)


KINDS = ("mamba", "mamba2", "gla", "olmo-hybrid", "linear", "s4", "lstm", "deepseek-v3")


@pytest.mark.parametrize("family", some("mamba", among=KINDS))
def test_families_of_all_kinds_train_compiled_and_recorded(family: str, files: Files) -> None:
    if DEVICE == "cpu":
        pytest.skip("compiling for a CPU takes minutes; tests/train/test_compile.py does it")
    torch._dynamo.reset()
    own = lambda: toys.tiny(family, **{f: 0.0 for f in FAMILIES[family].tiny.field_names() if "dropout" in f})
    plain = trained(own(), "next_token", files, steps=6)[0]
    fast: dict[str, Any] = {"dtype": "bfloat16", "compile": True, "graph": True}
    assert trained(own(), "next_token", files, steps=6, **fast)[0] == pytest.approx(plain, rel=0.1)
