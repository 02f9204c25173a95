"""A ViT learns one's own images: from folders, a table, rows in memory. What is wrong with them is named."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError, InputError
from heedful.core.images import open_image
from heedful.data.input_files import read_input_file
from heedful.tasks.pipelines.image_classification import ImageClassification
from heedful.tasks.task_specification import TaskSpecification
from tests.image_toy import photos, reader, vit
from tests.refusal import refused
from tests.tasks.finetune.conftest import Heed
from tests.tasks.finetune.conftest import heed as heed

pytest.importorskip("PIL", reason="images need Pillow")
TRAINING: dict[str, Any] = {"epochs": 30, "lr": 3e-3, "quiet": True}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    vit(tmp_path)
    return tmp_path / "vit"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A ViT that learned to tell shapes apart, and the folder of its images."""
    folder = tmp_path_factory.mktemp("learnt")
    vit(folder)
    images = photos(folder / "photos", 100)
    result = heedful.finetune(folder / "vit", images, out=folder / "sorter", **TRAINING)
    return result, images


def test_a_folder_of_images_is_learnt_far_above_chance(learnt: tuple[Any, Path]) -> None:
    result, images = learnt
    assert result.task == "classify-images"
    assert result.labels == ("circle", "cross", "square")
    assert result.scores["rows"] == 60
    assert result.scores["accuracy"] > 0.8  # of always the same class 0.33
    label = heedful.pipeline(model=result.folder)
    assert label.task == "image-classification"
    assert label(images / "cross" / "000.png")[0]["label"] == "cross"
    specification = TaskSpecification.of(heedful.load(result.folder))
    assert specification is not None
    assert (specification.command, specification.max_length) == ("classify-images", None)
    assert "length" not in (result.folder / "README.md").read_text(encoding="utf-8")


def test_what_was_learnt_opens_in_transformers(learnt: tuple[Any, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    result, images = learnt
    files = [str(images / kind / "001.png") for kind in ("circle", "square")]
    theirs = transformers.pipeline("image-classification", model=str(result.folder))(files)
    for mine, other in zip(heedful.pipeline(model=result.folder)(files), theirs, strict=True):
        assert [row["label"] for row in mine] == [row["label"] for row in other]
        assert [row["score"] for row in mine] == pytest.approx([row["score"] for row in other], abs=1e-4)


def test_commands_measure_predict_and_classify(learnt: tuple[Any, Path], tmp_path: Path, heed: Heed) -> None:
    result, images = learnt
    code, out, told = heed("eval", result.folder, images, "--json")
    assert code == 0, told
    scores = json.loads(out)
    assert scores["task"] == "classify-images"
    assert scores["rows"] == 300
    assert scores["confusion"]["cross"]["cross"] > 80
    code, out, told = heed("predict", result.folder, images, "--out", tmp_path / "labels.csv")
    assert code == 0, told
    rows = list(csv.DictReader((tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()))
    assert list(rows[0]) == ["image", "label", "predicted_label", "score"]
    right = sum(row["label"] == row["predicted_label"] for row in rows)
    assert right == round(scores["accuracy"] * 300)
    file = images / "cross" / "000.png"
    code, out, told = heed("classify", file, "--model", result.folder, "--top-k", 2, "--json")
    assert code == 0, told
    answer = json.loads(out)
    assert (answer["task"], answer["image"]) == ("image-classification", str(file))
    assert answer["results"][0]["label"] == "cross"
    assert len(answer["results"]) == 2


def test_a_table_names_images_from_its_own_folder(base: Path, tmp_path: Path, heed: Heed) -> None:
    images = photos(tmp_path / "photos", 12, ("circle", "cross"))
    lines = [f"{kind}/{i:03}.png,{kind}" for kind in ("circle", "cross") for i in range(12)]
    (images / "table.csv").write_text("\n".join(["file_name,class", *lines]), encoding="utf-8")
    code, out, told = heed(
        "finetune", base, images / "table.csv", "--out", "sorter", "--epochs", 1, "--batch", 8, "--json"
    )
    assert code == 0, told
    assert "task: classify-images" in told
    assert "image = 'file_name', label = 'class'" in told
    assert json.loads(out)["scores"]["rows"] == 6
    (images / "more.csv").write_text("file_name\ncircle/001.png\n", encoding="utf-8")
    rows = heedful.predict("sorter", images / "more.csv")
    assert [row["file_name"] for row in rows] == ["circle/001.png"]
    assert rows[0]["label"] in ("circle", "cross")


def test_images_in_memory_are_learnt_as_files_are(base: Path, tmp_path: Path) -> None:
    images = photos(tmp_path / "photos", 6, ("circle", "cross"))
    files = read_input_file(str(images)).rows
    rows = [{"image": open_image(images / row.get("image")), "label": row.get("label")} for row in files]
    of_folder, of_rows = (
        heedful.finetune(base, data, out=tmp_path / name, epochs=2, lr=1e-3, quiet=True)
        for name, data in (("a", images), ("b", rows))
    )
    a, b = (dict(result.model.named_parameters()) for result in (of_folder, of_rows))
    assert all(torch.equal(a[name], b[name]) for name in a)
    predicted = heedful.predict(tmp_path / "b", rows)
    assert [row["predicted_label"] for row in predicted] == [
        row["predicted_label"] for row in heedful.predict(tmp_path / "a", images)
    ]


def test_an_image_that_cannot_be_read_has_no_prediction(base: Path, tmp_path: Path, heed: Heed) -> None:
    images = photos(tmp_path / "photos", 2, ("circle",))
    (images / "circle" / "damaged.png").write_bytes(b"none")
    rows = "circle/000.png,1\ncircle/damaged.png,2\n,3\ncircle/001.png,4\n"
    (images / "table.csv").write_text(f"image,number\n{rows}", encoding="utf-8")
    code, _, told = heed("predict", base, images / "table.csv", "--out", tmp_path / "out.csv")
    assert code == 0, told
    assert "2 rows have no image that can be read, and no prediction" in told
    written = list(csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert [bool(row["label"]) for row in written] == [True, False, False, True]
    (images / "table.csv").write_text("image\nnowhere.png\n", encoding="utf-8")
    code, _, told = heed("predict", base, images / "table.csv", "--out", tmp_path / "more.csv")
    assert code == 3
    assert "image not found" in told


def test_copies_of_an_image_are_never_learnt_and_held_out(base: Path, tmp_path: Path) -> None:
    images = photos(tmp_path / "photos", 8, ("circle", "cross"))
    for image in sorted((images / "cross").glob("*.png")):
        (images / "cross" / f"copy-{image.name}").write_bytes(image.read_bytes())
    result = heedful.finetune(base, images, out=tmp_path / "a", epochs=1, quiet=True)
    assert result.train_rows + result.valid_rows < 24  # copies of those held out are left out


def test_images_that_cannot_be_read_are_left_out_and_named(base: Path, tmp_path: Path, heed: Heed) -> None:
    images = photos(tmp_path / "photos", 6)
    whole = (images / "cross" / "002.png").read_bytes()
    (images / "cross" / "002.png").write_bytes(whole[: len(whole) // 2])
    (images / "circle" / "notes.txt").write_text("not an image")
    (images / ".hidden").mkdir()
    (images / ".hidden" / "x.png").write_bytes(whole)
    examples = ImageClassification.read_examples(read_input_file(str(images)), {})
    assert len(examples) == 17
    assert examples.notes == ("1 row with an image that cannot be read is left out: cross/002.png",)


def one_class(folder: Path) -> Path:
    return photos(folder / "photos", 6, ("circle",))


def no_classes(folder: Path) -> Path:
    return photos(folder / "photos", 6, ("circle",)) / "circle"


def empty(folder: Path) -> Path:
    (folder / "photos" / "circle").mkdir(parents=True)
    return folder / "photos"


def splits(folder: Path) -> Path:
    for part in ("train", "test"):
        photos(folder / "photos" / part, 2)
    return folder / "photos"


def missing_file(folder: Path) -> Path:
    photos(folder / "photos", 3)
    lines = "circle/000.png,a\ncircle/9.png,b\ncross/000.png,b\n"
    (folder / "photos" / "table.csv").write_text(f"image,label\n{lines}", encoding="utf-8")
    return folder / "photos" / "table.csv"


def damaged(folder: Path) -> Path:
    for kind in ("a", "b"):
        (folder / "photos" / kind).mkdir(parents=True)
        (folder / "photos" / kind / "x.png").write_bytes(b"none")
    return folder / "photos"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (one_class, "every row has the label 'circle': there is nothing to distinguish"),
        (no_classes, "has images and no subfolders, so their classes are unknown"),
        (empty, "is a folder without images"),
        (splits, "has no subfolder for each class: its folders are"),
        (missing_file, "line 3: image not found: 'circle/9.png'"),
        (damaged, "none of its 2 rows can be used: 2 rows are with an image that cannot be read"),
    ],
)  # fmt: skip
def test_bad_images_are_one_clear_line(make: Any, said: str, base: Path, tmp_path: Path, heed: Heed) -> None:
    code, out, told = heed("finetune", base, make(tmp_path), "--out", "sorter")
    assert (code, out) == (3, "")
    error = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(error) == 1, told
    assert said in error[0]
    assert not Path("sorter").exists()


def test_images_and_models_that_do_not_go_together_are_refused(base: Path, tmp_path: Path) -> None:
    images = photos(tmp_path / "photos", 4)
    with refused(InputError, "cannot learn to label images", hint="take a ViT or a DeiT"):
        heedful.finetune("all-minilm-l6-v2", images, quiet=True)
    with refused(InputError, "cannot learn to label images", hint="or use task=read"):
        heedful.finetune(reader(tmp_path), images, quiet=True)
    rows = [("good", "a"), ("bad", "b"), ("fine", "a"), ("poor", "b")]
    with refused(InputError, "a vit model reads images and no text", hint="task=classify-images"):
        heedful.finetune(base, rows, task="classify", quiet=True)
    numbers = [("good", "fine", 0.1), ("bad", "poor", 0.5), ("good", "bad", 0.9), ("fine", "poor", 0.2)]
    for task in ("similarity", "regress"):
        with refused(InputError, "a vit model reads images and no text"):
            heedful.finetune(base, numbers, task=task, quiet=True)
    with refused(ConfigError, "length=32: an image is read whole"):
        heedful.finetune(base, images, length=32, quiet=True)
    with refused(InputError, "vit model has no 'tag' head"):
        tags = [{"tokens": ["a", "b"], "tags": ["O", tag]} for tag in ("A", "B") * 3]
        heedful.finetune(base, tags, task="tag", quiet=True)
