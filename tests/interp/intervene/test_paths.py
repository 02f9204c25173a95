"""Direct paths and gradients: a path is what it is by hand, and gradients come near the exact values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, reading, stack_of
from heedful.interp.intervene.comparison import PatchingResult
from heedful.interp.intervene.patching import (
    activation_patching,
    attribution_patching,
    edge_attribution,
    path_patching,
)
from heedful.models.base import Model, Seq2Seq
from heedful.nn.block import Block, ParallelBlock
from tests.interp.intervene.test_activation_patching import answers, two
from tests.properties.tiny import ALL, ids, tiny


def adds_up(family: str) -> bool:
    """Whether every layer adds to what later ones read."""
    _, stack = stack_of(tiny(family))
    blocks = [stack[i] for i in range(len(stack))]
    return all(isinstance(b, Block | ParallelBlock) and getattr(b, "order", "pre") == "pre" for b in blocks)


ADDITIVE = [family for family in ALL if adds_up(family)]


def ask(model: Model) -> tuple[Input, Input, int, int | None]:
    given = two(model)
    return *given, *answers(model, *given)


def value_at(found: PatchingResult, sender: str, receiver: str) -> float:
    return float(found.values[found.names.index(sender), found.columns.index(receiver)])


@torch.no_grad()
def restored(found: PatchingResult, logits: Tensor, right: int, wrong: int) -> float:
    d = float(logits[0, -1, right] - logits[0, -1, wrong])
    return (d - found.corrupt) / (found.clean - found.corrupt)


@torch.no_grad()
def test_a_path_into_a_part_is_what_it_is_with_all_other_parts_held() -> None:
    """By hand: every part between is held at its corrupt value while the sender's is clean; the receiver's
    output of that run is put into a plain one.
    """
    model = tiny("llama", layers=3)
    clean, corrupt, right, wrong = ask(model)
    found = path_patching(model, clean, corrupt, right, wrong)
    sent, held = Watch("blocks.0.attn.output"), Watch("*.output")
    clean.run(model, sent)
    corrupt.run(model, held)
    between = ("blocks.0.ffn.output", "blocks.1.attn.output", "blocks.1.ffn.output")
    put = lambda watch, name: lambda _: watch[name]
    edits = {name: put(held, name) for name in between}
    edits["blocks.0.attn.output"] = put(sent, "blocks.0.attn.output")
    got = Watch("blocks.2.attn.output", edit=edits)
    corrupt.run(model, got)
    last = corrupt.run(model, Watch(edit={"blocks.2.attn.output": lambda _: got["blocks.2.attn.output"]}))
    assert wrong is not None
    want = restored(found, last, right, wrong)
    assert value_at(found, "blocks.0.attn", "blocks.2.attn") == pytest.approx(want, abs=1e-4)
    assert torch.isnan(found.values[found.names.index("blocks.1.attn"), found.columns.index("blocks.0.ffn")])


@torch.no_grad()
@pytest.mark.parametrize("projection", ["q", "k", "v"])
def test_a_path_from_head_to_head_changes_one_projection_alone(projection: str) -> None:
    model = tiny("llama")
    clean, corrupt, right, wrong = ask(model)
    found = path_patching(model, clean, corrupt, right, wrong, "heads", projection)
    heads = [Watch("blocks.0.attn.heads") for _ in range(2)]
    for given, watch in zip((clean, corrupt), heads, strict=True):
        given.run(model, watch)
    change = torch.zeros_like(heads[0]["blocks.0.attn.heads"])
    change[:, 3] = (heads[0]["blocks.0.attn.heads"] - heads[1]["blocks.0.attn.heads"])[:, 3]
    wrote = model.get_submodule("blocks.0.attn.o")(change.transpose(1, 2).flatten(2))
    name = f"blocks.1.attn.{projection}"
    made = Watch(name, edit={"blocks.1.attn_norm.input": lambda x: x + wrote})
    corrupt.run(model, made)

    def put(values: Tensor) -> Tensor:
        values[:, 1] = made[name][:, 1]
        return values

    assert wrong is not None
    want = restored(found, corrupt.run(model, Watch(edit={name: put})), right, wrong)
    got = value_at(found, "blocks.0.attn head 3", f"{name} head 1")
    assert got == pytest.approx(want, abs=1e-4)
    assert abs(want) > 1e-5


@pytest.mark.parametrize("family", [f for f in ALL if f not in ADDITIVE])
def test_models_that_add_to_no_stream_are_refused_in_one_line(family: str) -> None:
    model = tiny(family)
    given = ask(model)
    with pytest.raises(InputError, match="adds to no stream") as caught:
        path_patching(model, *given, receivers=["logits"])
    assert "\n" not in str(caught.value)


def nearly_alike(model: Model) -> tuple[Input, Input]:
    """Two inputs that differ in one token, which nearly is the other's: first order is nearly all."""
    with torch.no_grad():
        table = model.tables["tokens"].table
        table[9] = table[8] + 1e-4 * torch.randn_like(table[8])
    target = ids(model, 1, 4) if isinstance(model, Seq2Seq) else None
    return reading(model, [5, 8, 7, 6], target), reading(model, [5, 9, 7, 6], target)


@pytest.mark.parametrize("family", ALL)
def test_gradients_give_what_patching_gives_where_inputs_differ_little(family: str) -> None:
    model = tiny(family).double()
    given = nearly_alike(model)
    right, wrong = answers(model, *given)
    exact = activation_patching(model, *given, right, wrong)
    for steps in (1, 4):
        near = attribution_patching(model, *given, right, wrong, steps=steps)
        torch.testing.assert_close(near.values, exact.values, atol=2e-3, rtol=1e-2)
        assert near.correlation(exact) > 0.999


@pytest.mark.parametrize("what", ["attention", "mlp", "heads", "*.hidden"])
def test_gradients_of_parts_and_heads_give_what_patching_gives(what: str) -> None:
    model = tiny("llama").double()
    given = nearly_alike(model)
    right, wrong = answers(model, *given)
    exact, near = (f(model, *given, right, wrong, what) for f in (activation_patching, attribution_patching))
    torch.testing.assert_close(near.values, exact.values, atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("family", ADDITIVE)
def test_gradients_of_edges_give_what_path_patching_gives(family: str) -> None:
    model = tiny(family).double()
    given = nearly_alike(model)
    right, wrong = answers(model, *given)
    exact = path_patching(model, *given, right, wrong)
    near = edge_attribution(model, *given, right, wrong, steps=2)
    torch.testing.assert_close(near.values, exact.values, atol=2e-3, rtol=1e-2, equal_nan=True)
    assert exact.values[:, -1].isfinite().all()
    assert exact.values[-1, :-1].isnan().all()


def test_nodes_are_known_by_their_names() -> None:
    model = tiny("gpt2")
    given = ask(model)
    with pytest.raises(InputError, match="no node 'blocks.0.atn'; did you mean 'blocks.0.attn'"):
        path_patching(model, *given, "blocks.0.atn")
    with pytest.raises(InputError, match="no sender comes before a receiver"):
        path_patching(model, *given, "blocks.1.ffn", "blocks.0.attn")
    with pytest.raises(InputError, match="steps"):
        attribution_patching(model, *given, steps=0)
    with pytest.raises(InputError, match="of other patches"):
        attribution_patching(model, *given).correlation(path_patching(model, *given))
