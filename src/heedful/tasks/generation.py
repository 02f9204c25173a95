"""What generating tasks share: transformers' arguments of generation, done by our own loop, and training.

Sampling begins with do_sample=True, or with a temperature, top_k, top_p or several texts unless do_sample is
False. Then top_k is 50 if nobody says otherwise, as in transformers 4.

A generating task is learnt from pairs of texts: read one, write the other. So are translation, summaries and
completions.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from heedful import data
from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError, nearest
from heedful.core.progress import report_progress
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.language_modeling import completion
from heedful.data.tokenization import find_template
from heedful.decode.fast import choose_stepper
from heedful.decode.loop import generate
from heedful.decode.request import context_length, eos_ids
from heedful.decode.rows import Generation
from heedful.decode.settings import BEAM_SETTINGS, NARROWING, GenerationSettings
from heedful.decode.stepper import Stepper
from heedful.models.base import LM, Model, Seq2Seq
from heedful.tasks.examples import Examples, limit_characters
from heedful.tasks.model_inputs import Truncated, input_limit, truncate_text, truncates
from heedful.tasks.task import Task, TrainableTask, row_keywords

GENERATION_BATCH_SIZE = 8

# transformers' name → that of the setting.
HUGGINGFACE_NAMES = {
    "repetition_penalty": "repetition", "no_repeat_ngram_size": "no_repeat", "eos_token_id": "eos",
    "stop_strings": "stop", "seed": "seed", "num_return_sequences": "n", "temperature": "temperature",
    "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical", "num_beams": "beams",
    "length_penalty": "length_penalty", "early_stopping": "early_stopping", "num_beam_groups": "groups",
    "diversity_penalty": "diversity", "penalty_alpha": "contrastive",
}  # fmt: skip
DISABLED_VALUES = {"top_k": 0, "top_p": 1.0, "typical_p": 1.0, "no_repeat_ngram_size": 0, "min_p": 0.0}
DRAWING = ("temperature", *NARROWING)
LENGTH_OPTIONS = ("max_new_tokens", "max_length", "min_new_tokens", "min_length")
IGNORED_GENERATION_OPTIONS = (
    "use_cache", "pad_token_id", "bos_token_id", "decoder_start_token_id", "return_dict_in_generate",
    "output_scores", "tokenizer", "min_length_for_response", "minimum_tokens",
)  # fmt: skip
GENERATION_OPTIONS = (*HUGGINGFACE_NAMES, *LENGTH_OPTIONS, "do_sample")


def merge_options(
    task: str, model: Model, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the caller's options over those the model was published with, over the task's defaults."""
    for name in options:
        if name not in GENERATION_OPTIONS and name not in IGNORED_GENERATION_OPTIONS:
            hint = nearest(name, GENERATION_OPTIONS) or "it has " + ", ".join(GENERATION_OPTIONS)
            raise InputError(f"{task} has no option {name!r}", hint=hint)
    published = {name: value for name, value in model.generation.items() if name in GENERATION_OPTIONS}
    layers = [
        defaults,
        published,
        {k: v for k, v in options.items() if v is not None and k not in IGNORED_GENERATION_OPTIONS},
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        for end in ("max", "min"):  # either name says how long; the nearer layer's counts
            if any(name in layer for name in LENGTH_OPTIONS if name.startswith(end)):
                merged = {k: v for k, v in merged.items() if not (k in LENGTH_OPTIONS and k.startswith(end))}
        merged |= layer
    drawn = any(v is not None and HUGGINGFACE_NAMES.get(name) in DRAWING for name, v in options.items())
    several = (options.get("num_return_sequences") or 1) > 1  # drawn, they differ
    searches = merged.get("num_beams", 1) > 1 or "penalty_alpha" in merged
    merged.setdefault("do_sample", (drawn or several) and not searches)
    return merged


def token_range(options: Mapping[str, Any], prompt: int) -> tuple[int, int]:
    """Return the most and the fewest new tokens; max_length and min_length count those of the prompt too."""
    new = options.get("max_new_tokens")
    if new is not None and new < 1:
        raise InputError(f"`max_new_tokens={new}` allows no output", hint="give at least 1")
    length = options.get("max_length", 128)
    most = length - prompt if new is None else new
    if most < 1:
        raise InputError(
            f"`max_length={length}` counts the {prompt} tokens of the prompt and leaves none",
            hint="pass `max_new_tokens=`",
        )
    return most, min(options.get("min_new_tokens", options.get("min_length", 0) - prompt), most)


def plan_generation(options: Mapping[str, Any]) -> GenerationSettings:
    """Return transformers' options as settings; those of a method that is not used are left out."""
    chosen = {
        HUGGINGFACE_NAMES[name]: value
        for name, value in options.items()
        if name in HUGGINGFACE_NAMES and value is not None and DISABLED_VALUES.get(name) != value
    }
    beams, n = check_integer("num_beams", chosen.pop("beams", 1)), chosen.setdefault("n", 1)
    if chosen.get("contrastive"):
        unused = [*BEAM_SETTINGS, *(name for name in DRAWING if name != "top_k")]
    elif options["do_sample"]:
        if beams > 1:
            raise InputError(
                f"`num_beams={beams}` searches and `do_sample=True` samples", hint="leave one of them out"
            )
        unused = [*BEAM_SETTINGS, "contrastive"]
        chosen.setdefault("temperature", 1.0)
        if "top_k" not in options:  # switched off by its value it stays off; only a silent caller gets 50
            chosen["top_k"] = 50
    elif beams > 1:
        unused, chosen["beams"] = [*DRAWING, "contrastive"], beams
    elif n > 1:
        raise InputError(
            f"`num_return_sequences={n}` would be the same text each time",
            hint="pass `do_sample=True` or `num_beams=`",
        )
    else:
        unused = [*BEAM_SETTINGS, *DRAWING, "contrastive"]
    return GenerationSettings(**{name: value for name, value in chosen.items() if name not in unused})


class MinLengthStepper:
    """A stepper that does not let a text end before it has `min_tokens` tokens."""

    def __init__(self, inner: Stepper, end_ids: Sequence[int], min_tokens: int) -> None:
        self.inner, self.end_ids, self.min_tokens, self.written = inner, list(end_ids), min_tokens, 0
        self.model, self.fixed_batch = inner.model, inner.fixed_batch
        self.reorder, self.crop, self.extend = inner.reorder, inner.crop, inner.extend

    @property
    def past(self) -> int:
        """The number of positions that were read and written."""
        return self.inner.past

    def _mask_end_ids(self, logits: Tensor) -> Tensor:
        self.written += 1
        if self.written > self.min_tokens or not self.end_ids:
            return logits
        return logits.index_fill(1, torch.tensor(self.end_ids, device=logits.device), -torch.inf)

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        """Read the prompt; nothing is written yet."""
        self.written = 0
        return self._mask_end_ids(self.inner.prefill(prompt, valid, length))

    def step(self, tokens: Tensor) -> Tensor:
        """Write one token in each row."""
        return self._mask_end_ids(self.inner.step(tokens))


def limit_lengths(
    model: Model, settings: GenerationSettings, options: Mapping[str, Any], rows: int, prompt: int
) -> tuple[Model | Stepper, GenerationSettings]:
    """Return what writes behind `rows` prompts of `prompt` tokens, and its settings with the most tokens."""
    most, least = token_range(options, prompt)
    settings = replace(settings, max_tokens=most)
    if least < 1 or settings.contrastive is not None:
        return model, settings
    inner = choose_stepper(model, rows * max(settings.samples, settings.beams or 1), most)
    return cast(Stepper, MinLengthStepper(inner, sorted(eos_ids(model, settings.eos)), least)), settings


def truncate_prompt(model: Model, ids: list[int], truncation: Any, new: int | None = None) -> list[int]:
    """Return the ids, or with `truncation` as many as the model reads, and warn of what was cut.

    A source keeps its beginning and its end token; a prompt that `new` tokens shall follow keeps its end.
    """
    context = context_length(model, source=True)
    if not truncates(truncation) or context is None:
        return ids
    fit = context if new is None else context - new + 1  # the last one written is not read any more
    if fit < 1:
        raise InputError(
            f"`max_new_tokens={new}` leaves no room for a prompt in a context of {context}", hint="lower it"
        )
    if len(ids) <= fit:
        return ids
    warnings.warn(Truncated(f"cut off: {len(ids) - fit:,} of {len(ids):,} tokens"), stacklevel=2)
    return [*ids[: fit - 1], ids[-1]] if new is None else ids[-fit:]


def clean_text(text: str, clean: bool | None) -> str:
    """Strip a text; `clean` also takes space from before punctuation and from inside contractions."""
    text = text.strip()
    if not clean:
        return text
    text = re.sub(r"\s+([.,!?])", r"\1", text)
    return re.sub(r"(?<=\w)\s+('(?:s|m|re|ve|ll|d)\b|n't\b)", r"\1", text)


def wants_ids(tensors: bool | None, text: bool | None, full_text: bool | None = None) -> bool:
    """Return whether token ids are wanted and not text; refuse flags that contradict each other."""
    flags = {"return_full_text": full_text, "return_tensors": tensors, "return_text": text}
    given = [f"`{name}={value}`" for name, value in flags.items() if value is not None]
    if len(given) > 1 and (full_text is not None or tensors == text):
        raise InputError(f"{' and '.join(given)} exclude each other", hint="give one of them")
    return bool(tensors) or text is False


class GeneratingTask(Task):
    """A task whose model generates text."""

    heads = ("lm",)
    kinds: ClassVar[tuple[type[Model], ...]] = (LM, Seq2Seq)

    @classmethod
    def fits(cls, model: Model) -> bool:
        return super().fits(model) and not (isinstance(model, LM) and not model.causal)

    @cached_property
    def generator(self) -> Model:
        """The model, with the pipeline's own tokenizer."""
        if self.model.tokenizer is self.tokenizer:
            return self.model
        model = copy.copy(self.model)  # the caller's keeps its own
        model.tokenizer = self.tokenizer
        return model

    def prompt_parts(self, inputs: Any) -> list[tuple[list[int], str]]:
        """Return the prompts for one input, and the text that stands behind each of them in the answer."""
        raise NotImplementedError

    def source_ids(self, text: str, truncation: Any = None) -> list[int]:
        """Return a text as an encoder-decoder read it in training: with its end token."""
        ids = self.tokenizer.encode(text, special=False)
        if not ids:
            raise InputError(f"{self.task} got {text!r:.40}, which has no token", hint="leave it out")
        around = find_template(self.tokenizer, end=True)
        return truncate_prompt(self.model, around.wrap(ids).tolist(), truncation)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return messages as the prompt of an answer."""
        return self.tokenizer.encode(self.tokenizer.chat(messages), special=False)

    def generate_texts(
        self,
        prompts: Sequence[list[int]],
        options: Mapping[str, Any],
        defaults: Mapping[str, Any],
        batch_size: int,
    ) -> list[list[Generation]]:
        """Return the texts that the model writes behind each prompt."""
        options = merge_options(self.task, self.model, options, defaults)
        plan, model, out = plan_generation(options), self.generator, list[list[Generation]]()
        check_integer("batch_size", batch_size)
        # A decoder's start token is counted.
        count = lambda ids: 1 if isinstance(model, Seq2Seq) else len(ids)
        while len(out) < len(prompts):
            some = prompts[len(out) : len(out) + batch_size]
            if "max_new_tokens" not in options or options.get("min_length", 0) > 0:  # they count the prompt
                alike = [count(ids) == count(some[0]) for ids in some]
                some = some[: alike.index(False)] if False in alike else some
            by, settings = limit_lengths(model, plan, options, len(some), count(some[0]))
            if settings.seed is not None:  # otherwise the first rows of all batches would draw the same
                settings = replace(settings, seed=settings.seed + len(out))
            out += generate(by, some, details=True, **vars(settings))
            report_progress("texts", len(out), len(prompts))
        if full := sum(text.finish == "context" for texts in out for text in texts):
            which = "the text ends" if full == 1 else f"{full:,} texts end"
            message = f"{which} early, because the context of {context_length(model)} tokens is full"
            warnings.warn(Truncated(message), stacklevel=2)
        return out


# Learning to write.


MAX_WRITTEN_TOKENS = 128  # for each text that is scored
BLANK = "{text}"  # in a prompt: where the text goes
# The names of `generate` → transformers' own.
OPTION_NAMES = {ours: theirs for theirs, ours in HUGGINGFACE_NAMES.items()} | {"max_tokens": "max_new_tokens"}


class TrainableGeneration(GeneratingTask, TrainableTask):
    """A task that is learnt from texts and what is to be written for each, by the model's own head.

    An encoder-decoder reads the text; a decoder reads it in `prompt_template`. Training stops on the loss.
    """

    head, objective, metric, highest, by_loss = "lm", "next_token", "loss", False, True
    trained_whole = ()
    answer_columns: ClassVar[tuple[str, ...]] = ("generated_text",)
    writers: ClassVar[str]  # the models that can learn it, in words

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(map(str.strip, super().parse_cells(cells)))

    @classmethod
    def check_model(cls, model: Model) -> None:
        if not cls.fits(model):
            this = f"this one is a {model.family.name} with a {model.config.head!r} head"
            raise InputError(f"{cls.command} needs a model that writes, {cls.writers}", hint=this)

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        return model, "its own head"

    @property
    def prompt_template(self) -> str:
        """The prompt of a decoder, with {text} in place of the text."""
        return BLANK

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        rows = [limit_characters(row, options.length) for row in examples.items]
        if isinstance(self.model, Seq2Seq):
            return data.parallel(
                [(source, target) for source, target in rows], self.tokenizer,
                prefix=task_prefix(self.model, self.task), start=self.model.start_token,
                **row_keywords(options),
            )  # fmt: skip
        answers = [row[1] for row in rows]
        prompts = self.decoder_prompts([row[0] for row in examples.items], answers, options)
        pairs = list(zip(prompts, answers, strict=True))
        return completion(pairs, self.tokenizer, **row_keywords(options))

    def decoder_prompts(
        self, texts: Sequence[str], answers: Sequence[str], options: BatchOptions
    ) -> list[str]:
        """Return a decoder's prompt for every text; a long one loses its end, what stands around it stays.

        Prompt and answer fit into a row, of which the answer takes half at the most.
        """
        around = find_template(self.tokenizer, end=True).single_count + 2
        around += len(self.tokenizer.encode(self.prompt_template.replace(BLANK, ""), special=False))
        lengths = [len(ids) for ids in self.tokenizer.encode_all(list(answers), special=False)]
        room = [max(options.length - around - min(n, options.length // 2), 8) for n in lengths]
        short = [limit_characters([text], n)[0] for text, n in zip(texts, room, strict=True)]
        short = [truncate_text(self.tokenizer, text, n)[0] for text, n in zip(short, room, strict=True)]
        return [self.prompt_template.replace(BLANK, text) for text in short]

    def call_options(
        self, *, batch: int = GENERATION_BATCH_SIZE, length: int | None = None, truncate: bool = True,
        max_tokens: int | None = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return options of generation, of which at most `max_tokens` tokens are written.

        Options may have the names of `generate`. An encoder-decoder searches with four
        beams, a decoder takes the most likely token each time.
        """
        named = {OPTION_NAMES.get(name, name): value for name, value in options.items()}
        beams = {"num_beams": 4} if isinstance(self.model, Seq2Seq) else {}
        context = context_length(self.model) or 2 * MAX_WRITTEN_TOKENS
        room = context if isinstance(self.model, Seq2Seq) else context // 2  # a decoder's holds the text, too
        written = {"max_new_tokens": max_tokens or min(MAX_WRITTEN_TOKENS, room)}
        return {**written, **beams, "truncation": truncate, "batch_size": batch, **named}

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        """Score what was written; `first` is the first row, to look at."""
        rows = [answer[0] if isinstance(answer, list) else answer for answer in answers]
        written = [next(iter(row.values())) for row in rows]
        text, truth = examples.items[0]
        first = {self.fields[0]: text, "expected": truth, "written": written[0]}
        scores = self.text_scores([row[1] for row in examples.items], written)
        return {**scores, "rows": len(written), "first": first}

    @staticmethod
    def text_scores(truths: Sequence[str], guesses: Sequence[str]) -> dict[str, Any]:
        """Return the scores of what was written against what was expected."""
        raise NotImplementedError


class ScoredByPerplexity(TrainableGeneration):
    """A task for which there are many good texts, so that the score is how likely the expected ones are."""

    metric, kinds = "perplexity", (LM,)

    def score(
        self, examples: Examples, *, batch: int = GENERATION_BATCH_SIZE, length: int | None = None,
        truncate: bool | None = True, **settings: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the perplexity of the texts, or of the completions of prompts: there are many good texts."""
        for name in settings:
            check_choice("option", name, ("seed",))
        limit = input_limit(self.model, self.tokenizer) or self.training.length
        options = BatchOptions(length or min(self.training.length, limit), batch, truncate=bool(truncate))
        return self.loss_scores(self.batches(examples, options))

    def call_options(
        self, *, batch: int = GENERATION_BATCH_SIZE, max_tokens: int | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return options of generation as the pipeline has them: what is written is not scored."""
        written = {} if max_tokens is None else {"max_new_tokens": max_tokens}
        return TrainableTask.call_options(self, batch=batch, **options) | written


def task_prefix(model: Model, task: str) -> str:
    """Return what a model of many tasks, such as T5, reads before the text, as its config.json says."""
    settings = (model.hf_config.get("task_specific_params") or {}).get(task) or {}
    return str(settings.get("prefix") or "")
