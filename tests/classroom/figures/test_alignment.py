"""Rows of cross-attention and of alignment are the words written; a decoder over itself keeps those read."""

from __future__ import annotations

import csv
import functools
import io
import json
from pathlib import Path

import pytest
import torch

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures.figure import Figure
from heedful.interp.inputs import reading
from heedful.interp.observe.attention import attention
from heedful.models.base import Model
from tests.properties.tiny import tiny

TEXT = "The old man reads a book in the garden."
# A bundled model, the layer that aligns best, and the content words with their translations.
MODELS = {
    "translate-en-de": ("decoder.3.cross", {"alte": "old", "Mann": "man", "liest": "reads", "Buch": "book"}),
    "rnnsearch-en-de": ("decoder.0", {"alte": "old", "Mann": "man", "lesen": "reads", "Garten": "garden"}),
}


@functools.cache
def bundled(name: str) -> Model:
    return heedful.load(name)


def drawn(name: str, *, words: bool = True) -> Figure:
    return view.attention(bundled(name), TEXT, layer=MODELS[name][0], head="mean", words=words)


def best_keys(figure: Figure) -> dict[str, str]:
    """The source word that each row gives most weight, by the row's label."""
    best: dict[str, tuple[float, str]] = {}
    for row in csv.DictReader(io.StringIO(figure.to_csv())):
        query, found = row["query"].strip(), (float(row["weight"]), row["key"].strip())
        best[query] = max(best.get(query, (-1.0, "")), found)
    return {query: key for query, (_, key) in best.items()}


@pytest.mark.parametrize("name", MODELS)
def test_content_words_align_with_their_translations(name: str) -> None:
    best, gold = best_keys(drawn(name)), MODELS[name][1]
    assert {word: best.get(word) for word in gold} == gold


@pytest.mark.parametrize("name", MODELS)
def test_every_export_labels_rows_with_the_words_written(name: str, tmp_path: Path) -> None:
    figure, model = drawn(name, words=False), bundled(name)
    written = heedful.generate(model, TEXT, max_tokens=24, details=True).ids
    assert model.tokenizer is not None
    names = [word.replace("Ġ", " ") for word in model.tokenizer.tokens(written)]
    one = json.loads(figure.save(tmp_path / "x.json").read_text())["data"]["patterns"][figure.data["pattern"]]
    assert one["queries"][: len(names)] == names
    assert one["written"]
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    assert rows[0]["query"] == names[0]
    picture = figure.to_svg()
    assert "word written ↓" in picture
    assert picture.index(f">{names[0]}<") < picture.index(f">{names[1].replace(' ', '·')}<")
    assert '"written":true' in figure.to_html()


def test_the_last_row_is_the_word_the_model_would_write_next() -> None:
    model = tiny("t5")
    given = reading(model, [5, 9, 2], [0, 6, 8])
    with torch.no_grad():
        following = int(given.run(model)[0, -1].argmax())
    seen = attention(model, given)
    assert seen["decoder.0.cross"].queries == ("6", "8", str(following))
    assert seen["decoder.0.cross"].written


@pytest.mark.parametrize("family", ["t5", "bart", "transformer"])
def test_attention_of_a_decoder_over_itself_keeps_the_words_read(family: str) -> None:
    seen = attention(tiny(family), [5, 9, 2], [0, 6, 8])
    for pattern in seen.patterns.values():
        if not pattern.cross:
            assert pattern.queries == pattern.keys
            assert not pattern.written


def test_a_model_without_a_head_leaves_the_last_row_open() -> None:
    model = tiny("bart", head="none")
    assert attention(model, [5, 9, 2], [0, 6, 8])["decoder.0.cross"].queries == ("6", "8", "…")


def test_a_translator_of_transformers_is_labelled_alike() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    found = view.attention(model, [5, 9, 2], [0, 3, 4], layer="decoder.0.cross").data
    with torch.no_grad():
        out = model(input_ids=torch.tensor([[5, 9, 2]]), decoder_input_ids=torch.tensor([[0, 3, 4]]))
    cross, own = found["patterns"][found["pattern"]], found["patterns"][1]
    assert cross["queries"] == ["3", "4", str(int(out.logits[0, -1].argmax()))]
    assert cross["written"]
    assert own["queries"] == ["0", "3", "4"]


@pytest.mark.parametrize(
    ("family", "topic", "part"),
    [("t5", "attention", "decoder.0.cross"), ("rnnsearch", "alignment", "decoder.0")],
)
def test_the_worked_row_of_a_figure_is_the_row_of_that_word(family: str, topic: str, part: str) -> None:
    model, given = tiny(family), ([5, 9, 2], [0, 6, 8])
    worked = heedful.explain(model, *given, topic=topic, part=part, token="6")
    assert "writing “6”" in worked.title
    pattern = attention(model, *given)[part]
    weights = next(line for line in worked.walk() if line.label.startswith("weights of"))
    expected = pattern.values[0, pattern.queries.index("6")].double().numpy()
    assert weights.value == pytest.approx(expected, abs=1e-6)
