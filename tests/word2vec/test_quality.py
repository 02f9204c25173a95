"""On real text: the vectors know what people know. Needs HEED_DATA and some minutes."""

from __future__ import annotations

import json
import lzma
import os
import re
from pathlib import Path

import pytest

from heedful.word2vec import Word2Vec
from heedful.word2vec.evaluation import score_analogies, score_similarity


@pytest.fixture(scope="module")
def data() -> Path:
    folder = os.environ.get("HEED_DATA")
    if not folder:
        pytest.skip("HEED_DATA names no folder of data (lm/eltec-eng, wordvec)")
    return Path(folder)


@pytest.fixture(scope="module")
def novels(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("novels") / "eltec.txt"
    word = re.compile(r"[a-z]+(?:['’][a-z]+)*|[0-9]+")
    with lzma.open(data / "lm/eltec-eng/train.jsonl.xz", "rt") as source, path.open("w") as target:
        for book in source:
            for paragraph in json.loads(book)["text"].split("\n"):
                target.write(" ".join(word.findall(paragraph.lower())) + "\n")
    return path


@pytest.mark.slow
def test_skip_gram_reaches_gensims_scores_on_eleven_million_words(data, novels):
    """gensim 4.4.0, same settings, three seeds: results/word2vec-quality-skipgram-negative.json."""
    vectors = Word2Vec.train(novels, epochs=5, seed=1)
    total = score_analogies(vectors, data / "wordvec/questions-words.txt.gz", first=1_000_000)[-1]
    assert total.asked > 7000
    assert total.accuracy > 0.28
    assert score_similarity(vectors, data / "wordvec/EN-WS-353-ALL.tsv.gz").rho > 0.45
    assert score_similarity(vectors, data / "wordvec/EN-MEN-TR-3k.tsv.gz").rho > 0.55
    assert score_similarity(vectors, data / "wordvec/EN-SIMLEX-999.tsv.gz").rho > 0.27
