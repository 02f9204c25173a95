"""A run is a function of its arguments: repeated, stopped and taken up, it gives the same bits."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound
from heedful.core.files import BLOCK_BYTES
from heedful.word2vec import Word2Vec
from heedful.word2vec.corpus import Corpus, drop_unknown, encode_corpus, find_phrases
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.trainer import Trainer
from heedful.word2vec.word_counts import build_vocabulary, count_words
from tests.refusal import refused
from tests.word2vec.conftest import sentences

SMALL = {"dim": 16, "window": 3, "min_count": 1, "subsample": 0.0, "epochs": 3}
COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_words_of_a_topic_become_neighbours(corpus, mode, loss):
    vectors = Word2Vec.train(corpus * 3, **SMALL | {"epochs": 8}, mode=mode, loss=loss, threads=2)
    topic = {"queen", "crown", "throne", "palace", "prince"}
    assert {word for word, _ in vectors.neighbours("king", 5)} == topic
    assert vectors.history[-1] < vectors.history[0]


@pytest.mark.parametrize(
    "text", ["hello world", "the cat sat on the mat", "the cat sat\nthe dog lay\nthe cat lay"]
)
@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_a_tiny_text_is_trained_on_with_the_default_subsampling(text, mode, loss):
    lines = [line.split() for line in text.split("\n")]
    for seed in range(3):
        vectors = Word2Vec.train(lines, dim=4, min_count=1, mode=mode, loss=loss, threads=1, seed=seed)
        assert np.isfinite(vectors.history).all()


def test_the_default_threshold_is_the_authors_from_a_thousand_words_on():
    default = Settings()
    assert [default.subsample_threshold(words) for words in (10, 1000, 70_000)] == [0.1, 1e-3, 1e-3]
    assert Settings(subsample=1e-5).subsample_threshold(10) == 1e-5


def test_an_epoch_that_subsampling_emptied_does_not_end_the_run():
    lines = [["the", "cat", "sat"], ["the", "dog", "lay"]]
    vectors = Word2Vec.train(lines, dim=4, min_count=1, subsample=2e-2, epochs=40, threads=1)
    assert np.isnan(vectors.history).any()
    assert np.isfinite(vectors.history).any()


def test_one_thread_gives_the_same_bits_twice(corpus):
    first, second = (Word2Vec.train(corpus, **SMALL, threads=1, seed=4) for _ in range(2))
    assert np.array_equal(first.input, second.input)
    assert np.array_equal(first.output, second.output)
    assert first.history == second.history


def test_another_seed_gives_other_vectors(corpus):
    first, second = (Word2Vec.train(corpus, **SMALL, threads=1, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.input, second.input)


def test_a_file_and_the_same_sentences_in_memory_agree(corpus, text):
    assert np.array_equal(
        Word2Vec.train(corpus, **SMALL, threads=1).input, Word2Vec.train(text, **SMALL, threads=1).input
    )


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_stopped_and_resumed_equals_one_that_was_not(tmp_path, mode, loss, stop):
    corpus = Corpus(sentences(2000))
    settings = Settings.from_dict(SMALL | {"mode": mode, "loss": loss, "epochs": 2})
    whole = Trainer.create(corpus, settings)
    [*_] = whole.run(threads=1)
    begun = Trainer.create(corpus, settings)
    for number, _ in enumerate(begun.run(threads=1, report_seconds=0.0), start=1):  # one job a report
        if number == stop:
            begun.save(tmp_path / "run.safetensors")
            break
    resumed = Trainer.resume(corpus, tmp_path / "run.safetensors")
    [*_] = resumed.run(threads=1)
    assert np.array_equal(resumed.tables.input, whole.tables.input)
    assert np.array_equal(resumed.tables.output, whole.tables.output)
    assert resumed.state.history == whole.state.history


def test_a_run_that_is_left_early_saves_itself(tmp_path):
    corpus, path = Corpus(sentences(2000)), tmp_path / "run.safetensors"
    trainer = Trainer.create(corpus, Settings.from_dict(SMALL))
    reports = trainer.run(threads=2, checkpoint=path, report_seconds=0.0)
    next(reports)
    reports.close()
    assert Trainer.resume(corpus, path).state.job == 2


def test_a_checkpoint_that_another_process_writes_is_refused(tmp_path, corpus):
    path = tmp_path / "run.safetensors"
    owner = {"pid": 7, "host": "elsewhere", "started": "now"}
    (tmp_path / "run.safetensors.lock").write_text(json.dumps(owner))
    with refused(ConfigError, "process 7", "elsewhere", hint="wait for it to end, or name another file"):
        Word2Vec.train(corpus, **SMALL, checkpoint=path)
    (tmp_path / "run.safetensors.lock").unlink()
    Word2Vec.train(corpus, **SMALL | {"epochs": 1}, checkpoint=path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.safetensors"]


def test_train_resumes_from_its_checkpoint(tmp_path, corpus):
    path = tmp_path / "run.safetensors"
    done = Word2Vec.train(corpus, **SMALL, threads=1, checkpoint=path)
    again = Word2Vec.train(corpus, **SMALL, threads=1, checkpoint=path, resume=True)
    assert np.array_equal(done.input, again.input)
    assert done.history == again.history


def test_a_checkpoint_refuses_other_settings_and_other_text(tmp_path, corpus):
    path = tmp_path / "run.safetensors"
    Word2Vec.train(corpus, **SMALL, checkpoint=path)
    with pytest.raises(ConfigError, match="window=3"):
        Word2Vec.train(corpus, **SMALL | {"window": 4}, checkpoint=path, resume=True)
    with pytest.raises(InputError, match="not the one"):
        Word2Vec.train(corpus[:-5], **SMALL, checkpoint=path, resume=True)
    with pytest.raises(NotFound, match="no checkpoint"):
        Word2Vec.train(corpus, **SMALL, checkpoint=tmp_path / "none.safetensors", resume=True)
    vectors = tmp_path / "v.safetensors"
    Word2Vec.train(corpus, **SMALL).save(vectors)
    with pytest.raises(CorruptFile, match="not a checkpoint"):
        Trainer.resume(Corpus(corpus), vectors)


@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_new_text_brings_new_words_and_leaves_the_old_object_alone(corpus, loss):
    old = Word2Vec.train(corpus, **SMALL, loss=loss, threads=1)
    before, draw = old.input.copy(), random.Random(0)
    royal = ["king", "queen", "crown", "throne", "palace", "prince"]
    fresh = [[draw.choice([*royal, "sceptre", "the"]) for _ in range(12)] for _ in range(300)]
    new = old.update(fresh, epochs=5, threads=1)
    assert np.array_equal(old.input, before)
    assert new.words == [*old.words, "sceptre"]
    assert len(set(royal) & {word for word, _ in new.neighbours("sceptre", 6)}) >= 5
    assert new.counts[new.index["king"]] > old.counts[old.index["king"]]


def test_grafted_paths_still_sum_to_one(corpus):
    import torch

    from heedful.word2vec.definition import word_probabilities

    old = Word2Vec.train(corpus, **SMALL, loss="hierarchical", threads=1)
    new = old.update([["unseen", "words", "come", "king"] * 3] * 5, epochs=1, threads=1, min_count=1)
    h, u = (torch.from_numpy(array).double() for array in (new["king"], new.output))
    assert float(word_probabilities(h, u, new.tree).sum()) == pytest.approx(1.0, abs=1e-9)


# ---- text and vocabulary


def test_an_empty_corpus_is_one_clear_error(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="no words"):
        Word2Vec.train(tmp_path / "empty.txt")
    with pytest.raises(InputError, match="no words"):
        Word2Vec.train([])


def test_a_vocabulary_of_one_word_is_one_clear_error():
    with pytest.raises(InputError, match="1 word of 60 read"):
        Word2Vec.train([["same"] * 60])
    with pytest.raises(InputError, match="0 words of 3 read"):
        Word2Vec.train([["a", "b", "c"]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "skip"}, "mode='skip'"),
        ({"loss": "softmax"}, "loss='softmax'"),
        ({"dim": 0}, "dim=0"),
        ({"rate": 99.0}, "rate=99"),
        ({"windw": 3}, "did you mean"),
        ({"threads": 0}, "threads=0"),
        ({"max_vocab": 1}, "max_vocab=1"),
    ],
)
def test_a_setting_that_cannot_be_is_named(corpus, given, message):
    with pytest.raises(ConfigError, match=message):
        Word2Vec.train(corpus, **given)


def test_bad_sources_are_named(tmp_path):
    with pytest.raises(NotFound, match=r"nowhere\.txt"):
        Word2Vec.train(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="without files"):
        Word2Vec.train(tmp_path)
    with pytest.raises(InputError, match="iterator"):
        Word2Vec.train(iter([["a", "b"]]))
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 " * 20)
    with refused(InputError, "line 1", "0xe9"):
        Word2Vec.train(tmp_path / "bad.txt")
    (tmp_path / "bad.gz").write_bytes(b"plain text")
    with refused(InputError, "damaged"):
        Word2Vec.train(tmp_path / "bad.gz")


def test_a_folder_of_plain_and_packed_files_is_one_corpus(tmp_path, corpus):
    half = len(corpus) // 2
    (tmp_path / "a.txt").write_text("\n".join(map(" ".join, corpus[:half])))
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("\n".join(map(" ".join, corpus[half:])))
    assert list(Corpus(tmp_path).sentences()) == corpus


def test_punctuation_is_split_from_words_of_files_unless_said_otherwise(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text('She said: "Don\'t (ever) pay 3.14!"\nWell-known, e.g. new_york...\n')
    first, second = Corpus(path).sentences()
    assert first == ["She", "said", ":", '"', "Don't", "(", "ever", ")", "pay", "3.14", "!", '"']
    assert second == ["Well-known", ",", "e.g", ".", "new_york", "..."]
    assert next(Corpus(path, split_punctuation=False).sentences())[1] == "said:"
    assert list(Corpus([["a."]]).sentences()) == [["a."]]


def test_a_text_without_line_ends_is_cut_into_sentences(tmp_path):
    words = [f"word{i % 1000}" for i in range(500_000)]
    path = tmp_path / "long.txt"
    path.write_text(" ".join(words))
    assert path.stat().st_size > 3 * BLOCK_BYTES
    read = list(Corpus(path).sentences())
    assert [word for sentence in read for word in sentence] == words
    assert max(map(len, read)) == 10_000


def test_pruning_while_counting_bounds_memory_and_keeps_frequent_counts(corpus):
    rare = [[f"once{i}" for i in range(start, start + 10)] for start in range(0, 5000, 10)]
    mixed = [sentence for pair in zip(corpus, rare) for sentence in pair]
    counts, total = count_words(Corpus(mixed), max_distinct=200)
    exact, _ = count_words(Corpus(mixed))
    assert len(counts) <= 200
    assert total == sum(map(len, mixed))
    assert counts["the"] == exact["the"]


def test_the_vocabulary_is_cut_by_count_and_by_size(corpus):
    full = build_vocabulary(Corpus(corpus), min_count=1)
    assert list(full.counts) == sorted(full.counts, reverse=True)
    assert build_vocabulary(Corpus(corpus), 1, max_vocab=5).words == full.words[:5]
    least = int(full.counts[10])
    frequent = {word for word, n in zip(full.words, full.counts) if n >= least}
    assert set(build_vocabulary(Corpus(corpus), least).words) == frequent


def test_encoding_drops_unknown_words_and_empty_sentences(tmp_path, corpus):
    assert drop_unknown([3, -2, -1, -2, -1, 4, -1]).tolist() == [3, -1, 4, -1]
    vocabulary = build_vocabulary(Corpus(corpus), 1, max_vocab=10)
    encoded = encode_corpus(Corpus(corpus), vocabulary.index, tmp_path / "ids")
    ids = np.concatenate([encoded.job(j) for j in range(len(encoded))])
    expected = [[vocabulary.index[w] for w in s if w in vocabulary.index] for s in corpus]
    assert ids.tolist() == [i for s in expected if s for i in [*s, -1]]
    assert encoded.words == sum(map(len, corpus))


def test_phrases_join_what_belongs_together():
    draw = random.Random(0)
    filler = [f"f{i}" for i in range(50)]
    text = [[*draw.choices(filler, k=3), "new", "york", *draw.choices(filler, k=3)] for _ in range(300)]
    found = find_phrases(Corpus(text), threshold=5.0)
    assert set(found.scores) == {("new", "york")}
    count = 300
    assert found.scores["new", "york"] == pytest.approx((count - 5) / (count * count) * 8 * 300)
    assert found.join(["in", "new", "york", "new"]) == ["in", "new_york", "new"]
    many = [["new", "york"], *text, *([["plain", "words", "here"]] * 3000)]
    assert "new_york" in Word2Vec.train(many, **SMALL, phrases=1)


def test_lowercase_folds(tmp_path: Path):
    path = tmp_path / "t.txt"
    path.write_text("The cat THE dog\n" * 10)
    assert Word2Vec.train(path, **SMALL, lowercase=True).words == ["the", "cat", "dog"]
