"""Which tokens an answer hangs on: of every head, and of models in whole numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.core.errors import InputError
from heedful.decode.quantize import quantize
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import reading, token_vectors
from heedful.interp.observe.lens import neighbours
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import ALL, ids, source_ids, tiny

QUANTISED = [f for f in ALL if f not in ("bilstm", "gla")]  # nothing to round; norms that pass near zero


def given(model: Model) -> object:
    if isinstance(model, Seq2Seq):
        return reading(model, source_ids(model, 1, 4), ids(model, 1, 5))
    return reading(model, ids(model, 1, 5))


def test_the_bundled_classifier_is_attributed_by_the_names_of_its_labels() -> None:
    model = heedful.load("sentiment")
    text = "a wonderful film"
    found = attribution(model, text, answer="POSITIVE", steps=256)
    assert found.answer == 1
    assert found.tokens[2] == "wonderful"
    assert int(found.scores.argmax()) == 2
    with torch.no_grad():
        assert attribution(model, text, method="gradient").answer == int(
            reading(model, text).run(model).argmax()
        )
    with pytest.raises(InputError, match="'POSITIV' is not a label of this model; did you mean 'POSITIVE'"):
        attribution(model, text, answer="POSITIV")


@pytest.mark.parametrize("head", ["classify", "next", "tag", "span"])
def test_shares_sum_to_the_rise_of_an_answer_of_any_head(head: str) -> None:
    model = tiny("bert", head=head, **({"labels": 3} if head in ("classify", "tag") else {}))
    found = attribution(model, ids(model, 1, 6), answer=1)
    assert found.gap is not None
    assert found.total is not None
    assert abs(found.gap) <= 1e-3 * max(1.0, abs(found.total))
    assert float(found.scores.sum()) == pytest.approx(found.total - found.gap, abs=1e-5)
    with pytest.raises(InputError, match="9 is not a label"):
        attribution(model, ids(model, 1, 6), answer=9)


def test_shares_that_miss_the_rise_are_refused_and_more_steps_find_them() -> None:
    model = tiny("llama")
    with torch.no_grad():  # sharp attention: the logit jumps on the way, and few points miss where
        for block in model.blocks:  # type: ignore[union-attr]
            block.attn.q.weight.mul_(40)  # type: ignore[union-attr]
    tokens = ids(model, 1, 6)
    with pytest.raises(InputError, match=r"steps=16 the shares sum to .* rises by .* set steps=\d+"):
        attribution(model, tokens, steps=16)
    found = attribution(model, tokens)
    assert found.total is not None
    assert float(found.scores.sum()) == pytest.approx(found.total, abs=1e-3 * max(1.0, abs(found.total)))


def test_a_head_that_tells_replaced_words_is_attributed_token_by_token() -> None:
    model = tiny("electra")
    tokens = ids(model, 1, 6)
    by_name = attribution(model, tokens, answer="replaced", position=2)
    assert torch.equal(by_name.scores, attribution(model, tokens, position=2).scores)
    vectors = model.embed.token(tokens).detach().requires_grad_()  # type: ignore[union-attr]
    watch = heedful.Watch(edit={"embed.token": lambda _: vectors})
    (slope,) = torch.autograd.grad(model(tokens, watch=watch)[0, 2], vectors)
    simple = attribution(model, tokens, position=2, method="gradient")
    assert (simple.scores - (slope * vectors).sum(-1)[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", QUANTISED)
def test_a_model_in_whole_numbers_has_gradients_and_shares_that_sum(family: str, kind: str) -> None:
    model = quantize(tiny(family), kind)
    text = given(model)
    found = attribution(model, text, position=2)  # type: ignore[arg-type]
    assert found.gap is not None
    assert found.total is not None
    assert abs(found.gap) <= 1e-3 * max(1.0, abs(found.total))
    assert attribution(model, text, position=2, method="gradient").scores.abs().max() > 0  # type: ignore[arg-type]
    assert max(gradient_by_distance(model, length=4, samples=1).norms) > 0


@torch.no_grad()
def test_token_vectors_in_whole_numbers_are_what_they_stand_for() -> None:
    model = quantize(tiny("gpt2"), "int8")
    table = token_vectors(model.embed)  # type: ignore[arg-type]
    every = torch.arange(model.embed.vocab)[None]  # type: ignore[union-attr]
    assert torch.equal(table, model.embed.token(every)[0])  # type: ignore[union-attr]
    found = neighbours(model, ids(model, 1, 4), name="embed.token", count=1)
    assert [near[0][0] for near in found.near] == list(found.tokens)
    plain = tiny("gpt2").embed.token.weight  # type: ignore[union-attr]
    assert F.cosine_similarity(table, plain, dim=-1).min() > 0.999


def test_a_model_without_a_head_or_a_position_outside_is_refused_in_one_line() -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match="position 9 is outside 0 … 3"):
        attribution(model, ids(model, 1, 4), position=9)
    with pytest.raises(InputError, match="not a token of the vocabulary; choose 0 … 127"):
        attribution(model, ids(model, 1, 4), answer=128)
    bare = tiny("bert", head="none")
    with pytest.raises(InputError, match="no head"):
        attribution(bare, ids(bare, 1, 4))
