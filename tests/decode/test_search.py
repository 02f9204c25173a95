"""Beam search's own terms (coverage, diverse groups, guides) and contrastive search, against naive forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful.models.base import Model, Seq2Seq
from heedful.nn.context import Watch
from tests.properties.tiny import GENERATORS, SEQ2SEQS, source_ids, tiny

END = 3


def logs_after(model: Model, prompt: list[int], ids: list[int]) -> Tensor:
    """log P(next | prompt, ids), from nothing but one pass."""
    with torch.no_grad():
        if isinstance(model, Seq2Seq):
            logits = model(torch.tensor([prompt]), torch.tensor([[model.start_token, *ids]]))
        else:
            logits = model(torch.tensor([[*prompt, *ids]]))
    return logits[0, -1].log_softmax(-1)


Found = list[tuple[float, list[int]]]


def naive(model: Model, prompt: list[int], width: int, most: int, penalty: float) -> Found:
    """Beam search by the book, in the slowest way, ending only when everything has."""
    running, done = [(0.0, list[int]())], Found()
    for t in range(1, most + 1):
        grown = []
        for score, ids in running:
            best = (logs_after(model, prompt, ids) + score).topk(2 * width)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            grown += [(s, [*ids, i]) for s, i in pairs]
        grown = sorted(grown, key=lambda g: -g[0])[: 2 * width]
        ended = lambda ids: ids[-1] == END or t == most  # noqa: B023
        done += [(s / len(ids) ** penalty, ids) for s, ids in grown[:width] if ended(ids)]
        running = [g for g in grown if not ended(g[1])][:width]
    return sorted(done, key=lambda d: -d[0])[:width]


def without_end(ids: list[int]) -> list[int]:
    return ids[:-1] if ids[-1] == END else ids


@pytest.mark.parametrize("family", GENERATORS)
def test_beams_find_what_a_naive_search_finds(family: str) -> None:
    model = tiny(family)
    prompt = source_ids(model, 1, 5)[0].tolist()
    expected = naive(model, prompt, 3, 4, 0.7)
    found = heedful.generate(
        model, prompt, beams=3, n=3, max_tokens=4, length_penalty=0.7, early_stopping="never", eos=END,
        details=True,
    )  # fmt: skip
    assert [g.ids for g in found] == [without_end(ids) for _, ids in expected]
    assert [g.score for g in found] == pytest.approx([s for s, _ in expected], rel=1e-4, abs=1e-5)


def test_one_beam_is_greedy() -> None:
    model = tiny("bart")
    prompt = source_ids(model, 1, 5)[0].tolist()
    greedy = heedful.generate(model, prompt, max_tokens=9)
    assert heedful.generate(model, prompt, beams=1, max_tokens=9) == greedy


def test_beams_in_a_batch_are_those_of_each_prompt_alone() -> None:
    model = tiny("llama")
    prompts = [source_ids(model, 1, n, seed=n)[0].tolist() for n in (6, 2, 4)]
    how: dict[str, Any] = {"beams": 4, "n": 4, "max_tokens": 8, "bias": {END: 3.0}, "eos": END}
    together = heedful.generate(model, prompts, **how)
    assert together == [heedful.generate(model, p, **how) for p in prompts]


def test_groups_without_a_common_token_say_different_things() -> None:
    model = tiny("t5")
    prompt = source_ids(model, 1, 5)[0].tolist()
    plain = heedful.generate(model, prompt, beams=2, n=2, max_tokens=6, eos=())
    far = heedful.generate(model, prompt, beams=2, n=2, groups=2, diversity=50.0, max_tokens=6, eos=())
    same = lambda two: sum(a == b for a, b in zip(*two, strict=True))
    assert same(far) == 0
    assert same(plain) > 0


def test_the_first_group_searches_as_if_it_were_alone() -> None:
    model = tiny("t5")
    prompt = source_ids(model, 1, 5)[0].tolist()
    alone = heedful.generate(model, prompt, beams=2, n=2, max_tokens=6, eos=())
    groups = heedful.generate(model, prompt, beams=4, n=4, groups=2, diversity=1.0, max_tokens=6, eos=())
    assert all(text in groups for text in alone)


@pytest.mark.parametrize("family", sorted(set(SEQ2SEQS) - {"seq2seq"}))
def test_coverage_adds_the_attention_that_words_lacked(family: str) -> None:
    model = tiny(family)
    source = source_ids(model, 2, 6)
    prompts = [source[0].tolist(), source[1, :4].tolist()]
    how: dict[str, Any] = {"beams": 3, "n": 3, "max_tokens": 5, "eos": (), "details": True}
    for prompt, found in zip(prompts, heedful.generate(model, prompts, coverage=0.5, **how), strict=True):
        for text in found:
            watch = Watch("decoder.*.cross.pattern", "decoder.[0-9].pattern")
            target = torch.tensor([[model.start_token, *text.ids[:-1]]])
            with torch.no_grad():
                logs = model(torch.tensor([prompt]), target, watch=watch).log_softmax(-1)[0]
            likely = logs.gather(1, torch.tensor(text.ids)[:, None]).sum() / len(text.ids)
            looked = torch.stack([watch[name].mean(1)[0] for name in watch]).mean(0).sum(0)
            expected = likely + 0.5 * looked.clamp(max=1).log().sum()
            assert text.score == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "lstm", "t5", "mamba"])
def test_contrastive_search_is_its_equation(family: str) -> None:
    model, alpha, k = tiny(family), 0.6, 4
    prompt = source_ids(model, 1, 5)[0].tolist()
    out: list[int] = []

    def states(ids: list[int]) -> Tensor:
        watch = Watch("decoder.output" if isinstance(model, Seq2Seq) else "blocks.output")
        with torch.no_grad():
            if isinstance(model, Seq2Seq):
                model(torch.tensor([prompt]), torch.tensor([[model.start_token, *ids]]), watch=watch)
            else:
                model(torch.tensor([[*prompt, *ids]]), watch=watch)
        return F.normalize(next(watch[name] for name in watch)[0], dim=-1)

    for _ in range(5):
        likely = logs_after(model, prompt, out).exp().topk(k)
        scores = []
        for p, v in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
            h = states([*out, v])
            scores.append((1 - alpha) * p - alpha * float((h[:-1] @ h[-1]).max()))
        out.append(int(likely.indices[scores.index(max(scores))]))
    assert heedful.generate(model, prompt, contrastive=alpha, top_k=k, max_tokens=5, eos=()) == out


def test_contrastive_without_its_penalty_is_greedy() -> None:
    model = tiny("gpt2")
    greedy = heedful.generate(model, [5, 6, 7], max_tokens=6, eos=())
    assert heedful.generate(model, [5, 6, 7], contrastive=0.0, max_tokens=6, eos=()) == greedy


def test_a_forbidden_token_is_in_no_beam() -> None:
    model = tiny("gpt2")
    first = heedful.generate(model, [5, 6], beams=3, n=3, max_tokens=4, eos=())
    ban = first[0][0]
    again = heedful.generate(model, [5, 6], beams=3, n=3, max_tokens=4, eos=(), bias={ban: -math.inf})
    assert all(ban not in ids for ids in again)
