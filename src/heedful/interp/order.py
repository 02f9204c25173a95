"""The shuffle test: the same tokens in another order, and how far the predictions move.

The token that is predicted at stays in place, so that only the order of the others makes a difference: the
last of a decoder, the mask or the token that an encoder is asked about. An encoder-decoder reads a shuffled
source with the same target and is asked at each of its words. Labels of tokens and the ends of a span follow
their token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.inputs import Input, Text, names_of, reading
from heedful.interp.prediction import default_position, divergence, is_causal, predicts, special_ids
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch


@dataclass(frozen=True)
class ShuffleResult:
    """The predictions on an input and on the same one with some tokens moved, without the batch axis.

    `over` says which predictions were compared (next, token, target, labels, tags, spans), None if there are
    none; `change` is the KL of each, in nats; `cosine` compares the mean hidden states.
    """

    shuffled: Input
    before: Tensor
    after: Tensor
    over: str | None
    change: Tensor
    cosine: float


def shuffle_ids(model: Model, inputs: Input, seed: int) -> tuple[Input, Tensor]:
    """Move every token that is neither special nor predicted at; the tensor says where each position went."""
    if inputs.ids.is_floating_point():
        raise InputError("the patches of an image are not shuffled", hint="take a model that reads text")
    ids, special = inputs.ids[0], special_ids(model)
    stays = {i for i, token in enumerate(ids.tolist()) if token in special}
    if isinstance(model, LM) and predicts(model) == "words":
        stays.add(default_position(model, inputs))
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
    return replace(inputs, ids=new[None], tokens=names_of(model, new)), back


def changes(
    model: Model, inputs: Input, before: Tensor, after: Tensor, destinations: Tensor
) -> tuple[str | None, Tensor]:
    """Return which predictions are compared, and the KL of each; `inputs` are the shuffled ones."""
    kind = predicts(model)
    if kind == "words" and isinstance(model, Seq2Seq):
        return "target", divergence(before, after)
    if kind == "words":
        at = default_position(model, inputs)
        return "next" if is_causal(model) else "token", divergence(before[at], after[at])[None]
    if kind == "labels":
        return kind, divergence(before, after)[None]
    if kind == "spans":
        return kind, divergence(before.T, after[destinations].T)
    if kind == "tags":
        after = after[destinations]
        if before.dim() == 1:  # one logit for each token: σ is a softmax over it and 0
            before, after = (torch.stack((torch.zeros_like(x), x), -1) for x in (before, after))
        return kind, divergence(before, after)
    return None, torch.zeros(0)


@torch.no_grad()
def shuffle_test(
    model: Model, text: Text | Input, target: Text | None = None, *, seed: int = 0
) -> ShuffleResult:
    """Shuffle the tokens of a text, as `seed` says, and compare what the model predicts."""
    inputs = reading(model, text, target)
    shuffled, back = shuffle_ids(model, inputs, seed)
    before, after = (given.run(model)[0].float() for given in (inputs, shuffled))
    over, change = changes(model, shuffled, before, after, back)
    vectors = [model.encode(given.ids)[0].float().mean(0) for given in (inputs, shuffled)]  # type: ignore[operator]
    cosine = float(F.cosine_similarity(vectors[0], vectors[1], dim=0))
    return ShuffleResult(shuffled, before, after, over, change, cosine)


@torch.no_grad()
def shuffle_without_positions(
    model: Model, text: Text | Input, target: Text | None = None, *, seed: int = 0
) -> Tensor | None:
    """Repeat the shuffle test with the vectors of positions set to 0: the KL of each prediction, in nats.

    Attention without positions is the same for its tokens in any order, but for a causal mask, which still
    tells what came before. None if no vector of a position is added to the tokens that are shuffled.
    """
    if model.tables["tokens"].position is None:
        return None
    inputs = reading(model, text, target)
    shuffled, back = shuffle_ids(model, inputs, seed)
    without = lambda: Watch(edit={"embed.position": torch.zeros_like})
    before, after = (given.run(model, without())[0].float() for given in (inputs, shuffled))
    return changes(model, shuffled, before, after, back)[1]
