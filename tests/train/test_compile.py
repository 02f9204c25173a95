"""Every family trains in bfloat16 and compiled, and no compiler unrolls a loop over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from heedful.data.batch import Batch
from heedful.models import FAMILIES
from heedful.nn.context import Context, Mask, Part
from heedful.nn.recurrent import LSTM, GatedUnit
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.linear_attention import GatedLinearAttention, LinearAttention, elu_features
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import LossModule, counts, objective
from tests.train import toys

Files = dict[str, Path]

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


class Replay(fx.Interpreter):
    """A traced graph, run as it is; a view may need a copy where real strides differ from traced ones."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


class NodeCounter:
    """A compiler that counts the operations it is given, forward and back, and runs them as they are."""

    def __init__(self) -> None:
        self.nodes = 0

    def __call__(self, graph: fx.GraphModule, _: list[Tensor]) -> Any:
        self.nodes += len(graph.graph.nodes)
        return make_boxed_func(lambda *values: Replay(graph).run(*values))


def longer(batch: Batch, times: int) -> Batch:
    """The batch with each row repeated along time."""
    wide = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "extra"}
    extra = {name: t.repeat(1, times) if t.ndim == 2 else t for name, t in batch.extra.items()}
    return replace(batch, **{n: t.repeat(1, times) for n, t in wide.items() if t is not None}, extra=extra)


def count_nodes(module: torch.nn.Module, *given: Any) -> int:
    """Count the operations that a compiler sees of module(*given) and its gradients, which must be plain."""
    torch._dynamo.reset()
    counter = NodeCounter()
    compiled = torch.compile(
        module, backend=aot_autograd(fw_compiler=counter, bw_compiler=counter), dynamic=False
    )
    found = []
    for run in (module, compiled):
        module.zero_grad()
        torch.manual_seed(0)
        out = run(*given)
        loss = out[0] if isinstance(out, tuple) else out.square().mean()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-3, atol=1e-5)
    return counter.nodes


class Alone(torch.nn.Module):
    """A part that reads a sequence without a past."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        pos = torch.arange(x.shape[1])[None]
        out: Tensor = self.part(x, Context(pos, pos, Mask(causal=True)))
        return out


PARTS: dict[str, Callable[[], Part]] = {
    "lstm": lambda: LSTM(8, 8),
    "loop": lambda: GatedUnit(8, 8),
    "mamba": lambda: Mamba(8, 16, 4, 2),
    "mamba2": lambda: Mamba2(8, 16, 4, 4, groups=2),
    "s4": lambda: S4(8, 4),
    "linear": lambda: LinearAttention(8, 2, features=elu_features),
    "gla": lambda: GatedLinearAttention(8, 2, 4, rank=3),
    "delta": lambda: GatedDeltaNet(8, 2, 4, 4),
}


@pytest.mark.parametrize(
    "kind", [k if k in ("loop", "linear") else pytest.param(k, marks=pytest.mark.slow) for k in PARTS]
)
def test_a_longer_text_gives_the_compiler_no_more_to_do(kind: str) -> None:
    part = Alone(PARTS[kind]())
    assert count_nodes(part, torch.randn(2, 150, 8)) <= 1.1 * count_nodes(part, torch.randn(2, 40, 8))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_step_of_any_family_grows_with_its_text_for_the_compiler(family: str, files: Files) -> None:
    known, purpose = FAMILIES[family].tiny.field_names(), FAMILIES[family].objective
    settings: dict[str, Any] = {f: 0.0 for f in known if "dropout" in f}
    settings |= {f: 256 for f in ("context", "source_context") if f in known}
    model = toys.tiny(family, **settings).train()
    batch = toys.batches_of(purpose, files, model=model, batch=2)[0]
    divide, step = {per: torch.ones(()) for per in counts(batch)}, LossModule(model, objective(purpose))
    short, long = longer(batch, 2), longer(batch, 5)
    assert count_nodes(step, long, divide) <= 1.1 * count_nodes(step, short, divide)


def trained(family: str, files: Files, **settings: Any) -> list[float]:
    model = toys.tiny(family)
    batches = toys.batches_of(FAMILIES[family].objective, files, model=model, batch=4)
    config = TrainConfig(steps=2, **settings)
    return [step.loss for step in fit(model, FAMILIES[family].objective, batches, config)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_takes_the_same_steps_in_bfloat16(family: str, files: Files) -> None:
    plain, narrow = trained(family, files), trained(family, files, dtype="bfloat16")
    assert narrow == pytest.approx(plain, rel=0.05)


def test_a_compiled_run_takes_the_plain_steps(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for any compiler, forward and back; only the making of machine code is left out."""
    torch._dynamo.reset()
    plain, counter, real = trained("mamba", files, dtype="bfloat16"), NodeCounter(), torch.compile
    backend = aot_autograd(fw_compiler=counter, bw_compiler=counter)
    monkeypatch.setattr(torch, "compile", lambda module: real(module, backend=backend))
    assert trained("mamba", files, dtype="bfloat16", compile=True) == pytest.approx(plain, rel=1e-2)
    assert counter.nodes > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_takes_the_same_steps_compiled(family: str, files: Files) -> None:
    torch._dynamo.reset()
    losses = trained(family, files, dtype="bfloat16", compile=True)
    assert all(map(math.isfinite, losses))
    assert losses == pytest.approx(trained(family, files, dtype="bfloat16"), rel=0.05)
