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

import copy
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
        prompt, self.settings = check_prompt(stepper.model, prompt), settings
        self.before = len(prefix_ids(stepper.model, prompt))
        self.reader = Reader(stepper, prompt, len(prompt) + more, settings.propose)
        self.free = free_context(stepper.model, len(prompt))

    def guess(self, ids: list[int], count: int, u: torch.Generator) -> tuple[list[int], Tensor]:
        new, reader = ids[self.before :], self.reader
        if self.free is not None:
            count = min(count, self.free - len(new))
        if count < 1:
            return [], reader.logits.new_zeros(0, reader.logits.shape[1])
        reader.go_to(new, again=1)
        guesses: list[int] = []
        chances: list[Tensor] = []
        while True:
            so_far = [*ids, *guesses]
            chances.append(distribution(reader.logits, self.settings, so_far, len(new) + len(guesses)))
            if self.settings.greedy:
                guesses.append(int(chances[-1].argmax(-1)))
            else:
                number = torch.rand(1, generator=u, dtype=torch.float64).to(chances[-1].device)
                guesses.append(int(draw(chances[-1].log(), number)))
            if len(guesses) == count:
                return guesses, torch.cat(chances)
            reader.read(guesses[-1:])


class Reader:
    """A stepper and the tokens that it has read after its prompt, the newest of which can be taken back.

    At most `most` are: by cropping, or by going back to a copy of a state that cannot be cropped.
    """

    def __init__(self, stepper: Stepper, prompt: list[int], length: int, most: int) -> None:
        self.stepper, self.device = stepper, stepper.model.device
        self.logits = stepper.prefill(torch.tensor([prompt], device=self.device), length=length)  # (1, V)
        self.tokens: list[int] = []
        self.copied = stepper if isinstance(stepper, EagerStepper) and not stepper.crops(most) else None
        self.copy = State(None) if self.copied is None else copy.deepcopy(self.copied.state)
        self.copy_length = 0

    def read(self, tokens: list[int]) -> Tensor:
        """Append tokens and return the logits (T, V) after each."""
        ids = torch.tensor(tokens, device=self.device)
        logits = self.stepper.step(ids) if len(tokens) == 1 else self.stepper.extend(ids[None])[0]
        self.tokens += tokens
        self.logits = logits[-1:]
        return logits

    def go_to(self, new: list[int], again: int = 0) -> None:
        """Have read these tokens and no others, the newest `again` of them just now, for their logits."""
        shared = min(len(self.tokens), len(new))
        if self.tokens[:shared] != new[:shared]:
            pairs = enumerate(zip(self.tokens, new, strict=False))
            shared = next(i for i, (ours, theirs) in pairs if ours != theirs)
        shared = min(shared, len(new) - again)
        if shared < len(self.tokens):
            if self.copied is None:
                self.stepper.crop(self.stepper.past - (len(self.tokens) - shared))
            else:
                self.copied.state, shared = self.copy, self.copy_length
            del self.tokens[shared:]
        if shared < len(new):
            self.read(new[shared:])
        if self.copied is not None:
            self.copy, self.copy_length = copy.deepcopy(self.copied.state), len(new)


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
    start, out = row.before, list[int]()
    reader = Reader(stepper, row.prompt, len(start) + row.limit, settings.propose)
    after = reader.logits.float()  # (1, V)
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
        reader.go_to(out[:-1])
        guesses, q = source.guess(start + out, min(settings.propose, row.limit - len(out) - 1), u)
        after = reader.read([out[-1], *guesses]).float()
