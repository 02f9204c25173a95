"""translation, summarization, text2text-generation: a text in, another one out.

An encoder-decoder reads the text and writes. A decoder-only model is asked for it: by the prompt it was
trained with (`task_prompt` of its config.json), else in a conversation, else as in the paper of GPT-2, by
"TL;DR:".
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from heedful.decode.request import context_length
from heedful.errors import InputError
from heedful.models.base import Model, Seq2Seq
from heedful.tasks.common import Truncated, map_inputs, truncates
from heedful.tasks.generation import GENERATION_BATCH_SIZE, GenerationPipeline, clean_text, wants_ids


class Text2Text(GenerationPipeline):
    """[{"generated_text"}]"""

    needs: ClassVar[str] = "a model that writes"
    key: ClassVar[str] = "generated"
    usual: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 256}

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
        """What is written for a text, num_return_sequences of them; one for each text of a list.

        The other options are those of generation in transformers: num_beams, max_new_tokens, do_sample …
        `return_tensors` gives token ids. max_length counts what is written, never what is read.
        """
        asked = generation if isinstance(self.model, Seq2Seq) else written_lengths(generation)
        new = asked.get("max_new_tokens") or self.usual["max_new_tokens"]
        tensors = wants_ids(return_tensors, return_text)

        def answers(texts: list[Any]) -> list[Any]:
            prompts = [self.prompt(check_text(t), truncation, new) for t in texts]
            check_prompts(self.model, prompts)
            rows = self.write(prompts, asked, self.usual, batch_size)
            return [
                [self.row(clean_text(g.text, clean_up_tokenization_spaces), g.ids, tensors) for g in row]
                for row in rows
            ]

        return map_texts(inputs, answers, batch_size)

    def row(self, text: str, ids: list[int], tensors: bool) -> dict[str, Any]:
        """One text under the task's own name."""
        return {f"{self.key}_token_ids": ids} if tensors else {f"{self.key}_text": text}

    def prompt(self, text: str, truncation: Any, new: int = 1) -> list[int]:
        """What the model reads for a text; if `truncation` says so, of one too long the beginning.

        Then `new` tokens can be written behind it.
        """
        if isinstance(self.model, Seq2Seq):
            return self.source(self.prefix() + text, truncation)
        ids, reach = self.asked(text), context_length(self.model)
        if not truncates(truncation) or reach is None:
            return ids
        spans, fit = self.tokenizer.offsets(text, special=False), reach - new + 1
        keep = len(spans)
        while len(ids) > fit:  # once more if the pieces at the cut became others
            keep -= len(ids) - fit
            if keep < 1:
                raise InputError(
                    f"max_new_tokens={new} leaves no room for a text in a context of {reach}; lower it"
                )
            ids = self.asked(text[: spans[keep - 1][1]])
        if keep < len(spans):
            warnings.warn(Truncated(f"cut off: {len(spans) - keep:,} of {len(spans):,} tokens"), stacklevel=2)
        return ids

    def asked(self, text: str) -> list[int]:
        """The prompt of a decoder that is asked for the task."""
        if template := self.model.hf_config.get("task_prompt"):
            return self.tokenizer.encode(str(template).replace("{text}", text))
        if self.tokenizer.chat_template is not None:
            return self.chat([{"role": "user", "content": self.request(text)}])
        return self.tokenizer.encode(self.bare(text))

    def request(self, text: str) -> str:
        """What is said to a model that converses."""
        return text

    def bare(self, text: str) -> str:
        """What a model reads that only goes on with texts."""
        return text

    def prefix(self) -> str:
        """What a model of many tasks reads before the text, as its config.json says."""
        tasks = self.model.hf_config.get("task_specific_params") or {}
        return str(tasks.get(self.task, {}).get("prefix", ""))


class Summarization(Text2Text):
    """[{"summary_text"}]"""

    key = "summary"
    usual: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 128}

    def request(self, text: str) -> str:
        return f"Summarize the following text in one or two sentences.\n\n{text}"

    def bare(self, text: str) -> str:
        return f"{text}\nTL;DR:"  # Radford et al. 2019 §3.6


class Translation(GenerationPipeline):
    """[{"translation_text"}]: sentence by sentence, white space between them kept."""

    needs: ClassVar[str] = "an encoder-decoder that writes"

    @classmethod
    def fits(cls, model: Model) -> bool:
        return super().fits(model) and isinstance(model, Seq2Seq)

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
        """The translation of a text. Models learn from single sentences, so a text is cut into its own.

        `split_sentences=False` hands it over whole, as do several translations (num_return_sequences).
        """
        prefix = self.direction(src_lang, tgt_lang)
        whole = not split_sentences or generation.get("num_return_sequences", 1) > 1

        def answers(texts: list[Any]) -> list[Any]:
            parts = [[(check_text(t), "")] if whole else split_into_sentences(check_text(t)) for t in texts]
            prompts = [self.source(prefix + s, truncation) for part in parts for s, _ in part]
            found = iter(self.write(prompts, generation, {"num_beams": 4, "max_new_tokens": 200}, batch_size))
            return [self.joined(part, [next(found) for _ in part], ways) for part in parts]

        ways = (wants_ids(return_tensors, return_text), clean_up_tokenization_spaces)
        return map_texts(inputs, answers, batch_size)

    def joined(
        self, part: list[tuple[str, str]], rows: list[Any], ways: tuple[bool, bool | None]
    ) -> list[dict[str, Any]]:
        """Translated sentences with the white space that stood between them."""
        tensors, clean = ways
        out: list[dict[str, Any]] = []
        for choice in zip(*rows, strict=True):
            if tensors:
                out.append({"translation_token_ids": [i for g in choice for i in g.ids]})
            else:
                text = "".join(
                    clean_text(g.text, clean) + gap for g, (_, gap) in zip(choice, part, strict=True)
                )
                out.append({"translation_text": text})
        return out

    def direction(self, source: str | None, target: str | None) -> str:
        """What goes before a text for this direction; one clear line for one that the model does not do."""
        named = re.fullmatch(r"translation_(\w+)_to_(\w+)", self.task)
        asked = (source or (named and named[1]), target or (named and named[2]))
        tasks = self.model.hf_config.get("task_specific_params") or {}
        told = tasks.get(f"translation_{asked[0]}_to_{asked[1]}", {})
        if "prefix" in told:
            return str(told["prefix"])
        known = languages(self.model)
        for wanted, own in zip(asked, known or (None, None), strict=True):
            if wanted is not None and own is not None and wanted.split("_")[0].lower() != own:
                assert known is not None
                raise InputError(
                    f"this model translates from {known[0]} to {known[1]}; "
                    f"{asked[0]} to {asked[1]} needs another: give model="
                )
        return ""


def languages(model: Model) -> tuple[str, str] | None:
    """From which language to which, as config.json says: "languages": ["en", "de"]."""
    told = model.hf_config.get("languages")
    if not isinstance(told, list) or len(told) != 2:
        return None
    return str(told[0]).lower(), str(told[1]).lower()


def written_lengths(options: Mapping[str, Any]) -> dict[str, Any]:
    """max_length and min_length as counts of new tokens: the same for every kind of model."""
    new = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
    rest = {name: value for name, value in options.items() if name not in new and value is not None}
    return {new[name]: options[name] for name in new if name in options} | rest


def check_prompts(model: Model, prompts: Sequence[Sequence[int]]) -> None:
    """One clear line for a text that is longer than its model reads."""
    reach = context_length(model, source=True)
    for i, ids in enumerate(prompts):
        if reach is not None and len(ids) > reach:
            raise InputError(
                f"input {i} has {len(ids):,} tokens, the model's context is {reach:,}, and nothing was cut; "
                "pass truncation=True to read its beginning"
            )


def check_text(text: Any) -> str:
    """One clear line for what is no text."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the input must be a text that is not empty; got {text!r:.60}")
    return text


def map_texts(inputs: Any, answers: Any, batch_size: int) -> Any:
    """A list of rows for each text; of several texts at once the row itself where there is but one."""
    found = map_inputs(inputs, answers, batch_size)
    if isinstance(found, list) and not isinstance(inputs, str) and all(len(rows) == 1 for rows in found):
        return [rows[0] for rows in found]
    return found


# Words whose point does not end a sentence.
ABBREVIATIONS = frozenset(
    re.split(
        " ", "mr mrs ms dr prof sr jr vs etc vol fig ca cf bzw usw ggf inkl nr z.b d.h u.a e.g i.e mme mlle"
    )
)
SENTENCE_END = re.compile(
    r"""[.!?…]+["'”“’»)\]]*(\s+)(?=["'“‘«(\[¿¡]*[^\Wa-z])|[。！？]+(\s*)(?=\S)|(\s*\n\s*)(?=\S)"""
)


def split_into_sentences(text: str) -> list[tuple[str, str]]:
    """The sentences of a text, each with the white space behind it: joined again they are the text."""
    out = []
    at = len(text) - len(text.lstrip())
    first = text[:at]
    for found in SENTENCE_END.finditer(text, at):
        gap = next(group for group in found.groups() if group is not None)
        end = found.end() - len(gap)
        word = text[at:end].rsplit(None, 1)[-1].rstrip(".").lower() if text[at:end].split() else ""
        initial = len(word) == 1 and word.isalpha()
        if text[found.start()] == "." and (word in ABBREVIATIONS or initial) and "\n" not in gap:
            continue
        out.append((first + text[at:end], gap))
        first, at = "", found.end()
    kept = text[at:].rstrip()
    return [*out, (first + kept, text[at + len(kept) :])] if kept else out
