"""Tokens and predictions as the page reads them: with ids, places, bytes and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.classroom.figures.token_labels import visible_token, visible_tokens
from heedful.core.errors import InputError
from heedful.interp.inputs import names_of
from heedful.interp.observe.prediction import answer_chances, answer_names, predicts, special_ids, words_at
from heedful.interp.observe.segmentation import replay_merges, unigram_lattice, words_of_text
from heedful.models.base import Model
from heedful.text import Tokenizer
from heedful.text.bpe import is_byte_level, token_bytes
from heedful.word2vec import Settings, Word2Vec
from heedful.word2vec.word_counts import WordCounts


def tidy(text: str) -> tuple[str, list[str]]:
    """A text that can be written in UTF-8, and what was changed for it."""
    readable = text.encode("utf-8", errors="replace").decode("utf-8")
    if readable == text:
        return text, []
    count = sum(0xD800 <= ord(c) < 0xE000 for c in text)
    return readable, [f"{count} half characters (lone surrogates) were read as “?”"]


def token_entries(model: Model, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens by their ids, as the page names them."""
    names = names_of(model, list(ids))
    rows = zip(ids, names, visible_tokens(model, names), strict=True)
    return [{"id": int(id), "text": name, "shown": shown} for id, name, shown in rows]


def tokens_of_ids(model: Model, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that come from no text: written by the model, or given as ids."""
    special = special_ids(model)
    place = {"start": None, "end": None}
    return [row | place | {"special": row["id"] in special} for row in token_entries(model, ids)]


def token_positions(
    model: Model, text: str, special: bool = True, max_tokens: int | None = None, pair: str | None = None
) -> tuple[list[dict[str, Any]], int]:
    """The tokens of a text with their places in it, and how many there are.

    Of more than `max_tokens` the first are named, and the last if it is one that ends every text: it stays.
    A second text stands behind the first, as an encoder reads them; `type` and `side` tell the two apart.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="give ids in place of a text")
    encoding = model.tokenizer.encoding(text, pair, special)
    ids, spans = encoding.ids, encoding.offsets  # each is made again when asked for
    marks, count = special_ids(model), len(ids)
    listed = list(range(count))
    if max_tokens is not None and count > max_tokens:
        listed = [*range(max_tokens - 1), count - 1] if ids[-1] in marks else list(range(max_tokens))
    entries = token_entries(model, [ids[i] for i in listed])
    rows = [
        entry | {"start": spans[i][0], "end": spans[i][1], "special": ids[i] in marks}
        for i, entry in zip(listed, entries, strict=True)
    ]
    if pair is None:
        return rows, count
    types, sides = encoding.type_ids, encoding.sequence_ids
    return [row | {"type": types[i], "side": sides[i]} for i, row in zip(listed, rows, strict=True)], count


def tokenize_text(model: Model, text: str, special: bool, max_tokens: int) -> dict[str, Any]:
    """Everything about how a model cuts a text; at most `max_tokens` are listed."""
    tokens, count = token_positions(model, text, special, max_tokens)
    tokenizer: Tokenizer = model.tokenizer
    spelled = is_byte_level(tokenizer)
    for token in tokens:
        raw = token_bytes(tokenizer, token["text"]) if spelled else None
        raw = text[token["start"] : token["end"]].encode() if raw is None else raw
        token["bytes"] = raw.hex(" ").upper()
    kind = type(tokenizer.backend.model).__name__
    words, lattice, note = None, None, None
    if kind == "BPE":
        words = merged_words(model, text)
        left = (total := len(words_of_text(tokenizer, text))) - len(words)
        note = f"{left} of {total} words are not replayed: too many, or too long" if left else None
    elif kind == "Unigram":
        lattice = [
            {"text": visible_token(word.replace("▁", " ")), "pieces": [vars(piece) for piece in pieces]}
            for word, pieces in unigram_lattice(tokenizer, text)
        ]
    real = count - sum(t["special"] for t in tokens)
    return {
        "kind": kind, "size": len(tokenizer), "tokens": tokens, "count": count,
        "unknown": sum(t["id"] == tokenizer.unk for t in tokens),
        "characters_per_token": len(text) / real if real else None, "words": words,
        "lattice": lattice, "note": note,
    }  # fmt: skip


def merged_words(model: Model, text: str) -> list[dict[str, Any]]:
    """Every word from letters to pieces, merge by merge, each piece readable."""
    show = lambda pieces: visible_tokens(model, pieces)
    return [
        {"text": show([merged.word])[0], "start": show(merged.letters), "pieces": show(merged.pieces),
         "steps": [{"rank": s.rank, "pair": show(s.pair), "pieces": show(s.pieces)} for s in merged.steps]}
        for merged in replay_merges(model.tokenizer, text)
    ]  # fmt: skip


def words_of(vectors: Word2Vec, text: str) -> list[dict[str, Any]]:
    """The words of a text, and what training does with each: how likely it stays, how often it is noise."""
    out, at = [], 0
    settings = vectors.settings or Settings()
    counted = None if vectors.counts is None else WordCounts(vectors.words, vectors.counts, 0)
    if counted is not None:
        keep = counted.keep_probabilities(settings.subsample_threshold(len(vectors)))
        noise = counted.noise_distribution(settings.noise_exponent)
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        entry = word if word in vectors else word.lower() if word.lower() in vectors else None
        token: dict[str, Any] = {
            "id": -1 if entry is None else vectors.index[entry], "text": entry or word,
            "shown": visible_token(word), "start": start, "end": at, "special": False,
            "known": entry is not None, "bytes": word.encode().hex(" ").upper(),
        }  # fmt: skip
        if entry is not None and counted is not None:
            row = vectors.index[entry]
            token |= {"count": int(counted.counts[row]), "keep": float(keep[row])}
            token |= {} if settings.hierarchical else {"noise": float(noise[row])}
        out.append(token)
    return out


# Predictions: tokens with their probabilities, whatever the head speaks of.


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
    """Return the most likely before and after a change; each list ends with what only the other names."""
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
        start, end = answer_chances(model, output).tolist()
        return here | {"start": start, "end": end}
    chances, names = answer_chances(model, output), answer_names(model) or []
    if kind == "labels":
        ranked = chances[0].sort(descending=True)
        rows = zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        return here | {"top": [
            {"id": i, "text": names[i], "shown": names[i], "logit": float(output[i]), "p": p} for i, p in rows
        ]}  # fmt: skip
    likeliest = chances.max(-1)
    rows = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return here | {"tags": [{"token": t, "label": names[i], "p": p} for t, (i, p) in enumerate(rows)]}
