"""A tokenizer from the metadata of a GGUF file, where everything stands under `tokenizer.ggml.…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from heedful.errors import CorruptFile, InputError
from heedful.text import sentencepiece
from heedful.text import tokenizer as text
from heedful.text.tokenizer import typed_failure
from heedful.text.vocabularies import build_wordpiece, set_template

# How text is cut before bytes are merged. A cut at digits first: every digit is a piece of its own.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS_THEN_GPT2 = ("smollm", "starcoder", "refact", "command-r", "codeshell")
LIKE_GPT2 = ("gpt-2", "default", "phi-2", "olmo", "mpt", "jais", "modern-bert")
CUTS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen"), QWEN2),
}
WRITTEN_CUTS = ("gpt-2", "smollm", "llama-bpe", "qwen2")  # one name for each way

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
    found = ((ours, metadata.get(f"tokenizer.ggml.{theirs}_token_id")) for theirs, ours in ROLES.items())
    roles = {role: str(backend.id_to_token(i)) for role, i in found if i is not None and 0 <= i < len(names)}
    return text.Tokenizer(backend, roles, metadata.get("tokenizer.chat_template"))


def _byte_level(names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    joins = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", [])]
    pre = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
    # Where whole words are cut out, one that is in the vocabulary is taken as it is.
    backend = Tokenizer(
        models.BPE({n: i for i, n in enumerate(names)}, joins, ignore_merges=CUTS.get(pre) == LLAMA3)
    )
    backend.pre_tokenizer = cut_words(pre, space=bool(metadata.get("tokenizer.ggml.add_space_prefix", False)))
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    control = [
        n for n, k in zip(names, kinds, strict=True) if k in (sentencepiece.CONTROL, sentencepiece.UNKNOWN)
    ]
    user = [n for n, k in zip(names, kinds, strict=True) if k == sentencepiece.USER]
    backend.add_special_tokens([AddedToken(n, normalized=False, special=True) for n in control])
    backend.add_tokens([AddedToken(n, normalized=False) for n in user])
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", False) and first is not None:
        set_template(backend, f"{names[first]} $A", f"{names[first]} $A $B:1")
    return backend


def cut_words(pre: str, space: bool = False) -> pre_tokenizers.PreTokenizer:
    """Return how text is cut into words of bytes, by the name that GGUF has for it."""
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=pre not in CUTS)
    if pre in CUTS:
        cut: pre_tokenizers.PreTokenizer = pre_tokenizers.Split(Regex(CUTS[pre]), "isolated")
    elif pre in DIGITS_THEN_GPT2:
        cut = pre_tokenizers.Digits(individual_digits=True)
    elif pre in LIKE_GPT2:
        return bytes_alone
    else:
        known = ", ".join([*LIKE_GPT2, *DIGITS_THEN_GPT2, *CUTS])
        raise InputError(f"tokenizer.ggml.pre={pre!r}: how it cuts words is unknown", hint=f"known: {known}")
    return pre_tokenizers.Sequence([cut, bytes_alone])


def _by_scores(
    names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any], unigram: bool
) -> Tokenizer:
    """SentencePiece: BPE by scores (llama) or Unigram (t5), which ends a text instead of beginning it."""
    told = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    model = sentencepiece.SentencePieceModel(
        names=list(names),
        scores=list(told["scores"]),
        kinds=list(kinds),
        unigram=unigram,
        bos=int(told.get("bos_token_id", -1 if unigram else 1)),
        eos=int(told.get("eos_token_id", 1 if unigram else 2)),
        charsmap=bytes(told.get("precompiled_charsmap", [])),
        prefix_space=bool(told.get("add_space_prefix", True)),
        squeeze_spaces=unigram and bool(told.get("remove_extra_whitespaces", True)),
    )
    return sentencepiece.build_sentencepiece(
        model,
        add_bos=bool(told.get("add_bos_token", not unigram)),
        add_eos=bool(told.get("add_eos_token", unigram)),
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
