"""Searches: texts that are looked for as a whole, and neither drawn nor taken token by token.

The most likely next token need not begin the most likely text. Beam search keeps the W best texts so far and
makes each one token longer at every step (Sutskever et al. 2014 §3.2). Texts of different lengths are
compared by

    score(Y) = log P(Y | X) / |Y|^penalty  +  coverage · Σ_i log min(Σ_t pattern_ti, 1)

because every further token lowers log P. The length penalty is that of `transformers`; the coverage term (Wu
et al. 2016, eq. 14), over the mean cross-attention pattern of all heads and layers, is added when a text is
finished. With several groups each searches with its share of the beams, and a token that an earlier group
chose at this step costs `diversity` (Vijayakumar et al. 2018, eq. 5 with Hamming distance). The search ends
when no running text can beat the worst of the W finished ones. How well one could still do is guessed from
its present length; with early_stopping="never" from the length that would suit it best; with True it ends as
soon as W texts are finished.

The most likely text is often dull and repeats itself. Contrastive search (Su et al. 2022, arXiv 2202.06417)
takes the token that is likely, but whose hidden state is unlike those of what was written before:

    x_t = argmax_{v ∈ top k}  (1 − α) p(v)  −  α max_j cos(h_v, h_j)          (eq. 5)

h are the last hidden states; that of a candidate comes from reading it, so each step reads k tokens at once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.padding import pad_rows
from heedful.core.progress import report_progress
from heedful.decode.request import Prompts, Request, max_new_tokens, prefix_ids
from heedful.decode.rows import Finish, Generation, decode_after
from heedful.decode.sampling import apply_penalties, check_tokens_left
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import LM, Seq2Seq, evaluation_mode
from heedful.nn.context import Watch

MIN_SCORE = -1e8  # no text has so low a score; what lies below was forbidden or never begun


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

    def __init__(self, request: Request, prefix: list[int], limit: int) -> None:
        self.request, self.prefix, self.limit = request, prefix, limit
        self.share = (request.settings.beams or 1) // request.settings.groups  # beams of the group
        self.running = [Hypothesis(0.0, [], 0, None if request.guide is None else request.guide.start())]
        self.finished: list[tuple[float, list[int]]] = []
        self.steps: list[list[Candidate]] = []

    def extend(self, candidates: list[tuple[float, int, int]], coverage_scores: list[float]) -> None:
        """Take the best continuations as (score, hypothesis, token), best first."""
        before, self.running = self.running, []
        seen: list[Candidate] = []
        for rank, (score, beam, token) in enumerate(candidates):
            if score < MIN_SCORE:
                continue
            if len(self.running) == self.share:
                seen.append(Candidate(score, beam, token, "pruned"))
                continue
            parent = before[beam]
            ids, guide = [*parent.ids, token], self.request.guide
            guided = None if guide is None else guide.next(parent.guided, token)
            done = token in self.request.eos or len(ids) >= self.limit
            if not (done or (guide is not None and guide.complete(guided))):
                self.running.append(Hypothesis(score, ids, parent.beam, guided))
                seen.append(Candidate(score, beam, token, "runs"))
            elif rank < self.share:
                final = score / len(ids) ** self.request.settings.length_penalty + coverage_scores[beam]
                self.finished.append((final, ids))
                seen.append(Candidate(score, beam, token, "ends", final))
            else:
                seen.append(Candidate(score, beam, token, "pruned"))
        self.steps.append(seen)
        self.finished = sorted(self.finished, key=lambda f: -f[0])[: self.share]

    @property
    def open(self) -> bool:
        """Whether the search goes on: a running text may still beat the worst of the finished ones."""
        if not self.running:
            return False
        if len(self.finished) < self.share:
            return True
        settings = self.request.settings
        hopeful = settings.early_stopping == "never" and settings.length_penalty > 0
        length = self.limit if hopeful else len(self.running[0].ids)
        best = self.running[0].score / length**settings.length_penalty
        return settings.early_stopping is not True and best > self.finished[-1][0]


def run_beam_search(stepper: Stepper, prompts: Prompts, request: Request) -> list[list[BeamState]]:
    """Search to the end and return the states, one for each prompt and group."""
    model, settings = stepper.model, request.settings
    W = settings.beams or 1
    searches: list[list[BeamState]] = []
    for ids in prompts.ids:
        prefix, limit = prefix_ids(model, ids), max_new_tokens(model, settings.max_tokens, len(ids))
        searches.append([BeamState(request, prefix, limit) for _ in range(settings.groups)])
    length = max(len(row[0].prefix) for row in searches) + max(row[0].limit for row in searches)
    stepper = CoverageStepper(stepper) if settings.coverage else stepper
    logits = prompts.prefill(stepper, W, length)
    active = list(range(len(searches)))  # the prompts whose search goes on, in the order of the batch
    for written in itertools.count(1):
        attended = stepper.penalty() * settings.coverage if isinstance(stepper, CoverageStepper) else None
        extend_all(logits, [searches[i] for i in active], attended)
        report_progress("tokens", written, searches[active[0]][0].limit)
        still_open = [i for i in active if any(h.open for h in searches[i])]
        if not still_open:
            break
        rest = active if stepper.fixed_batch else still_open
        parents, chosen = select_parents([searches[i] for i in rest], [active.index(i) for i in rest])
        stepper.reorder(torch.tensor(parents, device=model.device))
        logits = stepper.step(torch.tensor(chosen, device=model.device))
        active = rest
    return searches


def extend_all(logits: Tensor, searches: list[list[BeamState]], attended: Tensor | None) -> None:
    """Extend every search by one step, the groups one after another.

    `attended` (B·W,) is the coverage term of each beam.
    """
    request, share, V = searches[0][0].request, searches[0][0].share, logits.shape[1]
    settings = request.settings
    W = share * settings.groups
    logs = apply_rules(logits.float().log_softmax(-1), searches).unflatten(0, (-1, W))
    coverage = [0.0] * len(searches) * W if attended is None else attended.tolist()
    taken = torch.zeros(len(searches), V, device=logits.device)
    count = min(max(2, 1 + len(request.eos)) * share, share * V)
    for g in range(settings.groups):
        here = slice(g * share, (g + 1) * share)
        running = [[t.score for t in row[g].running] for row in searches]
        padded = [row + [-math.inf] * (share - len(row)) for row in running]
        scores = logs.new_tensor(padded)  # one copy to the device, not one a row
        total = logs[:, here] + scores[..., None] - settings.diversity * taken[:, None]
        best = total.flatten(1).topk(count)
        ranked = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for r, (row, (values, indices)) in enumerate(zip(searches, ranked, strict=True)):
            if not row[g].open:
                continue
            candidates = [(v, p // V, p % V) for v, p in zip(values, indices, strict=True)]
            row[g].extend(candidates, coverage[r * W + g * share : r * W + (g + 1) * share])
            for text in row[g].running if settings.groups > 1 else ():  # else nobody looks
                taken[r, text.ids[-1]] += 1


def apply_rules(logs: Tensor, searches: list[list[BeamState]]) -> Tensor:
    """Return the log-probabilities after penalties, bias, n-grams and the guide, before they add up."""
    request, share = searches[0][0].request, searches[0][0].share
    if not request.settings.changes and request.guide is None:
        return logs
    texts: list[list[int]] = []
    for row in searches:
        for group in row:
            some = [t.ids for t in group.running] or [[]]
            texts += [group.prefix + ids for ids in (some * share)[:share]]
    written = max(len(t.ids) for row in searches for h in row for t in h.running)
    seen = torch.from_numpy(pad_rows(texts, -1, left=True)).to(logs.device)
    logs = apply_penalties(request.settings, logs, seen, written)
    if request.guide is not None:
        for r, row in enumerate(searches):
            for g, group in enumerate(row):
                for w, text in enumerate(group.running):
                    allowed = request.guide.allowed_tokens(text.guided).to(logs.device)
                    logs[(r * len(row) + g) * share + w].masked_fill_(~allowed, -math.inf)
    return logs


def select_parents(searches: list[list[BeamState]], rows: list[int]) -> tuple[list[int], list[int]]:
    """Return which row of the batch each beam continues and with which token; unused beams repeat one."""
    parents, chosen = [], []
    for number, row in zip(rows, searches, strict=True):
        for g, group in enumerate(row):
            first = (number * len(row) + g) * group.share
            for w in range(group.share):
                text = group.running[w] if w < len(group.running) else None
                parents.append(first + (0 if text is None else text.beam))
                chosen.append(0 if text is None else text.ids[-1])
            for w, text in enumerate(group.running):
                text.beam = w
    return parents, chosen


class CoverageStepper(EagerStepper):
    """A model's own steps, which add up the attention that each source token has received, (B·W, S)."""

    NAMES = ("decoder.*.cross.pattern", "decoder.[0-9].pattern")

    def __init__(self, stepper: Stepper) -> None:
        if not isinstance(stepper, EagerStepper) or not isinstance(stepper.model, Seq2Seq):
            raise InputError(
                "coverage looks at cross-attention", hint="give an encoder-decoder, and no fast path"
            )
        super().__init__(stepper.model, watch=stepper.watch)

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        watch, own = Watch(*self.NAMES), self.watch
        self.watch = watch if own is None else own + watch
        logits = super().prefill(prompt, valid, length)
        self.watch = own
        if not len(watch):
            raise InputError(f"{self.model.family.name} shows no cross-attention", hint="leave coverage out")
        self.valid = torch.ones_like(prompt, dtype=torch.bool) if valid is None else valid
        self.total = self._mean_pattern(watch)  # Σ_t of the mean cross-attention pattern
        return logits

    def _mean_pattern(self, watch: Watch) -> Tensor:
        return torch.stack([watch[name].float().mean((1, 2)) for name in watch]).mean(0)

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.total, self.valid = self.total[index], self.valid[index]

    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        watch = Watch(*self.NAMES)
        logits = super().step(tokens, watch)
        self.total = self.total + self._mean_pattern(watch)
        return logits

    def penalty(self) -> Tensor:
        """Σ_i log min(Σ_t pattern_ti, 1), one per beam."""
        return self.total.clamp(1e-9, 1).log().masked_fill(~self.valid, 0.0).sum(-1)


@torch.no_grad()
def search_contrastively(stepper: Stepper, prompt: list[int], request: Request) -> tuple[float, list[int]]:
    """Return the text that contrastive search finds after a prompt, and the sum of the steps' scores."""
    if not isinstance(stepper, EagerStepper):
        raise InputError("contrastive looks at hidden states", hint="it takes a model, and no fast path")
    model, settings = stepper.model, request.settings
    device, k, alpha = model.device, settings.top_k or 4, settings.contrastive or 0.0
    limit, start = max_new_tokens(model, settings.max_tokens, len(prompt)), prefix_ids(model, prompt)
    hidden = "blocks.output" if isinstance(model, LM) else "decoder.output"
    watch = Watch(hidden)
    with evaluation_mode(model):
        tokens = torch.tensor([prompt], device=device)
        stepper.state = model.start(tokens, length=len(start) + limit, watch=watch)
    assert stepper.state.logits is not None
    logits, past = stepper.state.logits, F.normalize(watch[hidden][0].float(), dim=-1)  # (1, V), (S, D)
    out: list[int] = []
    score = 0.0
    while True:
        seen = torch.tensor([[*start, *out]], dtype=torch.long, device=device)
        z = apply_penalties(settings, logits.float(), seen, len(out))
        if settings.forbids:
            check_tokens_left(z, len(out))
        chances = z.softmax(-1)[0]
        likely = chances.topk(min(k, len(chances)))
        stepper.reorder(torch.zeros(len(likely.indices), dtype=torch.long, device=device))
        watch = Watch(hidden)
        logits = stepper.step(likely.indices, watch)
        new = F.normalize(watch[hidden][:, -1].float(), dim=-1)  # (k, D)
        value = (1 - alpha) * likely.values - alpha * (new @ past.T).amax(-1)
        best = int(value.argmax())
        score += float(value[best])
        out.append(int(likely.indices[best]))
        if out[-1] in request.eos or len(out) >= limit:
            return score, out
        stepper.reorder(torch.tensor([best], device=device))
        logits, past = logits[best : best + 1], torch.cat((past, new[best : best + 1]))


def search(stepper: Stepper, prompts: Prompts, request: Request) -> list[list[Generation]]:
    """Search and return the n best texts of each prompt."""
    model, settings = stepper.model, request.settings
    if settings.contrastive is not None:
        ranked = [[search_contrastively(stepper, ids, request)] for ids in prompts.ids]
    else:
        finished = [
            [text for group in groups for text in group.finished]
            for groups in run_beam_search(stepper, prompts, request)
        ]
        ranked = [sorted(texts, key=lambda text: -text[0]) for texts in finished]
    if not all(ranked):
        raise InputError(
            "bias, no_repeat and the constraint together leave no text", hint="loosen one of them"
        )
    out: list[list[Generation]] = []
    for prompt, best in zip(prompts.ids, ranked, strict=True):
        out.append([])
        for score, ids in best[: settings.samples]:
            full = len(ids) >= max_new_tokens(model, settings.max_tokens, len(prompt))
            finish: Finish = "length" if len(ids) >= settings.max_tokens else "context" if full else "end"
            if ids and ids[-1] in request.eos:
                ids, finish = ids[:-1], "end"
            out[-1].append(Generation(decode_after(model, prompt, ids), ids, finish, score, []))
    return out
