"""Tokenizers from text: BPE, WordPiece, Unigram, words, characters. The same text gives the same one.

bpe         merges of the most frequent pairs of bytes     Sennrich et al. 2016; Radford et al. 2019
wordpiece   the same over letters, ## inside words         Schuster and Nakajima 2012; Devlin et al. 2019
unigram     the pieces that make the text most probable    Kudo 2018
word        whole words, split at white space
char        single characters
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from heedful.errors import InputError, nearest
from heedful.files import Paths, expand_paths, name_files, read_lines
from heedful.text.tokenizer import ROLES, Tokenizer
from heedful.text.vocabularies import set_template

Lines = Callable[[], Iterator[str]]
Specials = Mapping[str, str]

# What a role is called, and which roles a kind has if none are asked for.
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
    """A tokenizer of at most `vocab` tokens, special ones included, for the text of these files.

    `special` are roles (bos, eos, pad, unk, mask, cls, sep); None is what the kind usually has. With cls and
    sep they stand around a text as in BERT; Unigram ends a text with eos as T5 does. `sentinels` adds T5's
    <extra_id_0> … for span corruption.
    """
    if kind not in TRAINERS:
        hint = nearest(kind, TRAINERS) or f"one of {', '.join(TRAINERS)}"
        raise InputError(f"no kind of tokenizer is called {kind!r}; {hint}")
    roles = special_tokens(kind, special)
    if type(vocab) is not int or type(sentinels) is not int or sentinels < 0:
        raise InputError(f"vocab={vocab!r} and sentinels={sentinels!r} must be whole numbers")
    extra = [f"<extra_id_{i}>" for i in reversed(range(sentinels))]
    paths = expand_paths(files)
    lines = lambda: (line for path in paths for line in read_lines(path, encoding, keep_ends=True))
    if not any(line.strip() for line in lines()):
        raise InputError(f"{name_files(paths)} holds no text to learn a vocabulary from")
    room = vocab - len(set(roles.values())) - len(extra)
    if room < 1:
        raise InputError(f"vocab={vocab} is too small: special tokens alone are {vocab - room}")
    backend = TRAINERS[kind](lines, roles, room, lower)
    names = dict.fromkeys([*roles.values(), *extra])
    as_special = lambda t: AddedToken(t, lstrip=t == "<mask>", normalized=False, special=True)
    backend.add_special_tokens([as_special(t) for t in names])
    if {"cls", "sep"} <= set(roles):
        cls, sep = roles["cls"], roles["sep"]
        set_template(backend, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1")
    elif kind == "unigram" and "eos" in roles:
        set_template(backend, f"$A {roles['eos']}", f"$A {roles['eos']} $B {roles['eos']}")
    return Tokenizer(backend, roles)


def special_tokens(kind: str, wanted: Sequence[str] | None) -> dict[str, str]:
    """Role → token. Bytes leave nothing unknown; the other kinds would drop it silently, so they have unk."""
    roles = DEFAULT_ROLES[kind] if wanted is None else tuple(wanted)
    for role in roles:
        if role not in ROLES:
            hint = nearest(role, ROLES) or f"one of {', '.join(ROLES)}"
            raise InputError(f"no special token is for {role!r}; {hint}")
    if kind != "bpe" and "unk" not in roles:
        roles = ("unk", *roles)
    return {role: TOKENS[kind][role] for role in roles}


def _bpe(lines: Lines, roles: Specials, room: int, lower: bool) -> tokenizers.Tokenizer:
    """Starts from all 256 bytes, so that nothing is unknown."""
    if room < 256:
        raise InputError(f"vocab={room + len(set(roles.values()))} is too small: bytes alone are 256 tokens")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Lowercase() if lower else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    named, alphabet = list(dict.fromkeys(roles.values())), pre_tokenizers.ByteLevel.alphabet()
    size = room + len(named)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=named, show_progress=False
    )
    backend.train_from_iterator(lines(), trainer)
    return backend


def _wordpiece(lines: Lines, roles: Specials, room: int, lower: bool) -> tokenizers.Tokenizer:
    """The library numbers ##letters in the order of a hash table, and numbers decide between equally frequent
    pairs: so they are found here first and numbered in their order."""
    cut = pre_tokenizers.BertPreTokenizer()
    tidy = normalizers.BertNormalizer(lowercase=lower)
    inside: set[str] = set()
    for line in lines():
        for word, _ in cut.pre_tokenize_str(tidy.normalize_str(line)):
            inside.update(word[1:])
    named = list(dict.fromkeys(roles.values()))
    letters = [f"##{c}" for c in sorted(inside)]
    if room <= len(letters):
        least = len(named) + len(letters) + 1
        raise InputError(f"vocab={room + len(named)} is too small: the letters of this text need {least}")
    school = tokenizers.Tokenizer(models.WordPiece(unk_token=roles["unk"]))
    school.normalizer, school.pre_tokenizer = tidy, cut
    trainer = trainers.WordPieceTrainer(
        vocab_size=room + len(named), special_tokens=[*named, *letters], show_progress=False
    )
    school.train_from_iterator(lines(), trainer)
    backend = tokenizers.Tokenizer(models.WordPiece(school.get_vocab(False), unk_token=roles["unk"]))
    backend.normalizer, backend.pre_tokenizer = tidy, cut
    backend.decoder = decoders.WordPiece(cleanup=True)
    return backend


def _unigram(lines: Lines, roles: Specials, room: int, lower: bool) -> tokenizers.Tokenizer:
    """▁ stands for the space before a word."""
    named = list(dict.fromkeys(roles.values()))
    school = tokenizers.Tokenizer(models.Unigram())
    fold = [normalizers.Lowercase()] if lower else []
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    tidy = normalizers.Sequence([normalizers.NFKC(), *fold, *spaces])
    school.normalizer, school.pre_tokenizer = tidy, pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=room + len(named), special_tokens=named, unk_token=roles["unk"], show_progress=False
    )
    try:
        school.train_from_iterator(lines(), trainer)
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"no unigram tokenizer of {room} pieces for this text: {error}") from None
    pieces = stable_scores(
        [(p, s) for p, s in json.loads(school.to_str())["model"]["vocab"] if p not in named]
    )
    table = [*((name, 0.0) for name in named), *pieces]
    backend = tokenizers.Tokenizer(models.Unigram(table, unk_id=named.index(roles["unk"])))
    backend.normalizer, backend.pre_tokenizer = tidy, pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def stable_scores(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pieces in one order with one score each, whichever way the library went through the words.

    Its sums differ in their last digits from run to run, and letters too rare to be counted get scores just
    above the lowest, one after another in the order of a hash table: sums are rounded, those letters sorted.
    """
    lowest, step = min(score for _, score in pieces), 1e-4
    near = lambda score, k: abs(score - lowest - k * step) < step / 100
    rare: list[str] = []
    while found := [p for p, score in pieces if len(p) == 1 and near(score, len(rare))]:
        rare += found
    known = [(piece, round(score, 6)) for piece, score in pieces if piece not in set(rare)]
    low = [(piece, round(lowest + k * step, 6)) for k, piece in enumerate(sorted(rare))]
    return sorted([*known, *low], key=lambda p: (-p[1], p[0]))


def _word(lines: Lines, roles: Specials, room: int, lower: bool) -> tokenizers.Tokenizer:
    """The most frequent words; equally frequent ones in the order of the alphabet."""
    fold = str.lower if lower else str
    found = Counter(word for line in lines() for word in fold(line).split())
    return _build_word_level(
        _most_frequent(found, roles, room), roles, lower, pre_tokenizers.WhitespaceSplit()
    )


def _char(lines: Lines, roles: Specials, room: int, lower: bool) -> tokenizers.Tokenizer:
    """The most frequent characters, in the order of their code points."""
    fold = str.lower if lower else str
    found: Counter[str] = Counter()
    for line in lines():
        found.update(fold(line))
    backend = _build_word_level(
        sorted(_most_frequent(found, roles, room)), roles, lower, pre_tokenizers.Split("", "isolated")
    )
    backend.decoder = decoders.Fuse()
    return backend


def _most_frequent(found: Counter[str], roles: Specials, room: int) -> list[str]:
    for token in roles.values():  # a text may use <unk> itself
        found.pop(token, None)
    return sorted(found, key=lambda w: (-found[w], w))[: max(room, 0)]


def _build_word_level(words: Iterable[str], roles: Specials, lower: bool, cut: Any) -> tokenizers.Tokenizer:
    names = dict.fromkeys([*roles.values(), *words])
    vocab = {name: i for i, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=roles["unk"]))
    backend.normalizer = normalizers.Lowercase() if lower else None
    backend.pre_tokenizer = cut
    return backend


Trainer = Callable[[Lines, Specials, int, bool], tokenizers.Tokenizer]
TRAINERS: dict[str, Trainer] = {
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "word": _word,
    "char": _char,
}
