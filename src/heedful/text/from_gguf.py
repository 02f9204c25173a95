"""A tokenizer from the metadata of a GGUF file, where everything stands under `tokenizer.ggml.…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from heedful.errors import CorruptFile, InputError
from heedful.text import sentencepiece
from heedful.text import tokenizer as text
from heedful.text.tokenizer import typed_failure
from heedful.text.vocabularies import set_template

# How text is cut before bytes are merged. A cut at digits first: every digit is a piece of its own.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS_THEN_GPT2 = ("smollm", "starcoder", "refact", "command-r", "codeshell")
CUTS = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3, "qwen2": QWEN2}

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
    elif kind == "llama":
        backend = _by_scores(names, kinds, metadata)
    else:
        raise InputError(f"tokenizer.ggml.model={kind!r} cannot be read", hint="gpt2 and llama can")
    found = ((ours, metadata.get(f"tokenizer.ggml.{theirs}_token_id")) for theirs, ours in ROLES.items())
    roles = {role: names[i] for role, i in found if i is not None and 0 <= i < len(names)}
    return text.Tokenizer(backend, roles, metadata.get("tokenizer.chat_template"))


def _byte_level(names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    joins = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", [])]
    pre = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
    # Where whole words are cut out, one that is in the vocabulary is taken as it is.
    backend = Tokenizer(
        models.BPE({n: i for i, n in enumerate(names)}, joins, ignore_merges=CUTS.get(pre) == LLAMA3)
    )
    space = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=pre not in CUTS)
    if pre in CUTS:
        cut: pre_tokenizers.PreTokenizer = pre_tokenizers.Split(Regex(CUTS[pre]), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_alone])
    elif pre in DIGITS_THEN_GPT2:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), bytes_alone]
        )
    elif pre in ("gpt-2", "default"):
        backend.pre_tokenizer = bytes_alone
    else:
        known = ", ".join(["gpt-2", *DIGITS_THEN_GPT2, *CUTS])
        raise InputError(f"tokenizer.ggml.pre={pre!r}: how it cuts words is unknown", hint=f"known: {known}")
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


def _by_scores(names: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    model = sentencepiece.SentencePieceModel(
        names=list(names),
        scores=list(metadata["tokenizer.ggml.scores"]),
        kinds=list(kinds),
        unigram=False,
        bos=int(metadata.get("tokenizer.ggml.bos_token_id", 1)),
        eos=int(metadata.get("tokenizer.ggml.eos_token_id", 2)),
        prefix_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        squeeze_spaces=False,
    )
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", True))
    return sentencepiece.build_sentencepiece(
        model, add_bos=add_bos, add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    )
