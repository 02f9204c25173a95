"""feature-extraction, fill-mask, next-sentence: what an encoder gives without being fine-tuned."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.models.base import LM, Model
from heedful.nn.head import PretrainHead
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    TokenizedText,
    map_inputs,
    smallest_limit,
    truncates,
    truncation_options,
)
from heedful.tasks.task import Task
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


# fill-mask and next-sentence: what the heads predict that BERT was pretrained with.


# A hidden word as BERT writes it, as RoBERTa does, and as people do.
MASK = re.compile(r"\[MASK\]|<mask>|_{3,}", re.IGNORECASE)


class FillMask(Task):
    """p(w | the rest) = softmax(u) at the position of the mask   (Devlin et al. 2019 §3.1)

    Several masks are filled each by itself: their probabilities are not joint ones.
    """

    heads = ("mlm", "pretrain")
    needs = "a head that predicts masked words (mlm, pretrain)"

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Return whether it has such a head, or is an encoder-decoder, which writes the whole text."""
        return super().fits(model) or (not isinstance(model, LM) and model.config.head == "lm")

    def predict(
        self,
        inputs: Any,
        *,
        targets: str | Sequence[str] | None = None,
        top_k: int | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return [{"score", "token", "token_str", "sequence"}], best first; of several masks a list each.

        There are `top_k` of them, 5 if it is None. `targets` are the only words considered. A mask is
        written as this model has it, or else as another does: [MASK], <mask> and ___ mean the same.
        """
        if self.tokenizer.mask is None:
            raise InputError("fill-mask needs a tokenizer with a mask token, and this one has none")
        top_k = check_integer("top_k", 5 if top_k is None else top_k)
        cut = truncation_options(truncation, max_length, tokenizer_kwargs)
        wanted = [targets] if isinstance(targets, str) else targets
        only = None if wanted is None else self.target_ids(wanted)

        def predict_batch(texts: list[str]) -> list[Any]:
            tokenized = self.tokenize([self.use_own_mask(text) for text in texts], **cut)
            mask = self.tokenizer.roles["mask"]
            for i, one in enumerate(tokenized):
                if self.tokenizer.mask not in one.ids:
                    lost = " (it was cut off)" if one.num_truncated else ""
                    hint = f"put one where a word is missing: “The {mask} barked.”"
                    raise InputError(f"input {i} has no {mask}{lost}", hint=hint)
            logits = self.forward(tokenized, self.mask_logits, batch_size)
            return [self.fill_masks(r, u, top_k, only) for r, u in zip(tokenized, logits, strict=True)]

        rows = map_inputs(inputs, predict_batch, batch_size)
        return rows[0] if isinstance(inputs, list) and len(inputs) == 1 else rows  # as transformers does

    def use_own_mask(self, text: str) -> str:
        """Return the text with this model's mask token in place of another model's, or of a blank."""
        own = self.tokenizer.roles["mask"]
        if not isinstance(text, str) or own in text:
            return text
        foreign = lambda mask: mask[0] == "_" or self.tokenizer.id(mask) is None
        return MASK.sub(lambda found: own if foreign(found[0]) else found[0], text)

    def mask_logits(self, tokens: Tensor, **options: Any) -> Tensor:
        """Return (B, M, V), the logits of each row's masked positions in order; M is the most a row has."""
        masked = tokens.eq(self.tokenizer.mask or 0)
        first = masked.int().argsort(dim=1, descending=True, stable=True)
        positions = first[:, : int(masked.sum(1).max()), None]
        if not isinstance(self.model, LM):
            logits: Tensor = self.model(tokens, **options)
            return logits.gather(1, positions.expand(-1, -1, logits.shape[-1]))
        hidden, ctx = self.model.read(tokens, **options)
        return self.model.head.words(hidden.gather(1, positions.expand(-1, -1, hidden.shape[-1])), ctx)

    def fill_masks(self, text: TokenizedText, logits: Tensor, top_k: int, targets: Tensor | None) -> Any:
        """Return the best words of every mask of a text."""
        positions = [t for t, i in enumerate(text.ids) if i == self.tokenizer.mask]
        p = logits[: len(positions)].softmax(-1)
        p = p if targets is None else p[:, targets]
        best, indices = p.topk(min(top_k, p.shape[-1]))
        words = indices if targets is None else targets[indices]
        alone = len(positions) == 1
        rows = []
        for at, scores, ids in zip(positions, best.tolist(), words.tolist(), strict=True):
            row = []
            for score, word in zip(scores, ids, strict=True):
                filled = [*text.ids[:at], word, *text.ids[at + 1 :]]
                # Of several masks the others must stay in sight, so nothing is skipped then.
                visible = [i for i in filled if i != self.tokenizer.pad]
                sequence = self.tokenizer.decode(visible, skip_special=alone)
                token_str = self.tokenizer.decode([word], skip_special=False)
                row.append({"score": score, "token": word, "token_str": token_str, "sequence": sequence})
            rows.append(row)
        return rows[0] if alone else rows

    def target_ids(self, targets: Sequence[str]) -> Tensor:
        """Return the ids of the words considered; of a word of several tokens, the first."""
        ids: list[int] = []
        for target in targets:
            pieces = self.tokenizer.encode(target, special=False)
            token = self.tokenizer.id(target)
            if token is None and not pieces:
                raise InputError(
                    f"the target {target!r} is not a token and has no pieces", hint="leave it out"
                )
            if token is None and (len(pieces) > 1 or pieces[0] == self.tokenizer.unk):
                first = self.tokenizer.tokens(pieces[:1])[0]
                warnings.warn(
                    f"{target!r} is not one token; its first piece {first!r} stands for it", stacklevel=2
                )
            ids.append(pieces[0] if token is None else token)
        if not ids:
            raise InputError("targets is empty", hint="name a word, or leave it out")
        return torch.tensor(sorted(set(ids)))


# next-sentence: does the second text follow the first?


LABELS = ("isNext", "notNext")


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
            texts = []
            for pair in pairs:
                if isinstance(pair, Mapping) and {"text", "text_pair"} <= set(pair):
                    texts.append((pair["text"], pair["text_pair"]))
                elif isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
                    texts.append((pair[0], pair[1]))
                else:
                    form = "two texts, or a list of pairs of them"
                    raise InputError(f"next-sentence takes {form}; got {pair!r:.60}")
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
