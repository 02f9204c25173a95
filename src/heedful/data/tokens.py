"""What data needs of a tokenizer, and the special tokens it puts around a text or a pair."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heedful.errors import InputError

Ids = NDArray[np.int64]


class Tokenizer(Protocol):
    """Text to ids and back. `heedful.text` has the real one; anything with these will do."""

    def __len__(self) -> int: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def pad(self) -> int | None: ...

    @property
    def mask(self) -> int | None: ...

    @property
    def cls(self) -> int | None: ...

    @property
    def sep(self) -> int | None: ...


@runtime_checkable
class EncodesMany(Protocol):
    """A tokenizer that encodes many texts at once, on all cores."""

    def encode_all(self, texts: Iterable[str], special: bool = True) -> list[list[int]]: ...


@runtime_checkable
class EncodesPairs(Protocol):
    """A tokenizer that knows how its model was shown two texts."""

    def encode_pair(self, first: str, second: str, special: bool = True) -> tuple[list[int], list[int]]: ...


@runtime_checkable
class Named(Protocol):
    """A tokenizer that tells the names in its vocabulary."""

    def tokens(self, ids: Sequence[int]) -> list[str]: ...


@runtime_checkable
class Locates(Protocol):
    """A tokenizer that tells which characters each piece stands for."""

    def offsets(self, text: str, special: bool = True) -> list[tuple[int, int]]: ...


def encode_many(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of many texts, nothing put around them."""
    if isinstance(tokenizer, EncodesMany):
        return tokenizer.encode_all(texts, special=False)
    return [tokenizer.encode(text, special=False) for text in texts]


def names(tokenizer: Tokenizer) -> list[str]:
    """What each id stands for: its name if the tokenizer tells it, else the text it decodes to."""
    ids = range(len(tokenizer))
    return tokenizer.tokens(ids) if isinstance(tokenizer, Named) else [tokenizer.decode([i]) for i in ids]


def fingerprint(tokenizer: Tokenizer, sample: str) -> str:
    """sha256 of the vocabulary, the special tokens, and how it cuts a sample of the text."""
    facts = [names(tokenizer), special_ids(tokenizer), tokenizer.encode(sample)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens there are, by what they are for."""
    t = tokenizer
    values = {"bos": t.bos, "eos": t.eos, "pad": t.pad, "mask": t.mask, "cls": t.cls, "sep": t.sep}
    return {role: i for role, i in values.items() if i is not None}


def pad_id(tokenizer: Tokenizer) -> int:
    """What fills up a batch. Any id would do: padding is known by `valid`, never by its id."""
    return next((i for i in (tokenizer.pad, tokenizer.eos) if i is not None), 0)


def need(tokenizer: Tokenizer, role: str, why: str) -> int:
    """The id of a special token that a task cannot do without."""
    found = special_ids(tokenizer)
    if role not in found:
        has = ", ".join(found) or "no special tokens"
        raise InputError(f"{why} needs a {role} token and this tokenizer has none", hint=f"it has {has}")
    return found[role]


@dataclass(frozen=True)
class Frame:
    """before + a + after for one text; before + a + between + b + after for two."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    typed: bool = False  # whether the second text has type 1

    @property
    def single(self) -> int:
        """How many special tokens one text gets."""
        return len(self.before) + len(self.after)

    @property
    def double(self) -> int:
        """How many two texts get."""
        return self.single + len(self.between)

    def one(self, a: Sequence[int] | NDArray[np.generic]) -> Ids:
        """One text between its special tokens."""
        return np.concatenate((self.before, np.asarray(a, np.int64), self.after)).astype(np.int64)

    def two(self, a: Sequence[int] | Ids, b: Sequence[int] | Ids) -> tuple[Ids, Ids]:
        """Two texts as one sequence, and the type of each token: 0 up to the separator, 1 after it."""
        first = np.concatenate((self.before, np.asarray(a, np.int64), self.between))
        second = np.concatenate((np.asarray(b, np.int64), self.after))
        types = np.repeat([0, int(self.typed)], [len(first), len(second)])
        return np.concatenate((first, second)).astype(np.int64), types.astype(np.int64)


def frame(tokenizer: Tokenizer) -> Frame:
    """What this tokenizer puts around texts, found by encoding one.

    A tokenizer that puts nothing around gets [CLS] a [SEP] b [SEP] if it has those two tokens.
    """
    text, inner = _probe(tokenizer)
    whole = tokenizer.encode(text)
    at = _find(inner, whole)
    before, after = tuple(whole[:at]), tuple(whole[at + len(inner) :])
    if not before and not after:
        if tokenizer.cls is None or tokenizer.sep is None:
            return Frame()
        return Frame((tokenizer.cls,), (tokenizer.sep,), (tokenizer.sep,), typed=True)
    if isinstance(tokenizer, EncodesPairs):
        pair, types = tokenizer.encode_pair(text, text)
        second = _find(inner, pair, len(before) + len(inner))
        return Frame(before, after, tuple(pair[len(before) + len(inner) : second]), typed=1 in types)
    return Frame(before, after, after, typed=tokenizer.cls is not None)


def _probe(tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """A text that the tokenizer surely knows, and its ids: one of its own tokens."""
    special = set(special_ids(tokenizer).values())
    for i in range(len(tokenizer)):
        text = "" if i in special else tokenizer.decode([i])
        if text.strip() and tokenizer.encode(text, special=False) == [i]:
            return text, [i]
    return "", []


def _find(inner: Sequence[int], whole: Sequence[int], start: int = 0) -> int:
    for at in range(start, len(whole) - len(inner) + 1):
        if list(whole[at : at + len(inner)]) == list(inner):
            return at
    return start  # a tokenizer that changes a text when it frames it: take it as unframed


def ended(tokenizer: Tokenizer, around: Frame) -> Frame:
    """The frame with an end, which tells a decoder that the text is over: EOS if the tokenizer adds none."""
    if around.after or tokenizer.eos is None:
        return around
    return Frame(around.before, (tokenizer.eos,), around.between, around.typed)


def facts(tokenizer: Tokenizer) -> str:
    """What of a tokenizer rows depend on beside the ids of the text."""
    return repr((len(tokenizer), special_ids(tokenizer), frame(tokenizer)))
