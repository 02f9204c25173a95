"""image-classification and zero-shot-image-classification beside the pipelines of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.core.images import open_image
from tests.image_toy import shape
from tests.refusal import refused

transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL", reason="images need Pillow")
LABELS = ["a circle", "a square", "nothing at all"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{kind}.png" for kind in ("circle", "square", "cross")]
    for i, path in enumerate(paths):
        shape(path.stem, i, size=40).save(path)
    return list(map(str, paths))


def published(model: Any, folder: Path) -> Path:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = {i: name for i, name in enumerate(("cat", "dog", "owl", "fish", "bee", "ant", "fox"))}
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=32,
        patch_size=8, id2label=names, label2id={name: i for i, name in names.items()},
    )  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return published(transformers.ViTForImageClassification(config), folder)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    letters = "abcdefghijklmnopqrstuvwxyz."
    words = [
        *letters,
        *(f"{c}</w>" for c in letters),
        "ph",
        "th",
        "is</w>",
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = transformers.CLIPTokenizer(
        vocab=vocab, merges=[("p", "h"), ("t", "h"), ("i", "s</w>")], model_max_length=48
    )
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 16}
    transformers.CLIPImageProcessor(size=size, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    text = {"vocab_size": len(words), "max_position_embeddings": 48, "bos_token_id": len(words) - 2,
            "eos_token_id": len(words) - 1, "hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "intermediate_size": 40}  # fmt: skip
    image = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
             "image_size": 16, "patch_size": 8}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=20)
    torch.manual_seed(0)
    return published(transformers.CLIPModel(config), folder)


def same(ours: Any, theirs: Any) -> None:
    assert [row["label"] for row in ours] == [row["label"] for row in theirs]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_k": 99}, {"function_to_apply": "sigmoid"}])
def test_labels_and_scores_equal_those_of_transformers(
    vit: Path, files: list[str], options: dict[str, Any]
) -> None:
    ours, theirs = heedful.pipeline(model=vit), transformers.pipeline("image-classification", model=str(vit))
    assert ours.task == "image-classification"
    for mine, other in zip(ours(files, **options), theirs(files, **options), strict=True):
        same(mine, other)
    same(ours(files[0], **options), theirs(files[0], **options))


def test_an_image_is_a_path_an_array_or_an_image_and_batches_change_nothing(
    vit: Path, files: list[str]
) -> None:
    label = heedful.pipeline("image-classification", vit, top_k=None)
    forms = [files[0], Path(files[0]), open_image(files[0]), np.asarray(open_image(files[0]))]
    for one in label(forms, batch_size=3):
        same(one, label(files[0]))
    assert len(label(files[0])) == 7
    assert len(list(label(path for path in files))) == 3


@pytest.mark.parametrize("options", [{}, {"hypothesis_template": "it is {}."}])
def test_labels_of_ones_own_get_the_scores_of_transformers(
    clip: Path, files: list[str], options: dict[str, Any]
) -> None:
    ours = heedful.pipeline(model=clip)
    theirs = transformers.pipeline("zero-shot-image-classification", model=str(clip))
    assert ours.task == "zero-shot-image-classification"
    for mine, other in zip(
        ours(files, candidate_labels=LABELS, **options), theirs(files, candidate_labels=LABELS, **options),
        strict=True,
    ):  # fmt: skip
        same(mine, other)
    same(ours(files[0], "a circle, a square, nothing at all"), theirs(files[0], candidate_labels=LABELS))


def test_what_cannot_be_done_is_refused_in_one_line(vit: Path, clip: Path, files: list[str]) -> None:
    with refused(InputError, "image-classification needs", hint="give another model"):
        heedful.pipeline("image-classification", clip)
    with refused(InputError, "zero-shot-image-classification needs a model that compares"):
        heedful.pipeline("zero-shot-image-classification", vit)
    with refused(InputError, "text-classification needs", "good for image-classification"):
        heedful.pipeline("text-classification", vit)
    with refused(InputError, "candidate_labels must name at least one label"):
        heedful.pipeline(model=clip)(files[0])
    with refused(InputError, "has no {}"):
        heedful.pipeline(model=clip)(files[0], LABELS, hypothesis_template="a photo")
    with refused(InputError, "no option 'top'"):
        heedful.pipeline(model=vit)(files[0], top=3)
