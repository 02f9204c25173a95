"""translation, summarization, text2text-generation: a text in, another one out.

An encoder-decoder reads the text and writes. A decoder gets a prompt: the one it was trained with
(`task_prompt` of its config.json), else a conversation, else "TL;DR:" as in the paper of GPT-2.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from heedful.core.errors import InputError
from heedful.data.tokenization import find_template
from heedful.decode.request import context_length
from heedful.decode.rows import Generation
from heedful.models.base import LM, Model, Seq2Seq
from heedful.tasks.examples import ROLES, Examples
from heedful.tasks.generation import (
    BLANK,
    GENERATION_BATCH_SIZE,
    GeneratingTask,
    TrainableGeneration,
    clean_text,
    task_prefix,
    wants_ids,
)
from heedful.tasks.metrics.generated import bleu, rouge
from heedful.tasks.model_inputs import Truncated, map_inputs, truncates
from heedful.tasks.task import TrainingDefaults

# For every kind of model max_length and min_length count new tokens alone.
NEW_LENGTHS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}


class Text2Text(GeneratingTask):
    """[{"generated_text"}]"""

    needs: ClassVar[str] = "a model that writes"
    key: ClassVar[str] = "generated"
    default_generation: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 256}
    request: ClassVar[str] = BLANK  # the message to a model that converses
    plain_prompt: ClassVar[str] = BLANK  # the prompt of one that continues texts

    def predict(
        self,
        inputs: Any,
        *,
        truncation: bool | str | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Return num_return_sequences texts for each text.

        The other options are those of generation in transformers: num_beams, max_new_tokens, do_sample …
        `return_tensors` gives token ids. max_length counts what is written, never what is read.
        """
        generation = {name: value for name, value in generation.items() if value is not None}
        if not isinstance(self.model, Seq2Seq):  # there, lengths count what is written anyway
            renamed = {new: generation.pop(old) for old, new in NEW_LENGTHS.items() if old in generation}
            generation = renamed | generation
        new = generation.get("max_new_tokens") or self.default_generation["max_new_tokens"]
        split = lambda text: [(self.prompt(text, truncation, new), "")]
        ids, clean = wants_ids(return_tensors, return_text), clean_up_tokenization_spaces
        return self.write_texts(inputs, split, generation, ids, clean, batch_size)

    def write_texts(
        self, inputs: Any, split: Callable[[str], list[tuple[list[int], str]]], generation: Mapping[str, Any],
        as_ids: bool, clean: bool | None, batch_size: int,
    ) -> Any:  # fmt: skip
        """Return a list of texts for each input, or of several inputs the one text of each.

        `split` gives the prompts of an input, and the white space that stands behind what each becomes.
        """
        context = context_length(self.model, source=True)

        def join(part: list[tuple[list[int], str]], choice: Sequence[Generation]) -> dict[str, Any]:
            if as_ids:
                return {f"{self.key}_token_ids": [i for one in choice for i in one.ids]}
            texts = [clean_text(one.text, clean) + gap for one, (_, gap) in zip(choice, part, strict=True)]
            return {f"{self.key}_text": "".join(texts)}

        def predict_batch(texts: list[Any]) -> list[Any]:
            for text in texts:
                if not isinstance(text, str) or not text.strip():
                    raise InputError(f"the input must be a text that is not empty; got {text!r:.60}")
            parts = [split(text) for text in texts]
            for i, part in enumerate(parts):
                longest = max(len(ids) for ids, _ in part)
                if context is not None and longest > context:
                    tokens = f"{longest:,} tokens, the model's context is {context:,}, and nothing was cut"
                    raise InputError(
                        f"input {i} has {tokens}", hint="pass `truncation=True` to read its beginning"
                    )
            prompts = [ids for part in parts for ids, _ in part]
            written = iter(self.generate_texts(prompts, generation, self.default_generation, batch_size))
            rows = [(part, [next(written) for _ in part]) for part in parts]
            return [[join(part, choice) for choice in zip(*row, strict=True)] for part, row in rows]

        results = map_inputs(inputs, predict_batch, batch_size)
        if isinstance(results, list) and not isinstance(inputs, str) and all(len(r) == 1 for r in results):
            return [rows[0] for rows in results]
        return results

    def prompt_parts(self, inputs: str) -> list[tuple[list[int], str]]:
        return [(self.prompt(inputs, None), "")]

    def prompt(self, text: str, truncation: Any, new: int = 1) -> list[int]:
        """Return the model's input for a text; with `truncation` as much as lets `new` tokens follow."""
        if isinstance(self.model, Seq2Seq):
            return self.source_ids(task_prefix(self.model, self.task) + text, truncation)
        ids, context = self.decoder_prompt(text), context_length(self.model)
        if not truncates(truncation) or context is None:
            return ids
        offsets, fit = self.tokenizer.offsets(text, special=False), context - new + 1
        keep = len(offsets)
        while len(ids) > fit:  # once more if the pieces at the cut became others
            keep -= len(ids) - fit
            if keep < 1:
                raise InputError(
                    f"`max_new_tokens={new}` leaves no room for a text in a context of {context}",
                    hint="lower it",
                )
            ids = self.decoder_prompt(text[: offsets[keep - 1][1]])
        if keep < len(offsets):
            warnings.warn(
                Truncated(f"cut off: {len(offsets) - keep:,} of {len(offsets):,} tokens"), stacklevel=2
            )
        return ids

    def decoder_prompt(self, text: str) -> list[int]:
        """Return the prompt of a decoder for this task."""
        template = self.model.hf_config.get("task_prompt")
        if template is None and self.tokenizer.chat_template is not None:
            return self.chat_ids([{"role": "user", "content": self.request.replace(BLANK, text)}])
        return self.tokenizer.encode(str(template or self.plain_prompt).replace(BLANK, text))


class Summarization(Text2Text, TrainableGeneration):
    """[{"summary_text"}]"""

    key = "summary"
    default_generation: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 128}
    request: ClassVar[str] = "Summarize the following text in one or two sentences.\n\n{text}"
    plain_prompt: ClassVar[str] = "{text}\nTL;DR:"  # Radford et al. 2019 §3.6
    answer_columns = ("summary_text",)
    command, writers = "summarize", "an encoder-decoder or a decoder, such as smollm2-135m-instruct"
    file_kinds = ("table", "lines")
    training = TrainingDefaults(lr=5e-5, lora_lr=5e-4, epochs=3, length=512, batch=8, steps=200)
    roles = ROLES["summarize"]
    text_scores = staticmethod(rouge)

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        """Return the model as it is; config.json keeps the prompt that a decoder learns with."""
        if isinstance(model, LM):
            tokenizer, prompt = model.tokenizer, cls.plain_prompt
            if tokenizer.chat_template is not None:  # it converses: a message
                prompt = tokenizer.chat([{"role": "user", "content": cls.request}])
                first = tokenizer.tokens(find_template(tokenizer).before)  # encoding puts these there itself
                prompt = prompt.removeprefix("".join(first))
            model.hf_config["task_prompt"] = str(model.hf_config.get("task_prompt") or prompt)
        return super().attach_head(model, train, seed)

    @property
    def prompt_template(self) -> str:
        return str(self.model.hf_config["task_prompt"])


class Translation(Text2Text, TrainableGeneration):
    """[{"translation_text"}]: sentence by sentence, white space between them kept."""

    key = "translation"
    default_generation: ClassVar[Mapping[str, Any]] = {"num_beams": 4, "max_new_tokens": 200}
    needs: ClassVar[str] = "an encoder-decoder that writes"
    kinds, answer_columns = (Seq2Seq,), ("translation_text",)
    command, objective, writers = "translate", "translate", "an encoder-decoder"
    file_kinds = ("table", "lines")
    training = TrainingDefaults(lr=3e-4, lora_lr=1e-3, epochs=8, length=256, steps=300)
    roles = ROLES["translate"]
    text_scores = staticmethod(bleu)

    def predict(
        self,
        inputs: Any,
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: bool | str | None = None,
        split_sentences: bool = True,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Return the translation of a text, sentence by sentence: models learn from single sentences.

        `split_sentences=False` hands it over whole, as do several translations (num_return_sequences).
        """
        prefix = self.direction(src_lang, tgt_lang)
        keep_whole = not split_sentences or generation.get("num_return_sequences", 1) > 1

        def split(text: str) -> list[tuple[list[int], str]]:
            sentences = [(text, "")] if keep_whole else split_into_sentences(text)
            return [(self.source_ids(prefix + one, truncation), gap) for one, gap in sentences]

        ids, clean = wants_ids(return_tensors, return_text), clean_up_tokenization_spaces
        return self.write_texts(inputs, split, generation, ids, clean, batch_size)

    def prompt_parts(self, inputs: str) -> list[tuple[list[int], str]]:
        prefix = self.direction(None, None)
        return [(self.source_ids(prefix + text), gap) for text, gap in split_into_sentences(inputs)]

    def direction(self, source: str | None, target: str | None) -> str:
        """Return the prefix of a text for this direction; raise InputError if the model does not know it."""
        named = re.fullmatch(r"translation_(\w+)_to_(\w+)", self.task)
        wanted = (source or (named and named[1]), target or (named and named[2]))
        if prefix := task_prefix(self.model, f"translation_{wanted[0]}_to_{wanted[1]}"):
            return prefix
        pairs = languages(self.model)
        for language, own in zip(wanted, pairs or (None, None), strict=True):
            if language is not None and own is not None and language.split("_")[0].lower() != own:
                assert pairs is not None
                raise InputError(
                    f"this model translates from {pairs[0]} to {pairs[1]}",
                    hint=f"{wanted[0]} to {wanted[1]} needs another: give `model=`",
                )
        return ""


def languages(model: Model) -> tuple[str, str] | None:
    """Return source and target language as config.json names them: "languages": ["en", "de"]."""
    names = model.hf_config.get("languages")
    if not isinstance(names, list) or len(names) != 2:
        return None
    return str(names[0]).lower(), str(names[1]).lower()


# Words whose full stop does not end a sentence.
ABBREVIATIONS = {
    "mr", "mrs", "ms", "dr", "prof", "sr", "jr", "vs", "etc", "vol", "fig", "ca", "cf", "bzw", "usw", "ggf",
    "inkl", "nr", "z.b", "d.h", "u.a", "e.g", "i.e", "mme", "mlle",
}  # fmt: skip
SENTENCE_END = re.compile(
    r"""[.!?…]+["'”“’»)\]]*(\s+)(?=["'“‘«(\[¿¡]*[^\Wa-z])|[。！？]+(\s*)(?=\S)|(\s*\n\s*)(?=\S)"""
)


def split_into_sentences(text: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with the white space behind it: joined they are the text."""
    out = []
    at = len(text) - len(text.lstrip())
    first = text[:at]
    for match in SENTENCE_END.finditer(text, at):
        gap = next(group for group in match.groups() if group is not None)
        end = match.end() - len(gap)
        word = text[at:end].rsplit(None, 1)[-1].rstrip(".").lower() if text[at:end].split() else ""
        initial = len(word) == 1 and word.isalpha()
        if text[match.start()] == "." and (word in ABBREVIATIONS or initial) and "\n" not in gap:
            continue
        out.append((first + text[at:end], gap))
        first, at = "", match.end()
    last = text[at:].rstrip()
    return [*out, (first + last, text[at + len(last) :])] if last else out
