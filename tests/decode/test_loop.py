"""stream and generate: what goes in, what comes out, where a text ends, and that neighbours do not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.decode.rows import Generation, Piece
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model, Seq2Seq
from tests.decode.toy import letters, speller
from tests.properties.tiny import GENERATORS, source_ids, tiny


def prompts_for(model: Model) -> list[list[int]]:
    return [source_ids(model, 1, n, seed=n)[0].tolist() for n in (6, 3, 5)]


@pytest.mark.parametrize("family", GENERATORS)
def test_greedy_text_is_the_likeliest_token_each_time(family: str) -> None:
    model = tiny(family)
    prompt = prompts_for(model)[0]
    got = heedful.generate(model, prompt, max_tokens=6, eos=())
    expected: list[int] = []
    with torch.no_grad():
        for _ in range(6):
            if isinstance(model, Seq2Seq):
                logits = model(torch.tensor([prompt]), torch.tensor([[model.start_token, *expected]]))
            else:
                logits = model(torch.tensor([[*prompt, *expected]]))
            expected.append(int(logits[0, -1].argmax()))
    assert got == expected


WAYS = {"greedy": {}, "drawn": {"temperature": 1.0, "top_p": 0.9, "seed": 3, "n": 2}}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("family", GENERATORS)
def test_a_row_does_not_depend_on_its_neighbours(family: str, how: dict[str, Any]) -> None:
    model = tiny(family)
    mine, *others = prompts_for(model)
    alone = heedful.generate(model, [mine], max_tokens=6, eos=(), **how)
    assert heedful.generate(model, [mine, *others], max_tokens=6, eos=(), **how)[0] == alone[0]


def test_rows_that_end_early_do_not_change_the_others() -> None:
    model = tiny("gpt2")
    prompts = prompts_for(model)
    free = heedful.generate(model, prompts, max_tokens=12, eos=())
    end = free[0][2]  # the first row ends here; the others go on
    cut = [row[: row.index(end)] if end in row else row for row in free]
    assert len({len(row) for row in cut}) > 1
    assert heedful.generate(model, prompts, max_tokens=12, eos=end) == cut


def test_drawn_rows_that_end_early_do_not_change_the_others() -> None:
    model = tiny("gpt2")
    prompts, drawing = prompts_for(model) * 3, {"temperature": 1.0, "seed": 3, "max_tokens": 24}
    free = heedful.generate(model, prompts, eos=(), fast=False, **drawing)
    for end in {row[4] for row in free}:  # some rows end within a burst of steps; the others go on
        cut = [row[: row.index(end)] if end in row else row for row in free]
        assert heedful.generate(heedful.fast(model), prompts, eos=end, **drawing) == cut


def test_a_stepper_with_a_fixed_number_of_rows_writes_the_same() -> None:
    class Stiff(EagerStepper):
        fixed_batch = True

    model = tiny("gpt2")
    prompts = prompts_for(model)
    end = heedful.generate(model, prompts[0], max_tokens=3, eos=())[2]
    for how in ({}, {"temperature": 1.0, "seed": 1, "n": 2}, {"beams": 3, "n": 3}, {"repetition": 1.3}):
        expected = heedful.generate(model, prompts, max_tokens=9, eos=end, **how)
        assert heedful.generate(Stiff(model), prompts, max_tokens=9, eos=end, **how) == expected


def test_what_comes_back_has_the_form_of_what_went_in() -> None:
    model = speller()
    text = heedful.generate(model, "ab", max_tokens=3)
    assert isinstance(text, str)
    ids = heedful.generate(model, model.tokenizer.encode("ab"), max_tokens=3)
    assert isinstance(ids, list)
    assert isinstance(ids[0], int)
    assert heedful.generate(model, torch.tensor(model.tokenizer.encode("ab")), max_tokens=3) == ids
    assert heedful.generate(model, ["ab", "cde"], max_tokens=3)[0] == text
    several = heedful.generate(model, ["ab", "c"], max_tokens=3, n=2, temperature=1.0)
    assert [len(row) for row in several] == [2, 2]
    assert heedful.generate(model, "ab", max_tokens=3, n=1) == [text]
    assert isinstance(heedful.generate(model, "ab", max_tokens=3, details=True), Generation)


def test_the_default_is_greedy_and_narrowing_means_drawing() -> None:
    model = tiny("gpt2")
    prompt = prompts_for(model)[0]
    assert heedful.generate(model, prompt) == heedful.generate(model, prompt, temperature=0)
    drawn = {tuple(heedful.generate(model, prompt, max_tokens=5, top_k=50, seed=s)) for s in range(4)}
    assert len(drawn) > 1


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    model = tiny("gpt2")
    prompt = prompts_for(model)[0]
    say = lambda seed: heedful.generate(model, prompt, max_tokens=12, temperature=1.0, seed=seed)
    assert say(5) == say(5)
    assert say(5) != say(6)
    assert say(None) != say(None)


def test_samples_of_one_prompt_differ() -> None:
    model = tiny("gpt2")
    several = heedful.generate(model, prompts_for(model)[0], max_tokens=12, n=4, seed=0)
    assert len({tuple(s) for s in several}) == 4


def test_pieces_carry_token_logprob_and_alternatives() -> None:
    model = tiny("gpt2")
    prompt = prompts_for(model)[0]
    pieces = list(heedful.stream(model, prompt, max_tokens=4, logprobs=3, eos=()))
    with torch.no_grad():
        logs = model(torch.tensor([prompt + [p.token for p in pieces]])).log_softmax(-1)[0, len(prompt) - 1 :]
    for t, piece in enumerate(pieces):
        assert isinstance(piece, Piece)
        assert piece.logprob == pytest.approx(float(logs[t, piece.token]), abs=1e-4)
        assert piece.top[0] == (piece.token, pytest.approx(piece.logprob, abs=1e-5))
        assert len(piece.top) == 3
    assert [p.finish for p in pieces] == [None, None, None, "length"]


def test_the_end_is_found_in_the_published_settings() -> None:
    model = tiny("gpt2")
    prompt = prompts_for(model)[0]
    free = heedful.generate(model, prompt, max_tokens=8, eos=())
    for published in (free[3], [127, free[3]]):
        model.hf_config = {"eos_token_id": published}
        assert heedful.generate(model, prompt, max_tokens=8) == free[: free.index(free[3])]
    last = list(heedful.stream(model, prompt, max_tokens=8))[-1]
    assert (last.token, last.finish, last.text) == (free[3], "end", "")


def test_the_settings_for_generating_outdo_the_config_and_are_kept(tmp_path: Path) -> None:
    model = tiny("gpt2")
    free = heedful.generate(model, [5, 6], max_tokens=8, eos=())
    model.hf_config, model.generation = {"eos_token_id": free[0]}, {"eos_token_id": [free[4]]}
    loaded = heedful.load(heedful.save(model, tmp_path))
    assert loaded.generation == model.generation
    assert heedful.generate(loaded, [5, 6], max_tokens=8) == free[: free.index(free[4])]


def test_writing_ends_where_the_context_does() -> None:
    model = tiny("gpt2")
    ids = source_ids(model, 1, 60)[0].tolist()
    found = heedful.generate(model, [ids, ids[:40]], max_tokens=10, eos=(), details=True)
    assert [(len(g.ids), g.finish) for g in found] == [(5, "context"), (10, "length")]
    assert heedful.generate(model, ids[:40], max_tokens=10, eos=()) == found[1].ids


def test_an_empty_prompt_begins_with_the_token_for_it() -> None:
    model = tiny("gpt2")
    model.hf_config = {"bos_token_id": 7}
    assert heedful.generate(model, [], max_tokens=4) == heedful.generate(model, [7], max_tokens=4)


def test_dropout_rests_while_a_model_in_training_writes() -> None:
    model = tiny("gpt2", dropout=0.5)
    expected = heedful.generate(model, [5, 6], max_tokens=8, eos=())
    model.train()
    model.blocks[0].eval()
    assert heedful.generate(model, [5, 6], max_tokens=8, eos=()) == expected
    assert model.training
    assert not model.blocks[0].training


def test_nothing_is_recorded_for_gradients() -> None:
    model = tiny("gpt2")
    assert all(not v.requires_grad for v in EagerStepper(model).prefill(torch.tensor([[1, 2]])))


def test_text_in_pieces_is_the_text_as_a_whole() -> None:
    model = speller()
    whole = heedful.generate(model, "prompt", max_tokens=30, temperature=1.0, seed=2)
    pieces = list(heedful.stream(model, "prompt", max_tokens=30, temperature=1.0, seed=2))
    assert "".join(p.text for p in pieces) == whole
    assert whole == letters().decode([p.token for p in pieces])
