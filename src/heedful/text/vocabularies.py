"""Tokenizers from plain vocabulary files, as models before 2020 were published with.

WordPiece (BERT): the longest known prefix of a word, then of the rest.    Wu et al. 2016 §4.1
Byte-level BPE (GPT-2): merges over bytes, so that nothing is unknown.     Radford et al. 2019 §2.2
Word BPE (GPT): merges over the letters of a lower-cased word, whose last carries </w>.   Sennrich et al. 2016
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from heedful.core.errors import CorruptFile, InputError
from heedful.core.files import read_json

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


def make_backend(
    model: models.Model, normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None, decoder: decoders.Decoder | None = None,
) -> Tokenizer:  # fmt: skip
    """Return a tokenizer of the library from its parts: what changes a text, splits it, and joins tokens."""
    backend = Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, pre_tokenizer, decoder
    return backend


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
    has_capitals = any(token != token.lower() for token in vocab if token.isalpha())  # else it is lower-cased
    normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", not has_capitals)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    model, decoder = models.WordPiece(dict(vocab), unk_token="[UNK]"), decoders.WordPiece(cleanup=True)
    backend = make_backend(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoder)
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


def byte_level_backend(
    vocab: Mapping[str, int], merges: Merges, split: WordSplit, prefix_space: bool, whole_words: bool = False
) -> Tokenizer:
    """Return BPE over bytes, without special tokens; `whole_words` leaves words of the vocabulary unsplit."""
    model = models.BPE(dict(vocab), list(merges), ignore_merges=whole_words)
    normalizer = normalizers.NFC() if split.composed else None
    backend = make_backend(model, normalizer, split.pre_tokenizer(prefix_space), decoders.ByteLevel())
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def build_byte_level(
    vocab: Mapping[str, int], merges: Merges, settings: Mapping[str, Any], split: WordSplit
) -> Tokenizer:
    """Return GPT-2's tokenizer; RoBERTa's (<s> a </s> </s> b </s>) if there are <s> and <mask> too.

    With `add_bos_token` among the settings it is OPT's, whose texts begin with </s>.
    """
    prefix = bool(settings.get("add_prefix_space", False))
    backend = byte_level_backend(vocab, merges, split, prefix)
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
    model = models.BPE(dict(vocab), list(merges), unk_token="<unk>", end_of_word_suffix="</w>")
    split, decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")
    backend = make_backend(model, normalizers.BertNormalizer(lowercase=True), split, decoder)
    mark_special(backend, ("<unk>",))
    return backend


# How byte-level vocabularies split text into words before bytes are merged, by the names that GGUF has.
#
# A GGUF file names the way and does not describe it. Each of these is the `pre_tokenizer` of the models that
# the name stands for: regular expressions, each applied to what the one before left whole.


Step = str | pre_tokenizers.PreTokenizer

ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = ENDINGS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{LINES}"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*")  # camel|Case
MARKS_AND_LINES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}"
# DeepSeek LLM lists letters that have a case one by one: all, but for a few blocks
LISTED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{10D50}-\x{10D8F}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DFFF}]]"
)
IDEOGRAPHS, IDEOGRAPHS_OR_KANA = "[一-龥ࠀ-一가-퟿]+", "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + LINES


@dataclass(frozen=True)
class WordSplit:
    """One way to split text into words, and what always goes with it.

    `composed`: text is brought into Unicode's form C first. `whole_words`: a word that the vocabulary has is
    used as it is, even if its bytes merge to another. `adds_bos`: texts begin with bos, unless told no.
    """

    names: tuple[str, ...]  # the first is written
    steps: tuple[Step, ...]
    composed: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self, prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
        """Return it as a part of the `tokenizers` library, which writes each word as letters for its bytes.

        `prefix_space` puts a space before a text; only words split as GPT-2's have one.
        """
        if self.steps == (GPT2,):
            return pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        steps = [pre_tokenizers.Split(Regex(s), "isolated") if isinstance(s, str) else s for s in self.steps]
        if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


WORD_SPLITS = (
    WordSplit(("gpt-2", "phi-2", "jais", "roberta-bpe", "exaone4", "mellum", "trillion"), (GPT2,)),
    WordSplit(("olmo", "mpt", "modern-bert"), (GPT2,), composed=True),  # as GPT-NeoX
    WordSplit(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"),
        (pre_tokenizers.Digits(individual_digits=True), GPT2),
    ),
    WordSplit(("command-r",), (pre_tokenizers.Digits(individual_digits=True), GPT2), composed=True),
    WordSplit(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        (LLAMA3,), whole_words=True, adds_bos=True,
    ),
    WordSplit(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), (LLAMA3,)),
    WordSplit(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), (QWEN2,), composed=True),
    WordSplit(
        ("gpt-4o", "llama4"),
        ("|".join([*(f"{cased}(?i:{ENDINGS})?" for cased in CASED), r"\p{N}{1,3}", MARKS_AND_LINES]),),
    ),
    WordSplit(
        ("tekken",), ("|".join([*CASED, r"\p{N}", MARKS_AND_LINES]),), whole_words=True, adds_bos=True
    ),
    WordSplit(
        ("falcon",),
        (
            pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False), "[0-9][0-9][0-9]",
        ),
    ),
    WordSplit(("bloom", "gpt3-finnish", "poro-chat"), (r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    WordSplit(
        ("deepseek-coder",),
        (
            r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS,
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
    WordSplit(
        ("deepseek-llm",),
        (
            r"[\r\n]", rf"\s?{LISTED}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", IDEOGRAPHS,
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
    WordSplit(("deepseek-v3",), (r"\p{N}{1,3}", IDEOGRAPHS_OR_KANA, DEEPSEEK3)),
    # llama.cpp's own, for a file that does not say
    WordSplit(("default",), (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)  # fmt: skip
BY_NAME = {name: split for split in WORD_SPLITS for name in split.names}


def find_word_split(name: str) -> WordSplit:
    """Return the way to split text by its name in GGUF."""
    if name not in BY_NAME:
        hint = f"known: {', '.join(BY_NAME)}"
        raise InputError(f"tokenizer.ggml.pre={name!r}: how it splits words is unknown", hint=hint)
    return BY_NAME[name]
