"""Greedy and beam search give what transformers gives: tokens, and scores where it tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from tests.decode.toy import PUBLISHED, pair
from tests.test_real_weights import smollm

# Added to the end's logit, so that texts end at several lengths.
END = {"gpt2": 4.0, "llama": 4.0, "t5": 4.0, "bart": 9.0}
PROMPTS = [[5, 9, 33, 60, 7, 12], [40, 8, 70]]


def theirs_says(
    theirs: Any, prompts: list[list[int]], **how: Any
) -> tuple[list[list[int]], list[float] | None]:
    """New tokens and scores, the padding after the end taken off."""
    longest = max(map(len, prompts))
    fill = [longest - len(p) for p in prompts]
    ids = torch.tensor([[1] * f + p for f, p in zip(fill, prompts, strict=True)])
    if theirs.config.is_encoder_decoder:  # its learned positions count padding on the left
        ids = torch.tensor([p + [1] * f for f, p in zip(fill, prompts, strict=True)])
    mask = (ids != 1).long()
    out = theirs.generate(
        ids, attention_mask=mask, do_sample=False, return_dict_in_generate=True, output_scores=True, **how
    )
    start = 1 if theirs.config.is_encoder_decoder else longest
    rows = []
    for row in out.sequences[:, start:].tolist():
        end = row.index(2) if 2 in row else len(row)
        rows.append(row[:end])
    scores = getattr(out, "sequences_scores", None)
    return rows, None if scores is None else scores.tolist()


@pytest.mark.parametrize("name", PUBLISHED)
def test_greedy_tokens_are_the_same(name: str) -> None:
    theirs, ours = pair(name)
    expected, _ = theirs_says(theirs, PROMPTS, max_new_tokens=24)
    assert heedful.generate(ours, PROMPTS, max_tokens=24) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_greedy_tokens_under_penalties_are_the_same(name: str) -> None:
    theirs, ours = pair(name)
    expected, _ = theirs_says(
        theirs, PROMPTS[:1], max_new_tokens=24, repetition_penalty=1.5, no_repeat_ngram_size=2
    )
    assert heedful.generate(ours, PROMPTS[:1], max_tokens=24, repetition=1.5, no_repeat=2) == expected


SEARCHES: list[dict[str, Any]] = [
    {"beams": 1},
    {"beams": 4},
    {"beams": 8},
    {"beams": 4, "length_penalty": 2.0},
    {"beams": 4, "length_penalty": 0.0},
    {"beams": 4, "length_penalty": -1.0},
    {"beams": 8, "length_penalty": 0.6, "early_stopping": "never"},
    {"beams": 4, "early_stopping": True},
    {"beams": 8, "length_penalty": 1.5, "early_stopping": True},
    {"beams": 4, "no_repeat": 2, "repetition": 1.2},
]


@pytest.mark.parametrize("how", SEARCHES, ids=lambda h: " ".join(f"{k}={v}" for k, v in h.items()))
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_best_texts_and_their_scores_are_the_same(name: str, how: dict[str, Any]) -> None:
    theirs, ours = pair(name)
    beams, end = how["beams"], END[name]
    given = PROMPTS[:1] if "repetition" in how else PROMPTS  # theirs counts padding among the repeated
    words = {"beams": "num_beams", "no_repeat": "no_repeat_ngram_size", "repetition": "repetition_penalty"}
    expected, scores = theirs_says(
        theirs, given, max_new_tokens=16, num_return_sequences=beams, sequence_bias={(2,): end},
        **{words.get(k, k): v for k, v in how.items()},
    )  # fmt: skip
    found = heedful.generate(ours, given, max_tokens=16, n=beams, bias={2: end}, details=True, **how)
    assert [g.ids for row in found for g in row] == expected
    if beams > 1 and scores is not None:
        assert [g.score for row in found for g in row] == pytest.approx(scores, rel=1e-5, abs=1e-5)


def test_these_texts_end_at_several_lengths() -> None:
    """Otherwise the searches above would not show how finished texts are kept."""
    for name in PUBLISHED:
        how = {"beams": 8, "n": 8, "bias": {2: END[name]}, "details": True}
        found = heedful.generate(pair(name)[1], PROMPTS, max_tokens=16, **how)
        lengths = {len(g.ids) for row in found for g in row}
        assert len(lengths) > 2, name


@pytest.fixture(scope="module")
def smollm_there(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is the reference")
    folder: Path = tmp_path_factory.mktemp("smollm")
    heedful.save(smollm(), folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"beams": 4}, {"beams": 4, "length_penalty": 2.0}], ids=str)
def test_smollm_answers_as_in_transformers(how: dict[str, Any], smollm_there: Any) -> None:
    model = smollm()
    chat = model.tokenizer.chat([{"role": "user", "content": "Name three colours."}])
    ids = model.tokenizer.encode(chat, special=False)
    said = smollm_there.generate(
        torch.tensor([ids]), do_sample=False, max_new_tokens=24, pad_token_id=model.tokenizer.eos,
        **{{"beams": "num_beams"}.get(k, k): v for k, v in how.items()},
    )  # fmt: skip
    expected = [i for i in said[0, len(ids) :].tolist() if i != model.tokenizer.eos]
    assert heedful.generate(model, ids, max_tokens=24, **how) == expected
