"""Tokenizers small enough to check by eye."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from heedful.data.tokenization import Ids

SPECIAL = ("[PAD]", "[EOS]", "[BOS]", "[MASK]", "[CLS]", "[SEP]", "[UNK]")


class Letters:
    """One id per character; the end of text is also the padding, as in GPT-2."""

    def __init__(self, letters: str = "abcdefghijklmnopqrstuvwxyz .\n0123456789") -> None:
        self.letters = letters
        self.bos = self.mask = self.cls = self.sep = None
        self.eos: int | None = len(letters)
        self.pad: int | None = len(letters)

    def __len__(self) -> int:
        return len(self.letters) + 1

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [self.letters.index(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join((self.letters + "$")[i] for i in ids)


class Words:
    """Words and punctuation; unknown words cut into letters marked ##; [CLS] … [SEP] as in BERT."""

    def __init__(self, words: Iterable[str] = (), sentinels: int = 0) -> None:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        extra = [f"<extra_id_{i}>" for i in reversed(range(sentinels))]
        first = [*words, *letters, *(f"##{c}" for c in letters), ".", ",", "?", "!"]
        self.names = list(dict.fromkeys([*SPECIAL, *first, *extra]))
        self.ids = {name: i for i, name in enumerate(self.names)}
        self.pad, self.eos, self.bos, self.mask, self.cls, self.sep = range(6)

    def __len__(self) -> int:
        return len(self.names)

    def _split(self, text: str) -> list[tuple[int, int, int]]:
        out: list[tuple[int, int, int]] = []
        for found in re.finditer(r"\w+|[^\w\s]", text):
            word, start = found.group(), found.start()
            if word in self.ids:
                out.append((self.ids[word], start, found.end()))
                continue
            for i, letter in enumerate(word):
                name = letter.lower() if i == 0 else f"##{letter.lower()}"
                out.append((self.ids.get(name, 6), start + i, start + i + 1))
        return out

    def encode(self, text: str, special: bool = True) -> list[int]:
        ids = [i for i, _, _ in self._split(text)]
        return [self.cls, *ids, self.sep] if special else ids

    def encode_all(self, texts: Iterable[str], special: bool = True) -> list[list[int]]:
        return [self.encode(text, special) for text in texts]

    def encode_pair(self, first: str, second: str, special: bool = True) -> tuple[list[int], list[int]]:
        a, b = self.encode(first, special), self.encode(second, False) + [self.sep] * special
        return a + b, [0] * len(a) + [1] * len(b)

    def offsets(self, text: str, special: bool = True) -> list[tuple[int, int]]:
        spans = [(start, end) for _, start, end in self._split(text)]
        return [(0, 0), *spans, (0, 0)] if special else spans

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.names[i] for i in ids]

    def id(self, token: str) -> int | None:
        return self.ids.get(token)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.names[i] for i in ids)


def restore_spans(source: Ids, target: Ids, sentinels: Sequence[int]) -> Ids:
    """Return the text before `corrupt_spans`: each sentinel replaced by what follows it in the target."""
    marks = set(sentinels)
    fill: dict[int, list[int]] = {}
    now: list[int] = []
    for token in target.tolist():
        if token in marks:
            now = fill.setdefault(token, [])
        else:
            now.append(token)
    out = [t for token in source.tolist() for t in (fill.get(token, []) if token in marks else [token])]
    return np.array(out, np.int64)
