"""Text while tokens arrive: characters stay whole, stop strings stay hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tokenizers

import heedful
from heedful.decode.rows import HALF, Detokenizer, overlap
from heedful.text import load_tokenizer
from heedful.text.tokenizer import Tokenizer
from tests.decode.toy import letters, speller

TEXT = "Grüße, 日本 🎉👩‍👩‍👧! a  b\n\tend"


def spaced() -> Tokenizer:
    """As SentencePiece writes: a mark for a space, bytes for what has no piece."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁a", "a", "b", "▁b", "e", "n", "d", ","]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend)


def published(name: str) -> Tokenizer:
    folder = os.environ.get("HEED_TOKENIZERS")
    found = load_tokenizer(Path(folder) / name) if folder else None
    if found is None:
        pytest.skip("HEED_TOKENIZERS names no folder of published tokenizers")
    return found


MAKE = {
    "bytes": letters,
    "pieces": spaced,
    "gpt2": lambda: published("gpt2"),
    "llama2": lambda: published("llama2"),
    "t5": lambda: published("t5"),
}


@pytest.mark.parametrize("name", MAKE)
def test_pieces_put_together_are_the_text(name: str) -> None:
    tokenizer = MAKE[name]()
    ids = tokenizer.encode(TEXT, special=False)
    text = Detokenizer(tokenizer)
    shown = [*map(text.push, ids), text.finish()]
    assert "".join(shown) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_a_character_is_never_cut_in_half(name: str) -> None:
    tokenizer = MAKE[name]()
    text = Detokenizer(tokenizer)
    for token in tokenizer.encode(TEXT, special=False):
        assert HALF not in text.push(token)


def test_a_half_character_at_the_end_is_not_lost() -> None:
    tokenizer = letters()
    ids = tokenizer.encode("a日", special=False)[:-1]
    text = Detokenizer(tokenizer)
    assert "".join([*map(text.push, ids), text.finish()]) == tokenizer.decode(ids)


def test_a_character_that_the_prompt_began_is_shown() -> None:
    tokenizer = letters()
    ids = tokenizer.encode("a日", special=False)
    text = Detokenizer(tokenizer, ids[:-1])
    assert "".join([*map(text.push, ids[-1:]), text.finish()]) == "日"


def test_a_space_after_the_prompt_is_kept() -> None:
    tokenizer = spaced()
    prompt, new = tokenizer.encode("a b"), [tokenizer.id("▁b")]
    text = Detokenizer(tokenizer, prompt)
    assert "".join([*map(text.push, new), text.finish()]) == " b"


@pytest.mark.parametrize("stop", [("END",), ("xEND", "END", "zz"), ("c E",)])
def test_a_stop_string_is_found_across_tokens_and_never_shown(stop: tuple[str, ...]) -> None:
    tokenizer = letters()
    text = Detokenizer(tokenizer, stop=stop)
    shown = []
    for token in tokenizer.encode("ab E EN c END after"):
        shown.append(text.push(token))
        if text.stopped:
            break
    assert text.stopped
    expected = "ab E EN c END after"
    assert "".join(shown) == expected[: min(at for s in stop if (at := expected.find(s)) >= 0)]


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    tokenizer = letters()
    text = Detokenizer(tokenizer, stop=("END",))
    shown = [text.push(t) for t in tokenizer.encode("the EN")]
    assert "".join(shown) == "the "
    assert text.finish() == "EN"


def test_overlap_is_the_longest_beginning_at_the_end() -> None:
    assert [overlap(t, "aab") for t in ("xa", "xaa", "b", "aab", "")] == [1, 2, 0, 0, 0]


def test_generating_stops_before_the_stop_string() -> None:
    model = speller()
    free = heedful.generate(model, "hello", max_tokens=40, temperature=1.0, seed=1)
    stop = free[10:12]
    at = free.find(stop)
    found = heedful.generate(model, "hello", max_tokens=40, temperature=1.0, seed=1, stop=stop, details=True)
    assert (found.text, found.finish) == (free[:at], "stop")
