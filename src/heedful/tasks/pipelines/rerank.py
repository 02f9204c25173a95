"""rerank: which of several texts answer a query, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.classification import text_batches
from heedful.data.input_files import UnusableRow
from heedful.models.base import Model
from heedful.tasks.examples import DOCUMENT, QUERY, RELEVANCE, Examples, Role, split_by_group
from heedful.tasks.metrics.scores import ranking_scores
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    input_limit,
    map_inputs,
    smallest_limit,
    tokenize,
    truncates,
)
from heedful.tasks.pipelines.feature_extraction import pair_texts, two_lists
from heedful.tasks.pipelines.text_classification import SCORE_FUNCTIONS
from heedful.tasks.task import NumberTask, TrainingDefaults
from heedful.text import Tokenizer
from heedful.train.objectives import Term, extra_of, promote_float32

LABEL = "relevance"  # the name of a new head's one label


def relevance_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ (y log σ(u) + (1 − y) log(1 − σ(u))), y the relevance of a row between 0 and 1"""
    logits = promote_float32(model(batch.tokens, valid=batch.valid, types=batch.types)).squeeze(-1)  # (B,)
    truth = extra_of(batch, "score").to(logits.dtype)
    return {"relevance": Term(F.binary_cross_entropy_with_logits(logits, truth, reduction="sum"), "row")}


class Rerank(NumberTask):
    """p = σ(u), u the one logit of a head that reads query and text together   (Nogueira and Cho 2019)

    A text that is too long loses its end; the query is never cut. Learnt, p follows the relevance of a row.
    """

    heads = ("classify",)
    needs = "a cross-encoder: a head of one label that reads query and text together"
    fields = ("source", "sentences")
    command, head, metric, label_unit = "rerank", "classify", "ndcg", "label"
    # What sentence-transformers' CrossEncoder applies to the logit.
    head_settings: ClassVar[Mapping[str, Any]] = {
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    }
    training = TrainingDefaults(lr=3e-5, lora_lr=5e-4, epochs=4, length=256)
    objective, call_inputs = staticmethod(relevance_loss), staticmethod(two_lists)
    roles: ClassVar[Mapping[str, Role]] = {
        "query": Role("--text", QUERY), "document": Role("--pair", DOCUMENT),
        "relevance": Role("--label", RELEVANCE),
    }  # fmt: skip

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
    def texts(cls, examples: Examples) -> list[str]:
        return [" ".join(row[:2]) for row in examples.items]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        relevant = sum(float(row[-1]) > 0 for row in examples.items)
        return {"queries": len({row[0] for row in examples.items}), "relevant texts": relevant}

    @classmethod
    def attach_head(
        cls, model: Model, train: Examples, seed: int, labels: tuple[str, ...] | None = None
    ) -> tuple[Model, str]:
        if cls.fits(model):
            return model, "its own head, of one label"
        return super().attach_head(model, train, seed, (LABEL,))[0], "a new head of one label"

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of two texts and a relevance between 0 and 1, extra["score"]."""
        relevance = np.array([float(row[-1]) for row in examples.items])
        return text_batches(
            "regress", examples.encode(self.tokenizer, options.length, 2), 2, self.tokenizer, options,
            "score", (relevance / max(1.0, relevance.max())).astype(np.float32),
        )  # fmt: skip

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        rows = examples.items
        return ranking_scores([row[0] for row in rows], [float(row[-1]) for row in rows], answers)


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
