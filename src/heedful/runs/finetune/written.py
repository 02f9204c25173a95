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
from heedful.runs.finetune.guessing import columns_of
from heedful.runs.finetune.inspecting import Held, Source, sift
from heedful.runs.finetune.labelled import held
from heedful.runs.finetune.tasks import PER_TOKEN, Defaults, Examples, Reading, Task
from heedful.runs.prepare import writes
from heedful.runs.reading import parted
from heedful.train.objectives import Objective

SHOWN = 200  # validation rows that are written out to be scored
BLANK = "{text}"


class Written(Task):
    """What the three share: pairs of texts; training stops on the loss, as writing takes long."""

    head, metric, highest, by_loss = "lm", "loss", False, True
    decoder = True  # whether a model without an encoder will do

    def __init__(self) -> None:
        self.prompt = BLANK  # what a decoder reads before it writes

    def read(self, source: Source, given: dict[str, str | None]) -> Examples:
        columns = columns_of(source, self.name, given)
        found = sift(source, columns)
        return Examples(
            [tuple(map(str.strip, row)) for row in found.cells], found.places, columns, found.notes
        )

    def texts(self, examples: Examples) -> list[str]:
        return [row[0] for row in examples.items]

    def check(self, model: Model) -> None:
        if not writes(model) or (isinstance(model, LM) and not self.decoder):
            kinds = "an encoder-decoder" + (
                " or a decoder, such as smollm2-135m-instruct" if self.decoder else ""
            )
            this = f"this one is a {model.family.name} with a {model.config.head!r} head"
            raise InputError(f"{self.name} needs a model that writes, {kinds}; {this}")

    def dress(self, model: Model, seed: int) -> tuple[Model, str]:
        return model, "its own head"

    def trained_whole(self) -> tuple[str, ...]:
        return ()

    @property
    def objective(self) -> str | Objective:
        return "next_token"

    def batches(self, examples: Examples, model: Model, how: Reading) -> Batches:
        rows = held(examples, how.length, 2)
        if isinstance(model, Seq2Seq):
            return data.parallel(
                rows, model.tokenizer, columns=(0, 1), prefix=prefix(model, self.pipeline), length=how.length,
                batch=how.batch, seed=how.seed, start=model.start_token, truncate=True,
            )  # fmt: skip
        asked = zip(self.prompts(examples, model, how), (row[1] for row in rows.held), strict=True)
        return completion(
            Held("the file", held=list(asked), places=rows.places), model.tokenizer, prompt=0, completion=1,
            length=how.length, batch=how.batch, seed=how.seed, truncate=True,
        )  # fmt: skip

    def prompts(self, examples: Examples, model: Model, how: Reading) -> list[str]:
        """What a decoder reads of every example: a long text loses its end, the prompt around it stays."""
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
                for ids in encode([row[1][: PER_TOKEN * how.length] for row in examples.items], special=False)
            ]
        )
        room = np.maximum(how.length - extra - np.minimum(answers, how.length // 2), 8)
        return [
            self.prompt.replace(BLANK, within(row[0], int(n), model))
            for row, n in zip(examples.items, room, strict=True)
        ]

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        assert loss is not None
        return {"loss": loss}

    def written(self, model: Model, examples: Examples, how: Reading) -> tuple[list[str], list[str]]:
        """The true texts and those that the model writes, for the first rows of the examples."""
        from heedful.decode.loop import generate

        some = examples.some(range(min(len(examples), SHOWN)))
        truths = [row[1] for row in some.items]
        lengths = [len(ids) for ids in model.tokenizer.encode_all(truths, special=False)]
        most = min(max(lengths) + 8, how.length)
        tokenizer = model.tokenizer
        if isinstance(model, Seq2Seq):
            lead = prefix(model, self.pipeline)
            asked = [tokenizer.encode(lead + within(row[0], how.length - 4, model)) for row in some.items]
        else:
            before = list(find_template(tokenizer).before)
            asked = [
                before + tokenizer.encode(text, special=False) for text in self.prompts(some, model, how)
            ]
        guesses: list[str] = []
        for at in range(0, len(asked), how.batch):
            found = generate(
                model,
                asked[at : at + how.batch],
                max_tokens=most,
                beams=4 if isinstance(model, Seq2Seq) else None,
            )
            guesses += [tokenizer.decode(ids).strip() for ids in found]
        return truths, guesses

    def scored(
        self,
        by: Callable[[list[str], list[str]], dict[str, Any]],
        model: Model,
        examples: Examples,
        how: Reading,
    ) -> dict[str, Any]:
        truths, guesses = self.written(model, examples, how)
        return by(truths, guesses) | {"rows": len(truths)}


class Translate(Written):
    """A text in another language."""

    name, pipeline, decoder = "translate", "translation", False
    usual = Defaults(lr=3e-4, lora_lr=1e-3, epochs=8, length=256, steps=300)

    @property
    def objective(self) -> str | Objective:
        return "translate"

    def final(self, model: Model, examples: Examples, batches: Batches, how: Reading) -> dict[str, Any]:
        return self.scored(bleu, model, examples, how)


class Summarize(Written):
    """A long text in few words."""

    name, pipeline = "summarize", "summarization"
    usual = Defaults(lr=5e-5, lora_lr=5e-4, epochs=3, length=512, batch=8, steps=200)

    def dress(self, model: Model, seed: int) -> tuple[Model, str]:
        if isinstance(model, LM):
            self.prompt = str(model.hf_config.get("task_prompt") or request(model))
        return super().dress(model, seed)

    def finish(self, model: Model) -> None:
        if isinstance(model, LM):
            model.hf_config["task_prompt"] = self.prompt  # which the pipeline fills in

    def final(self, model: Model, examples: Examples, batches: Batches, how: Reading) -> dict[str, Any]:
        return self.scored(rouge, model, examples, how)


class Complete(Written):
    """How a text goes on: of running text, or of prompts with what should follow."""

    name, pipeline, metric = "complete", "text-generation", "perplexity"
    usual = Defaults(lr=5e-5, lora_lr=5e-4, epochs=3, length=256, batch=8, steps=100, most_epochs=10)

    def read(self, source: Source, given: dict[str, str | None]) -> Examples:
        if source.kind == "text":
            whole = documents(source.path, encoding=source.encoding)
            if not any(text.strip() for document in whole for text in document):
                raise InputError(f"{source.path} holds white space only")
            return Examples([whole], [str(source.path)])
        columns = columns_of(source, "complete", given, optional=("completion",))
        found = sift(source, columns)
        return Examples(found.cells, found.places, columns, found.notes)

    def held_out(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        first = examples.items[0]
        if isinstance(first, Documents):
            train, valid = parted(first, 0.1)
            return (
                Examples([train], examples.places),
                Examples([valid], examples.places),
                "the last tenth of the text",
            )
        return super().held_out(examples, seed)

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
                "complete needs a decoder, such as smollm2-135m-instruct; this model has an encoder too"
            )
        super().check(model)

    def batches(self, examples: Examples, model: Model, how: Reading) -> Batches:
        first = examples.items[0]
        if isinstance(first, Documents) or len(first) == 1:
            source = first if isinstance(first, Documents) else texts([row[0] for row in examples.items])
            return data.next_token(source, model.tokenizer, length=how.length, batch=how.batch, seed=how.seed)
        return super().batches(examples, model, how)

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        assert loss is not None
        return {"perplexity": math.exp(min(loss, 700.0)), "loss": loss}


def request(model: Model) -> str:
    """How a decoder is asked for a summary: in conversation if it was trained for one, else as GPT-2 was."""
    tokenizer = model.tokenizer
    if tokenizer.chat_template is None:
        return f"{BLANK}\nTL;DR:"  # Radford et al. 2019 §3.6
    said = f"Summarize the following text in one or two sentences.\n\n{BLANK}"
    text: str = tokenizer.chat([{"role": "user", "content": said}])
    first = tokenizer.tokens(find_template(tokenizer).before)  # which encoding will put there itself
    return text.removeprefix("".join(first))


def prefix(model: Model, task: str) -> str:
    """What stands before every source text: T5 is told its task so."""
    said = (model.hf_config.get("task_specific_params") or {}).get(task) or {}
    return str(said.get("prefix") or "")


def within(text: str, tokens: int, model: Model) -> str:
    """The beginning of a text, at most so many tokens."""
    text = text[: PER_TOKEN * tokens]
    spans = model.tokenizer.offsets(text, special=False)
    return text if len(spans) <= tokens else text[: spans[tokens - 1][1]].rstrip()
