"""From the files of a folder to a Tokenizer, and back.

Readers are tried in this order; the first whose files are there is used:

    tokenizer.json                              everything in one file
    vocab.txt                                   WordPiece
    vocab.json + merges.txt                     BPE; also encoder.json + vocab.bpe, and GPT's first names
    source.spm + vocab.json                     SentencePiece with the ids of a table for two languages
    sentencepiece.bpe.model                     SentencePiece with XLM-R's ids
    tokenizer.model, spiece.model, spm.model    SentencePiece
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from heedful.core.errors import CorruptFile
from heedful.core.files import read_json, write_json, write_text
from heedful.text import sentencepiece, vocabularies
from heedful.text.sentencepiece import read_sentencepiece
from heedful.text.tokenizer import ROLES, Tokenizer, typed_failure
from heedful.text.vocabularies import find_word_split

Table = Mapping[str, Any]

BPE_FILES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)
PIECE_FILES = ("tokenizer.model", "spiece.model", "spm.model")

# The tokens of a role where no file names one.
DEFAULT_TOKENS: dict[str, tuple[str, ...]] = {
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}


def load_tokenizer(folder: Path, hf_config: Table | None = None) -> Tokenizer | None:
    """Return the tokenizer in a folder; None if it has none. `hf_config` is the model's config.json."""
    try:
        return _read_tokenizer(Path(folder), hf_config or {})
    except BaseException as error:
        message = f"{folder}: its tokenizer cannot be read"
        raise typed_failure(error, CorruptFile, message, "fetch its tokenizer files again") from None


def _read_tokenizer(folder: Path, hf_config: Table) -> Tokenizer | None:
    settings = _json(folder / "tokenizer_config.json")
    _check_settings(folder / "tokenizer_config.json", settings)
    backend = _read_backend(folder, settings, hf_config)
    if backend is None:
        return None
    named = settings | _json(folder / "special_tokens_map.json")
    try:
        added = named_tokens(backend, named, _json(folder / "added_tokens.json"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{folder}: its added tokens cannot be read ({error!r:.200})"
        raise CorruptFile(message, hint="fetch it again") from None
    vocabularies.add_tokens(backend, added)
    roles = find_roles(backend, named, hf_config)
    return Tokenizer(backend, roles, _chat_template(folder, settings), settings)


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


# What tokenizer_config.json says of a vocabulary that comes without rules of its own.
SETTING_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), (bool,)),
    **dict.fromkeys(("add_prefix_space", "add_bos_token", "add_eos_token"), (bool,)),
    "extra_ids": (int,),
    "model_input_names": (list,),
    "model_max_length": (int, float),
}
MAX_SENTINELS = 100_000


def _check_settings(path: Path, settings: Table) -> None:
    """Raise CorruptFile for a setting of the wrong kind; null is silence."""
    for name, kinds in SETTING_TYPES.items():
        value = settings.get(name)
        infinite = isinstance(value, float) and not math.isfinite(value)
        many = name == "extra_ids" and isinstance(value, int) and value > MAX_SENTINELS
        if value is not None and (not isinstance(value, kinds) or infinite or many):
            expected = {bool: "true or false", list: "a list of names"}.get(kinds[0], "a whole number")
            most = f" of at most {MAX_SENTINELS:,}" if many else ""
            raise CorruptFile(
                f'{path} has "{name}": {value!r:.80}; it should be {expected}{most}', hint="fetch it again"
            )


def _read_backend(folder: Path, settings: Table, hf_config: Table) -> tokenizers.Tokenizer | None:
    """Return the vocabulary and its rules from the first files that are there."""
    has = lambda *names: all((folder / name).is_file() for name in names)
    if has("tokenizer.json"):
        path = folder / "tokenizer.json"
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except BaseException as error:
            raise typed_failure(error, CorruptFile, f"{path} is damaged", "fetch it again") from None
    if has("vocab.txt"):
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        vocab = {line.rstrip("\r"): i for i, line in enumerate(lines)}
        if "[UNK]" in vocab:  # a list without it, of single letters say, is no WordPiece vocabulary
            return vocabularies.build_wordpiece(vocab, settings)
    for vocab_name, merges_name in BPE_FILES:
        if has(vocab_name, merges_name):
            vocab = vocabularies.read_vocabulary_table(folder / vocab_name)
            merges = vocabularies.read_merges(folder / merges_name)
            if any(token.endswith("</w>") for token in vocab):
                return vocabularies.build_word_bpe(vocab, merges)
            qwen = "qwen" in f"{settings.get('tokenizer_class')} {hf_config.get('model_type')}".lower()
            split = find_word_split("qwen2" if qwen else "gpt-2")
            return vocabularies.build_byte_level(vocab, merges, settings, split)
    if has("source.spm", "vocab.json"):
        vocab = vocabularies.read_vocabulary_table(folder / "vocab.json")
        pieces = sentencepiece.renumber_pieces(read_sentencepiece(folder / "source.spm"), vocab)
        languages = [name for name in vocab if name.startswith(">>") and name.endswith("<<")]
        return sentencepiece.build_sentencepiece(pieces, add_bos=False, add_eos=True, extra=languages)
    if has("sentencepiece.bpe.model") and hf_config.get("model_type") == "xlm-roberta":
        # other models shift their ids in other ways
        pieces = sentencepiece.use_xlmr_ids(read_sentencepiece(folder / "sentencepiece.bpe.model"))
        backend = sentencepiece.build_sentencepiece(pieces, add_bos=True, add_eos=True)
        vocabularies.mark_special(backend, ["<mask>"], keep_space=["<mask>"])
        vocabularies.set_template(backend, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
        return backend
    if name := next(filter(has, PIECE_FILES), None):
        pieces = read_sentencepiece(folder / name)
        # Behind the last piece stand T5's sentinels, counted down, and the mask of an encoder.
        sentinels = int(settings.get("extra_ids", 100 if hf_config.get("model_type") == "t5" else 0))
        extra = [f"<extra_id_{i}>" for i in reversed(range(sentinels))]
        extra += ["[MASK]"] if "[CLS]" in pieces.names else []
        return sentencepiece.build_sentencepiece(
            pieces, add_bos=bool(settings.get("add_bos_token", not pieces.unigram)),
            add_eos=bool(settings.get("add_eos_token", pieces.unigram)),
            extra=[name for name in extra if name not in pieces.names],
        )  # fmt: skip
    return None


def named_tokens(
    backend: tokenizers.Tokenizer, settings: Table, added_tokens: Mapping[str, int]
) -> list[tokenizers.AddedToken]:
    """Return the tokens that files next to the vocabulary name, in the order in which they get their ids.

    These are `added_tokens.json` and `added_tokens_decoder`, roles that the vocabulary has, and last
    `additional_special_tokens`, which newer files call `extra_special_tokens`.
    """
    decoder = settings.get("added_tokens_decoder") or {}
    tokens = [
        _token(name, special=False) for name, _ in sorted(added_tokens.items(), key=lambda item: item[1])
    ]
    tokens += [_token(entry) for _, entry in sorted(decoder.items(), key=lambda item: int(item[0]))]
    roles = [_token(settings[f"{role}_token"]) for role in ROLES if settings.get(f"{role}_token")]
    tokens += [token for token in roles if backend.token_to_id(token.content) is not None]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        entries = settings.get(key) or []
        tokens += [_token(entry) for entry in (entries.values() if isinstance(entries, Mapping) else entries)]
    return tokens


def _token(entry: Any, special: bool = True) -> tokenizers.AddedToken:
    """Return a token from its name, or from a table with its name and how it takes spaces."""
    if not isinstance(entry, Mapping):
        return tokenizers.AddedToken(str(entry), normalized=not special, special=special)
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return tokenizers.AddedToken(str(entry["content"]), special=bool(entry.get("special", special)), **flags)


def find_roles(backend: tokenizers.Tokenizer, settings: Table, hf_config: Table) -> dict[str, str]:
    """Map roles to tokens: as the tokenizer's files say, else by config.json's ids, else by usual names.

    Where a file says null there is none, and a usual name stands for a role only if it is not an ordinary
    word.
    """
    roles: dict[str, str] = {}
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    for role in ROLES:
        key = f"{role}_token"
        named = settings.get(key)
        named = named.get("content") if isinstance(named, dict) else named
        number = hf_config.get(f"{key}_id")
        by_id = backend.id_to_token(number) if isinstance(number, int) and number >= 0 else None
        usual = next((token for token in DEFAULT_TOKENS[role] if token in special), None)
        token = named if key in settings else by_id or usual
        if token:
            roles[role] = str(token)
    # RoBERTa, BART: <s> and </s> are all four
    if roles.get("mask") == "<mask>" and {"bos", "eos"} <= set(roles):
        for role, other in (("cls", "bos"), ("sep", "eos")):
            if roles.get(role) not in special:  # MPNet's vocabulary has [CLS] too, which is no special token
                roles[role] = roles[other]
    return roles


def _chat_template(folder: Path, settings: Table) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        by_name = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def save_tokenizer(tokenizer: Tokenizer | None, folder: Path, *, types: bool = False) -> None:
    """Write a tokenizer next to the weights, as `transformers` reads it; nothing if there is none.

    `types` tells it that the model reads token types too, which its class may not reveal.
    """
    if tokenizer is None:
        return
    folder = Path(folder)
    tokenizer.backend.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {k: v for k, v in tokenizer.settings.items() if k != "chat_template"}
    settings.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if types and settings["tokenizer_class"] == "PreTrainedTokenizerFast":
        settings.setdefault("model_input_names", ["input_ids", "token_type_ids", "attention_mask"])
    settings |= {f"{role}_token": token for role, token in tokenizer.roles.items()}
    write_json(folder / "tokenizer_config.json", settings)
    if tokenizer.chat_template is not None:
        write_text(folder / "chat_template.jinja", tokenizer.chat_template)
