"""translate, summarize, complete: a text for a text, by an encoder-decoder or behind a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from heedful import data
from heedful.data.batches import Batches
from heedful.data.language_modeling import completion
from heedful.data.readers import Documents, documents, texts
from heedful.data.tokenization import find_template
from heedful.errors import InputError
from heedful.evaluate.generated import bleu, rouge
from heedful.models.base import LM, Model, Seq2Seq
from heedful.runs.datasets import split_documents
from heedful.runs.finetune.column_roles import infer_columns
from heedful.runs.finetune.finetune_task import (
    MAX_CHARACTERS_PER_TOKEN,
    BatchSettings,
    Defaults,
    Examples,
    FinetuneTask,
)
from heedful.runs.finetune.input_files import InputFile, MemoryTable, select_rows
from heedful.runs.finetune.sequence_tasks import as_table
from heedful.runs.prepare import can_generate
from heedful.tasks.text2text import SUMMARY_PROMPT, SUMMARY_REQUEST, task_prefix
from heedful.train.objectives import Objective

MAX_SCORED_ROWS = 200  # validation rows that are written out to be scored
BLANK = "{text}"


class GenerationTask(FinetuneTask):
    """What the generating tasks share: pairs of texts; training stops on the loss, as generation is slow."""

    head, metric, highest, by_loss = "lm", "loss", False, True
    decoder = True  # whether a model without an encoder will do

    def __init__(self) -> None:
        self.prompt = BLANK  # what a decoder reads before it writes

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        columns = infer_columns(source, self.name, column_flags)
        found = select_rows(source, columns)
        return Examples(
            [tuple(map(str.strip, row)) for row in found.cells], found.locations, columns, found.notes
        )

    def texts(self, examples: Examples) -> list[str]:
        return [row[0] for row in examples.items]

    def check(self, model: Model) -> None:
        if not can_generate(model) or (isinstance(model, LM) and not self.decoder):
            kinds = "an encoder-decoder" + (
                " or a decoder, such as smollm2-135m-instruct" if self.decoder else ""
            )
            this = f"this one is a {model.family.name} with a {model.config.head!r} head"
            raise InputError(f"{self.name} needs a model that writes, {kinds}", hint=this)

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        return model, "its own head"

    def trained_whole(self) -> tuple[str, ...]:
        return ()

    @property
    def objective(self) -> str | Objective:
        return "next_token"

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        rows = as_table(examples, batching.length, 2)
        if isinstance(model, Seq2Seq):
            return data.parallel(
                rows, model.tokenizer, columns=(0, 1), prefix=task_prefix(model, self.pipeline),
                start=model.start_token, **batching.keywords,
            )  # fmt: skip
        prompts = zip(self.prompts(examples, model, batching), (row[1] for row in rows.held), strict=True)
        return completion(
            MemoryTable("the file", held=list(prompts), locations=rows.locations), model.tokenizer,
            prompt=0, completion=1,
            **batching.keywords,
        )  # fmt: skip

    def prompts(self, examples: Examples, model: Model, batching: BatchSettings) -> list[str]:
        """Return the prompt of every example: a long text loses its end, what stands around it stays."""
        encode = model.tokenizer.encode_all
        around = find_template(model.tokenizer, end=True)
        extra = (
            len(model.tokenizer.encode(self.prompt.replace(BLANK, ""), special=False))
            + around.single_count
            + 2
        )
        answers = np.array(
            [
                len(ids)
                for ids in encode(
                    [row[1][: MAX_CHARACTERS_PER_TOKEN * batching.length] for row in examples.items],
                    special=False,
                )
            ]
        )
        room = np.maximum(batching.length - extra - np.minimum(answers, batching.length // 2), 8)
        return [
            self.prompt.replace(BLANK, truncate_text(row[0], int(n), model))
            for row, n in zip(examples.items, room, strict=True)
        ]

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        assert loss is not None
        return {"loss": loss}

    def generate_texts(
        self, model: Model, examples: Examples, batching: BatchSettings
    ) -> tuple[list[str], list[str]]:
        """Return the true texts and the generated ones, for the first rows of the examples."""
        from heedful.decode.loop import generate

        some = examples.select(range(min(len(examples), MAX_SCORED_ROWS)))
        truths = [row[1] for row in some.items]
        lengths = [len(ids) for ids in model.tokenizer.encode_all(truths, special=False)]
        most = min(max(lengths) + 8, batching.length)
        tokenizer = model.tokenizer
        if isinstance(model, Seq2Seq):
            lead = task_prefix(model, self.pipeline)
            prompts = [
                tokenizer.encode(lead + truncate_text(row[0], batching.length - 4, model))
                for row in some.items
            ]
        else:
            before = list(find_template(tokenizer).before)
            prompts = [
                before + tokenizer.encode(text, special=False) for text in self.prompts(some, model, batching)
            ]
        guesses: list[str] = []
        for at in range(0, len(prompts), batching.batch):
            found = generate(
                model,
                prompts[at : at + batching.batch],
                max_tokens=most,
                beams=4 if isinstance(model, Seq2Seq) else None,
            )
            guesses += [tokenizer.decode(ids).strip() for ids in found]
        return truths, guesses

    def score_texts(
        self,
        by: Callable[[list[str], list[str]], dict[str, Any]],
        model: Model,
        examples: Examples,
        batching: BatchSettings,
    ) -> dict[str, Any]:
        truths, guesses = self.generate_texts(model, examples, batching)
        return by(truths, guesses) | {"rows": len(truths)}


class Translate(GenerationTask):
    """Translation: a text in another language."""

    name, pipeline, decoder = "translate", "translation", False
    defaults = Defaults(lr=3e-4, lora_lr=1e-3, epochs=8, length=256, steps=300)

    @property
    def objective(self) -> str | Objective:
        return "translate"

    def final_scores(
        self, model: Model, examples: Examples, batches: Batches, batching: BatchSettings
    ) -> dict[str, Any]:
        return self.score_texts(bleu, model, examples, batching)


class Summarize(GenerationTask):
    """Summarization: a long text in few words."""

    name, pipeline = "summarize", "summarization"
    defaults = Defaults(lr=5e-5, lora_lr=5e-4, epochs=3, length=512, batch=8, steps=200)

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        if isinstance(model, LM):
            self.prompt = str(model.hf_config.get("task_prompt") or summary_prompt(model))
        return super().attach_head(model, seed)

    def finish(self, model: Model) -> None:
        if isinstance(model, LM):
            model.hf_config["task_prompt"] = self.prompt  # which the pipeline fills in

    def final_scores(
        self, model: Model, examples: Examples, batches: Batches, batching: BatchSettings
    ) -> dict[str, Any]:
        return self.score_texts(rouge, model, examples, batching)


class Complete(GenerationTask):
    """Text generation, learnt from running text or from prompts with completions."""

    name, pipeline, metric = "complete", "text-generation", "perplexity"
    defaults = Defaults(lr=5e-5, lora_lr=5e-4, epochs=3, length=256, batch=8, steps=100, most_epochs=10)

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        if source.kind == "text":
            whole = documents(source.path, encoding=source.encoding)
            if not any(text.strip() for document in whole for text in document):
                raise InputError(f"{source.path} holds white space only")
            return Examples([whole], [str(source.path)])
        columns = infer_columns(source, "complete", column_flags, optional=("completion",))
        found = select_rows(source, columns)
        return Examples(found.cells, found.locations, columns, found.notes)

    def split_validation(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        first = examples.items[0]
        if isinstance(first, Documents):
            train, valid = split_documents(first, 0.1)
            return (
                Examples([train], examples.locations),
                Examples([valid], examples.locations),
                "the last tenth of the text",
            )
        return super().split_validation(examples, seed)

    def texts(self, examples: Examples) -> list[str]:
        if isinstance(examples.items[0], Documents):
            return []
        return [" ".join(row) for row in examples.items]

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        if not isinstance(train.items[0], Documents):
            return {}
        return {"characters": sum(len(t) for part in (train, valid) for d in part.items[0] for t in d)}

    def check(self, model: Model) -> None:
        if not isinstance(model, LM):
            raise InputError(
                "complete needs a decoder, such as smollm2-135m-instruct",
                hint="this model has an encoder too",
            )
        super().check(model)

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        first = examples.items[0]
        if isinstance(first, Documents) or len(first) == 1:
            source = first if isinstance(first, Documents) else texts([row[0] for row in examples.items])
            return data.next_token(
                source, model.tokenizer, length=batching.length, batch=batching.batch, seed=batching.seed
            )
        return super().batches(examples, model, batching)

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        assert loss is not None
        return {"perplexity": math.exp(min(loss, 700.0)), "loss": loss}


def summary_prompt(model: Model) -> str:
    """Return a decoder's prompt for a summary: a message if it converses, else "TL;DR:" as for GPT-2."""
    tokenizer = model.tokenizer
    if tokenizer.chat_template is None:
        return SUMMARY_PROMPT
    text: str = tokenizer.chat([{"role": "user", "content": SUMMARY_REQUEST}])
    first = tokenizer.tokens(find_template(tokenizer).before)  # which encoding will put there itself
    return text.removeprefix("".join(first))


def truncate_text(text: str, tokens: int, model: Model) -> str:
    """Return the beginning of a text, at most `tokens` tokens."""
    text = text[: MAX_CHARACTERS_PER_TOKEN * tokens]
    spans = model.tokenizer.offsets(text, special=False)
    return text if len(spans) <= tokens else text[: spans[tokens - 1][1]].rstrip()
