"""Beam search: the W best texts so far, each time one token longer (Sutskever et al. 2014 §3.2).

    score(Y) = log P(Y | X) / |Y|^penalty  +  coverage · Σ_i log min(Σ_t pattern_ti, 1)

The length penalty is that of `transformers`; the coverage term (Wu et al. 2016, eq. 14), over the mean cross-
attention pattern of all heads and layers, is added when a text is finished. With several groups each searches
with its share of the beams, and a token that an earlier group chose at this step costs `diversity`
(Vijayakumar et al. 2018, eq. 5 with Hamming distance).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.padding import pad_rows
from heedful.core.progress import report_progress
from heedful.decode.request import Prompts, Request, max_new_tokens, prefix_ids
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import Seq2Seq, evaluation_mode
from heedful.nn.context import Watch

MIN_SCORE = -1e8  # no text has so low a score; what lies below was forbidden or never begun


@dataclass(frozen=True)
class BeamSettings:
    """The width of a beam search, and when it ends.

    It ends when no running text can beat the worst of the W finished ones. How well one could still do
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
class Hypothesis:
    """A text that may go on; `beam` is the row of the batch it continues."""

    score: float
    ids: list[int]
    beam: int
    guided: Any = None


class Candidate(NamedTuple):
    """A continuation that was scored: `beam` is the index of the hypothesis it continues.

    One that ends has its `final` score.
    """

    score: float
    beam: int
    token: int
    fate: Literal["runs", "ends", "pruned"]
    final: float | None = None


class BeamState:
    """The search of one group for one prompt: what runs, what is finished, whether it goes on.

    `steps` holds the candidates of each step, best first.
    """

    def __init__(self, beams: BeamSettings, request: Request, limit: int) -> None:
        self.beams, self.request, self.limit = beams, request, limit
        self.running = [Hypothesis(0.0, [], 0, None if request.guide is None else request.guide.start())]
        self.finished: list[tuple[float, list[int]]] = []
        self.steps: list[list[Candidate]] = []
        self.open = True

    def extend(self, candidates: list[tuple[float, int, int]], coverage_scores: list[float]) -> None:
        """Take the best continuations as (score, hypothesis, token), best first."""
        before, self.running = self.running, []
        seen: list[Candidate] = []
        for rank, (score, beam, token) in enumerate(candidates):
            if score < MIN_SCORE:
                continue
            if len(self.running) == self.beams.share:
                seen.append(Candidate(score, beam, token, "pruned"))
                continue
            parent = before[beam]
            ids, guide = [*parent.ids, token], self.request.guide
            guided = None if guide is None else guide.next(parent.guided, token)
            done = token in self.request.eos or len(ids) >= self.limit
            if not (done or (guide is not None and guide.complete(guided))):
                self.running.append(Hypothesis(score, ids, parent.beam, guided))
                seen.append(Candidate(score, beam, token, "runs"))
            elif rank < self.beams.share:
                final = score / len(ids) ** self.beams.length_penalty + coverage_scores[beam]
                self.finished.append((final, ids))
                seen.append(Candidate(score, beam, token, "ends", final))
            else:
                seen.append(Candidate(score, beam, token, "pruned"))
        self.steps.append(seen)
        self.finished = sorted(self.finished, key=lambda f: -f[0])[: self.beams.share]
        self.open = self._open()

    def _open(self) -> bool:
        if not self.running:
            return False
        if len(self.finished) < self.beams.share:
            return True
        hopeful = self.beams.early_stopping == "never" and self.beams.length_penalty > 0
        length = self.limit if hopeful else len(self.running[0].ids)
        best = self.running[0].score / length**self.beams.length_penalty
        return self.beams.early_stopping is not True and best > self.finished[-1][0]


def run_beam_search(
    stepper: Stepper, prompts: Prompts, request: Request, beams: BeamSettings
) -> list[list[BeamState]]:
    """Search to the end and return the states, one for each prompt and group."""
    model, W = stepper.model, beams.width
    groups = range(beams.groups)
    searches = [
        [BeamState(beams, request, max_new_tokens(model, request, len(ids))) for _ in groups]
        for ids in prompts.ids
    ]
    prefixes = [prefix_ids(model, ids) for ids in prompts.ids]
    length = max(map(len, prefixes)) + max(row[0].limit for row in searches)
    cover = Coverage(stepper, *prompts.padded(model.device)) if beams.coverage else None
    logits = prompts.prefill(stepper, W, length)
    if cover is not None:
        cover.reorder(prompts.row_index(W, model.device))
    active = list(range(len(searches)))  # the prompts whose search goes on, in the order of the batch
    for written in itertools.count(1):
        extend_all(
            logits, [searches[i] for i in active], [prefixes[i] for i in active], request, beams, cover
        )
        report_progress("tokens", written, searches[active[0]][0].limit)
        still_open = [i for i in active if any(h.open for h in searches[i])]
        if not still_open:
            break
        kept = active if stepper.fixed_batch else still_open
        parents, chosen = select_parents([searches[i] for i in kept], [active.index(i) for i in kept], beams)
        stepper.reorder(torch.tensor(parents, device=model.device))
        new = torch.tensor(chosen, device=model.device)
        if cover is None:
            logits = stepper.step(new)
        else:
            cover.reorder(torch.tensor(parents, device=model.device))
            logits = cover.step(new)
        active = kept
    return searches


def extend_all(
    logits: Tensor,
    searches: list[list[BeamState]],
    prefixes: list[list[int]],
    request: Request,
    beams: BeamSettings,
    cover: Coverage | None,
) -> None:
    """Extend every search by one step, the groups one after another."""
    W, share, V = beams.width, beams.share, logits.shape[1]
    logs = apply_rules(logits.float().log_softmax(-1), searches, prefixes, request, beams)
    logs = logs.unflatten(0, (-1, W))
    rows = len(searches) * W
    coverage = [0.0] * rows if cover is None else (cover.penalty() * beams.coverage).tolist()
    taken = torch.zeros(len(searches), V, device=logits.device)
    count = min(max(2, 1 + len(request.eos)) * share, share * V)
    for g in range(beams.groups):
        here = slice(g * share, (g + 1) * share)
        known = [[t.score for t in row[g].running] for row in searches]
        padded = [row + [-math.inf] * (share - len(row)) for row in known]
        scores = logs.new_tensor(padded)  # one copy to the device, not one a row
        total = logs[:, here] + scores[..., None] - beams.diversity * taken[:, None]
        best = total.flatten(1).topk(count)
        ranked = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for r, (row, (values, indices)) in enumerate(zip(searches, ranked, strict=True)):
            if not row[g].open:
                continue
            found = [(v, p // V, p % V) for v, p in zip(values, indices, strict=True)]
            row[g].extend(found, coverage[r * W + g * share : r * W + (g + 1) * share])
            for text in row[g].running if beams.groups > 1 else ():  # else nobody looks
                taken[r, text.ids[-1]] += 1


def apply_rules(
    logs: Tensor,
    searches: list[list[BeamState]],
    prefixes: list[list[int]],
    request: Request,
    beams: BeamSettings,
) -> Tensor:
    """Return the log-probabilities after penalties, bias, n-grams and the guide, before they add up."""
    if not request.sampling.changes and request.guide is None:
        return logs
    texts: list[list[int]] = []
    for prefix, row in zip(prefixes, searches, strict=True):
        for group in row:
            some = [t.ids for t in group.running] or [[]]
            texts += [prefix + ids for ids in (some * beams.share)[: beams.share]]
    written = max(len(t.ids) for row in searches for h in row for t in h.running)
    seen = torch.from_numpy(pad_rows(texts, -1, left=True)).to(logs.device)
    logs = request.sampling.apply_penalties(logs, seen, written)
    if request.guide is not None:
        for r, row in enumerate(searches):
            for g, group in enumerate(row):
                for w, text in enumerate(group.running):
                    allowed = request.guide.allowed_tokens(text.guided).to(logs.device)
                    logs[r * beams.width + g * beams.share + w].masked_fill_(~allowed, -math.inf)
    return logs


def select_parents(
    searches: list[list[BeamState]], rows: list[int], beams: BeamSettings
) -> tuple[list[int], list[int]]:
    """Return which row of the batch each beam continues and with which token; unused beams repeat one."""
    parents, chosen = [], []
    for number, row in zip(rows, searches, strict=True):
        for g, group in enumerate(row):
            first = number * beams.width + g * beams.share
            for w in range(beams.share):
                text = group.running[w] if w < len(group.running) else None
                parents.append(first + (0 if text is None else text.beam))
                chosen.append(0 if text is None else text.ids[-1])
            for w, text in enumerate(group.running):
                text.beam = w
    return parents, chosen


class Coverage:
    """The attention each source token has received: Σ_t of the mean cross-attention pattern, (B·W, S)."""

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
        self.total: Tensor = self._mean_pattern(watch)

    def _mean_pattern(self, watch: Watch) -> Tensor:
        return torch.stack([watch[name].float().mean((1, 2)) for name in watch]).mean(0)

    def reorder(self, index: Tensor) -> None:
        self.total, self.valid = self.total[index], self.valid[index]

    def step(self, tokens: Tensor) -> Tensor:
        watch = Watch(*self.NAMES)
        logits = self.stepper.step(tokens, watch)
        self.total = self.total + self._mean_pattern(watch)
        return logits

    def penalty(self) -> Tensor:
        """Σ_i log min(Σ_t pattern_ti, 1), one per beam."""
        return self.total.clamp(1e-9, 1).log().masked_fill(~self.valid, 0.0).sum(-1)
