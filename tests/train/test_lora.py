"""LoRA on any model: parts swapped in from outside, and out again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound, WrongShape
from heedful.decode.quantize import quantize
from heedful.models import FAMILIES
from heedful.models.base import Model, Seq2Seq
from heedful.nn.adapt import LoRA
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.adapters import load_adapter, lora, merge, save_adapter
from heedful.weights.loading import load
from heedful.weights.saving import save
from tests.train import toys

Files = dict[str, Path]


def stirred(model: Model) -> Model:
    """Adapters that have learned something."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LoRA):
                module.up.normal_(std=0.1)
    return model


def output(model: Model, backend: str = "auto") -> Tensor:
    tokens = torch.arange(2 * 9).view(2, 9) % 50 + 7
    with torch.no_grad():
        if isinstance(model, Seq2Seq):
            return model(tokens, tokens[:, :5], backend=backend)
        return model(tokens, backend=backend)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_adapters_start_as_nothing_and_merge_into_the_weights(name: str) -> None:
    model = toys.tiny(name).eval()
    before = output(model)
    plain = {n for n, _ in model.named_parameters()}
    layers = lora(model, rank=2)
    assert layers
    torch.testing.assert_close(output(model), before, rtol=1e-5, atol=1e-5)
    learned = output(stirred(model))
    assert not torch.allclose(learned, before, atol=1e-3)
    merge(model)
    assert {n for n, _ in model.named_parameters()} == plain
    assert all(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(output(model), learned, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_only_adapters_learn(name: str, files: Files) -> None:
    model = toys.tiny(name)
    layers = lora(model, rank=2)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    purpose = FAMILIES[name].objective
    config = TrainConfig(steps=3, lr=1e-2, accumulate=2, schedule="constant")
    for _ in fit(model, purpose, toys.batches_of(purpose, files, model=model), config):
        pass
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all(n.endswith((".down", ".up")) for n in moved)
    # A layer whose input is always the first state, or whose output nobody reads, has nothing to learn from.
    assert len({n.rpartition(".")[0] for n in moved}) >= 0.6 * len(layers)


def test_the_number_of_trained_parameters_is_r_times_both_sides() -> None:
    model = toys.tiny("llama")
    sizes = {n: m.in_features + m.out_features for n, m in model.named_modules() if type(m) is nn.Linear}
    layers = lora(model, rank=4, targets=["q", "v"])
    assert set(layers) == {f"blocks.{i}.attn.{p}" for i in (0, 1) for p in "qv"}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 4 * sum(sizes[n] for n in layers)


def test_a_path_with_a_star_chooses_layers() -> None:
    assert lora(toys.tiny("llama"), targets=["blocks.1.*"]) == [
        f"blocks.1.{n}" for n in ("attn.q", "attn.k", "attn.v", "attn.o", "ffn.gate", "ffn.up", "ffn.down")
    ]


def test_the_head_stays_unless_it_is_named() -> None:
    assert not any(n.startswith("head") for n in lora(toys.tiny("llama")))
    assert lora(toys.tiny("llama"), targets=["head.out"]) == ["head.out"]


def test_reading_the_matrix_gives_the_adapted_one() -> None:
    base = nn.Linear(6, 4)
    layer = LoRA(base, rank=2, alpha=3.0)
    nn.init.normal_(layer.up)
    x = torch.randn(5, 6)
    by_hand = base(x) + 3.0 / 2 * (x @ layer.down.t() @ layer.up.t())
    torch.testing.assert_close(layer(x), by_hand)
    torch.testing.assert_close(nn.functional.linear(x, layer.weight, layer.bias), by_hand)


@pytest.mark.parametrize("name", ["lstm", "deepseek-v2", "luong", "mamba"])
def test_every_way_to_compute_reads_the_adapter(name: str) -> None:
    """Fused kernels, absorbed products and split matrices read weights themselves."""
    model = toys.tiny(name).eval()
    lora(model, rank=2)
    stirred(model)
    torch.testing.assert_close(output(model, "reference"), output(model), rtol=1e-4, atol=1e-4)


def test_layers_that_share_weights_share_their_adapter() -> None:
    model = toys.tiny("albert")
    lora(model)
    assert sum(isinstance(m, LoRA) for m in model.modules()) == len(
        {id(m) for m in model.modules() if isinstance(m, LoRA)}
    )
    stirred(model)
    learned = output(model.eval())
    torch.testing.assert_close(output(merge(model)), learned, rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "t5", "lstm", "roberta"])
def test_an_adapter_saved_apart_is_loaded_on_top(name: str, tmp_path: Path) -> None:
    base = toys.tiny(name).eval()
    model = copy.deepcopy(base)
    lora(model, rank=3, alpha=5.0)
    learned = output(stirred(model))
    save_adapter(model, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter.json", "adapter.safetensors"]
    load_adapter(base, tmp_path)
    assert torch.equal(output(base), learned)
    assert {n for n, p in base.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


def test_a_new_head_can_learn_beside_the_adapters_and_is_saved_with_them(
    tmp_path: Path, files: Files
) -> None:
    model, base = (toys.model_of("classify", **toys.still("classify")) for _ in range(2))
    lora(model, rank=2, train=("head.*",))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert "head.label.weight" in trained
    batches = toys.batches_of("classify", files)
    losses = [s.loss for s in fit(model, "classify", batches, TrainConfig(steps=40, lr=1e-2))]
    assert losses[-1] < 0.8 * losses[0]
    save_adapter(model, tmp_path)
    assert torch.equal(output(load_adapter(base, tmp_path).eval()), output(model.eval()))  # type: ignore[arg-type]


def test_a_model_with_an_adapter_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    model = toys.tiny("gpt2").eval()
    lora(model, rank=2)
    learned = output(stirred(model))
    save(model, tmp_path)
    assert torch.equal(output(load(tmp_path)), learned)
    save(merge(model), tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "adapter.json").exists()
    torch.testing.assert_close(output(load(tmp_path)), learned, rtol=1e-4, atol=1e-4)


def test_a_run_with_adapters_goes_on_exactly(tmp_path: Path, files: Files) -> None:
    batches = toys.batches_of("next_token", files)
    made: dict[str, Model] = {}
    for name, parts in (("whole", [6]), ("parts", [3, 6])):
        for steps in parts:
            made[name] = toys.tiny("gpt2")
            lora(made[name], rank=2)
            config = TrainConfig(
                steps=steps, lr=1e-2, schedule="constant", folder=tmp_path / name, resume=True
            )
            assert list(fit(made[name], "next_token", batches, config))
    for a, b in zip(made["whole"].parameters(), made["parts"].parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_adapted_model_is_traced_in_one_piece() -> None:
    model = toys.tiny("llama").eval()
    lora(model, rank=2)
    tokens = torch.arange(8)[None] + 5
    traced = torch.compile(stirred(model), fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(tokens), model(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 0}, "rank=0 must be at least 1"),
        ({"targets": ["quer"]}, "no linear layer matches"),
        ({"targets": ["ffm.up"]}, "no linear layer matches"),
    ],
    ids=str,
)
def test_what_cannot_be_adapted_is_said(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        lora(toys.tiny("llama"), **arguments)


def test_bad_adapters_are_refused_in_one_line(tmp_path: Path) -> None:
    model = toys.tiny("llama")
    with pytest.raises(InputError, match="no adapter"):
        save_adapter(model, tmp_path)
    with pytest.raises(NotFound, match="no adapter.json"):
        load_adapter(model, tmp_path)
    lora(model)
    with pytest.raises(ConfigError, match="already has an adapter"):
        lora(model)
    save_adapter(model, tmp_path)
    with pytest.raises(InputError, match="which this model does not have"):
        load_adapter(toys.tiny("mamba"), tmp_path)
    with pytest.raises(WrongShape):
        load_adapter(toys.tiny("llama", dim=64), tmp_path)
    settings = json.loads((tmp_path / "adapter.json").read_text())
    (tmp_path / "adapter.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "rank"}))
    with pytest.raises(CorruptFile, match="rank"):
        load_adapter(toys.tiny("llama"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"), [({"rank": 2.5}, "rank=2.5"), ({"alpha": float("nan")}, "alpha=nan")], ids=str
)
def test_a_size_that_cannot_be_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lora(toys.tiny("gpt2"), **settings)


def test_a_quantised_model_has_nothing_to_adapt() -> None:
    with pytest.raises(ConfigError, match="load it without quantization"):
        lora(quantize(toys.tiny("gpt2"), "int8"))


def test_an_adapted_model_is_merged_before_it_is_quantised() -> None:
    model = toys.tiny("gpt2")
    lora(model, rank=2)
    with pytest.raises(ConfigError, match="merge"):
        quantize(model, "int8")
    quantize(merge(model), "int8")  # type: ignore[arg-type]


def test_a_disk_that_fills_up_leaves_the_old_settings_of_an_adapter_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toys.tiny("gpt2")
    lora(model, rank=2)
    save_adapter(model, tmp_path)
    before = (tmp_path / "adapter.json").read_text()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_adapter(model, tmp_path)
    assert (tmp_path / "adapter.json").read_text() == before
