"""Recipes of the literature against the same done by hand with hooks, and on the bundled model."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.intervene.recipes import function_vector, noise_trace, patchscope, remove_direction
from heedful.interp.intervene.steering import steer
from heedful.interp.learn.activation_store import save_activations
from heedful.interp.learn.probes import sentence_probes
from heedful.models.base import Model
from tests.decode.toy import letters
from tests.properties.tiny import tiny

IDS = [5, 9, 2, 7, 4]


@cache
def copier() -> Model:
    return heedful.load("induction", dtype=torch.float32)


def test_a_noise_trace_is_what_hooks_give() -> None:
    model = tiny("gpt2")
    result = noise_trace(model, IDS, [1, 2], 3, samples=4, noise=2.0, seed=5)
    table = model.embed.token.weight  # type: ignore[union-attr]
    drawn = torch.randn(4, 2, table.shape[1], generator=torch.Generator().manual_seed(5))
    clean: list[Tensor] = []

    def run(layers: list[int], position: int | None) -> float:
        def corrupt(module: object, args: object, output: Tensor) -> Tensor:
            output = output.clone()
            output[:, 1:3] += 2.0 * table.std() * drawn
            return output

        def restore(layer: int, module: object, args: object, output: Tensor) -> Tensor:
            output = output.clone()
            output[:, position] = clean[layer][0, position]
            return output

        handles = [model.embed.token.register_forward_hook(corrupt)]  # type: ignore[union-attr]
        for layer in layers:
            handles.append(model.blocks[layer].register_forward_hook(partial(restore, layer)))  # type: ignore[operator]
        chance = model(torch.tensor([IDS] * 4))[:, -1].softmax(-1)[:, 3].mean()
        for handle in handles:
            handle.remove()
        return float(chance)

    with torch.no_grad():
        watch = Watch("blocks.*.output")
        best = float(model(torch.tensor([IDS]), watch=watch)[0, -1].softmax(-1)[3])
        clean[:] = [watch[name] for name in watch]
        worst = run([], None)
        assert (result.clean, result.corrupt) == (pytest.approx(best), pytest.approx(worst, rel=1e-3))
        for layer, position in ((0, 1), (0, 3), (1, 4)):
            want = (run([layer], position) - worst) / (best - worst)
            assert float(result.values[layer, position]) == pytest.approx(want, abs=2e-3)
        # An even window begins one layer earlier than it goes on after the layer (Meng et al. 2022).
        wide = noise_trace(model, IDS, [1, 2], 3, samples=4, noise=2.0, seed=5, window=2)
        for layers, position in (([0], 2), ([0, 1], 1)):
            want = (run(layers, position) - worst) / (best - worst)
            assert float(wide.values[layers[-1], position]) == pytest.approx(want, abs=2e-3)
    with pytest.raises(InputError, match="no tokens"):
        noise_trace(model, IDS, [])


def test_noise_on_the_last_time_that_a_name_occurred_is_mended_there() -> None:
    text = "Zorvane met Kelthra in Ostrim. Later, Zorvane met Kel"
    tokens = copier().tokenizer.tokens(copier().tokenizer.encode(text))
    place = len(tokens) // 2 - 1
    result = noise_trace(copier(), text, list(range(place)), window=2, samples=4)
    assert result.clean > result.corrupt
    assert float(result.values[:, -1].max()) > 0.9, "all of the answer is at the end in the last layer"


@pytest.mark.parametrize(
    ("name", "into"),
    [("blocks.1.output", None), ("blocks.1.output", "blocks.0.output"), ("blocks.0.attn.heads", None)],
)
def test_a_patchscope_writes_after_a_prompt_with_another_vector(name: str, into: str | None) -> None:
    model = tiny("gpt2", vocab=300)
    model.tokenizer = letters()
    with torch.no_grad():
        model.blocks[0].attn.o.weight.mul_(30)  # type: ignore[operator]  # so that heads decide what is written
    source, target = "abcab", "bca"
    settings = {"max_tokens": 3, "temperature": 0, "eos": ()}
    result = patchscope(model, source, 2, name, target, 1, into, **settings)
    seen, ids = Watch(name), model.tokenizer.encode(target)
    count = len(ids)
    model(torch.tensor([model.tokenizer.encode(source)]), watch=seen)
    vector = seen[name][0, ..., 2, :]

    def put(value: Tensor) -> Tensor:
        value[..., 1, :] = vector
        return value

    for _ in range(3):  # without a cache
        logits = model(torch.tensor([ids]), watch=Watch(edit={into or name: put}))
        ids = [*ids, int(logits[0, -1].argmax())]
    assert result.steered == model.tokenizer.decode(ids[count:])
    same = patchscope(model, target, 1, name, target, 1, **settings)
    assert same.steered == same.plain


def test_a_function_vector_is_the_sum_of_what_heads_write_and_has_their_effects() -> None:
    model = tiny("gpt2")
    prompts, shuffled, answers = [IDS, [6, 9, 2, 3]], [[4, 3, 9, 7], [8, 2, 2]], [11, 12]
    result = function_vector(model, prompts, shuffled, answers, heads=2)
    means: list[Tensor] = []
    for ids in prompts:
        watch = Watch("blocks.*.attn.heads")
        model(torch.tensor([ids]), watch=watch)
        means.append(torch.stack([watch[name][0, :, -1] for name in watch]).detach())
    mean = torch.stack(means).mean(0)  # (L, H, K)
    part = model.blocks[1].attn  # type: ignore[operator]
    total = 0.0
    for ids, answer in zip(shuffled, answers, strict=True):

        def hook(module: object, args: tuple[Tensor]) -> tuple[Tensor]:
            x = args[0].clone()
            size = mean.shape[-1]
            x[:, -1, 2 * size : 3 * size] = mean[1, 2]
            return (x,)

        before = model(torch.tensor([ids]))[0, -1].softmax(-1)[answer]
        handle = part.o.register_forward_pre_hook(hook)
        after = model(torch.tensor([ids]))[0, -1].softmax(-1)[answer]
        handle.remove()
        total += float((after - before).detach()) / 2
    assert float(result.effects[1, 2]) == pytest.approx(total, abs=1e-6)
    size, want = mean.shape[-1], 0.0
    for name, head in result.heads:
        layer = int(name.split(".")[1])
        matrix = model.blocks[layer].attn.o.weight.detach()  # type: ignore[operator]
        want = want + matrix[:, head * size : (head + 1) * size] @ mean[layer, head]
    torch.testing.assert_close(result.vector, want, atol=1e-5, rtol=1e-5)
    assert result.effects.flatten().topk(2).indices.tolist() == [
        int(n.split(".")[1]) * mean.shape[1] + h for n, h in result.heads
    ]
    with pytest.raises(InputError, match="1 answers"):
        function_vector(model, prompts, shuffled, [11])


def test_a_function_vector_counts_what_stands_between_the_heads_and_their_matrix() -> None:
    model = tiny("diffllama")
    result = function_vector(model, [IDS], [[4, 3, 9, 7]], [11], heads=1)
    ((name, head),) = result.heads
    part, watch = model.get_submodule(name), Watch(f"{name}.hidden")
    model(torch.tensor([IDS]), watch=watch)
    size = watch[f"{name}.hidden"].shape[-1] // part.heads  # type: ignore[operator]
    at = slice(head * size, (head + 1) * size)
    want = part.o.weight[:, at] @ watch[f"{name}.hidden"][0, -1, at]  # type: ignore[union-attr, index]
    torch.testing.assert_close(result.vector, want.detach(), atol=1e-5, rtol=1e-5)


def test_steering_the_last_token_leaves_the_others() -> None:
    model, vector = tiny("gpt2"), torch.ones(tiny("gpt2").config.dim)  # type: ignore[attr-defined]
    plain, seen = Watch("blocks.0.output"), Watch("blocks.0.output")
    model(torch.tensor([IDS]), watch=plain)
    model(torch.tensor([IDS]), watch=steer(model, "blocks.0.output", vector, 2.0, tokens="last") + seen)
    change = seen["blocks.0.output"] - plain["blocks.0.output"]
    assert not change[:, :-1].any()
    torch.testing.assert_close(change[0, -1], 2 * vector, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj"])
def test_a_model_without_a_direction_never_writes_it(family: str) -> None:
    model = tiny(family)
    v = torch.randn(int(model.names()["blocks.0.output"][-1]), generator=torch.Generator().manual_seed(0))
    changed, watch = remove_direction(model, v), Watch("blocks.*.output", "embed.output")
    logits = changed(torch.tensor([IDS]), watch=watch).detach()
    for name in watch:
        assert float((watch[name].detach() @ (v / v.norm())).abs().max()) < 1e-5
    # The same by edits of everything that is written.
    names = ["embed.output", *(n for n in model.names() if n.endswith((".attn.output", ".ffn.output")))]
    ablated = steer(model, names[0], v, method="ablate")
    for name in names[1:]:
        ablated = ablated + steer(model, name, v, method="ablate")
    with torch.no_grad():
        want, plain = (model(torch.tensor([IDS]), watch=w) for w in (ablated, None))
    torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
    assert float((plain - logits).abs().max()) > 1e-4


def test_what_has_no_single_matrix_is_refused() -> None:
    for family in ("bert", "mixtral", "gemma2", "lstm"):
        model = tiny(family)
        with pytest.raises(InputError):
            remove_direction(model, torch.ones(int(model.names()["embed.output"][-1])))


def test_sentence_probes_tell_texts_apart_from_texts_and_from_disk(tmp_path: Path) -> None:
    model, draw = tiny("gpt2"), torch.Generator().manual_seed(0)
    drawn = [torch.randint(5, 15, (10,), generator=draw) + 10 * (n % 2) for n in range(80)]
    texts, labels = [ids.tolist() for ids in drawn], ["low", "high"] * 40
    names = ["blocks.0.output", "blocks.1.output"]
    result = sentence_probes(model, texts, labels, names)
    assert float(result.accuracy.mean()) > 0.9
    assert float(result.selectivity.min()) > 0.2
    store = save_activations(model, texts, names, tmp_path, shard_tokens=50)
    assert torch.equal(sentence_probes(model, store, labels).accuracy, result.accuracy)
    with pytest.raises(InputError, match="80 texts and 79 labels"):
        sentence_probes(model, texts, labels[1:])
