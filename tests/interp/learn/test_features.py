"""What a feature stands for: tokens, density, logits and neighbours, each against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.core.errors import InputError
from heedful.interp import describe_features, feature_examples
from heedful.interp.activations import collect_activations, content_tokens
from heedful.interp.learn.dictionary import Dictionary, dictionary_activations, fit_dictionary
from heedful.interp.learn.features import feature_logits
from heedful.models.base import Model
from tests.properties.tiny import tiny

TEXTS = [[5, 9, 2, 7, 11, 4], [6, 8, 3, 4, 9, 9], [7, 7, 1, 2, 3]]


def trained(model: Model, source: str, target: str | None = None) -> Dictionary:
    width = model.config.dim
    values = torch.randn(60, width, generator=torch.Generator().manual_seed(1))
    return fit_dictionary(values, values, source, target or source, width=12, k=4, steps=5)


def test_a_feature_is_described_by_its_activations() -> None:
    model = tiny("gpt2")
    dictionary = trained(model, "blocks.0.output")
    activations = dictionary_activations(model, dictionary, TEXTS)
    values = activations.values[content_tokens(model, activations)]
    for one in describe_features(model, dictionary, TEXTS, range(12), count=3, context=2):
        active = values[:, one.feature][values[:, one.feature] > 0]
        assert one.tokens == len(values)
        assert one.density == pytest.approx(len(active) / len(values))
        assert sum(one.counts) == len(active)
        assert not one.edges or one.edges[-1] == pytest.approx(float(active.max()))
        examples = feature_examples(model, dictionary, TEXTS, [one.feature], count=3, context=2)
        assert one.examples == examples[one.feature]
    again = describe_features(model, dictionary, activations, [3], count=3, context=2)
    assert again == describe_features(model, dictionary, TEXTS, [3], count=3, context=2)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_logits_are_those_of_the_direction_through_the_last_norm_and_the_head(family: str) -> None:
    model = tiny(family)
    dictionary = trained(model, "blocks.1.output")
    d, norm = dictionary.direction(5), model.blocks.norm
    centred = d - d.mean() if isinstance(norm, torch.nn.LayerNorm) else d
    unit = norm.weight * centred / (centred.square().mean() + norm.eps).sqrt()
    logits = (model.head.out.weight @ unit).detach()
    torch.testing.assert_close(feature_logits(model, dictionary, 5), logits - logits.mean())
    (one,) = describe_features(model, dictionary, TEXTS, [5], count=4)
    assert [value for _, value in one.promoted] == sorted((v for _, v in one.promoted), reverse=True)
    assert one.promoted[0][1] == pytest.approx(float((logits - logits.mean()).max()))
    assert one.suppressed[0][1] == pytest.approx(float((logits - logits.mean()).min()))


def test_neighbours_are_the_features_with_the_greatest_cosines() -> None:
    model = tiny("gpt2")
    dictionary = trained(model, "blocks.0.output")
    (one,) = describe_features(model, dictionary, TEXTS, [2], count=3)
    cosines = F.cosine_similarity(dictionary.direction(2)[None], torch.stack(
        [dictionary.direction(i) for i in range(12)]), dim=1)  # fmt: skip
    cosines[2] = -2
    assert [i for i, _ in one.neighbours] == cosines.topk(3).indices.tolist()
    assert one.neighbours[0][1] == pytest.approx(float(cosines.max()), abs=1e-6)


def test_a_direction_that_reaches_no_head_has_no_logits() -> None:
    model = tiny("t5")
    dictionary = trained(model, "encoder.0.output")
    (one,) = describe_features(model, dictionary, TEXTS[:1], [0])
    assert one.promoted == one.suppressed == []
    classifier = heedful.build("bert", vocab=32, dim=16, layers=1, heads=2, head="classify").eval()
    (one,) = describe_features(classifier, trained(classifier, "blocks.0.output"), TEXTS[:1], [0])
    assert one.promoted == []


def test_an_unknown_feature_is_named() -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match="they are 0 … 11"):
        describe_features(model, trained(model, "blocks.0.output"), TEXTS, [12])


def test_a_direction_of_heads_reaches_the_logits_through_the_output_matrix() -> None:
    model = tiny("gpt2")
    dictionary = trained(model, "blocks.0.attn.heads")
    written = dictionary.direction(3) @ model.blocks[0].attn.o.weight.T  # type: ignore[operator]
    stream = trained(model, "blocks.0.output")
    stream.decoder.data[3] = written / stream.target_scale
    torch.testing.assert_close(
        feature_logits(model, dictionary, 3), feature_logits(model, stream, 3), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", ["attn_norm.output", "ffn_norm.input", "attn.q"])
def test_a_direction_that_is_not_added_to_the_stream_has_no_logits(name: str) -> None:
    model = tiny("gpt2")
    assert len(feature_logits(model, trained(model, f"blocks.0.{name}"), 0)) == 0
    for added in ("blocks.0.input", "blocks.0.after_attn", "blocks.1.ffn.output", "embed.output"):
        assert len(feature_logits(model, trained(model, added), 0)) == model.head.out.out_features  # type: ignore[union-attr]


def test_the_first_token_of_an_encoder_counts_and_that_of_a_decoder_does_not() -> None:
    model = tiny("t5")
    names = ["encoder.0.output", "decoder.0.output"]
    values = collect_activations(model, TEXTS[:1], names)
    source, target = (content_tokens(model, values[name]) for name in names)
    assert bool(source[0])
    assert not bool(target[0])
