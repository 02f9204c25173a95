"""SmolLM2-135M: induction heads, steering, parts of speech, a dictionary. Minutes; -s prints the figures."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from heedful.core.files import read_lines
from heedful.data import conll
from heedful.interp.activations import mean_loss
from heedful.interp.intervene.ablation import without
from heedful.interp.intervene.steering import continuations, steer, steering_vector
from heedful.interp.learn.dictionary import score_dictionary, train_dictionary
from heedful.interp.learn.head_catalogue import catalogue_heads, read_parsed, syntax_heads
from heedful.interp.learn.probes import linear_probes
from heedful.interp.observe.attention import repeated_tokens
from tests.tasks.real import smol

pytestmark = pytest.mark.slow

TEXTS = [
    "The cat sat on the mat, and the dog lay near it.",
    "When she came home, her brother was asleep; nobody had cooked.",
    "In 1905, a clerk in Bern wrote four papers, which changed physics.",
    "Paris is the capital of France. Rome is the capital of Italy.",
]
POSITIVE = [
    "I love this, it is wonderful.", "What a beautiful and happy day!",
    "This is the best film I have ever seen.",
    "She was delighted with the excellent food.", "I am so glad and grateful for this amazing gift.",
]  # fmt: skip
NEGATIVE = [
    "I hate this, it is terrible.", "What an ugly and miserable day!",
    "This is the worst film I have ever seen.",
    "She was disgusted with the awful food.", "I am so sad and angry about this horrible gift.",
]  # fmt: skip
PROMPTS = [
    "I think that", "The restaurant was", "My day has been", "The film we saw was", "Her new job is",
    "The weather today is", "This book is", "When I saw him, I felt", "The hotel room was",
    "Our trip to the coast was",
]  # fmt: skip


def data(path: str) -> Path:
    """A file of the folder that HEED_DATA names; the test is skipped without it."""
    found = Path(os.environ.get("HEED_DATA", "")) / path
    if not os.environ.get("HEED_DATA") or not found.is_file():
        pytest.skip(f"HEED_DATA names no folder of data ({path})")
    return found


def test_without_its_induction_heads_it_is_worse_at_repeated_text_than_without_as_many_others() -> None:
    model = smol()
    found = catalogue_heads(model, TEXTS, repeats=4, repeat_length=24)
    best = found.top("induction", 12)
    assert best[0].low > 0.5 > 10 * found.chance["induction"]
    chosen: dict[str, list[int]] = {}
    for entry in best:
        chosen.setdefault(entry.name, []).append(entry.head)
    scores = dict(zip(found.heads, found.interval("induction")[0].tolist(), strict=True))
    others = {
        part: sorted(range(9), key=lambda h, part=part: scores[part, h])[: len(heads)]  # type: ignore[misc]
        for part, heads in chosen.items()
    }
    rows = [given.ids[0].tolist() for given in repeated_tokens(model, 16, 24, seed=7)]
    watches = (None, without(model, chosen), without(model, others))
    plain, less, other = (mean_loss(model, rows, watch) for watch in watches)
    print(*best[:4], found.chance["induction"], plain, less, other, sep="\n")
    assert less > plain + 1.0
    # Any twelve heads cost something, and with four rows that cost varied from 0.3 to 0.7 nats by draw.
    assert other - plain < (less - plain) / 5


def test_steering_changes_ten_prompts_and_no_strength_changes_no_token() -> None:
    model, name = smol(), "blocks.14.output"
    vector = steering_vector(model, POSITIVE, NEGATIVE, name)
    for strength in (2.0, -2.0):
        watch = steer(model, name, vector, strength)
        texts = continuations(model, PROMPTS, watch, max_tokens=10, temperature=0)
        assert all(one.plain != one.steered for one in texts)
    texts = continuations(model, PROMPTS, steer(model, name, vector, 0.0), max_tokens=10, temperature=0)
    assert all(one.plain == one.steered for one in texts)


def test_probes_of_parts_of_speech_beat_the_control_in_every_layer() -> None:
    tagged = conll(data("tagging/ud_english_ewt/dev.conllu.gz"))
    sentences = list(itertools.islice((s for s in tagged if len(s.words) >= 5), 100))
    names = ["embed.output", "blocks.5.output", "blocks.15.output", "blocks.29.output"]
    found = linear_probes(smol(), sentences, names, folds=3)
    print(*zip(names, found.accuracy.mean(1).tolist(), found.control.mean(1).tolist(), strict=True), sep="\n")
    assert float(found.selectivity.min()) > 0.1
    assert float(found.accuracy.mean(1).min()) > found.majority + 0.3


def test_a_head_finds_the_verb_of_an_object_twice_as_often_as_the_best_offset() -> None:
    parsed = read_parsed(data("tagging/ud_english_ewt/dev.conllu.gz"), 400)
    found = syntax_heads(smol(), [s for s in parsed if 6 <= len(s.words) <= 25][:80])
    print(*found[:7], sep="\n")
    verb = next(f for f in found if (f.relation, f.direction) == ("obj", "to head"))
    assert verb.accuracy > 2 * verb.baseline


def test_a_dictionary_of_few_features_a_token_recovers_nine_tenths_of_the_loss() -> None:
    model, rows = smol(), []
    for name, count in (("train", 16000), ("valid", 768)):
        ids: list[int] = []
        for line in read_lines(data(f"lm/wikitext-2/{name}.txt.gz")):
            ids += model.tokenizer.encode(line + "\n", special=False) if line.strip() else []
            if len(ids) >= count:
                break
        rows.append([ids[i : i + 128] for i in range(0, count, 128)])
    made = train_dictionary(
        model, rows[0], "blocks.3.output", width=1536, k=32, steps=250, batch=512, learning_rate=3e-3
    )
    found = score_dictionary(model, made, rows[1])
    print(found)
    assert found.l0 < 40
    assert found.loss_recovered > 0.9
