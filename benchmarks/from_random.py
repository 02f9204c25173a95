"""Small models from random weights: what they are, and how several are heard as one.

finetuned.py trains them: scratch-bilstm, scratch-cnn, scratch-bag, scratch-bert, scratch-reader,
scratch-vectors, scratch-vectors-bilstm, scratch-together. Reader and vectors first read novels (ELTeC),
WikiText-2 and the sentences of SST-2 that train them, none of it with a label: one guesses hidden words, the
others have their table from this library's word2vec, and so know words that training never shows. All other
kinds read SST-2 alone.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import time
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
from heedful.models.base import LM, Model
from heedful.runs.evaluate import Asked
from heedful.text.tokenizer import Tokenizer
from heedful.word2vec import Word2Vec

TEXTS = ("lm/eltec-eng/train.jsonl.xz", "lm/wikitext-2/train.txt.gz")  # what the reader reads
ROLES = ("pad", "unk", "cls", "sep", "mask")


@dataclass(frozen=True)
class Kind:
    """A family with sizes, what it reads, and how many of the words are hidden from it."""

    family: str
    sizes: Mapping[str, Any]
    reads: str = "wordpiece"  # word: those of at least two sentences; vectors: all that word2vec knows
    hidden: float = 0.15
    epochs: float = 3
    lr: float = 1e-3
    before: int = 0  # steps of guessing hidden words before it is told any label

    @property
    def well_read(self) -> bool:
        """Whether it has read other texts than SST-2."""
        return self.before > 0 or self.reads == "vectors"


KINDS = {
    "bilstm": Kind("bilstm", dict(dim=384, layers=1, dropout=0.5), hidden=0.2),
    "cnn": Kind("cnn", dict(dim=256, layers=2, hidden=512, kernel=5, dropout=0.4)),
    # A window of one word: the mean of what every word says by itself (Iyyer et al. 2015).
    "bag": Kind("cnn", dict(dim=256, layers=1, hidden=512, kernel=1, dropout=0.4), "word", 0.3),
    "bert": Kind("bert", dict(dim=256, layers=3, heads=4, context=128, dropout=0.2), epochs=5),
    "reader": Kind("bilstm", dict(dim=384, layers=2, dropout=0.4), hidden=0.2, lr=5e-4, before=3000),
    "vectors": Kind("cnn", dict(dim=192, layers=1, hidden=384, kernel=3, dropout=0.5), "vectors", 0.3),
    "vectors-bilstm": Kind("bilstm", dict(dim=192, layers=1, dropout=0.5), "vectors", 0.3, epochs=2),
}


def vocabulary(
    kind: Kind, sentences: Sequence[str], file: Path, size: int, vectors: Word2Vec | None = None
) -> Tokenizer:
    """A tokenizer for the training text, or for the words of `vectors`, by way of a file."""
    file.write_text("\n".join(sentences if vectors is None else vectors.words), encoding="utf-8")
    if vectors is not None:
        size = len(ROLES) + len(vectors.words)
        return heedful.train_tokenizer("word", [file], vocab=size, special=ROLES, lower=True)
    if kind.reads == "wordpiece":
        return heedful.train_tokenizer("wordpiece", [file], vocab=size, lower=True)
    found = Counter(word for sentence in sentences for word in set(sentence.lower().split()))
    twice = sum(count > 1 for count in found.values())
    return heedful.train_tokenizer("word", [file], vocab=len(ROLES) + twice, special=ROLES, lower=True)


def texts(folder: Path, sentences: Sequence[str]) -> list[str]:
    """What the reader reads, in lower case as SST-2 is; a novel, an article or all sentences a piece."""
    with lzma.open(folder / TEXTS[0], "rt", encoding="utf-8") as lines:
        novels = [json.loads(line)["text"].lower() for line in lines]
    articles = gzip.decompress((folder / TEXTS[1]).read_bytes()).decode().lower()
    return [*novels, articles.replace("@-@", "-").replace(" @,@ ", ","), "\n".join(sentences)]


def word_vectors(source: Sequence[str], dim: int, place: Path, least: int = 5) -> Word2Vec:
    """Skip-gram over texts cut as SST-2 is; from `place` if it lies there already. The last text counts five
    times: so every word of SST-2 is among those that occur `least` times."""
    if place.is_file():
        return Word2Vec.load(place)
    *others, own = source
    place.parent.mkdir(parents=True, exist_ok=True)
    file = place.with_suffix(".txt")
    file.write_text("\n".join([*map(apart, others), *[own] * least]) + "\n", encoding="utf-8")
    threads = torch.get_num_threads()
    made = Word2Vec.train(file, dim=dim, mode="skipgram", min_count=least, epochs=2, threads=threads, seed=0)
    file.unlink()
    made.save(place)
    return made


def apart(text: str) -> str:
    """Signs and endings set apart, as SST-2 has them: it 's , did n't"""
    text = re.sub(r"([.,!?;:()\"“”])", r" \1 ", text.replace("’", "'"))
    return re.sub(r"'(s|re|ve|ll|d|m)\b", r" '\1", re.sub(r"n't\b", " n't", text))


@torch.no_grad()
def put_vectors(model: LM, vectors: Word2Vec, std: float = 0.1) -> None:
    """The table's rows become the words' vectors, all scaled alike."""
    ids = model.tokenizer.backend.get_vocab(with_added_tokens=True)
    rows = [(ids[word], i) for i, word in enumerate(vectors.words) if word in ids]
    to, source = (torch.tensor(side, device=model.device) for side in zip(*rows, strict=True))
    table = torch.as_tensor(vectors.input, dtype=torch.float32, device=model.device)
    model.embed.table[to] = table[source] * (std / table.std())


def reader(
    kind: Kind, tokenizer: Tokenizer, source: Sequence[str], place: Path, steps: int, device: str
) -> Model:
    """The model that has guessed hidden words (Devlin et al. 2019); from `place` if it lies there already."""
    if (place / "config.json").is_file():
        return heedful.load(place, dtype=torch.float32, device=device)
    sizes = {**kind.sizes, "dropout": 0.1}  # there is text enough
    model = heedful.build(kind.family, vocab=len(tokenizer), seed=0, device=device, head="mlm", **sizes)
    model.tokenizer = tokenizer
    file = place.with_suffix(".txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n\n".join(source), encoding="utf-8")
    batches = data.masked(file, tokenizer, length=128, batch=64, apart=False, unit="paragraph")
    config = heedful.TrainConfig(steps=steps, lr=2e-3, warmup=steps // 10, betas=(0.9, 0.98), seed=0)
    began = time.perf_counter()
    for step in heedful.fit(model, "masked", batches, config):
        if step.number % max(1, steps // 20) == 0:
            spent = time.perf_counter() - began
            print(f"reader step {step.number} of {steps} loss {step.loss:.4f} {spent:.0f} s", flush=True)
    file.unlink()
    heedful.save(model.eval(), place)
    return model


@torch.no_grad()
def take_over(model: Model, read: Model) -> None:
    """Everything below the head."""
    held = dict(read.named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith("head."):
            parameter.copy_(held[name])


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
