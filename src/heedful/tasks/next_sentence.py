"""next-sentence: does the second text follow the first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from heedful.core.errors import InputError
from heedful.models.base import LM
from heedful.nn.head import PretrainHead
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs
from heedful.tasks.sentence_similarity import pair_texts
from heedful.tasks.task import Task

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
            found = self.forward(tokenized, self.judge, batch_size)
            best = [u.softmax(-1).max(-1) for u in found]
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
