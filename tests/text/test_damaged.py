"""Tokenizer files that are damaged or hostile: one typed error each, where the library would panic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.core.errors import CorruptFile, InputError
from heedful.text import Tokenizer, load_tokenizer
from heedful.text.gguf import from_gguf
from heedful.text.tokenizer_files import save_tokenizer
from tests.refusal import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("ann sees a red fox and an old oak tree\n" * 3)
    save_tokenizer(heedful.train_tokenizer("wordpiece", [text], 80), tmp_path)
    return tmp_path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | values))


def opened(folder: Path) -> Tokenizer:
    found = load_tokenizer(folder)
    assert found is not None
    return found


def test_a_regular_expression_over_its_limit_is_one_typed_error(folder: Path) -> None:
    endless = {"type": "Split", "pattern": {"Regex": "(a|a?)+$"}, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=endless)
    with pytest.raises(InputError, match=r"cannot be encoded .*limit") as caught:
        opened(folder).encode("a" * 60 + "b")
    assert caught.value.hint is not None


def test_a_vocabulary_without_its_unknown_token_is_one_typed_error(folder: Path) -> None:
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    change(path, model=model | {"vocab": {"a": 0}}, added_tokens=[], post_processor=None)
    with refused(InputError, "Missing [UNK]"):
        opened(folder).encode("zebra")
    with refused(InputError, "Missing [UNK]"):
        opened(folder).encode_all(["zebra"])


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_half_a_character_as_a_special_token_is_one_typed_error(name: str, folder: Path) -> None:
    change(folder / name, eos_token="\ud800")
    with pytest.raises(CorruptFile, match="surrogates not allowed") as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_a_template_that_names_an_unknown_token_is_one_typed_error(folder: Path) -> None:
    path = folder / "tokenizer.json"
    frame = json.loads(path.read_text())["post_processor"]
    change(path, post_processor=frame | {"special_tokens": {}})
    with pytest.raises((CorruptFile, InputError)):
        opened(folder).encode("a fox")


WRONG = [("extra_ids", 10**9), ("extra_ids", "x"), ("do_lower_case", "false"), ("model_max_length", "long")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_setting_of_the_wrong_kind_is_named(name: str, value: object, folder: Path) -> None:
    change(folder / "tokenizer_config.json", **{name: value})
    with refused(
        CorruptFile, f'tokenizer_config.json has "{name}": {value!r}', "should be", hint="fetch it again"
    ):
        load_tokenizer(folder)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 2}', b"[1]"])
def test_a_table_that_is_damaged_is_named(data: bytes, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_bytes(data)
    with pytest.raises(CorruptFile, match=r"tokenizer_config\.json"):
        load_tokenizer(folder)


def test_merges_that_the_vocabulary_has_not_are_one_typed_error(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("a b\n")
    with refused(CorruptFile, "tokenizer"):
        load_tokenizer(tmp_path)


GGUF: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": [1, 1, 1],
}  # fmt: skip
UNFIT = [
    {"merges": ["a c"]}, {"merges": ["ab"]}, {"token_type": [1]}, {"tokens": [1, 2, 3]}, {"tokens": "abc"},
    {"model": "llama"}, {"bos_token_id": 9, "add_bos_token": True}, {"eos_token_id": "x"},
]  # fmt: skip


@pytest.mark.parametrize("change", UNFIT, ids=str)
def test_a_vocabulary_in_gguf_that_does_not_fit_is_one_typed_error(change: dict[str, Any]) -> None:
    with refused(CorruptFile, "m.gguf", "vocabulary"):
        from_gguf(GGUF | {f"tokenizer.ggml.{name}": value for name, value in change.items()}, "m.gguf")
