"""What every task shares: Pipeline, reading text for a model, and batches of alike lengths.

text ── read ──▶ Reading (ids, types, characters) ── run ──▶ one tensor per reading ── task ──▶ answer
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import tokenizers
import torch
from torch import Tensor
from torch.utils.data import Dataset

from heedful.data.tokens import pad_id
from heedful.errors import InputError, nearest
from heedful.models.base import LM, Model, Seq2Seq
from heedful.text import Tokenizer
from heedful.text.vocabularies import frame

BATCH = 32
CUTS = ("longest_first", "only_first", "only_second", "do_not_truncate")

# What transformers' own calls may say and nothing here depends on.
IDLE = frozenset({"padding", "num_workers"})

# What older versions of transformers called an option, or call one beside its name.
RENAMED = {"topk": "top_k", "multi_class": "multi_label", "X": "data"}


class Truncated(UserWarning):
    """Text was longer than its model reads, and its end was cut off."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A task done by one model: call it with text. `defaults` are options of every call.

    A task is a subclass with a method `answer(inputs, *, option=…)`, and says which models fit it.
    """

    task: str
    model: Model = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    heads: ClassVar[tuple[str, ...]] = ()  # the kinds of head that fit; none named: any
    needs: ClassVar[str] = "a model"  # the same in words, for the error of one that does not

    def __post_init__(self) -> None:
        self._check(self.defaults)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The answers, in the shape of the inputs."""
        self._check(options)
        chosen = renamed({**self.defaults, **options})
        chosen = {k: v for k, v in chosen.items() if k not in IDLE and (k, v) != ("batch_size", None)}
        whole_number("batch_size", chosen.get("batch_size", BATCH))
        signature = inspect.signature(self.answer)
        try:
            signature.bind(*inputs, **chosen)
        except TypeError as error:
            takes = ", ".join(n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD)
            raise InputError(f"{self.task} takes {takes}, several texts as a list: {error}") from None
        return self.answer(*inputs, **chosen)

    def answer(self, *inputs: Any, **options: Any) -> Any:
        """What the task gives back for its inputs."""
        raise NotImplementedError

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Whether this task can be done by a model."""
        return not cls.heads or model.config.head in cls.heads

    @property
    def how(self) -> str:
        """How the answer is reached, in a line: its equation."""
        return (inspect.getdoc(type(self)) or self.needs).splitlines()[0]

    def __repr__(self) -> str:
        return f"pipeline({self.task!r}, {self.model.family.name}, {self.model.config.head} head)"

    def _check(self, options: Mapping[str, Any]) -> None:
        parameters = inspect.signature(self.answer).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        known = [name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL]
        for name in renamed(options):
            if name not in known and name not in IDLE:
                instead = nearest(name, known) or "it has " + ", ".join(known)
                raise InputError(f"{self.task} has no option {name!r}; {instead}")


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names they have now."""
    return {RENAMED.get(name, name): value for name, value in options.items()}


def whole_number(name: str, value: Any) -> int:
    """A count, at least 1; one clear line for what is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name}={value!r} must be a whole number")
    if value < 1:
        raise InputError(f"{name}={value} must be at least 1")
    return int(value)


@dataclass(frozen=True)
class Reading:
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

    def take(self, *places: tuple[int, int], cut: int = 0, before: int = 0) -> Reading:
        """The tokens from a to b, for every (a, b)."""
        pick = lambda values: [value for a, b in places for value in values[a:b]]
        return Reading(
            pick(self.ids), pick(self.types), pick(self.spans), pick(self.special), pick(self.sides),
            pick(self.words), cut, before,
        )  # fmt: skip


def room(model: Model, tokenizer: Tokenizer) -> int | None:
    """How many tokens a model reads at once, special ones included; None if there is no limit."""
    known = "context" in model.config.known()
    limits = [getattr(model.config, "context") if known else None]  # noqa: B009
    limits += [table.context for table in model.tables.values()]
    limits.append(tokenizer.settings.get("model_max_length"))  # a huge number where nobody set it
    return min((int(n) for n in limits if n is not None and n < 1e9), default=None)


def framed(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, with [CLS] a [SEP] b [SEP] put around if it has those tokens and puts nothing around."""
    if tokenizer.backend.num_special_tokens_to_add(False) or tokenizer.cls is None or tokenizer.sep is None:
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    cls, sep = tokenizer.roles["cls"], tokenizer.roles["sep"]
    frame(backend, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    return Tokenizer(backend, tokenizer.roles, tokenizer.chat_template, tokenizer.settings)


def whole(tokenizer: Tokenizer, text: Any, pair: Any = None) -> Reading:
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
    return reading(e)


def reading(e: tokenizers.Encoding) -> Reading:
    """What the `tokenizers` library found."""
    special = [bool(s) for s in e.special_tokens_mask]
    return Reading(e.ids, e.type_ids, e.offsets, special, e.sequence_ids, e.word_ids)


def read(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    length: int | None = None,
    cut: str = "longest_first",
) -> Reading:
    """A text or a pair between its special tokens; what is beyond `length` tokens is cut off.

    `cut` says from which text: "longest_first" takes tokens from the longer one, "only_first", "only_second".
    """
    entire = whole(tokenizer, text, pair)
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
) -> list[Reading]:
    """A long text in readings of at most `length` tokens that share `stride` of them with the one before.

    Of two texts the second is the long one: a question stands before every window of its context. Spans and
    words count from the beginning of the text in all of them.
    """
    return sliding(whole(tokenizer, text, pair), length, stride)


def sliding(long: Reading, length: int, stride: int) -> list[Reading]:
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


def fitted(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    *,
    truncation: bool | str = False,
    max_length: int | None = None,
    way_out: str = "",
    cut: str = "longest_first",
) -> list[Reading]:
    """Every text (or pair) as its model reads it; one too long is an error, or cut and reported.

    `truncation` is True or says which text of a pair is cut; a `max_length` cuts too, as in transformers.
    """
    limit, cutting = room(model, tokenizer), cuts(truncation)
    if max_length is not None and truncation != "do_not_truncate":
        cutting, limit = True, min(max_length, limit or max_length)
    cut = truncation if isinstance(truncation, str) and cutting else cut
    readings = []
    for i, text in enumerate(texts):
        first, second = text if isinstance(text, tuple) and len(text) == 2 else (text, None)
        one = read(tokenizer, first, second, length=limit if cutting else None, cut=cut)
        check_room(one, limit, i, way_out)
        readings.append(one)
    report(dict(enumerate(readings)))
    return readings


def cuts(truncation: Any) -> bool:
    """Whether a text too long is to be cut; one clear line for what says neither."""
    if truncation is not None and not isinstance(truncation, bool) and truncation not in CUTS:
        raise InputError(f"truncation={truncation!r} is unknown; True, False, or one of {', '.join(CUTS)}")
    return truncation not in (False, None, "do_not_truncate")


def cutting(truncation: Any, max_length: int | None, said: Mapping[str, Any] | None) -> dict[str, Any]:
    """How a text is cut, unless options for the tokenizer say it; one of them that is not known is named."""
    known = ("truncation", "max_length")
    for name in said or {}:
        if name not in known and name not in IDLE:
            raise InputError(f"the tokenizer has no option {name!r} here; it has {', '.join(known)}")
    told = {name: value for name, value in (said or {}).items() if name in known}
    return {"truncation": truncation, "max_length": max_length} | told


def check_room(reading: Reading, limit: int | None, i: int, way_out: str = "") -> None:
    """One clear line for an input without tokens, or with more than its model reads."""
    if not len(reading):
        raise InputError(f"input {i} has no tokens; leave it out")
    if limit is not None and len(reading) > limit:
        raise InputError(
            f"input {i} has {len(reading):,} tokens and this model reads {limit:,}; "
            f"pass truncation=True to read its beginning{way_out}"
        )


def report(readings: Mapping[int, Reading]) -> None:
    """One warning for everything that was cut off, by the numbers of the inputs."""
    told = [(i, r) for i, r in readings.items() if r.cut]
    if not told:
        return
    lost = [f"{r.cut:,} of {r.cut + len(r) - sum(r.special):,} tokens of input {i}" for i, r in told[:3]]
    more = f" and of {len(told) - 3:,} more inputs" if len(told) > 3 else ""
    warnings.warn(Truncated(f"cut off: {', '.join(lost)}{more}"), stacklevel=_outside())


def _outside() -> int:
    """How far up the stack the package was called, for a warning to point there."""
    names = (frame.frame.f_globals.get("__name__", "") for frame in inspect.stack(0)[1:])
    return 1 + sum(1 for _ in itertools.takewhile(lambda name: name.startswith("heedful."), names))


def run(
    model: Model,
    tokenizer: Tokenizer,
    readings: Sequence[Reading],
    forward: Callable[..., Tensor] | None = None,
    batch_size: int = BATCH,
) -> list[Tensor]:
    """What the model gives for every reading, float32 on the CPU, as if each were read alone.

    `forward` takes (tokens, valid=, types=) and gives (B, …); None: the model's logits. A result by token is
    as long as its batch: its first len(reading) rows count.
    """
    whole_number("batch_size", batch_size)
    out: list[Tensor] = [torch.zeros(0)] * len(readings)
    # Alike lengths together: less padding.
    order = sorted(range(len(readings)), key=lambda i: -len(readings[i]))
    with torch.inference_mode():
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            tokens, valid, types = collate([readings[i] for i in rows], pad_id(tokenizer))
            given: dict[str, Tensor | None] = {"valid": None if bool(valid.all()) else valid.to(model.device)}
            if isinstance(model, LM) and 0 < int(types.max()) < _types(model):
                given["types"] = types.to(model.device)
            found = (forward or model)(tokens.to(model.device), **given).float().cpu()
            for i, one in zip(rows, found, strict=True):
                out[i] = one
    return out


def _types(model: LM) -> int:
    """How many types of token a model tells apart: RoBERTa has one, whatever its tokenizer says."""
    return 0 if model.embed.types is None else model.embed.types.num_embeddings


def encoder(model: Model) -> Callable[..., Tensor]:
    """What gives the hidden states of a text; of an encoder-decoder its encoder."""
    assert isinstance(model, (LM, Seq2Seq))
    return model.encode


def collate(readings: Sequence[Reading], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, which of them are text, and their types: (B, T) each."""
    size = max(map(len, readings))
    tokens = torch.full((len(readings), size), pad, dtype=torch.long)
    types = torch.zeros_like(tokens)
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    for r, reading in enumerate(readings):
        n = len(reading)
        tokens[r, :n], types[r, :n] = torch.tensor(reading.ids), torch.tensor(reading.types)
        valid[r, :n] = True
    return tokens, valid, types


def spread(
    inputs: Any, answers: Callable[[list[Any]], list[Any]], batch_size: int = BATCH, kind: Any = str
) -> Any:
    """Answers in the shape of the inputs: one for one, a list for a list, a generator for a generator.

    `kind` is the type (or types) of one input. A generator is read a batch at a time.
    """
    if isinstance(inputs, kind):
        return answers([inputs])[0]
    if not isinstance(inputs, (str, bytes, Mapping)):
        if isinstance(inputs, Collection):
            return answers(list(inputs)) if len(inputs) else []
        if isinstance(inputs, Dataset) and isinstance(inputs, Sized):
            return _streamed((inputs[i] for i in range(len(inputs))), answers, batch_size)
        if isinstance(inputs, Iterable):
            return _streamed(iter(inputs), answers, batch_size)
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    raise InputError(f"the input must be a {names}, or a list or a generator of them; got {inputs!r:.60}")


def _streamed(
    inputs: Iterator[Any], answers: Callable[[list[Any]], list[Any]], batch_size: int
) -> Iterator[Any]:
    while some := list(itertools.islice(inputs, batch_size)):
        yield from answers(some)


def labels(model: Model) -> list[str]:
    """What the classes are called: id2label of config.json, else LABEL_0, LABEL_1, …"""
    named = model.published.get("id2label") or {i: f"LABEL_{i}" for i in range(model.config.labels)}
    return [str(name) for _, name in sorted(named.items(), key=lambda item: int(item[0]))]
