"""Objectives of training: functions of a model and a batch, and the loss that follows from their terms.

An objective gives terms. A term is a *sum* and names its divisor (answers, rows or tokens). `fit` divides by
the count of the whole accumulated batch, on all processes together. So splitting a batch changes nothing,
however ragged it is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Data, as_batches
from heedful.kernels.gpu.float8_product import Head8
from heedful.models.base import LM, Model, Seq2Seq
from heedful.models.permuted import PermutedLM
from heedful.nn.context import Watch
from heedful.nn.head import LMHead, PretrainHead, pool_tokens
from heedful.nn.quantised import Quantised
from heedful.train.crossentropy import linear_cross_entropy
from heedful.train.distributed import Processes

Per = Literal["label", "row", "token"]


@dataclass(frozen=True)
class Term:
    """A summed loss, what one divides it by, and its weight among the terms."""

    total: Tensor
    per: Per = "label"
    weight: float = 1.0


Objective = Callable[[Model, Batch], dict[str, Term]]
MeanLoss = Callable[[Model, Batch], Tensor]  # or an objective that has divided already: see as_terms


def as_terms(result: object, batch: Batch) -> dict[str, Term]:
    """Return the terms that an objective gave; a tensor is the mean loss of the rows of this batch."""
    terms = {"loss": result} if isinstance(result, Tensor) else result
    if not isinstance(terms, dict) or not terms:
        raise InputError(
            f"an objective returned {result!r:.80}",
            hint="return the mean loss as a tensor, or a dict of heedful.train.objectives.Term",
        )
    made: dict[str, Term] = {}
    for name, term in terms.items():
        if isinstance(term, Tensor) and term.dim() == 0:
            term = Term(term * len(batch), "row")
        if not isinstance(term, Term):
            kind = f"a tensor of shape {tuple(term.shape)}" if isinstance(term, Tensor) else repr(term)
            raise InputError(
                f"an objective returned {kind:.80} as {name!r}",
                hint="return one number, the mean loss, as a tensor without axes, or a Term",
            )
        made[name] = term
    return made


def counts(batch: Batch) -> dict[Per, int]:
    """Return the labels, rows and tokens of a batch, by which its terms are divided."""
    tokens = batch.tokens.numel() if batch.valid is None else int(batch.valid.sum())
    return {"label": batch.label_count, "row": len(batch), "token": tokens}


def hidden(model: Model, batch: Batch) -> Tensor:
    """Return the hidden states at the labels: of the one stack, or of the decoder."""
    if isinstance(model, Seq2Seq):
        if batch.target is None:
            raise InputError(
                "an encoder-decoder needs batches with a target: of data.parallel, data.spans or data.denoise"
            )
        if batch.documents is not None:
            raise InputError(
                "an encoder-decoder reads one text a row and this batch packs several",
                hint="build it with data.parallel, data.spans or data.denoise",
            )
        return model.hidden(batch.tokens, batch.target, valid=batch.valid, target_valid=batch.target_valid)
    assert isinstance(model, LM)
    return model.encode(batch.tokens, valid=batch.valid, types=batch.types, documents=batch.documents)


def batch_labels(batch: Batch) -> Tensor:
    """Return the labels, or raise InputError that says which data has them."""
    if batch.labels is None:
        raise InputError(
            "this objective needs labels and the batch has none",
            hint="build the batches with the matching data.… function",
        )
    return batch.labels


def extra_of(batch: Batch, name: str) -> Tensor:
    """Return a value of every row (label, score …), or raise InputError that says which data has it."""
    if name not in batch.extra:
        raise InputError(
            f"this objective needs a {name!r} of every row and the batch has none",
            hint="build the batches with the matching data.… function",
        )
    return batch.extra[name]


def _words(model: Model, x: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ −log p(label), through the head's own output matrix."""
    assert isinstance(model, LM | Seq2Seq)
    head = model.head.words
    # On a GPU asking how many labels count would make the host wait; there the kernel skips the others.
    if not (labels.is_cuda or torch.compiler.is_compiling()):
        chosen = labels != IGNORE
        if chosen.sum() * 2 < labels.numel():  # few answers: only they are multiplied out
            x, labels = x[chosen], labels[chosen]
    bias: Tensor | None = head.out.bias
    if isinstance(head, LMHead) and head.softcap is not None:  # not a product alone: all logits are held
        logits = promote_float32(head.logits(x)).flatten(0, -2)
        return F.cross_entropy(
            logits, labels.flatten(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
        )
    if isinstance(head, LMHead) and isinstance(head.shift, Tensor):
        bias = head.shift if bias is None else bias + head.shift
    eight = isinstance(head.out, Head8)
    matrix = head.out.dequantise(x.dtype) if isinstance(head.out, Quantised) else head.out.weight
    return linear_cross_entropy(head.features(x), matrix, bias, labels, smoothing, float8=eight)


def promote_float32(x: Tensor) -> Tensor:
    """Losses are taken in float32; a model in float64 keeps its digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def next_token(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(w_{t+1} | w_≤t)   (Bengio et al. 2003; GPT eq. 1)"""
    if isinstance(model, LM) and not model.causal:
        raise InputError(
            f"{model.family.name} reads both ways: it sees the word that it should predict",
            hint="train it by 'masked'",
        )
    return {"next_token": Term(_words(model, hidden(model, batch), batch_labels(batch)))}


def masked(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(w_t | the corrupted text) over the chosen positions   (Devlin et al. 2019 §3.1, task 1)"""
    return {"masked": Term(_words(model, hidden(model, batch), batch_labels(batch)))}


def permuted(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(w_t | the words before it in a drawn order)   (Yang et al. 2019 eq. 3)"""
    if not isinstance(model, PermutedLM):
        raise InputError(f"{model.family.name} predicts in no drawn order", hint="train it by 'masked'")
    order = extra_of(batch, "order")
    x = model.in_order(batch.tokens, order, valid=batch.valid, types=batch.types)
    return {"permuted": Term(_words(model, x, batch_labels(batch)))}


def masked_and_next(model: Model, batch: Batch) -> dict[str, Term]:
    """Masked words, and whether the second sentence follows the first   (Devlin et al. 2019 §3.1)"""
    head = model.head if isinstance(model, LM) else None
    if not isinstance(model, LM) or not isinstance(head, PretrainHead):
        raise InputError("masked_and_next needs a model with `head='pretrain'`")
    x, ctx = model.read(batch.tokens, valid=batch.valid, types=batch.types)
    follows = F.cross_entropy(
        promote_float32(head.next(x, ctx)), 1 - extra_of(batch, "follows").long(), reduction="sum"
    )
    return {"masked": Term(_words(model, x, batch_labels(batch))), "next": Term(follows, "row")}


def translate(model: Model, batch: Batch, smoothing: float = 0.1) -> dict[str, Term]:
    """−Σ log p(y_t | y_<t, x), smoothed   (Vaswani et al. 2017 §5.4)"""
    return {"translate": Term(_words(model, hidden(model, batch), batch_labels(batch), smoothing))}


def spans(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(the spans that were cut out | the rest)   (Raffel et al. 2020 §3.1.4)"""
    return {"spans": Term(_words(model, hidden(model, batch), batch_labels(batch)))}


def denoise(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(the text | its noised form)   (Lewis et al. 2020 §2.2)"""
    return {"denoise": Term(_words(model, hidden(model, batch), batch_labels(batch)))}


def replaced(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ binary cross-entropy of "this token was replaced"   (Clark et al. 2020 eq. 2)"""
    logits = logits_of(model, batch)
    truth = extra_of(batch, "replaced")
    keep = truth != IGNORE
    loss = F.binary_cross_entropy_with_logits(logits, truth.clamp(min=0).to(logits.dtype), reduction="none")
    return {"replaced": Term((loss * keep).sum(), "token")}


def classify(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(label | text), one label per row"""
    loss = F.cross_entropy(logits_of(model, batch), extra_of(batch, "label"), reduction="sum")
    return {"classify": Term(loss, "row")}


def adversarial(size: float = 1.0) -> Objective:
    """−Σ log p(y | x) − Σ log p(y | x + r),   r = size · g / ‖g‖,   g = ∂(−log p(y | x)) / ∂x

    x are the token vectors of a text and r the push of that length which hurts most, to first order
    (Miyato et al. 2017, arXiv 1605.07725, eq. 5). When a model is not training, the first sum alone.
    """
    if not 0 < size < math.inf:
        raise InputError(
            f"`size={size}` must be above 0: it is the distance by which the vectors of a text are moved"
        )

    def objective(model: Model, batch: Batch) -> dict[str, Term]:
        if not isinstance(model, LM):
            raise InputError(
                "adversarial training moves the vectors of one text", hint=f"{model.family.name} reads two"
            )

        def loss(watch: Watch) -> Tensor:
            logits = model(batch.tokens, valid=batch.valid, types=batch.types, watch=watch)
            return F.cross_entropy(promote_float32(logits), extra_of(batch, "label"), reduction="sum")

        vectors = Watch("embed.token")
        plain = loss(vectors)
        if not model.training:
            return {"classify": Term(plain, "row")}
        (slope,) = torch.autograd.grad(plain, vectors["embed.token"], retain_graph=True)
        length = torch.linalg.vector_norm(slope, dim=(1, 2), keepdim=True)
        push = size * slope / length.clamp(min=torch.finfo(slope.dtype).tiny)
        pushed = loss(Watch(edit={"embed.token": lambda x: x + push}))
        return {"classify": Term(plain, "row"), "adversarial": Term(pushed, "row")}

    return objective


def regress(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ (score − ŷ)², one score per row"""
    guess = logits_of(model, batch).squeeze(-1)
    score = extra_of(batch, "score").to(guess.dtype)
    return {"regress": Term(F.mse_loss(guess, score, reduction="sum"), "row")}


def tag(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ log p(label_t | text), one label per word"""
    logits, labels = logits_of(model, batch).flatten(0, 1), batch_labels(batch).flatten()
    return {"tag": Term(F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum"))}


def span(model: Model, batch: Batch) -> dict[str, Term]:
    """−½ Σ (log p(start) + log p(end)); no answer: both at the first token   (Devlin et al. 2019 §4.2–4.3)"""
    logits = logits_of(model, batch)  # (B, T, 2)
    if batch.valid is not None:
        logits = logits.masked_fill(~batch.valid[..., None], -1e9)
    first = F.cross_entropy(logits[..., 0], extra_of(batch, "start"), reduction="sum")
    last = F.cross_entropy(logits[..., 1], extra_of(batch, "end"), reduction="sum")
    return {"span": Term((first + last) / 2, "row")}


def contrast(model: Model, batch: Batch, scale: float = 20.0) -> dict[str, Term]:
    """−Σ log softmax_j(scale · cos(a_i, b_j))_i   (Henderson et al. 2017)

    Each sentence finds its partner in the batch. The other rows are the wrong answers, so this is the one
    objective that splitting a batch changes.
    """
    a = sentence_vectors(model, batch.tokens, batch.valid)
    b = sentence_vectors(model, extra_of(batch, "other_tokens"), batch.extra.get("other_valid"))
    scores = scale * F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t()
    truth = torch.arange(len(a), device=a.device)
    return {"contrast": Term(F.cross_entropy(promote_float32(scores), truth, reduction="sum"), "row")}


def sentence_vectors(model: Model, tokens: Tensor, valid: Tensor | None) -> Tensor:
    """The mean of the valid tokens' hidden states, (B, D)"""
    assert isinstance(model, LM)
    return pool_tokens(model.encode(tokens, valid=valid), valid, "mean")


def logits_of(model: Model, batch: Batch) -> Tensor:
    """Return the logits of a model's head in float32."""
    # Encoder-decoders tell no sentences apart.
    typed = {} if isinstance(model, Seq2Seq) else {"types": batch.types}
    logits: Tensor = model(batch.tokens, valid=batch.valid, **typed)
    return promote_float32(logits)


def distil(
    teacher: Model, temperature: float = 2.0, weights: tuple[float, float, float] = (5.0, 2.0, 1.0)
) -> Objective:
    """5 · KL(teacher_T ‖ student_T) T² + 2 · masked + 1 · (1 − cos(h, h_teacher))   (Sanh et al. 2019 §2)

    The weights are theirs. With rows of labels (batch.extra["label"]) in place of words, the first two terms
    speak of classes.
    """
    teacher.eval()
    soft, hard, cosine = weights

    def objective(model: Model, batch: Batch) -> dict[str, Term]:
        assert isinstance(model, LM)
        assert isinstance(teacher, LM)
        x, ctx = model.read(batch.tokens, valid=batch.valid, types=batch.types)
        with torch.no_grad():
            y, teacher_ctx = teacher.read(batch.tokens, valid=batch.valid, types=batch.types)
            wanted = teacher.head(y, teacher_ctx)
        got = model.head(x, ctx)
        per: Per = "row"
        if batch.labels is not None:
            chosen = batch.labels != IGNORE
            got, wanted, truth, per = got[chosen], wanted[chosen], batch.labels[chosen], "label"
        else:
            truth = extra_of(batch, "label")
        valid = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.valid is None else batch.valid
        same = F.cosine_similarity(promote_float32(x[valid]), promote_float32(y[valid]), dim=-1)
        return {
            "soft": Term(soft_cross_entropy(got, wanted, temperature), per, soft),
            "hard": Term(F.cross_entropy(promote_float32(got), truth, reduction="sum"), per, hard),
            "cosine": Term((1 - same).sum(), "token", cosine),
        }

    return objective


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² Σ KL(softmax(teacher/T) ‖ softmax(student/T))   (Hinton et al. 2015 §2)"""
    p, q = ((promote_float32(u) / temperature).log_softmax(-1) for u in (teacher, student))
    return F.kl_div(q, p, reduction="sum", log_target=True) * temperature**2


OBJECTIVES: dict[str, Objective] = {
    f.__name__: f
    for f in (
        next_token, masked, permuted, masked_and_next, translate, spans, denoise, replaced,
        classify, regress, tag, span, contrast,
    )
}  # fmt: skip


@overload
def objective(name: str | Objective) -> Objective: ...
@overload
def objective(name: str | Objective | MeanLoss) -> Objective | MeanLoss: ...
def objective(name: str | Objective | MeanLoss) -> Objective | MeanLoss:
    """Return an objective by its name; a function is returned as it is."""
    return name if callable(name) else OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


# The loss of a model by an objective: of one batch, as a module, and the mean over many.


class LossModule(nn.Module):
    """Σ weight · total / count over the terms of an objective: the loss that is stepped on and shown.

    Model and objective are one module, so that what wraps it (compiler, processes) sees the whole step.
    """

    def __init__(self, model: Model, purpose: Objective | MeanLoss) -> None:
        super().__init__()
        self.model, self.purpose = model, purpose

    def forward(self, batch: Batch, divide: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        terms = as_terms(self.purpose(self.model, batch), batch)
        shown = {name: term.total.detach() / divide[term.per] for name, term in terms.items()}
        parts = [term.weight * term.total / divide[term.per] for term in terms.values()]
        return torch.stack(parts).sum(), shown


@torch.no_grad()
def mean_losses(
    module: nn.Module,
    batches: Data,
    device: torch.device,
    *,
    dtype: str = "float32",
    max_batches: int | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Σ loss · answers / Σ answers, over all batches or the first; each term too if there are several."""
    processes = processes or Processes()
    sums: dict[str, float | Tensor] = {}
    for batch, weight in processes.turns(itertools.islice(as_batches(batches).once(), max_batches)):
        divide = {per: torch.full((), float(max(n, 1)), device=device) for per, n in counts(batch).items()}
        with autocast(device, dtype), attention_kernels(device):
            loss, terms = module(batch.to(device), divide)
        answers = weight * batch.label_count
        for name, value in {"answers": 1.0, "loss": loss, **(terms if len(terms) > 1 else {})}.items():
            sums[name] = sums.get(name, 0.0) + value * answers
    processes.settle()
    if not sums:
        raise InputError(
            f"an evaluation of `max_batches={max_batches}` reads nothing", hint="give at least 1, or None"
        )
    tensors = [torch.as_tensor(v, device=device).double() for v in sums.values()]
    answers, *values = processes.mean(torch.stack(tensors)).tolist()
    return {name: value / (answers or 1.0) for name, value in zip(list(sums)[1:], values, strict=True)}


def autocast(device: torch.device, dtype: str) -> contextlib.AbstractContextManager[None]:
    """Multiply matrices in bfloat16 if that is the dtype; weights and sums stay float32."""
    return contextlib.nullcontext() if dtype == "float32" else torch.autocast(device.type, torch.bfloat16)


def attention_kernels(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """On a GPU, cuDNN's attention before the others: faster where it applies; elsewhere nothing changes."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    kinds = [
        SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
    ]  # fmt: skip
    return sdpa_kernel(kinds, set_priority=True)
