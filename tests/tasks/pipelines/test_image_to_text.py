"""image-to-text: the pipeline, a table of images that is learnt from and measured on, `heed read`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import heedful
from heedful.core.errors import InputError
from heedful.core.images import draw_text, open_image
from heedful.data.input_files import read_input_file
from heedful.tasks.evaluate import default_task
from heedful.tasks.metrics.generated import edit_distance, transcriptions
from heedful.tasks.pipelines.media_to_text import ImageToText
from heedful.weights.hub import bundled_models
from tests.image_toy import TEXTS, images, reader, table
from tests.properties.tiny import tiny
from tests.refusal import refused
from tests.tasks.finetune.conftest import Heed
from tests.tasks.finetune.conftest import heed as heed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny reader, saved."""
    return heedful.save(reader(tmp_path), tmp_path / "reader")


def test_one_image_gives_a_list_and_several_a_list_each(folder: Path, tmp_path: Path) -> None:
    files, read = images(tmp_path), heedful.pipeline(model=folder)
    assert read.task == "image-to-text"
    one = read(str(files[0]), max_new_tokens=4)
    assert list(one[0]) == ["generated_text"]
    several = read([files[0], open_image(files[1]), np.asarray(open_image(files[2]))], max_new_tokens=4)
    assert several[0] == one
    assert len(several) == 3
    model = heedful.load(folder)
    assert [row[0]["generated_text"] for row in several] == heedful.generate(model, files[:3], max_tokens=4)
    assert len(read(files[0], num_beams=3, num_return_sequences=2, max_new_tokens=3)) == 2


def test_no_task_of_texts_takes_a_model_that_reads_images(folder: Path) -> None:
    with refused(InputError, "translation needs", "good for image-to-text"):
        heedful.pipeline("translation", folder)
    with refused(InputError, "image-to-text needs a model that reads images"):
        heedful.pipeline("image-to-text", tiny("bart"))


def test_paths_of_a_table_count_from_its_folder_and_a_missing_image_is_named(tmp_path: Path) -> None:
    examples = ImageToText.read_examples(read_input_file(str(table(tmp_path))), {})
    assert examples.items[2] == (str(tmp_path / "305.png"), "305")
    (tmp_path / "305.png").unlink()
    with refused(InputError, "line 4", "'305.png'", hint=str(tmp_path)):
        ImageToText.read_examples(read_input_file(str(tmp_path / "table.csv")), {})


def test_a_table_of_images_is_learnt_by_heart_measured_and_read(
    folder: Path, tmp_path: Path, heed: Heed
) -> None:
    file = table(tmp_path)
    code, out, told = heed(
        "finetune", folder, file, "--valid", file, "--out", "learnt", "--epochs", 70, "--lr", 0.01,
        "--batch", 8, "--full", "--json",
    )  # fmt: skip
    assert code == 0, told
    found = json.loads(out)
    assert found["task"] == "read"
    assert found["scores"]["exact_match"] == 100.0
    assert "image = 'image', text = 'text'" in told
    code, out, _ = heed("eval", "learnt", file, "--task", "read", "--json")
    assert json.loads(out)["character_error"] == 0.0
    names = [tmp_path / f"{text}.png" for text in TEXTS[:3]]
    assert heed("read", *names, "--model", "learnt")[1].split() == list(TEXTS[:3])
    code, out, _ = heed("read", names[0], "--model", "learnt", "--json", "--figure", "looked.html")
    assert json.loads(out)["results"] == [{"generated_text": "1"}]
    assert "image_attention" in Path("looked.html").read_text(encoding="utf-8")


def test_the_command_says_in_one_line_what_is_wrong(folder: Path, heed: Heed) -> None:
    for arguments, said in (
        ((), "no image is given"), (("missing.png",), "image not found: 'missing.png'"),
        (("a.png", "b.png", "--figure", "x.html"), "--figure shows one image"),
    ):  # fmt: skip
        code, out, told = heed("read", *arguments, "--model", folder)
        assert (code, out) == (3, "")
        assert said in told
    code, _, told = heed("read", "--draw", "3x", "--model", folder)
    assert code == 0
    assert "has no 'x'" in told


def test_scores_of_transcriptions_are_counted_by_hand() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "ab") == 2
    found = transcriptions(["12", "345"], ["12", "35"])
    assert found["exact_match"] == 50.0
    assert found["character_error"] == pytest.approx(20.0)


@pytest.mark.skipif("digits" not in bundled_models(), reason="the model digits does not come along")
def test_the_bundled_reader_reads_a_drawn_number_from_left_to_right() -> None:
    model, image = heedful.load("digits"), draw_text("2026", 16, 96)
    assert heedful.generate(model, image) == "2026"
    figure = heedful.view.image_attention(model, image)
    weights, first = figure.data["panels"][0]["values"][:4], figure.data["first"]
    rows, columns = figure.data["grid"]
    by_column = weights[:, first:].reshape(4, rows, columns).sum(1)
    place = (by_column * np.arange(columns)).sum(1) / by_column.sum(1)
    assert (np.diff(place) > 0).all()  # the middle of what it looks at moves on with every digit


@pytest.mark.skipif("digits" not in bundled_models(), reason="the model digits does not come along")
def test_a_model_that_reads_images_is_evaluated_as_such() -> None:
    assert default_task(heedful.load("digits")) == "read"
