"""Predictions as the page reads them: tokens with their names, whatever the head speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.classroom.studio import tokens
from heedful.interp.inputs import Input, names_of, written_names
from heedful.interp.prediction import answer_names, default_position, predicts, words_at
from heedful.models.base import Model


def telling_position(model: Model, inputs: Input, change: Tensor, output: Tensor) -> tuple[int, str]:
    """Return where to look at a change, and the token there. An encoder-decoder, whose last prediction is the
    end of the text whatever was changed, is asked where it moved most, and the token is the one it writes.
    """
    if inputs.target is None or predicts(model) != "words":
        at = default_position(model, inputs)
        return at, tokens.visible_token(model, inputs.names[at])
    at = int(change.argmax())
    return at, tokens.visible_token(model, written_names(model, inputs, output[None])[at])


def token_entries(model: Model, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens by their ids, as the page names them."""
    spelled = tokens.speller(model)
    rows = zip(ids, names_of(model, list(ids)), strict=True)
    return [{"id": id, "text": name, "shown": spelled(name)} for id, name in rows]


def word_rows(model: Model, logits: Tensor, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return some words with their logits and their probabilities over the whole vocabulary."""
    chances = logits.float().softmax(-1)
    return [
        row | {"logit": float(logits[row["id"]]), "p": float(chances[row["id"]])}
        for row in token_entries(model, ids)
    ]


def matching_position(
    model: Model, before: Tensor, after: Tensor, position: int, count: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the likeliest before and after a change; each list ends with what only the other names."""
    tops = [prediction_at(model, output, position, count)["top"] for output in (before, after)]
    if predicts(model) == "words":
        ids = [[row["id"] for row in top] for top in tops]
        for top, output, own, other in zip(tops, (before, after), ids, ids[::-1], strict=True):
            top += word_rows(model, words_at(model, output, position), [i for i in other if i not in own])
    return {"before": tops[0], "after": tops[1]}


def prediction_at(model: Model, output: Tensor, position: int, count: int) -> dict[str, Any]:
    """Return the prediction object of docs/studio-api.md."""
    kind = predicts(model)
    here: dict[str, Any] = {"kind": kind, "position": position, "top": []}
    output = output.detach().float().cpu()
    if kind == "words":
        position = position % len(output)
        logits = words_at(model, output, position)
        best = logits.topk(min(count, len(logits))).indices.tolist()
        return here | {"position": position, "top": word_rows(model, logits, best)}
    if kind == "vectors":
        return here
    if kind == "spans":
        start, end = output.softmax(0).T.tolist()
        return here | {"start": start, "end": end}
    names = answer_names(model) or []
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
    likeliest = chances.max(-1)
    rows = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return here | {"tags": [{"token": t, "label": names[i], "p": p} for t, (i, p) in enumerate(rows)]}
