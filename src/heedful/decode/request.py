"""The request to a model: prompts as ids, and settings that were checked against its vocabulary and context.

A prompt may be a text, ids, several of either, or an image; `encode_prompts` makes all of them rows of ids.
Nothing is ever cut: what exceeds the context is an error. Rows of different lengths are padded on the left,
so that every row ends where its first new token begins. `make_request` adds to the settings what only the
model knows: which tokens end a text, and which tokens a constraint allows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.padding import pad_rows, valid_mask
from heedful.decode.constrain import Guide, constrain
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import Stepper, stepper_for
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.nn.position import Rotary

# A text, ids, or several of one kind; for a model that reads images whatever its image_processor takes.
Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor | Any


@dataclass(frozen=True)
class Request:
    """Settings that fit a model, and what follows from both."""

    settings: GenerationSettings
    eos: frozenset[int]  # the tokens that end a text
    guide: Guide | None  # the form that a text must have
    seed: int
    scored: bool = True  # whether anybody will look at the logprobs

    @property
    def needs_only_logits(self) -> bool:
        """Whether a token follows from the logits and a random number, and nobody asks for more."""
        return not self.settings.changes and self.guide is None and not self.scored


def make_request(model: Model, settings: GenerationSettings, *, scored: bool = True) -> Request:
    """Check settings against a model: its vocabulary, its tokenizer, and the draft that proposes to it."""
    vocab = model.config.vocab
    if settings.logprobs > vocab:
        raise InputError(f"`logprobs={settings.logprobs}` must lie between 0 and the vocabulary's {vocab}")
    if wrong := [token for token in settings.bias or () if not 0 <= token < vocab]:
        raise InputError(f"bias names the token {wrong[0]}", hint=f"the vocabulary is 0 … {vocab - 1}")
    if settings.stop and model.tokenizer is None:
        raise InputError(
            "stop needs text, and this model has no tokenizer", hint="end with `eos=[ids]` instead"
        )
    if settings.watch is not None and not isinstance(settings.watch, Watch):
        raise InputError(f"`watch={settings.watch!r:.40}` is not a Watch", hint="give heedful.Watch(name, …)")
    if settings.draft is not None:
        smaller = stepper_for(settings.draft).model
        if smaller.config.vocab != vocab:
            raise InputError(
                f"the draft has {smaller.config.vocab} tokens and the model {vocab}",
                hint="they must share them",
            )
        if isinstance(smaller, Seq2Seq) != isinstance(model, Seq2Seq):
            raise InputError("the draft and the model must both be decoders, or both encoder-decoders")
    eos = eos_ids(model, settings.eos)
    guide = constrain(model, eos, settings) if settings.is_constrained else None
    seed = secrets.randbits(63) if settings.seed is None else settings.seed
    return Request(settings, eos, guide, seed, scored)


def eos_ids(model: Model, eos: int | Iterable[int] | None) -> frozenset[int]:
    """Return the ids that end a text: those given, else those of the checkpoint and of the tokenizer."""
    if eos is not None:
        chosen = frozenset([eos] if isinstance(eos, int) else eos)
        if wrong := [i for i in chosen if not isinstance(i, Integral) or not 0 <= i < model.config.vocab]:
            raise InputError(
                f"eos names the token {wrong[0]!r}", hint=f"the vocabulary is 0 … {model.config.vocab - 1}"
            )
        return chosen
    published = model.generation.get("eos_token_id", model.hf_config.get("eos_token_id"))
    ids = [published] if isinstance(published, int) else list(published or ())
    own = None if model.tokenizer is None else model.tokenizer.eos
    return frozenset(i for i in (*ids, own) if i is not None and 0 <= i < model.config.vocab)


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

    def prefill(self, stepper: Stepper, copies: int, length: int) -> Tensor:
        """Read every prompt once and return the logits (B · copies, V); the copies share what was read."""
        device = stepper.model.device
        tokens, valid = self.padded(device)
        index = torch.arange(len(self.ids), device=device).repeat_interleave(copies)
        if copies == 1 or stepper.fixed_batch:
            return stepper.prefill(tokens[index], None if valid is None else valid[index], length)
        logits = stepper.prefill(tokens, valid, length)
        stepper.reorder(index)
        return logits[index]


def encode_prompts(model: Model, prompt: Prompt) -> Prompts:
    """Encode any form of prompt; raise an error for one that is empty or exceeds the context.

    A model that reads images is prompted by them: by paths, arrays, Pillow's images or pixel values.
    """
    if model.processor is not None:
        pixels = model.processor(prompt)
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
    vocab = model.embed.vocab if isinstance(model, (LM, Seq2Seq)) else model.config.vocab
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
    text_source = source and model.processor is None  # an image has no length
    embed = model.decoder_embed if isinstance(model, Seq2Seq) and not text_source else model.embed
    if embed.context is not None:
        return embed.context
    return getattr(model.config, "context") if "context" in model.config.field_names() else None  # noqa: B009


def max_positions(model: Model, *, source: bool = False) -> int | None:
    """Return how many positions a text may have: the context, or None without a limit.

    Positions that stretch with the text (dynamic NTK) go beyond the context that the config states.
    """
    rotaries = (part for part in model.modules() if isinstance(part, Rotary))
    if any(rotary.scaling is not None and rotary.scaling.is_unlimited for rotary in rotaries):
        return None
    return context_length(model, source=source)


def prefix_ids(model: Model, prompt: list[int]) -> list[int]:
    """Return what stands before the first new token: the prompt, or an encoder-decoder's start token."""
    return [model.start_token] if isinstance(model, Seq2Seq) else prompt


def max_new_tokens(model: Model, max_tokens: int, prompt: int) -> int:
    """Return how many of `max_tokens` tokens may follow a prompt of that length."""
    free = free_context(model, prompt)
    return max_tokens if free is None else min(max_tokens, free)


def free_context(model: Model, prompt: int) -> int | None:
    """Return how many tokens fit behind a prompt, the last of which is never read; None: no limit."""
    context = max_positions(model)
    if context is None:
        return None
    return context if isinstance(model, Seq2Seq) else context - prompt + 1
