"""What the ids of a vocabulary stand for: special, continuing a word, ending a sentence."""

from __future__ import annotations

import numpy as np

from heedful.data.corrupt import Flags
from heedful.data.tokens import Named, Tokenizer, frame, names, special_ids
from heedful.errors import InputError

SPACES = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word


def special(tokenizer: Tokenizer) -> Flags:
    """(V) ids that are no text: never masked, never drawn at random."""
    around = frame(tokenizer)
    flags = np.zeros(len(tokenizer), bool)
    flags[[*special_ids(tokenizer).values(), *around.before, *around.between, *around.after]] = True
    return flags


def continues(tokenizer: Tokenizer) -> Flags:
    """(V) ids that continue a word: ##ing of WordPiece; letters without a space before in the others."""
    if not isinstance(tokenizer, Named):
        raise InputError("whole words need the names of the tokens and this tokenizer does not tell them")
    known = names(tokenizer)
    if any(name.startswith("##") for name in known):
        return np.array([name.startswith("##") for name in known])
    space = next((s for s in SPACES if any(name.startswith(s) for name in known)), None)
    if space is None:
        raise InputError(
            "no token of this vocabulary marks the beginning or the inside of a word", hint="use whole=False"
        )
    return np.array([bool(name) and not name.startswith(space) and name[0].isalnum() for name in known])


def ends(tokenizer: Tokenizer) -> Flags:
    """(V) ids that end a sentence: full stops, question and exclamation marks."""
    text = (name.lstrip("".join(SPACES)).removeprefix("##").strip() for name in names(tokenizer))
    return np.array([name in {".", "!", "?", "。", "！", "？", "…"} for name in text])
