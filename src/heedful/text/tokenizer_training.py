"""Tokenizers learned from text: BPE, WordPiece, Unigram, words, characters. The same text gives the same one.

bpe         merges of the most frequent pairs of bytes     Sennrich et al. 2016; Radford et al. 2019
wordpiece   the same over letters, ## inside words         Schuster and Nakajima 2012; Devlin et al. 2019
unigram     the pieces that make the text most probable    Kudo 2018
word        whole words, split at white space
char        single characters
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError, count_of
from heedful.core.files import Paths, expand_paths, name_files, read_lines
from heedful.text.tokenizer import ROLES, Tokenizer
from heedful.text.vocabularies import make_backend, set_template

Lines = Callable[[], Iterator[str]]
Specials = Mapping[str, str]

# The token of each role, and the roles a kind has by default.
ANGLES = {r: f"<{r}>" for r in ROLES} | {"bos": "<s>", "eos": "</s>"}
TOKENS: dict[str, dict[str, str]] = {
    "bpe": ANGLES | {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "cls": "<s>", "sep": "</s>"},
    "wordpiece": {r: f"[{r.upper()}]" for r in ROLES},
    "unigram": ANGLES,
    "word": ANGLES | {"eos": "<eos>"},
    "char": ANGLES,
}
DEFAULT_ROLES: dict[str, tuple[str, ...]] = {
    "bpe": ("bos", "eos"),
    "wordpiece": ("pad", "unk", "cls", "sep", "mask"),
    "unigram": ("pad", "eos", "unk"),
    "word": ("unk", "eos"),
    "char": ("unk",),
}


def train_tokenizer(
    kind: str,
    files: Paths,
    vocab: int = 8000,
    *,
    special: Sequence[str] | None = None,
    sentinels: int = 0,
    lower: bool = False,
    encoding: str = "utf-8",
) -> Tokenizer:
    """Train a tokenizer with at most `vocab` tokens on the text of some files.

    >>> import heedful
    >>> from pathlib import Path
    >>> written = Path("corpus.txt").write_text("the cat sat on the mat. " * 40)
    >>> tokenizer = heedful.train_tokenizer("bpe", ["corpus.txt"], vocab=280)
    >>> tokenizer.decode(tokenizer.encode("the cat"))
    'the cat'

    Args:
        kind: bpe, wordpiece, unigram, word or char.
        files: Text files or folders.
        vocab: The largest number of tokens, including special ones.
        special: Roles of special tokens (bos, eos, pad, unk, mask, cls, sep). The default is what this kind
            usually has. With cls and sep, they surround a text as in BERT. Unigram ends a text with eos as
            T5 does.
        sentinels: Add this number of T5's <extra_id_0> tokens for span corruption.
        lower: Convert texts to lower case.
        encoding: The encoding of the files.
    """
    check_choice("kind", kind, TRAINERS)
    check_integer("vocab", vocab, minimum=None)
    check_integer("sentinels", sentinels, minimum=0)
    roles = special_tokens(kind, special)
    extra = [f"<extra_id_{i}>" for i in reversed(range(sentinels))]
    paths = expand_paths(files)
    lines = lambda: (line for path in paths for line in read_lines(path, encoding, keep_ends=True))
    if not any(line.strip() for line in lines()):
        raise InputError(f"{name_files(paths)} holds no text to learn a vocabulary from")
    size = vocab - len(set(roles.values())) - len(extra)
    if size < 1:
        tokens = count_of(vocab - size, "special tokens")
        raise InputError(f"`vocab={vocab}` is too small: it leaves no room next to {tokens}")
    backend = TRAINERS[kind](lines, roles, size, lower)
    names = dict.fromkeys([*roles.values(), *extra])
    as_special = lambda t: AddedToken(t, lstrip=t == "<mask>", normalized=False, special=True)
    backend.add_special_tokens([as_special(t) for t in names])
    if {"cls", "sep"} <= set(roles):
        cls, sep = roles["cls"], roles["sep"]
        set_template(backend, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    elif kind == "unigram" and "eos" in roles:
        set_template(backend, f"$A {roles['eos']}", f"$A {roles['eos']} $B {roles['eos']}")
    return Tokenizer(backend, roles)


def special_tokens(kind: str, roles: Sequence[str] | None) -> dict[str, str]:
    """Map roles to tokens. Kinds other than bytes have unk in any case: they would drop text silently."""
    names = DEFAULT_ROLES[kind] if roles is None else tuple(roles)
    for role in names:
        check_choice("special", role, ROLES)
    if kind != "bpe" and "unk" not in names:
        names = ("unk", *names)
    return {role: TOKENS[kind][role] for role in names}


def _train_bpe(lines: Lines, roles: Specials, size: int, lower: bool) -> tokenizers.Tokenizer:
    """Start from all 256 bytes, so that nothing is unknown."""
    if size < 256:
        raise InputError(
            f"`vocab={size + len(set(roles.values()))}` is too small: bytes alone are 256 tokens"
        )
    normalizer, split = normalizers.Lowercase() if lower else None, pre_tokenizers.ByteLevel(False)
    backend = make_backend(models.BPE(), normalizer, split, decoders.ByteLevel())
    special, alphabet = list(dict.fromkeys(roles.values())), pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size + len(special), initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(lines(), trainer)
    return backend


def _train_wordpiece(lines: Lines, roles: Specials, size: int, lower: bool) -> tokenizers.Tokenizer:
    """Find the ##letters first and number them in their order.

    The library numbers them in the order of a hash table, and numbers decide between equally frequent pairs.
    """
    split = pre_tokenizers.BertPreTokenizer()
    normalizer = normalizers.BertNormalizer(lowercase=lower)
    inside: set[str] = set()
    for line in lines():
        for word, _ in split.pre_tokenize_str(normalizer.normalize_str(line)):
            inside.update(word[1:])
    special = list(dict.fromkeys(roles.values()))
    letters = [f"##{c}" for c in sorted(inside)]
    if size <= len(letters):
        minimum = len(special) + len(letters) + 1
        raise InputError(
            f"`vocab={size + len(special)}` is too small", hint=f"the letters of this text need {minimum}"
        )
    learner = make_backend(models.WordPiece(unk_token=roles["unk"]), normalizer, split)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + len(special), special_tokens=[*special, *letters], show_progress=False
    )
    learner.train_from_iterator(lines(), trainer)
    model = models.WordPiece(learner.get_vocab(False), unk_token=roles["unk"])
    return make_backend(model, normalizer, split, decoders.WordPiece(cleanup=True))


def _train_unigram(lines: Lines, roles: Specials, size: int, lower: bool) -> tokenizers.Tokenizer:
    """Write the space before a word as ▁."""
    special = list(dict.fromkeys(roles.values()))
    fold = [normalizers.Lowercase()] if lower else []
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    normalizer = normalizers.Sequence([normalizers.NFKC(), *fold, *spaces])
    learner = make_backend(models.Unigram(), normalizer, pre_tokenizers.Metaspace())
    trainer = trainers.UnigramTrainer(
        vocab_size=size + len(special), special_tokens=special, unk_token=roles["unk"], show_progress=False
    )
    try:
        learner.train_from_iterator(lines(), trainer)
    except Exception as error:  # the library raises bare Exception
        most = count_of(size, "pieces")
        raise InputError(f"no unigram tokenizer of {most} for this text: {error}") from None
    vocab = json.loads(learner.to_str())["model"]["vocab"]
    pieces = stable_scores([(piece, score) for piece, score in vocab if piece not in special])
    table = [*((name, 0.0) for name in special), *pieces]
    model = models.Unigram(table, unk_id=special.index(roles["unk"]))
    return make_backend(model, normalizer, pre_tokenizers.Metaspace(), decoders.Metaspace())


def stable_scores(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return pieces in one order with one score each, however the library went through the words.

    Its sums differ in their last digits from run to run, and letters too rare to be counted get scores just
    above the lowest, one after another in the order of a hash table: sums are rounded, those letters sorted.
    """
    lowest, step = min(score for _, score in pieces), 1e-4
    near = lambda score, k: abs(score - lowest - k * step) < step / 100
    rare: list[str] = []
    while single := [p for p, score in pieces if len(p) == 1 and near(score, len(rare))]:
        rare += single
    frequent = [(piece, round(score, 6)) for piece, score in pieces if piece not in set(rare)]
    low = [(piece, round(lowest + k * step, 6)) for k, piece in enumerate(sorted(rare))]
    return sorted([*frequent, *low], key=lambda p: (-p[1], p[0]))


def _train_word_level(
    lines: Lines, roles: Specials, size: int, lower: bool, characters: bool = False
) -> tokenizers.Tokenizer:
    """Take the most frequent words, or characters; equally frequent ones in the order of the alphabet.

    Characters are numbered in the order of their code points.
    """
    fold = str.lower if lower else str
    counts: Counter[str] = Counter()
    for line in lines():
        counts.update(fold(line) if characters else fold(line).split())
    for token in roles.values():  # a text may use <unk> itself
        counts.pop(token, None)
    units = sorted(counts, key=lambda unit: (-counts[unit], unit))[: max(size, 0)]
    names = dict.fromkeys([*roles.values(), *(sorted(units) if characters else units)])
    vocab = {name: i for i, name in enumerate(names)}
    model = models.WordLevel(vocab, unk_token=roles["unk"])
    normalizer = normalizers.Lowercase() if lower else None
    if characters:
        return make_backend(model, normalizer, pre_tokenizers.Split("", "isolated"), decoders.Fuse())
    return make_backend(model, normalizer, pre_tokenizers.WhitespaceSplit())


Trainer = Callable[[Lines, Specials, int, bool], tokenizers.Tokenizer]
TRAINERS: dict[str, Trainer] = {
    "bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
    "unigram": _train_unigram,
    "word": _train_word_level,
    "char": partial(_train_word_level, characters=True),
}
