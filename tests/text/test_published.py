"""Published vocabularies: plain files give the ids that each model's tokenizer.json gives.

HEED_TOKENIZERS names a folder that has them by name: gpt2, bert-base-cased, roberta-base, llama2, qwen2.5 …,
and as llama.cpp the `models` folder of that repository: vocabularies in GGUF, texts and the ids they have.
docs/weights.md tells where they come from.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from heedful.text import Tokenizer, load_tokenizer
from heedful.text.gguf import from_gguf, gguf_tokenizer
from heedful.weights.formats.gguf import GGUFFile
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
    "qwen2.5": [9707, 1879],
    "qwen3": [9707, 1879],
    "gemma": [4521, 2134],
    "gemma-2": [4521, 2134],
    "gemma-3": [9259, 1902],
    "gpt-4o": [13225, 2375],  # and gpt-oss
    "llama-3.2": [9906, 1917],  # and SmolLM3
    "mistral-nemo": [22177, 4304],
    "olmo-2": [9906, 1917],
    "falcon": [9856, 1079],
    "phi-2": [15496, 995],
    "phi-3-mini": [15043, 3186],
    "gpt-neox-20b": [12092, 1533],
}


def folder_of(published: Path, name: str) -> Path:
    if not (published / name).exists():
        pytest.skip(f"HEED_TOKENIZERS has no {name}")
    return published / name


@pytest.mark.parametrize("name", HELLO)
def test_hello_world_has_its_published_ids(name: str, published: Path) -> None:
    assert loaded(folder_of(published, name)).encode("Hello world", special=False) == HELLO[name]


# A vocabulary of llama.cpp's → a tokenizer.json of a model with the same words, where there is one.
VOCABULARIES = {
    "bert-bge": "bert-base-uncased", "command-r": "command-r-plus", "deepseek-coder": None,
    "deepseek-llm": None,
    "falcon": "falcon", "gemma-4": "gemma-3", "gpt-2": "gpt2", "llama-bpe": "llama-3.2",
    "llama-spm": "llama2", "mpt": "gpt-neox-20b", "phi-3": "phi-3-mini", "qwen2": "qwen2.5",
    "refact": None, "starcoder": None,
}  # fmt: skip


def published_ids(published: Path, name: str) -> list[tuple[str, list[int]]]:
    """Texts and the ids that the model's own tokenizer gave them, as llama.cpp publishes them."""
    whole = folder_of(published, f"llama.cpp/ggml-vocab-{name}.gguf.inp").read_bytes().decode()
    texts = whole.split("\n__ggml_vocab_test__\n")
    rows = (published / f"llama.cpp/ggml-vocab-{name}.gguf.out").read_text().split("\n")
    return [(text, [int(i) for i in row.split()]) for text, row in zip(texts, rows, strict=False)]


def check_ids(tokenizer: Tokenizer, published: Path, name: str) -> None:
    for text, ids in published_ids(published, name):
        assert tokenizer.encode(text, special=False) == ids, text
        if name != "bert-bge":  # which lower-cases
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_in_gguf_give_their_published_ids(name: str, published: Path) -> None:
    pytest.importorskip("gguf", reason="the gguf library knows the sizes of tensors")
    path = folder_of(published, f"llama.cpp/ggml-vocab-{name}.gguf")
    tokenizer = from_gguf(GGUFFile(path).metadata)
    assert tokenizer is not None
    check_ids(tokenizer, published, name)


@pytest.mark.parametrize("name", [name for name, folder in VOCABULARIES.items() if folder])
def test_tokenizer_files_give_their_published_ids(name: str, published: Path) -> None:
    check_ids(loaded(folder_of(published, str(VOCABULARIES[name]))), published, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HELLO if name not in ("openai-gpt", "t5")])
def test_a_published_tokenizer_written_as_gguf_is_the_same(name: str, published: Path) -> None:
    whole = loaded(folder_of(published, name))
    again = from_gguf(gguf_tokenizer(whole, len(whole)))
    assert again is not None
    for line in (*lines(60), "e\u0301 camelCase HTMLParser हिन्दी  two\n\n  1234"):
        assert again.encode(line) == whole.encode(line), line
        assert again.decode(whole.encode(line)) == whole.decode(whole.encode(line)), line


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
