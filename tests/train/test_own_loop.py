"""The page about your own data, loss, model and head: its code runs, and what it makes can be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import NotFound
from heedful.models.base import LM
from tests.train import toys

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the code of the page leaves behind."""
    names: dict[str, Any] = {"__name__": "own_loop", "print": lambda *values: None}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(code, str(PAGE), "exec"), names)
        names["folder"] = Path.cwd()
    return names


def test_a_model_of_parts_is_counted_as_it_is(made: dict[str, Any]) -> None:
    model = made["assemble"]()
    count = heedful.count(model)
    assert count.parameters == sum(p.numel() for p in model.parameters())
    assert count.flops_per_token > 2 * count.parameters - 2 * model.embed.token.weight.numel()
    assert (model.config.vocab, model.config.dim, model.config.layers, model.config.head) == (12, 32, 2, "lm")


def test_a_model_of_parts_comes_back_with_its_weights(made: dict[str, Any]) -> None:
    tokens = torch.tensor([[3, 10, 4, 11]])
    saved = heedful.load(made["folder"] / "sums", into=made["assemble"]())
    trained = heedful.load(made["folder"] / "runs/sums/checkpoints/step-000060", into=made["assemble"]())
    assert torch.equal(saved(tokens), trained(tokens))
    with pytest.raises(NotFound, match=r"heedful-assembled.*into=model"):
        heedful.load(made["folder"] / "sums")


def test_a_run_of_a_model_of_parts_is_resumed(made: dict[str, Any]) -> None:
    config = heedful.TrainConfig(
        steps=62, lr=3e-3, schedule="cosine", folder=made["folder"] / "runs/sums", resume=True
    )
    steps = list(heedful.fit(made["assemble"](), made["answer_loss"], made["data"], config))
    assert [step.number for step in steps] == [61, 62]


def test_a_head_of_your_own_is_saved_with_the_model(made: dict[str, Any]) -> None:
    model, again = made["model"].eval(), made["again"]
    tokens = torch.tensor([[3, 10, 4, 11]])
    assert torch.equal(model(tokens), again(tokens))
    body = toys.tiny("gpt2")
    body.head = made["MeanHead"](body.config.dim)
    heedful.save(body, made["folder"] / "gpt2")
    other = toys.tiny("gpt2")
    other.head = made["MeanHead"](other.config.dim)
    filled = heedful.load(made["folder"] / "gpt2", into=other)
    assert torch.equal(filled(tokens), body.eval()(tokens))


def test_the_parts_are_public_names_of_one_package(made: dict[str, Any]) -> None:
    assert {"Attention", "Block", "Embedding", "Head", "LMHead", "Stack"} <= set(dir(heedful.nn))
    assert isinstance(made["assemble"](), LM)
    with pytest.raises(AttributeError, match="no public name 'Atention'"):
        _ = heedful.nn.Atention
