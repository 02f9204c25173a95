"""Images: opened, resized and normalised as published files say; refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.core.errors import ConfigError, InputError, MissingPackage, NotFound
from heedful.core.images import (
    ImageProcessor,
    draw_text,
    open_image,
    read_image_processor,
    write_image_processor,
)
from tests.refusal import refused

Image = pytest.importorskip("PIL.Image")
PLAIN = ImageProcessor(24, 24)


def photograph(height: int = 37, width: int = 53) -> Any:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViT", {"size": {"height": 24, "width": 24}}),
        ("ViT", {"size": {"height": 16, "width": 40}, "image_mean": [0.1, 0.2, 0.3], "resample": 3}),
        ("ViT", {"size": {"height": 24, "width": 24}, "do_normalize": False, "rescale_factor": 0.01}),
        ("DeiT", {"size": {"height": 32, "width": 32}, "crop_size": {"height": 24, "width": 24}}),
        ("CLIP", {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
        ("CLIP", {"size": {"shortest_edge": 31}, "crop_size": {"height": 16, "width": 24}, "resample": 2}),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_pixels_are_those_of_the_published_processor(
    kind: str, settings: dict[str, Any], turned: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{kind}ImageProcessorPil")(**settings)
    theirs.save_pretrained(tmp_path)
    ours, image = read_image_processor(tmp_path, PLAIN), photograph()
    image = image.transpose(Image.Transpose.ROTATE_90) if turned else image
    expected = theirs(image, return_tensors="pt")["pixel_values"]
    assert (ours(image) - expected).abs().max() <= 1e-6


def test_an_early_file_of_clip_states_the_shorter_side(tmp_path: Path) -> None:
    early = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 24, "crop_size": 24}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(early | {"do_center_crop": True}))
    ours = read_image_processor(tmp_path, PLAIN)
    assert (ours.shortest, ours.crop) == (24, (24, 24))
    assert ours(photograph()).shape == (1, 3, 24, 24)


def test_a_processor_that_is_written_is_read_back(tmp_path: Path) -> None:
    for shortest in (20, None):
        ours = ImageProcessor(16, 40, 1, (0.25,), (0.5,), 1 / 128, 3, (8, 8), shortest)
        write_image_processor(ours, tmp_path)
        assert read_image_processor(tmp_path, ImageProcessor(16, 40, 1)) == ours
    published = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(published | {"own": 1}))
    write_image_processor(read_image_processor(tmp_path, PLAIN), tmp_path)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["own"] == 1


def test_a_path_an_array_and_a_pillow_image_give_the_same_pixels(tmp_path: Path) -> None:
    image = photograph()
    image.save(tmp_path / "photo.png")
    several = PLAIN([image, np.asarray(image), tmp_path / "photo.png", str(tmp_path / "photo.png")])
    assert several.shape == (4, 3, 24, 24)
    assert all(torch.equal(one, several[0]) for one in several)
    assert torch.equal(PLAIN(several), several)


def test_transparent_pixels_are_white() -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert np.asarray(open_image(clear).convert("L")).min() == 255


def test_a_drawn_text_is_dark_on_white_and_as_wide_as_it_needs() -> None:
    short, long = draw_text("1"), draw_text("1234567")
    assert short.height == long.height == 32
    assert short.width < long.width
    assert np.asarray(long).min() < 80
    assert np.asarray(long)[0].min() == 255


def test_what_is_no_image_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    with refused(NotFound, "image not found", hint="path"):
        PLAIN("missing.png")
    with refused(InputError, "text.png is not an image"):
        PLAIN(tmp_path / "text.png")
    with refused(InputError, "an array"):
        PLAIN(np.zeros((2, 2)))
    with refused(InputError, "got a int"):
        PLAIN(3)
    with refused(InputError, "no image is given"):
        PLAIN([])


@pytest.mark.parametrize(
    "wrong", [{"size": {"shortest_edge": 224}}, {"size": -3}, {"resample": 9}, {"image_std": [0.0]}]
)
def test_settings_that_are_not_read_here_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ConfigError) as error:
        read_image_processor(tmp_path, PLAIN)
    assert "`" not in str(error.value)


def test_without_pillow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refused(MissingPackage, "Pillow", hint="heedful[images]"):
        PLAIN("photo.png")
