"""Many patches in one batch are what they are one at a time, for every family, from every layer and token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful import Watch
from heedful.core.errors import InputError
from heedful.core.progress import call_between_steps
from heedful.interp.inputs import Input, choices, reading
from heedful.interp.intervene import comparison
from heedful.interp.intervene.comparison import CounterfactualPair, PatchingResult
from heedful.interp.intervene.patching import activation_patching, patch
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import ALL, ids, source_ids, tiny


def two(model: Model, length: int = 5) -> tuple[Input, Input]:
    """A text, and the same with another second token."""
    clean = source_ids(model, 1, length)
    corrupt = clean.clone()
    corrupt[0, 1] = 5 + (corrupt[0, 1] + 3) % (model.tables["tokens"].vocab - 5)
    target = ids(model, 1, 4) if isinstance(model, Seq2Seq) else None
    return reading(model, clean, target), reading(model, corrupt, target)


@torch.no_grad()
def answers(model: Model, clean: Input, corrupt: Input) -> tuple[int, int | None]:
    """The answers whose logits the two inputs move apart most."""
    move = (choices(model, clean.run(model), -1) - choices(model, corrupt.run(model), -1))[0]
    return int(move.argmax()), int(move.argmin()) if len(move) > 1 else None


def one_at_a_time(
    model: Model, clean: Input, corrupt: Input, name: str, t: int, right: int, wrong: int | None
) -> float:
    asked = CounterfactualPair(model, clean, corrupt, right, wrong)
    logits = patch(model, clean, corrupt, [name], [t])
    return float(asked.restored_share(asked.gap(choices(model, logits, -1)))[0])


@pytest.mark.parametrize("family", ALL)
def test_patches_in_a_batch_are_those_made_one_at_a_time(family: str) -> None:
    model = tiny(family)
    clean, corrupt = two(model)
    right, wrong = answers(model, clean, corrupt)
    found = activation_patching(model, clean, corrupt, right, wrong)
    assert found.values.shape == (len(found.names), clean.read.shape[1])
    for i, t in ((0, 1), (len(found.names) - 1, clean.read.shape[1] - 1), (0, 0)):
        want = one_at_a_time(model, clean, corrupt, found.names[i], t, right, wrong)
        assert float(found.values[i, t]) == pytest.approx(want, abs=2e-4), (found.names[i], t)


@pytest.mark.parametrize("family", ["gpt2", "bert", "palm", "mamba", "deepseek-v3", "mistral", "gla", "t5"])
@pytest.mark.parametrize("what", ["attention", "mlp", "*.hidden"])
def test_what_parts_add_is_patched_as_one_at_a_time(family: str, what: str) -> None:
    model = tiny(family)
    clean, corrupt = two(model)
    right, wrong = answers(model, clean, corrupt)
    if what == "mlp" and family == "mamba":
        with pytest.raises(InputError, match="no mlp to patch; patch what='residual'"):
            activation_patching(model, clean, corrupt, right, wrong, what)
        return
    found = activation_patching(model, clean, corrupt, right, wrong, what)
    for i in (0, len(found.names) - 1):
        want = one_at_a_time(model, clean, corrupt, found.names[i], 1, right, wrong)
        assert float(found.values[i, 1]) == pytest.approx(want, abs=2e-4), found.names[i]


@pytest.mark.parametrize("by_position", [False, True])
def test_a_head_is_patched_as_by_hand(by_position: bool) -> None:
    model = tiny("llama")
    clean, corrupt = two(model)
    right, wrong = answers(model, clean, corrupt)
    found = activation_patching(model, clean, corrupt, right, wrong, "heads", by_position=by_position)
    assert found.values.shape == ((8, 5) if by_position else (2, 4))
    seen = Watch("blocks.1.attn.heads")
    clean.run(model, seen)

    def put(heads: Tensor) -> Tensor:
        heads[:, 2, slice(3, 4) if by_position else slice(None)] = seen["blocks.1.attn.heads"][
            :, 2, slice(3, 4) if by_position else slice(None)
        ]
        return heads

    with torch.no_grad():
        logits = corrupt.run(model, Watch(edit={"blocks.1.attn.heads": put}))[0, -1]
    want = (float(logits[right] - logits[wrong]) - found.corrupt) / (found.clean - found.corrupt)
    assert float(found.values[(6, 3) if by_position else (1, 2)]) == pytest.approx(want, abs=1e-4)
    assert found.names[0] == ("blocks.0.attn.heads 0" if by_position else "blocks.0.attn.heads")


@pytest.mark.parametrize(
    ("what", "word"), [("queries", "q"), ("keys", "k"), ("values", "v"), ("patterns", "pattern")]
)
def test_what_a_head_reads_with_is_patched_as_by_hand(what: str, word: str) -> None:
    model = tiny("llama")
    clean, corrupt = two(model)
    right, wrong = answers(model, clean, corrupt)
    found = activation_patching(model, clean, corrupt, right, wrong, what)
    name = f"blocks.1.attn.{word}"
    seen = Watch(name)
    clean.run(model, seen)
    assert found.values.shape == (2, seen[name].shape[1])

    def put(value: Tensor) -> Tensor:
        value[:, 1] = seen[name][:, 1]
        return value

    with torch.no_grad():
        logits = corrupt.run(model, Watch(edit={name: put}))[0, -1]
    want = (float(logits[right] - logits[wrong]) - found.corrupt) / (found.clean - found.corrupt)
    assert float(found.values[1, 1]) == pytest.approx(want, abs=1e-4)


def test_the_size_of_a_batch_changes_nothing() -> None:
    model = tiny("gpt2")
    given = two(model)
    right, wrong = answers(model, *given)
    few, many = (activation_patching(model, *given, right, wrong, rows=rows).values for rows in (1, 64))
    torch.testing.assert_close(few, many, atol=1e-4, rtol=0)


def test_patching_reports_how_far_it_is_and_may_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    given = two(model)
    right, wrong = answers(model, *given)
    calls: list[tuple[str, int, int]] = []
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "report_progress", lambda *report: calls.append(report))
        activation_patching(model, *given, right, wrong, rows=2)
    assert calls[0] == ("patches", 0, 8)  # the first token is the same in both, so two patches are not run
    assert calls[-1] == ("patches", 8, 8)
    assert calls == sorted(calls)
    reports: list[int] = []

    def stop() -> None:
        reports.append(1)
        if len(reports) == 2:
            raise KeyboardInterrupt

    with call_between_steps(stop), pytest.raises(KeyboardInterrupt):
        activation_patching(model, *given, right, wrong, rows=2)


def test_the_last_layer_at_the_answer_restores_all_and_other_tokens_of_it_nothing() -> None:
    model = tiny("llama")
    given = two(model)
    found = activation_patching(model, *given, *answers(model, *given))
    assert found.values[-1, -1] == pytest.approx(1.0, abs=1e-4)
    assert found.values[-1, :-1].abs().max() <= 1e-6
    assert found.top(1)[0][2] == pytest.approx(float(found.values.abs().max()), abs=1e-6)
    assert found.correlation(found) == pytest.approx(1.0)


def test_an_encoder_is_asked_at_a_position() -> None:
    model = tiny("bert")
    clean, corrupt = two(model)
    with torch.no_grad():
        move = (clean.run(model) - corrupt.run(model))[0, 2]
    found = activation_patching(model, clean, corrupt, int(move.argmax()), position=2)
    assert found.values[-1, 2] == pytest.approx(1.0, abs=1e-4)
    assert found.values[-1, [0, 1, 3, 4]].abs().max() <= 1e-5


def test_what_cannot_be_patched_is_said_in_one_line() -> None:
    model = tiny("gpt2")
    given = two(model)
    with pytest.raises(InputError, match="nothing here is called 'head'; did you mean 'heads'"):
        activation_patching(model, *given, 7, 8, "head")
    with pytest.raises(InputError, match="both inputs have the same answer"):
        activation_patching(model, given[0], given[0], 7, 8)
    lstm = tiny("lstm")
    with pytest.raises(InputError, match="this model has no heads to patch"):
        activation_patching(lstm, *two(lstm), 7, 8, "heads")


def test_a_missing_patch_is_not_among_those_that_move_the_answer_most() -> None:
    values = torch.tensor([[0.5, float("nan")], [0.0, -2.0]])
    found = PatchingResult("heads", "exact", ("a", "b"), ("0", "1"), values, 1.0, 0.0)
    assert found.top(9) == [("b", "1", -2.0), ("a", "0", 0.5), ("b", "0", 0.0)]
