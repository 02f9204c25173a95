"""A tokenizer from the metadata of a GGUF file, where everything stands under `tokenizer.ggml.…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from heedful.core.errors import CorruptFile, InputError
from heedful.text import sentencepiece
from heedful.text import tokenizer as text
from heedful.text.tokenizer import typed_failure
from heedful.text.vocabularies import add_tokens, build_wordpiece, frame_text, mark_special
from heedful.text.word_splits import find_word_split

ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unknown": "unk",
    "padding": "pad",
    "mask": "mask",
    "cls": "cls",
    "seperator": "sep",
}


def from_gguf(metadata: Mapping[str, Any], where: str = "the GGUF file") -> text.Tokenizer | None:
    """Return the tokenizer that a GGUF file describes, or None; `where` names the file in errors."""
    try:
        return _read_tokenizer(metadata)
    except BaseException as error:
        message = f"{where}: its vocabulary does not fit together"
        raise typed_failure(error, CorruptFile, message, "fetch it again") from None


def _read_tokenizer(metadata: Mapping[str, Any]) -> text.Tokenizer | None:
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind in ("none", "no_vocab"):
        return None
    names = list(metadata.get("tokenizer.ggml.tokens", []))
    kinds = list(metadata.get("tokenizer.ggml.token_type") or [sentencepiece.NORMAL] * len(names))
    if kind == "gpt2":
        backend = _byte_level(names, kinds, metadata)
    elif kind in ("llama", "t5"):
        backend = _by_scores(names, kinds, metadata, unigram=kind == "t5")
    elif kind == "bert":
        backend = _wordpiece(names, kinds, metadata)
    else:
        raise InputError(f"tokenizer.ggml.model={kind!r} cannot be read", hint="gpt2, llama, t5 and bert can")
    ids = ((ours, metadata.get(f"tokenizer.ggml.{theirs}_token_id")) for theirs, ours in ROLES.items())
    roles = {role: str(backend.id_to_token(i)) for role, i in ids if i is not None and 0 <= i < len(names)}
    if "eos" in roles:  # some files keep it among the words
        add_tokens(backend, [AddedToken(roles["eos"], normalized=False, special=True)])
    return text.Tokenizer(backend, roles, metadata.get("tokenizer.chat_template"))


def _byte_level(names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    settings = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    joins = [tuple(m.split(" ", 1)) for m in settings.get("merges", [])]
    split = find_word_split(str(settings.get("pre", "gpt-2")))
    vocab = {name: i for i, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab, joins, ignore_merges=split.whole_words))
    if split.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer(prefix_space=bool(settings.get("add_space_prefix", False)))
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    special = (sentencepiece.CONTROL, sentencepiece.UNKNOWN)
    control = [name for name, kind in zip(names, kinds, strict=True) if kind in special]
    user = [name for name, kind in zip(names, kinds, strict=True) if kind == sentencepiece.USER]
    mask = settings.get("mask_token_id")
    keep_space = () if mask is None else (names[mask],)
    mark_special(backend, control, keep_space=keep_space)
    backend.add_tokens([AddedToken(name, normalized=False) for name in user])
    begins, ends = settings.get("add_bos_token", split.adds_bos), settings.get("add_eos_token", False)
    first = settings.get("bos_token_id", settings.get("cls_token_id")) if begins else None
    last = settings.get("eos_token_id", settings.get("seperator_token_id")) if ends else None
    frame_text(backend, None if first is None else names[first], None if last is None else names[last])
    return backend


def _by_scores(
    names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any], unigram: bool
) -> Tokenizer:
    """SentencePiece: BPE by scores (llama) or Unigram (t5), which ends a text instead of beginning it."""
    settings = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    model = sentencepiece.SentencePieceModel(
        names=list(names),
        scores=list(settings["scores"]),
        kinds=list(kinds),
        unigram=unigram,
        bos=int(settings.get("bos_token_id", -1 if unigram else 1)),
        eos=int(settings.get("eos_token_id", 1 if unigram else 2)),
        charsmap=bytes(settings.get("precompiled_charsmap", [])),
        prefix_space=bool(settings.get("add_space_prefix", True)),
        squeeze_spaces=unigram and bool(settings.get("remove_extra_whitespaces", True)),
        symbols_as_typed=True,
    )
    return sentencepiece.build_sentencepiece(
        model,
        add_bos=bool(settings.get("add_bos_token", not unigram)),
        add_eos=bool(settings.get("add_eos_token", unigram)),
    )


def _wordpiece(names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    """WordPiece: a piece that begins a word is marked there, and here one that goes on."""
    special = (sentencepiece.CONTROL, sentencepiece.UNKNOWN, sentencepiece.USER, sentencepiece.UNUSED)
    ours = [
        name
        if kind in special
        else name.removeprefix(sentencepiece.SPACE)
        if name.startswith(sentencepiece.SPACE)
        else f"##{name}"
        for name, kind in zip(names, kinds, strict=True)
    ]
    lower = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
    settings = {
        "do_lower_case": lower,
        "strip_accents": bool(metadata.get("tokenizer.ggml.normalizer.strip_accents", lower)),
    }
    return build_wordpiece({name: i for i, name in enumerate(ours)}, settings)
