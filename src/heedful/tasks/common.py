"""What every task shares: Pipeline, texts that fit their model, and batches of alike lengths.

text ── read ──▶ Reading (ids, types, characters) ── run ──▶ one tensor per reading ── task ──▶ answer

readings.py has the first arrow.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from heedful.data.tokenization import pad_id
from heedful.errors import InputError, nearest
from heedful.models.base import LM, Model, Seq2Seq
from heedful.tasks.readings import Reading, read, room
from heedful.text import Tokenizer

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
        signature = inspect.signature(self.answer)
        placed = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][
            : len(inputs)
        ]
        defaults = {k: v for k, v in renamed(self.defaults).items() if k not in placed}  # an argument wins
        chosen = {**defaults, **renamed(options)}
        chosen = {k: v for k, v in chosen.items() if k not in IDLE and (k, v) != ("batch_size", None)}
        whole_number("batch_size", chosen.get("batch_size", BATCH))
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
    def labels(self) -> list[str]:
        """What the classes of the model are called, in their order: id2label of transformers."""
        return labels(self.model)

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
    named = model.hf_config.get("id2label") or {i: f"LABEL_{i}" for i in range(model.config.labels)}
    return [str(name) for _, name in sorted(named.items(), key=lambda item: int(item[0]))]
