"""Using vectors: look-up, neighbours, analogies, the odd one, sentences; and scoring them."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from heedful.core.errors import ConfigError, InputError, NotFound
from heedful.word2vec import Word2Vec, evaluate
from heedful.word2vec.evaluation import score_analogies, score_similarity

WORDS = ["man", "woman", "king", "queen", "apple", "pear"]
ROWS = [[1, 0, 0.1, 0], [0, 1, 0.1, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0.1, 0.1, 0, 1], [0.1, 0, 0, 1]]
TABLE = np.array(ROWS, dtype=np.float32)


@pytest.fixture
def vectors() -> Word2Vec:
    return Word2Vec(WORDS, TABLE, counts=np.array([60, 50, 40, 30, 20, 10]))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_a_vector_by_word_and_by_index(vectors):
    assert np.array_equal(vectors["king"], TABLE[2])
    assert np.array_equal(vectors[2], TABLE[2])
    assert np.array_equal(vectors[-1], TABLE[5])
    assert "king" in vectors
    assert len(vectors) == 6


def test_an_unknown_word_names_near_ones(vectors):
    with pytest.raises(NotFound, match="did you mean 'queen'"):
        vectors["quen"]
    with pytest.raises(NotFound, match="no row 6"):
        vectors[6]


def test_similarity_and_neighbours_are_cosines(vectors):
    assert vectors.similarity("man", "king") == pytest.approx(cosine(TABLE[0], TABLE[2]))
    others = [word for word in WORDS if word != "apple"]
    expected = sorted(others, key=lambda word: -cosine(TABLE[4], TABLE[WORDS.index(word)]))
    ranking = vectors.neighbours("apple", 5)
    assert [word for word, _ in ranking] == expected
    assert ranking.excluded == ("apple",)
    assert len(vectors.neighbours("apple", 100)) == 5


def test_neighbours_of_a_vector_may_be_any_word(vectors):
    assert vectors.neighbours(TABLE[3], 1)[0] == ("queen", pytest.approx(1.0))


@pytest.mark.parametrize("method", ["add", "mul"])
def test_man_is_to_king_as_woman_is_to_queen(vectors, method):
    ranking = vectors.analogy("man", "king", "woman", method=method)
    assert ranking[0][0] == "queen"
    assert ranking.excluded == ("man", "king", "woman")
    assert not {"man", "king", "woman"} & {word for word, _ in ranking}
    assert "not among the answers: man, king, woman" in str(ranking)


def test_analogy_scores_are_their_formulas(vectors):
    unit = TABLE / np.linalg.norm(TABLE, axis=1, keepdims=True)
    target = unit[2] - unit[0] + unit[1]
    by_sum = dict(vectors.analogy("man", "king", "woman"))["queen"]
    assert by_sum == pytest.approx(cosine(target, TABLE[3]), abs=1e-6)
    near = [(1 + cosine(TABLE[3], TABLE[i])) / 2 for i in (0, 2, 1)]
    by_product = dict(vectors.analogy("man", "king", "woman", method="mul"))["queen"]
    assert by_product == pytest.approx(near[1] * near[2] / (near[0] + 1e-3), abs=1e-5)
    with pytest.raises(ConfigError, match="method='div'"):
        vectors.analogy("man", "king", "woman", method="div")


def test_the_odd_one_out(vectors):
    assert vectors.odd_one_out(["apple", "pear", "king"]) == "king"
    with pytest.raises(InputError, match="three or more"):
        vectors.odd_one_out(["apple", "pear"])


def test_a_sentence_is_the_weighted_mean_of_its_known_words(vectors):
    share = np.array([60, 20]) / 210
    weight = 1e-3 / (1e-3 + share)
    expected = (weight[:, None] * TABLE[[0, 4]]).mean(axis=0)
    assert np.allclose(vectors.sentence("man unknown apple"), expected)
    assert np.allclose(vectors.sentence(["man", "apple"], smoothing=0), TABLE[[0, 4]].mean(axis=0))
    with pytest.raises(InputError, match="no word of"):
        vectors.sentence("nothing here")


def test_any_embedding_table_by_index():
    embedding = torch.nn.Embedding(5, 3)
    vectors = Word2Vec.from_table(embedding.weight)
    assert np.allclose(vectors[3], embedding.weight[3].detach().numpy())
    assert len(vectors.neighbours(3, 2)) == 2
    named = Word2Vec.from_table(embedding.weight, words=list("abcde"))
    assert np.allclose(named["d"], vectors[3])
    with pytest.raises(InputError, match="two dimensions"):
        Word2Vec.from_table(torch.zeros(3))
    with pytest.raises(InputError, match="4 words for 5 vectors"):
        Word2Vec.from_table(embedding.weight, words=list("abcd"))


def test_analogies_by_section_with_missing_counted(tmp_path, vectors):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": family\nMan King Woman Queen\nman king woman pear\nman king woman duke\n"
        ": gram1\nking man queen woman\n"
    )
    for method in ("add", "mul"):
        sections = {s.name: s for s in score_analogies(vectors, path, method=method)}
        assert (sections["family"].correct, sections["family"].asked, sections["family"].missing) == (1, 2, 1)
        assert sections["gram1"].accuracy == 1.0
        assert (sections["total"].correct, sections["total"].asked) == (2, 3)
        assert sections["semantic"].asked == 2
    assert {s.name: s for s in score_analogies(vectors, path, first=2)}["total"].asked == 0


def test_similarity_is_spearmans_rho(tmp_path, vectors):
    path = tmp_path / "pairs.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.write("word1\tword2\tscore\napple\tpear\t9\nman\tking\t5\nman\tpear\t1\nman\tduke\t7\n")
    result = score_similarity(vectors, path)
    assert (result.name, result.rho, result.asked, result.missing) == ("pairs", pytest.approx(1.0), 3, 1)
    sections, similarities = evaluate(vectors, tmp_path)
    assert (len(sections), len(similarities)) == (0, 1)


def test_similarity_of_no_known_pair_is_nan_and_of_an_unknown_method_an_error(tmp_path, vectors):
    (tmp_path / "pairs.tsv").write_text("duke\tearl\t9\n")
    result = score_similarity(vectors, tmp_path / "pairs.tsv")
    assert np.isnan(result.rho)
    assert (result.asked, result.missing) == (0, 1)
    (tmp_path / "questions.txt").write_text(": a\nman king woman queen\n")
    with pytest.raises(ConfigError, match="method='div'"):
        evaluate(vectors, tmp_path, method="div")


def test_a_broken_question_file_names_its_line(tmp_path, vectors):
    (tmp_path / "questions.txt").write_text(": a\nonly three words\n")
    with pytest.raises(InputError, match="line 2"):
        score_analogies(vectors, tmp_path / "questions.txt")
    (tmp_path / "pairs.tsv").write_text("a b 1\na b\n")
    with pytest.raises(InputError, match="line 2"):
        score_similarity(vectors, tmp_path / "pairs.tsv")
