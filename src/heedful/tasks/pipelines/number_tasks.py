"""text-regression, sentence-similarity, rerank: a number for a text, or for a pair of texts.

Regression gives a price, a rating with decimals, minutes until an answer: numbers whose distance means
something, unlike that of classes. Its head has one output u. While it learns, the answer is mean + scale · u:
a head that begins near zero would take very long to reach a price of 250,000 by itself. Afterwards mean and
scale become part of its weights, W' = scale · W and b' = scale · b + mean: any program that opens the folder
gets the number.

Similarity tells how near two texts are in meaning, by their vectors. Reranking tells which of several texts
answer a query, by a head that reads both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.classification import is_numeric, pair_batches, text_batches
from heedful.models.base import LM, Model
from heedful.tasks.examples import ROLES, Examples, UnusableRow, check_same_columns, split_by_group
from heedful.tasks.metrics.scores import correlation_scores, ranking_scores, regression_scores
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    input_limit,
    map_inputs,
    smallest_limit,
    tokenize,
    truncates,
)
from heedful.tasks.pipelines.encoders import pair_texts, sentence_vectors
from heedful.tasks.pipelines.text_classification import SCORE_FUNCTIONS, read_text_pairs, text_pair_inputs
from heedful.tasks.task import TrainableTask, TrainingDefaults
from heedful.tasks.task_specification import TaskSpecification
from heedful.text import Tokenizer
from heedful.train.objectives import Term, extra_of, logits_of, promote_float32
from heedful.weights.loading import with_head
from heedful.weights.pooling import Pooling, pool

SCALE_KEY = "regression"  # of config.json while a head learns, or if it has no bias: {"mean": …, "scale": …}


class NumberTask(TrainableTask):
    """A task whose answer to a text or a pair is a number, the last cell of an example."""

    noun: ClassVar[str] = "number"  # what it is called

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        if len({*cls.numbers(train)}) < 2:
            only = f"every row has the {cls.noun} {train.items[0][-1]}"
            raise InputError(f"{only}: there is nothing to learn", hint="is it the right column?")
        check_same_columns(train, valid)

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        n = cls.numbers(examples)
        return {
            f"{cls.noun}s": {"lowest": float(n.min()), "mean": float(n.mean()), "highest": float(n.max())}
        }

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        row = super().parse_cells(cells)
        number, column = row[-1], list(cells)[-1]
        if is_numeric(number):
            return row
        if is_numeric(number.replace(",", "")):  # a comma may stand for a point or mean nothing
            raise UnusableRow(f"whose {column} has a comma (write 0.5 for 0,5 and 1000 for 1,000)")
        raise UnusableRow(f"whose {column} is not a number")

    @staticmethod
    def numbers(examples: Examples) -> NDArray[np.float64]:
        """Return the true numbers of examples."""
        return np.array([float(row[-1]) for row in examples.items])

    def learnt_numbers(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of the size that the loss is made for."""
        raise NotImplementedError

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of one text or two, read together, and what is learnt, extra["score"]."""
        columns = len(examples.items[0]) - 1
        tokens = examples.encode(self.tokenizer, options.length, columns)
        values = self.learnt_numbers(self.numbers(examples)).astype(np.float32)
        return text_batches("regress", tokens, columns, self.tokenizer, options, "score", values)

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Return whether a model can do this task; a head of one label does the one that it learnt."""
        if not cls.heads:
            return super().fits(model)
        learnt = TaskSpecification.of(model)
        same = learnt is None or learnt.command == cls.command
        return super().fits(model) and model.config.labels == 1 and same


class TextRegression(NumberTask):
    """y = mean + scale · u, u the one logit of a head that reads a text or a pair of texts"""

    heads = ("classify",)
    needs = "a head of one label that gives a number"
    command, head, objective, metric, highest = "regress", "classify", "regress", "rmse", False
    label_unit = "number"
    head_settings: ClassVar[Mapping[str, Any]] = {"problem_type": "regression"}
    training = TrainingDefaults(lr=1e-4, lora_lr=1e-3, epochs=4, length=256)
    roles = ROLES["regress"]
    call_inputs = staticmethod(text_pair_inputs)

    def predict(
        self,
        inputs: Any,
        *,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return {"score": number} for each text, or for each pair {"text": …, "text_pair": …}."""
        scale = self.model.hf_config.get(SCALE_KEY) or {"mean": 0.0, "scale": 1.0}

        def predict_batch(texts: list[Any]) -> list[dict[str, float]]:
            pairs = read_text_pairs(self.model, texts)
            tokenized = self.tokenize(pairs, truncation=truncation, max_length=max_length)
            logits = self.forward(tokenized, batch_size=batch_size)
            return [{"score": scale["mean"] + scale["scale"] * float(u)} for u in logits]

        return map_inputs(inputs, predict_batch, batch_size, (str, Mapping))

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...]:
        return (train.columns.get("number", "number"),)

    @classmethod
    def has_head(cls, model: Model, train: Examples) -> bool:
        return TaskSpecification.of(model) is not None and cls.fits(model)

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        numbers = cls.numbers(train)
        scale = {"mean": float(numbers.mean()), "scale": float(numbers.std()) or 1.0}
        made, description = super().attach_head(model, train, seed)
        if SCALE_KEY not in made.hf_config:
            if made is model:
                rescale_output(model, 1 / scale["scale"], -scale["mean"] / scale["scale"])
            made.hf_config[SCALE_KEY] = scale
        return made, description

    def finish_training(self) -> None:
        scale = self.model.hf_config[SCALE_KEY]
        if rescale_output(self.model, scale["scale"], scale["mean"]):
            del self.model.hf_config[SCALE_KEY]

    def learnt_numbers(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = self.model.hf_config[SCALE_KEY]
        return (numbers - scale["mean"]) / scale["scale"]

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        return regression_scores(self.numbers(examples).tolist(), [answer["score"] for answer in answers])


@torch.no_grad()
def rescale_output(model: Model, scale: float, mean: float) -> bool:
    """Make a head of one output give scale · u + mean; return False if it has no bias to hold the mean."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == 1]
    if not layers or layers[-1].bias is None:
        return False
    layers[-1].weight.mul_(scale)
    layers[-1].bias.mul_(scale).add_(mean)
    return True


def two_lists(rows: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
    """Return rows of two texts as the first ones and the second ones."""
    return [row[0] for row in rows], [row[1] for row in rows]


def cosine_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ (cos(a, b) − score)², scores between 0 and 1   (Reimers and Gurevych 2019 §3, regression)"""
    assert isinstance(model, LM)
    sides = []
    for tokens, valid in (
        (batch.tokens, batch.valid), (batch.extra["other_tokens"], batch.extra.get("other_valid")),
    ):  # fmt: skip
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        states = model.encode(tokens, valid=valid)
        sides.append(promote_float32(pool(states, real, model.pooling or Pooling())))
    cosines = F.cosine_similarity(sides[0], sides[1], dim=-1)  # (B,)
    return {"closeness": Term(F.mse_loss(cosines, batch.extra["score"], reduction="sum"), "row")}


class SentenceSimilarity(NumberTask):
    """cos(a, b) = a·b / |a||b| of the pooled vectors of two texts, from −1 to 1

    A text longer than the encoder was made for is read to there, and the rest reported. Learnt, the cosine
    follows a score.
    """

    needs = "any model that encodes text"
    fields = ("source", "sentences")
    command, head, metric, trained_whole, noun = "similarity", "none", "spearman", (), "score"
    training = TrainingDefaults(lr=3e-5, lora_lr=5e-4, epochs=4, length=128)
    objective, call_inputs = staticmethod(cosine_loss), staticmethod(two_lists)
    roles = ROLES["similarity"]

    def predict(
        self,
        first: Any,
        second: Any = None,
        *,
        truncation: bool | str = True,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return for {"source_sentence": …, "sentences": […]} a cosine for each sentence.

        Called with two texts: one float; with a text and a list: a list of floats; with two lists: one float
        for each pair.
        """
        embed = lambda texts: sentence_vectors(
            self, texts, truncation=truncation, max_length=max_length, batch_size=batch_size
        )

        def score_request(request: Any) -> list[float]:
            if not isinstance(request, Mapping) or not {"source_sentence", "sentences"} <= set(request):
                forms = '{"source_sentence": …, "sentences": […]} or two texts'
                raise InputError(f"sentence-similarity takes {forms}; got {request!r:.60}")
            return score_all(request["source_sentence"], request["sentences"])

        def score_all(source: str, sentences: Sequence[str]) -> list[float]:
            if isinstance(sentences, str) or not isinstance(sentences, Iterable):
                raise InputError(f"sentences must be a list of texts; got {sentences!r:.60}")
            vectors = embed([source, *sentences])
            return (vectors[1:] @ vectors[0]).clamp(-1, 1).tolist()

        if second is None:
            return map_inputs(
                first, lambda requests: [score_request(r) for r in requests], batch_size, (Mapping, str)
            )
        if isinstance(first, str):
            return score_all(first, [second])[0] if isinstance(second, str) else score_all(first, second)
        pairs = pair_texts(first, second)
        if not pairs:
            return []
        found = embed([text for pair in pairs for text in pair]).unflatten(0, (len(pairs), 2))
        return (found[:, 0] * found[:, 1]).sum(-1).clamp(-1, 1).tolist()

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        return [text for row in examples.items for text in row[:2]]

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        made = model if model.config.head == "none" else with_head(model, "none", seed=seed).to(model.device)
        made.pooling = made.pooling or Pooling(normalise=True)
        return made, f"sentence vectors by the {made.pooling.mode}"

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of two texts and a score between 0 and 1, extra["score"]."""
        values = self.numbers(examples)
        scores = ((values - values.min()) / (values.max() - values.min())).astype(np.float32)
        tokens = examples.encode(self.tokenizer, options.length, 2)
        return pair_batches(tokens, self.tokenizer, options, scores)

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        return correlation_scores(self.numbers(examples).tolist(), answers)


def relevance_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ (y log σ(u) + (1 − y) log(1 − σ(u))), y the relevance of a row between 0 and 1"""
    logits = logits_of(model, batch).squeeze(-1)  # (B,)
    truth = extra_of(batch, "score").to(logits.dtype)
    return {"relevance": Term(F.binary_cross_entropy_with_logits(logits, truth, reduction="sum"), "row")}


class Rerank(NumberTask):
    """p = σ(u), u the one logit of a head that reads query and text together   (Nogueira and Cho 2019)

    A text that is too long loses its end; the query is never cut. Learnt, p follows the relevance of a row.
    """

    heads = ("classify",)
    needs = "a cross-encoder, which reads the query and a text together and has one label"
    fields = ("source", "sentences")
    command, head, metric, label_unit = "rerank", "classify", "ndcg", "label"
    # What sentence-transformers' CrossEncoder applies to the logit.
    head_settings: ClassVar[Mapping[str, Any]] = {
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    }
    training = TrainingDefaults(lr=3e-5, lora_lr=5e-4, epochs=4, length=256)
    objective, call_inputs = staticmethod(relevance_loss), staticmethod(two_lists)
    roles = ROLES["rerank"]

    def predict(
        self,
        query: Any,
        documents: Any = None,
        *,
        top_n: int | None = None,
        function_to_apply: str | None = None,
        truncation: bool | str = "only_second",
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return [{"index", "score", "text"}], the best first: the texts for a query, at most `top_n`.

        {"query": …, "documents": […]} is the same. Called with two lists: one float for each pair.
        `function_to_apply="none"` gives logits.
        """
        name = check_choice("function_to_apply", function_to_apply or "sigmoid", ("sigmoid", "none"))
        count = None if top_n is None else check_integer("top_n", top_n)
        how = "only_second" if truncation is True else truncation

        def score_pairs(pairs: Sequence[tuple[str, str]]) -> list[float]:
            if truncates(how):
                limit = smallest_limit(max_length, input_limit(self.model, self.tokenizer))
                for asked in dict.fromkeys(pair[0] for pair in pairs):
                    check_query(self.tokenizer, asked, limit)
            tokenized = self.tokenize(pairs, truncation=how, max_length=max_length)
            ranked = self.forward(tokenized, batch_size=batch_size)
            return [float(SCORE_FUNCTIONS[name](logits)) for logits in ranked]

        def rank_texts(request: Any) -> list[dict[str, Any]]:
            asked, texts = parse_request(request)
            scores = score_pairs([(asked, text) for text in texts]) if texts else []
            rows: list[dict[str, Any]] = [
                {"index": i, "score": score, "text": text}
                for i, (text, score) in enumerate(zip(texts, scores, strict=True))
            ]
            return sorted(rows, key=lambda row: -row["score"])[:count]

        if documents is None:
            return map_inputs(query, lambda all: [rank_texts(one) for one in all], batch_size, (Mapping, str))
        if isinstance(query, str):
            return rank_texts({"query": query, "documents": documents})
        pairs = pair_texts(query, documents)
        return score_pairs(pairs) if pairs else []

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        row = super().parse_cells(cells)
        if float(row[-1]) < 0:
            raise UnusableRow("whose relevance is below 0")
        return row

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        cls.check_rankable(examples)
        train, valid, queries = split_by_group(examples, [row[0] for row in examples.items], seed)
        return train, valid, f"{queries:,} whole queries drawn at random"

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        cls.check_rankable(train)
        cls.check_rankable(valid)

    @classmethod
    def check_rankable(cls, examples: Examples) -> None:
        """Raise InputError unless some query has texts of different relevance."""
        seen: dict[str, set[float]] = {}
        for query, _, relevance in examples.items:
            seen.setdefault(query, set()).add(float(relevance))
        if all(len(values) < 2 for values in seen.values()):
            where = f"{examples.path}: " if examples.path else ""
            what = f"{where}no query of {len(seen):,} has both a relevant text and another"
            raise InputError(what, hint="give each query a row for every text: relevance 1, and 0 of others")

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        relevant = sum(float(row[-1]) > 0 for row in examples.items)
        return {"queries": len({row[0] for row in examples.items}), "relevant texts": relevant}

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...]:
        return ("relevance",)

    @classmethod
    def has_head(cls, model: Model, train: Examples) -> bool:
        return cls.fits(model)

    def learnt_numbers(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers / max(1.0, numbers.max())  # a relevance between 0 and 1

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        queries, relevance = [row[0] for row in examples.items], self.numbers(examples).tolist()
        return ranking_scores(queries, relevance, answers)


def check_query(tokenizer: Tokenizer, query: str, limit: int | None) -> None:
    """Raise InputError for a query that leaves no room for a text behind it, of which the end may be cut."""
    length = len(tokenize(tokenizer, query, ""))
    if limit is not None and length >= limit:
        what = f"the query takes {length:,} tokens, and a text must fit behind it into {limit:,}"
        raise InputError(what, hint="shorten the query")


def parse_request(request: Any) -> tuple[str, list[str]]:
    """Return the query and the texts of {"query": …, "documents": […]}; `texts` is another name of these."""
    asked = request.get("query") if isinstance(request, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(asked, str) or not asked.strip():
        form = 'rerank takes a query and a list of texts, or {"query": …, "documents": […]}'
        raise InputError(f"{form}; got {request!r:.60}")
    texts = request.get("documents", request.get("texts"))
    if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
        raise InputError(f"the texts to rank must be a list; got {texts!r:.60}")
    documents = list(texts)
    for i, text in enumerate(documents):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"text {i} to rank must be a text and not empty; got {text!r:.60}")
    return asked, documents
