"""Recurrent encoder-decoders against naive loops written from the papers' equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn, sigmoid, tanh

import heedful
from heedful.core.errors import ConfigError
from heedful.models.base import Seq2Seq

S, T = 6, 5
SIZES: dict[str, Any] = {"vocab": 40, "source_vocab": 30, "dim": 8, "dropout": 0.0}


def make(family: str, **changes: Any) -> Seq2Seq:
    model = heedful.build(family, seed=0, **SIZES | changes)
    assert isinstance(model, Seq2Seq)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def pair(batch: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 30, (batch, S)), torch.randint(0, 40, (batch, T))


def far(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def weight(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(f"{name}.weight")


def gated(model: nn.Module, path: str, x: Tensor, h: Tensor) -> Tensor:
    """Bahdanau et al. 2015, A.1.1, for one vector x and one state h."""
    Wr, Wz, W = weight(model, f"{path}.x").split(len(h))
    br, bz, b = model.get_parameter(f"{path}.x.bias").split(len(h))
    Ur, Uz = weight(model, f"{path}.h").split(len(h))
    r, z = sigmoid(Wr @ x + br + Ur @ h), sigmoid(Wz @ x + bz + Uz @ h)
    return (1 - z) * h + z * tanh(W @ x + b + weight(model, f"{path}.n") @ (r * h))


def naive_rnnsearch(model: Seq2Seq, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and alignments of one pair, word by word   (A.2.1 and A.2.2)."""
    words = [weight(model, "embed.token")[w] for w in source]
    ahead, back, h, g = [], [], torch.zeros(8), torch.zeros(8)
    for x, y in zip(words, reversed(words), strict=True):
        h, g = gated(model, "encoder.0.ahead", x, h), gated(model, "encoder.0.back", y, g)
        ahead.append(h)
        back.insert(0, g)
    memory = [torch.cat(both) for both in zip(ahead, back, strict=True)]
    bridge, deep, out = (model.get_submodule(n) for n in ("bridge.w", "decoder.1.pairs", "head.out"))
    W, U, v = (weight(model, f"decoder.0.score.{n}") for n in "qkv")
    s, logits, alignment = tanh(bridge(back[0])), [], []
    for w in target:
        y = weight(model, "target_embed.token")[w]
        e = torch.stack([v[0] @ tanh(W @ s + U @ m) for m in memory])
        alpha = e.softmax(0)
        c = sum((a * m for a, m in zip(alpha, memory, strict=True)), torch.zeros(16))
        t = deep(torch.cat((s, y, c))).view(-1, 2).max(1).values
        logits.append(out(t))
        alignment.append(alpha)
        s = gated(model, "decoder.0.unit", torch.cat((y, c)), s)
    return torch.stack(logits), torch.stack(alignment)


def lstm_cell(model: nn.Module, path: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    bias = model.get_parameter(f"{path}.x.bias") + model.get_parameter(f"{path}.h.bias")
    i, f, g, o = (weight(model, f"{path}.x") @ x + weight(model, f"{path}.h") @ h + bias).split(len(h))
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def naive_luong(model: Seq2Seq, source: Tensor, target: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """Logits and alignments of one pair, word by word   (Luong et al. 2015 §3; the source read backwards)."""
    state = {(i, n): torch.zeros(8) for i in range(2) for n in "hc"}
    memory: list[Tensor] = []
    for w in source.flip(0):
        x = weight(model, "embed.token")[w]
        for i in range(2):
            state[i, "h"], state[i, "c"] = lstm_cell(model, f"encoder.{i}", x, state[i, "h"], state[i, "c"])
            x = state[i, "h"]
        memory.insert(0, x)
    fed, logits, alignment = torch.zeros(8), [], []
    part = model.get_submodule("decoder.0.score")
    scores = {
        "dot": lambda h, m: h @ m,
        "general": lambda h, m: h @ weight(part, "k") @ m,
        "concat": lambda h, m: weight(part, "v")[0] @ tanh(weight(part, "w") @ torch.cat((h, m))),
    }
    for w in target:
        x = torch.cat((weight(model, "target_embed.token")[w], fed))
        for i in range(2):
            path = f"decoder.0.layers.{i}"
            state[i, "h"], state[i, "c"] = lstm_cell(model, path, x, state[i, "h"], state[i, "c"])
            x = state[i, "h"]
        alpha = torch.stack([scores[score](x, m) for m in memory]).softmax(0)
        c = sum((a * m for a, m in zip(alpha, memory, strict=True)), torch.zeros(8))
        fed = tanh(weight(model, "decoder.0.mix") @ torch.cat((c, x)))
        logits.append(weight(model, "head.out") @ fed)
        alignment.append(alpha)
    return torch.stack(logits), torch.stack(alignment)


@torch.no_grad()
def test_rnnsearch_equals_a_loop_over_the_papers_equations() -> None:
    model = make("rnnsearch", table_dim=7, align=9, maxout=5)
    source, target = pair(1)
    watch = heedful.Watch("decoder.0.pattern")
    got = model(source, target, watch=watch)
    logits, alignment = naive_rnnsearch(model, source[0], target[0])
    assert far(got[0], logits) <= 1e-5
    assert far(model(source, target)[0], logits) <= 1e-5
    assert far(watch["decoder.0.pattern"][0, 0], alignment) <= 1e-6


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@torch.no_grad()
def test_luong_equals_a_loop_over_the_papers_equations(score: str) -> None:
    model = make("luong", layers=2, score=score)
    source, target = pair(1)
    watch = heedful.Watch("decoder.0.pattern")
    got = model(source, target, watch=watch)
    logits, alignment = naive_luong(model, source[0], target[0], score)
    assert far(got[0], logits) <= 1e-5
    assert far(watch["decoder.0.pattern"][0, 0], alignment) <= 1e-6


@pytest.mark.parametrize("reverse", [True, False])
@torch.no_grad()
def test_the_fixed_context_is_the_last_state_of_torchs_encoder(reverse: bool) -> None:
    model, (source, target) = make("seq2seq", layers=2, reverse=reverse), pair()
    peers = [nn.LSTM(8, 8, 2, batch_first=True) for _ in range(2)]
    for peer, name in zip(peers, ("encoder", "decoder"), strict=True):
        mine = [f"{name}.{i}.{w}" for i in range(2) for w in ("x.weight", "h.weight", "x.bias", "h.bias")]
        for theirs, ours in zip(peer.parameters(), mine, strict=True):
            theirs.copy_(model.get_parameter(ours))
    _, held = peers[0](model.embed.token(source.flip(1) if reverse else source))
    hidden, _ = peers[1](model.decoder_embed.token(target), held)
    assert far(model(source, target), model.head.get_submodule("out")(hidden)) <= 1e-6


@pytest.mark.parametrize("family", ["rnnsearch", "luong"])
@torch.no_grad()
def test_an_alignment_gives_padding_nothing_and_sums_to_one(family: str) -> None:
    model, (source, target) = make(family, layers=1), pair(3)
    valid = torch.ones(3, S, dtype=torch.bool)
    valid[0, 4:], valid[1, :2], valid[2] = False, False, False
    watch = heedful.Watch("decoder.0.pattern")
    logits = model(source, target, valid=valid, watch=watch)
    pattern = watch["decoder.0.pattern"]
    assert pattern.shape == (3, 1, T, S)
    assert pattern[~valid[:, None, None].expand_as(pattern)].abs().max() == 0
    assert far(pattern[:2].sum(-1), torch.ones(2, 1, T)) <= 1e-6
    assert torch.isfinite(logits).all()
    assert far(logits[0], model(source[:1, :4], target[:1])[0]) <= 1e-5


@pytest.mark.parametrize("family", ["rnnsearch", "luong"])
@torch.no_grad()
def test_an_edited_alignment_acts_from_its_step_on(family: str) -> None:
    model, (source, target) = make(family, layers=1), pair()

    def elsewhere(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        pattern[:, :, 2] = torch.eye(S)[0]
        return pattern

    watch = heedful.Watch("decoder.0.pattern", edit={"decoder.0.pattern": elsewhere})
    edited, plain = model(source, target, watch=watch), model(source, target)
    assert torch.equal(edited[:, :2], plain[:, :2])
    assert all(far(edited[:, t], plain[:, t]) > 1e-4 for t in range(2, T))
    free = heedful.Watch("decoder.0.pattern")
    model(source, target, watch=free)
    assert watch["decoder.0.pattern"][:, 0, 2, 0].min() == 1
    assert far(watch["decoder.0.pattern"][:, :, 3:], free["decoder.0.pattern"][:, :, 3:]) > 1e-6


@pytest.mark.parametrize("family", ["rnnsearch", "luong"])
@torch.no_grad()
def test_the_memory_is_projected_once_per_source(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (source, target) = make(family, layers=1), pair()
    score, calls = model.get_submodule("decoder.0.score"), []
    keys = score.keys
    monkeypatch.setattr(score, "keys", lambda memory: calls.append(1) or keys(memory))
    state = model.start(source)
    for t in range(T):
        model.step(target[:, t : t + 1], state)
    assert len(calls) == 1


@pytest.mark.parametrize("family", ["seq2seq", "rnnsearch", "luong"])
def test_the_gradient_reaches_the_first_word_of_the_source(family: str) -> None:
    model, (source, target) = make(family, layers=1), pair(1)
    source = torch.arange(S)[None]
    model(source, target)[:, -1].sum().backward()
    grad = weight(model, "embed.token").grad
    assert grad is not None
    assert grad[:S].abs().amax(1).min() > 0


def test_every_layer_of_a_feeding_decoder_shows_its_gates() -> None:
    model, (source, target), watch = make("luong", layers=2), pair(), heedful.Watch("decoder.0.*")
    model(source, target, watch=watch)
    assert all(watch[f"decoder.0.layers.{i}.{g}"].shape == (2, T, 8) for i in range(2) for g in "ifgoch")
    assert watch["decoder.0.a"].shape == (2, T, 8)


def test_an_unknown_score_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(ConfigError, match="dot, general, concat"):
        make("luong", score="cosine")
    with pytest.raises(ConfigError, match="use luong"):
        make("rnnsearch", layers=2)


def test_published_sizes_are_those_of_the_papers() -> None:
    count = lambda name: sum(p.numel() for p in heedful.build(name, device="meta").parameters())
    lstm = 4 * 1000 * (1000 + 1000 + 2)
    assert count("seq2seq-sutskever") == (160000 + 80000) * 1000 + 2 * 4 * lstm + 80000 * 1001
    assert round(2 * 4 * lstm / 1e6) == 64  # §3.4: 384M, of which 64M are recurrent
    assert round(count("seq2seq-sutskever") / 1e6) == 384
    K, m, n, l = 30000, 620, 1000, 500
    encoder = 2 * (3 * n * (m + n) + 3 * n)
    decoder = 3 * n * (m + n + 2 * n) + 3 * n
    align, deep, start = n * n + 2 * n * n + n, 2 * l * (n + m + 2 * n) + 2 * l, n * n + n
    assert count("rnnsearch-50") == 2 * K * m + encoder + decoder + align + deep + start + K * l + K
    fed = 4 * 1000 * (2000 + 1000 + 2)
    assert count("luong") == 3 * 50000 * 1000 + 4 * lstm + 3 * lstm + fed + 1000 * 1000 + 2000 * 1000
