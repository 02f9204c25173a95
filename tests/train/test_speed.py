"""How steps are made fast: what is chosen without a word, why, and that nothing of it stays behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.data.batch import Batch
from heedful.models.base import Model
from heedful.train import fit as fitting
from heedful.train import speed
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import fit
from heedful.train.objectives import objective
from heedful.train.speed import CompiledLayers, choose_speed, stacked_layers
from tests.train import toys

Files = dict[str, Path]

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which every run of twenty steps is long: choosing asks for no more than its properties."""
    properties = SimpleNamespace(major=9, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(Model, "device", property(lambda model: torch.device("cuda")))
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(speed, "FLOPS_PER_MULTIPROCESSOR", 1.0)


def chosen(
    files: Files, family: str = "gpt2", purpose: Any = "next_token", processes: Processes | None = None,
    change: Callable[[Model], object] = lambda model: None, **settings: Any,
) -> tuple[TrainConfig, str | None]:  # fmt: skip
    model = toys.tiny(family)
    change(model)
    kind = purpose if isinstance(purpose, str) else "next_token"
    batches = toys.batches_of(kind, files, model=model)
    config = TrainConfig(**{"steps": 100, **settings})
    return choose_speed(config, model, objective(purpose), batches, processes or Processes(), None)


def test_a_long_run_on_a_gpu_is_compiled_and_recorded(gpu: None, files: Files) -> None:
    config, line = chosen(files)
    assert (config.compile, config.graph) == (True, True)
    assert line is not None
    assert line.startswith("speed: for about ")
    assert line.endswith(" s of work, steps are compiled, recorded")


def test_what_the_config_decides_stays(gpu: None, files: Files) -> None:
    config, line = chosen(files, compile=False)
    assert (config.compile, config.graph) == (False, True)
    assert str(line).endswith("steps are recorded")
    assert chosen(files, compile=False, graph=False)[1] is None


def test_on_a_cpu_nothing_is_chosen_and_nothing_is_reported(files: Files) -> None:
    config, line = chosen(files)
    assert (config.compile, config.graph, line) == (False, False, None)


def own_objective(model: Model, batch: Batch) -> Tensor:
    return model(batch.tokens).square().mean()


def in_two(processes: Processes) -> Processes:
    processes.world = 2
    return processes


@pytest.mark.parametrize(
    ("settings", "compiled", "line"),
    [
        ({"optimiser": "adafactor"}, True, "compiled, not recorded (adafactor reads numbers back)"),
        ({"purpose": own_objective}, True, "compiled, not recorded (the objective is your own: graph=True"),
        ({"processes": in_two(Processes())}, True, "compiled, not recorded (several processes take"),
        ({"steps": 5}, True, "compiled, not recorded (5 steps are too few)"),
        ({"family": "lstm"}, False, "recorded, not compiled (recurrences gain nothing)"),
        (
            {"change": lambda model: model.head.register_forward_hook(lambda *given: None)}, False,
            "not compiled (LMHead has a hook), not recorded (LMHead has a hook)",
        ),
        (
            {"family": "transformer", "purpose": "translate"}, False,
            "recorded, not compiled (batches have several shapes)",
        ),
        (
            {"family": "seq2seq", "purpose": "translate"}, False,
            "not compiled (recurrences gain nothing), not recorded (its recurrence reads the lengths of",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_forbids_a_fast_step_is_reported(
    settings: dict[str, Any], compiled: bool, line: str, gpu: None, files: Files
) -> None:
    config, reported = chosen(files, **settings)
    assert reported is not None
    assert f"s of work, steps are {line}" in reported
    assert (config.compile, config.graph) == (compiled, "not recorded" not in reported)


def test_a_short_run_is_not_compiled(gpu: None, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "FLOPS_PER_MULTIPROCESSOR", 2.5e12)
    config, line = chosen(files)
    assert (config.compile, config.graph) == (False, True)
    reason = "not compiled (too short to earn 10 s of compiling)"
    assert line == f"speed: for about 1 s of work, steps are recorded, {reason}"


def test_a_resumed_run_keeps_the_choice_of_its_checkpoint(gpu: None, files: Files, tmp_path: Path) -> None:
    model = toys.tiny("gpt2")
    batches = toys.batches_of("next_token", files, model=model)
    saved = {"step": 1, "loss": 1.0, "data": "", "config": {"compile": False, "graph": True}}
    (tmp_path / "training.json").write_text(json.dumps(saved))
    config, line = choose_speed(
        TrainConfig(steps=100), model, objective("next_token"), batches, Processes(), tmp_path
    )
    assert (config.compile, config.graph) == (False, True)
    assert line == "speed: as in the checkpoint, steps are recorded, not compiled (off)"


def test_a_checkpoint_records_what_was_chosen(files: Files, tmp_path: Path) -> None:
    model = toys.tiny("gpt2")
    batches = toys.batches_of("next_token", files, model=model)
    list(fit(model, "next_token", batches, TrainConfig(steps=1, folder=tmp_path)))
    saved = json.loads((tmp_path / "checkpoints" / "step-000001" / "training.json").read_text())
    assert (saved["config"]["compile"], saved["config"]["graph"]) == (False, False)


def test_layers_are_compiled_for_a_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward: lambda *given: ("compiled", forward))
    model = toys.tiny("t5")
    layers, plain = stacked_layers(model), [type(m) for m in model.modules()]
    compiled = CompiledLayers(model, torch.device("cuda"))
    with compiled.in_use():
        assert [layer(None, None)[0] for layer in layers] == ["compiled"] * len(layers)
        assert [type(m) for m in model.modules()] != plain
    assert [type(m) for m in model.modules()] == plain
    assert not any("forward" in vars(layer) for layer in layers)


def test_one_compiled_layer_serves_all_that_are_like_it() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, tokens = toys.tiny("llama", layers=4), torch.arange(12).reshape(2, 6)
    real = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda forward: real(forward, backend=keep))
        compiled = CompiledLayers(model, torch.device("cpu"))
    wanted = model.encode(tokens)
    with compiled.in_use():
        torch.testing.assert_close(model.encode(tokens), wanted)
    assert len(graphs) == 1


def test_a_step_that_the_compiler_fails_at_is_taken_without_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("no such operator\nand more")

    def losses(model: Model, report: Callable[[str], object]) -> list[float]:
        batches = toys.batches_of("next_token", files, model=model)
        return [s.loss for s in fit(model, "next_token", batches, TrainConfig(steps=3), report=report)]

    wanted = losses(toys.tiny("gpt2"), print)  # with dropout: the second attempt draws the same noise
    monkeypatch.setattr(torch, "compile", lambda forward: fail)
    choice = lambda config, *given: (replace(config, compile=True, graph=False), "speed: compiled")
    monkeypatch.setattr(fitting, "choose_speed", choice)
    lines: list[str] = []
    assert losses(toys.tiny("gpt2"), lines.append) == wanted
    failed = "speed: steps are no longer compiled: the compiler failed (no such operator)"
    assert lines == ["speed: compiled", failed]


@pytest.mark.slow
def test_recomputed_layers_can_be_compiled(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: real(forward, backend="aot_eager"))
    found = []
    for compiled in (False, True):
        model = toys.tiny("llama")
        batches = toys.batches_of("next_token", files, model=model)
        config = TrainConfig(steps=2, checkpointing=True, compile=compiled)
        found.append([step.loss for step in fit(model, "next_token", batches, config)])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
