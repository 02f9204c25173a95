"""next-sentence: does the second text follow the first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from heedful.errors import InputError
from heedful.models.base import LM
from heedful.nn.head import PretrainHead
from heedful.tasks.common import BATCH_SIZE, Pipeline, forward_batches, map_inputs, tokenize_inputs
from heedful.tasks.sentence_similarity import pair_texts

LABELS = ("isNext", "notNext")


def _pair(given: Any) -> tuple[str, str]:
    if isinstance(given, Mapping) and {"text", "text_pair"} <= set(given):
        return given["text"], given["text_pair"]
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        return given[0], given[1]
    raise InputError(f"next-sentence takes two texts, or a list of pairs of them; got {given!r:.60}")


class NextSentence(Pipeline):
    """p = softmax(W pool(x) + b) over "follows" and "does not"   (Devlin et al. 2019 §3.1)"""

    heads = ("next", "pretrain")
    needs = "a head that judges whether a sentence follows (next, pretrain)"

    def predict(
        self,
        first: Any,
        second: Any = None,
        *,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """{"label": "isNext" or "notNext", "score"} of two texts; a list of them for a list of pairs."""

        def answers(pairs: list[Any]) -> list[dict[str, Any]]:
            texts = [_pair(pair) for pair in pairs]
            readings = tokenize_inputs(
                self.model, self.tokenizer, texts, truncation=truncation, max_length=max_length
            )
            found = forward_batches(self.model, self.tokenizer, readings, self.judge, batch_size)
            best = [u.softmax(-1).max(-1) for u in found]
            return [{"label": LABELS[int(at)], "score": float(p)} for p, at in best]

        if second is None:
            return map_inputs(first, answers, batch_size, (str, Mapping))
        if isinstance(first, str):
            return answers([(first, second)])[0]
        return map_inputs(pair_texts(first, second), answers, batch_size, Mapping)

    def judge(self, tokens: Tensor, **given: Any) -> Tensor:
        """(B, 2): the logits of "follows" and "does not"."""
        assert isinstance(self.model, LM)
        head = self.model.head
        logits: Tensor
        if not isinstance(head, PretrainHead):
            logits = self.model(tokens, **given)
        else:
            logits = head.next(*self.model.read(tokens, **given))
        return logits
