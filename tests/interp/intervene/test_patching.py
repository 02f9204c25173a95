"""Activations carried from one input to another: by position, by name, and with answers given as texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, reading
from heedful.interp.intervene.patching import causal_trace, patch
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import ids, source_ids, tiny


def two(model: Model, length: int = 5) -> tuple[Tensor, Tensor]:
    """A text, and the same with another second token."""
    clean = source_ids(model, 1, length)
    corrupt = clean.clone()
    corrupt[0, 1] = 5 + (corrupt[0, 1] + 3) % (model.tables["tokens"].vocab - 5)
    return clean, corrupt


def speaking(tmp_path: Path) -> Model:
    """A decoder with a tokenizer in which " cat" is one token."""
    file = tmp_path / "lines.txt"
    file.write_text("the cat sat on a mat and the dog ran to the cat\n" * 20, encoding="utf-8")
    model = tiny("gpt2", vocab=320)
    model.tokenizer = heedful.train_tokenizer("bpe", file, 320)
    return model


def test_a_negative_position_counts_from_the_end() -> None:
    model = tiny("gpt2")
    clean, corrupt = two(model)
    for t in (-1, -4):
        want = patch(model, clean, corrupt, ["blocks.0.output"], [5 + t])
        assert torch.equal(patch(model, clean, corrupt, ["blocks.0.output"], [t]), want)


@pytest.mark.parametrize("positions", [[5], [-6], [0, 99]])
def test_a_position_outside_the_text_is_refused_in_one_line(positions: list[int]) -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match=rf"0 … 4; unknown position {positions[-1]}") as caught:
        patch(model, *two(model), ["blocks.0.output"], positions)
    assert "\n" not in str(caught.value)


def test_a_value_of_the_whole_text_has_no_positions_to_patch() -> None:
    model = tiny("bert", head="classify", labels=3)
    clean, corrupt = two(model)
    with pytest.raises(InputError, match=r"head\.logits has no positions"):
        patch(model, clean, corrupt, ["head.logits"], [0])
    whole = patch(model, clean, corrupt, ["head.logits"])
    assert torch.equal(whole, reading(model, clean).run(model))


@pytest.mark.parametrize("name", ["blocks.0.atn.pattern", "blocks.7.output", "blocks.*.atn.pattern"])
def test_a_name_to_patch_that_nothing_has_is_refused_with_the_nearest(name: str) -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match="nothing here is called") as caught:
        patch(model, *two(model), ["blocks.0.output", name])
    assert "'blocks." in str(caught.value).partition("; ")[2]


@pytest.mark.parametrize("family", ["transformer", "rnnsearch"])
@torch.no_grad()
def test_an_encoder_decoder_is_traced_after_the_same_target(family: str) -> None:
    """What the model writes for the clean text is read both times: by itself it would write two texts."""
    model = tiny(family)
    clean, corrupt = two(model)
    written = reading(model, clean).target
    assert isinstance(written, Tensor)
    other = reading(model, corrupt).target
    assert other is None or not torch.equal(written, other), "they must differ for this to say something"
    given = [reading(model, text, written) for text in (clean, corrupt)]
    best, worst = (x.run(model)[0, -1] for x in given)
    move = best - worst
    right, wrong = int(move.argmax()), int(move.argmin())
    trace = causal_trace(model, clean, corrupt, right, wrong)
    assert trace == causal_trace(model, *given, right, wrong)
    assert trace == causal_trace(model, clean, corrupt, right, wrong, target=written)
    assert {len(row) for row in trace.values()} == {written.shape[1]}
    name = list(trace)[-1]
    patched = patch(model, clean, corrupt, [name], [-1])[0, -1]
    gap = lambda logits: float(logits[right] - logits[wrong])
    want = (gap(patched) - gap(worst)) / (gap(best) - gap(worst))
    assert trace[name][-1] == pytest.approx(want, abs=1e-4)


def test_inputs_with_different_targets_cannot_be_compared() -> None:
    model = tiny("transformer")
    clean, corrupt = two(model)
    one, other = (reading(model, x, ids(model, 1, 4, seed)) for seed, x in ((1, clean), (2, corrupt)))
    with pytest.raises(InputError, match="different targets"):
        causal_trace(model, one, other, 7, 8)


@pytest.mark.parametrize(("sizes", "said"), [((5, 3, 4, 4), "sources"), ((4, 3, 4, 4), "targets")])
def test_sources_and_targets_must_be_as_long_each(sizes: tuple[int, ...], said: str) -> None:
    """Five and three tokens are not four and four, though they are as many together."""
    model = tiny("transformer")

    def given(source: int, target: int) -> Input:
        return reading(model, source_ids(model, 1, source), ids(model, 1, target))

    first, second = given(*sizes[:2]), given(*sizes[2:])
    with pytest.raises(InputError, match=f"the two {said} must have as many tokens"):
        patch(model, first, second, ["decoder.0.output"], [0])
    with pytest.raises(InputError, match=f"the two {said} must have as many tokens"):
        causal_trace(model, first, second, 7, 8)


def test_answers_may_be_texts_of_one_token(tmp_path: Path) -> None:
    model = speaking(tmp_path)
    assert model.tokenizer is not None
    one, two = (model.tokenizer.encode(text, special=False) for text in (" cat", " the"))
    assert len(one) == len(two) == 1
    texts = ("the cat sat on a mat", "the dog sat on a mat")
    if len({len(model.tokenizer.encode(text)) for text in texts}) > 1:
        texts = ("the cat sat on a mat", "the mat sat on a mat")
    by_text = causal_trace(model, *texts, " cat", " the")
    assert by_text == causal_trace(model, *texts, one[0], two[0])
    with pytest.raises(InputError, match="tokens of this model") as caught:
        causal_trace(model, *texts, " cat", " Rome")
    assert "\n" not in str(caught.value)


def test_an_answer_that_is_no_token_is_refused_in_one_line() -> None:
    model = tiny("gpt2")
    clean, corrupt = two(model)
    with pytest.raises(InputError, match="128 is not a token of the vocabulary; choose 0 … 127"):
        causal_trace(model, clean, corrupt, 128, 3)
    with pytest.raises(InputError, match="no tokenizer; give the id of ' Paris'"):
        causal_trace(model, clean, corrupt, " Paris", " Rome")


def test_a_classifier_is_traced_by_its_labels() -> None:
    model = tiny("bert", head="classify", labels=2)
    model.hf_config["id2label"] = {"0": "bad", "1": "good"}
    clean, corrupt = two(model)
    by_name = causal_trace(model, clean, corrupt, "good", "bad")
    assert by_name == causal_trace(model, clean, corrupt, 1, 0)
    with pytest.raises(InputError, match="'goood' is not a label of this model; did you mean 'good'"):
        causal_trace(model, clean, corrupt, "goood", "bad")


def test_the_edit_of_the_readme_runs() -> None:
    model = heedful.build("llama", layers=2, dim=64, heads=4, vocab=128)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    off = Watch(edit={"blocks.0.attn.pattern": lambda p: p * 0})
    assert (model(tokens, watch=off) - model(tokens)).abs().max() > 0
    assert not isinstance(model, Seq2Seq)
