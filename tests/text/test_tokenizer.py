"""Tokenizer and the readers, on vocabularies small enough to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.core.errors import CorruptFile, InputError
from heedful.text import Tokenizer, load_tokenizer, save_tokenizer
from tests.text.samples import lines

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "un", "##able", "##s", ",", "中"]


def loaded(folder: Path, published: dict[str, object] | None = None) -> Tokenizer:
    tokenizer = load_tokenizer(folder, published)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def bert(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return loaded(tmp_path)


def byte_vocabulary() -> dict[str, int]:
    from tokenizers import pre_tokenizers

    return {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def test_a_folder_without_a_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None


def test_wordpiece_takes_the_longest_known_prefix_and_frames_the_text(bert: Tokenizer) -> None:
    assert bert.tokens(bert.encode("The cats, unable")) == [
        "[CLS]",
        "the",
        "cat",
        "##s",
        ",",
        "un",
        "##able",
        "[SEP]",
    ]
    assert bert.tokens(bert.encode("dog 中", special=False)) == ["[UNK]", "中"]
    assert bert.decode(bert.encode("the cats, unable")) == "the cats, unable"


def test_roles_are_ids_and_absent_ones_are_none(bert: Tokenizer) -> None:
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask) == (0, 1, 2, 3, 4)
    assert bert.bos is None
    assert bert.eos is None
    assert len(bert) == len(WORDS)


def test_a_pair_of_texts_has_types(bert: Tokenizer) -> None:
    ids, types = bert.encode_pair("the cat", "sat")
    assert bert.tokens(ids) == ["[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]"]
    assert types == [0, 0, 0, 0, 1, 1]


def test_pieces_know_their_characters(bert: Tokenizer) -> None:
    text = "The cats"
    spans = [(p.token, text[p.start : p.end]) for p in bert.split(text)]
    assert spans == [("[CLS]", ""), ("the", "The"), ("cat", "cat"), ("##s", "s"), ("[SEP]", "")]
    assert bert.offsets(text)[1] == (0, 3)


def test_a_masked_word_is_one_token(bert: Tokenizer) -> None:
    assert bert.mask in bert.encode("the [MASK] sat")


def test_lower_casing_follows_the_settings(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "The"]) + "\n", encoding="utf-8")
    assert loaded(tmp_path).tokens(loaded(tmp_path).encode("The", special=False)) == ["The"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert loaded(tmp_path).tokens(loaded(tmp_path).encode("The", special=False)) == ["the"]


def test_byte_level_merges_replay_and_lose_nothing(tmp_path: Path) -> None:
    vocab = byte_vocabulary()
    vocab |= {"th": len(vocab), "the": len(vocab) + 1, "Ġthe": len(vocab) + 2}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ the\n", encoding="utf-8")
    tokenizer = loaded(tmp_path)
    assert tokenizer.tokens(tokenizer.encode("the then")) == ["the", "Ġthe", "n"]
    for line in lines(50):
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_a_byte_level_vocabulary_with_a_mask_is_framed(tmp_path: Path) -> None:
    vocab = {t: i for i, t in enumerate(("<s>", "<pad>", "</s>", "<unk>"))}
    vocab |= {letter: i + 4 for letter, i in byte_vocabulary().items()}
    vocab["<mask>"] = len(vocab)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = loaded(tmp_path)
    assert tokenizer.tokens(tokenizer.encode("a <mask>")) == ["<s>", "a", "<mask>", "</s>"]
    assert (tokenizer.cls, tokenizer.sep, tokenizer.bos, tokenizer.eos) == (0, 2, 0, 2)


def test_texts_of_opt_begin_with_the_token_that_ends_one(tmp_path: Path) -> None:
    vocab = {t: i for i, t in enumerate(("<s>", "<pad>", "</s>", "<unk>"))}
    vocab |= {letter: i + 4 for letter, i in byte_vocabulary().items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    names = {"bos_token": {"content": "</s>"}, "eos_token": "</s>", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, **names}))
    tokenizer = loaded(tmp_path)
    assert tokenizer.tokens(tokenizer.encode("a")) == ["</s>", "a"]
    assert tokenizer.tokens(tokenizer.encode("<s>", special=False)) == ["<", "s", ">"]  # which nothing names


def test_plain_files_of_qwen_are_split_as_qwen_does(tmp_path: Path) -> None:
    vocab = byte_vocabulary()
    vocab |= {"12": len(vocab), "!Ċ": len(vocab) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n1 2\n! Ċ\n", encoding="utf-8")
    assert loaded(tmp_path).tokens(loaded(tmp_path).encode("12!\n")) == ["12", "!", "Ċ"]
    qwen = loaded(tmp_path, {"model_type": "qwen2"})
    assert qwen.tokens(qwen.encode("12!\n")) == ["1", "2", "!Ċ"]
    assert qwen.encode("e\u0301") == qwen.encode("é")


def test_a_role_that_a_file_denies_or_an_ordinary_word_spells_is_none(tmp_path: Path) -> None:
    vocab = byte_vocabulary()
    vocab |= {"<unk>": len(vocab), "<|endoftext|>": len(vocab) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    told = {"bos_token": None, "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    tokenizer = loaded(tmp_path, {"bos_token_id": vocab["<|endoftext|>"]})
    assert tokenizer.roles == {"eos": "<|endoftext|>"}


def test_what_a_file_names_as_the_end_is_special_wherever_it_was_added(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(BYTES))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|u|>": 8}))
    whole = loaded(tmp_path)
    assert whole.decode([0, 8]) == "a<|u|>"
    folder = tmp_path / "json"
    folder.mkdir()
    whole.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|u|>"}')
    assert loaded(folder).decode([0, 8]) == "a"


BYTES = {"a": 0, "b": 1, "<": 2, "|": 3, ">": 4, "u": 5, "Ġ": 6, "<|in|>": 7}


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("special_tokens_map.json", {"additional_special_tokens": ["<|u|>", "<|in|>"]}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<|u|>", {"content": "<|in|>"}]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<|u|>", "<|in|>"]}),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"8": {"content": "<|u|>"}, "7": {"content": "<|in|>"}}},
        ),
    ],
)
def test_special_tokens_named_beside_a_vocabulary_are_never_split(
    file: str, told: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(BYTES))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / file).write_text(json.dumps(told))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    ids = tokenizer.encode("a<|u|>b<|in|>a")
    assert ids == [0, 8, 1, 7, 0]  # one that the vocabulary lacks gets the next id
    assert tokenizer.decode(ids) == "aba"
    assert len(tokenizer) == 9


def test_added_tokens_are_whole_and_no_special_ones(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(BYTES))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"bbb": 9, "<|u|>": 8}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("a<|u|>bbb") == [0, 8, 9]
    assert tokenizer.decode([0, 8, 9]) == "a<|u|>bbb"
    (tmp_path / "added_tokens.json").write_text(json.dumps({"bbb": None, "<|u|>": 8}))
    with pytest.raises(CorruptFile, match="added tokens"):
        load_tokenizer(tmp_path)


def test_ends_of_words_make_it_the_first_gpt(tmp_path: Path) -> None:
    vocab = {t: i for i, t in enumerate(["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>"])}
    (tmp_path / "encoder_bpe_40000.json").write_text(json.dumps(vocab))
    (tmp_path / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n")
    tokenizer = loaded(tmp_path)
    assert tokenizer.tokens(tokenizer.encode("AB ba")) == ["ab</w>", "b", "a</w>"]
    assert tokenizer.decode(tokenizer.encode("AB ba")) == "ab ba"


def test_saved_and_loaded_again_it_is_the_same(bert: Tokenizer, tmp_path: Path) -> None:
    bert.chat_template = "{{ messages[0].content }}"
    folder = tmp_path / "saved"
    folder.mkdir()
    save_tokenizer(bert, folder)
    again = loaded(folder)
    assert again.roles == bert.roles
    assert again.chat_template == bert.chat_template
    assert all(again.encode(line) == bert.encode(line) for line in lines(30))


def test_nothing_is_cut_or_padded(bert: Tokenizer, tmp_path: Path) -> None:
    bert.backend.enable_truncation(4)
    bert.backend.enable_padding(length=9)
    bert.backend.save(str(tmp_path / "tokenizer.json"))
    assert len(loaded(tmp_path).encode("the cat sat the cat sat the cat sat")) == 11
    assert len(loaded(tmp_path).encode("the")) == 3


def test_special_tokens_come_from_the_files_then_from_the_config(bert: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    bert.backend.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "[SEP]"}}')
    tokenizer = loaded(folder, {"bos_token_id": 2, "eos_token_id": 4})
    assert (tokenizer.eos, tokenizer.bos) == (3, 2)


CHAT = (
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{{ sep_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_conversation_is_rendered_as_its_template_says(bert: Tokenizer) -> None:
    bert.chat_template = CHAT
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert bert.chat(messages, generation_prompt=False) == "<user>Hi[SEP]\n<assistant>Hello[SEP]\n"
    assert bert.chat(messages[:1]).endswith("<assistant>")
    with pytest.raises(InputError, match="no such role"):
        bert.chat([{"role": "bad", "content": ""}])


def test_a_template_reads_what_else_it_is_given(bert: Tokenizer) -> None:
    bert.chat_template = "{% if tools %}{{ tools[0].name }}{% endif %}{{ enable_thinking | default(true) }}"
    assert bert.chat([]) == "True"
    assert bert.chat([], tools=[{"name": "f"}], enable_thinking=False) == "fFalse"


def test_a_template_cannot_reach_the_machine(bert: Tokenizer) -> None:
    bert.chat_template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(InputError):
        bert.chat([{"role": "user", "content": "Hi"}])


def test_without_a_template_chat_says_so(bert: Tokenizer) -> None:
    with pytest.raises(InputError, match="no chat template"):
        bert.chat([{"role": "user", "content": "Hi"}])


def test_bad_input_is_one_clear_error(bert: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="-100 is not a token id"):
        bert.decode([5, -100])
    with pytest.raises(InputError, match="encode_all"):
        bert.encode(["a", "b"])  # type: ignore[arg-type]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptFile, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_importing_text_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, heedful.text; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
