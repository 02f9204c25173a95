"""From the inputs of a task to the outputs of its model: tokens that fit, batches of alike lengths.

text ── tokenize_inputs ──▶ TokenizedText ── forward_batches ──▶ one tensor per text ── task ──▶ answer
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import Dataset

from heedful.core.errors import InputError
from heedful.tasks.tokenized import TokenizedText

BATCH_SIZE = 32
TRUNCATIONS = ("longest_first", "only_first", "only_second", "do_not_truncate")

# Options of transformers that change nothing here.
IGNORED_OPTIONS = frozenset({"padding", "num_workers"})
# The other names of options in transformers → those used here.
OPTION_ALIASES = {"topk": "top_k", "multi_class": "multi_label", "X": "data"}


class Truncated(UserWarning):
    """The warning that a text was longer than its model reads, and that its end was cut off."""


def rename_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under the names used here."""
    return {OPTION_ALIASES.get(name, name): value for name, value in options.items()}


def truncates(truncation: Any) -> bool:
    """Return whether a text that is too long is to be cut; raise InputError for an unknown value."""
    if truncation is not None and not isinstance(truncation, bool) and truncation not in TRUNCATIONS:
        raise InputError(
            f"truncation={truncation!r} is unknown", hint=f"True, False, or one of {', '.join(TRUNCATIONS)}"
        )
    return truncation not in (False, None, "do_not_truncate")


def truncation_options(
    truncation: Any, max_length: int | None, tokenizer_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return how texts are cut: as `tokenizer_options` say, else as the other two arguments say."""
    given, known = tokenizer_options or {}, ("truncation", "max_length")
    for name in given:
        if name not in known and name not in IGNORED_OPTIONS:
            raise InputError(f"the tokenizer has no option {name!r} here", hint=f"it has {', '.join(known)}")
    own = {name: value for name, value in given.items() if name in known}
    return {"truncation": truncation, "max_length": max_length} | own


def check_length(text: TokenizedText, limit: int | None, number: int) -> None:
    """Raise InputError for an input without tokens, or with more than its model reads."""
    if not len(text):
        raise InputError(f"input {number} has no tokens", hint="leave it out")
    if limit is not None and len(text) > limit:
        raise InputError(
            f"input {number} has {len(text):,} tokens and this model reads {limit:,}",
            hint="pass truncation=True to read its beginning",
        )


def warn_truncated(texts: Mapping[int, TokenizedText]) -> None:
    """Give one warning for all inputs, by their numbers, of which something was cut off."""
    cut = [(i, text) for i, text in texts.items() if text.num_truncated]
    if not cut:
        return
    whole = lambda text: text.num_truncated + len(text) - sum(text.special_tokens_mask)
    lost = [f"{t.num_truncated:,} of {whole(t):,} tokens of input {i}" for i, t in cut[:3]]
    more = f" and of {len(cut) - 3:,} more inputs" if len(cut) > 3 else ""
    warnings.warn(Truncated(f"cut off: {', '.join(lost)}{more}"), stacklevel=_stack_depth())


def _stack_depth() -> int:
    """Return how far up the stack the package was called, for a warning to point there."""
    names = (frame.frame.f_globals.get("__name__", "") for frame in inspect.stack(0)[1:])
    return 1 + sum(1 for _ in itertools.takewhile(lambda name: name.startswith("heedful."), names))


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


def _map_stream(
    inputs: Iterator[Any], predict: Callable[[list[Any]], list[Any]], batch_size: int
) -> Iterator[Any]:
    while batch := list(itertools.islice(inputs, batch_size)):
        yield from predict(batch)
