"""The request to `stream` and `generate`: the prompts, and the settings after they were checked."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict

import torch
from torch import Tensor

from heedful.core.errors import InputError, nearest
from heedful.core.padding import pad_rows, valid_mask
from heedful.decode.constrain import Guide, constrain
from heedful.decode.sampling import Sampling
from heedful.decode.stepper import Stepper, stepper_for
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.nn.position import Rotary

# A text, ids, or several of one kind; for a model that reads images whatever its image_processor takes.
Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor | Any


class GenerationSettings(TypedDict, total=False):
    """The keywords of `stream` and `generate`.

    Greedy unless a temperature is given, or something only a draw has a use for: top_k, top_p, min_p,
    typical, several samples. Then the temperature is 1.
    """

    max_tokens: int  # at most so many, 128 if not said
    temperature: float | None  # 0: the likeliest token
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    repetition: float  # divides the logits of tokens that occurred; 1: off
    presence: float  # subtracted once from tokens that were written; 0: off
    frequency: float  # subtracted as often as they were written; 0: off
    no_repeat: int | None  # no n-gram of this size twice
    bias: Mapping[int, float] | None  # added to the logits of single tokens
    stop: str | Sequence[str] | None  # ends before this text
    eos: int | Sequence[int] | None  # ends after these tokens; None: the model's own; (): never
    seed: int | None  # None: another text each time
    logprobs: int  # so many of the likeliest tokens beside each chosen one
    choices: Sequence[str] | None  # one of these texts
    regex: str | None  # a text this expression matches
    schema: Mapping[str, Any] | str | None  # JSON of this schema
    draft: Model | Stepper | None  # a smaller model proposes (Leviathan et al. 2023)
    lookup: int | None  # what followed the same last tokens before is proposed; so many of them must agree
    propose: int  # so many tokens at once, 4 if not said
    watch: Watch | None  # sees every pass, which is then a plain one


NARROWING = ("top_k", "top_p", "min_p", "typical")
WHOLE = ("max_tokens", "top_k", "no_repeat", "seed", "logprobs", "lookup", "propose")
NUMBERS = ("temperature", "top_p", "min_p", "typical", "repetition", "presence", "frequency")


@dataclass(frozen=True)
class Request:
    """The settings of one call after they were checked."""

    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    eos: frozenset[int]
    seed: int
    logprobs: int
    guide: Guide | None
    n: int
    draft: Model | Stepper | None
    lookup: int | None
    propose: int
    watch: Watch | None = None
    scored: bool = True  # whether anybody will look at the logprobs

    @property
    def needs_only_logits(self) -> bool:
        """Whether a token follows from the logits and a random number, and nobody asks for more."""
        return not self.sampling.changes and self.guide is None and not self.scored


def make_request(model: Model, settings: GenerationSettings, *, n: int = 1, samples: bool = True) -> Request:
    """Check the settings and fill in the defaults; `samples` is False for searches, which never draw."""
    known = GenerationSettings.__annotations__
    for name in settings:
        if name not in known:
            raise InputError(f"there is no setting {name!r}", hint=nearest(name, known) or ", ".join(known))
    s: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    check_types(s | {"n": n})
    max_tokens, logprobs, propose = s.get("max_tokens", 128), s.get("logprobs", 0), s.get("propose", 4)
    if max_tokens < 1:
        raise InputError(f"max_tokens={max_tokens} asks for no text", hint="give at least 1")
    if not 0 <= logprobs <= vocab_size(model):
        raise InputError(f"logprobs={logprobs} must lie between 0 and the vocabulary's {vocab_size(model)}")
    if n < 1:
        raise InputError(f"n={n} asks for no text", hint="give at least 1")
    if propose < 1:
        raise InputError(f"propose={propose} must be at least 1")
    narrowing = [name for name in NARROWING if name in s]
    temperature = s.get("temperature", 1.0 if samples and (narrowing or n > 1) else 0.0)
    rules = ("repetition", "presence", "frequency", "no_repeat", "bias", *NARROWING)
    sampling = Sampling(temperature=temperature, **{name: s[name] for name in rules if name in s})
    if wrong := [token for token in sampling.bias if not 0 <= token < vocab_size(model)]:
        raise InputError(
            f"bias names the token {wrong[0]}", hint=f"the vocabulary is 0 … {vocab_size(model) - 1}"
        )
    if samples and sampling.greedy and n > 1:
        raise InputError(
            f"n={n} with temperature=0 gives the same text {n} times", hint="raise it, or use beams"
        )
    eos = eos_ids(model, s.get("eos"))
    guide = constrain(model, eos, s.get("choices"), s.get("regex"), s.get("schema"))
    check_draft(model, guide, s.get("watch"), s.get("draft"), s.get("lookup"))
    return Request(
        max_tokens, sampling, stop_strings(model, s.get("stop")), eos, s.get("seed", secrets.randbits(63)),
        logprobs, guide, n, s.get("draft"), s.get("lookup"), propose, s.get("watch"),
    )  # fmt: skip


def check_types(settings: Mapping[str, Any]) -> None:
    """Raise an error for text where a number belongs, for half a token, and for a watch that is none."""
    for name, value in settings.items():
        whole = name in (*WHOLE, "n", "beams", "groups")
        if whole and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise InputError(f"{name}={value!r} must be a whole number")
        if name in NUMBERS and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InputError(f"{name}={value!r} must be a number")
    bias = settings.get("bias", {})
    if not isinstance(bias, Mapping) or not all(isinstance(token, Integral) for token in bias):
        raise InputError(f"bias={bias!r} must be a mapping from ids of tokens to numbers, as {{5: -1.0}}")
    if not isinstance(settings.get("regex", ""), str):
        raise InputError(f"regex={settings['regex']!r} must be a text")
    watch = settings.get("watch")
    if watch is not None and not isinstance(watch, Watch):
        raise InputError(f"watch={watch!r:.40} is no Watch", hint="give heedful.Watch(name, …)")


def check_draft(
    model: Model, guide: Guide | None, watch: Watch | None, draft: Model | Stepper | None, lookup: int | None
) -> None:
    """Raise an error for a draft that cannot propose to this model, and for settings that forbid guesses."""
    if draft is None and lookup is None:
        return
    if draft is not None and lookup is not None:
        raise InputError("draft and lookup both propose tokens", hint="give one of them")
    if guide is not None:
        raise InputError("draft and lookup do not go with choices, regex or schema", hint="leave one out")
    if watch is not None:
        raise InputError("draft and lookup read guesses, which a watch would show", hint="leave one out")
    if lookup is not None and lookup < 1:
        raise InputError(f"lookup={lookup} must be at least 1: so many last tokens must agree")
    smaller = model if draft is None else stepper_for(draft).model
    if vocab_size(smaller) != vocab_size(model):
        raise InputError(
            f"the draft has {vocab_size(smaller)} tokens and the model {vocab_size(model)}",
            hint="they must share them",
        )
    if isinstance(smaller, Seq2Seq) != isinstance(model, Seq2Seq):
        raise InputError("the draft and the model must both be decoders, or both encoder-decoders")


def vocab_size(model: Model) -> int:
    """Return the number of logits."""
    return model.config.vocab


def stop_strings(model: Model, stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Check the stop strings and return them as a tuple."""
    given = () if stop is None else (stop,) if isinstance(stop, str) else stop
    several = tuple(given) if isinstance(given, Iterable) else (given,)
    if several and model.tokenizer is None:
        raise InputError(
            "stop needs text, and this model has no tokenizer", hint="end with eos=[ids] instead"
        )
    if not all(isinstance(s, str) and s for s in several):
        raise InputError(f"stop={stop!r} must be a text or several, none of them empty")
    return several


def eos_ids(model: Model, eos: int | Iterable[int] | None) -> frozenset[int]:
    """Return the ids that end a text: those given, else those of the checkpoint and of the tokenizer."""
    if eos is not None:
        chosen = frozenset([eos] if isinstance(eos, int) else eos)
        if wrong := [i for i in chosen if not isinstance(i, Integral) or not 0 <= i < vocab_size(model)]:
            raise InputError(
                f"eos names the token {wrong[0]!r}", hint=f"the vocabulary is 0 … {vocab_size(model) - 1}"
            )
        return chosen
    hf_config = model.generation.get("eos_token_id", model.hf_config.get("eos_token_id"))
    found = [hf_config] if isinstance(hf_config, int) else list(hf_config or ())
    own = None if model.tokenizer is None else model.tokenizer.eos
    return frozenset(i for i in (*found, own) if i is not None and 0 <= i < vocab_size(model))


@dataclass(frozen=True)
class Prompts:
    """Prompts as ids, and their form, which is that of the answer."""

    ids: list[list[int]]
    single: bool
    text: bool
    pixels: Tensor | None = None  # (B, C, H, W) of images, which have no ids

    def padded(self, device: torch.device, left: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the ids (B, T) padded on one side, and which are valid, None if all are; or the images."""
        if self.pixels is not None:
            return self.pixels.to(device), None
        lengths = [len(row) for row in self.ids]
        tokens = torch.from_numpy(pad_rows(self.ids, left=left)).to(device)
        if min(lengths) == max(lengths):
            return tokens, None
        return tokens, torch.from_numpy(valid_mask(lengths, max(lengths), left=left)).to(device)

    def row_index(self, copies: int, device: torch.device) -> Tensor:
        """Return the prompt of each row of a batch in which every prompt stands `copies` times."""
        return torch.arange(len(self.ids), device=device).repeat_interleave(copies)

    def prefill(self, stepper: Stepper, copies: int, length: int) -> Tensor:
        """Read every prompt once and return the logits (B · copies, V); the copies share what was read."""
        device = stepper.model.device
        index, (tokens, valid) = self.row_index(copies, device), self.padded(device)
        if copies == 1 or stepper.fixed_batch:
            return stepper.prefill(tokens[index], None if valid is None else valid[index], length)
        logits = stepper.prefill(tokens, valid, length)
        stepper.reorder(index)
        return logits[index]


def encode_prompts(model: Model, prompt: Prompt) -> Prompts:
    """Encode any form of prompt; raise an error for one that is empty or exceeds the context.

    A model that reads images is prompted by them: by paths, arrays, Pillow's images or pixel values.
    """
    if model.image_processor is not None:
        pixels = model.image_processor(prompt)
        single = not isinstance(prompt, list | tuple) and not (
            isinstance(prompt, Tensor) and prompt.dim() > 3
        )
        return Prompts([[] for _ in pixels], single, model.tokenizer is not None, pixels)
    if isinstance(prompt, Tensor):
        if prompt.dim() not in (1, 2) or prompt.is_floating_point():
            raise InputError(f"a prompt is (T,) or (B, T) ids; got {tuple(prompt.shape)} of {prompt.dtype}")
        prompt = prompt.tolist()
    if isinstance(prompt, str):
        rows, single, text = [encode_prompt(model, prompt)], True, True
    elif isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        raise InputError(f"a prompt is a text, a list of ids, or several of one kind; got {prompt!r:.40}")
    elif all(map(is_id, prompt)):
        rows, single, text = [list(map(int, prompt))], True, False
    elif all(isinstance(p, str) for p in prompt):
        rows, single, text = [encode_prompt(model, p) for p in prompt], False, True  # type: ignore[arg-type]
    elif all(isinstance(p, Iterable) and not isinstance(p, str) and all(map(is_id, p)) for p in prompt):
        rows, single, text = [list(map(int, p)) for p in prompt], False, False  # type: ignore[arg-type]
    else:
        raise InputError("prompts must be all texts or all lists of ids, not some of each")
    return Prompts([check_prompt(model, row) for row in rows], single, text)


def is_id(value: Any) -> bool:
    """Return whether a value can be a token id: a whole number of Python, NumPy or torch."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_floating_point()
    return isinstance(value, Integral) and not isinstance(value, bool)


def encode_prompt(model: Model, text: str) -> list[int]:
    """Encode a text. An encoder's ends as in training: with EOS, if its tokenizer adds nothing itself."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="give the prompt as ids")
    ids: list[int] = model.tokenizer.encode(text)
    if isinstance(model, Seq2Seq) and ids and model.tokenizer.eos is not None:
        bare: list[int] = model.tokenizer.encode(text, special=False)
        ids = [*ids, model.tokenizer.eos] if ids == bare else ids
    return ids


def check_prompt(model: Model, ids: list[int]) -> list[int]:
    """Return the prompt, or the token that begins a text in place of an empty one; nothing is cut."""
    if not ids:
        own = None if model.tokenizer is None else model.tokenizer.bos
        first = own if own is not None else model.hf_config.get("bos_token_id")
        if not isinstance(first, int) or isinstance(model, Seq2Seq):
            raise InputError("the prompt is empty, and this model has no token to begin with: give one")
        ids = [first]
    vocab = model.embed.vocab if isinstance(model, (LM, Seq2Seq)) else vocab_size(model)
    if wrong := [i for i in ids if not 0 <= i < vocab]:
        raise InputError(f"the prompt has the id {wrong[0]}", hint=f"the vocabulary is 0 … {vocab - 1}")
    context = max_positions(model, source=True)
    if context is not None and len(ids) > context:
        raise InputError(
            f"the prompt has {len(ids)} tokens, the model's context is {context}",
            hint="shorten it: nothing was cut",
        )
    return ids


def context_length(model: Model, *, source: bool = False) -> int | None:
    """Return how many positions a model has: its learned table's, or the config's context; None: no limit."""
    assert isinstance(model, (LM, Seq2Seq))
    text_source = source and model.image_processor is None  # an image has no length
    embed = model.decoder_embed if isinstance(model, Seq2Seq) and not text_source else model.embed
    if embed.context is not None:
        return embed.context
    return getattr(model.config, "context") if "context" in model.config.known() else None  # noqa: B009


def max_positions(model: Model, *, source: bool = False) -> int | None:
    """Return how many positions a text may have: the context, or None if there is no limit.

    Positions that stretch with the text (dynamic NTK) go beyond the context that the config states.
    """
    rotaries = (part for part in model.modules() if isinstance(part, Rotary))
    if any(rotary.scaling is not None and rotary.scaling.is_unlimited for rotary in rotaries):
        return None
    return context_length(model, source=source)


def prefix_ids(model: Model, prompt: list[int]) -> list[int]:
    """Return what stands before the first new token: the prompt, or an encoder-decoder's start token."""
    return [model.start_token] if isinstance(model, Seq2Seq) else prompt


def max_new_tokens(model: Model, request: Request, prompt: int) -> int:
    """Return how many tokens may follow a prompt of that length."""
    free = free_context(model, prompt)
    return request.max_tokens if free is None else min(request.max_tokens, free)


def free_context(model: Model, prompt: int) -> int | None:
    """Return how many tokens fit behind a prompt, the last of which is never read; None: no limit."""
    context = max_positions(model)
    if context is None:
        return None
    return context if isinstance(model, Seq2Seq) else context - prompt + 1
