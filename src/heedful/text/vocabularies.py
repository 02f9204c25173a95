"""Tokenizers from plain vocabulary files, as models before 2020 were published with.

WordPiece (BERT): the longest known prefix of a word, then of the rest.    Wu et al. 2016 §4.1
Byte-level BPE (GPT-2): merges over bytes, so that nothing is unknown.     Radford et al. 2019 §2.2
Word BPE (GPT): merges over the letters of a lower-cased word, whose last carries </w>.   Sennrich et al. 2016
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from heedful.core.errors import CorruptFile
from heedful.core.files import read_json
from heedful.text.word_splits import WordSplit

Merges = Sequence[tuple[str, str]]


def read_vocabulary_table(path: Path) -> dict[str, int]:
    """Return a JSON table token → id."""
    table: dict[str, int] = read_json(path)
    if not all(isinstance(i, int) for i in table.values()):
        raise CorruptFile(f"{path} is not a table of tokens and ids", hint="fetch it again")
    return table


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the merges of a file with one a line; a first line that starts with #version is a remark."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise CorruptFile(f"{path}:{number}: {line!r} is not a merge of two pieces")
        merges.append((pair[0], pair[1]))
    return merges


def mark_special(backend: Tokenizer, tokens: Sequence[str], *, keep_space: Sequence[str] = ()) -> None:
    """Make those of `tokens` that the vocabulary has special: never split, left out when decoding.

    One in `keep_space` swallows the space before it, as <mask> does in byte-level vocabularies.
    """
    existing = [t for t in tokens if backend.token_to_id(t) is not None]
    backend.add_special_tokens(
        [AddedToken(t, lstrip=t in keep_space, normalized=False, special=True) for t in existing]
    )


def add_tokens(backend: Tokenizer, tokens: Sequence[AddedToken]) -> None:
    """Add tokens that are never split. One that was added before keeps its rules; it may become special."""
    existing = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    wanted: dict[str, AddedToken] = {}
    for token in tokens:
        before = existing.get(token.content)
        if before is not None and (before.special or not token.special):
            continue
        first = wanted.setdefault(token.content, before or token)
        first.special = first.special or token.special
    for are_special, some in groupby(wanted.values(), key=lambda token: token.special):
        add = backend.add_special_tokens if are_special else backend.add_tokens
        add(list(some))


def set_template(backend: Tokenizer, single: str, pair: str) -> None:
    """Set the special tokens around one text and two: "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"."""
    names = {word.split(":")[0] for word in f"{single} {pair}".split() if not word.startswith("$")}
    ids = [(name, backend.token_to_id(name)) for name in sorted(names)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def frame_text(backend: Tokenizer, before: str | None, after: str | None) -> None:
    """Put a special token before every text, after it, or both; with neither, leave the frame as it is."""
    if before or after:
        single = f"{before or ''} $A {after or ''}".strip()
        set_template(backend, single, f"{single} {single.replace('$A', '$B:1')}")


BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build_wordpiece(vocab: Mapping[str, int], settings: Mapping[str, Any]) -> Tokenizer:
    """Return BERT's tokenizer: split at spaces and punctuation, then WordPiece; [CLS] a [SEP] b [SEP].

    With <s>, </s> and <mask> in the vocabulary it is MPNet's: <s> a </s> </s> b </s>.
    """
    backend = Tokenizer(models.WordPiece(dict(vocab), unk_token="[UNK]"))
    has_capitals = any(token != token.lower() for token in vocab if token.isalpha())  # else it is lower-cased
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", not has_capitals)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    if {"<s>", "</s>", "<mask>"} <= vocab.keys():
        mark_special(backend, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), keep_space=("<mask>",))
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), trim_offsets=True, add_prefix_space=False
        )
        return backend
    mark_special(backend, BERT_SPECIAL)
    if "[CLS]" in vocab and "[SEP]" in vocab:
        set_template(backend, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def build_byte_level(
    vocab: Mapping[str, int], merges: Merges, settings: Mapping[str, Any], split: WordSplit
) -> Tokenizer:
    """Return GPT-2's tokenizer; RoBERTa's (<s> a </s> </s> b </s>) if there are <s> and <mask> too.

    With `add_bos_token` among the settings it is OPT's, whose texts begin with </s>.
    """
    prefix = bool(settings.get("add_prefix_space", False))
    backend = Tokenizer(models.BPE(dict(vocab), list(merges)))
    if split.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer(prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    framed = {"<s>", "</s>", "<mask>"} <= vocab.keys()
    if framed or "eos_token" not in settings:  # else the settings name what is special
        usual = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
        mark_special(backend, usual, keep_space=("<mask>",))
    if framed:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), trim_offsets=True, add_prefix_space=prefix
        )
    bos = settings.get("bos_token")
    bos = bos.get("content") if isinstance(bos, Mapping) else bos
    if settings.get("add_bos_token") and bos in vocab:
        frame_text(backend, bos, None)
    return backend


def build_word_bpe(vocab: Mapping[str, int], merges: Merges) -> Tokenizer:
    """Return GPT's tokenizer: lower-cased words, merged letter by letter; </w> marks the end of a word."""
    backend = Tokenizer(models.BPE(dict(vocab), list(merges), unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    mark_special(backend, ("<unk>",))
    return backend
