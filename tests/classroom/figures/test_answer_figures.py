"""Figures of patching, of shares in a logit, and of numbers one has: what is drawn is what was computed."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
import torch

from heedful.classroom import figures as view
from heedful.classroom.figures import canvas
from heedful.core.errors import InputError
from heedful.interp.intervene.comparison import PatchingResult
from heedful.interp.intervene.patching import activation_patching, path_patching
from heedful.interp.observe.logit_attribution import logit_attribution
from tests.properties.tiny import tiny

CLEAN, CORRUPT = [5, 9, 2, 7, 11], [5, 3, 2, 7, 11]


def test_a_patching_figure_holds_the_numbers_of_its_result() -> None:
    found = activation_patching(tiny("gpt2"), CLEAN, CORRUPT, 4, 6)
    figure = view.patching(found)
    (panel,) = figure.data["panels"]
    np.testing.assert_allclose(panel["values"], found.values.numpy(), atol=1e-6)
    assert (panel["rows"], panel["columnTitle"]) == (list(found.names), "position")


def test_patches_of_heads_have_heads_across() -> None:
    figure = view.patching(activation_patching(tiny("gpt2"), CLEAN, CORRUPT, 4, 6, "heads"))
    assert figure.data["panels"][0]["columnTitle"] == "head"


def test_several_results_stand_below_each_other() -> None:
    model = tiny("gpt2")
    several = [activation_patching(model, CLEAN, CORRUPT, 4, 6, what) for what in ("attention", "mlp")]
    assert [p["title"] for p in view.patching(*several).data["panels"]] == ["attention", "mlp"]


def test_paths_that_cannot_be_are_hatched_and_not_coloured() -> None:
    found = path_patching(tiny("gpt2"), CLEAN, CORRUPT, 4, 6)
    assert bool(found.values.isnan().any())
    figure = view.patching(found)
    assert ">nan<" not in figure.to_svg()
    hidden = view.patching(
        PatchingResult("paths", "exact", ("a",), ("b", "c"), torch.tensor([[math.nan, -2.0]]), 1.0, 0.0)
    )
    plain = view.patching(
        PatchingResult("paths", "exact", ("a",), ("b", "c"), torch.tensor([[0.0, -2.0]]), 1.0, 0.0)
    )
    assert hidden.data["panels"][0]["signed"]
    assert hidden.to_svg() != plain.to_svg()


def test_the_top_of_a_colour_scale_ignores_what_is_missing() -> None:
    assert canvas.greatest(np.array([math.nan, -3.0, 2.0])) == 3.0
    assert canvas.color_rows(np.array([[math.nan, 1.0]]), 1.0, signed=True).tolist() == [[128, 255]]


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba", "bert"])
def test_a_figure_of_shares_holds_every_share_once(family: str) -> None:
    found = logit_attribution(tiny(family), CLEAN)
    figure = view.logit_attribution(found)
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    parts = [float(row["value"]) for row in rows if row["panel"] == "parts"]
    assert sum(v for v in parts if v == v) == pytest.approx(found.logit, rel=1e-4, abs=1e-4)
    tokens = [float(row["value"]) for row in rows if row["panel"] == "tokens"]
    assert sum(tokens) == pytest.approx(found.logit, rel=1e-4, abs=1e-4)


def test_numbers_one_has_are_drawn_by_one_call() -> None:
    heat = view.matrix(torch.eye(2), ["a", "b"], ["c", "d"], title="Mine", axes=("row", "column"))
    assert (heat.title, heat.data["panels"][0]["rowTitle"]) == ("Mine", "row")
    curve = view.lines([1.0, 2.0, 4.0], title="Loss", axes=("loss", "position"))
    assert curve.data["panels"][0]["values"].tolist() == [[1.0, 2.0, 4.0]]
    both = view.lines({"before": [1.0, 2.0], "after": [2.0, 1.0]}, title="Loss")
    assert both.data["panels"][0]["rows"] == ["before", "after"]
    assert "<svg" in heat.to_svg() + curve.to_svg() + both.to_svg()


def test_numbers_that_are_no_matrix_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        view.matrix(torch.zeros(3))
