"""Colours everybody can tell apart: one hue from the background on for weights, two for signed numbers."""

from __future__ import annotations

import functools

import numpy as np

CIVIDIS = (
    "#fee838", "#e1cc55", "#c3b369", "#a59c74", "#8a8779", "#707173", "#575d6d", "#3b496c", "#123570",
    "#00224e",
)  # fmt: skip
# Each starts at its theme's background; "signed" has it in the middle (light: PuOr).
LIGHT = {
    "blue": ("#ffffff", "#dce9f7", "#a6c8e8", "#5b99d1", "#2463a8", "#08306b"),
    "cividis": CIVIDIS,
    "signed": ("#542788", "#998ec3", "#d8daeb", "#ffffff", "#fee0b6", "#f1a340", "#b35806"),
}
DARK = {
    "blue": ("#14171c", "#17324f", "#22608f", "#4b97cc", "#a8d3f0", "#fdf7dc"),
    "cividis": CIVIDIS[::-1],
    "signed": ("#9ad4f5", "#56b4e9", "#23506b", "#14171c", "#6b4c0a", "#e69f00", "#ffcf66"),
}
PALETTES = ("blue", "cividis")
# Okabe and Ito's eight, the yellow darker so that it can be seen on white; dashes tell them apart as well.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A900", "#777777")
DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3), (12, 4), (4, 2, 1, 2), (1, 2), (10, 2, 2, 2))
SCALES = ("linear", "sqrt", "log")
FLOOR = 1e-4  # the smallest share of the limit that a logarithmic scale still shows


@functools.cache
def color_table(stops: tuple[str, ...]) -> np.ndarray:
    """256 colours (256, 3) between stops that stand at equal distances."""
    known = np.array([list(bytes.fromhex(stop[1:])) for stop in stops], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(at, np.arange(len(stops)), known[:, c]) for c in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def level(values: np.ndarray, limit: float, scale: str) -> np.ndarray:
    """Where sizes stand between 0 and their limit: v, √v, or log v from FLOOR on."""
    share = np.clip(np.abs(values) / (limit or 1.0), 0.0, 1.0)
    if scale == "sqrt":
        return np.sqrt(share)
    if scale == "log":
        return 1 - np.log10(np.maximum(share, FLOOR)) / np.log10(FLOOR)
    return share


def rows(values: np.ndarray, limit: float, *, scale: str = "linear", signed: bool = False) -> np.ndarray:
    """The row of each value in a table of 256 colours: 0 is a ramp's background, 128 that of "signed"."""
    values = np.nan_to_num(values)
    size = level(values, limit, scale)
    if signed:
        return np.rint(127.5 + np.sign(values) * size * 127.5).astype(np.uint8)
    return np.rint(size * 255).astype(np.uint8)


def ink(colour: np.ndarray) -> str:
    """Black or white, whichever reads better on a colour (WCAG's relative luminance)."""
    share = colour / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return "#000000" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "#ffffff"


def greatest(values: np.ndarray) -> float:
    """The greatest size: the top of a colour scale; NaN has none."""
    return float(np.nan_to_num(np.abs(values)).max(initial=0.0)) or 1.0
