"""Whom John gives a drink to, in SmolLM2-135M: found by patching, by shares in the logit and by paths."""

from __future__ import annotations

import pytest

import heedful
from heedful.core.errors import HeedfulError
from heedful.interp.intervene.patching import activation_patching, attribution_patching, path_patching
from heedful.interp.observe.attention import attention
from heedful.interp.observe.logit_attribution import logit_attribution
from heedful.models.base import Model

CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPT = "When Mary and John went to the store, Mary gave a drink to"
ANSWERS = (" Mary", " John")
MOVER, SUBJECT = "blocks.23.attn", 9  # the layer of the head; where John stands again

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Model:
    try:
        return heedful.load("smollm2-135m-instruct")
    except HeedfulError as error:
        pytest.skip(f"SmolLM2-135M is not at hand: {error}")


def test_one_head_looks_at_the_repeated_name_and_writes_against_it(model: Model) -> None:
    shares = logit_attribution(model, CLEAN, *ANSWERS)
    assert shares.total == pytest.approx(shares.logit, rel=1e-5)
    assert shares.top(1)[0][0] == f"{MOVER} head 3"
    looks = attention(model, CLEAN)[MOVER].values[3, -1]
    assert int(looks.argmax()) == SUBJECT, "it looks at the repeated name"
    assert shares.sources[MOVER][3, SUBJECT] > 2.5, "and writes against it"
    heads = activation_patching(model, CLEAN, CORRUPT, *ANSWERS, "heads")
    assert heads.top(1)[0][:2] == (f"{MOVER}.heads", "3")
    near = attribution_patching(model, CLEAN, CORRUPT, *ANSWERS, "heads", steps=4)
    assert near.correlation(heads) > 0.9
    name, value = "blocks.0.ffn", f"{MOVER}.v head 1"  # the value head of query heads 3 to 5
    path = path_patching(model, CLEAN, CORRUPT, *ANSWERS, name, [f"{MOVER}.q head 3", value])
    assert path.values[0, 1] > 0.2, "it reads which name it is out of the values, not of the queries"
    assert abs(path.values[0, 0]) < 0.05


def test_the_answer_moves_from_the_second_name_to_the_end_and_patches_share_passes(model: Model) -> None:
    passes: list[None] = []
    hook = model.register_forward_hook(lambda *_: passes.append(None))
    found = activation_patching(model, CLEAN, CORRUPT, *ANSWERS)
    hook.remove()
    assert (found.values[:18, SUBJECT] > 0.95).all(), "it stands at the name"
    assert found.values[24:, SUBJECT].abs().max() < 0.1
    assert (found.values[24:, -1] > 0.9).all(), "and from layer 23 on at the end"
    assert 0 < 5 * len(passes) < found.values.numel()
