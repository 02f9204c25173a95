"""A family and a part that somebody else wrote: what is saved of them can be loaded."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful.models import FAMILIES
from heedful.models.base import Config, Family, Model
from heedful.models.decoders.llama_lineage.llama import LLAMA, LlamaConfig
from heedful.models.family import derived, published_keys
from tests.properties.tiny import tiny

KNOWN = FAMILIES["gpt2"]


def with_buffers(config: Config) -> Model:
    """The known model, whose feed-forward parts give twice as much, by a buffer that no file holds."""
    model = KNOWN.build(config)
    for block in model.blocks:  # type: ignore[union-attr]
        block.ffn.register_buffer("scale", torch.full((1,), 2.0), persistent=False)  # type: ignore[union-attr]
        block.ffn.register_forward_hook(lambda part, _, out: part.scale * out)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("changes", [{"heads": {}}, {"build": with_buffers}], ids=["no-heads", "a-buffer"])
def test_a_family_without_heads_and_a_part_with_a_buffer_come_back(
    changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family: Family = replace(KNOWN, name="mine", model_types=(), presets={}, **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(FAMILIES, "mine", family)
    model = heedful.build("mine", seed=0, vocab=20, dim=16, layers=2, heads=2, context=8).eval()
    again = heedful.load(heedful.save(model, tmp_path))
    tokens = torch.tensor([[3, 5, 7]])
    assert again.config.head == model.config.head == tiny("gpt2").config.head
    assert torch.equal(again(tokens), model(tokens))


@dataclass(frozen=True, kw_only=True)
class DescendantConfig(LlamaConfig):
    """LLaMA with a window in some layers, no rotary positions in others, and a part of each head turned."""

    window: int = 3
    local: tuple[int, ...] = (0,)
    unrotated: tuple[int, ...] = (1,)
    rope_dim: int = 4


def test_a_config_may_say_itself_that_it_is_a_dataclass() -> None:
    @dataclass(frozen=True, kw_only=True)
    class WideConfig(DescendantConfig, window=5):
        wide: int = derived(lambda c: 2 * c.dim)

    config = WideConfig(dim=16, heads=2)
    assert (config.wide, config.change(dim=8).wide, config.window) == (32, 16, 5)  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        config.wide = 3  # type: ignore[misc]


def test_new_defaults_are_those_of_inherited_fields() -> None:
    with pytest.raises(TypeError, match="'widow'"):
        type("Wrong", (DescendantConfig,), {}, widow=3)


def test_a_descendant_of_llama_is_a_config_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(
        LLAMA, name="descendant", config=DescendantConfig, keys=published_keys(DescendantConfig), presets={},
        model_types=(), reads={"unrotated": "tuple[int, ...]"},
        write=lambda c: {"unrotated": list(c.unrotated)},
        read=lambda hf_config: {"unrotated": tuple(hf_config["unrotated"])},
    )  # fmt: skip
    monkeypatch.setitem(FAMILIES, "descendant", family)
    model = heedful.build(
        "descendant", seed=0, vocab=20, dim=16, layers=2, heads=2, hidden=24, context=16
    ).eval()
    first, second = (block.attn for block in model.blocks)  # type: ignore[union-attr]
    assert (first.window, second.window) == (3, None)
    assert first.rotary.dim == 4
    assert second.rotary is None
    again = heedful.load(heedful.save(model, tmp_path))
    assert again.config == model.config
    tokens = torch.tensor([[3, 5, 7, 2, 9]])
    assert torch.equal(again(tokens), model(tokens))
