"""Direct logit attribution: the shares of parts, heads and tokens sum to the logit, in every family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful import Watch
from heedful.core.errors import InputError
from heedful.decode.quantize import quantize
from heedful.interp.inputs import Input, part_at, reading
from heedful.interp.intervene.ablation import without
from heedful.interp.observe.logit_attribution import logit_attribution
from heedful.models.base import Model, Seq2Seq
from heedful.nn.block import Block, ParallelBlock
from tests.properties.tiny import ALL, ids, source_ids, tiny

WORDS = [family for family in ALL if tiny(family).config.head != "detect"]


def given(model: Model) -> Input:
    if isinstance(model, Seq2Seq):
        return reading(model, source_ids(model, 1, 4), ids(model, 1, 5))
    return reading(model, ids(model, 1, 5))


def logit_of(model: Model, text: Input, position: int, answer: int) -> float:
    with torch.no_grad():
        return float(text.run(model)[0, position, answer])


@pytest.mark.parametrize("family", WORDS)
@pytest.mark.parametrize("position", [-1, 2])
def test_shares_of_parts_sum_to_the_logit(family: str, position: int) -> None:
    model = tiny(family)
    text = given(model)
    found = logit_attribution(model, text, 7, position=position)
    want = logit_of(model, text, position, 7)
    size = max(abs(want), float(found.values.abs().max()))
    assert abs(found.total - want) <= 1e-5 * size
    assert abs(found.logit - want) <= 1e-5 * size
    assert float(found.by_token().sum()) == pytest.approx(found.total)


@pytest.mark.parametrize("family", WORDS)
def test_every_part_that_adds_has_a_share_and_the_note_says_what_else_is_frozen(family: str) -> None:
    model = tiny(family)
    found = logit_attribution(model, given(model), 7)
    stack = model.decoder if isinstance(model, Seq2Seq) else model.blocks
    adds = all(isinstance(stack[i], Block | ParallelBlock) for i in range(len(stack)))  # type: ignore[index,arg-type]
    assert ("adds to nothing" in found.note) == (not adds)
    post = adds and any(isinstance(stack[i], Block) and stack[i].order == "post" for i in range(len(stack)))  # type: ignore
    assert ("Norms stand after" in found.note) == post
    if adds:
        parts = [n for n in found.names if n.split(".")[0] in ("blocks", "decoder")]
        assert len(parts) == sum(len(stack[i].names) for i in range(len(stack)))  # type: ignore
        assert any("embed" in n for n in found.names)


@pytest.mark.parametrize("family", WORDS)
def test_heads_and_the_tokens_they_look_at_sum_to_what_attention_adds(family: str) -> None:
    model = tiny(family)
    found = logit_attribution(model, given(model), 7, 9)
    bias = {path: found[path] - float(row.sum()) for path, row in found.heads.items()}
    for path, left in bias.items():
        has_bias = getattr(part_at(model, path).o, "bias", None) is not None
        assert has_bias or abs(left) <= 1e-5 * float(found.values.abs().max()), path
    for path, sources in found.sources.items():
        torch.testing.assert_close(sources.sum(1), found.heads[path], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_share_is_what_the_frozen_model_loses_without_the_part() -> None:
    """Take away what a head wrote from the sum before the last norm, whose scale is held."""
    model = tiny("llama")
    text = given(model)
    found = logit_attribution(model, text, 7, 9)
    seen = Watch("blocks.norm.scale", "blocks.0.attn.heads")
    text.run(model, seen)
    heads = torch.zeros_like(seen["blocks.0.attn.heads"])
    heads[:, 2] = seen["blocks.0.attn.heads"][:, 2]
    wrote = model.get_submodule("blocks.0.attn.o")(heads.transpose(1, 2).flatten(2))

    def without(x: Tensor) -> Tensor:
        return x - wrote

    held = Watch(edit={"blocks.1.output": without, "blocks.norm.scale": lambda _: seen["blocks.norm.scale"]})
    plain, less = text.run(model)[0, -1], text.run(model, held)[0, -1]
    lost = float((plain[7] - plain[9]) - (less[7] - less[9]))
    assert float(found.heads["blocks.0.attn"][2]) == pytest.approx(lost, abs=1e-5)


def test_a_difference_of_answers_is_the_difference_of_their_shares() -> None:
    model = tiny("gpt2")
    both, one, other = (logit_attribution(model, ids(model, 1, 5), *a) for a in ((7, 9), (7,), (9,)))
    torch.testing.assert_close(both.values, one.values - other.values, atol=1e-6, rtol=1e-5)
    assert both.top(1)[0][1] == pytest.approx(max((v for _, v in both.top(99)), key=abs))


@pytest.mark.parametrize("head", ["tag", "span"])
def test_heads_that_label_tokens_are_attributed(head: str) -> None:
    model = tiny("llama", head=head, **({"labels": 3} if head == "tag" else {}))
    text = given(model)
    found = logit_attribution(model, text, 1, position=2)
    assert found.total == pytest.approx(logit_of(model, text, 2, 1), rel=1e-5, abs=1e-5)


def test_a_model_in_whole_numbers_is_attributed() -> None:
    model = quantize(tiny("llama"), "int8")
    text = given(model)
    found = logit_attribution(model, text, 7)
    assert found.total == pytest.approx(logit_of(model, text, -1, 7), rel=1e-4, abs=1e-4)


def test_heads_that_are_no_sum_are_refused_in_one_line() -> None:
    for model in (tiny("electra"), tiny("bert", head="classify", labels=2)):
        with pytest.raises(InputError, match="head is not a sum of shares"):
            logit_attribution(model, ids(model, 1, 5), 0)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_shares_of_a_run_without_a_head_sum_to_the_logit_of_that_run(family: str) -> None:
    model = tiny(family)
    text, off = given(model), without(model, {"blocks.0.attn": [1]})
    found = logit_attribution(model, text, 7, watch=off)
    with torch.no_grad():
        want = float(text.run(model, off)[0, -1, 7])
    assert found.total == pytest.approx(want, abs=1e-5)
    assert float(found.heads["blocks.0.attn"][1]) == 0.0
    assert "blocks.0.attn" not in found.sources  # its heads are not what its pattern brought
    assert float(found.by_token().sum()) == pytest.approx(want, abs=1e-5)
