"""Names of tokens that spell bytes by letters, and the bytes they stand for."""

from __future__ import annotations

import functools

from heedful.text.bpe import letters_of_bytes
from heedful.text.tokenizer import Tokenizer


def by_bytes(tokenizer: Tokenizer) -> bool:
    """Whether the names in the vocabulary spell bytes by letters (Ġ for a space)."""
    decoder = tokenizer.backend.decoder
    return decoder is not None and "ByteLevel" in str(decoder)


@functools.cache
def bytes_of_letters() -> dict[str, int]:
    return {letter: b for b, letter in letters_of_bytes().items()}


def bytes_of(tokenizer: Tokenizer, token: str) -> bytes | None:
    """The bytes that a token of such a vocabulary stands for; None for a special one."""
    back = bytes_of_letters()
    if token in tokenizer.roles.values() or any(c not in back for c in token):
        return None
    return bytes(back[c] for c in token)
