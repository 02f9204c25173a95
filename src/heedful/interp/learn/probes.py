"""Linear probes: what a linear map can read about words from each layer, compared with a control task.

A probe is a linear classifier trained on the vectors of one layer, for example to predict parts of speech. A
high accuracy says that the layer holds the information in a simple form. It does not say that the model uses
it, and a good probe may have learnt the answers by heart. So a second probe learns a control task, in which
every word of the vocabulary gets a random label, drawn as often as the true ones occur. The accuracy minus
that of the control is the selectivity (Hewitt and Liang 2019, arXiv 1909.03368).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import InputError
from heedful.data.batches import seeded_generator
from heedful.data.examples.tagging import Sentence
from heedful.interp.activations import Texts, collect_activations, text_vectors
from heedful.interp.inputs import Result, layer_names, with_progress
from heedful.interp.learn.activation_store import ActivationStore
from heedful.models.base import Model
from heedful.train.linear_head import fit_logistic

Tagged = Sentence | tuple[Sequence[str], Sequence[str]]
Encoded = tuple[list[int], list[int], list[str], list[str]]  # ids, last pieces of words, words, tags

CONTROL_SEED, FOLD_SEED = 0xC0DE, 0xF01D
ITERATIONS = 60


@dataclass(frozen=True)
class ProbeResult(Result):
    """Accuracy of a linear probe of each value on words held out, by value and fold: (L, F).

    `control` is that of the control task, `majority` the share of the most frequent label.
    `words` is how many words, or texts, were read.
    """

    also = ("selectivity",)

    names: tuple[str, ...]
    accuracy: Tensor
    control: Tensor
    majority: float
    labels: tuple[str, ...]
    words: int

    @property
    def selectivity(self) -> Tensor:
        """The accuracy of the probes at the real task minus that at the control, (L,)."""
        return self.accuracy.mean(1) - self.control.mean(1)


def linear_probes(
    model: Model, sentences: Sequence[Tagged], names: Sequence[str] | None = None, *, folds: int = 5,
    penalty: float = 1.0, max_length: int = 128, seed: int = 0,
) -> ProbeResult:  # fmt: skip
    """Return how well a linear probe of each value tells the tag of a word, cross-validated over sentences.

    `sentences` have words and a tag for each, such as `heedful.data.conll(path)` yields; `names` are watched
    values, by default the output of every layer. A word is read at its last piece. Whole sentences are held
    out, a fifth at a time.
    """
    chosen = layer_names(model) if names is None else list(names)
    encoded = [_encode(model, sentence, max_length) for sentence in sentences]
    if len(encoded) < check_integer("folds", folds, minimum=2):
        raise InputError(f"{len(encoded)} sentences cannot be parted into {folds} folds", hint="give more")
    activations = collect_activations(model, [ids for ids, _, _, _ in encoded], chosen)
    words = [w.lower() for _, _, listed, _ in encoded for w in listed]
    labels = sorted({tag for *_, tags in encoded for tag in tags})
    if len(labels) < 2:
        only = labels[0] if labels else "none"
        raise InputError(f"every word has the tag {only}", hint="give two or more tags")
    truth = np.array([labels.index(tag) for *_, tags in encoded for tag in tags])
    group = np.repeat(np.arange(len(encoded)), [len(tags) for *_, tags in encoded])
    first_of = torch.searchsorted(activations[chosen[0]].text, torch.arange(len(encoded))).tolist()
    rows = torch.tensor([first_of[i] + at for i, (_, places, _, _) in enumerate(encoded) for at in places])
    vectors = (activations[name].values[rows] for name in chosen)
    control = control_labels(words, truth, seed)
    fold_of = assign_group_folds(group, folds, seed)
    return _fit_probes(chosen, vectors, truth, control, labels, fold_of, penalty)


def _fit_probes(
    names: Sequence[str], vectors: Iterable[Tensor], truth: NDArray[np.int64], control: NDArray[np.int64],
    labels: Sequence[str], folds: NDArray[np.int64], penalty: float,
) -> ProbeResult:  # fmt: skip
    """Return the accuracies of probes of each value's vectors (N, D), at the task and at its control."""

    check_number("penalty", penalty, minimum=0.0)

    def standardize(x: Tensor) -> Tensor:  # every entry alike, so that one penalty fits all layers
        x = x - x.mean(0)
        return x / x.std(0).clamp(min=1e-6) / x.shape[1] ** 0.5

    pairs = ((x, torch.from_numpy(task)) for x in map(standardize, vectors) for task in (truth, control))
    accuracies = [
        _held_out_accuracy(x, task, len(labels), folds, penalty)
        for x, task in with_progress(pairs, "probes", 2 * len(names))
    ]
    majority = float(np.bincount(truth).max() / len(truth))
    of_truth, of_control = torch.stack(accuracies[::2]), torch.stack(accuracies[1::2])
    return ProbeResult(tuple(names), of_truth, of_control, majority, tuple(labels), len(truth))


def sentence_probes(
    model: Model, texts: Texts | ActivationStore, labels: Sequence[str],
    names: Sequence[str] | None = None, *, tokens: Literal["mean", "last"] = "mean", folds: int = 5,
    penalty: float = 1.0, max_length: int = 128, seed: int = 0,
) -> ProbeResult:  # fmt: skip
    """Return how well a linear probe of each value tells the label of a text, cross-validated over texts.

    A text is the mean of its tokens, or its last one; special tokens and the first of a causal model do not
    count. Instead of texts, an `ActivationStore` has values that were computed before. The control gives
    every text a random label, so it shows what a probe learns by heart.
    """
    if isinstance(texts, ActivationStore):
        chosen, shards = list(names or texts.names), iter(texts)
    else:
        chosen = layer_names(model) if names is None else list(names)
        shards = iter([collect_activations(model, texts, chosen, max_length=max_length)])
    parts = [text_vectors(model, [shard[name] for name in chosen], tokens) for shard in shards]
    vectors = [torch.cat(listed) for listed in zip(*parts, strict=True)]
    count, kinds = len(vectors[0]), sorted(set(labels))
    if count != len(labels):
        raise InputError(f"there are {count} texts and {len(labels)} labels", hint="give one label per text")
    if count < check_integer("folds", folds, minimum=2) or len(kinds) < 2:
        raise InputError(f"{count} texts with {len(kinds)} labels cannot be probed", hint="give more")
    truth = np.array([kinds.index(label) for label in labels])
    control = seeded_generator(seed, CONTROL_SEED).permutation(truth)
    fold_of = assign_group_folds(np.arange(count), folds, seed)
    return _fit_probes(chosen, vectors, truth, control, kinds, fold_of, penalty)


def word_pieces(model: Model, words: Sequence[str], max_length: int) -> tuple[list[int], list[int | None]]:
    """Return the ids of words joined by spaces, and the word of each: None for what belongs to none."""
    check_integer("max_length", max_length)
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="words need one")
    text = " ".join(words)
    word_of: list[int | None] = []
    for number, word in enumerate(words):
        word_of += [*[number] * len(word), None]
    spans = model.tokenizer.offsets(text)[:max_length]
    # A token belongs to the word of its last letter.
    pieces = [word_of[end - 1] if end > start else None for start, end in spans]
    return model.tokenizer.encode(text)[:max_length], pieces


def _encode(model: Model, sentence: Tagged, max_length: int) -> Encoded:
    """Return the ids of a sentence, where the last piece of each word stands, and words and tags that fit."""
    words, tags = (sentence.words, sentence.tags) if isinstance(sentence, Sentence) else _pair(sentence)
    if len(words) != len(tags):
        raise InputError(f"a sentence has {len(words)} words and {len(tags)} tags", hint="give one for each")
    ids, pieces = word_pieces(model, words, max_length)
    last = {word: at for at, word in enumerate(pieces) if word is not None}
    if len(ids) == max_length and last:
        last.pop(max(last))  # it may go on
    whole = sorted(last)
    return ids, [last[w] for w in whole], [words[w] for w in whole], [tags[w] for w in whole]


def _pair(sentence: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words and tags of a pair; raise InputError for a text or for one label of a sentence."""
    match sentence:
        case [words, tags] if not any(isinstance(x, str) or not isinstance(x, Sequence) for x in sentence):
            return words, tags
    raise InputError(
        f"{sentence!r:.80} is not a list of words with a tag for each word",
        hint="give (['A', 'word'], ['DET', 'NOUN']); one label of a whole text is for a classifier, which "
        "`heed finetune` trains",
    )


def assign_group_folds(groups: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold that holds each row out: rows of one group together."""
    order = seeded_generator(seed, FOLD_SEED).permutation(int(groups.max()) + 1)
    return np.asarray((np.argsort(order) % folds)[groups])


def control_labels(words: Sequence[str], labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return a label for each word, drawn as often as labels occur: the same one wherever the word stands."""
    draw = seeded_generator(seed, CONTROL_SEED)
    own = {word: int(labels[draw.integers(len(labels))]) for word in sorted(set(words))}
    return np.array([own[word] for word in words])


def _held_out_accuracy(
    x: Tensor, labels: Tensor, classes: int, folds: NDArray[np.int64], penalty: float
) -> Tensor:
    """(F,): the share of right answers in each fold by a probe that did not see it."""
    out = []
    for fold in range(int(folds.max()) + 1):
        test = torch.from_numpy(folds == fold)
        weights = fit_logistic(x[~test], labels[~test], classes, penalty, iterations=ITERATIONS)
        right = F.linear(x[test], *weights).argmax(1) == labels[test]
        out.append(right.double().mean())
    return torch.stack(out)
