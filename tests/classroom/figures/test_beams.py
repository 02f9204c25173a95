"""The tree of a beam search: its texts are those of generate, its scores those of the model."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures.value_figures import beam_trees
from heedful.core.errors import InputError
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import source_ids, tiny

END = 3


def log_p(model: Model, prompt: list[int], ids: list[int]) -> float:
    """log P(ids | prompt), from one pass."""
    with torch.no_grad():
        if isinstance(model, Seq2Seq):
            logits = model(torch.tensor([prompt]), torch.tensor([[model.start_token, *ids[:-1]]]))[0]
        else:
            logits = model(torch.tensor([[*prompt, *ids[:-1]]]))[0, len(prompt) - 1 :]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum())


def test_texts_that_read_the_same_are_told_apart_by_their_tokens() -> None:
    model = heedful.load("translate-en-de")
    drawn = view.beams(model, "The old man reads a book.", beams=8)
    texts = drawn.data["texts"]
    assert len({row["text"] for row in texts}) < len(texts), "the case that is to be explained"
    assert len({row["tokens"] for row in texts}) == len(texts)
    assert "cut one text into tokens in different ways" in drawn.note


@pytest.mark.parametrize("family", ["gpt2", "t5", "lstm"])
def test_the_texts_found_are_those_of_generate_and_every_score_is_the_models(family: str) -> None:
    model = tiny(family)
    prompt = source_ids(model, 1, 5)[0].tolist()
    how = {"max_tokens": 5, "length_penalty": 0.7, "eos": END, "bias": None}
    (found,) = beam_trees(model, prompt, beams=3, **how)
    made = heedful.generate(model, prompt, beams=3, n=3, details=True, **how)
    ids = [[t for t in found.ids(at) if t != END] for at in found.found]
    assert ids == [g.ids for g in made]
    assert [found.branches[at].final for at in found.found] == pytest.approx([g.score for g in made])
    for at, branch in enumerate(found.branches):
        assert branch.score == pytest.approx(log_p(model, prompt, found.ids(at)), abs=1e-4)
        assert branch.step == len(found.path(at))


def test_each_step_keeps_as_many_texts_as_there_are_beams_and_prunes_the_rest() -> None:
    model = tiny("t5")
    (found,) = beam_trees(model, source_ids(model, 1, 5)[0].tolist(), beams=3, max_tokens=6, eos=())
    for step in range(1, 6):
        here = [b for b in found.branches if b.step == step]
        assert [b.fate for b in here] == ["runs"] * 3 + ["pruned"] * (len(here) - 3)
        assert [b.score for b in here] == sorted((b.score for b in here), reverse=True)
        assert len(here) == 6


def test_an_ended_text_that_better_ones_displace_is_beaten() -> None:
    model = tiny("gpt2")
    # A likely end finishes many texts; only as many as there are beams are kept.
    (found,) = beam_trees(
        model, [5, 9, 2], beams=2, max_tokens=8, eos=END, bias={END: 2.5}, early_stopping="never"
    )
    fates = [b.fate for b in found.branches]
    assert fates.count("finished") == 2 == len(found.found)
    worst = min(found.branches[at].final or 0.0 for at in found.found)
    assert all((b.final or 0.0) <= worst for b in found.branches if b.fate == "beaten")


def test_groups_have_branches_of_their_own() -> None:
    model = tiny("t5")
    prompt = source_ids(model, 1, 5)[0].tolist()
    (found,) = beam_trees(model, prompt, beams=4, groups=2, diversity=1.0, max_tokens=4, eos=())
    assert {b.group for b in found.branches} == {0, 1}
    assert all(found.branches[b.parent].group == b.group for b in found.branches if b.parent >= 0)
    assert len(found.found) == 4


def test_the_figure_marks_what_leads_to_the_texts_found() -> None:
    figure = view.beams(tiny("gpt2"), [5, 9, 2], beams=2, max_tokens=3, eos=())
    branches = figure.data["branches"]
    ends = [b for b in branches if b["fate"] == "finished"]
    assert all(b["lives"] for b in ends)
    assert sum(b["best"] for b in branches) == 3  # one for each token of the best text
    assert not any(b["lives"] for b in branches if b["fate"] == "pruned")
    assert figure.to_svg().count("stroke-dasharray") == sum(
        not b["lives"] for b in branches if b["parent"] >= 0
    )
    with pytest.raises(InputError, match="prompts have one tree each"):
        view.beams(tiny("gpt2"), [[5, 9], [2, 7]], beams=2)
