"""A tokenizer as the metadata of a GGUF file (`tokenizer.ggml.…`): read and written.

What is written is read again and compared on a text with all that goes wrong: a tokenizer that GGUF has no
words for is refused, because another program would cut its text into other tokens without a sign.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken

from heedful.core.errors import CorruptFile, InputError
from heedful.text.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER,
    SentencePieceModel,
    build_sentencepiece,
)
from heedful.text.tokenizer import Tokenizer, typed_failure
from heedful.text.vocabularies import (
    WORD_SPLITS,
    add_tokens,
    build_wordpiece,
    byte_level_backend,
    find_word_split,
    frame_text,
    mark_special,
)

PREFIX = "tokenizer.ggml."
ROLES = {
    "bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "mask": "mask", "cls": "cls",
    "seperator": "sep",
}  # fmt: skip
Table = dict[str, Any]


def from_gguf(metadata: Mapping[str, Any], where: str = "the GGUF file") -> Tokenizer | None:
    """Return the tokenizer that a GGUF file describes, or None; `where` names the file in errors."""
    try:
        return _read_tokenizer(metadata)
    except BaseException as error:
        message = f"{where}: its vocabulary does not fit together"
        raise typed_failure(error, CorruptFile, message, "fetch it again") from None


def _read_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer | None:
    settings = {name.removeprefix(PREFIX): value for name, value in metadata.items()}
    kind = metadata.get(f"{PREFIX}model")
    if kind is None or kind in ("none", "no_vocab"):
        return None
    names = list(settings.get("tokens", []))
    kinds = list(settings.get("token_type") or [NORMAL] * len(names))
    if kind == "gpt2":
        backend = _read_byte_level(names, kinds, settings)
    elif kind in ("llama", "t5"):
        backend = _read_scores(names, kinds, settings, unigram=kind == "t5")
    elif kind == "bert":
        backend = _read_wordpiece(names, kinds, settings)
    else:
        raise InputError(
            f"{PREFIX}model is {kind!r}, which cannot be read", hint="gpt2, llama, t5 and bert can"
        )
    ids = ((ours, settings.get(f"{theirs}_token_id")) for theirs, ours in ROLES.items())
    roles = {role: str(backend.id_to_token(i)) for role, i in ids if i is not None and 0 <= i < len(names)}
    if "eos" in roles:  # some files keep it among the words
        add_tokens(backend, [AddedToken(roles["eos"], normalized=False, special=True)])
    return Tokenizer(backend, roles, metadata.get("tokenizer.chat_template"))


def _read_byte_level(names: Sequence[str], kinds: Sequence[int], settings: Table) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in settings.get("merges", [])]
    split, vocab = find_word_split(str(settings.get("pre", "gpt-2"))), {n: i for i, n in enumerate(names)}
    backend = byte_level_backend(
        vocab, merges, split, bool(settings.get("add_space_prefix", False)), split.whole_words
    )
    control = [name for name, kind in zip(names, kinds, strict=True) if kind in (CONTROL, UNKNOWN)]
    user = [name for name, kind in zip(names, kinds, strict=True) if kind == USER]
    mask = settings.get("mask_token_id")
    mark_special(backend, control, keep_space=() if mask is None else (names[mask],))
    backend.add_tokens([AddedToken(name, normalized=False) for name in user])
    begins, ends = settings.get("add_bos_token", split.adds_bos), settings.get("add_eos_token", False)
    first = settings.get("bos_token_id", settings.get("cls_token_id")) if begins else None
    last = settings.get("eos_token_id", settings.get("seperator_token_id")) if ends else None
    frame_text(backend, None if first is None else names[first], None if last is None else names[last])
    return backend


def _read_scores(
    names: Sequence[str], kinds: Sequence[int], settings: Table, unigram: bool
) -> tokenizers.Tokenizer:
    """SentencePiece: BPE by scores (llama) or Unigram (t5), which ends a text instead of beginning it."""
    model = SentencePieceModel(
        names=list(names), scores=list(settings["scores"]), kinds=list(kinds), unigram=unigram,
        bos=int(settings.get("bos_token_id", -1 if unigram else 1)),
        eos=int(settings.get("eos_token_id", 1 if unigram else 2)),
        charsmap=bytes(settings.get("precompiled_charsmap", [])),
        prefix_space=bool(settings.get("add_space_prefix", True)),
        squeeze_spaces=unigram and bool(settings.get("remove_extra_whitespaces", True)),
        symbols_as_typed=True,
    )  # fmt: skip
    begins, ends = settings.get("add_bos_token", not unigram), settings.get("add_eos_token", unigram)
    return build_sentencepiece(model, add_bos=bool(begins), add_eos=bool(ends))


def _read_wordpiece(names: Sequence[str], kinds: Sequence[int], settings: Table) -> tokenizers.Tokenizer:
    """WordPiece: a piece that begins a word is marked there, and here one that goes on."""
    vocab = {}
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if kind not in (CONTROL, UNKNOWN, USER, UNUSED):
            name = name.removeprefix(SPACE) if name.startswith(SPACE) else f"##{name}"
        vocab[name] = i
    lower = bool(settings.get("normalizer.lowercase", True))
    accents = bool(settings.get("normalizer.strip_accents", lower))
    return build_wordpiece(vocab, {"do_lower_case": lower, "strip_accents": accents})


# Writing.

PROBE = (
    "Hello World! It's 3.14159, isn't it?  two  spaces\n\n\ttab I'LL 2026-11-16 x==y; naïve Café "
    "日本語 Привет 🙂🙂 a_b-c <b> #42 ...\r\n end "
    "camelCase HTMLParser she's DON'T and/or //\n हिन्दी ไทย 한국어 (x) $5+`~ "
)
DECOMPOSED = "e\u0301"  # what form C writes as one letter


def gguf_tokenizer(tokenizer: Tokenizer | None, vocab: int) -> Table:
    """Return the keys that describe a tokenizer for a model with `vocab` ids; ids without a token get one."""
    if tokenizer is None:
        return {f"{PREFIX}model": "none"}
    rules: Table = json.loads(tokenizer.backend.to_str())
    names = [tokenizer.backend.id_to_token(i) for i in range(vocab)]
    kinds = [UNUSED if name is None else NORMAL for name in names]
    for i, added in tokenizer.backend.get_added_tokens_decoder().items():
        if i < vocab:
            kinds[i] = CONTROL if added.special else USER
    filled = [f"[PAD{i}]" if name is None else name for i, name in enumerate(names)]
    kind = rules["model"]["type"]
    if kind == "BPE" and "ByteLevel" in {part["type"] for part in _parts(rules["pre_tokenizer"])}:
        fields = _write_byte_level(tokenizer, rules["model"])
    elif kind == "BPE" and rules["model"]["byte_fallback"]:
        fields = _write_scores(filled, kinds, rules)
    elif kind == "Unigram":
        fields = _write_unigram(filled, kinds, rules)
    elif kind == "WordPiece":
        fields = _write_wordpiece(filled, kinds, rules["normalizer"])
    else:
        raise InputError(f"GGUF cannot express a {kind} tokenizer like this one", hint=INSTEAD)
    table = {"tokens": filled, "token_type": kinds} | fields | _special_ids(tokenizer)
    out = {f"{PREFIX}{name}": value for name, value in table.items()}
    if tokenizer.chat_template is not None:
        out["tokenizer.chat_template"] = tokenizer.chat_template
    check_alike(tokenizer, out)
    return out


INSTEAD = "write the weights alone: `tokenizer=False`"


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


def _write_byte_level(tokenizer: Tokenizer, model: Table) -> Table:
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
    return {"model": "gpt2", "pre": best.names[0], "merges": [" ".join(pair) for pair in model["merges"]]}


def _write_scores(names: list[str], kinds: list[int], rules: Table) -> Table:
    """SentencePiece's BPE: a piece scores the less, the later it is first joined."""
    joined: dict[str, int] = {}
    model = rules["model"]
    for rank, (left, right) in enumerate(model["merges"]):
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


def _write_unigram(names: list[str], kinds: list[int], rules: Table) -> Table:
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


def _write_wordpiece(names: list[str], kinds: list[int], normalizer: Table | None) -> Table:
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
