"""The same answers as `transformers`' pipelines on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import heedful
from heedful.models.base import Model
from tests.tasks.conftest import NLI, TAGS, Tiny

TEXTS = [
    "Ada Lovelace lived in London, unbelievably.",
    "Dragons breathe fire 🐉 and é",
    "مرحبا بالعالم",
    "he didn't",
]
FAMILIES = ["bert", "roberta", "distilbert"]


def both(task: str, model: Model, folder: Path, **defaults: Any) -> tuple[Any, Any]:
    """Ours and theirs, of one checkpoint."""
    heedful.save(model, folder)
    theirs = transformers.pipeline(task, model=str(folder), device="cpu", **defaults)
    return heedful.pipeline(task, model=folder, **defaults), theirs


def same(ours: Any, theirs: Any, far: float = 1e-5) -> None:
    """Equal in shape, in keys and in every word; numbers within `far`."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key], far)
    elif isinstance(theirs, list | tuple):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, far)
    elif isinstance(theirs, str | int):
        assert ours == theirs
        assert type(ours) is type(theirs)
    else:
        assert type(ours) is float
        assert ours == pytest.approx(float(theirs), abs=far)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": None}, {"top_k": 1}, {"top_k": 2}]
    + [{"function_to_apply": f} for f in ("none", "sigmoid", "softmax")],
    ids=str,
)
def test_text_classification(tiny: Tiny, tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    ours, theirs = both("text-classification", tiny("classify", list("abc"), family), tmp_path)
    same(ours(TEXTS, **options), theirs(TEXTS, **options))
    same(ours(TEXTS[0], **options), theirs(TEXTS[0], **options))
    same(ours("", **options), theirs("", **options))
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    same(ours(pair, **options), theirs(pair, **options))


@pytest.mark.filterwarnings("ignore::heedful.tasks.Truncated")
@pytest.mark.parametrize("cut", [True, "only_first", "only_second"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_what_is_cut_off(tiny: Tiny, tmp_path: Path, family: str, cut: bool | str) -> None:
    ours, theirs = both("text-classification", tiny("classify", list("abc"), family), tmp_path)
    pairs = [{"text": TEXTS[a], "text_pair": TEXTS[b]} for a, b in ((0, 1), (1, 0), (0, 0), (1, 1))]
    for pair in pairs:
        whole = len(ours.tokenizer.encode_pair(*pair.values())[0])
        for length in (whole - 1, whole - 4, whole):
            how: dict[str, Any] = {"truncation": cut, "max_length": length, "top_k": None}
            same(ours(pair, **how), theirs(pair, **how))


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_the_function_follows_the_kind_of_problem(tiny: Tiny, tmp_path: Path, problem: str) -> None:
    model = tiny("classify", list("abc"))
    model.hf_config["problem_type"] = problem
    ours, theirs = both("text-classification", model, tmp_path, top_k=None)
    same(ours(TEXTS[0]), theirs(TEXTS[0]))
    same(ours(TEXTS), theirs(TEXTS))


def spelt(rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Entities as transformers joins them, but spelt as the text has them and not in pieces (##ya)."""
    return [r if "index" in r else r | {"word": text[r["start"] : r["end"]].strip()} for r in rows]


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_token_classification(tiny: Tiny, tmp_path: Path, family: str, strategy: str) -> None:
    ours, theirs = both("token-classification", tiny("tag", TAGS, family), tmp_path)
    for options in ({}, {"ignore_labels": []}, {"ignore_labels": ["PER", "B-PER", "O"]}):
        how: dict[str, Any] = {"aggregation_strategy": strategy, **options}
        found = theirs(TEXTS, **how)
        same(ours(TEXTS, **how), [spelt(rows, t) for rows, t in zip(found, TEXTS, strict=True)])
        same(ours(TEXTS[0], **how), spelt(theirs(TEXTS[0], **how), TEXTS[0]))


@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_token_classification_of_words(tiny: Tiny, tmp_path: Path, strategy: str) -> None:
    ours, theirs = both("ner", tiny("tag", TAGS), tmp_path, aggregation_strategy=strategy)
    words = ["Ada", "Lovelace", "lived", "in", "London"]
    for given in (words, [words, words[:3]]):
        found = theirs(given, is_split_into_words=True)
        same(ours(given, is_split_into_words=True), [spelt(rows, " ".join(words)) for rows in found])


@pytest.mark.filterwarnings("ignore:.*its first piece")
@pytest.mark.parametrize("family", FAMILIES)
def test_fill_mask(tiny: Tiny, tmp_path: Path, family: str) -> None:
    model = tiny("mlm", family=family)
    mask = model.tokenizer.roles["mask"]
    texts = [f"The {mask} sat on the mat.", f"{mask} went to the {mask} in London."]
    ours, theirs = both("fill-mask", model, tmp_path)
    for options in ({}, {"top_k": 2}, {"targets": ["the", "in", "London"]}, {"targets": "the"}):
        same(ours(texts, **options), theirs(texts, **options))
        same(ours(texts[0], **options), theirs(texts[0], **options))
        same(ours(texts[:1], **options), theirs(texts[:1], **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_feature_extraction(tiny: Tiny, tmp_path: Path, family: str) -> None:
    ours, theirs = both("feature-extraction", tiny("none", family=family), tmp_path)
    same(ours(TEXTS), theirs(TEXTS), 2e-5)
    same(ours(TEXTS[0]), theirs(TEXTS[0]), 2e-5)
    assert (ours(TEXTS[0], return_tensors=True) - theirs(TEXTS[0], return_tensors=True)).abs().max() < 2e-5


@pytest.mark.parametrize("labels", [NLI, NLI[::-1]], ids=["last", "first"])
@pytest.mark.parametrize(
    "options", [{}, {"multi_label": True}, {"hypothesis_template": "It is {}."}], ids=str
)
def test_zero_shot(tiny: Tiny, tmp_path: Path, labels: list[str], options: dict[str, Any]) -> None:
    ours, theirs = both("zero-shot-classification", tiny("classify", labels), tmp_path)
    for named in ("cats, dogs,milk", ["cats", "dogs"], ["cats"]):
        same(ours(TEXTS, named, **options), theirs(TEXTS, named, **options))
        same(ours(TEXTS[0], named, **options), theirs(TEXTS[0], candidate_labels=named, **options))
