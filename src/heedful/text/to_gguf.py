"""A tokenizer as the metadata of a GGUF file: what `from_gguf` reads, written.

What was written is read again and compared on a text with all that goes wrong: a tokenizer that GGUF has no
words for is refused, because another program would cut its text into other tokens without a sign.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from heedful.core.errors import InputError
from heedful.text.from_gguf import ROLES, from_gguf
from heedful.text.sentencepiece import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_splits import WORD_SPLITS

PROBE = (
    "Hello World! It's 3.14159, isn't it?  two  spaces\n\n\ttab I'LL 2026-11-16 x==y; naïve Café "
    "日本語 Привет 🙂🙂 a_b-c <b> #42 ...\r\n end "
    "camelCase HTMLParser she's DON'T and/or //\n हिन्दी ไทย 한국어 (x) $5+`~ "
)
DECOMPOSED = "e\u0301"  # what form C writes as one letter
Table = dict[str, Any]


def gguf_tokenizer(tokenizer: Tokenizer | None, vocab: int) -> Table:
    """Return the keys that describe a tokenizer for a model with `vocab` ids; ids without a token get one."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    rules: Table = json.loads(tokenizer.backend.to_str())
    names = [tokenizer.backend.id_to_token(i) for i in range(vocab)]
    kinds = [UNUSED if name is None else NORMAL for name in names]
    for i, added in tokenizer.backend.get_added_tokens_decoder().items():
        if i < vocab:
            kinds[i] = CONTROL if added.special else USER
    filled = [f"[PAD{i}]" if name is None else name for i, name in enumerate(names)]
    kind = rules["model"]["type"]
    if kind == "BPE" and "ByteLevel" in {part["type"] for part in _parts(rules["pre_tokenizer"])}:
        fields = _byte_level(tokenizer, rules["model"])
    elif kind == "BPE" and rules["model"]["byte_fallback"]:
        fields = _by_scores(filled, kinds, rules)
    elif kind == "Unigram":
        fields = _unigram(filled, kinds, rules)
    elif kind == "WordPiece":
        fields = _wordpiece(filled, kinds, rules["normalizer"])
    else:
        raise InputError(f"GGUF has no words for a {kind} tokenizer like this one", hint=INSTEAD)
    table = {"tokens": filled, "token_type": kinds} | fields | _special_ids(tokenizer)
    out = {f"tokenizer.ggml.{name}": value for name, value in table.items()}
    if tokenizer.chat_template is not None:
        out["tokenizer.chat_template"] = tokenizer.chat_template
    check_alike(tokenizer, out)
    return out


INSTEAD = "write the weights alone: tokenizer=False (--no-tokenizer)"


def check_alike(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Raise InputError if the tokenizer read from `metadata` cuts text in another way."""
    again = from_gguf(metadata)
    assert again is not None
    for text in (PROBE, PROBE.strip(), "a"):
        ours, theirs = tokenizer.encode(text), again.encode(text)
        if ours != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs))
            )
            raise InputError(
                "GGUF cannot describe how this tokenizer cuts text: "
                f"{tokenizer.tokens(ours[at : at + 3])} would become {again.tokens(theirs[at : at + 3])}",
                hint=INSTEAD,
            )


def _parts(component: Table | None) -> Iterator[Table]:
    """Yield the steps of a normalizer or pre-tokenizer, however nested."""
    for inner in ("normalizers", "pretokenizers"):
        if component is not None and inner in component:
            for part in component[inner]:
                yield from _parts(part)
            return
    if component is not None:
        yield component


def _special_ids(tokenizer: Tokenizer) -> Table:
    """The ids of the roles, and whether a text begins and ends with one of them."""
    ids = {theirs: getattr(tokenizer, ours) for theirs, ours in ROLES.items()}
    inside, whole = tokenizer.encode("a", special=False), tokenizer.encode("a")
    at = next(i for i in range(len(whole)) if whole[i : i + len(inside)] == inside)
    first, last = whole[:at], whole[at + len(inside) :]
    if first and ids["bos"] is None:
        ids["bos"] = first[0]
    if last and ids["eos"] is None:
        ids["eos"] = last[0]
    out: Table = {f"{role}_token_id": i for role, i in ids.items() if i is not None}
    return out | {"add_bos_token": bool(first), "add_eos_token": bool(last)}


def _byte_level(tokenizer: Tokenizer, model: Table) -> Table:
    own = [piece for piece, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(PROBE)]
    alike = [
        split
        for split in WORD_SPLITS
        if own == [piece for piece, _ in split.pre_tokenizer().pre_tokenize_str(PROBE)]
    ]
    if not alike:
        names = ", ".join(split.names[0] for split in WORD_SPLITS)
        raise InputError(f"how this tokenizer splits words is none of {names}", hint=INSTEAD)
    normalizer = tokenizer.backend.normalizer
    composes = normalizer is not None and normalizer.normalize_str(DECOMPOSED) != DECOMPOSED
    whole = bool(model.get("ignore_merges"))
    best = max(alike, key=lambda split: (split.composed == composes) + (split.whole_words == whole))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {"model": "gpt2", "pre": best.names[0], "merges": merges}


def _by_scores(names: list[str], kinds: list[int], rules: Table) -> Table:
    """SentencePiece's BPE: a piece scores the less, the later it is first joined."""
    joined: dict[str, int] = {}
    model = rules["model"]
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        joined.setdefault(left + right, rank)
    after = len(model["merges"])
    scores = [-float(joined.get(name, after + i)) for i, name in enumerate(names)]
    _mark_pieces(names, kinds, model.get("unk_token"))
    for i, kind in enumerate(kinds):
        if kind == USER:  # found in the text as it is typed, before its spaces become ▁
            names[i] = names[i].replace(SPACE, " ")
    spaced = "Prepend" in {part["type"] for part in _parts(rules["normalizer"])}
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": spaced}


def _mark_pieces(names: list[str], kinds: list[int], unknown: str | None) -> None:
    """Set the kinds of the bytes and of the piece that stands for the unknown."""
    for i, name in enumerate(names):
        if re.fullmatch(r"<0x[0-9A-F]{2}>", name):
            kinds[i] = BYTE
        elif name == unknown:
            kinds[i] = UNKNOWN


def _unigram(names: list[str], kinds: list[int], rules: Table) -> Table:
    pieces = rules["model"]["vocab"]
    scores = [pieces[i][1] if i < len(pieces) else -10000.0 for i in range(len(names))]
    unknown = rules["model"]["unk_id"]
    _mark_pieces(names, kinds, None if unknown is None else pieces[unknown][0])
    steps = {part["type"]: part for part in _parts(rules["normalizer"])}
    charsmap = (
        base64.b64decode(steps["Precompiled"]["precompiled_charsmap"]) if "Precompiled" in steps else b""
    )
    spaced = "Prepend" in steps or "Metaspace" in {p["type"] for p in _parts(rules["pre_tokenizer"])}
    return {
        "model": "t5", "pre": "default", "scores": scores, "precompiled_charsmap": charsmap,
        "add_space_prefix": spaced, "remove_extra_whitespaces": "Strip" in steps or bool(charsmap),
    }  # fmt: skip


def _wordpiece(names: list[str], kinds: list[int], normalizer: Table | None) -> Table:
    """WordPiece: a piece that begins a word is marked instead of one that goes on."""
    for i, name in enumerate(names):
        if kinds[i] == NORMAL:
            names[i] = name.removeprefix("##") if name.startswith("##") else SPACE + name
    steps = {part["type"]: part for part in _parts(normalizer)}
    lower = bool(steps.get("BertNormalizer", {}).get("lowercase"))
    accents = steps.get("BertNormalizer", {}).get("strip_accents")
    return {
        "model": "bert", "pre": "default", "normalizer.lowercase": lower,
        "normalizer.strip_accents": lower if accents is None else accents,
    }  # fmt: skip
