"""Rotary angles that follow the length of a text: in steps, in pieces, packed, padded and served.

With longrope, a text of more than n₀ tokens has other angles at every position: steps equal one pass at
every length. A dynamic base changes with every token past n₀, and a key keeps the base it was written with: a
prompt equals one pass however it is cut. tests/parity/test_rotary_lengths.py compares the steps after it with
those of transformers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.decode.continuous import ContinuousBatch, GenerationTask, run_tasks
from heedful.decode.engines.graph_stepper import GraphStepper
from heedful.decode.engines.static_slots import StaticSlots
from heedful.decode.request import make_request
from heedful.decode.settings import GenerationSettings
from heedful.decode.slots import EagerSlots
from heedful.decode.stepper import EagerStepper
from heedful.models import FAMILIES
from heedful.models.base import LM
from heedful.nn.position import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    NTKScaling,
    Rotary,
    Scaling,
    YarnScaling,
)
from tests.properties.tiny import ALL, DECODERS, ids, tiny

SWITCH = 12  # n₀
SCALED = [family for family in ALL if "rope_scaling" in FAMILIES[family].tiny.field_names()]
SCALED.remove("olmo-hybrid")  # its tiny model has no positions
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
CORE = {("llama", "dynamic"), ("llama", "longrope"), ("deepseek-v3", "dynamic"), ("gpt-oss", "longrope")}
PAIRS = [
    pytest.param(family, kind, marks=[] if (family, kind) in CORE else pytest.mark.slow)
    for family in SCALED
    for kind in KINDS
]
WRITERS = [pair for pair in PAIRS if pair.values[0] in DECODERS]


def scaling_of(kind: str, dim: int) -> Scaling | None:
    spread = torch.linspace(1, 4, dim // 2).tolist()
    return {
        "default": None,
        "linear": LinearScaling(4.0),
        "dynamic": NTKScaling(4.0, SWITCH),
        "yarn": YarnScaling(4.0, SWITCH),
        "longrope": LongScaling(4.0, SWITCH, tuple(spread), tuple(3 * f for f in spread)),
        "llama3": Llama3Scaling(8.0, SWITCH),
    }[kind]


def scaled(family: str, kind: str, **changes: Any) -> LM:
    if getattr(FAMILIES[family].tiny, "rope_dim", 4) == 2:  # a single pair has no base to change
        changes["rope_dim"] = 4
    dim = next(part.dim for part in tiny(family, **changes).modules() if isinstance(part, Rotary))
    model = tiny(family, rope_scaling=scaling_of(kind, dim), **changes)
    assert isinstance(model, LM)
    return model


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@torch.no_grad()
def stepped(model: LM, tokens: Tensor, prompt: int, **how: Any) -> Tensor:
    """The logits after the prompt and after each token that follows it."""
    stepper = EagerStepper(model, **how)
    logits = [stepper.prefill(tokens[:, :prompt])]
    logits += [stepper.step(tokens[:, t]).clone() for t in range(prompt, tokens.shape[1])]
    return torch.stack(logits, 1)


@torch.no_grad()
def one_pass_each(model: LM, tokens: Tensor, prompt: int) -> Tensor:
    return torch.stack([model(tokens[:, :t])[:, -1] for t in range(prompt, tokens.shape[1] + 1)], 1)


@pytest.mark.parametrize(("family", "kind"), [p for p in WRITERS if p.values[1] != "dynamic"])
def test_steps_past_every_length_are_one_pass_over_the_text(family: str, kind: str) -> None:
    model = scaled(family, kind)
    tokens = ids(model, 2, SWITCH + 6)
    assert far(stepped(model, tokens, SWITCH - 3), one_pass_each(model, tokens, SWITCH - 3)) < 2e-4


@pytest.mark.parametrize(("family", "kind"), WRITERS)
def test_a_prompt_in_pieces_is_the_prompt_in_one_pass(family: str, kind: str) -> None:
    model = scaled(family, kind)
    tokens, prompt = ids(model, 2, 2 * SWITCH + 3), 2 * SWITCH + 1
    whole = stepped(model, tokens, prompt)
    assert far(stepped(model, tokens, prompt, chunk=5), whole) < 2e-4
    with torch.no_grad():
        assert far(whole[:, 0], model(tokens[:, :prompt])[:, -1]) < 2e-4


@pytest.mark.parametrize(("family", "kind"), PAIRS)
@torch.no_grad()
def test_a_packed_document_is_the_document_alone(family: str, kind: str) -> None:
    model = scaled(family, kind)
    sizes = (SWITCH - 4, 2 * SWITCH, 5)
    tokens = ids(model, 1, sum(sizes))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))[None]
    packed = model.encode(tokens, documents=documents).split(sizes, 1)
    for text, together in zip(tokens.split(sizes, 1), packed, strict=True):
        assert far(together, model.encode(text)) < 2e-4


@pytest.mark.parametrize(("family", "kind"), WRITERS)
@torch.no_grad()
def test_rows_of_a_padded_batch_are_the_texts_alone(family: str, kind: str) -> None:
    model = scaled(family, kind)
    lengths, more = (SWITCH - 5, SWITCH - 2, SWITCH + 4), 5
    texts = [ids(model, 1, n + more, seed=n) for n in lengths]
    alone = torch.cat([stepped(model, text, n) for text, n in zip(texts, lengths, strict=True)])
    for left in (True, False):
        prompt = torch.zeros(3, max(lengths), dtype=torch.long)
        valid = torch.zeros(3, max(lengths), dtype=torch.bool)
        for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
            where = slice(-n, None) if left else slice(n)
            prompt[row, where], valid[row, where] = text[0, :n], True
        stepper = EagerStepper(model)
        logits = [stepper.prefill(prompt, valid)]
        for t in range(more):
            new = torch.stack([text[0, n + t] for text, n in zip(texts, lengths, strict=True)])
            logits.append(stepper.step(new))
        assert far(torch.stack(logits, 1), alone) < 2e-4


@pytest.mark.parametrize(("family", "kind"), WRITERS)
@torch.no_grad()
def test_several_tokens_at_once_and_taken_back_are_single_steps(family: str, kind: str) -> None:
    model = scaled(family, kind)
    tokens, other = ids(model, 1, SWITCH + 6), ids(model, 1, 4, seed=9)
    expected = stepped(model, tokens, SWITCH - 2)
    for stepper in (EagerStepper(model), GraphStepper(model)):
        stepper.prefill(tokens[:, : SWITCH - 2])
        if not stepper.crops(4):
            return
        stepper.extend(other)  # guesses that do not hold, past the length
        stepper.crop(SWITCH - 2)
        got = torch.cat([stepper.extend(piece) for piece in tokens[:, SWITCH - 2 :].split((1, 4, 3), 1)], 1)
        assert far(got, expected[:, 1:]) < 2e-4


@pytest.mark.parametrize(("family", "kind"), WRITERS)
def test_every_engine_writes_the_same_text_past_every_length(family: str, kind: str) -> None:
    model = scaled(family, kind, context=64)
    lengths = (SWITCH - 3, SWITCH, SWITCH + 1, 2 * SWITCH)
    prompts = [ids(model, 1, n, seed=n)[0].tolist() for n in lengths]
    prompts.append(prompts[-1][:-5])  # the same beginning, of another length
    settings: Any = {"max_tokens": 12, "eos": ()}
    expected = [heedful.generate(model, p, fast=False, **settings) for p in prompts]
    assert heedful.generate(GraphStepper(model), prompts, **settings) == expected
    assert heedful.generate(model, prompts, fast=False, **settings) == expected
    for kind_of_slots in (EagerSlots, StaticSlots):
        slots = kind_of_slots(model, 3, 64)
        slots.chunk = 8
        batch, request = ContinuousBatch(slots), make_request(model, GenerationSettings(**settings))
        for prompt, text in zip(prompts, expected, strict=True):
            pieces: list[Any] = []
            run_tasks(batch, [GenerationTask(request, [prompt], pieces.append)])
            assert [piece.token for piece in pieces] == text, kind_of_slots.__name__


def test_a_beginning_read_for_another_length_is_not_used_again() -> None:
    model = scaled("phi3", "longrope", context=64)
    slots = EagerSlots(model, 2, 64)
    slots.chunk = 4
    long = ids(model, 1, SWITCH + 4)[0].tolist()
    first = slots.open(long, 40)
    slots.forward([(first, long)])
    assert slots.open(long[: SWITCH - 2], 40).reused == 0
    assert slots.open([*long[: SWITCH + 1], 7], 40).reused == SWITCH
