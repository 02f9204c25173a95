"""Published vocabularies: plain files give the ids that each model's tokenizer.json gives.

HEED_TOKENIZERS names a folder that has them by name: gpt2, bert-base-cased, roberta-base, llama2 …
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from heedful.text import Tokenizer, load_tokenizer
from tests.text.samples import lines


@pytest.fixture
def published() -> Path:
    folder = os.environ.get("HEED_TOKENIZERS")
    if not folder:
        pytest.skip("HEED_TOKENIZERS names no folder of published vocabularies")
    return Path(folder)


def loaded(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


HELLO = {
    "bert-base-cased": [8667, 1362],
    "bert-base-uncased": [7592, 2088],
    "roberta-base": [31414, 232],
    "gpt2": [15496, 995],
    "llama2": [15043, 3186],
    "t5": [8774, 296],
    "openai-gpt": [3570, 1276],
}


@pytest.mark.parametrize("name", HELLO)
def test_hello_world_has_its_published_ids(name: str, published: Path) -> None:
    assert loaded(published / name).encode("Hello world", special=False) == HELLO[name]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gpt2", ("encoder.json", "vocab.bpe")),
        ("bert-base-cased", ("vocab.txt",)),
        ("bert-base-uncased", ("vocab.txt",)),
    ],
)
def test_plain_files_equal_the_tokenizer_json(
    name: str, files: tuple[str, ...], published: Path, tmp_path: Path
) -> None:
    for file in files:
        shutil.copy(published / name / file, tmp_path)
    whole, plain = loaded(published / name), loaded(tmp_path)
    for line in lines():
        assert plain.encode(line) == whole.encode(line), line
        assert plain.decode(plain.encode(line)) == whole.decode(whole.encode(line)), line


def test_a_sentencepiece_model_equals_the_library(published: Path) -> None:
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is the reference")
    theirs = spm.SentencePieceProcessor(model_file=str(published / "llama2" / "tokenizer.model"))
    ours = loaded(published / "llama2")
    for line in lines():
        assert ours.encode(line) == [1, *theirs.encode(line)], line
        assert ours.decode(ours.encode(line)) == theirs.decode(theirs.encode(line)), line
