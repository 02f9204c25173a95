"""Tokens as the page shows them: readable, with ids, places and bytes; merges replayed, lattices drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from heedful.core.errors import InputError
from heedful.interp.inputs import names_of
from heedful.interp.prediction import special_ids
from heedful.models.base import Model
from heedful.text import Tokenizer
from heedful.text.bpe import BPE, is_byte_level, token_bytes
from heedful.word2vec import Settings, Word2Vec
from heedful.word2vec.word_counts import WordCounts

SPACES = {"\n": "⏎", "\t": "⇥", " ": "·", "\u00a0": "·"}
REPLAYED = 200  # words whose merges are replayed
LONGEST = 400  # letters of such a word


def tidy(text: str) -> tuple[str, list[str]]:
    """A text that can be written in UTF-8, and what was changed for it."""
    kept = text.encode("utf-8", errors="replace").decode("utf-8")
    if kept == text:
        return text, []
    count = sum(0xD800 <= ord(c) < 0xE000 for c in text)
    return kept, [f"{count} half characters (lone surrogates) were read as “?”"]


def visible(text: str) -> str:
    """Spaces, newlines and control characters made visible."""
    out = []
    for c in text:
        if c in SPACES:
            out.append(SPACES[c])
        elif ord(c) < 0x20:
            out.append(chr(0x2400 + ord(c)))
        elif ord(c) == 0x7F or 0x80 <= ord(c) < 0xA0 or c in "\u2028\u2029\ufeff\u200b":
            out.append(f"<{ord(c):02X}>")
        else:
            out.append(c)
    return "".join(out)


def speller(model: Model) -> Callable[[str], str]:
    """A function that makes a token readable: no Ġ and ▁, no half characters."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return lambda token: token
    if not is_byte_level(tokenizer):
        return _without_marks

    def spell(token: str) -> str:
        raw = token_bytes(tokenizer, token)
        if raw is None:
            return visible(token)
        try:
            return visible(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return "<" + raw.hex(" ").upper() + ">"

    return spell


def _without_marks(token: str) -> str:
    if token.startswith("<0x") and token.endswith(">") and len(token) == 6:
        return f"<{token[3:5].upper()}>"
    return visible(token.replace("▁", " ").removesuffix("</w>"))


def visible_token(model: Model, token: str) -> str:
    """One token, readable; for many take `speller` once."""
    return speller(model)(token)


def token_name(model: Model, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that come from no text: written by the model, or given as ids."""
    special, spelled = special_ids(model), speller(model)
    return [
        {"id": int(i), "text": name, "shown": spelled(name), "start": None, "end": None,
         "special": int(i) in special}
        for i, name in zip(ids, names_of(model, list(ids)), strict=True)
    ]  # fmt: skip


def token_positions(
    model: Model, text: str, special: bool = True, max_tokens: int | None = None, pair: str | None = None
) -> tuple[list[dict[str, Any]], int]:
    """The tokens of a text with their places in it, and how many there are.

    Of more than `max_tokens` the first are named, and the last if it is one that ends every text: it stays.
    A second text stands behind the first, as an encoder reads them; `type` and `side` tell the two apart.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="give ids in place of a text")
    found = model.tokenizer.encoding(text, pair, special)
    ids, spans = found.ids, found.offsets  # each is made anew when asked for
    marks, spelled, count = special_ids(model), speller(model), len(ids)
    kept = list(range(count))
    if max_tokens is not None and count > max_tokens:
        kept = [*range(max_tokens - 1), count - 1] if ids[-1] in marks else list(range(max_tokens))
    names = model.tokenizer.tokens([ids[i] for i in kept])
    rows = [
        {"id": ids[i], "text": name, "shown": spelled(name), "start": spans[i][0], "end": spans[i][1],
         "special": ids[i] in marks}
        for i, name in zip(kept, names, strict=True)
    ]  # fmt: skip
    if pair is None:
        return rows, count
    types, sides = found.type_ids, found.sequence_ids
    return [row | {"type": types[i], "side": sides[i]} for i, row in zip(kept, rows, strict=True)], count


def tokenize_text(model: Model, text: str, special: bool, max_tokens: int) -> dict[str, Any]:
    """Everything about how a model cuts a text; at most so many tokens are listed."""
    tokens, count = token_positions(model, text, special, max_tokens)
    tokenizer: Tokenizer = model.tokenizer
    spelled = is_byte_level(tokenizer)
    for token in tokens:
        raw = token_bytes(tokenizer, token["text"]) if spelled else None
        raw = text[token["start"] : token["end"]].encode() if raw is None else raw
        token["bytes"] = raw.hex(" ").upper()
    kind = type(tokenizer.backend.model).__name__
    state = json.loads(tokenizer.backend.to_str())["model"] if kind in ("BPE", "Unigram") else {}
    words, note = None, None
    if kind == "BPE":
        words, note = replay_merges(model, text, state)
    real = count - sum(t["special"] for t in tokens)
    return {
        "kind": kind, "size": len(tokenizer), "tokens": tokens, "count": count,
        "unknown": sum(t["id"] == tokenizer.unk for t in tokens),
        "characters_per_token": len(text) / real if real else None, "words": words,
        "lattice": lattice(tokenizer, text, state) if kind == "Unigram" else None, "note": note,
    }  # fmt: skip


def cut_into_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """What merges never cross: the pieces of the tokenizer's own normaliser and splitter."""
    backend = tokenizer.backend
    normal = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
    if backend.pre_tokenizer is None:
        return [normal] if normal else []
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal)]


def replay_merges(model: Model, text: str, state: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Every word from letters to pieces, merge by merge, each piece readable."""
    assert model.tokenizer is not None
    spelled = speller(model)
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ", 1)) for m in state["merges"]]
    bpe = BPE(tuple((a, b) for a, b in pairs))
    suffix = state.get("end_of_word_suffix") or ""
    words = cut_into_words(model.tokenizer, text)
    readable = lambda pieces: [spelled(p) for p in pieces]
    out = []
    for word in words[:REPLAYED]:
        if len(word) > LONGEST:
            continue
        letters = tuple(word[:-1]) + (word[-1] + suffix,) if word else ()
        steps = bpe.replay(letters)
        out.append({
            "text": spelled(word), "start": readable(letters),
            "steps": [
                {"rank": s.rank, "pair": readable(s.pair), "pieces": readable(s.pieces)} for s in steps
            ],
            "pieces": readable(steps[-1].pieces if steps else letters),
        })  # fmt: skip
    left = len(words) - len(out)
    return out, f"{left} of {len(words)} words are not replayed: too many, or too long" if left else None


def lattice(tokenizer: Tokenizer, text: str, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every piece that fits somewhere in a word, with its log-probability, and those on the best path."""
    scores = {piece: score for piece, score in state["vocab"]}
    longest = max(map(len, scores))
    out = []
    for word in cut_into_words(tokenizer, text)[:REPLAYED]:
        if len(word) > LONGEST:
            continue
        spans = [
            (i, j) for i in range(len(word)) for j in range(i + 1, min(len(word), i + longest) + 1)
            if word[i:j] in scores
        ]  # fmt: skip
        chosen = best_path(word, spans, scores)
        pieces = [
            {"text": word[i:j], "start": i, "end": j, "score": scores[word[i:j]], "chosen": (i, j) in chosen}
            for i, j in spans
        ]
        out.append({"text": visible(word.replace("▁", " ")), "pieces": pieces})
    return out


def best_path(word: str, spans: Sequence[tuple[int, int]], scores: dict[str, float]) -> set[tuple[int, int]]:
    """The segmentation with the largest sum of log-probabilities (Viterbi); empty where there is none."""
    best: list[tuple[float, int]] = [(0.0, -1)] + [(-math.inf, -1)] * len(word)
    for i, j in sorted(spans, key=lambda s: s[1]):
        reached = best[i][0] + scores[word[i:j]]
        if reached > best[j][0]:
            best[j] = (reached, i)
    if best[-1][1] < 0:
        return set()
    path, at = set(), len(word)
    while at > 0:
        path.add((best[at][1], at))
        at = best[at][1]
    return path


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
        found = word if word in vectors else word.lower() if word.lower() in vectors else None
        token: dict[str, Any] = {
            "id": -1 if found is None else vectors.index[found], "text": found or word,
            "shown": visible(word), "start": start, "end": at, "special": False, "known": found is not None,
            "bytes": word.encode().hex(" ").upper(),
        }  # fmt: skip
        if found is not None and counted is not None:
            row = vectors.index[found]
            token |= {"count": int(counted.counts[row]), "keep": float(keep[row])}
            token |= {} if settings.hierarchical else {"noise": float(noise[row])}
        out.append(token)
    return out
