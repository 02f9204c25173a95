"""What comes out of a model at a position, whatever its head is: words, labels, tags, spans or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.inputs import Input, names_of
from heedful.inspect.row_labels import written_names
from heedful.models.base import LM, Model
from heedful.studio import tokens
from heedful.studio.capabilities import PREDICTS, labels_of


def predicts(model: Model) -> str:
    return PREDICTS.get(model.config.head, "vectors")


def default_position(model: Model, inputs: Input) -> int:
    """The mask, where an encoder reads one; else the last token, that which ends every text left aside."""
    ids = inputs.read[0].tolist()
    if not isinstance(model, LM) or model.causal or model.tokenizer is None:
        return len(ids) - 1
    if model.tokenizer.mask in ids:
        return ids.index(model.tokenizer.mask)
    special = tokens.special_ids(model)
    return max((i for i, token in enumerate(ids) if token not in special), default=len(ids) - 1)


def telling_position(model: Model, inputs: Input, moved: Tensor, output: Tensor) -> tuple[int, str]:
    """Where to look at a change, and the token there. An encoder-decoder, whose last prediction is the end of
    the text whatever was changed, is asked where it moved most, and the token is the one it writes.
    """
    if inputs.target is None or predicts(model) != "words":
        at = default_position(model, inputs)
        return at, tokens.visible_token(model, inputs.names[at])
    at = int(moved.argmax())
    return at, tokens.visible_token(model, written_names(model, inputs, output[None])[at])


def words_at(model: Model, output: Tensor, position: int) -> Tensor:
    """The logits (V,) at a position; an error where the head speaks of something else."""
    if predicts(model) != "words":
        raise InputError(
            f"this {model.family.name} predicts {predicts(model)}, not words", hint="choose a language model"
        )
    if not -len(output) <= position < len(output):
        raise InputError(f"position {position} is outside 0 … {len(output) - 1}")
    return output[position].detach().float().cpu()


def entries(model: Model, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens by their ids, as the page names them."""
    spelled = tokens.speller(model)
    rows = zip(ids, names_of(model, list(ids)), strict=True)
    return [{"id": id, "text": name, "shown": spelled(name)} for id, name in rows]


def entry(model: Model, id: int) -> dict[str, Any]:
    return entries(model, [id])[0]


def top(model: Model, logits: Tensor, count: int) -> list[dict[str, Any]]:
    """The likeliest words: logit and probability over the whole vocabulary."""
    chances = logits.float().softmax(-1)
    best = chances.topk(min(count, len(logits)))
    return [
        entry(model, i) | {"logit": float(logits[i]), "p": p}
        for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def matching_position(
    model: Model, before: Tensor, after: Tensor, position: int, count: int
) -> dict[str, list[dict[str, Any]]]:
    """The likeliest before and after a change; what only the other names follows with its own chance."""
    tops = [at(model, output, position, count)["top"] for output in (before, after)]
    if predicts(model) == "words":
        ids = [[row["id"] for row in top] for top in tops]
        for top, output, own, other in zip(tops, (before, after), ids, ids[::-1], strict=True):
            logits = words_at(model, output, position)
            chances = logits.softmax(-1)
            new = [i for i in other if i not in own]
            top += [
                row | {"logit": float(logits[i]), "p": float(chances[i])}
                for i, row in zip(new, entries(model, new), strict=True)
            ]
    return {"before": tops[0], "after": tops[1]}


def at(model: Model, output: Tensor, position: int, count: int) -> dict[str, Any]:
    """The prediction object of docs/studio-api.md."""
    kind = predicts(model)
    here: dict[str, Any] = {"kind": kind, "position": position, "top": []}
    output = output.detach().float().cpu()
    if kind == "words":
        position = position % len(output)
        return here | {"position": position, "top": top(model, words_at(model, output, position), count)}
    if kind == "vectors":
        return here
    if kind == "spans":
        start, end = output.softmax(0).T.tolist()
        return here | {"start": start, "end": end}
    names = labels_of(model) or []
    if kind == "labels":
        ranked = output.softmax(-1).sort(descending=True)
        rows = zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        return here | {"top": [
            {"id": i, "text": names[i], "shown": names[i], "logit": float(output[i]), "p": p} for i, p in rows
        ]}  # fmt: skip
    # One logit for each token says whether it was replaced; several are those of tags.
    chances = (
        output.softmax(-1) if output.dim() == 2 else torch.stack((1 - output.sigmoid(), output.sigmoid()), -1)
    )
    best = chances.max(-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return here | {"tags": [{"token": t, "label": names[i], "p": p} for t, (i, p) in enumerate(rows)]}
