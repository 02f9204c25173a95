"""Small models that have read nothing but SST-2: what they are, and how several are heard as one.

finetuned.py trains them: scratch-bilstm, scratch-cnn, scratch-bag, scratch-bert, scratch-together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful import data
from heedful.models.base import Model
from heedful.runs.evaluate import Asked
from heedful.text.tokenizer import Tokenizer

ROLES = ("pad", "unk", "cls", "sep", "mask")


@dataclass(frozen=True)
class Kind:
    """A family with sizes, what it reads, and how many of the words are hidden from it."""

    family: str
    sizes: Mapping[str, Any]
    reads: str = "wordpiece"  # or word: those of at least two sentences
    hidden: float = 0.15


KINDS = {
    "bilstm": Kind("bilstm", dict(dim=384, layers=2, dropout=0.4)),
    "cnn": Kind("cnn", dict(dim=256, layers=1, hidden=512, kernel=3, dropout=0.5, pool="max"), "word", 0.2),
    # A window of one word: the mean of what every word says by itself (Iyyer et al. 2015).
    "bag": Kind("cnn", dict(dim=256, layers=1, hidden=512, kernel=1, dropout=0.4), "word", 0.3),
    "bert": Kind("bert", dict(dim=256, layers=3, heads=4, context=128, dropout=0.2)),
}


def vocabulary(kind: Kind, sentences: Sequence[str], file: Path, size: int) -> Tokenizer:
    """A tokenizer for the training text, by way of a file."""
    file.write_text("\n".join(sentences), encoding="utf-8")
    if kind.reads == "wordpiece":
        return heedful.train_tokenizer("wordpiece", [file], vocab=size, lower=True)
    found = Counter(word for sentence in sentences for word in set(sentence.lower().split()))
    twice = sum(count > 1 for count in found.values())
    return heedful.train_tokenizer("word", [file], vocab=len(ROLES) + twice, special=ROLES, lower=True)


@torch.inference_mode()
def probabilities(model: Model, labels: Sequence[str], asked: Asked) -> tuple[Tensor, Tensor]:
    """p(label | text) of every row of a file (N, C), and its true label (N)."""
    model.eval()
    batches = data.classify(
        asked.source, model.tokenizer, labels=list(labels), batch=asked.batch, **asked.options
    )
    found, truth = [], []
    for batch in batches.once():
        there = batch.to(model.device)
        found.append(model(there.tokens, valid=there.valid, types=there.types).float().softmax(-1).cpu())
        truth.append(batch.extra["label"].cpu())
    return torch.cat(found), torch.cat(truth)


def favoured(voices: Mapping[str, Tensor], truth: Tensor) -> tuple[str, ...]:
    """The kinds, of all subsets, whose mean is the least surprised by the labels: −log mean p_kind(label)"""
    sets = [some for many in range(1, len(voices) + 1) for some in combinations(voices, many)]
    return min(sets, key=lambda some: F.nll_loss(heard(voices, some).log(), truth).item())


def heard(voices: Mapping[str, Tensor], kinds: Sequence[str]) -> Tensor:
    """Every kind with one voice."""
    return torch.stack([voices[kind] for kind in kinds]).mean(0)


def right(said: Tensor, truth: Tensor) -> float:
    """Accuracy, × 100."""
    return round(100 * (said.argmax(-1) == truth).double().mean().item(), 2)
