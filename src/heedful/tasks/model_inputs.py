"""From the inputs of a task to the outputs of its model: tokens that fit, batches of alike lengths.

text ── Task.tokenize ──▶ TokenizedText ── Task.forward ──▶ one tensor per text ── predict ──▶ answer
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor
from torch.utils.data import Dataset

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.core.images import require_pillow
from heedful.core.progress import report_progress
from heedful.decode.request import context_length
from heedful.models.base import MediaLM, Model
from heedful.text import Tokenizer
from heedful.text.vocabularies import set_template

BATCH_SIZE = 32
TRUNCATIONS = ("longest_first", "only_first", "only_second", "do_not_truncate")

# Options of transformers that change nothing here.
IGNORED_OPTIONS = frozenset({"padding", "num_workers"})
# The other names of options in transformers → those used here.
OPTION_ALIASES = {"topk": "top_k", "multi_class": "multi_label", "X": "data"}


class Truncated(UserWarning):
    """The warning that a text was longer than its model reads, and that its end was cut off."""


@contextmanager
def ignore_truncated() -> Iterator[None]:
    """Give no warning about texts that are cut, where their number was reported before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Truncated)
        yield


def rename_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under the names used here."""
    return {OPTION_ALIASES.get(name, name): value for name, value in options.items()}


def truncates(truncation: Any) -> bool:
    """Return whether a text that is too long is to be cut; raise InputError for an unknown value."""
    if truncation is not None and not isinstance(truncation, bool) and truncation not in TRUNCATIONS:
        raise InputError(
            f"`truncation={truncation!r}` is unknown", hint=f"True, False, or one of {', '.join(TRUNCATIONS)}"
        )
    return truncation not in (False, None, "do_not_truncate")


def truncation_options(
    truncation: Any, max_length: int | None, tokenizer_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return how texts are cut: as `tokenizer_options` say, else as the other two arguments say."""
    given, names = tokenizer_options or {}, ("truncation", "max_length")
    for name in given:
        if name not in names and name not in IGNORED_OPTIONS:
            raise InputError(f"the tokenizer has no option {name!r} here", hint=f"it has {', '.join(names)}")
    own = {name: value for name, value in given.items() if name in names}
    return {"truncation": truncation, "max_length": max_length} | own


def check_length(text: TokenizedText, limit: int | None, number: int) -> None:
    """Raise InputError for an input without tokens, or with more than its model reads."""
    if not len(text):
        raise InputError(f"input {number} has no tokens", hint="leave it out")
    if limit is not None and len(text) > limit:
        raise InputError(
            f"input {number} has {len(text):,} tokens and this model reads {limit:,}",
            hint="pass `truncation=True` to read its beginning",
        )


def warn_truncated(texts: Mapping[int, TokenizedText]) -> None:
    """Give one warning for all inputs, by their numbers, of which something was cut off."""
    cut = [(i, text) for i, text in texts.items() if text.num_truncated]
    if not cut:
        return
    whole = lambda text: text.num_truncated + len(text) - sum(text.special_tokens_mask)
    lost = [f"{t.num_truncated:,} of {whole(t):,} tokens of input {i}" for i, t in cut[:3]]
    more = f" and of {len(cut) - 3:,} more inputs" if len(cut) > 3 else ""
    # The warning points to where the package was called.
    names = (frame.frame.f_globals.get("__name__", "") for frame in inspect.stack(0))
    depth = sum(1 for _ in itertools.takewhile(lambda name: name.startswith("heedful."), names))
    warnings.warn(Truncated(f"cut off: {', '.join(lost)}{more}"), stacklevel=1 + depth)


def map_inputs(
    inputs: Any, predict: Callable[[list[Any]], list[Any]], batch_size: int = BATCH_SIZE, kind: Any = str
) -> Any:
    """Return predictions in the shape of the inputs: one, a list for a list, a generator for a generator.

    `kind` is the type (or types) of one input. A generator is read a batch at a time.
    """
    if isinstance(inputs, kind):
        return predict([inputs])[0]
    if not isinstance(inputs, (str, bytes, Mapping)):
        if isinstance(inputs, Collection):
            return predict(list(inputs)) if len(inputs) else []
        if isinstance(inputs, Dataset) and isinstance(inputs, Sized):
            return _map_stream((inputs[i] for i in range(len(inputs))), predict, batch_size)
        if isinstance(inputs, Iterable):
            return _map_stream(iter(inputs), predict, batch_size)
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    raise InputError(f"the input must be a {names}, or a list or a generator of them; got {inputs!r:.60}")


def map_images(images: Any, predict: Callable[[list[Any]], list[Any]], batch_size: int) -> Any:
    """Return predictions in the shape of the images: paths, arrays of pixels, or images of Pillow."""
    return map_inputs(images, predict, batch_size, kind=(str, Path, np.ndarray, require_pillow().Image))


def forward_images(model: MediaLM, images: Sequence[Any], batch_size: int) -> Tensor:
    """Return the model's output for every image, float32 on the CPU; a batch at a time is opened."""
    check_integer("batch_size", batch_size)
    outputs = []
    with torch.inference_mode():
        for at in range(0, len(images), batch_size):
            pixels = model.image_processor(images[at : at + batch_size])
            outputs.append(model(pixels.to(model.device)).float().cpu())
            report_progress("images", min(at + batch_size, len(images)), len(images))
    return torch.cat(outputs)


def _map_stream(
    inputs: Iterator[Any], predict: Callable[[list[Any]], list[Any]], batch_size: int
) -> Iterator[Any]:
    while batch := list(itertools.islice(inputs, batch_size)):
        yield from predict(batch)


# A text, or two, as token ids with the characters they stand for: whole, truncated, or in windows.
#
# Windows are cut here and not by the `tokenizers` library: there, truncation is a state of the tokenizer,
# which models in several threads share.


@dataclass(frozen=True)
class TokenizedText:
    """The encoding of a text or a pair: lists of one entry per token, named as in the `tokenizers` library.

    `offsets` are characters of the text that a token comes from; `sequence_ids` are 0 and 1 for the two
    texts, None for special tokens; `word_ids` count the words of a text. `num_truncated` tokens were left
    off at the end; `window_start` tokens of the text stand before a window of it.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[bool]
    sequence_ids: list[int | None]
    word_ids: list[int | None]
    num_truncated: int = 0
    window_start: int = 0

    @classmethod
    def from_encoding(cls, encoding: tokenizers.Encoding) -> TokenizedText:
        """Return what the `tokenizers` library found."""
        e, special = encoding, [bool(mask) for mask in encoding.special_tokens_mask]
        return cls(e.ids, e.type_ids, e.offsets, special, e.sequence_ids, e.word_ids)

    def __len__(self) -> int:
        return len(self.ids)

    def token_range(self, sequence: int) -> range:
        """Return the positions of one text's tokens; they stand together."""
        first = self.sequence_ids.index(sequence) if sequence in self.sequence_ids else 0
        return range(first, first + self.sequence_ids.count(sequence))

    def select(
        self, *ranges: tuple[int, int], num_truncated: int = 0, window_start: int = 0
    ) -> TokenizedText:
        """Return the tokens from a to b, for every (a, b)."""
        pick = lambda values: [value for a, b in ranges for value in values[a:b]]
        return TokenizedText(
            pick(self.ids), pick(self.type_ids), pick(self.offsets), pick(self.special_tokens_mask),
            pick(self.sequence_ids), pick(self.word_ids), num_truncated, window_start,
        )  # fmt: skip

    def truncate(self, max_length: int | None, truncation: str = "longest_first") -> TokenizedText:
        """Return at most `max_length` tokens; the special ones stay.

        "longest_first" takes tokens from the longer text; or "only_first", "only_second".
        """
        if max_length is None or len(self) <= max_length:
            return self
        first, second = self.token_range(0), self.token_range(1)
        a, b, free = len(first), len(second), max_length - sum(self.special_tokens_mask)
        if not b or truncation == "only_first":
            keep = (free - b, b)
        elif truncation == "only_second":
            keep = (a, free - a)
        else:  # the longer text gives way until both fit
            short = min(a, b, free // 2)
            keep = (short, free - short) if a <= b else (free - short, short)
        if min(keep) < 0 or free < 1:
            raise InputError(
                f"{max_length} tokens leave no room for a text besides what must stay",
                hint="raise max_length",
            )
        second = second if b else range(first.stop, first.stop)
        ranges = ((0, first.start + keep[0]), (first.stop, second.start + keep[1]), (second.stop, len(self)))
        return self.select(*ranges, num_truncated=a + b - sum(keep))

    def windows(self, max_length: int, stride: int) -> list[TokenizedText]:
        """Return windows of at most `max_length` tokens that share `stride` of them with the one before.

        Of two texts the second is the long one: a question stands before every window of its context.
        """
        if len(self) <= max_length:
            return [self]
        text = self.token_range(1 if 1 in self.sequence_ids else 0)
        free = max_length - (len(self) - len(text))
        if free < 1:
            raise InputError(
                f"a window of {max_length} tokens has no room for the text", hint="raise max_seq_len"
            )
        if not 0 <= stride < free:
            raise InputError(
                f"`stride={stride}` must be from 0 to {free - 1}: "
                f"a window of {max_length} tokens has {free} of the text"
            )
        starts = range(text.start, max(text.stop - stride, text.start + 1), free - stride)
        parts = [(at, min(at + free, text.stop)) for at in starts]
        before, after = (0, text.start), (text.stop, len(self))
        return [self.select(before, part, after, window_start=part[0] - text.start) for part in parts]


def smallest_limit(*limits: float | None) -> int | None:
    """Return the smallest of several limits; None if there is none, which a huge number stands for too."""
    return min((int(n) for n in limits if n is not None and n < 1e9), default=None)


def input_limit(model: Model, tokenizer: Tokenizer) -> int | None:
    """Return how many tokens a model reads at once, special ones included; None without a limit."""
    return smallest_limit(context_length(model, source=True), tokenizer.settings.get("model_max_length"))


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer, with [CLS] a [SEP] b [SEP] around a text if it has those and adds nothing."""
    if tokenizer.backend.num_special_tokens_to_add(False) or tokenizer.cls is None or tokenizer.sep is None:
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    cls, sep = tokenizer.roles["cls"], tokenizer.roles["sep"]
    set_template(backend, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    return Tokenizer(backend, tokenizer.roles, tokenizer.chat_template, tokenizer.settings)


def tokenize(tokenizer: Tokenizer, text: Any, pair: Any = None) -> TokenizedText:
    """Return a text or a pair between its special tokens, however long."""
    for given in (text, "" if pair is None else pair):
        if not isinstance(given, str):
            raise InputError(f"a text is a string; got a {type(given).__name__}: {str(given)[:40]}")
    try:
        encoding = tokenizer.encoding(text, pair)
    except InputError:
        at = re.search("[\ud800-\udfff]", text + (pair or ""))
        if at is None:
            raise
        context = at.string[max(0, at.start() - 10) : at.end() + 10]
        raise InputError(
            f"the text has half a character ({context!a})", hint="read its file with the right encoding"
        ) from None
    return TokenizedText.from_encoding(encoding)


def tokenize_words(tokenizer: Tokenizer, words: Any, delimiter: str) -> tuple[TokenizedText, str]:
    """Return the encoding of a list of words and the text they make; its offsets count in that text."""
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise InputError(f"`is_split_into_words=True` takes lists of words; got {words!r:.60}")
    one = TokenizedText.from_encoding(tokenizer.backend.encode(list(words), is_pretokenized=True))
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + len(delimiter))
    shift = [0 if w is None else starts[w] for w in one.word_ids]
    offsets = [(a + by, b + by) for (a, b), by in zip(one.offsets, shift, strict=True)]
    return replace(one, offsets=offsets), delimiter.join(words)


def truncate_text(tokenizer: Tokenizer, text: str, max_tokens: int) -> tuple[str, int]:
    """Return the first `max_tokens` tokens of a text, without space at the cut, and how many it lost."""
    offsets = tokenizer.offsets(text, special=False)
    if len(offsets) <= max_tokens:
        return text, 0
    return text[: offsets[max_tokens - 1][1]].rstrip(), len(offsets) - max_tokens
