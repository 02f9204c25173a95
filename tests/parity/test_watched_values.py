"""Every value that a watch shows is the one `transformers` computes: seven families by hooks on its modules.

A text in one pass, rows with padding, and a prompt followed by cached steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.models.base import LM, Model, Seq2Seq
from tests.parity.cases import find_case
from tests.parity.harness import publish
from tests.parity.hooked_values import DERIVE, TABLE, Form, expand, hooked

TOLERANCE = 4e-6
ROWS, LENGTH, PADDING, PROMPT = 2, 9, 3, 6
NOT_THERE = ("blocks.*.ssm.pattern",)  # transformers computes no such value


@dataclass(frozen=True)
class Pair:
    """One architecture here and there, and the table of its values."""

    id: str
    model: Model
    reference: Any
    rows: list[tuple[str, str, str, Form]]


@pytest.fixture(scope="module", params=TABLE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    published = publish(find_case(request.param), tmp_path_factory.mktemp("published"))
    rows = list(expand(TABLE[request.param], published.reference))
    return Pair(request.param, heedful.load(published.folder), published.reference, rows)


def texts(model: Model) -> tuple[Tensor, Tensor | None]:
    """Return the tokens, and a target that begins with the start token if there are two sides."""
    tokens = torch.randint(5, model.config.vocab, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    if not isinstance(model, Seq2Seq):
        return tokens, None
    return tokens, torch.cat((torch.full((ROWS, 1), model.start_token), tokens.flip(1)), 1)


def padding(model: Model) -> Tensor:
    """Return which tokens are real: a decoder is padded on the left, what an encoder reads on the right."""
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    left = isinstance(model, LM) and model.causal
    valid[0, :PADDING] = not left
    valid[0, LENGTH - PADDING :] = left
    return valid


@torch.no_grad()
def run_there(pair: Pair, valid: Tensor | None) -> dict[tuple[str, str], Tensor]:
    tokens, target = texts(pair.model)
    options: dict[str, Any] = {} if target is None else {"decoder_input_ids": target}
    if valid is not None:
        options["attention_mask"] = valid.long()
    if valid is not None and pair.id in ("gpt2", "llama", "deepseek-v3-grouped"):
        options["position_ids"] = (valid.long().cumsum(1) - 1).clamp(min=0)
    if pair.id != "bert-mlm":
        options["use_cache"] = False
    with hooked(pair.reference) as found:
        pair.reference(input_ids=tokens, **options)
    if pair.id in DERIVE:
        DERIVE[pair.id](pair.reference, found)
    return found


@torch.no_grad()
def run_here(pair: Pair, valid: Tensor | None) -> Watch:
    tokens, target = texts(pair.model)
    watch = Watch("*")
    pair.model(tokens, *(() if target is None else (target,)), valid=valid, watch=watch)
    return watch


@torch.no_grad()
def step_here(pair: Pair, valid: Tensor | None) -> Watch:
    """The same in a prompt and steps of one token."""
    (tokens, target), watch, model = texts(pair.model), Watch("*"), pair.model
    assert isinstance(model, LM | Seq2Seq)
    if target is not None:
        state, rest = model.start(tokens, valid=valid, watch=watch), target[:, 1:]
    else:
        prompt, rest = tokens[:, :PROMPT], tokens[:, PROMPT:]
        state = model.start(prompt, valid=None if valid is None else valid[:, :PROMPT], watch=watch)
    for t in range(rest.shape[1]):
        model.step(rest[:, t : t + 1], state, watch=watch)
    return watch


def gap(name: str, watch: Watch, theirs: Tensor, valid: Tensor | None) -> float:
    """Return the largest difference at real tokens; of scores and biases where a token may look."""
    ours = watch[name]
    theirs = theirs.expand_as(ours) if ours.shape[0] == theirs.shape[0] else theirs
    assert theirs.shape[1:] == ours.shape[1:], (name, theirs.shape, ours.shape)
    far, axis = (ours - theirs).abs(), watch.positions[name]
    looks = name.replace("scores", "pattern").replace(".bias", ".0.attn.pattern")
    if looks != name:
        far = far.where(watch[looks][: len(far)] > 0, 0.0)
    if (
        valid is not None
        and axis is not None
        and far.shape[axis] == valid.shape[1]
        and len(far) == len(valid)
    ):
        far = far.movedim(axis, 1)[valid]
    return float(far.max()) / max(1.0, float(theirs.abs().max()))


def compare(pair: Pair, watch: Watch, found: dict[tuple[str, str], Tensor], valid: Tensor | None) -> None:
    target = isinstance(pair.model, Seq2Seq)
    for name, module, what, form in pair.rows:
        theirs = form(found[module, what], watch[name])
        of_source = (
            not target or name.startswith(("embed", "encoder")) or name.endswith(("cross.k", "cross.v"))
        )
        assert gap(name, watch, theirs, valid if of_source else None) <= TOLERANCE, name


def test_the_table_has_every_value_that_there_is(pair: Pair) -> None:
    missing = set(pair.model.names()) - {name for name, *_ in pair.rows}
    assert {name.replace("0", "*").replace("1", "*") for name in missing} <= set(NOT_THERE)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_every_value_is_that_of_transformers(pair: Pair, padded: bool) -> None:
    valid = padding(pair.model) if padded else None
    compare(pair, run_here(pair, valid), run_there(pair, valid), valid)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_cached_steps_show_the_values_of_the_whole_text(pair: Pair, padded: bool) -> None:
    if isinstance(pair.model, LM) and not pair.model.causal:
        pytest.skip("an encoder has no steps")
    valid = padding(pair.model) if padded else None
    compare(pair, step_here(pair, valid), run_there(pair, valid), valid)
