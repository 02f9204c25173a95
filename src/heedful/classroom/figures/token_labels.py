"""Tokens and numbers as they are shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heedful.interp.inputs import is_pair, names_of
from heedful.models.base import Model
from heedful.text.bpe import bytes_of_letters, is_byte_level

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece names a byte
WIDE = "ABCDEFGHIJKLMNOPQRSTUVWXYZmw@%"
CONTROL = re.compile(
    "[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)


def spell_token(token: str) -> str:
    """A byte-level token as text; bytes that are not a whole letter as <E4 B8>."""
    letters = bytes_of_letters()
    if any(c not in letters for c in token):
        return token
    data = bytes(letters[c] for c in token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"<{data.hex(' ').upper()}>"


def labels(model: Model, ids: Tensor | Sequence[int]) -> list[str]:
    """The names of ids as a reader wants them: those of a byte-level vocabulary spelled out."""
    return readable(model, names_of(model, ids))


def readable(model: Model, names: Sequence[str]) -> list[str]:
    """Names of tokens as a reader wants them."""
    spelled = model.tokenizer is not None and is_byte_level(model.tokenizer)
    return [spell_token(name) if spelled else name for name in names]


def visible_text(token: str) -> str:
    """Spaces as ·, a newline as ⏎, control and direction characters by their code: nothing is executed."""
    token = re.sub("^[Ġ▁ ]+", lambda m: "·" * len(m[0]), token)
    token = token.replace("\n", "⏎").replace("Ċ", "⏎").replace("\t", "⇥").replace("Ġ", "·").replace("▁", "·")
    token = CONTROL.sub(lambda m: f"<{ord(m[0]):02X}>", token.removesuffix("</w>"))
    return token or "∅"


def visible_token(token: str) -> str:
    """A spelled token as a page shows it: every space of it can be seen."""
    return visible_text(BYTE.sub(r"<\1>", token)).replace(" ", "·").replace("\u00a0", "·")


def visible_tokens(model: Model, names: Sequence[str]) -> list[str]:
    """Names of a model's tokens as a page shows them."""
    return [visible_token(name) for name in readable(model, names)]


def short(token: str, letters: int = 14) -> str:
    """A token, shortened if it is long."""
    whole = visible_text(token[:400])
    return whole if len(whole) <= letters else whole[: letters - 1] + "…"


def width(text: str, size: float = 12.0) -> float:
    """About how wide a text is when it is drawn, in pixels."""

    def letter_width(letter: str) -> float:
        if unicodedata.east_asian_width(letter) in "WF":
            return 1.0
        return 0.33 if letter in "il.,:;|'!()[]·" else 0.72 if letter in WIDE else 0.57

    return sum(map(letter_width, text)) * size


def cut_label(text: str) -> str:
    """A text for a caption; one over 300 letters is cut, and says how long it is."""
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text):,} characters)"


def caption_of(text: Any, tokens: Sequence[str]) -> str:
    """What was read, for a caption: a text, or two of them, or the names of tokens."""
    text = " | ".join(text) if is_pair(text) else text
    return cut_label(text if isinstance(text, str) else " ".join(tokens))


def brief(value: float) -> str:
    """A number in few letters: 0.41, 12.3, 2000, 15k, 1e-05."""
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "nan"
    size = abs(value)
    if size < 1e-3:
        return f"{value:.0e}" if value else "0"
    written = (
        f"{value / 1e6:.3g}M" if size >= 1e6 else f"{value / 1e3:.3g}k" if size >= 1e4 else f"{value:.0f}"
    )
    return (written if size >= 100 else f"{value:.3g}").replace("-", "−", 1)


def percent(share: float) -> str:
    """A share in per cent: 41.2 %, 0.03 %, 0.007 %. What is not quite all is never called 100 %."""
    of100 = 100 * share
    if of100 >= 100 or not of100:
        return "100 %" if of100 else "0"
    if of100 >= 99.95 or of100 < 1e-3:
        return "< 0.001 %" if of100 < 1 else f"{of100:.2f} %" if of100 < 99.995 else "> 99.99 %"
    return f"{of100:.{3 if of100 < 0.01 else 2 if of100 < 10 else 1}f} %"
