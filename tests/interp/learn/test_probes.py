"""Linear probes find what is linear in a layer; the control task is learnt by heart or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.core.errors import InputError
from heedful.data.examples.tagging import Sentence
from heedful.interp import inputs
from heedful.interp.learn.probes import assign_group_folds, control_labels, layer_names, linear_probes
from tests.decode.toy import letters
from tests.properties.tiny import ALL, by_kinds, tiny


def sentences(count: int = 40) -> list[Sentence]:
    """Words whose tag is whether they end in a, and vowels before it."""
    draw = np.random.default_rng(0)
    out = []
    for _ in range(count):
        words = tuple("".join(draw.choice(list("bcdu"), 3)) + str(draw.choice(["a", "e"])) for _ in range(4))
        out.append(Sentence(words, tuple("A" if w.endswith("a") else "E" for w in words), ""))
    return out


@pytest.mark.parametrize("family", ["gpt2", "bert", "lstm", "mamba", "t5"])
def test_a_tag_that_the_last_letter_tells_is_found_and_the_control_is_not(family: str) -> None:
    model = tiny(family, vocab=300)
    model.tokenizer = letters()
    found = linear_probes(model, sentences(), ["embed.output"], penalty=0.01)
    assert float(found.accuracy.mean()) > 0.99
    assert float(found.selectivity[0]) > 0.2
    assert found.labels == ("A", "E")
    assert found.accuracy.shape == (1, 5)


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_by_default_every_layer_is_probed(family: str) -> None:
    model = tiny(family)
    assert set(layer_names(model)) <= set(model.names())


def test_sentences_are_held_out_whole_and_a_word_has_one_control_label() -> None:
    groups = np.repeat(np.arange(11), 3)
    folds = assign_group_folds(groups, 5, seed=1)
    assert all(len(set(folds[groups == g])) == 1 for g in range(11))
    assert sorted(set(folds)) == [0, 1, 2, 3, 4]
    words = ["a", "b", "a", "c", "b"]
    given = control_labels(words, np.array([0, 1, 0, 1, 1]), seed=0)
    assert given[0] == given[2]
    assert given[1] == given[4]


def test_progress_is_reported_and_bad_sentences_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2", vocab=300)
    model.tokenizer = letters()
    seen: list[tuple[str, int, int]] = []
    with monkeypatch.context() as patched:
        patched.setattr(inputs, "report_progress", lambda *report: seen.append(report))
        linear_probes(model, sentences(10), ["embed.output"])
    assert [report for report in seen if report[0] == "probes"] == [("probes", done, 2) for done in range(3)]
    with pytest.raises(InputError, match="folds"):
        linear_probes(model, sentences(3))
    with pytest.raises(InputError, match="2 words and 1 tags"):
        linear_probes(model, [(["a", "b"], ["X"])] * 9)
    with pytest.raises(InputError, match="every word has the tag X"):
        linear_probes(model, [(["a", "b"], ["X", "X"])] * 9)
    with pytest.raises(InputError, match="no tokenizer"):
        linear_probes(tiny("gpt2"), sentences(10))
    for label in (1, "positive"):
        with pytest.raises(InputError, match="each word"):
            linear_probes(model, [("a text of words", label)] * 9)  # type: ignore[list-item]
    with pytest.raises(InputError, match="each word"):
        linear_probes(model, ["a text", "another"] * 9)  # type: ignore[list-item]
    with pytest.raises(InputError, match="each word"):
        linear_probes(model, ["ab"] * 9)  # type: ignore[list-item]
