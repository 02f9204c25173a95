"""SentencePiece models (Kudo and Richardson 2018): BPE by scores (LLaMA), Unigram (T5, DeBERTa).

The file is a protocol buffer of three messages that matter: the pieces, how they were trained, how text is
normalised. Reading that takes thirty lines, so no further package is needed.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heedful.core.errors import CorruptFile
from heedful.text.vocabularies import frame_text, set_template

Value = TypeVar("Value", bytes, int)
SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of piece

SYMBOL_SCORE = -0.1  # a user-defined symbol's among log probabilities, in the SentencePiece library


@dataclass
class SentencePieceModel:
    """A SentencePiece model: its pieces in the order of their ids, and how text is prepared for them."""

    names: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    unigram: bool = True  # else BPE
    bos: int = 1  # −1: none
    eos: int = 2
    charsmap: bytes = b""  # the normaliser's table, compiled
    prefix_space: bool = True
    squeeze_spaces: bool = True
    symbols_as_typed: bool = False  # user-defined ones are found before text is normalised, as llama.cpp does

    def special(self) -> list[str]:
        """Return the pieces that are not text, such as <s>, </s> and <unk>."""
        return [n for n, k in zip(self.names, self.kinds, strict=True) if k in (UNKNOWN, CONTROL)]


def read_fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a protocol buffer message: number and value."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        value: bytes | int
        if kind == 0:
            value, at = _read_varint(data, at)
            value = value - (1 << 64) if value >> 63 else value  # a negative number
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _read_varint(data, at)
            if size is None or at + size > len(data):
                raise ValueError("a field runs past the end")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number runs past the end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _expect(value: bytes | int, kind: type[Value]) -> Value:
    if not isinstance(value, kind):
        raise ValueError(f"a field is of type {type(value).__name__} and should be {kind.__name__}")
    return value


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Return the model in a SentencePiece file."""
    out = SentencePieceModel()
    try:
        for number, value in read_fields(path.read_bytes()):
            if number == 1:
                piece = dict(read_fields(_expect(value, bytes)))
                out.names.append(_expect(piece.get(1, b""), bytes).decode("utf-8"))
                score = _expect(piece.get(2, b"\0\0\0\0"), bytes)
                out.scores.append(float(struct.unpack("<f", score)[0]))
                out.kinds.append(_expect(piece.get(3, NORMAL), int))
            elif number == 2:
                train = dict(read_fields(_expect(value, bytes)))
                out.unigram = _expect(train.get(3, 1), int) == 1
                out.bos, out.eos = _expect(train.get(41, 1), int), _expect(train.get(42, 2), int)
            elif number == 3:
                normal = dict(read_fields(_expect(value, bytes)))
                out.charsmap = _expect(normal.get(2, b""), bytes)
                out.prefix_space = bool(normal.get(3, 1))
                out.squeeze_spaces = bool(normal.get(4, 1))
    except (ValueError, struct.error) as error:
        raise CorruptFile(
            f"{path} is damaged, or no SentencePiece model ({error})", hint="fetch it again"
        ) from None
    if not out.names:
        raise CorruptFile(f"{path} holds no pieces", hint="is it a SentencePiece model?")
    return out


def merges_from_scores(
    names: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """Return the merges that scores stand for: pieces join where their union is one, the best score first."""
    ids = {n: i for i, n in enumerate(names) if kinds[i] in (NORMAL, USER, UNUSED)}
    by_score: dict[float, list[tuple[int, int, str, str]]] = defaultdict(list)
    for name, i in ids.items():
        if kinds[i] != NORMAL:
            continue
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in ids and right in ids:
                by_score[scores[i]].append((ids[left], ids[right], left, right))
    best_first = (join for score in sorted(by_score, reverse=True) for join in sorted(by_score[score]))
    return [(left, right) for *_, left, right in best_first]


def renumber_pieces(pieces: SentencePieceModel, vocab: Mapping[str, int]) -> SentencePieceModel:
    """Return the model with the ids of a table for two languages (Marian): `pieces` cuts the first of them.

    A token that only the other language has never joins letters here; it stays readable by its id.
    """
    score = dict(zip(pieces.names, pieces.scores, strict=True))
    kind = dict(zip(pieces.names, pieces.kinds, strict=True))
    names = sorted(vocab, key=vocab.__getitem__)
    last = min(pieces.scores) - 1000.0
    kinds = [CONTROL if name in ("</s>", "<pad>") else kind.get(name, UNUSED) for name in names]
    eos = vocab.get("</s>", -1)
    scores = [score.get(name, last) for name in names]
    return replace(pieces, names=names, scores=scores, kinds=kinds, bos=-1, eos=eos)


def use_xlmr_ids(pieces: SentencePieceModel) -> SentencePieceModel:
    """Return the model with XLM-R's ids: <s> <pad> </s> <unk>, then the pieces, then <mask>."""
    return replace(
        pieces,
        names=["<s>", "<pad>", "</s>", "<unk>", *pieces.names[3:], "<mask>"],
        scores=[0.0, 0.0, 0.0, 0.0, *pieces.scores[3:], 0.0],
        kinds=[CONTROL, CONTROL, CONTROL, UNKNOWN, *pieces.kinds[3:], CONTROL],
        bos=0,
        eos=2,
    )


def build_sentencepiece(
    pieces: SentencePieceModel, *, add_bos: bool, add_eos: bool, extra: Sequence[str] = ()
) -> Tokenizer:
    """Return the model as a tokenizer of the library; `extra` are special tokens behind the pieces."""
    unknown = pieces.kinds.index(UNKNOWN) if UNKNOWN in pieces.kinds else None
    fallback = BYTE in pieces.kinds
    symbols = [name for name, kind in zip(pieces.names, pieces.kinds, strict=True) if kind == USER]
    # Behind a symbol that is found before text is normalised, the rest would begin with a space again.
    inside = bool(symbols) and not pieces.symbols_as_typed and (pieces.unigram or pieces.prefix_space)
    if pieces.unigram:
        every = zip(pieces.names, pieces.scores, pieces.kinds, strict=True)
        scored = [(name, SYMBOL_SCORE if kind == USER else score) for name, score, kind in every]
        backend = Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=fallback))
    else:
        vocab = {name: i for i, name in enumerate(pieces.names)}
        joins = merges_from_scores(pieces.names, pieces.scores, pieces.kinds)
        unk = None if unknown is None else pieces.names[unknown]
        backend = Tokenizer(
            models.BPE(
                vocab, joins, unk_token=unk, fuse_unk=True, byte_fallback=fallback, ignore_merges=inside
            )
        )
    _prepare(backend, pieces, symbols if inside else [])
    special = (*pieces.special(), *extra)
    backend.add_special_tokens([AddedToken(n, normalized=False, special=True) for n in special])
    if not inside:
        backend.add_tokens([AddedToken(n, normalized=not pieces.symbols_as_typed) for n in symbols])
    if "[CLS]" in pieces.names and "[SEP]" in pieces.names:
        set_template(backend, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    else:
        before = pieces.names[pieces.bos] if add_bos and pieces.bos >= 0 else None
        after = pieces.names[pieces.eos] if add_eos and pieces.eos >= 0 else None
        frame_text(backend, before, after)
    return backend


def _prepare(backend: Tokenizer, pieces: SentencePieceModel, symbols: Sequence[str]) -> None:
    """Set how text is normalised, spaces become ▁ and `symbols` stand alone, and how that is undone."""
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.squeeze_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.prefix_space:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    if pieces.unigram:  # where ▁ only ever begins a piece, each word is looked at alone
        split = not any(SPACE in symbol[1:] for symbol in symbols)
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=split)
    elif symbols:
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(longest_first)), "isolated")
    after = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(after + ([decoders.Strip(" ", 1, 0)] if pieces.prefix_space else []))
