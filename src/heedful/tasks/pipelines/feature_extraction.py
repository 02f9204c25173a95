"""feature-extraction: the hidden states of a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.classification import pair_batches
from heedful.models.base import LM, Model
from heedful.tasks.examples import FIRST, SCORE, SECOND, Examples, Role
from heedful.tasks.metrics.scores import correlation_scores
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, smallest_limit, truncates, truncation_options
from heedful.tasks.task import NumberTask, Task, TrainingDefaults
from heedful.train.objectives import Term, promote_float32
from heedful.weights.loading import with_head
from heedful.weights.pooling import Pooling, pool


class FeatureExtraction(Task):
    """The last hidden states of every token, before any head; of an encoder-decoder its encoder's."""

    needs = "any model"

    def predict(
        self,
        inputs: Any,
        *,
        return_tensors: bool | str = False,
        tokenize_kwargs: Mapping[str, Any] | None = None,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return (1, T, D) of each text, as nested lists or with `return_tensors` as a tensor."""
        cut = truncation_options(truncation, max_length, tokenize_kwargs)

        def predict_batch(texts: list[str]) -> list[Any]:
            tokenized = self.tokenize(texts, **cut)
            vectors = self.forward(tokenized, self.encode, batch_size)
            tensors = [x[None, : len(r)] for r, x in zip(tokenized, vectors, strict=True)]
            return [x.clone() if return_tensors else x.tolist() for x in tensors]

        return map_inputs(inputs, predict_batch, batch_size)


# sentence-similarity: how near two texts are in meaning.


def sentence_vectors(
    task: Task,
    texts: Sequence[str],
    *,
    truncation: bool | str = True,
    max_length: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Tensor:
    """Return (N, D): a vector of length 1 per text, pooled as the checkpoint says, by default by the mean."""
    pooling = task.model.pooling or Pooling()
    limit = smallest_limit(max_length, pooling.length if truncates(truncation) else None)

    def pool_states(tokens: Tensor, valid: Tensor | None = None, **options: Any) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        return pool(task.encode(tokens, valid=valid, **options), real, pooling)

    tokenized = task.tokenize(texts, truncation=truncation, max_length=limit)
    return F.normalize(torch.stack(task.forward(tokenized, pool_states, batch_size)), dim=-1)


def pair_texts(first: Sequence[Any], second: Any) -> list[tuple[Any, Any]]:
    """Return two lists as a list of pairs; raise InputError if their lengths differ."""
    if isinstance(second, str) or not isinstance(second, Collection) or len(first) != len(second):
        size = f"{len(second)}" if isinstance(second, (list, tuple)) else f"{second!r:.40}"
        raise InputError(
            f"the first texts are {len(first)} and the second {size}",
            hint="give the same number of first and second texts",
        )
    return list(zip(first, second, strict=True))


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
    command, head, metric, trained_whole = "similarity", "none", "spearman", ()
    training = TrainingDefaults(lr=3e-5, lora_lr=5e-4, epochs=4, length=128)
    objective, call_inputs = staticmethod(cosine_loss), staticmethod(two_lists)
    roles: ClassVar[Mapping[str, Role]] = {
        "text": Role("--text", FIRST), "pair": Role("--pair", SECOND), "score": Role("--label", SCORE),
    }  # fmt: skip

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
                raise InputError(
                    (
                        'sentence-similarity takes {"source_sentence": …, "sentences": […]} or two texts; '
                        f"got {request!r:.60}"
                    ),
                )
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
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        scores = {float(row[-1]) for row in train.items}
        if len(scores) == 1:
            only = f"every row has the score {scores.pop():g}"
            raise InputError(f"{only}: there is nothing to distinguish", hint="is it the right column?")

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        return [text for row in examples.items for text in row[:2]]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        scores = [float(row[-1]) for row in examples.items]
        return {"scores": {"lowest": min(scores), "highest": max(scores)}}

    @classmethod
    def check_model(cls, model: Model) -> None:
        if not isinstance(model, LM):
            raise InputError(
                "similarity needs a model with one stack", hint="take an encoder, such as all-minilm-l6-v2"
            )

    @classmethod
    def attach_head(
        cls, model: Model, train: Examples, seed: int, labels: tuple[str, ...] | None = None
    ) -> tuple[Model, str]:
        made = model if model.config.head == "none" else with_head(model, "none", seed=seed).to(model.device)
        made.pooling = made.pooling or Pooling(normalise=True)
        return made, f"sentence vectors by the {made.pooling.mode}"

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of two texts and a score between 0 and 1, extra["score"]."""
        values = np.array([float(row[-1]) for row in examples.items])
        scores = ((values - values.min()) / (values.max() - values.min())).astype(np.float32)
        tokens = examples.encode(self.tokenizer, options.length, 2)
        return pair_batches(tokens, self.tokenizer, options, scores)

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        return correlation_scores([float(row[-1]) for row in examples.items], answers)
