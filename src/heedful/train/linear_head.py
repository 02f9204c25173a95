"""A linear head on sentence vectors: how a few rows are learnt, and how well, by cross-validation.

    p = softmax(W v + b),  v the sentence vector of length 1:   min  Σ −log p(label) + λ/2 ‖W‖²

All weights of a model overfit a few dozen rows, and a fifth of those cannot tell which weights are good. A
logistic regression on the vectors of a frozen model cannot overfit as much, and its λ is chosen by rows that
were held out. Where several labels may hold at once, p = σ(W v + b) for each of them.

The vectors themselves can be tuned first, on pairs: texts of one class come near each other and away from
those of other classes. A few rows give many pairs, which is why so few suffice (Tunstall et al. 2022):

    loss = −Σ_i mean_{j ∈ P(i)} log softmax_{k ≠ i}(v_i·v_k / τ)_j,   P(i) the other texts of i's class

(Khosla et al. 2020, eq. 2). The blocks learn; the table of tokens does not, since most words are in none of
the rows. Tuning is repeated for each fold without the rows that the fold holds out and that score it. The
model gets the mean of these weights, and the head is fitted to all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.progress import report_progress
from heedful.data.batch import Batch
from heedful.data.batches import BalancedOrder, Batches, seeded_generator
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import Term, extra_of, promote_float32
from heedful.weights.loading import with_head

FOLDS = 5
PENALTIES = (3.0, 1.0, 0.3, 0.1)  # λ, the strongest first: of equally good ones it is taken
FOLD_SEED = 0xF01D
MAX_ITERATIONS = 200
TUNED_PENALTY = 0.3  # λ on tuned vectors, which lie so far apart that it hardly matters
TUNED_FOLDS = 3
REPEATS = 4  # cross-validations of a frozen model over other folds, whose mean varies less
MAX_REPEATED_ROWS = 500
TEMPERATURE = 0.1
STEPS = 20
LEARNING_RATE = 1e-4
MIN_BATCH, MAX_BATCH = 16, 48  # rows of a step; their pairs are compared with each other
STEP_TOKENS = 1024  # of long texts a step has fewer
LENGTH_GROUPS = 4  # in which the rows of a step are read
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class CrossValidation:
    """Logits of rows by heads that had not seen them, and the choice that did best on them.

    A row may be held out several times, in different folds.
    """

    rows: list[int]  # by their numbers, those that were held out
    logits: Tensor  # (len(rows), C)
    choice: int  # which candidate the final head is fitted by
    folds: int
    group_sizes: tuple[int, ...] = ()  # of the rows held out together; (): each row by itself

    @property
    def trials(self) -> float:
        """How many independent predictions they count as: n/(1 + k/(k − 1))   (Nadeau and Bengio 2003)

        The heads of k folds share most of their rows. Rows of a group may be right or wrong together:
        n = (Σ m)²/Σ m² for groups of m rows   (Kish 1965), which is the number of rows if each is alone.
        """
        sizes = np.array(self.group_sizes or (1,) * len(set(self.rows)), float)
        return float(sizes.sum() ** 2 / (sizes**2).sum()) / (1 + self.folds / (self.folds - 1))


def mean_loss(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """−log p of labels (N,), or of every label that may hold, targets (N, C); `weights` are of classes."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, weight=weights)
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights) * targets.shape[1]


def fit_logistic(
    x: Tensor, targets: Tensor, classes: int, penalty: float, start: tuple[Tensor, Tensor] | None = None,
    *, iterations: int = MAX_ITERATIONS, weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weight (C, D) and the bias (C,) of a logistic regression, by L-BFGS.

    `targets` are labels (N,), or (N, C) where several may hold at once.
    """
    zeros = (x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    weight, bias = (t.clone().requires_grad_() for t in (start or zeros))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, tolerance_grad=1e-5, history_size=10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        shrink = penalty / (2 * len(x)) * weight.square().sum()
        mean = mean_loss(F.linear(x, weight, bias), targets, weights) + shrink
        mean.backward()
        return mean

    search.step(loss)
    return weight.detach(), bias.detach()


def assign_folds(
    labels: NDArray[np.int64], seed: int, count: int = FOLDS, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the fold that holds each row out: every class in as many folds as it can be, from the first on.

    So a class is not rarer among the rows learnt where it is more frequent among those held out. Rows of one
    of the `groups` are held out together. The only row of its class, or the only group, is never held out
    (−1): nobody could have learnt it.
    """
    groups = np.arange(len(labels)) if groups is None else groups
    folds = np.full(len(labels), -1, dtype=np.int64)
    alone = [label for label in np.unique(labels) if len(np.unique(groups[labels == label])) < 2]
    placed = set(groups[np.isin(labels, alone)].tolist())
    for label in np.unique(labels):
        rows = seeded_generator(seed, FOLD_SEED, int(label)).permutation(np.flatnonzero(labels == label))
        order = [group for group in dict.fromkeys(groups[rows].tolist()) if group not in placed]
        for place, group in enumerate(order):
            folds[groups == group] = place % count
        placed |= set(order)
    return folds


# The rows to learn from, the rows held out → logits of these by every candidate, (candidates, N, C).
Predictor = Callable[[NDArray[np.int64], NDArray[np.int64]], Tensor]


def cross_validate(
    predict: Predictor, targets: Tensor, labels: NDArray[np.int64], seed: int, *, folds: int = FOLDS,
    repeats: int = 1, groups: NDArray[np.int64] | None = None,
) -> CrossValidation:  # fmt: skip
    """Predict every row by heads that did not see it.

    The candidate of a fold's prediction is chosen by the other folds, that of the final head by all of them:
    the one with the lowest loss. `labels` part the rows, so that every fold has some of each; rows of
    `targets` beyond them are never held out, and the caller may learn from them. Rows of one of the `groups`,
    which share a text, are held out together: else a head would have seen part of what it is scored on.
    """
    if groups is not None and assign_folds(labels, seed, folds, groups).max(initial=-1) < 1:
        groups = None  # too few to hold one out and learn from another
    predictions: list[tuple[NDArray[np.int64], Tensor, Tensor]] = []
    for repeat in range(repeats):
        fold_of = assign_folds(labels, seed + repeat, folds, groups)
        for fold in range(fold_of.max(initial=-1) + 1):
            valid = np.flatnonzero(fold_of == fold)
            logits = predict(np.flatnonzero(fold_of != fold), valid)
            losses = torch.stack([mean_loss(one, targets[valid]) * len(valid) for one in logits])
            predictions.append((valid, logits, losses))
            report_progress("folds", len(predictions), repeats * (int(fold_of.max()) + 1))
    losses = torch.stack([loss for *_, loss in predictions])  # (folds, candidates)
    per = len(predictions) // repeats
    rows: list[int] = []
    chosen = []
    for i, (valid, logits, _) in enumerate(predictions):
        first = i // per * per
        others = losses[first : first + per].sum(0) - losses[i]
        rows += valid.tolist()
        chosen.append(logits[int(others.argmin())])
    sizes = () if groups is None else np.unique(groups[sorted(set(rows))], return_counts=True)[1].tolist()
    return CrossValidation(rows, torch.cat(chosen), int(losses.sum(0).argmin()), per, tuple(sizes))


def fit_candidates(
    x: Tensor, targets: Tensor, classes: int, train: NDArray[np.int64], valid: NDArray[np.int64],
    weights: Tensor | None = None, penalties: Sequence[float] = PENALTIES,
) -> Tensor:  # fmt: skip
    """Return the logits of held-out rows by a head for each of the penalties, (P, N, C)."""
    start, logits = None, []
    for penalty in penalties:
        start = fit_logistic(x[train], targets[train], classes, penalty, start, weights=weights)
        logits.append(F.linear(x[valid], *start))
    return torch.stack(logits)


def put_linear_head(model: Model, labels: Sequence[str]) -> LM:
    """Return the same body under an untrained linear head on its sentence vectors, which alone may learn."""
    pooling = model.config.classifier_pooling or (model.pooling.mode if model.pooling else "mean")
    made = with_head(model, "classify", labels, classifier_pooling=pooling).to(model.device)
    assert isinstance(made, LM)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return made.eval()


@torch.no_grad()
def read_vectors(model: LM, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return what the linear head reads of every row, (N, D), and the rows' targets."""
    assert isinstance(model.head, SentenceHead)
    vectors, targets = [], []
    for batch in batches:
        there = batch.to(model.device)
        hidden = model.encode(there.tokens, valid=there.valid, types=there.types)
        vectors.append(model.head.vectors(hidden, there.valid).double().cpu())
        targets.append(there.extra["label"].cpu())
    return torch.cat(vectors), torch.cat(targets)


def estimate_tuning_seconds(model: LM, batches: Batches) -> float:
    """Return about how many seconds tuning takes; a step takes three times as long as reading its rows."""
    every = list(batches.once())
    tokens, rows = (sum(size(batch.tokens) for batch in every) for size in (Tensor.numel, len))
    filled = sum(batch.tokens.numel() if batch.valid is None else int(batch.valid.sum()) for batch in every)
    read_vectors(model, every[:1])  # the first reading takes longer
    began = time.perf_counter()
    read_vectors(model, every[:1])
    pace = (time.perf_counter() - began) / every[0].tokens.numel()
    step = min(count_step_rows(batches), rows) * filled / rows
    return pace * (TUNED_FOLDS * (3 * STEPS * step + tokens) + tokens)


def scale_vectors(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors of mean 0 and mean square length 1, which one λ suits, and their mean and scale."""
    mean = vectors.mean(0)
    scale = (vectors - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)
    return (vectors - mean) / scale, mean, scale


def fit_head(
    model: LM, vectors: Tensor, targets: Tensor, penalty: float, weights: Tensor | None = None
) -> None:
    """Fit the linear head of a model, in place, to sentence vectors (N, D) and their targets."""
    assert isinstance(model.head, SentenceHead)
    x, mean, scale = scale_vectors(vectors)
    weight, bias = fit_logistic(x, targets, model.config.labels, penalty, weights=weights)
    with torch.no_grad():
        model.head.linear.weight.copy_(weight / scale)
        model.head.linear.bias.copy_(bias - weight @ mean / scale)


def fit_linear_head(
    model: LM, batches: Batches, seed: int, *, pairs: bool, names: int = 0,
    class_weights: Sequence[float] | None = None, groups: NDArray[np.int64] | None = None,
    announce: Callable[[CrossValidation, float], None] | None = None,
) -> tuple[CrossValidation, float]:  # fmt: skip
    """Fit the linear head of a model on all rows; return its cross-validation and the λ that it chose.

    With `pairs` the model's blocks are tuned first; `announce` is called before with what a head on frozen
    vectors gets and how many seconds the tuning takes. The last `names` rows are names of classes: they are
    learnt from, and never held out. Rows of one of the `groups` are held out together.
    """
    frozen, targets = read_vectors(model, batches.once())
    classes = model.config.labels
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=frozen.dtype)
    if targets.dim() == 2:
        targets = targets.to(frozen.dtype)
    labels = targets.numpy() if targets.dim() == 1 else np.zeros(len(targets), np.int64)
    rows, always = len(targets) - names, np.arange(len(targets) - names, len(targets))
    blocks, tuned = block_weights(model), list[Weights]()
    before = clone_weights(blocks) if pairs else {}
    penalties = (TUNED_PENALTY,) if pairs else PENALTIES

    def predict_frozen(train: NDArray[np.int64], valid: NDArray[np.int64]) -> Tensor:
        """Logits of held-out rows by every penalty."""
        x, train = scale_vectors(frozen)[0], np.concatenate([train, always])
        return fit_candidates(x, targets, classes, train, valid, weights, penalties)

    def predict_tuned(train: NDArray[np.int64], valid: NDArray[np.int64]) -> Tensor:
        """The same, by vectors whose tuning did not see these rows either."""
        train = np.concatenate([train, always])
        tune_on_pairs(model, batches, train.tolist(), labels, seed + len(tuned))
        tuned.append(clone_weights(blocks))
        x = scale_vectors(read_vectors(model, batches.once())[0])[0]
        set_weights(blocks, [before])
        return fit_candidates(x, targets, classes, train, valid, weights, penalties)

    validate = partial(cross_validate, targets=targets, labels=labels[:rows], seed=seed, groups=groups)
    if pairs:
        if announce is not None:
            announce(validate(predict_frozen, folds=TUNED_FOLDS), estimate_tuning_seconds(model, batches))
        validation = validate(predict_tuned, folds=TUNED_FOLDS)
        set_weights(blocks, tuned)
    else:
        validation = validate(predict_frozen, repeats=1 if rows > MAX_REPEATED_ROWS else REPEATS)
    penalty = penalties[validation.choice]
    vectors = read_vectors(model, batches.once())[0] if pairs else frozen
    fit_head(model, vectors, targets, penalty, weights)
    return validation, penalty


def pairs_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ_i mean_{j ∈ P(i)} log softmax_{k ≠ i}(v_i·v_k / τ)_j; a row without a partner counts nothing."""
    assert isinstance(model, LM)
    assert isinstance(model.head, SentenceHead)
    groups, labels = [], extra_of(batch, "label")
    parts = group_by_length(batch)
    for rows, width in parts:
        tokens, valid, types = (
            None if part is None else part[rows, :width] for part in (batch.tokens, batch.valid, batch.types)
        )
        assert tokens is not None
        groups.append(model.head.vectors(model.encode(tokens, valid=valid, types=types), valid))
    vectors, labels = promote_float32(torch.cat(groups)), labels[torch.cat([rows for rows, _ in parts])]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    partner = (labels[:, None] == labels[None, :]) & ~itself  # (B, B)
    logs = (vectors @ vectors.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(1)
    mean = logs.masked_fill(~partner, 0.0).sum(1) / partner.sum(1).clamp(min=1)
    return {"pairs": Term(-mean.sum(), "row")}


def group_by_length(batch: Batch) -> list[tuple[Tensor, int]]:
    """Part the rows of a batch into groups of similar length, and say how wide each is; little is padding."""
    if batch.valid is None:
        return [(torch.arange(len(batch.tokens), device=batch.tokens.device), batch.tokens.shape[1])]
    last = batch.valid.int().cumsum(1).argmax(1) + 1  # how far a row reaches, wherever its padding stands
    return [(rows, int(last[rows].max())) for rows in last.argsort().chunk(LENGTH_GROUPS)]


def block_weights(model: LM) -> Weights:
    """Return the parameters of the blocks, not copied."""
    return {name: p for name, p in model.named_parameters() if name.startswith("blocks.")}


def clone_weights(weights: Weights) -> Weights:
    """Return a copy of parameters."""
    return {name: p.detach().clone() for name, p in weights.items()}


@torch.no_grad()
def set_weights(weights: Weights, values: Sequence[Weights]) -> None:
    """Give parameters the mean of some values   (Wortsman et al. 2022)"""
    for name, parameter in weights.items():
        parameter.copy_(torch.stack([value[name] for value in values]).mean(0))


def count_step_rows(batches: Batches) -> int:
    """Return how many rows a step compares: fewer of long texts."""
    longest = max(batch.tokens.shape[1] for batch in batches.once())
    return min(max(STEP_TOKENS // longest, MIN_BATCH), MAX_BATCH)


def tune_on_pairs(
    model: LM, batches: Batches, rows: Sequence[int], labels: NDArray[np.int64], seed: int
) -> None:
    """Teach the blocks, in place, to put these rows near those of their class."""
    weights = block_weights(model)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    order = BalancedOrder(rows, labels, count_step_rows(batches), seed)
    config = TrainConfig(
        steps=STEPS, lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=STEPS // 10, seed=seed, compile=False, graph=False,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in weights)
    for _ in fit(model, pairs_loss, replace(batches, order=order), config):
        pass
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning)
    model.eval()
