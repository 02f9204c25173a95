"""view.model: one text in a model as a figure, for every family and in every kind of file."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures.figure import unpack
from heedful.classroom.figures.model_picture import model_picture, text_labels
from tests.properties.tiny import ALL, tiny

IDS = [5, 9, 2, 7, 11]


@pytest.mark.parametrize("family", ALL)
def test_every_family_is_drawn_and_written(family: str) -> None:
    figure = view.model(tiny(family), IDS)
    svg = ET.fromstring(figure.to_svg())
    said = "".join(svg.itertext())
    for stage in figure.data["pictures"][0]["stages"]:
        assert stage["title"][:20] in said
    assert len(figure.to_csv().splitlines()) > 100
    json.dumps(figure.to_dict(), allow_nan=False)


def test_the_numbers_of_a_figure_are_those_of_the_picture() -> None:
    model = tiny("gpt2")
    picture = model_picture(model, IDS, layer=1, head=2)
    figure = view.model(model, IDS, layer=1, head=2)
    packed = figure.to_dict()["data"]["pictures"][0]["stages"]
    for stage, sent in zip(picture.stages, packed, strict=True):
        for rows, there in zip(stage.vectors, sent["vectors"], strict=True):
            assert np.array_equal(unpack(there["numbers"]), rows.numbers.numpy())
        if stage.pattern is not None:
            assert np.array_equal(unpack(sent["pattern"]["values"]), stage.pattern.values.numpy())
    table = list(csv.reader(figure.to_csv().splitlines()))
    weights = [float(row[5]) for row in table if row[2] == "blocks.1.attn.pattern"]
    look = next(stage.pattern for stage in picture.stages if stage.pattern is not None)
    np.testing.assert_allclose(weights, look.values.flatten().numpy(), rtol=1e-5)


def test_a_second_text_is_in_the_figure_at_the_same_head_and_row() -> None:
    model = tiny("bert")
    figure = view.model(model, IDS, comparison=[*IDS[:-1], 3])
    first, second = figure.data["pictures"]
    assert (first["path"], first["head"], first["row"]) == (second["path"], second["head"], second["row"])
    assert first["tokens"] != second["tokens"]


def test_two_texts_are_told_apart_by_the_words_that_differ() -> None:
    assert text_labels("it was too tired.", "it was too wide.") == ["tired", "wide"]
    assert text_labels("The cat", "A dog sat") == ["The cat", "A dog sat"]


@pytest.mark.parametrize("ending", ["html", "svg", "png", "csv", "json"])
def test_a_figure_is_saved(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = view.model(tiny("t5"), IDS).save(tmp_path / f"model.{ending}")
    assert path.stat().st_size > 1000


def test_the_call_of_a_figure_makes_it_again() -> None:
    model = heedful.load("masked")
    text = "The animal didn't cross the street because it was too tired."
    figure = view.model(model, text, layer=3, head=1, row="it", comparison=text.replace("tired", "wide"))
    again = eval(figure.python, {"heedful": heedful, "model": model})
    assert again.to_dict() == figure.to_dict()
    assert figure.data["labels"] == ["tired", "wide"]
