"""Steering: find a direction in a model's vectors, and push along it while the model writes.

The difference between the mean vectors of two lists of texts, such as loving and hateful ones, points from
one idea to the other. Adding it to a layer makes the model write more like the first list (Turner et al.
2023, arXiv 2308.10248; Rimsky et al. 2024). Removing the direction takes away what depends on it (Arditi et
al. 2024, arXiv 2406.11717). If the text changes as expected, the direction is not only correlated with the
idea: the model uses it. A strength that is too large breaks the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.decode.loop import generate
from heedful.interp.activations import Texts, TokenWatch, collect_activations, text_vectors
from heedful.interp.inputs import Result, Text, check_names, check_texts, choices, names_of, reading
from heedful.interp.observe.prediction import default_position
from heedful.models.base import Model
from heedful.nn.context import Watch

TokenChanges = list[tuple[str, float]]  # tokens, and by how much log p changed
Method = Literal["add", "ablate", "clamp"]


def steering_vector(
    model: Model, positive_texts: Texts, negative_texts: Texts, name: str, *,
    tokens: Literal["all", "last"] = "all",
) -> Tensor:  # fmt: skip
    """v = mean over positive texts − mean over negative texts of the value called `name`, (W,)

    Each text counts once: by the mean of its tokens, or by its last one. Special tokens and the first token
    of a causal model do not count, if the text has others. A value of several heads, such as
    "blocks.3.attn.heads", gives one vector for all of them.
    """
    check_choice("tokens", tokens, ("all", "last"))
    for side, listed in (("positive texts", positive_texts), ("negative texts", negative_texts)):
        check_texts(listed, f"the {side}")
    texts = [*positive_texts, *negative_texts]
    activations = collect_activations(model, texts, [name])[name]
    (vectors,) = text_vectors(model, [activations], "last" if tokens == "last" else "mean")
    count = len(positive_texts)
    return vectors[:count].mean(0) - vectors[count:].mean(0)


def steer(
    model: Model, name: str, vector: Tensor | Sequence[float], strength: float = 1.0,
    method: Method = "add", *, value: float | None = None, tokens: Literal["all", "last"] = "all",
) -> Watch:  # fmt: skip
    """Return a watch that steers any call that takes it: `generate(model, prompt, watch=steer(…))`.

        add      x + strength · v
        ablate   x − strength · (x·v̂) v̂              1 takes the direction away
        clamp    x + strength · (value − x·v̂) v̂      1 sets the coordinate to `value`

    v̂ is v at length 1. Every token is steered, those of the prompt too. With tokens="last" it is the last of
    each pass: that of the prompt, then each that is written. Strength 0 changes nothing. `name` is a watched
    value, such as "blocks.12.output", or a pattern of several of one width: "blocks.*.output".
    """
    check_names([name])
    check_choice("method", method, get_args(Method))
    check_choice("tokens", tokens, ("all", "last"))
    if method == "clamp" and value is None:
        raise InputError(
            "needs a value", "clamp sets a coordinate to `value=…`", argument="method", value=method
        )
    if method != "clamp" and value is not None:
        raise InputError("takes no value", "only clamp takes one", argument="method", value=method)
    push = torch.as_tensor(vector).detach().float().flatten().to(model.device)
    if not bool(torch.isfinite(push).all()) or not float(push.norm()) > 0:
        raise InputError("the vector is zero or not finite", hint="give a direction to steer along")
    unit = push / push.norm()

    def change(rows: Tensor) -> Tensor:  # (B, T, W)
        if rows.shape[-1] != len(push):
            raise InputError(f"{name} has {rows.shape[-1]} entries and the vector {len(push)}")
        x = rows.float()
        by = push if method == "add" else ((value or 0.0) - x @ unit)[..., None] * unit
        steered = x + strength * by
        return steered if tokens == "all" else torch.cat((x[:, :-1], steered[:, -1:]), 1)

    return TokenWatch({name: change})


@dataclass(frozen=True)
class LogitChange(Result):
    """The log probabilities of what a head chooses from, (V,), at one position without and with a watch."""

    tokens: tuple[str, ...]
    position: int
    before: Tensor
    after: Tensor

    def largest_changes(self, model: Model, count: int = 10) -> tuple[TokenChanges, TokenChanges]:
        """Return the tokens that rose most and those that fell most, with the change of log p in nats.

        Among those that either run gives at least a thousandth of its most likely token's probability.
        """
        both = torch.maximum(self.before - self.before.max(), self.after - self.after.max())
        likely = (both > -6.9).nonzero()[:, 0]
        change = (self.after - self.before)[likely]
        order = change.argsort(descending=True).tolist()
        listed = [(names_of(model, likely[i : i + 1])[0], float(change[i])) for i in order]
        return [x for x in listed[:count] if x[1] > 0], [x for x in listed[::-1][:count] if x[1] < 0]


@torch.no_grad()
def logit_change(model: Model, text: Text, watch: Watch) -> LogitChange:
    """Return what a watch that steers does to the next prediction, or to that of the mask."""
    given = reading(model, text)
    at = default_position(model, given)
    logp = [choices(model, given.run(model, w), at)[0].float().log_softmax(-1).cpu() for w in (None, watch)]
    return LogitChange(given.names, at, *logp)


@dataclass(frozen=True)
class Continuation(Result):
    """The texts that a model writes after a prompt without and with steering."""

    prompt: str
    plain: str
    steered: str


def continuations(model: Model, prompts: Sequence[str], watch: Watch, **settings: Any) -> list[Continuation]:
    """Return what a model writes after each prompt, plainly and with a watch; settings are `generate`'s.

    All prompts are one batch. Both texts are computed step by step in the same way, so that they differ by
    what the watch does alone.
    """
    check_texts(prompts, "the prompts")
    plain = generate(model, list(prompts), fast=False, **settings)
    steered = generate(model, list(prompts), watch=watch, **settings)
    return [Continuation(*texts) for texts in zip(prompts, plain, steered, strict=True)]
