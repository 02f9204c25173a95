"""The worked step: its numbers are those of autograd, its text can be recomputed, its words are right."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

from heedful.word2vec.definition import wampimuk


def test_the_outside_words_are_the_neighbours_and_the_noise_words():
    step = wampimuk()
    assert step.centre == "wampimuk"
    assert [r.word for r in step.rows if r.label] == ["furry", "little", "hiding", "in"]
    assert [r.word for r in step.rows if not r.label] == ["Australia", "cyber", "the", "1985"]


def test_the_numbers_are_autograds():
    step = wampimuk()
    v = torch.tensor(step.vector, dtype=torch.float64, requires_grad=True)
    u = torch.tensor([r.vector for r in step.rows], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([float(r.label) for r in step.rows], dtype=torch.float64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(u @ v, labels, reduction="sum")
    loss.backward()
    assert step.loss == pytest.approx(float(loss.detach()))
    assert step.gradient == pytest.approx(v.grad.tolist())
    for row, gradient in zip(step.rows, u.grad.tolist()):
        assert row.gradient == pytest.approx(gradient)
    new_v, new_u = v - step.rate * v.grad, u - step.rate * u.grad
    after = torch.nn.functional.binary_cross_entropy_with_logits(new_u @ new_v, labels, reduction="sum")
    assert step.loss_after == pytest.approx(float(after.detach()))
    assert step.loss_after < step.loss


def test_the_printed_arithmetic_holds_to_the_printed_precision():
    text = wampimuk().to_markdown().replace("−", "-")
    v = [float(x) for x in re.search(r"v = \[(.*?)\]", text)[1].split()]
    for line in [line for line in text.splitlines() if re.match(r"\| \w+ \| [01] ", line)]:
        _, _, label, u, x, p, loss, error, *_ = [cell.strip() for cell in line.split("|")]
        dot = sum(a * b for a, b in zip(v, map(float, u.strip("[]").split())))
        assert float(x) == pytest.approx(dot, abs=1e-4)
        assert float(p) == pytest.approx(1 / (1 + math.exp(-dot)), abs=1e-4)
        assert float(error) == pytest.approx(float(p) - int(label), abs=1e-4)
        assert float(loss) == pytest.approx(-math.log(float(p) if int(label) else 1 - float(p)), abs=3e-4)
    assert "-0.0000" not in text


def test_it_is_plain_data():
    assert json.loads(json.dumps(wampimuk().to_dict()))["rows"][0]["word"] == "furry"
