"""The bundled model `induction` has the heads that the course describes."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import heedful
from heedful.interp.activations import mean_loss
from heedful.interp.intervene.ablation import without
from heedful.interp.learn.head_catalogue import catalogue_heads
from heedful.interp.observe.attention import attention
from heedful.models.base import Model

PASSAGES = (
    "The bridge over the river was built by engineers from Norway in the summer of that year. It was closed "
    "twice for repairs, and the council planned to replace it with a tunnel, which was never begun.",
    "She studied music in Vienna and sang in the opera there for eleven seasons. After the war she taught at "
    "a school in Boston, where her pupils remembered her for her patience and for her many letters to them.",
    "The beetle lives under the bark of old oaks and feeds on fungi. Females lay about thirty eggs in May, "
    "and the larvae need two years to grow. Forests with dead wood protect it from birds and cold winters.",
)


@cache
def copier() -> Model:
    return heedful.load("induction", dtype=torch.float32)


def test_its_best_head_finds_what_followed_the_last_time_on_random_tokens() -> None:
    heads = catalogue_heads(copier(), [PASSAGES[0]], repeats=8)
    best, previous = heads.top("induction", 1)[0], heads.top("previous", 1)[0]
    assert best.mean > 0.9 > 0.5 > 10 * heads.chance["induction"]
    assert best.name.startswith("blocks.1.")
    assert previous.mean > 0.9
    assert previous.name.startswith("blocks.0.")


def test_its_best_head_does_so_on_natural_passages_written_twice() -> None:
    means = []
    for passage in PASSAGES:
        ids = copier().tokenizer.encode(passage, special=False)
        row, count = torch.tensor(ids * 2), len(ids)
        pattern = attention(copier(), row)["blocks.1.attn"].values  # (H, T, T)
        follows = torch.zeros(2 * count, 2 * count, dtype=torch.bool)
        follows[:, 1:] = row[:, None] == row[None, :-1]
        means.append((pattern * follows).sum(-1)[:, count:-1].mean(-1))
    assert torch.stack(means).mean(0).max() > 0.5


@pytest.mark.parametrize("heads", [{"blocks.0.attn": [2]}, {"blocks.1.attn": [0, 2, 3]}])
def test_without_either_kind_of_head_it_does_not_continue_what_repeats(heads: dict[str, list[int]]) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 1024, (40,), generator=draw).tolist() * 2 for _ in range(4)]
    assert mean_loss(copier(), rows, without(copier(), heads)) > mean_loss(copier(), rows) + 1.0
