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
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.decode.fast import choose_stepper
from heedful.decode.request import check_prompt, free_context, prefix_ids
from heedful.decode.rows import GeneratedRow, Piece
from heedful.decode.sampling import apply_penalties, check_tokens_left, draw, warp
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import Model, State


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


def look_up(size: int, model: Model, ids: list[int], count: int) -> tuple[list[int], Tensor]:
    """Guess what followed the last `size` of `ids` when they last occurred: at most `count` tokens.

    Return them and their probabilities (k, V), as `Draft.guess` does   (Saxena 2023: prompt lookup)
    """
    last = ids[-size:]
    guesses: list[int] = []
    for at in range(len(ids) - size - 1, -1, -1):
        if ids[at : at + size] == last:
            guesses = ids[at + size : at + size + count]
            break
    where = torch.tensor(guesses, dtype=torch.long, device=model.device)
    return guesses, F.one_hot(where, model.config.vocab).float()


class Draft:
    """A smaller model with the same vocabulary, drawing by the rules of the row it guesses for."""

    def __init__(self, stepper: Stepper, row: GeneratedRow) -> None:
        prompt = check_prompt(stepper.model, row.prompt)
        self.settings, self.random = row.request.settings, row.random
        self.before = len(prefix_ids(stepper.model, prompt))
        self.reader = Reader(stepper, prompt, len(prompt) + row.limit, self.settings.propose)
        self.free = free_context(stepper.model, len(prompt))

    def guess(self, ids: list[int], count: int) -> tuple[list[int], Tensor]:
        """Return at most `count` guesses that follow `ids`, and the probabilities (k, V) of their draws."""
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
                number = torch.rand(1, generator=self.random, dtype=torch.float64)
                guesses.append(int(draw(chances[-1].log(), number.to(chances[-1].device))))
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
def verify_guesses(logits: Tensor, guesses: list[int], q: Tensor, row: GeneratedRow) -> list[int]:
    """Return the next tokens of a row, at least one; each is chosen from its logits (k + 1, V)."""
    ids, settings = row.before + row.ids, row.request.settings
    p = torch.cat([
        distribution(logits[i : i + 1], settings, ids + guesses[:i], len(row.ids) + i)
        for i in range(len(guesses) + 1)
    ])  # fmt: skip
    if settings.greedy:
        best = p.argmax(-1).tolist()
        right = next((i for i, g in enumerate(guesses) if g != best[i]), len(guesses))
        return [*guesses[:right], best[right]]
    numbers = torch.rand(1, len(guesses) + 1, generator=row.random, dtype=torch.float64).to(p.device)
    proposed = torch.tensor([guesses], dtype=torch.long, device=p.device)
    accepted, token = accept_guesses(p[None], q[None], proposed, numbers)
    return [*guesses[: int(accepted)], int(token)]


def speculate(stepper: Stepper, row: GeneratedRow) -> Iterator[Piece]:
    """Yield one row's text: the same as without guesses when greedy, the same distribution when not."""
    settings = row.request.settings
    guess: Callable[[list[int], int], tuple[list[int], Tensor]]
    if settings.lookup is not None:
        guess = partial(look_up, settings.lookup, stepper.model)
    else:
        guess = Draft(choose_stepper(settings.draft, 1, row.limit), row).guess
    reader = Reader(stepper, row.prompt, len(row.before) + row.limit, settings.propose)
    after = reader.logits.float()  # (1, V)
    guesses: list[int] = []
    q = after.new_zeros(0, after.shape[1])
    while True:
        new = verify_guesses(after, guesses, q, row)
        logs = after[: len(new)].log_softmax(-1)
        for i, token in enumerate(new):
            top = logs[i].topk(settings.logprobs)
            yield row.take(token, float(logs[i, token]), top.indices.tolist(), top.values.tolist())
            if row.finish is not None:
                return
        # All but the newest token were read already, and perhaps guesses that did not hold.
        reader.go_to(row.ids[:-1])
        guesses, q = guess(row.before + row.ids, min(settings.propose, row.limit - len(row.ids) - 1))
        after = reader.read([row.ids[-1], *guesses]).float()
