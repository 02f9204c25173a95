"""Every family that transformers has, with every head, built here: it opens there and comes back the same.

A family without parts of its own takes one head in the core run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError
from heedful.models import FAMILIES
from heedful.models.base import LM, Model
from tests.properties.tiny import variants

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # DeBERTa there is scripted

UNLIKE = {"umt5"}  # transformers always ties its output; tied models are compared in test_published.py
EVERY = [
    pytest.param(
        n, head, marks=pytest.mark.slow if n in variants() and head != next(iter(family.heads)) else ()
    )
    for n, family in FAMILIES.items()
    if family.model_types and n not in UNLIKE
    for head in family.heads
]
# Sines that its library makes anew, and reports for one of its two classes as missing.
SINES = {"roformer", "pegasus", "pegasus-decoder", "marian-decoder"}  # whose every class reports them
MADE = {("marian", "none"): {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}}


def made(family: str, **changes: Any) -> Model:
    """A tiny model whose weights are large enough for small differences to show."""
    if "cross" in FAMILIES[family].config.field_names():  # which published files have, and nothing reads
        changes["cross"] = True
    tiny = FAMILIES[family].tiny.change(**changes)
    model = heedful.build(family, seed=0, **{name: getattr(tiny, name) for name in tiny.__dict__["given"]})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@torch.no_grad()
def ours(model: Model, tokens: Tensor) -> Tensor:
    if isinstance(model, LM):
        return model.encode(tokens) if model.config.head == "none" else model(tokens)
    if model.config.head == "none":
        return model.hidden(tokens, tokens)  # type: ignore[operator]
    return model(tokens) if model.config.head == "classify" else model(tokens, tokens)


@torch.no_grad()
def theirs(reference: Any, model: Model, tokens: Tensor) -> Tensor:
    given = {} if isinstance(model, LM) or model.config.head == "classify" else {"decoder_input_ids": tokens}
    answer = reference(input_ids=tokens, **given)
    if model.config.head == "span":
        return torch.stack((answer.start_logits, answer.end_logits), -1)
    return answer[0]


@pytest.mark.parametrize(("family", "head"), EVERY)
def test_a_model_built_here_opens_there_and_comes_back(family: str, head: str, tmp_path: Path) -> None:
    model = made(family, head=head)
    torch.manual_seed(0)
    tokens = torch.randint(5, 60, (1, 7))
    tokens[:, -1] = 1 if family == "bigbird-pegasus" else 2  # BART classifies by the vector of its last </s>
    heedful.save(model, tmp_path / "ours")
    architecture = getattr(transformers, FAMILIES[family].heads[head])
    reference, told = architecture.from_pretrained(tmp_path / "ours", output_loading_info=True)
    missing = set(told["missing_keys"]) - MADE.get((family, head), set())
    assert {key for key in missing if family not in SINES or "embed_positions" not in key} == set()
    assert set(told["unexpected_keys"]) == set()
    expected = theirs(reference.eval(), model, tokens)
    found = ours(model, tokens)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)
    reference.save_pretrained(tmp_path / "theirs")
    back = heedful.load(tmp_path / "theirs")
    assert torch.allclose(ours(back, tokens), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt", {"hidden": 20}), ("gpt", {"act": "gelu"}), ("bert", {"types": 0}), ("bert", {"offset": 3}),
        ("mistral", {"bias": True}), ("llama", {"window": 3}), ("deepseek-v2", {"shared": 0}),
        ("stablelm", {"head_dim": 12}), ("gpt-neox", {"rope_dim": 3}), ("gptj", {"rope_dim": 10}),
        ("falcon", {"norms": 2, "parallel": False}), ("falcon", {"kv_heads": 2, "parallel": False}),
    ],
)  # fmt: skip
def test_what_no_published_config_can_say_is_refused(family: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes)).removesuffix("s")):
        made(family, **changes)
