"""When a run stops, and averages of weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from heedful.core.errors import ConfigError
from heedful.decode.quantize import quantize
from heedful.train.checkpoint import list_checkpoints
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.stopping import EarlyStopping, ema_model, soup
from heedful.weights.adapters import lora
from heedful.weights.loading import build, load
from heedful.weights.saving import save
from tests.train import toys


def test_it_stops_after_so_many_values_that_are_no_better() -> None:
    stopping = EarlyStopping(patience=2)
    assert [stopping.better(v) for v in (3.0, 2.0, 2.5)] == [True, True, False]
    assert not stopping.stop
    assert not stopping.better(2.0)
    assert stopping.stop
    assert stopping.best == 2.0


def test_a_better_value_starts_the_waiting_anew() -> None:
    stopping = EarlyStopping(patience=2)
    for value in (3.0, 3.1, 2.9, 3.0):
        stopping.better(value)
    assert not stopping.stop


def test_a_metric_may_be_meant_to_rise() -> None:
    stopping = EarlyStopping(patience=1, highest=True)
    assert stopping.better(0.5)
    assert not stopping.better(0.495)
    assert stopping.stop


def test_no_number_is_never_the_best() -> None:
    stopping = EarlyStopping(patience=1)
    assert not stopping.better(math.nan)
    assert stopping.stop


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="patience=0"):
        EarlyStopping(patience=0)


def run(folder: Path, files: dict[str, Path], **settings: object) -> dict[int, dict[str, torch.Tensor]]:
    model = toys.tiny("gpt2")
    config = TrainConfig(**{"steps": 4, "lr": 1e-2, "folder": folder, "save_every": 1, "keep": 9, **settings})  # type: ignore[arg-type]
    seen = {}
    for step in fit(model, "next_token", toys.batches_of("next_token", files), config):
        seen[step.number] = {n: p.detach().clone() for n, p in model.named_parameters()}
    return seen


def test_a_soup_of_the_last_checkpoints_has_the_mean_of_their_weights(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    seen = run(tmp_path, files)
    model = soup(list_checkpoints(tmp_path)[-3:])
    for name, parameter in model.named_parameters():
        wanted = (seen[2][name] + seen[3][name] + seen[4][name]) / 3
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-6, atol=1e-7)


def test_ema_follows_its_formula_and_is_saved(tmp_path: Path, files: dict[str, Path]) -> None:
    first = {n: p.detach().clone() for n, p in toys.tiny("gpt2").named_parameters()}
    seen = run(tmp_path, files, ema=0.9)
    model = ema_model(tmp_path / "checkpoints" / "step-000004")
    for name, parameter in model.named_parameters():
        wanted = first[name]
        for k in (1, 2, 3, 4):
            wanted = 0.9 * wanted + 0.1 * seen[k][name]
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-5, atol=1e-6)
    plain = load(tmp_path / "checkpoints" / "step-000004")
    assert all(torch.equal(p, seen[4][n]) for n, p in plain.named_parameters())


def test_averaged_weights_are_put_in_and_taken_out(files: dict[str, Path]) -> None:
    model = toys.tiny("gpt2")
    batches = toys.batches_of("next_token", files)
    for step in fit(model, "next_token", batches, TrainConfig(steps=2, lr=1e-2, ema=0.5)):
        own = {n: p.detach().clone() for n, p in model.named_parameters()}
        with step.ema_weights() as average:
            assert any(not torch.equal(p, own[n]) for n, p in average.named_parameters())
        assert all(torch.equal(p, own[n]) for n, p in model.named_parameters())


def test_without_ema_there_is_no_average(files: dict[str, Path]) -> None:
    batches = toys.batches_of("next_token", files)
    step = next(fit(toys.tiny("gpt2"), "next_token", batches, TrainConfig(steps=1)))
    with pytest.raises(ConfigError, match="ema=0.999"), step.ema_weights():
        pass


def test_a_soup_has_the_mean_weights_of_its_models_and_takes_equal_ones_only(tmp_path: Path) -> None:
    for seed in (0, 1):
        save(build("bert", vocab=50, dim=16, layers=1, heads=2, context=8, seed=seed), tmp_path / str(seed))
    save(build("bert", vocab=50, dim=16, layers=2, heads=2, context=8, seed=0), tmp_path / "deep")
    first, second = (dict(load(tmp_path / str(seed)).named_parameters()) for seed in (0, 1))
    for name, parameter in soup([tmp_path / "0", tmp_path / "1"]).named_parameters():
        torch.testing.assert_close(parameter, (first[name] + second[name]) / 2, rtol=1e-6, atol=1e-8)
    with pytest.raises(ConfigError, match="deep is another model"):
        soup([tmp_path / "0", tmp_path / "deep"])
    with pytest.raises(ConfigError, match="a list of at least one folder"):
        soup([])


def test_a_run_in_a_soup_is_its_best_checkpoint(tmp_path: Path, files: dict[str, Path]) -> None:
    run(tmp_path / "a", files)
    mark = {"checkpoint": "step-000002", "step": 2}
    (tmp_path / "a" / "best.json").write_text(json.dumps(mark))
    best = load(tmp_path / "a" / "checkpoints" / "step-000002")
    for ours, theirs in zip(soup([tmp_path / "a"]).parameters(), best.parameters(), strict=True):
        assert ours.equal(theirs)


def test_a_soup_of_adapted_models_is_the_mean_of_what_they_compute_with(tmp_path: Path) -> None:
    weights = []
    for seed in (1, 2):
        model = build("gpt2", vocab=20, dim=8, layers=1, heads=2, context=8, seed=0)
        torch.manual_seed(seed)
        lora(model, rank=2)
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                torch.nn.init.normal_(parameter)
        weights.append(model.blocks[0].attn.q.weight.detach())  # type: ignore[union-attr]
        save(model, tmp_path / str(seed))
    mixed = soup([tmp_path / "1", tmp_path / "2"]).blocks[0].attn.q.weight  # type: ignore[union-attr]
    torch.testing.assert_close(mixed.detach(), (weights[0] + weights[1]) / 2, rtol=1e-5, atol=1e-6)


def test_labels_in_another_order_make_no_soup(tmp_path: Path) -> None:
    for name, labels in (("a", ("good", "bad")), ("b", ("bad", "good"))):
        model = build("bert", vocab=20, dim=8, layers=1, heads=2, context=8, head="classify", labels=2)
        model.hf_config = {
            "id2label": dict(enumerate(labels)),
            "label2id": {n: i for i, n in enumerate(labels)},
        }
        save(model, tmp_path / name)
    with pytest.raises(ConfigError, match="labels in another order"):
        soup([tmp_path / "a", tmp_path / "b"])


def test_whole_numbers_make_no_soup(tmp_path: Path) -> None:
    save(
        quantize(build("gpt2", vocab=20, dim=8, layers=1, heads=2, context=8), "int8"),
        tmp_path / "a",
        quantized=True,
    )
    with pytest.raises(ConfigError, match="is quantised"):
        soup([tmp_path / "a"])


def test_one_name_is_no_list_of_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a list of at least one folder"):
        soup(str(tmp_path))
