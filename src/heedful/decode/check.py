"""check: does a model write the same in every mode? One prompt alone is the definition.

alone                 one prompt, token by token, from its state
uncached              the whole text in one pass, no state
chunks                the prompt read in pieces
batch, left or right  all prompts together, filled up on that side
compiled              the fast path, if asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decode.request import encode_prompts, free_context
from heedful.decode.stepper import EagerStepper, Stepper, evaluation_mode
from heedful.models.base import LM, Model, Seq2Seq

SENTENCES = ("Once upon a time there was a", "The capital of France is", "One, two, three,")


@dataclass(frozen=True)
class Comparison:
    """One mode beside `alone`: the share of tokens that agree, and the largest difference of a logit."""

    mode: str
    agreement: float
    difference: float

    @property
    def same(self) -> bool:
        return self.agreement == 1


@dataclass(frozen=True)
class Report:
    """What `check` found. `ok`: every token the same and no logit further off than `tolerance`.

    Below float32, and where weights are whole numbers, rounding decides between tokens that are nearly as
    likely: nine in ten must agree.
    """

    model: str
    dtype: str
    tokens: int
    tolerance: float
    comparisons: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        if self.dtype not in ("float32", "float64"):
            return all(c.agreement >= 0.9 for c in self.comparisons)
        return all(c.same and c.difference <= self.tolerance for c in self.comparisons)

    def __str__(self) -> str:
        lines = [f"{self.model}, {self.dtype}, {self.tokens} greedy tokens, each mode beside a prompt alone"]
        for c in self.comparisons:
            same = f"{c.agreement:.0%} of tokens the same"
            lines.append(f"  {c.mode:<14}{same:<26}largest logit difference {c.difference:.1e}")
        return "\n".join([*lines, "ok" if self.ok else f"NOT ok: tolerance {self.tolerance:.0e}"])


@torch.no_grad()
def check(
    model: Model,
    *,
    tokens: int = 16,
    tolerance: float = 1e-4,
    texts: Sequence[str] | None = None,
    fast: Stepper | None = None,
) -> Report:
    """Write the same prompts in every mode and compare: greedy tokens and logits.

    `texts` are the prompts; a model without a tokenizer gets random ids. `fast` is a stepper of the
    same model, compared too.
    """
    plain = EagerStepper(model)
    ids = three_prompts(model, texts)
    fits = [free_context(model, len(row)) for row in ids]
    tokens = min([tokens, *(f for f in fits if f is not None)])
    alone = [greedy(plain, row, tokens) for row in ids]
    written = torch.stack([t for t, _ in alone])  # (B, N)
    logits = torch.stack([z for _, z in alone])  # (B, N, V)
    with evaluation_mode(model):
        found = list(compared(plain, ids, written, logits))
    if fast is not None:
        rows = [forced(fast, [row], new[None])[0] for row, new in zip(ids, written, strict=True)]
        found.append(compare("compiled", torch.stack(rows), logits))
    quantised = model.published.get("quantization", {}).get("kind")  # whatever its first tensor is
    name = quantised or str(next(model.parameters()).dtype).removeprefix("torch.")
    return Report(model.family.name, name, tokens, tolerance, tuple(found))


def three_prompts(model: Model, texts: Sequence[str] | None) -> list[list[int]]:
    """Prompts of different lengths."""
    if model.tokenizer is not None:
        return encode_prompts(model, list(texts or SENTENCES)).ids
    random = torch.Generator().manual_seed(0)
    assert isinstance(model, (LM, Seq2Seq))
    return [torch.randint(0, model.embed.vocab, (n,), generator=random).tolist() for n in (7, 4, 2)]


def greedy(stepper: Stepper, prompt: list[int], count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens (N,) one after another, and the logits (N, V) each was chosen from."""
    device = stepper.model.device
    logits = [stepper.prefill(torch.tensor([prompt], device=device), length=len(prompt) + count).clone()]
    while len(logits) < count:
        logits.append(stepper.step(logits[-1].argmax(-1)).clone())
    every = torch.cat(logits).float()
    return every.argmax(-1), every


def forced(stepper: Stepper, ids: list[list[int]], written: Tensor, pad: str = "left") -> Tensor:
    """Logits (B, N, V) while the rows write given tokens (B, N)."""
    longest, device = max(map(len, ids)), stepper.model.device
    fill = [[0] * (longest - len(row)) for row in ids]
    rows = [f + row if pad == "left" else row + f for f, row in zip(fill, ids, strict=True)]
    real = [[False] * len(f) + [True] * len(row) for f, row in zip(fill, ids, strict=True)]
    valid = torch.tensor([r if pad == "left" else r[::-1] for r in real], device=device)
    only = None if bool(valid.all()) else valid
    logits = [stepper.prefill(torch.tensor(rows, device=device), only, longest + written.shape[1]).clone()]
    for t in range(written.shape[1] - 1):
        logits.append(stepper.step(written[:, t]).clone())
    return torch.stack(logits, 1).float()


def compared(
    plain: EagerStepper, ids: list[list[int]], written: Tensor, logits: Tensor
) -> Iterator[Comparison]:
    """Every mode a plain model has."""
    model, count = plain.model, written.shape[1]
    whole = []
    for row, new in zip(ids, written, strict=True):
        prompt = torch.tensor([row], device=model.device)
        if isinstance(model, Seq2Seq):
            start = prompt.new_full((1, 1), model.start_token)
            whole.append(model(prompt, torch.cat((start, new[None, :-1]), 1))[0])
        else:
            whole.append(model(torch.cat((prompt, new[None, :-1]), 1))[0, -count:])
    yield compare("uncached", torch.stack(whole).float(), logits)
    if isinstance(model, LM):
        pieces = EagerStepper(model, chunk=3)
        chunked = [forced(pieces, [row], new[None])[0] for row, new in zip(ids, written, strict=True)]
        yield compare("chunks", torch.stack(chunked), logits)
    for side in ("left", "right"):
        yield compare(f"batch, {side}", forced(plain, ids, written, pad=side), logits)


def compare(mode: str, got: Tensor, expected: Tensor) -> Comparison:
    agreement = (got.argmax(-1) == expected.argmax(-1)).double().mean()
    return Comparison(mode, float(agreement), float((got - expected).abs().max()))
