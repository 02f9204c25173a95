"""Worked gradients against autograd, to 1e-6, by computations of their own; where they vanish and explode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.classroom.arithmetic.explain import examples
from heedful.classroom.arithmetic.worked import AUTOGRAD, Derivation
from heedful.core.errors import HeedfulError, InputError
from tests.classroom.arithmetic.parse import check_lines

BACKWARD = [name for name in examples() if name.endswith("-gradient")]
SEEDS = range(8)


def leaf(value: object) -> Tensor:
    return torch.tensor(np.asarray(value), dtype=torch.float64, requires_grad=True)


def same(mine: object, theirs: Tensor | None) -> None:
    assert theirs is not None
    np.testing.assert_allclose(np.asarray(mine), theirs.detach().numpy(), atol=1e-6, rtol=0)


def draw(seed: int, *shape: int) -> list:
    return np.random.default_rng([seed, *shape]).normal(size=shape).tolist()


@pytest.mark.parametrize("name", BACKWARD)
def test_every_shipped_gradient_is_within_a_millionth_of_autograd(name: str) -> None:
    worked = heedful.explain(name)
    assert worked.check is not None
    assert worked.check <= 1e-6
    assert worked.check_source == AUTOGRAD
    assert f"checked: at most {worked.check:.1e} from the gradients of autograd" in worked.text()


def test_there_is_a_gradient_of_softmax_attention_lstm_cross_entropy_and_norm() -> None:
    wanted = {"softmax", "attention", "lstm", "rnn", "cross-entropy", "norm"}
    assert {name.removesuffix("-gradient") for name in BACKWARD} == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_softmax(seed: int) -> None:
    z, above = leaf(draw(seed, 4)), torch.tensor(draw(seed + 100, 4), dtype=torch.float64)
    (torch.exp(z) / torch.exp(z).sum() * above).sum().backward()
    worked = heedful.explain({"topic": "softmax-gradient", "logits": z.tolist(), "above": above.tolist()})
    same(worked["gradient of the scores of all"], z.grad)
    same(worked["the same by the Jacobian"], z.grad)


@pytest.mark.parametrize("seed", SEEDS)
def test_cross_entropy(seed: int) -> None:
    z = leaf(draw(seed, 5))
    loss = torch.nn.functional.cross_entropy(z[None], torch.tensor([seed % 5]))
    loss.backward()
    worked = heedful.explain({"topic": "cross-entropy-gradient", "logits": z.tolist(), "target": seed % 5})
    same(worked["gradient of the logits"], z.grad)
    same(worked["loss"], loss)
    same(worked["the same in bits"], loss / np.log(2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_attention(seed: int, mask: str | None) -> None:
    Q, K, V = (leaf(draw(seed + n, 3, 2)) for n in range(3))
    above = torch.tensor(draw(seed + 9, 3, 2), dtype=torch.float64)
    scores = Q @ K.t() / 2**0.5
    if mask:
        scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    (scores.softmax(-1) @ V * above).sum().backward()
    values = {"Q": Q.tolist(), "K": K.tolist(), "V": V.tolist(), "above": above.tolist(), "mask": mask}
    worked = heedful.explain({"topic": "attention-gradient", "tokens": ["a", "b", "c"], **values})
    for letter, theirs in (("q", Q.grad), ("k", K.grad), ("v", V.grad)):
        same(np.stack([worked[f"d{letter} of {name}"] for name in "abc"]), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_layer_norm(seed: int) -> None:
    x, gamma, beta = (leaf(draw(seed + n, 4)) for n in range(3))
    above = torch.tensor(draw(seed + 9, 4), dtype=torch.float64)
    gap = x - x.mean()
    ((gamma * gap / (gap.pow(2).mean() + 1e-5).sqrt() + beta) * above).sum().backward()
    values = {"x": x.tolist(), "gamma": gamma.tolist(), "beta": beta.tolist(), "above": above.tolist()}
    worked = heedful.explain({"topic": "norm-gradient", **values})
    same(worked["gradient of x"], x.grad)
    same(worked["gradient of γ"], gamma.grad)


@pytest.mark.parametrize("seed", SEEDS)
def test_rnn_through_time(seed: int) -> None:
    X, h, W, U = (leaf(draw(seed, *shape)) for shape in ((4, 2), (3,), (3, 2), (3, 3)))
    above = torch.tensor(draw(seed + 9, 3), dtype=torch.float64)
    states = [h]
    for x in X:
        states.append(torch.tanh(W @ x + U @ states[-1]))
        states[-1].retain_grad()
    (states[-1] * above).sum().backward()
    values = {"X": X.tolist(), "h": h.tolist(), "W": W.tolist(), "U": U.tolist(), "above": above.tolist()}
    worked = heedful.explain({"topic": "rnn-gradient", **values})
    for t in range(4):
        same(worked[f"dh {t}"], states[t].grad)
    same(worked["gradient of W"], W.grad)
    same(worked["gradient of U"], U.grad)


@pytest.mark.parametrize("seed", SEEDS)
def test_lstm_through_time(seed: int) -> None:
    X, h, c, W, U, b = (
        leaf(draw(seed + n, *shape)) for n, shape in enumerate(((3, 2), (2,), (2,), (8, 2), (8, 2), (8,)))
    )
    above = torch.tensor(draw(seed + 9, 2), dtype=torch.float64)
    state, cell, cells = h, c, []
    for x in X:
        i, f, g, o = (W @ x + U @ state + b).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        cell.retain_grad()
        cells.append(cell)
    (state * above).sum().backward()
    values = {key: value.tolist() for key, value in zip("XhcWUb", (X, h, c, W, U, b), strict=True)}
    worked = heedful.explain({"topic": "lstm-gradient", **values, "above": above.tolist()})
    same(worked["dh 0"], h.grad)
    same(worked["dc 0"], c.grad)
    same(worked["dc 2 with what comes by h"], cells[1].grad)


def test_gradients_vanish_last_and_explode_where_the_titles_say() -> None:
    for name in ("rnn-gradient", "lstm-gradient"):
        for part in heedful.explain(name).lines:
            assert isinstance(part, Derivation)
            word, label = part.title.split()[-1], "size of dc" if name == "lstm-gradient" else "size "
            sizes = [float(line.value) for line in part.walk() if line.label.startswith(label)]
            share = sizes[-1] / sizes[0]
            assert word == ("vanishes" if share < 0.1 else "explodes" if share > 10 else "lasts"), part.title
            assert f"it {word}." in part.note


def test_a_wrong_gradient_would_be_refused() -> None:
    sheet = Derivation(check_source=AUTOGRAD)
    with pytest.raises(HeedfulError, match="differs from the gradients of autograd"):
        sheet.compare("gradient", np.array([1.0, 2.0 + 1e-5]), torch.tensor([1.0, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("name", BACKWARD)
def test_the_printed_gradients_read_back_give_their_results(name: str) -> None:
    assert check_lines(heedful.explain(name).text(digits=6).splitlines(), 6) > 4


def test_sizes_that_do_not_fit_are_one_line() -> None:
    for bad, said in (
        ({"topic": "attention-gradient", "Q": [[1]], "K": [[1], [2]], "V": [[1]], "above": [[1]]}, "as many"),
        (
            {"topic": "lstm-gradient", "X": [[1]], "h": [0], "c": [0], "W": [[1]], "U": [[1]], "above": [1]},
            "4 × 1",
        ),
        ({"topic": "softmax-gradient", "logits": [1, 2], "above": [1]}, "do not fit"),
        ({"topic": "cross-entropy-gradient", "logits": [1, 2], "target": "moon"}, "moon"),
    ):
        with pytest.raises(InputError, match=said):
            heedful.explain(bad)
