"""Batches that are made ahead by other processes, and pictures that are drawn for learning."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful import data

pytest.importorskip("PIL", reason="drawing needs Pillow")
pytest.importorskip("sklearn", reason="the handwriting is scikit-learn's")
sys.path.insert(0, str(Path(__file__).parents[1]))  # bundle/ is not installed

from bundle.ahead import made_ahead
from bundle.digits import HEIGHT, NAME, WIDTH, Handwriting, Painter, choose_texts, commands

TEXTS = choose_texts(12, ["cat", "attention"], seed=3)


def test_batches_made_ahead_are_those_made_when_asked_for() -> None:
    model = heedful.load("digits")
    draw = Painter(TEXTS, Handwriting.load(held=False), 0, varied=True)
    plain = data.image_text(draw, TEXTS, model.tokenizer, model.image_processor, length=16, batch=4, seed=1)
    with made_ahead(plain, 1) as ahead:
        for step in (0, 1, 2, 7):  # a step that was not foreseen too
            mine, theirs = plain[step], ahead[step]
            assert torch.equal(mine.tokens, theirs.tokens)
            assert mine.labels is not None
            assert theirs.labels is not None
            assert torch.equal(mine.labels, theirs.labels)
        assert ahead.fingerprint == plain.fingerprint


def test_pictures_to_measure_by_are_not_those_to_learn_from() -> None:
    held, learnt = (Handwriting.load(held=which) for which in (True, False))
    as_sets = lambda ink: {one.tobytes() for some in ink.by_digit for one in some}
    assert len(as_sets(held) & as_sets(learnt)) <= 2  # of 1,797 small images some are twice in the file
    assert sum(map(len, held.by_digit)) == 359


def test_varied_pictures_have_their_ink_inside() -> None:
    draw = Painter(["4711"] * 40, Handwriting.load(held=False), 5, varied=True)
    pictures = [np.asarray(draw(row, 0)) for row in range(40)]
    assert all(picture.shape[0] == HEIGHT and picture.shape[1] >= WIDTH for picture in pictures)
    begins = [int(np.flatnonzero((picture < 128).any(0))[0]) for picture in pictures]
    assert max(begins) > 12  # some stand anywhere, most at the left
    assert np.median(begins) < 12


def test_the_steps_of_a_model_that_went_on_twice_are_all_kept(tmp_path: Path) -> None:
    """Each step reads what the one before it has written."""
    given = argparse.Namespace(start=None, seconds=9.0, steps=1, seed=0, processes=0, graph=False)
    (tmp_path / "results").mkdir()
    for expected in (1, 2, 3):
        line, steps = commands(given)
        assert len(steps) == expected
        row = {"command": line, "check": {"steps": steps}}
        (tmp_path / "results" / f"{NAME}.json").write_text(json.dumps([row]), encoding="utf-8")
        given.start = tmp_path / NAME
    outs = [step[step.index("--out") + 1] for step in steps]
    starts = [step[step.index("--start") + 1] for step in steps[1:]]
    assert starts == [f"{out}/{NAME}" for out in outs[:-1]]
    assert outs[-1] == "{work}"
