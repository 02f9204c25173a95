"""Heads that look at a word's syntactic head are found, word by word, beside the best fixed offset."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.learn.head_catalogue import ParsedSentence, read_parsed, syntax_heads
from tests.decode.toy import letters
from tests.properties.tiny import tiny

SENTENCES = [ParsedSentence(("ab", "cd", "ef"), (1, 2, -1), ("det", "obj", "root"))] * 4


def test_a_head_that_looks_at_the_syntactic_head_is_found() -> None:
    model = tiny("bert", vocab=300)
    model.tokenizer = letters()

    def look(pattern: torch.Tensor) -> torch.Tensor:
        pattern[:, 1] = 0.0
        for i in range(pattern.shape[-1]):  # three letters on: the next word
            pattern[:, 1, i, min(i + 3, pattern.shape[-1] - 1)] = 1.0
        return pattern

    edit, forward = Watch(edit={"blocks.1.attn.pattern": look}), model.forward
    model.forward = lambda *a, watch, **k: forward(*a, watch=edit + watch, **k)  # type: ignore[method-assign]
    found = {(s.relation, s.direction): s for s in syntax_heads(model, SENTENCES, min_count=4)}
    assert set(found) == {(r, d) for r in ("det", "obj") for d in ("to head", "to dependent")}
    best = found["det", "to head"]
    assert (best.accuracy, best.baseline, best.offset, best.count) == (1.0, 1.0, 1, 4)


def test_where_nothing_looks_ahead_only_words_before_count() -> None:
    model = tiny("gpt2", vocab=300)
    model.tokenizer = letters()
    found = syntax_heads(model, SENTENCES, min_count=1)
    assert {(s.direction, s.offset) for s in found} == {("to dependent", -1)}
    lstm = tiny("lstm", vocab=300)
    lstm.tokenizer = letters()
    with pytest.raises(InputError, match="has no attention"):
        syntax_heads(lstm, SENTENCES)


def test_dependencies_are_read_from_conllu(tmp_path: Path) -> None:
    lines = ["1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_", "2\tcat\t_\tNOUN\t_\t_\t0\troot\t_\t_", ""]
    (tmp_path / "x.conllu").write_text("\n".join(lines))
    assert read_parsed(tmp_path / "x.conllu") == [ParsedSentence(("The", "cat"), (1, -1), ("det", "root"))]
