"""Speculative decoding: guess several tokens cheaply, check them in one pass (Leviathan et al. 2023).

A large model takes about as long to read a few tokens as to read one, because most of the time goes into
fetching its weights. So something cheap guesses the next tokens, and the model reads all guesses at once.
Where it agrees, several tokens cost one pass. The text is exactly what the model would have written alone:
greedy decoding keeps a guess only if it is the most likely token, and for a draw the rule below keeps the
distribution.

A guess x from q is kept with probability min(1, p(x) / q(x)); the first that is not is replaced by a draw
from max(0, p − q), normalised: what comes out is distributed as p (Leviathan et al., A.1). Guesses come from
a smaller model, or from what followed the same tokens earlier (Saxena 2023), where q is 1 for the guess.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.decode.fast import choose_stepper
from heedful.decode.request import check_prompt, free_context, prefix_ids
from heedful.decode.rows import GeneratedRow, Piece
from heedful.decode.sampling import apply_penalties, check_tokens_left, draw, warp
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import State


def accept_guesses(p: Tensor, q: Tensor, guesses: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many guesses (B, k) are kept, and the token that follows them; both (B,).

    p (B, k + 1, V) are the probabilities to be had, q (B, k, V) those the guesses were drawn from,
    u (B, k + 1) uniform numbers.
    """
    k = guesses.shape[1]
    chance = lambda r: r[:, :k].gather(2, guesses[..., None])[..., 0]
    accepted = (u[:, :k] * chance(q) < chance(p)).long().cumprod(1).sum(1)
    at = accepted[:, None, None].expand(-1, 1, p.shape[2])
    rest = (p.gather(1, at) - F.pad(q, (0, 0, 0, 1)).gather(1, at))[:, 0].clamp(min=0)
    # Rounding may leave nothing where p and q are all but equal: then p itself is as good.
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, p.gather(1, at)[:, 0])
    return accepted, draw(rest.log(), u[:, k])


class LookUp:
    """Guesses what followed the last `size` tokens when they last occurred (Saxena 2023: prompt lookup)."""

    def __init__(self, size: int, vocab: int, device: torch.device) -> None:
        self.size, self.vocab, self.device = size, vocab, device

    def guess(self, ids: list[int], count: int, u: torch.Generator) -> tuple[list[int], Tensor]:
        """Return at most `count` tokens that follow `ids`, and their probabilities (k, V)."""
        last = ids[-self.size :]
        guesses: list[int] = []
        for at in range(len(ids) - self.size - 1, -1, -1):
            if ids[at : at + self.size] == last:
                guesses = ids[at + self.size : at + self.size + count]
                break
        where = torch.tensor(guesses, dtype=torch.long, device=self.device)
        return guesses, F.one_hot(where, self.vocab).float()


class Draft:
    """A smaller model with the same vocabulary, drawing by the same rules."""

    def __init__(self, stepper: Stepper, prompt: list[int], settings: GenerationSettings, more: int) -> None:
        self.stepper, self.settings = stepper, settings
        self.rewind = Rewind(stepper, settings.propose)
        self.prompt = prompt = check_prompt(stepper.model, prompt)
        tokens = torch.tensor([prompt], device=stepper.model.device)
        self.written: list[int] = []  # what it has read after the prompt
        self.logits = stepper.prefill(tokens, length=len(prompt) + more)
        self.free = free_context(stepper.model, len(prompt))

    def guess(self, ids: list[int], count: int, u: torch.Generator) -> tuple[list[int], Tensor]:
        new = ids[len(prefix_ids(self.stepper.model, self.prompt)) :]
        if self.free is not None:
            count = min(count, self.free - len(new))
        if count < 1:
            return [], self.logits.new_zeros(0, self.logits.shape[1])
        agreed = next((i for i, (a, b) in enumerate(zip(self.written, new, strict=False)) if a != b), None)
        agreed = min(len(self.written), len(new)) if agreed is None else agreed
        agreed = min(agreed, len(new) - 1)  # the newest is read again where need be, for its logits
        self.logits = self.rewind.to(self.written, agreed, new, self.logits)
        self.written = list(new)
        guesses: list[int] = []
        chances: list[Tensor] = []
        while True:
            so_far = [*ids, *guesses]
            chances.append(distribution(self.logits, self.settings, so_far, len(new) + len(guesses)))
            if self.settings.greedy:
                guesses.append(int(chances[-1].argmax(-1)))
            else:
                number = torch.rand(1, generator=u, dtype=torch.float64).to(self.logits.device)
                guesses.append(int(draw(chances[-1].log(), number)))
            if len(guesses) == count:
                return guesses, torch.cat(chances)
            self.logits = self.stepper.step(torch.tensor(guesses[-1:], device=self.logits.device))
            self.written.append(guesses[-1])


class Rewind:
    """Takes a stepper back by at most `max_tokens`: by cropping, or to a copy of a state that cannot be."""

    def __init__(self, stepper: Stepper, max_tokens: int) -> None:
        self.stepper, self.max_tokens = stepper, max_tokens
        self.copy: tuple[int, State] | None = None

    def to(self, tokens: list[int], shared: int, new: list[int], logits: Tensor) -> Tensor:
        """Let a stepper that has read `tokens`, the first `shared` as in `new`, have read `new`.

        Return the logits then.
        """
        s = self.stepper
        copied = s if isinstance(s, EagerStepper) and not s.crops(self.max_tokens) else None
        if copied is not None:
            if shared < len(tokens):
                assert self.copy is not None
                shared, state = self.copy
                copied.restore(state)
        elif shared < len(tokens):
            s.crop(s.past - (len(tokens) - shared))
        if shared < len(new):
            logits = s.extend(torch.tensor([new[shared:]], device=logits.device))[:, -1]
        if copied is not None:
            self.copy = len(new), copied.remember()
        return logits


def distribution(logits: Tensor, settings: GenerationSettings, ids: list[int], new_tokens: int) -> Tensor:
    """Return the probabilities (1, V) after every rule; greedy puts all on the most likely token."""
    seen = torch.tensor([ids], device=logits.device) if settings.looks_back else None
    z = apply_penalties(settings, logits.float(), seen, new_tokens) if settings.changes else logits.float()
    if settings.forbids:
        check_tokens_left(z, new_tokens)
    if settings.greedy:
        return F.one_hot(z.argmax(-1), z.shape[-1]).float()
    return warp(settings, z).softmax(-1)


@torch.no_grad()
def verify_guesses(
    logits: Tensor,
    guesses: list[int],
    q: Tensor,
    ids: list[int],
    new_tokens: int,
    settings: GenerationSettings,
    u: torch.Generator,
) -> list[int]:
    """Return the tokens of one pass, at least one; each is chosen from its logits (k + 1, V)."""
    p = torch.cat([
        distribution(logits[i : i + 1], settings, ids + guesses[:i], new_tokens + i)
        for i in range(len(guesses) + 1)
    ])  # fmt: skip
    if settings.greedy:
        best = p.argmax(-1).tolist()
        right = next((i for i, g in enumerate(guesses) if g != best[i]), len(guesses))
        return [*guesses[:right], best[right]]
    numbers = torch.rand(1, len(guesses) + 1, generator=u, dtype=torch.float64).to(p.device)
    proposed = torch.tensor([guesses], dtype=torch.long, device=p.device)
    accepted, token = accept_guesses(p[None], q[None], proposed, numbers)
    return [*guesses[: int(accepted)], int(token)]


def speculate(stepper: Stepper, row: GeneratedRow) -> Iterator[Piece]:
    """Yield one row's text: the same as without guesses when greedy, the same distribution when not."""
    model, u, settings = stepper.model, row.random, row.request.settings
    source: LookUp | Draft
    if settings.lookup is not None:
        source = LookUp(settings.lookup, model.config.vocab, model.device)
    else:
        source = Draft(choose_stepper(settings.draft, 1, row.limit), row.prompt, settings, row.limit)
    start, prompt = row.before, torch.tensor([row.prompt], device=model.device)
    after = stepper.prefill(prompt, length=len(start) + row.limit).float()  # (1, V)
    rewind, read, out = Rewind(stepper, settings.propose), list[int](), list[int]()
    rewind.to(read, 0, read, after)
    guesses: list[int] = []
    q = after.new_zeros(0, after.shape[1])
    while True:
        new = verify_guesses(after, guesses, q, start + out, len(out), settings, u)
        logs = after[: len(new)].log_softmax(-1)
        for i, token in enumerate(new):
            top = logs[i].topk(settings.logprobs)
            yield row.take(token, float(logs[i, token]), top.indices.tolist(), top.values.tolist())
            if row.finish is not None:
                return
        out += new
        # All but the newest token were read already, and perhaps guesses that did not hold.
        rewind.to(read, len(out) - 1, out[:-1], after)
        guesses, q = source.guess(start + out, min(settings.propose, row.limit - len(out) - 1), u)
        after = stepper.extend(torch.tensor([[out[-1], *guesses]], device=model.device))[0].float()
        read = [*out, *guesses]
