"""Sparse dictionaries find the directions that values are made of; files, features and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful import Watch
from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.interp.activations import collect_activations, mean_loss
from heedful.interp.learn.dictionary import (
    ablate_features,
    dictionary_activations,
    feature_examples,
    fit_dictionary,
    load_dictionary,
    replace_value,
    score_dictionary,
    set_feature,
    strongest_features,
    train_dictionary,
)
from tests.properties.tiny import tiny

NAME = "blocks.0.output"


def texts(count: int = 20, length: int = 12, vocab: int = 30) -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(5, vocab, (count, length), generator=draw).tolist()


def sparse_sums(count: int = 4000, features: int = 24, dim: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    directions = F.normalize(torch.randn(features, dim), dim=1)
    weights = (0.5 + torch.rand(count, features)) * (torch.rand(count, features) < 0.06)
    return weights @ directions, directions


@pytest.mark.parametrize("kind", ["topk", "l1"])
def test_the_directions_of_sparse_sums_are_found(kind: str) -> None:
    x, directions = sparse_sums()
    made = fit_dictionary(
        x, x, NAME, NAME, width=48, kind=kind, k=3, l1=0.2, steps=400, batch=256, learning_rate=5e-3  # type: ignore[arg-type]
    )  # fmt: skip
    nearest = (F.normalize(directions, dim=1) @ made.decoder.detach().T).amax(1)
    assert float(nearest.mean()) > 0.85
    f = made.encode(x).detach()
    assert float((f > 0).float().sum(1).mean()) < (3.01 if kind == "topk" else 12)
    assert float((made(x).detach() - x).square().sum() / (x - x.mean(0)).square().sum()) < 0.3


def test_features_that_nothing_uses_are_begun_anew() -> None:
    x, _ = sparse_sums(2000)

    def dead(every: int) -> float:
        made = fit_dictionary(x, x, NAME, NAME, width=256, k=2, steps=100, batch=128, revive_every=every)
        return float((made.encode(x) == 0).all(0).float().mean())

    assert dead(20) < dead(0)


@pytest.mark.parametrize("family", ["llama", "lstm"])
def test_a_dictionary_keeps_most_of_a_value_and_of_what_follows_from_it(family: str) -> None:
    model = tiny(family)
    name = "blocks.0.output"
    made = train_dictionary(model, texts(), name, width=128, k=64, steps=250, batch=128, learning_rate=5e-3)
    found = score_dictionary(model, made, texts(8))
    assert found.variance_explained > 0.6
    assert found.l0 <= 64
    assert abs(found.loss_replaced - found.loss) < abs(found.loss_zero - found.loss)


def test_heads_are_replaced_by_their_mean() -> None:
    model, name = tiny("gpt2"), "blocks.0.attn.heads"
    dictionary = train_dictionary(model, texts(), name, width=32, k=4, steps=5)
    values = collect_activations(model, texts(8), [name])[name]
    mean = values.values[values.position > 0].mean(0)
    by_head = lambda heads: mean.view(heads.shape[1], 1, -1).expand_as(heads)
    loss = mean_loss(model, texts(8), Watch(edit={name: by_head}))
    assert score_dictionary(model, dictionary, texts(8)).loss_mean == pytest.approx(loss, abs=1e-5)


def test_a_transcoder_predicts_what_the_mlp_makes_of_its_input() -> None:
    model = tiny("gpt2")
    source, target = "blocks.0.ffn_norm.output", "blocks.0.ffn.output"
    made = train_dictionary(
        model, texts(), source, target, width=256, k=64, steps=200, batch=64, learning_rate=3e-3
    )
    found = score_dictionary(model, made, texts(8))
    assert found.variance_explained > 0.6
    tokens, seen = torch.tensor([[5, 9, 2, 7]]), Watch(source, target)
    model(tokens, watch=replace_value(made) + seen)
    torch.testing.assert_close(seen[target], made(seen[source]).detach())


def test_a_feature_is_taken_out_and_set_and_all_else_stays() -> None:
    model = tiny("gpt2")
    made = train_dictionary(model, texts(), NAME, width=64, k=8, steps=50, batch=64)
    tokens, plain = torch.tensor([[5, 9, 2, 7]]), Watch(NAME)
    model(tokens, watch=plain)
    f = made.encode(plain[NAME])
    feature = int(f[0, 1:].amax(0).argmax())
    for watch, wanted in ((ablate_features(made, [feature]), 0.0), (set_feature(made, feature, 2.0), 2.0)):
        seen = Watch(NAME)
        model(tokens, watch=watch + seen)
        want = plain[NAME] + (wanted - f[..., feature, None]) * made.direction(feature)
        torch.testing.assert_close(seen[NAME], want.detach(), atol=1e-5, rtol=1e-5)
    unused = int((f == 0).all(1)[0].nonzero()[0, 0])
    assert torch.equal(model(tokens, watch=ablate_features(made, [unused])), model(tokens))


def test_a_feature_steers_what_is_written() -> None:
    model = tiny("llama")
    made = train_dictionary(model, texts(), "blocks.1.output", width=64, k=8, steps=50, batch=64)
    write = lambda watch: heedful.generate(model, [5, 9, 2], max_tokens=6, temperature=0, watch=watch)
    assert write(set_feature(made, 3, 500.0)) != write(None)


def test_the_strongest_tokens_of_a_feature_stand_in_their_context() -> None:
    model, read = tiny("gpt2"), texts(6, 7)
    made = train_dictionary(model, read, NAME, width=32, k=4, steps=30, batch=32)
    found = dictionary_activations(model, made, read)
    for feature, examples in feature_examples(model, made, read, count=3, context=2).items():
        assert [e.activation for e in examples] == sorted((e.activation for e in examples), reverse=True)
        for e in examples:
            ids = read[e.text]
            assert e.token == str(ids[e.position])
            assert list(e.before) == [str(i) for i in ids[max(0, e.position - 2) : e.position]]
            row = (found.text == e.text) & (found.position == e.position)
            assert float(found.values[row, feature]) == pytest.approx(e.activation)


def test_a_feature_that_is_always_active_is_not_shown_before_a_special_one() -> None:
    model, read = tiny("gpt2"), texts()
    made = train_dictionary(model, read, NAME, width=32, k=4, steps=30, batch=32)
    found = dictionary_activations(model, made, read)
    values = torch.zeros_like(found.values)
    values[:, 0] = 9.0  # every token, and by far the strongest
    values[found.ids == read[0][3], 1] = 5.0
    values[found.ids == read[0][4], 2] = 6.0
    values[found.position == 0, 3] = 100.0  # the first of a causal model, which counts for nothing
    assert strongest_features(model, replace(found, values=values), 3) == [2, 1, 0]


def test_a_dictionary_comes_back_from_its_file(tmp_path: Path) -> None:
    x, _ = sparse_sums(200)
    made = fit_dictionary(x, x, NAME, NAME, width=20, k=3, steps=5)
    again = load_dictionary(made.save(tmp_path / "d.safetensors"))
    assert again.config == made.config
    assert torch.equal(again(x), made(x))
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(CorruptFile):
        load_dictionary(tmp_path / "bad.safetensors")
    with pytest.raises(NotFound):
        load_dictionary(tmp_path / "none.safetensors")
    with pytest.raises(NotFound, match="is a folder"):
        load_dictionary(tmp_path)


def test_what_cannot_be_learnt_or_found_says_why() -> None:
    x, _ = sparse_sums(100)
    made = fit_dictionary(x, x, NAME, NAME, width=20, k=3, steps=2)
    with pytest.raises(InputError, match="unknown feature 20"):
        ablate_features(made, [20])
    with pytest.raises(InputError, match="topk, l1"):
        fit_dictionary(x, x, NAME, NAME, kind="soft")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k=20 is more than width=8"):
        fit_dictionary(x, x, NAME, NAME, width=8, k=20)
    for setting in ("width", "k", "steps", "batch"):
        with pytest.raises(InputError, match=f"{setting}=0"):
            fit_dictionary(x, x, NAME, NAME, **{setting: 0})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="16 entries"):
        tiny("gpt2", dim=32, heads=4)(torch.tensor([[5, 6]]), watch=replace_value(made))


def test_the_threshold_of_a_batch_leaves_k_features_per_token_on_average() -> None:
    x, directions = sparse_sums()
    made = fit_dictionary(
        x, x, NAME, NAME, width=48, kind="batchtopk", k=3, steps=300, batch=128, learning_rate=5e-3
    )
    nearest = (F.normalize(directions, dim=1) @ made.decoder.detach().T).amax(1)
    assert float(nearest.mean()) > 0.85
    used = (made.encode(x) > 0).sum(1)
    assert 2 < float(used.float().mean()) < 4
    assert int(used.max()) > 3, "a batch shares out its features"


def test_the_first_features_of_a_matryoshka_dictionary_reconstruct_more() -> None:
    x, _ = sparse_sums()

    def error_of_first(prefixes: tuple[int, ...]) -> float:
        made = fit_dictionary(
            x, x, NAME, NAME, width=48, kind="batchtopk", k=3, prefixes=prefixes, steps=150, batch=128,
            learning_rate=5e-3,
        )  # fmt: skip
        f = made.encode(x).detach()
        f[:, 8:] = 0
        return float((made.decode(f).detach() - x).square().mean())

    assert error_of_first((8, 48)) < 0.95 * error_of_first(())
    with pytest.raises(InputError, match="do not grow to the width"):
        error_of_first((8, 16))


def test_a_crosscoder_has_one_set_of_features_for_several_layers() -> None:
    model, names = tiny("gpt2"), ["blocks.0.output", "blocks.1.output"]
    made = train_dictionary(model, texts(), names, width=128, k=48, steps=250, batch=128, learning_rate=5e-3)
    found = score_dictionary(model, made, texts(8))
    assert found.variance_explained > 0.6
    assert found.loss_replaced != found.loss_replaced, "it has no loss in the place of its values"
    both, watch = dictionary_activations(model, made, texts(1)), Watch(*names)
    model(torch.tensor(texts(1)), watch=watch)
    x = torch.cat([watch[name][0] for name in names], -1)
    torch.testing.assert_close(both.values, made.encode(x).detach(), atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="crosscoder"):
        replace_value(made)
