"""A tiny model that reads images, with a tokenizer of characters, and drawn images for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

import heedful
from heedful.core.images import draw_text
from heedful.models.base import Model, Seq2Seq
from heedful.nn.init import initialise

SIZES: dict[str, Any] = dict(
    dim=32, layers=1, heads=4, hidden=48, context=12, dropout=0.0, height=16, width=32, channels=1, patch=8,
    encoder_dim=24, encoder_layers=1, encoder_heads=3, encoder_hidden=40,
)  # fmt: skip
TEXTS = ("1", "20", "305", "77", "9", "48", "61", "502")


def reader(folder: Path, **changes: Any) -> Seq2Seq:
    """A tiny random reader of digits."""
    letters = folder / "letters.txt"
    letters.write_text("\n".join("0123456789"), encoding="utf-8")
    tokenizer = heedful.train_tokenizer(
        "char", [str(letters)], vocab=32, special=("bos", "eos", "pad", "unk")
    )
    first = {"vocab": len(tokenizer), "start_token": tokenizer.bos}
    model = heedful.build("vision-encoder-decoder", **{**SIZES, **first, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        initialise(model, std=0.15)
    model.tokenizer = tokenizer
    assert isinstance(model, Seq2Seq)
    return model.eval()


def images(folder: Path) -> list[Path]:
    """Files of images that show TEXTS."""
    paths = [folder / f"{text}.png" for text in TEXTS]
    for text, path in zip(TEXTS, paths, strict=True):
        draw_text(text, 16, 32).save(path)
    return paths


def table(folder: Path) -> Path:
    """A table of these images and their texts."""
    rows = "\n".join(f"{path.name},{text}" for path, text in zip(images(folder), TEXTS, strict=True))
    (folder / "table.csv").write_text(f"image,text\n{rows}\n", encoding="utf-8")
    return folder / "table.csv"


def vit(folder: Path) -> Model:
    """A tiny ViT that has learned nothing, saved as `folder` / "vit"."""
    sizes: dict[str, Any] = dict(dim=32, heads=4, layers=2, hidden=64, height=24, patch=6)
    return heedful.load(heedful.save(heedful.build("vit", **sizes, labels=2, seed=0), folder / "vit"))


def shape(kind: str, seed: int, size: int = 24) -> Image.Image:
    """A bright circle, square or cross somewhere on a dark image; its colours say nothing about it."""
    draw = np.random.default_rng(seed)
    image = Image.new("RGB", (size, size), tuple(map(int, draw.integers(0, 90, 3))))
    pen, colour = ImageDraw.Draw(image), tuple(map(int, draw.integers(160, 256, 3)))
    x, y, r = (int(draw.integers(low * size, high * size) // 24) for low, high in ((8, 16), (8, 16), (5, 8)))
    if kind == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif kind == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    else:
        pen.line((x - r, y - r, x + r, y + r), fill=colour, width=2)
        pen.line((x - r, y + r, x + r, y - r), fill=colour, width=2)
    return image


def photos(folder: Path, count: int, kinds: Sequence[str] = ("circle", "square", "cross")) -> Path:
    """A folder with a subfolder of `count` images for each kind of shape."""
    for i, kind in enumerate(kinds):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            shape(kind, count * i + number).save(folder / kind / f"{number:03}.png")
    return folder
