"""A direction from two lists of texts changes what is written; no strength changes nothing."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.activations import collect_activations
from heedful.interp.inputs import stack_of
from heedful.interp.intervene.steering import logit_change, steer, steering_vector
from tests.properties.tiny import ALL, GENERATORS, by_kinds, source_ids, tiny

LISTS = [[5, 9, 2, 7], [6, 8, 3]], [[11, 12, 6], [7, 7, 10, 4, 9]]


@pytest.mark.parametrize("family", ALL)
def test_a_vector_is_the_difference_of_the_means_of_each_text_alone(family: str) -> None:
    model = tiny(family)
    where, _ = stack_of(model)
    name = "encoder.0.output" if where == "decoder" else "blocks.0.output"
    means = []
    for texts in LISTS:
        rows = []
        for text in texts:
            watch = Watch(name)
            model.encode(torch.tensor([text]), watch=watch)  # type: ignore[operator]
            rows.append(
                watch[name][0, 1:].mean(0) if where == "blocks" and model.causal else watch[name][0].mean(0)
            )  # type: ignore[union-attr]
        means.append(torch.stack(rows).mean(0))
    torch.testing.assert_close(
        steering_vector(model, *LISTS, name), (means[0] - means[1]).detach(), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("family", by_kinds(GENERATORS))
def test_zero_strength_changes_no_token_and_a_great_one_does(family: str) -> None:
    model = tiny(family)
    where, stack = stack_of(model)
    name = f"{where}.{len(stack) - 1}.output"
    prompt = source_ids(model, 1, 5)[0].tolist()
    width = collect_width(model, name)
    vector = torch.randn(width, generator=torch.Generator().manual_seed(3))
    write = lambda watch: heedful.generate(model, prompt, max_tokens=6, temperature=0, watch=watch)
    plain = write(None)
    for how, value in (("add", None), ("ablate", None), ("clamp", 3.0)):
        assert write(steer(model, name, vector, 0.0, how, value=value)) == plain
    assert write(steer(model, name, vector, 50.0)) != plain


def collect_width(model: heedful.models.base.Model, name: str) -> int:
    return int(model.names()[name][-1])


def test_ablate_takes_the_direction_away_and_clamp_sets_its_coordinate() -> None:
    model, name = tiny("llama"), "blocks.0.output"
    vector = torch.randn(model.config.dim)
    unit = vector / vector.norm()
    clamped = steer(model, name, vector, method="clamp", value=2.5)
    for watch, want in ((steer(model, name, vector, method="ablate"), 0.0), (clamped, 2.5)):
        seen = Watch(name)
        model(torch.tensor([[5, 9, 2]]), watch=watch + seen)
        torch.testing.assert_close(seen[name] @ unit, torch.full((1, 3), want), atol=1e-4, rtol=0)


def test_a_value_of_several_heads_is_steered_as_one_vector() -> None:
    model, name = tiny("gpt2"), "blocks.0.attn.heads"
    vector = steering_vector(model, *LISTS, name)
    plain, seen = Watch(name), Watch(name)
    tokens = torch.tensor([[5, 9, 2]])
    model(tokens, watch=plain)
    model(tokens, watch=steer(model, name, vector, 2.0) + seen)
    heads = plain[name].shape[1]
    torch.testing.assert_close(
        seen[name] - plain[name], 2 * vector.view(1, heads, 1, -1).expand_as(plain[name])
    )


def test_the_change_of_logits_is_that_of_two_runs() -> None:
    model = tiny("gpt2")
    watch = steer(model, "blocks.1.output", torch.ones(model.config.dim), 3.0)
    found = logit_change(model, [5, 9, 2, 7], watch)
    tokens = torch.tensor([[5, 9, 2, 7]])
    torch.testing.assert_close(found.before, model(tokens)[0, -1].log_softmax(-1).detach())
    torch.testing.assert_close(found.after, model(tokens, watch=watch)[0, -1].log_softmax(-1).detach())
    rose, fell = found.largest_changes(model, 3)
    assert all(c > 0 for _, c in rose)
    assert all(c < 0 for _, c in fell)


def test_layers_after_the_last_that_is_wanted_are_not_computed() -> None:
    model = tiny("gpt2", layers=3)
    ran: list[int] = []
    model.blocks[2].register_forward_pre_hook(lambda *_: ran.append(2))  # type: ignore[union-attr]
    found = collect_activations(model, [[5, 9], [7, 8, 6]], ["blocks.0.output"])["blocks.0.output"]
    assert (found.values.shape, ran) == ((5, model.config.dim), [])


def test_padding_changes_no_activation() -> None:
    model = tiny("llama")
    many = collect_activations(model, [[5, 9, 2], [7, 8, 6, 4, 9], [3]], ["blocks.1.output"])[
        "blocks.1.output"
    ]
    alone = collect_activations(model, [[5, 9, 2]], ["blocks.1.output"])["blocks.1.output"]
    torch.testing.assert_close(many.values[many.text == 0], alone.values, atol=1e-5, rtol=1e-5)
    assert many.ids[many.text == 2].tolist() == [3]


def test_rows_come_in_the_order_of_the_texts_so_that_labels_in_that_order_fit() -> None:
    texts = [[5, 9, 2], [7, 8, 6, 4, 9], [3], [6, 6, 1, 2]]
    found = collect_activations(tiny("llama"), texts, ["blocks.1.output"], max_tokens=6)["blocks.1.output"]
    assert found.ids.tolist() == [token for text in texts for token in text]
    assert found.text.tolist() == [number for number, text in enumerate(texts) for _ in text]
    assert found.position.tolist() == [at for text in texts for at in range(len(text))]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: steer(m, "blocks.0.output", torch.zeros(m.config.dim)), "zero"),
        (lambda m: steer(m, "blocks.0.output", torch.ones(3), method="push"), "is unknown"),
        (lambda m: steer(m, "blocks.0.output", torch.ones(3), method="clamp"), "needs a value"),
        (lambda m: m(torch.tensor([[5]]), watch=steer(m, "blocks.0.output", torch.ones(3))), "3"),
        (lambda m: steering_vector(m, "one text", [[5]], "blocks.0.output"), "must be a list"),
        (lambda m: steering_vector(m, [[5]], [[6]], "blocks.*.output"), "wildcard"),
        (lambda m: steering_vector(m, [[5]], [[6]], "blocks.0.attn.pattern"), "key"),
        (lambda m: steering_vector(m, [[5]], [[6]], "blocks.0.atn.output"), "nothing here"),
    ],
)
def test_what_cannot_be_steered_says_why(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(tiny("gpt2"))  # type: ignore[operator]
