"""Where in an image a model looks: the numbers are the watched ones, the picture is tinted by them."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures.canvas import encode_png
from heedful.classroom.figures.kinds import tint_image
from heedful.classroom.figures.model_picture import model_picture
from heedful.classroom.figures.part_equations import equations_of, title_of
from heedful.core.errors import InputError
from heedful.core.images import draw_text
from heedful.nn.context import Watch
from tests.image_toy import reader, shape, vit
from tests.properties.tiny import tiny
from tests.refusal import refused


def test_the_weights_are_those_of_cross_attention(tmp_path: Path) -> None:
    model, image = reader(tmp_path, layers=2), draw_text("305", 16, 32)
    figure = view.image_attention(model, image, "30")
    panel, watch = figure.data["panels"][0], Watch("decoder.*.cross.pattern")
    target = [[model.start_token, *model.tokenizer.encode("30", special=False)]]
    with torch.no_grad():
        model(model.image_processor(image), torch.tensor(target), watch=watch)
    patterns = torch.stack([watch[f"decoder.{i}.cross.pattern"][0] for i in range(2)])
    assert np.allclose(panel["values"], patterns.mean((0, 1)), atol=1e-6)
    assert panel["columns"][:2] == ["[CLS]", "1,1"]
    assert panel["rows"][:2] == ["3", "0"]
    one = view.image_attention(model, image, "30", layer=1, head=2)
    assert np.allclose(one.data["panels"][0]["values"], patterns[1, 2], atol=1e-6)
    on_class = 100 * float(patterns.mean((0, 1))[:, 0].mean())
    assert f"{on_class:.0f} % of all weight goes to [CLS]" in figure.note


def test_it_is_saved_in_every_form_with_a_picture_for_each_token(tmp_path: Path) -> None:
    figure = view.image_attention(reader(tmp_path), draw_text("305", 16, 32), "30")
    for suffix in ("html", "svg", "png", "csv", "json"):
        assert figure.save(tmp_path / f"figure.{suffix}").stat().st_size > 100
    pictures = re.findall(r'href="data:image/png;base64,([^"]+)"', figure.to_svg())
    assert len(pictures) == 4  # the image itself, and one for each token
    Image = pytest.importorskip("PIL.Image")
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0]))))
    assert np.array_equal(first, figure.data["pixels"])
    assert "data:image/png" in (tmp_path / "figure.html").read_text()


def test_a_patch_without_weight_stays_as_it_is_and_the_greatest_is_tinted_most() -> None:
    pixels = np.full((4, 8, 3), 255, dtype=np.uint8)
    tinted = tint_image(pixels, np.array([[0.0, 0.5], [0.25, 0.0]]), 0.5)
    assert (tinted[:2, :4] == 255).all()
    assert (tinted[2:, 4:] == 255).all()
    assert tinted[0, 7, 2] < tinted[3, 0, 2] < 255


def test_pixels_of_a_png_are_those_that_were_written() -> None:
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(pixels)))), pixels)


def test_other_figures_take_an_image_too(tmp_path: Path) -> None:
    model, image = reader(tmp_path), draw_text("305", 16, 32)
    image.save(tmp_path / "number.png")
    for draw in (view.attention, view.heads, view.next_token, view.surprisal, view.steps, view.beams):
        assert draw(model, str(tmp_path / "number.png")).data
    assert view.attention(model, image).data["patterns"]


def test_the_class_token_of_an_encoder_looks_in_every_layer(tmp_path: Path) -> None:
    model, image, watch = vit(tmp_path), shape("cross", 0), Watch("*.pattern")
    figure = view.image_attention(model, image)
    with torch.no_grad():
        model(model.image_processor(image), watch=watch)
    looks = torch.stack([watch[f"blocks.{i}.attn.pattern"][0, :, 0] for i in range(2)])  # (L, H, S)
    panel = figure.data["panels"][0]
    assert np.allclose(panel["values"], looks.mean(1), atol=1e-6)
    assert panel["rows"] == ["layer 0", "layer 1"]
    assert figure.data["grid"] == [4, 4]
    assert figure.title.endswith("looks: each layer, all heads")
    of_layer = view.image_attention(model, image, layer=1)
    assert of_layer.title.endswith("looks: layer 1, each head")
    heads = of_layer.data["panels"][0]
    assert np.allclose(heads["values"], looks[1], atol=1e-6)
    assert heads["rows"] == [f"head {i}" for i in range(4)]
    one = view.image_attention(model, image, layer=0, head=2).data["panels"][0]
    assert np.allclose(one["values"], looks[:1, 2], atol=1e-6)
    assert view.image_attention(model, image, head=1).data["panels"][0]["rows"] == ["layer 0", "layer 1"]
    with refused(InputError, "head=9"):
        view.image_attention(model, image, head=9)
    assert "layer 1" in figure.to_svg()


def test_of_clip_its_image_encoder_is_drawn() -> None:
    sizes = dict(height=16, patch=8, image_dim=24, image_layers=2, image_heads=3, project_dim=20)
    model, image = heedful.build("clip", vocab=99, dim=24, heads=3, layers=1, **sizes), shape("cross", 0)
    both, alone = view.image_attention(model, image), view.image_attention(model.image, image)
    assert np.array_equal(both.data["panels"][0]["values"], alone.data["panels"][0]["values"])


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with refused(InputError, "bart reads text", hint="load a ViT or a vision-encoder-decoder"):
        view.image_attention(tiny("bart"), "number.png")
    with refused(InputError, "layer=7", hint="mean"):
        view.image_attention(reader(tmp_path), draw_text("1"), "1", layer=7)
    assert heedful.view.image_attention is view.image_attention


def test_the_title_has_the_name_given_and_the_page_shows_it_once(tmp_path: Path) -> None:
    figure = view.image_attention(reader(tmp_path), draw_text("305", 16, 32), "30", name="digits")
    assert "digits looks" in figure.title
    assert "name='digits'" in figure.python
    assert "digits looks" in figure.to_svg()
    assert "digits looks" not in figure.to_dict()["drawn"]["light"]
    assert "∅" not in figure.to_dict()["drawn"]["light"]


def test_the_embedding_of_an_image_is_one_of_patches() -> None:
    embed = heedful.load("digits").embed
    assert title_of(embed) == "Embedding of patches"
    patches, learned, _ = equations_of(embed)
    assert patches == "x_t = E patch_t + b + p_t"
    assert learned == "x_t = c_t + p_t for t < 1"


def test_the_picture_of_an_image_reader_speaks_of_patches() -> None:
    model = heedful.load("digits")
    image = draw_text("2026", model.image_processor.height, model.image_processor.width)
    source, vectors = model_picture(model, image).stages[:2]
    assert "patches" in source.note
    assert vectors.equations[0] == "x_t = E patch_t + b + p_t"
