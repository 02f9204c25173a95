"""Images as models read them: opened, resized and normalised as preprocessor_config.json says.

Pillow opens and resizes them; it is an optional package.
"""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import ConfigError, InputError, NotFound
from heedful.core.files import read_json, write_json
from heedful.core.lazy import import_optional

PREPROCESSOR = "preprocessor_config.json"
LAST_RESAMPLING = 5  # of Pillow's: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming
MAX_SIDE = 16_384  # pixels; no model reads more
MAX_LETTERS = 1_000  # of a text that is drawn as one line


def require_pillow() -> ModuleType:
    """Return Pillow's module Image; raise MissingPackage if Pillow is not installed."""
    return import_optional("PIL.Image", "reading images")


def open_image(image: Any) -> Any:
    """Return a Pillow image of a file's path or its bytes, an array (H, W) or (H, W, 3), or a Pillow image.

    Transparent pixels are shown on white, and a photograph is turned as its camera says.
    """
    Image = require_pillow()
    from PIL import ImageOps

    if isinstance(image, str | Path | bytes):
        path = None if isinstance(image, bytes) else Path(image).expanduser()
        if path is not None and not path.is_file():
            raise NotFound(f"image not found: {str(image)!r:.200}", hint="give the path of a .png, .jpg …")
        try:
            with Image.open(io.BytesIO(image) if isinstance(image, bytes) else path) as opened:
                opened.load()
                image = ImageOps.exif_transpose(opened)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = "" if path is None else f" ({str(error).partition(chr(10))[0]:.120})"
            raise InputError(f"{path or 'the file'} is not an image that can be read{reason}") from None
    elif isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
            raise InputError(
                f"an image is an array (H, W) or (H, W, 3) of uint8; got {image.shape} of {image.dtype}"
            )
        image = Image.fromarray(image)
    elif not isinstance(image, Image.Image):
        raise InputError(f"an image is a path, an array or a Pillow image; got a {type(image).__name__}")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image


def image_identity(image: Any) -> str:
    """Return what tells images apart: the path and its size in bytes, or a hash of the pixels."""
    if isinstance(image, str | Path):
        path = Path(image)
        return f"{path} {path.stat().st_size if path.is_file() else 'missing'}"
    is_image = isinstance(image, np.ndarray) or type(image).__module__.partition(".")[0] == "PIL"
    return hashlib.sha256(np.asarray(image).tobytes()).hexdigest() if is_image else repr(image)


@dataclass(frozen=True)
class ImageProcessor:
    """pixel → (pixel · rescale − mean) / std, of an image resized to `height` × `width`.

    With `shortest` its shorter side gets that many pixels instead, and it keeps its shape. `crop` is the
    middle part (height, width) that is read of it. `published` is the file's content, so that saving loses
    nothing.
    """

    height: int
    width: int
    channels: int = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    rescale: float = 1 / 255
    resample: int = 2
    crop: tuple[int, int] | None = None
    shortest: int | None = None
    published: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # transformers reads one number per channel, and no shorter list
            if len(values := getattr(self, name)) == 1:
                object.__setattr__(self, name, values * self.channels)

    def resize(self, image: Any) -> Any:
        """Return a Pillow image as the model sees it: in its colours, resized and cropped."""
        opened = open_image(image).convert("L" if self.channels == 1 else "RGB")
        size = self.width, self.height
        if self.shortest is not None:
            short = min(opened.size)
            size = tuple(min(side * self.shortest // short, MAX_SIDE) for side in opened.size)
        if opened.size != size:
            opened = opened.resize(size, self.resample)
        if self.crop is not None:
            high, wide = self.crop
            left, top = (size[0] - wide) // 2, (size[1] - high) // 2
            opened = opened.crop((left, top, left + wide, top + high))
        return opened

    def normalise(self, image: Any) -> NDArray[np.float32]:
        """Return one image as numbers (C, H, W)."""
        values = np.asarray(self.resize(image), dtype=np.float32) * np.float32(self.rescale)
        values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)  # (C, H, W)
        column = lambda each: np.asarray(each, dtype=np.float32)[:, None, None]
        return np.ascontiguousarray((values - column(self.mean)) / column(self.std))

    def __call__(self, images: Any) -> Tensor:
        """Return images as a (B, C, H, W) tensor; one image is a batch of one, pixel values stay."""
        if isinstance(images, Tensor):
            return images[None] if images.dim() == 3 else images
        several = images if isinstance(images, list | tuple) else [images]
        if not several:
            raise InputError("no image is given", hint="give at least one")
        if all(isinstance(image, Tensor) for image in several):
            return torch.stack(list(several))
        return torch.from_numpy(np.stack([self.normalise(image) for image in several]))


def read_image_processor(folder: Path, default: ImageProcessor) -> ImageProcessor:
    """Return what preprocessor_config.json of a folder says; what it leaves open is the default's."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        return default
    values: dict[str, Any] = read_json(path)
    size = (default.height, default.width)
    crop = _size(path, values, "crop_size", size) if values.get("do_center_crop") else None
    shortest = _shortest_side(path, values) if crop is not None else None
    if shortest is None and values.get("do_resize") is not False:
        size = _size(path, values, "size", size)
    plain = values.get("do_normalize") is False
    mean, std = (
        ((0.0,), (1.0,)) if plain else (_numbers(path, values, n) for n in ("image_mean", "image_std"))
    )
    factor = 1.0 if values.get("do_rescale") is False else values.get("rescale_factor", default.rescale)
    rescale = check_number(f"{path}: rescale_factor", factor, error=ConfigError)
    method = values.get("resample", default.resample)
    resample = check_integer(f"{path}: resample", method, 0, LAST_RESAMPLING, ConfigError)
    if 0.0 in std:
        raise ConfigError("must not be 0", argument=f"{path}: image_std", value=values["image_std"])
    return replace(
        default, height=size[0], width=size[1], mean=mean or default.mean, std=std or default.std,
        rescale=rescale, resample=resample, crop=crop, shortest=shortest, published=values,
    )  # fmt: skip


def _shortest_side(path: Path, config: dict[str, Any]) -> int | None:
    """Return what the shorter side is resized to; None if both sides are given.

    Early files of CLIP state that one number alone, which means a square in files of other models.
    """
    size, kind = config.get("size"), config.get("image_processor_type", config.get("feature_extractor_type"))
    side = size.get("shortest_edge") if isinstance(size, dict) else None
    side = size if isinstance(size, int) and str(kind).startswith("CLIP") else side
    if side is None or config.get("do_resize") is False:
        return None
    return check_integer(f"{path}: size", side, 1, MAX_SIDE, ConfigError)


def _size(path: Path, config: dict[str, Any], name: str, default: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) in any form that published files have."""
    value = config.get(name)
    if value is None:
        return default
    sides: list[Any] = value if isinstance(value, list) and len(value) == 2 else [value, value]
    sides = [value.get("height"), value.get("width")] if isinstance(value, dict) else sides
    if not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in sides):
        raise ConfigError(
            f'{path}: "{name}": {value!r:.80} is not supported',
            hint='it should be like {"height": 384, "width": 384}',
        )
    return sides[0], sides[1]


def _numbers(path: Path, config: dict[str, Any], name: str) -> tuple[float, ...]:
    value = config.get(name, [])
    listed = value if isinstance(value, list) else [value]
    return tuple(check_number(f"{path}: {name}", one, error=ConfigError) for one in listed)


def write_image_processor(processor: ImageProcessor, folder: Path) -> None:
    """Write what `read_image_processor` reads, in the words of published files."""
    square = processor.shortest is None
    sides = {"height": processor.height, "width": processor.width}
    settings: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor" if square else "CLIPImageProcessor",
        "do_resize": True, "do_rescale": True, "do_normalize": True,
        "size": sides if square else {"shortest_edge": processor.shortest}, "resample": processor.resample,
        "rescale_factor": processor.rescale, "image_mean": list(processor.mean),
        "image_std": list(processor.std),
    }  # fmt: skip
    if processor.crop is not None:
        settings |= {"do_center_crop": True, "crop_size": dict(zip(("height", "width"), processor.crop))}
    write_json(folder / PREPROCESSOR, processor.published or settings)


def draw_text(text: str, height: int = 32, width: int | None = None) -> Any:
    """Return a Pillow image of a text in black on white, in Pillow's own font, from the left edge on.

    It is at least `width` wide, and wider where the text needs it.
    """
    Image = require_pillow()
    from PIL import ImageDraw, ImageFont

    if len(text) > MAX_LETTERS:
        raise InputError(
            f"a text of {len(text):,} characters is not drawn", hint=f"give at most {MAX_LETTERS:,}"
        )
    font, margin = ImageFont.load_default(0.75 * height), height // 8
    left, top, right, bottom = font.getbbox(text or " ")
    image = Image.new("L", (max(width or 1, math.ceil(right - left) + 2 * margin), height), 255)
    at = (margin - left, (height - bottom + top) / 2 - top)
    ImageDraw.Draw(image).text(at, text, fill=0, font=font)
    return image


def draw_for_model(text: str, processor: ImageProcessor, tokenizer: Any = None) -> tuple[Any, list[str]]:
    """Return a text drawn as high as a model reads images, and notes on what it cannot read of it.

    A longer text is squeezed when it is read; a character that the tokenizer lacks cannot be written.
    """
    image, notes = draw_text(text, processor.height, processor.width), []
    if image.width > processor.width:
        notes.append(
            f"the drawn text is {image.width} pixels wide; the model reads {processor.width}: it is squeezed"
        )
    unknown = getattr(tokenizer, "unk", None)
    if unknown is not None:
        lacking = [c for c in dict.fromkeys(text) if unknown in tokenizer.encode(c)]
        if lacking:
            notes.append(f"the model has no {', '.join(map(repr, lacking))} and cannot write it")
    return image, notes
