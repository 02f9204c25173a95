"""What tasks that write share: transformers' arguments of generation, done by heedful's own loop.

Drawing begins with do_sample=True, or where a temperature, top_k, top_p or several texts are asked for and
do_sample is not False. Then top_k is 50 if nobody says otherwise, as in transformers 4.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from heedful.checks import check_integer
from heedful.data.tokenization import find_template
from heedful.decode.fast import choose_stepper
from heedful.decode.loop import Generation, generate
from heedful.decode.request import context_length, eos_ids
from heedful.decode.stepper import Stepper
from heedful.errors import InputError, nearest
from heedful.models.base import LM, Model, Seq2Seq
from heedful.tasks.common import Pipeline, Truncated, truncates

GENERATION_BATCH_SIZE = 8  # texts written at once

# transformers' name → that of `generate`; a value that switches its rule off is left out.
RULE_NAMES = {
    "repetition_penalty": "repetition", "no_repeat_ngram_size": "no_repeat", "eos_token_id": "eos",
    "stop_strings": "stop", "seed": "seed",
}  # fmt: skip
SAMPLING_NAMES = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
           "typical_p": "typical"}  # fmt: skip
BEAM_NAMES = {"length_penalty": "length_penalty", "early_stopping": "early_stopping",
             "num_beam_groups": "groups", "diversity_penalty": "diversity"}  # fmt: skip
LENGTH_OPTIONS = ("max_new_tokens", "max_length", "min_new_tokens", "min_length")
DISABLED_VALUES = {"top_k": 0, "top_p": 1.0, "typical_p": 1.0, "no_repeat_ngram_size": 0, "min_p": 0.0}
OTHER_OPTIONS = ("num_beams", "do_sample", "num_return_sequences", "penalty_alpha")
IGNORED_GENERATION_OPTIONS = (
    "use_cache", "pad_token_id", "bos_token_id", "decoder_start_token_id", "return_dict_in_generate",
    "output_scores", "tokenizer",
)  # fmt: skip
GENERATION_OPTIONS = (*RULE_NAMES, *SAMPLING_NAMES, *BEAM_NAMES, *LENGTH_OPTIONS, *OTHER_OPTIONS)


def merge_options(
    task: str, model: Model, options: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """What the caller asks for, else what the model was published with, else what is usual for the task."""
    for name in options:
        if name not in GENERATION_OPTIONS and name not in IGNORED_GENERATION_OPTIONS:
            hint = nearest(name, GENERATION_OPTIONS) or "it has " + ", ".join(GENERATION_OPTIONS)
            raise InputError(f"{task} has no option {name!r}", hint=hint)
    published = {name: value for name, value in model.generation.items() if name in GENERATION_OPTIONS}
    layers = [
        usual,
        published,
        {k: v for k, v in options.items() if v is not None and k not in IGNORED_GENERATION_OPTIONS},
    ]
    found: dict[str, Any] = {}
    for layer in layers:
        for end in ("max", "min"):  # either name says how long; the nearer layer's counts
            if any(name in layer for name in LENGTH_OPTIONS if name.startswith(end)):
                found = {k: v for k, v in found.items() if not (k in LENGTH_OPTIONS and k.startswith(end))}
        found |= layer
    asked = any(options.get(name) is not None for name in SAMPLING_NAMES)
    several = (options.get("num_return_sequences") or 1) > 1  # drawn, they differ
    found.setdefault(
        "do_sample", (asked or several) and found.get("num_beams", 1) == 1 and "penalty_alpha" not in found
    )
    return found


@dataclass(frozen=True)
class GenerationPlan:
    """Keywords of `generate`, and how long a text may and must be; `whole` lengths count the prompt."""

    rules: dict[str, Any]
    most: int
    least: int
    whole_most: bool
    whole_least: bool

    def lengths(self, prompt: int) -> tuple[int, int]:
        """At most and at least so many new tokens behind a prompt."""
        most = self.most - prompt * self.whole_most
        if self.most < 1 and not self.whole_most:
            raise InputError(f"max_new_tokens={self.most} lets nothing be written; give at least 1")
        if most < 1:
            raise InputError(
                f"max_length={self.most} counts the {prompt} tokens of the prompt and leaves none to write; "
                "pass max_new_tokens="
            )
        return most, min(self.least - prompt * self.whole_least, most)


def plan_generation(found: Mapping[str, Any]) -> GenerationPlan:
    """Settings under heedful's names."""
    on = {
        k: v
        for k, v in found.items()
        if v is not None and not (k in DISABLED_VALUES and DISABLED_VALUES[k] == v)
    }
    rules: dict[str, Any] = {RULE_NAMES[k]: v for k, v in on.items() if k in RULE_NAMES}
    beams = found.get("num_beams", 1)
    if beams < 1:
        raise InputError(f"num_beams={beams} searches nothing; give at least 1")
    if found.get("penalty_alpha"):
        rules |= {"contrastive": found["penalty_alpha"], "top_k": found.get("top_k", 4)}
    elif found["do_sample"]:
        if beams > 1:
            raise InputError(f"num_beams={beams} searches and do_sample=True draws; leave one of them out")
        # A rule switched off by its value stays off; only a silent caller gets the usual 50.
        rules |= {"temperature": 1.0} | ({} if "top_k" in found else {"top_k": 50})
        rules |= {SAMPLING_NAMES[k]: v for k, v in on.items() if k in SAMPLING_NAMES}
    elif beams > 1:
        rules |= {"beams": beams} | {BEAM_NAMES[k]: v for k, v in on.items() if k in BEAM_NAMES}
    elif found.get("num_return_sequences", 1) > 1:
        raise InputError(
            f"num_return_sequences={found['num_return_sequences']} would be the same text each time; "
            "pass do_sample=True or num_beams="
        )
    new, fresh = "max_new_tokens" in found, "min_new_tokens" in found
    most = found["max_new_tokens"] if new else found.get("max_length", 128)
    least = found["min_new_tokens"] if fresh else found.get("min_length", 0)
    rules["n"] = found.get("num_return_sequences", 1)
    return GenerationPlan(rules, most, least, not new, not fresh)


class MinLengthStepper:
    """A stepper that does not let a text end before it has `least` tokens."""

    def __init__(self, inner: Stepper, ends: Sequence[int], least: int) -> None:
        self.inner, self.ends, self.least, self.written = inner, list(ends), least, 0
        self.model, self.fixed = inner.model, inner.fixed
        self.reorder, self.crop, self.extend = inner.reorder, inner.crop, inner.extend

    @property
    def past(self) -> int:
        """How many positions were read and written."""
        return self.inner.past

    def _held(self, logits: Tensor) -> Tensor:
        self.written += 1
        if self.written > self.least or not self.ends:
            return logits
        return logits.index_fill(1, torch.tensor(self.ends, device=logits.device), -torch.inf)

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        """The prompt is read; nothing is written yet."""
        self.written = 0
        return self._held(self.inner.prefill(prompt, valid, length))

    def step(self, tokens: Tensor) -> Tensor:
        """Each row wrote one token."""
        return self._held(self.inner.step(tokens))


def generate_texts(
    model: Model, prompts: Sequence[list[int]], how: GenerationPlan, batch_size: int = GENERATION_BATCH_SIZE
) -> list[list[Generation]]:
    """For each prompt what was written behind it, as often as asked."""
    check_integer("batch_size", batch_size)
    count = lambda ids: 1 if isinstance(model, Seq2Seq) else len(ids)  # a decoder's start token is counted
    out: list[list[Generation]] = []
    while len(out) < len(prompts):
        some = prompts[len(out) : len(out) + batch_size]
        if how.whole_most or (how.whole_least and how.least > 0):
            alike = [count(ids) == count(some[0]) for ids in some]
            some = some[: alike.index(False)] if False in alike else some
        most, least = how.lengths(count(some[0]))
        rules = how.rules | {"max_tokens": most}
        if "seed" in rules:
            rules["seed"] += len(out)  # otherwise the first rows of all batches would draw the same
        by: Model | Stepper = model
        if least > 0 and "contrastive" not in rules:
            inner = choose_stepper(model, len(some) * max(rules["n"], rules.get("beams", 1)), most)
            by = cast(Stepper, MinLengthStepper(inner, sorted(eos_ids(model, rules.get("eos"))), least))
        out += generate(by, some, details=True, **rules)
    return out


def truncate_prompt(model: Model, ids: list[int], truncation: Any, new: int | None = None) -> list[int]:
    """The ids, or as many as the model reads: what is cut is reported, and nothing without `truncation`.

    A source keeps its beginning and its end token; a prompt that `new` tokens shall follow keeps its end.
    """
    reach = context_length(model, source=True)
    if not truncates(truncation) or reach is None:
        return ids
    fit = reach if new is None else reach - new + 1  # the last one written is not read any more
    if fit < 1:
        raise InputError(
            f"max_new_tokens={new} leaves no room for a prompt in a context of {reach}; lower it"
        )
    if len(ids) <= fit:
        return ids
    warnings.warn(Truncated(f"cut off: {len(ids) - fit:,} of {len(ids):,} tokens"), stacklevel=2)
    return [*ids[: fit - 1], ids[-1]] if new is None else ids[-fit:]


def clean_text(text: str, clean: bool | None) -> str:
    """White space off both ends; `clean` also takes it from before punctuation and inside contractions."""
    text = text.strip()
    if not clean:
        return text
    text = re.sub(r"\s+([.,!?])", r"\1", text)
    return re.sub(r"(?<=\w)\s+('(?:s|m|re|ve|ll|d)\b|n't\b)", r"\1", text)


def wants_ids(tensors: bool | None, text: bool | None, full_text: bool | None = None) -> bool:
    """Whether ids are to be given back and not text; flags that contradict each other are refused."""
    said = {"return_full_text": full_text, "return_tensors": tensors, "return_text": text}
    given = [f"{name}={value}" for name, value in said.items() if value is not None]
    if len(given) > 1 and (full_text is not None or tensors == text):
        raise InputError(f"{' and '.join(given)} exclude each other", hint="give one of them")
    return bool(tensors) or text is False


class GenerationPipeline(Pipeline):
    """A pipeline whose model writes."""

    heads = ("lm",)

    @classmethod
    def fits(cls, model: Model) -> bool:
        return super().fits(model) and (
            isinstance(model, Seq2Seq) or (isinstance(model, LM) and model.causal)
        )

    @cached_property
    def speaker(self) -> Model:
        """The model; it speaks through the pipeline's own tokenizer."""
        if self.model.tokenizer is self.tokenizer:
            return self.model
        model = copy.copy(self.model)  # the caller's keeps its own
        model.tokenizer = self.tokenizer
        return model

    def source(self, text: str, truncation: Any = None) -> list[int]:
        """A text as an encoder-decoder read it in training: with its end."""
        ids = self.tokenizer.encode(text, special=False)
        if not ids:
            raise InputError(f"{self.task} got {text!r:.40}, which has no token; leave it out")
        around = find_template(self.tokenizer, end=True)
        return truncate_prompt(self.model, around.wrap(ids).tolist(), truncation)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Messages as the prompt of an answer."""
        return self.tokenizer.encode(self.tokenizer.chat(messages), special=False)

    def write(
        self,
        prompts: Sequence[list[int]],
        options: Mapping[str, Any],
        usual: Mapping[str, Any],
        batch_size: int,
    ) -> list[list[Generation]]:
        """What the model writes for each prompt."""
        how = plan_generation(merge_options(self.task, self.model, options, usual))
        return generate_texts(self.speaker, prompts, how, batch_size)
