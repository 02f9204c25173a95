"""Beam search: the W best texts so far, each time one token longer (Sutskever et al. 2014 §3.2).

    score(Y) = log P(Y | X) / |Y|^penalty  +  coverage · Σ_i log min(Σ_t pattern_ti, 1)

The length penalty is that of `transformers`; the coverage term (Wu et al. 2016, eq. 14), over the mean cross-
attention pattern of all heads and layers, is added when a text is finished. With several groups each searches
with its share of the beams, and a token that an earlier group chose at this step costs `diversity`
(Vijayakumar et al. 2018, eq. 5 with Hamming distance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from heedful.decode.request import Prompts, Request, max_new_tokens, prefix_ids
from heedful.decode.stepper import EagerStepper, Stepper, evaluation_mode
from heedful.errors import InputError
from heedful.models.base import Seq2Seq
from heedful.nn.context import Watch

DEAD = -1e8  # no text has so low a score; what lies below was forbidden or never begun


@dataclass(frozen=True)
class Beams:
    """How wide and how long to search.

    A search ends when no running text can beat the worst of the W finished ones. How well one could still do
    is guessed from its present length; with early_stopping="never" from the length that would suit it best;
    with True the search ends as soon as W texts are finished.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    groups: int = 1
    diversity: float = 0.0
    coverage: float = 0.0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"beams={self.width} keeps no text", hint="give at least 1")
        if self.early_stopping not in (True, False, "never"):
            raise InputError(f"early_stopping={self.early_stopping!r} must be True, False or 'never'")
        if self.groups < 1 or self.width % self.groups:
            raise InputError(f"groups={self.groups} does not divide beams={self.width}", hint="it must")
        if self.groups > 1 and self.diversity <= 0:
            raise InputError(
                f"groups={self.groups} without diversity search alike", hint="give diversity above 0"
            )
        if self.groups == 1 and self.diversity:
            raise InputError(f"diversity={self.diversity} keeps groups apart", hint="give groups=2 or more")
        if self.coverage < 0:
            raise InputError(f"coverage={self.coverage} must be 0 or above")
        if not math.isfinite(self.length_penalty):
            raise InputError(
                f"length_penalty={self.length_penalty} must be finite", hint="0 leaves scores alone"
            )

    @property
    def share(self) -> int:
        """Beams per group."""
        return self.width // self.groups


@dataclass
class Running:
    """A text that may go on; `beam` is the row of the batch it continues."""

    score: float
    ids: list[int]
    beam: int
    guided: Any = None


class Tried(NamedTuple):
    """A continuation that was weighed: `beam` is the running text it continues, by its place in the step
    before; one that ends has its `final` score.
    """

    score: float
    beam: int
    token: int
    fate: Literal["runs", "ends", "pruned"]
    final: float | None = None


class Hunt:
    """The search of one group for one prompt: what runs, what is finished, whether it goes on.

    `steps` holds what was weighed at each step, best first.
    """

    def __init__(self, wide: Beams, asked: Request, limit: int) -> None:
        self.wide, self.asked, self.limit = wide, asked, limit
        self.running = [Running(0.0, [], 0, None if asked.guide is None else asked.guide.start())]
        self.finished: list[tuple[float, list[int]]] = []
        self.steps: list[list[Tried]] = []
        self.open = True

    def extend(self, candidates: list[tuple[float, int, int]], covered: list[float]) -> None:
        """Take the best continuations (score, running text, token), best first."""
        before, self.running = self.running, []
        tried: list[Tried] = []
        for rank, (score, beam, token) in enumerate(candidates):
            if score < DEAD:
                continue
            if len(self.running) == self.wide.share:
                tried.append(Tried(score, beam, token, "pruned"))
                continue
            parent = before[beam]
            ids, guide = [*parent.ids, token], self.asked.guide
            guided = None if guide is None else guide.next(parent.guided, token)
            done = token in self.asked.eos or len(ids) >= self.limit
            if not (done or (guide is not None and guide.complete(guided))):
                self.running.append(Running(score, ids, parent.beam, guided))
                tried.append(Tried(score, beam, token, "runs"))
            elif rank < self.wide.share:
                final = score / len(ids) ** self.wide.length_penalty + covered[beam]
                self.finished.append((final, ids))
                tried.append(Tried(score, beam, token, "ends", final))
            else:
                tried.append(Tried(score, beam, token, "pruned"))
        self.steps.append(tried)
        self.finished = sorted(self.finished, key=lambda f: -f[0])[: self.wide.share]
        self.open = self._open()

    def _open(self) -> bool:
        if not self.running:
            return False
        if len(self.finished) < self.wide.share:
            return True
        hopeful = self.wide.early_stopping == "never" and self.wide.length_penalty > 0
        length = self.limit if hopeful else len(self.running[0].ids)
        best = self.running[0].score / length**self.wide.length_penalty
        return self.wide.early_stopping is not True and best > self.finished[-1][0]


def search(
    stepper: Stepper, given: Prompts, asked: Request, wide: Beams
) -> list[list[tuple[float, list[int]]]]:
    """For each prompt its finished texts as (score, ids), best first; the end token is kept."""
    found = hunted(stepper, given, asked, wide)
    return [sorted((f for h in row for f in h.finished), key=lambda f: -f[0]) for row in found]


def hunted(stepper: Stepper, given: Prompts, asked: Request, wide: Beams) -> list[list[Hunt]]:
    """The searches themselves, one for each prompt and group, when they have come to their end."""
    model, W = stepper.model, wide.width
    groups = range(wide.groups)
    hunts = [[Hunt(wide, asked, max_new_tokens(model, asked, len(ids))) for _ in groups] for ids in given.ids]
    prompts = [prefix_ids(model, ids) for ids in given.ids]
    tokens, valid = given.padded(model.device)
    index = torch.arange(len(hunts), device=model.device).repeat_interleave(W)
    length = max(map(len, prompts)) + max(row[0].limit for row in hunts)
    cover = Coverage(stepper, tokens, valid) if wide.coverage else None
    if stepper.fixed:
        logits = stepper.prefill(tokens[index], None if valid is None else valid[index], length)
    else:
        logits = stepper.prefill(tokens, valid, length)
        stepper.reorder(index)
        logits = logits[index]
    if cover is not None:
        cover.reorder(index)
    looking = list(range(len(hunts)))  # the prompts whose search goes on, in the order of the batch
    while True:
        extend_all(logits, [hunts[i] for i in looking], [prompts[i] for i in looking], asked, wide, cover)
        open_now = [i for i in looking if any(h.open for h in hunts[i])]
        if not open_now:
            return hunts
        kept = looking if stepper.fixed else open_now
        parents, chosen = continued([hunts[i] for i in kept], [looking.index(i) for i in kept], wide)
        stepper.reorder(torch.tensor(parents, device=model.device))
        new = torch.tensor(chosen, device=model.device)
        if cover is None:
            logits = stepper.step(new)
        else:
            cover.reorder(torch.tensor(parents, device=model.device))
            logits = cover.step(new)
        looking = kept


def extend_all(
    logits: Tensor,
    hunts: list[list[Hunt]],
    prompts: list[list[int]],
    asked: Request,
    wide: Beams,
    cover: Coverage | None,
) -> None:
    """One step of every search: the best continuations of each group, the groups one after another."""
    W, share, V = wide.width, wide.share, logits.shape[1]
    logs = ruled(logits.float().log_softmax(-1), hunts, prompts, asked, wide).unflatten(0, (-1, W))
    covered = [0.0] * (len(hunts) * W) if cover is None else (cover.penalty() * wide.coverage).tolist()
    taken = torch.zeros(len(hunts), V, device=logits.device)
    many = min(max(2, 1 + len(asked.eos)) * share, share * V)
    for g in range(wide.groups):
        here = slice(g * share, (g + 1) * share)
        known = [[t.score for t in row[g].running] for row in hunts]  # one copy to the device, not one a row
        scores = logs.new_tensor([some + [-math.inf] * (share - len(some)) for some in known])
        total = logs[:, here] + scores[..., None] - wide.diversity * taken[:, None]
        best = total.flatten(1).topk(many)
        ranked = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for r, (row, (values, places)) in enumerate(zip(hunts, ranked, strict=True)):
            if not row[g].open:
                continue
            found = [(v, p // V, p % V) for v, p in zip(values, places, strict=True)]
            row[g].extend(found, covered[r * W + g * share : r * W + (g + 1) * share])
            for text in row[g].running if wide.groups > 1 else ():  # else nobody looks
                taken[r, text.ids[-1]] += 1


def ruled(
    logs: Tensor, hunts: list[list[Hunt]], prompts: list[list[int]], asked: Request, wide: Beams
) -> Tensor:
    """Log-probabilities after penalties, bias, n-grams and the guide, before they add up."""
    if not asked.sampling.changes and asked.guide is None:
        return logs
    texts: list[list[int]] = []
    for prompt, row in zip(prompts, hunts, strict=True):
        for hunt in row:
            some = [t.ids for t in hunt.running] or [[]]
            texts += [prompt + ids for ids in (some * wide.share)[: wide.share]]
    written = max(len(t.ids) for row in hunts for h in row for t in h.running)
    longest = max(map(len, texts))
    seen = torch.tensor([[-1] * (longest - len(t)) + t for t in texts], dtype=torch.long, device=logs.device)
    logs = asked.sampling.penalised(logs, seen, written)
    if asked.guide is not None:
        for r, row in enumerate(hunts):
            for g, hunt in enumerate(row):
                for w, text in enumerate(hunt.running):
                    allowed = asked.guide.allowed(text.guided).to(logs.device)
                    logs[r * wide.width + g * wide.share + w].masked_fill_(~allowed, -math.inf)
    return logs


def continued(hunts: list[list[Hunt]], places: list[int], wide: Beams) -> tuple[list[int], list[int]]:
    """Which row of the batch each beam continues, and with which token; an empty place repeats one."""
    parents, chosen = [], []
    for place, row in zip(places, hunts, strict=True):
        for g, hunt in enumerate(row):
            first = place * wide.width + g * wide.share
            for w in range(wide.share):
                text = hunt.running[w] if w < len(hunt.running) else None
                parents.append(first + (0 if text is None else text.beam))
                chosen.append(0 if text is None else text.ids[-1])
            for w, text in enumerate(hunt.running):
                text.beam = w
    return parents, chosen


class Coverage:
    """How much each word of the source was looked at, (B·W, S): Σ_t of the mean cross-attention pattern."""

    NAMES = ("decoder.*.cross.pattern", "decoder.[0-9].pattern")

    def __init__(self, stepper: Stepper, source: Tensor, valid: Tensor | None) -> None:
        if not isinstance(stepper, EagerStepper) or not isinstance(stepper.model, Seq2Seq):
            raise InputError(
                "coverage looks at cross-attention", hint="give an encoder-decoder, and no fast path"
            )
        self.stepper: EagerStepper = stepper
        self.valid: Tensor = torch.ones_like(source, dtype=torch.bool) if valid is None else valid
        first = source.new_full((len(source), 1), stepper.model.start_token)
        watch = Watch(*self.NAMES)
        with torch.no_grad(), evaluation_mode(stepper.model):
            stepper.model(source, first, valid=valid, watch=watch)
        if not len(watch):
            raise InputError(
                f"{stepper.model.family.name} shows no cross-attention", hint="leave coverage out"
            )
        self.total: Tensor = self._looked(watch)

    def _looked(self, watch: Watch) -> Tensor:
        return torch.stack([watch[name].float().mean((1, 2)) for name in watch]).mean(0)

    def reorder(self, index: Tensor) -> None:
        self.total, self.valid = self.total[index], self.valid[index]

    def step(self, tokens: Tensor) -> Tensor:
        watch = Watch(*self.NAMES)
        logits = self.stepper.step(tokens, watch)
        self.total = self.total + self._looked(watch)
        return logits

    def penalty(self) -> Tensor:
        """Σ_i log min(Σ_t pattern_ti, 1), one per beam."""
        return self.total.clamp(1e-9, 1).log().masked_fill(~self.valid, 0.0).sum(-1)
