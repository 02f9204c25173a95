"""Optimisers and schedules."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heedful.core.errors import ConfigError
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.optim import Adafactor, learning_rate, make_optimisers, orthogonalise
from tests.train import toys


def rates(**settings: Any) -> list[float]:
    c = TrainConfig(**{"steps": 100, "lr": 1.0, "final": 0.1, **settings})
    return [learning_rate(k, c) for k in range(c.steps)]


def test_warmup_rises_in_a_straight_line_to_the_highest_rate() -> None:
    assert rates(warmup=4)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_constant_stays() -> None:
    assert set(rates(schedule="constant")) == {1.0}


def test_linear_falls_in_a_straight_line() -> None:
    found = rates(schedule="linear")
    assert found[0] == 1.0
    assert found[50] == pytest.approx(0.55)
    assert found[99] == pytest.approx(0.1 + 0.9 / 100)


def test_cosine_is_half_way_in_the_middle() -> None:
    found = rates(schedule="cosine", warmup=20)
    assert found[20] == 1.0
    assert found[60] == pytest.approx(0.55)
    assert found[99] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 79 / 80)))
    assert all(a > b for a, b in itertools.pairwise(found[20:]))


def test_wsd_stays_and_falls_at_the_end() -> None:
    found = rates(schedule="wsd", decay=20)
    assert set(found[:81]) == {1.0}
    assert found[90] == pytest.approx(0.55)


def test_the_transformers_own_schedule_has_its_peak_after_warmup() -> None:
    found = rates(schedule="inverse_sqrt", warmup=16)
    assert max(found) == found[15] == 1.0
    # d^−½ min(step^−½, step · warmup^−1.5), divided by its peak  (Vaswani et al. 2017 eq. 3)
    for step in (1, 7, 16, 17, 64, 100):
        paper = min(step**-0.5, step * 16**-1.5) / 16**-0.5
        assert found[step - 1] == pytest.approx(paper, rel=1e-9)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd", "inverse_sqrt"])
def test_no_rate_is_above_the_highest_or_below_zero(schedule: str) -> None:
    assert all(0 < rate <= 1 for rate in rates(schedule=schedule, warmup=10))


def test_adamw_decays_matrices_only() -> None:
    model = toys.tiny("gpt2")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    (adamw,) = make_optimisers(model, TrainConfig(lr=0.1, weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    adamw.step()
    for name, p in model.named_parameters():
        kept = before[name] * (1 - 0.1 * 0.5) if p.ndim > 1 else before[name]
        torch.testing.assert_close(p.detach(), kept, msg=name)


def test_a_step_of_adamw_is_its_formula() -> None:
    layer = nn.Linear(3, 2, bias=False)
    w, g = layer.weight.detach().clone(), torch.randn(2, 3)
    (adamw,) = make_optimisers(layer, TrainConfig(lr=0.1, weight_decay=0.2, betas=(0.9, 0.99), eps=1e-8))
    layer.weight.grad = g
    adamw.step()
    m, v = 0.1 * g / (1 - 0.9), 0.01 * g**2 / (1 - 0.99)
    torch.testing.assert_close(layer.weight.detach(), w * (1 - 0.02) - 0.1 * m / (v.sqrt() + 1e-8))


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int]) -> None:
    m = torch.randn(*shape)
    x = orthogonalise(m)
    values = torch.linalg.svdvals(x)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(m, full_matrices=False)
    assert float((x * (u @ v)).sum() / (x.norm() * (u @ v).norm())) > 0.97


def test_muon_takes_matrices_of_blocks_and_adamw_the_rest() -> None:
    model = toys.tiny("gpt2")
    muon, adamw = make_optimisers(model, TrainConfig(optimiser="muon"))
    names = {id(p): n for n, p in model.named_parameters()}
    taken = {names[id(p)] for g in muon.param_groups for p in g["params"]}
    rest = {names[id(p)] for g in adamw.param_groups for p in g["params"]}
    assert taken | rest == set(names.values())
    assert not taken & rest
    assert all(n.startswith("blocks.") and n.endswith(".weight") for n in taken)
    assert "embed.token.weight" in rest


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "adafactor"])
def test_every_optimiser_trains(optimiser: str, files: dict[str, Path]) -> None:
    model = toys.tiny("gpt2")
    config = TrainConfig(steps=30, lr=1e-2, optimiser=optimiser, schedule="constant")
    seen = [s.loss for s in fit(model, "next_token", toys.batches_of("next_token", files), config)]
    assert seen[-1] < 0.8 * seen[0]


def test_clipping_bounds_the_gradient_and_shows_what_it_was(files: dict[str, Path]) -> None:
    batches, first = toys.batches_of("next_token", files), toys.tiny("gpt2").embed.token.weight
    moved, norms = {}, {}
    for clip in (None, 1e-3):
        model = toys.tiny("gpt2")
        made = TrainConfig(
            steps=1, lr=1.0, clip=clip, eps=1.0, weight_decay=0.0, betas=(0.0, 0.0), schedule="constant"
        )
        (step,) = fit(model, "next_token", batches, made)
        norms[clip] = step.grad_norm
        moved[clip] = float((model.embed.token.weight - first).detach().norm())
    assert norms[None] == pytest.approx(norms[1e-3])
    assert moved[1e-3] < 2e-3 < moved[None]


def test_the_norm_is_that_of_all_gradients_together(files: dict[str, Path]) -> None:
    model = toys.tiny("gpt2", dropout=0.0)
    batch = toys.batches_of("next_token", files)[0]
    (toys.purpose_of("next_token")(model, batch)["next_token"].total / batch.label_count).backward()
    wanted = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None))
    model = toys.tiny("gpt2", dropout=0.0)
    batches = toys.batches_of("next_token", files)
    (step,) = fit(model, "next_token", batches, TrainConfig(steps=1, accumulate=3))
    assert step.grad_norm == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"dtype": "float16"}, "bfloat16"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"lr": 0.0}, "lr=0.0 must be above 0"),
        ({"steps": 10, "warmup": 20}, "warmup=20 is longer than the run"),
        ({"ema": 1.5}, "ema=1.5"),
        ({"resume": True}, "resume=True needs folder"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"lr": math.nan}, "lr=nan must be a finite number"),
        ({"lr": math.inf}, "lr=inf must be a finite number"),
        ({"lr": "high"}, "lr='high' must be a number"),
        ({"clip": 0.0}, "clip=0.0 must be above 0"),
        ({"clip": -1.0}, "clip=-1.0 must be above 0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be at least 0"),
        ({"final": 5.0}, "final=5.0 must lie between 0 and 1"),
        ({"warmup": -5}, "warmup=-5 must be at least 0"),
        ({"betas": (1.0, 0.9)}, "betas=.* must be two numbers"),
        ({"betas": (0.9,)}, "betas=.* must be two numbers"),
        ({"eps": 0.0}, "eps=0.0 must be above 0"),
        ({"schedule": "wsd", "decay": 0}, "decay=0 must be at least 1"),
        ({"steps": 10, "decay": 20}, "decay=20 is longer than the run"),
        ({"save_every": 0}, "save_every=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 10**20}, "must be below 2"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_says_so(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TrainConfig(**settings)


@pytest.mark.parametrize("shape", [(6,), (6, 4), (3, 6, 4)], ids=str)
def test_adafactor_takes_the_steps_of_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for _ in range(2))
    theirs.data.copy_(ours)
    steps = (
        Adafactor([{"params": [ours]}], lr=0.03, weight_decay=0.1),
        torch.optim.Adafactor([theirs], lr=0.03, weight_decay=0.1),
    )
    for _ in range(5):
        gradient = torch.randn(shape, dtype=torch.float64)
        for parameter, optimiser in zip((ours, theirs), steps, strict=True):
            parameter.grad = gradient.clone()
            optimiser.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
