"""A text, or two, as a model reads it: ids with the characters they stand for, whole, cut, or in windows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from heedful.errors import InputError
from heedful.models.base import Model
from heedful.text import Tokenizer
from heedful.text.vocabularies import set_template


@dataclass(frozen=True)
class TokenizedText:
    """A text, or two, as a model reads it: lists of one entry per token.

    `spans` are characters of the text the token comes from; `sides` 0 and 1 tell which, None for what was
    put around; `words` counts the words of that text. `cut` tokens of the text were left off; `before` is how
    many of the text stand before a window of it.
    """

    ids: list[int]
    types: list[int]
    spans: list[tuple[int, int]]
    special: list[bool]
    sides: list[int | None]
    words: list[int | None]
    cut: int = 0
    before: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, side: int) -> range:
        """The tokens of one text; they stand together."""
        first = self.sides.index(side) if side in self.sides else 0
        return range(first, first + self.sides.count(side))

    def take(self, *places: tuple[int, int], cut: int = 0, before: int = 0) -> TokenizedText:
        """The tokens from a to b, for every (a, b)."""
        pick = lambda values: [value for a, b in places for value in values[a:b]]
        return TokenizedText(
            pick(self.ids), pick(self.types), pick(self.spans), pick(self.special), pick(self.sides),
            pick(self.words), cut, before,
        )  # fmt: skip


def input_limit(model: Model, tokenizer: Tokenizer) -> int | None:
    """How many tokens a model reads at once, special ones included; None if there is no limit."""
    known = "context" in model.config.known()
    limits = [getattr(model.config, "context") if known else None]  # noqa: B009
    limits += [table.context for table in model.tables.values()]
    limits.append(tokenizer.settings.get("model_max_length"))  # a huge number where nobody set it
    return min((int(n) for n in limits if n is not None and n < 1e9), default=None)


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, with [CLS] a [SEP] b [SEP] put around if it has those tokens and puts nothing around."""
    if tokenizer.backend.num_special_tokens_to_add(False) or tokenizer.cls is None or tokenizer.sep is None:
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    cls, sep = tokenizer.roles["cls"], tokenizer.roles["sep"]
    set_template(backend, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    return Tokenizer(backend, tokenizer.roles, tokenizer.chat_template, tokenizer.settings)


def tokenize(tokenizer: Tokenizer, text: Any, pair: Any = None) -> TokenizedText:
    """A text or a pair between its special tokens, however long."""
    for given in (text, "" if pair is None else pair):
        if not isinstance(given, str):
            raise InputError(f"a text is a string; got a {type(given).__name__}: {str(given)[:40]}")
    try:
        e = tokenizer.backend.encode(text, pair)
    except (UnicodeError, TypeError):
        at = re.search("[\ud800-\udfff]", text + (pair or ""))
        found = at.string[max(0, at.start() - 10) : at.end() + 10] if at else text[:20]
        raise InputError(
            f"the text has half a character ({found!a}); read its file with the right encoding"
        ) from None
    return from_encoding(e)


def from_encoding(e: tokenizers.Encoding) -> TokenizedText:
    """What the `tokenizers` library found."""
    special = [bool(s) for s in e.special_tokens_mask]
    return TokenizedText(e.ids, e.type_ids, e.offsets, special, e.sequence_ids, e.word_ids)


def tokenize_truncated(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    length: int | None = None,
    cut: str = "longest_first",
) -> TokenizedText:
    """A text or a pair between its special tokens; what is beyond `length` tokens is cut off.

    `cut` says from which text: "longest_first" takes tokens from the longer one, "only_first", "only_second".
    """
    entire = tokenize(tokenizer, text, pair)
    if length is None or len(entire) <= length:
        return entire
    first, second = entire.where(0), entire.where(1)
    a, b, fit = len(first), len(second), length - sum(entire.special)
    if pair is None or cut == "only_first":
        keep = (fit - b, b)
    elif cut == "only_second":
        keep = (a, fit - a)
    else:
        keep = _shares(a, b, fit)
    if min(keep) < 0 or fit < 1:
        raise InputError(f"{length} tokens leave no room for a text beside what must stay; raise max_length")
    second = second if b else range(first.stop, first.stop)
    kept = ((0, first.start + keep[0]), (first.stop, second.start + keep[1]), (second.stop, len(entire)))
    return entire.take(*kept, cut=a + b - sum(keep))


def _shares(a: int, b: int, fit: int) -> tuple[int, int]:
    """How much of two texts of a and b tokens stays if the longer one gives way until both fit."""
    short = min(a, b, fit // 2)
    return (short, fit - short) if a <= b else (fit - short, short)


def windows(
    tokenizer: Tokenizer, text: str, pair: str | None = None, *, length: int, stride: int
) -> list[TokenizedText]:
    """A long text in readings of at most `length` tokens that share `stride` of them with the one before.

    Of two texts the second is the long one: a question stands before every window of its context. Spans and
    words count from the beginning of the text in all of them.
    """
    return split_windows(tokenize(tokenizer, text, pair), length, stride)


def split_windows(long: TokenizedText, length: int, stride: int) -> list[TokenizedText]:
    """A reading in windows over its last text."""
    if len(long) <= length:
        return [long]
    text = long.where(1 if 1 in long.sides else 0)
    fit = length - (len(long) - len(text))
    if fit < 1:
        raise InputError(f"a window of {length} tokens has no room for the text; raise max_seq_len")
    if not 0 <= stride < fit:
        raise InputError(
            f"stride={stride} must be from 0 to {fit - 1}: a window of {length} tokens has {fit} of the text"
        )
    starts = range(text.start, max(text.stop - stride, text.start + 1), fit - stride)
    parts = [(at, min(at + fit, text.stop)) for at in starts]
    edge = (text.stop, len(long))
    return [long.take((0, text.start), part, edge, before=part[0] - text.start) for part in parts]
