"""What the builders of batches ask of a tokenizer.

Its special tokens, the template it puts around a text or a pair, and which ids of its vocabulary are special,
continue a word, or end a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]  # (V) one for each id of a vocabulary
SPACES = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word


class TokenizerProtocol(Protocol):
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
class FullTokenizer(Protocol):
    """A tokenizer that knows the names and the places of its tokens, and encodes many texts on all cores."""

    def encode_all(self, texts: Iterable[str], special: bool = True) -> list[list[int]]: ...

    def encode_pair(self, first: str, second: str, special: bool = True) -> tuple[list[int], list[int]]:
        """Return two texts as their model was shown them, and the text each token belongs to."""

    def offsets(self, text: str, special: bool = True) -> list[tuple[int, int]]: ...

    def tokens(self, ids: Sequence[int]) -> list[str]: ...


def encode_many(tokenizer: TokenizerProtocol, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of many texts without special tokens."""
    if isinstance(tokenizer, FullTokenizer):
        return tokenizer.encode_all(texts, special=False)
    return [tokenizer.encode(text, special=False) for text in texts]


def vocabulary_names(tokenizer: TokenizerProtocol) -> list[str]:
    """Return the name of each id in the vocabulary, or the text it decodes to where names are unknown."""
    ids = range(len(tokenizer))
    if isinstance(tokenizer, FullTokenizer):
        return tokenizer.tokens(ids)
    return [tokenizer.decode([i]) for i in ids]


def special_token_ids(tokenizer: TokenizerProtocol) -> dict[str, int]:
    """Map each role (bos, eos, pad …) that the tokenizer fills to the id of its token."""
    t = tokenizer
    values = {"bos": t.bos, "eos": t.eos, "pad": t.pad, "mask": t.mask, "cls": t.cls, "sep": t.sep}
    return {role: i for role, i in values.items() if i is not None}


def pad_id(tokenizer: TokenizerProtocol) -> int:
    """Return the id that fills up a batch. Any would do: padding is known by `valid`, never by its id."""
    return next((i for i in (tokenizer.pad, tokenizer.eos) if i is not None), 0)


def mask_id(tokenizer: TokenizerProtocol, purpose: str) -> int:
    """Return the id of the mask; an error says what cannot be done without it."""
    if tokenizer.mask is None:
        has = ", ".join(special_token_ids(tokenizer)) or "no special tokens"
        raise InputError(f"{purpose} needs a mask token and this tokenizer has none", hint=f"it has {has}")
    return tokenizer.mask


def start_token_id(tokenizer: TokenizerProtocol, start: int | None, roles: Sequence[str]) -> int:
    """Return the token that a decoder starts with: `start`, or the first of these roles that is filled."""
    ids = special_token_ids(tokenizer)
    first = next((ids[role] for role in roles if role in ids), None) if start is None else start
    if first is None:
        raise InputError(
            "a decoder needs a token to start with and this tokenizer has none", hint="pass `start=`"
        )
    return int(first)


@dataclass(frozen=True)
class Template:
    """The special tokens around texts: before a after for one, before a between b after for two."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    has_types: bool = False  # whether the second text has type 1

    @property
    def single_count(self) -> int:
        """The number of special tokens that one text gets."""
        return len(self.before) + len(self.after)

    @property
    def pair_count(self) -> int:
        """The number of special tokens that two texts get."""
        return self.single_count + len(self.between)

    @property
    def signature(self) -> str:
        """The text by which fingerprints know the template: runs have saved it, so it never changes."""
        parts = f"before={self.before}, after={self.after}, between={self.between}"
        return f"Frame({parts}, typed={self.has_types})"

    def wrap(self, ids: Sequence[int] | NDArray[np.generic], length: int | None = None) -> Ids:
        """Return one text between its special tokens, cut from the end to `length` tokens in all."""
        inner = ids if length is None else ids[: max(length - self.single_count, 0)]
        return np.concatenate((self.before, np.asarray(inner, np.int64), self.after)).astype(np.int64)

    def wrap_pair(
        self, a: Sequence[int] | Ids, b: Sequence[int] | Ids, length: int | None = None
    ) -> tuple[Ids, Ids]:
        """Return two texts as one sequence, and the type of each token: 0 up to the separator, then 1.

        Both are cut from the end to `length` tokens in all, the longer one first.
        """
        if length is not None:
            excess = max(len(a) + len(b) + self.pair_count - length, 0)
            longer = min(abs(len(a) - len(b)), excess)
            both = excess - longer
            cuts = (longer, 0) if len(a) >= len(b) else (0, longer)
            a, b = a[: len(a) - cuts[0] - (both + 1) // 2], b[: len(b) - cuts[1] - both // 2]
        first = np.concatenate((self.before, np.asarray(a, np.int64), self.between))
        second = np.concatenate((np.asarray(b, np.int64), self.after))
        types = np.repeat([0, int(self.has_types)], [len(first), len(second)])
        return np.concatenate((first, second)).astype(np.int64), types.astype(np.int64)


def find_template(tokenizer: TokenizerProtocol, end: bool = False) -> Template:
    """Return the special tokens that a tokenizer puts around texts, found by encoding one.

    A tokenizer that adds nothing gets [CLS] a [SEP] b [SEP] if it has those two tokens. With `end` a text
    also ends with EOS if nothing else follows it: a decoder learns from it that the text is over.
    """
    text, inner = _probe(tokenizer)
    ids = tokenizer.encode(text)
    at = _find_run(inner, ids)
    before, after = tuple(ids[:at]), tuple(ids[at + len(inner) :])
    if not before and not after:
        template = Template()
        if tokenizer.cls is not None and tokenizer.sep is not None:
            template = Template((tokenizer.cls,), (tokenizer.sep,), (tokenizer.sep,), has_types=True)
    elif isinstance(tokenizer, FullTokenizer):
        pair, types = tokenizer.encode_pair(text, text)
        second = _find_run(inner, pair, len(before) + len(inner))
        between = tuple(pair[len(before) + len(inner) : second])
        template = Template(before, after, between, has_types=1 in types)
    else:
        template = Template(before, after, after, has_types=tokenizer.cls is not None)
    if end and not template.after and tokenizer.eos is not None:
        return replace(template, after=(tokenizer.eos,))
    return template


def _probe(tokenizer: TokenizerProtocol) -> tuple[str, list[int]]:
    """Return a text that the tokenizer surely knows, the text of one token, and its ids."""
    special = set(special_token_ids(tokenizer).values())
    for i in range(len(tokenizer)):
        text = "" if i in special else tokenizer.decode([i])
        if text.strip() and tokenizer.encode(text, special=False) == [i]:
            return text, [i]
    return "", []


def _find_run(inner: Sequence[int], ids: Sequence[int], start: int = 0) -> int:
    for at in range(start, len(ids) - len(inner) + 1):
        if list(ids[at : at + len(inner)]) == list(inner):
            return at
    return start  # a tokenizer that changes a text when it adds special tokens: take it as adding none


def tokenizer_signature(tokenizer: TokenizerProtocol) -> str:
    """Return what rows depend on besides the ids of the text: size, special tokens, template."""
    template = find_template(tokenizer).signature
    return f"({len(tokenizer)}, {special_token_ids(tokenizer)!r}, {template})"


def special_flags(tokenizer: TokenizerProtocol) -> Flags:
    """(V) ids that are not text: never masked, never drawn at random."""
    template = find_template(tokenizer)
    flags = np.zeros(len(tokenizer), bool)
    ids = special_token_ids(tokenizer).values()
    flags[[*ids, *template.before, *template.between, *template.after]] = True
    return flags


def continuation_flags(tokenizer: TokenizerProtocol) -> Flags:
    """(V) ids that continue a word: ##ing of WordPiece; letters without a space before in the others."""
    if not isinstance(tokenizer, FullTokenizer):
        raise InputError("whole words need the names of the tokens and this tokenizer has none")
    names = vocabulary_names(tokenizer)
    if any(name.startswith("##") for name in names):
        return np.array([name.startswith("##") for name in names])
    space = next((s for s in SPACES if any(name.startswith(s) for name in names)), None)
    if space is None:
        raise InputError(
            "no token of this vocabulary marks the beginning or the inside of a word",
            hint="use `whole=False`",
        )
    return np.array([bool(name) and not name.startswith(space) and name[0].isalnum() for name in names])


def sentence_end_flags(tokenizer: TokenizerProtocol) -> Flags:
    """(V) ids that end a sentence: full stops, question and exclamation marks."""
    text = (name.lstrip("".join(SPACES)).removeprefix("##").strip() for name in vocabulary_names(tokenizer))
    return np.array([name in {".", "!", "?", "。", "！", "？", "…"} for name in text])
