"""The shuffle test: the same tokens in another order, and how far the predictions move.

The token that is predicted at stays in place, so that only the order of the others makes a difference: the
last of a decoder, the mask or the token that an encoder is asked about. An encoder-decoder reads a shuffled
source with the same target and is asked at each of its words. Labels of tokens and the ends of a span follow
their token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.inputs import Input, names_of
from heedful.models.base import LM, Model, Seq2Seq
from heedful.studio import predictions, snippets
from heedful.studio.traces import Trace


@dataclass(frozen=True)
class Shuffle:
    """An input and the same one with some tokens moved; `back[i]` is where the token of position i went."""

    before: Input
    after: Input
    back: Tensor


def shuffle_ids(model: Model, trace: Trace, seed: int) -> Shuffle:
    """Move every token that is neither special nor predicted at."""
    ids = trace.given.ids[0]
    stays = {i for i, t in enumerate(trace.tokens) if t["special"]}
    if isinstance(model, LM) and predictions.predicts(model) == "words":
        stays.add(predictions.default_position(model, trace.given))
    free = [i for i in range(len(ids)) if i not in stays]
    if len(free) < 2:
        raise InputError(
            "too few tokens can change places: there is only one order", hint="take a longer text"
        )
    draw = torch.Generator().manual_seed(seed)
    moved = [free[i] for i in torch.randperm(len(free), generator=draw).tolist()]
    if ids[moved].equal(ids[free]):
        moved = free[1:] + free[:1]
    new, back = ids.clone(), torch.arange(len(ids))
    new[free], back[moved] = ids[moved], torch.tensor(free)
    given = replace(trace.given, ids=new[None], tokens=names_of(model, new))
    return Shuffle(trace.given, given, back)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats, over the last axis, of two tensors of logits."""
    a, b = (x.double().log_softmax(-1) for x in (p, q))
    return (a.exp() * (a - b)).sum(-1)


def change(model: Model, result: Shuffle, before: Tensor, after: Tensor) -> tuple[str | None, Tensor]:
    """Over which predictions the change is taken, and the KL of each; both outputs are without batch axis."""
    kind = predictions.predicts(model)
    if kind == "words":
        if isinstance(model, Seq2Seq):
            return "target", divergence(before, after)
        at = predictions.default_position(model, result.after)
        causal = isinstance(model, LM) and model.causal
        return "next" if causal else "token", divergence(before[at], after[at])[None]
    if kind == "labels":
        return "labels", divergence(before, after)[None]
    if kind == "tags":
        after = after[result.back]
        if before.dim() == 1:  # one logit for each token: σ is a softmax over it and 0
            before, after = (torch.stack((torch.zeros_like(x), x), -1) for x in (before, after))
        return "tags", divergence(before, after)
    if kind == "spans":
        return "spans", divergence(before.T, after[result.back].T)
    return None, torch.zeros(0)


@torch.no_grad()
def shuffle_test(model: Model, trace: Trace, seed: int) -> dict[str, Any]:
    """The answer of GET /api/trace/{id}/order."""
    found = shuffle_ids(model, trace, seed)
    before, after = (given.run(model)[0].float() for given in (found.before, found.after))
    over, moved = change(model, found, before, after)
    at, token = predictions.telling_position(model, found.after, moved, before)
    vectors = [model.encode(g.ids)[0].float().mean(0) for g in (found.before, found.after)]  # type: ignore[operator]
    return {
        "shuffled": list(found.after.tokens), "over": over, "positions": len(moved), "position": at,
        "token": token, "kl": float(moved.mean()) if over else None,
        "cosine": float(F.cosine_similarity(vectors[0], vectors[1], dim=0)),
        **predictions.matching_position(model, before, after, at, 10), "python": _python(trace, found),
    }  # fmt: skip


def _python(trace: Trace, result: Shuffle) -> str:
    given, needs = trace.given, "import torch\n"
    more = "" if given.target is None else f", target=torch.tensor({given.target.tolist()!r})"
    more += "" if given.types is None else f", types=torch.tensor({given.types.tolist()!r})"
    lines = [
        f"run = lambda ids: Input(torch.tensor([ids]), (){more}).run(model)",
        "with torch.no_grad():",
        f"    before, after = run({given.ids[0].tolist()!r}), run({result.after.ids[0].tolist()!r})",
        "changed = Ablation(after, before)",
        "print(changed.change)  # KL in nats, at each position",
    ]
    needs += "from heedful.inspect.change import Ablation\nfrom heedful.inspect.inputs import Input"
    return snippets.script(trace.entry, "\n".join(lines), needs)
