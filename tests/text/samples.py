"""Varied text for comparing tokenizers: accents, CJK, emoji, odd spaces, letters of several scripts."""

from __future__ import annotations

import random

WRITTEN = [
    "The quick brown fox jumps over the lazy dog.",
    "Dragons breathe fire. They are mythical creatures.",
    "Héllo wörld, naïve café — “quotes” … ÅÄÖ ß ﬁ",
    "日本語のテキスト 中文 混合 text",
    "emoji 👩‍👩‍👧 🙂🏽 🇫🇷 ok",
    "  leading and   many   spaces  ",
    "tabs\tand\nnewlines\r\n",
    "3.14159 1,000,000 x²+y² 2026-11-15",
    "don't we'll I'm he'd they've",
    "def f(x: int) -> str:\n    return f'{x!r}'  # a comment",
    "ΑΒΓ δέζ Привет мир עברית العربية हिन्दी ไทย",
    "x" * 120,
    "\u200bzero\u00a0width \ufeff",
    "antidisestablishmentarianism pseudopseudohypoparathyroidism",
    "",
    "a",
]

SCRIPTS = [
    (0x20, 0x7F),
    (0xA0, 0x24F),
    (0x370, 0x5FF),
    (0x4E00, 0x4F00),
    (0x1F300, 0x1F64F),
    (0x3040, 0x30FF),
]


def lines(count: int = 300) -> list[str]:
    rng = random.Random(0)

    def letter() -> str:
        return chr(rng.randint(*rng.choice(SCRIPTS))) if rng.random() < 0.8 else " "

    return WRITTEN + ["".join(letter() for _ in range(rng.randint(1, 60))) for _ in range(count)]
