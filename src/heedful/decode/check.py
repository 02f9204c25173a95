"""check: whether a model generates the same in every mode. One prompt alone is the definition.

alone                 one prompt, token by token, from its state
uncached              the whole text in one pass, no state
chunks                the prompt read in pieces
batch, left or right  all prompts together, padded on that side
compiled              the fast stepper, if one is given

An encoder generates nothing: the vectors of its tokens are compared, of a text alone and of texts in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decode.request import Prompts, context_length, encode_prompts
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import LM, Model, Seq2Seq, evaluation_mode

DEFAULT_PROMPTS = ("Once upon a time there was a", "The capital of France is", "One, two, three,")


@dataclass(frozen=True)
class Comparison:
    """One mode compared with `alone`: the share of equal tokens and the largest difference of a logit."""

    mode: str
    agreement: float
    difference: float

    @property
    def same(self) -> bool:
        return self.agreement == 1


@dataclass(frozen=True)
class Report:
    """The comparisons of `check`. `ok`: every token agrees and no logit is further off than `tolerance`.

    Below float32, and where weights are whole numbers, rounding is much larger than `tolerance`. There nine
    tokens in ten must agree.
    """

    model: str
    dtype: str
    tokens: int  # that were generated; 0 for an encoder
    tolerance: float
    comparisons: tuple[Comparison, ...]

    @property
    def is_exact(self) -> bool:
        """Whether rounding is too small to see."""
        return self.dtype in ("float32", "float64")

    @property
    def ok(self) -> bool:
        if not self.is_exact:
            return all(c.agreement >= 0.9 for c in self.comparisons)
        return all(c.same and c.difference <= self.tolerance for c in self.comparisons)

    def __str__(self) -> str:
        what, unit = f"{self.tokens} greedy tokens of a text alone", "logits"
        if not self.tokens:
            what, unit = "the vectors of a text alone", "vectors"
        lines = [f"{self.model}, {self.dtype}: {what}, compared with other ways of computing them"]
        for c in self.comparisons:
            same = f"{c.agreement:.0%} of the tokens agree"
            lines.append(f"  {c.mode:<14}{same:<27}{unit} differ by at most {c.difference:.1e}")
        allowed = f"a difference of {self.tolerance:.0e} is allowed"
        allowed = allowed if self.is_exact else "nine tokens in ten must agree"
        verdict = "ok" if self.ok else f"NOT ok: {allowed}"
        return "\n".join([*lines, verdict])


@torch.no_grad()
def check(
    model: Model,
    *,
    tokens: int = 16,
    tolerance: float = 1e-4,
    texts: Sequence[str] | None = None,
    fast: Stepper | None = None,
) -> Report:
    """Check that a model gives the same result alone, in a padded batch, with and without a cache.

    >>> import heedful
    >>> model = heedful.build("llama", vocab=128, dim=64, layers=2, heads=4, context=64, seed=0).eval()
    >>> heedful.check(model, tokens=4).ok
    True

    Args:
        tokens: Continue each prompt by this number of tokens.
        tolerance: Allow logits to differ by this much.
        texts: The prompts. A model without a tokenizer gets random ids.
        fast: A stepper of the same model (`heedful.fast`) to compare as well.

    For an encoder, the vectors of the tokens are compared.
    """
    if model.tokenizer is not None:
        prompts = encode_prompts(model, list(texts or DEFAULT_PROMPTS))
    else:
        random = torch.Generator().manual_seed(0)
        vocab = model.embed.vocab if isinstance(model, LM | Seq2Seq) else model.config.vocab  # of the source
        prompts = encode_prompts(
            model, [torch.randint(vocab, (n,), generator=random).tolist() for n in (7, 4, 2)]
        )
    quantised = model.hf_config.get("quantization", {}).get("kind")  # whatever its first tensor is
    name = quantised or str(next(model.parameters()).dtype).removeprefix("torch.")
    if not generates(model):
        with evaluation_mode(model):
            compared = tuple(compare_vectors(model, prompts, tolerance))
        return Report(model.family.name, name, 0, tolerance, compared)
    eager = EagerStepper(model)
    context = context_length(model)
    if context is not None:  # past it, steps and one pass differ with dynamic rotary positions
        longest = 1 if isinstance(model, Seq2Seq) else max(map(len, prompts.ids))
        tokens = max(1, min(tokens, context - longest + 1))
    logits = logits_alone(eager, prompts, tokens)  # (B, N, V)
    new = logits.argmax(-1)  # (B, N)
    with evaluation_mode(model):
        comparisons = list(compare_modes(eager.model, prompts, new, logits))
    if fast is not None:
        comparisons.append(compare_logits("compiled", logits_alone(fast, prompts, tokens, new), logits))
    return Report(model.family.name, name, tokens, tolerance, tuple(comparisons))


def generates(model: Model) -> bool:
    """Return whether a model writes text, and is not an encoder."""
    return isinstance(model, Seq2Seq) or (isinstance(model, LM) and model.causal)


def compare_vectors(model: Model, prompts: Prompts, tolerance: float) -> Iterator[Comparison]:
    """Compare an encoder's vectors of every token in a padded batch with those of each text alone."""
    assert isinstance(model, LM)
    alone = torch.cat([model.encode(torch.tensor([ids], device=model.device))[0] for ids in prompts.ids])
    # In 16 bits, numbers that were added in another order differ by a few units of the last place.
    limit = max(tolerance, 16 * torch.finfo(alone.dtype).eps * float(alone.abs().max()))
    for side in ("left", "right"):
        tokens, valid = prompts.padded(model.device, left=side == "left")
        vectors = model.encode(tokens, valid=valid)
        together = vectors.flatten(0, 1) if valid is None else vectors[valid]
        difference = (together - alone).float().abs().amax(-1)
        same = (difference <= limit).double().mean()
        yield Comparison(f"batch, {side}", float(same), float(difference.max()))


def written_logits(
    stepper: Stepper, prompt: Tensor, valid: Tensor | None, count: int, new: Tensor | None
) -> Tensor:
    """Return the logits (B, N, V) of `count` tokens after prompts: given ones (B, N), or the most likely."""
    logits = [stepper.prefill(prompt, valid, prompt.shape[1] + count).clone()]
    for t in range(count - 1):
        tokens = logits[-1].argmax(-1) if new is None else new[:, t]
        logits.append(stepper.step(tokens).clone())
    return torch.stack(logits, 1)


def logits_alone(stepper: Stepper, prompts: Prompts, count: int, new: Tensor | None = None) -> Tensor:
    """Return the same of prompts that are read one by one."""
    rows = []
    for i, ids in enumerate(prompts.ids):
        prompt = torch.tensor([ids], device=stepper.model.device)
        rows.append(written_logits(stepper, prompt, None, count, None if new is None else new[i : i + 1]))
    return torch.cat(rows)


def compare_modes(model: LM | Seq2Seq, prompts: Prompts, new: Tensor, logits: Tensor) -> Iterator[Comparison]:
    """Compare every mode of the eager stepper with the logits of each prompt alone."""
    eager, count = EagerStepper(model), new.shape[1]
    uncached = []
    for ids, row in zip(prompts.ids, new, strict=True):
        prompt = torch.tensor([ids], device=model.device)
        if isinstance(model, Seq2Seq):
            start = prompt.new_full((1, 1), model.start_token)
            uncached.append(model(prompt, torch.cat((start, row[None, :-1]), 1))[0])
        else:
            uncached.append(model(torch.cat((prompt, row[None, :-1]), 1))[0, -count:])
    yield compare_logits("uncached", torch.stack(uncached), logits)
    if isinstance(model, LM):
        in_chunks = logits_alone(EagerStepper(model, chunk=3), prompts, count, new)
        yield compare_logits("chunks", in_chunks, logits)
    for side in ("left", "right"):
        together = written_logits(eager, *prompts.padded(model.device, left=side == "left"), count, new)
        yield compare_logits(f"batch, {side}", together, logits)


def compare_logits(mode: str, logits: Tensor, reference: Tensor) -> Comparison:
    """Compare the most likely tokens and the logits of a mode with those of the definition.

    A token agrees if the definition finds it as likely as its own: two of the same logit are no difference
    of the modes, and neither is a distance that rounding in the type of the logits can make or hide.
    """
    rounding = 4 * torch.finfo(reference.dtype).eps * float(reference.abs().max())
    logits, reference = logits.float(), reference.float()
    behind = reference.amax(-1) - reference.gather(-1, logits.argmax(-1, keepdim=True))[..., 0]
    agreement = (behind <= rounding).double().mean()
    return Comparison(mode, float(agreement), float((logits - reference).abs().max()))
