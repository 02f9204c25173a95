"""What is learnt from pairs of texts: read one, write the other. Translation, summaries, completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from heedful import data
from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.language_modeling import completion
from heedful.data.tokenization import find_template
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.head import PretrainHead
from heedful.tasks.examples import Examples, limit_characters
from heedful.tasks.generation import GENERATION_BATCH_SIZE, HUGGINGFACE_NAMES, GeneratingTask
from heedful.tasks.model_inputs import BATCH_SIZE, input_limit, map_inputs, truncate_text
from heedful.tasks.pipelines.feature_extraction import pair_texts
from heedful.tasks.task import PredictionCall, Task, TrainableTask, row_keywords

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
    def texts(cls, examples: Examples) -> list[str]:
        return [row[0] for row in examples.items]

    @classmethod
    def attach_head(
        cls, model: Model, train: Examples, seed: int, labels: tuple[str, ...] | None = None
    ) -> tuple[Model, str]:
        return model, "its own head"

    @property
    def prompt_template(self) -> str:
        """The prompt of a decoder, with {text} in place of the text."""
        return BLANK

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        table = examples.table(options.length, 2)
        if isinstance(self.model, Seq2Seq):
            return data.parallel(
                table, self.tokenizer, columns=(0, 1), prefix=task_prefix(self.model, self.task),
                start=self.model.start_token, **row_keywords(options),
            )  # fmt: skip
        prompts = self.decoder_prompts(
            [row[0] for row in examples.items], [row[1] for row in table.held], options
        )
        pairs = [(prompt, row[1]) for prompt, row in zip(prompts, table.held, strict=True)]
        return completion(
            replace(table, held=pairs), self.tokenizer, prompt=0, completion=1, **row_keywords(options)
        )

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

    def prediction_call(
        self, examples: Examples, *, batch: int, length: int | None = None, truncate: bool | None = True,
        **options: Any,
    ) -> PredictionCall:  # fmt: skip
        """Return the texts, and options of generation, of which at most `length` tokens are written.

        Options may have the names of `generate`. An encoder-decoder searches with four
        beams, a decoder takes the most likely token each time.
        """
        named = {OPTION_NAMES.get(name, name): value for name, value in options.items()}
        beams = {"num_beams": 4} if isinstance(self.model, Seq2Seq) else {}
        reading = {"truncation": truncate, "batch_size": batch}
        written = {"max_new_tokens": length or MAX_WRITTEN_TOKENS}
        return (self.texts(examples),), {**written, **beams, **reading, **named}

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        """Score what was written; `first` is the first row, to look at."""
        rows = [answer[0] if isinstance(answer, list) else answer for answer in answers]
        written = [next(iter(row.values())) for row in rows]
        text, truth = examples.items[0]
        first = {"text": text, "expected": truth, "written": written[0]}
        scores = self.text_scores([row[1] for row in examples.items], written)
        return {**scores, "rows": len(written), "first": first}

    @staticmethod
    def text_scores(truths: Sequence[str], guesses: Sequence[str]) -> dict[str, Any]:
        """Return the scores of what was written against what was expected."""
        raise NotImplementedError


class ScoredByPerplexity(TrainableGeneration):
    """A task for which there are many good texts, so that the score is how likely the expected ones are."""

    metric = "perplexity"

    def score(
        self, examples: Examples, *, batch: int = GENERATION_BATCH_SIZE, length: int | None = None,
        truncate: bool | None = True, report: Callable[[int], None] | None = None, **settings: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the perplexity of the texts, or of the completions of prompts: there are many good texts."""
        for name in settings:
            check_choice("option", name, ("seed",))
        limit = input_limit(self.model, self.tokenizer) or self.training.length
        options = BatchOptions(length or min(self.training.length, limit), batch, truncate=bool(truncate))
        return self.loss_scores(self.batches(examples, options))


def task_prefix(model: Model, task: str) -> str:
    """Return what a model of many tasks, such as T5, reads before the text, as its config.json says."""
    settings = (model.hf_config.get("task_specific_params") or {}).get(task) or {}
    return str(settings.get("prefix") or "")


# next-sentence: does the second text follow the first?


LABELS = ("isNext", "notNext")


def _parse_pair(example: Any) -> tuple[str, str]:
    if isinstance(example, Mapping) and {"text", "text_pair"} <= set(example):
        return example["text"], example["text_pair"]
    if isinstance(example, Sequence) and not isinstance(example, str) and len(example) == 2:
        return example[0], example[1]
    raise InputError(f"next-sentence takes two texts, or a list of pairs of them; got {example!r:.60}")


class NextSentence(Task):
    """p = softmax(W pool(x) + b) over "follows" and "does not"   (Devlin et al. 2019 §3.1)"""

    heads = ("next", "pretrain")
    needs = "a head that judges whether a sentence follows (next, pretrain)"
    fields = ("first", "second")

    def predict(
        self,
        first: Any,
        second: Any = None,
        *,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return {"label": "isNext" or "notNext", "score"} of two texts, or a list for a list of pairs."""

        def predict_batch(pairs: list[Any]) -> list[dict[str, Any]]:
            texts = [_parse_pair(pair) for pair in pairs]
            tokenized = self.tokenize(texts, truncation=truncation, max_length=max_length)
            logits = self.forward(tokenized, self.judge, batch_size)
            best = [u.softmax(-1).max(-1) for u in logits]
            return [{"label": LABELS[int(at)], "score": float(p)} for p, at in best]

        if second is None:
            return map_inputs(first, predict_batch, batch_size, (str, Mapping))
        if isinstance(first, str):
            return predict_batch([(first, second)])[0]
        return map_inputs(pair_texts(first, second), predict_batch, batch_size, Mapping)

    def judge(self, tokens: Tensor, **options: Any) -> Tensor:
        """Return (B, 2), the logits of "follows" and "does not"."""
        assert isinstance(self.model, LM)
        head = self.model.head
        logits: Tensor
        if not isinstance(head, PretrainHead):
            logits = self.model(tokens, **options)
        else:
            logits = head.next(*self.model.read(tokens, **options))
        return logits
