"""GGUF files written here by the `gguf` library, read back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import CorruptFile, MissingPackage, NotFound, WeightsError
from heedful.models import FAMILIES
from heedful.nn.position import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
    frequencies,
    yarn_gain,
)
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import published_tensors
from tests.refusal import refused
from tests.text.samples import WRITTEN

gguf = pytest.importorskip("gguf", reason="the gguf library writes the files read here")

LLAMA = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64, "context": 64, "vocab": 260}


def write(
    path: Path,
    tensors: dict[str, np.ndarray],
    architecture: str = "llama",
    extra: Callable[[Any], None] | None = None,
    **numbers: Any,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    if extra is not None:
        extra(writer)
    for name, value in numbers.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{name.replace('__', '.')}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model(path: Path, model: Any, **more: Any) -> Path:
    names = FAMILIES["llama"].gguf_names
    assert names is not None
    tensors = {n: t.float().numpy() for n, t in published_tensors(model, names(model.config), None).items()}
    c = model.config
    numbers = {
        "embedding_length": c.dim, "block_count": c.layers, "attention__head_count": c.heads,
        "attention__head_count_kv": c.kv_heads, "feed_forward_length": c.hidden, "context_length": c.context,
        "rope__freq_base": c.rope_base, "attention__layer_norm_rms_epsilon": c.norm_eps,
    }  # fmt: skip
    arrays = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    return write(path, tensors | arrays, **numbers, **{n: v for n, v in more.items() if n not in arrays})


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_written_as_gguf_gives_the_same_logits(tied: bool, tmp_path: Path) -> None:
    model = heedful.build("llama", **LLAMA, tied=tied, seed=0).eval()
    again = heedful.load(write_model(tmp_path / "model.gguf", model))
    tokens = torch.randint(0, 260, (2, 9))
    assert again.config.tied is tied
    assert again.config.vocab == 260
    assert again.tokenizer is None
    assert torch.allclose(again(tokens), model(tokens), atol=1e-6)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_kind_of_tensor_is_read_as_the_library_dequantises_it(kind: str, tmp_path: Path) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(0).standard_normal((6, 64), dtype=np.float32)
    stored = gguf.quants.quantize(values, quant)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("token_embd.weight", stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "t.gguf")
    read = file.read("token_embd.weight")
    assert read.dtype == torch.float32
    assert tuple(read.shape) == file.entries["token_embd.weight"].shape == (6, 64)
    assert torch.equal(read, torch.from_numpy(gguf.quants.dequantize(stored, quant).copy()))
    assert (read - torch.from_numpy(values)).abs().max() < 0.5


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_read_as_the_library_dequantises_them(kind: str, tmp_path: Path) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    raw = np.random.default_rng(0).integers(
        0, 60, (3, size), dtype=np.uint8
    )  # small bytes: finite half floats
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = GGUFFile(tmp_path / "t.gguf").read("token_embd.weight")
    assert tuple(read.shape) == (3, elements)
    assert torch.equal(read, torch.from_numpy(gguf.quants.dequantize(raw, quant).copy()))


def test_what_was_read_outlives_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", {"token_embd.weight": np.ones((4, 32), np.float32)})
    read = GGUFFile(path).read("token_embd.weight")
    path.write_bytes(b"")
    read += 1
    assert bool((read == 2).all())


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_positions_divided_as_llama_3_does_are_recognised(factor: float, tmp_path: Path) -> None:
    scaling = Llama3Scaling(factor)
    model = heedful.build("llama", **LLAMA, rope_base=500000.0, rope_scaling=scaling, seed=0).eval()
    plain, scaled = (frequencies(8, 500000.0, s, torch.tensor([[64]]))[0][0] for s in (None, scaling))
    divisors = (plain / scaled).numpy()
    again = heedful.load(write_model(tmp_path / "model.gguf", model, **{"rope_freqs.weight": divisors}))
    tokens = torch.randint(0, 260, (2, 40))
    assert again.config.rope_scaling == scaling  # type: ignore[attr-defined]
    assert torch.allclose(again(tokens), model(tokens), atol=1e-6)


STATED: list[tuple[dict[str, Any], Scaling]] = [
    ({"scaling__type": "linear", "scaling__factor": 4.0}, LinearScaling(4.0)),
    ({"scaling__factor": 4.0}, LinearScaling(4.0)),  # without a rule it is linear, as llama.cpp has it
    ({"scale_linear": 4.0}, LinearScaling(4.0)),  # files of 2023
    ({"scaling__type": "yarn", "scaling__factor": 4.0}, YarnScaling(4.0, 16)),
    (
        {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_beta_fast": 16.0},
        YarnScaling(4.0, 16, fast=16.0),
    ),
    (
        {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__attn_factor": 2.0},
        YarnScaling(4.0, 16, attention_factor=2 * yarn_gain(4.0)),
    ),
]


@pytest.mark.parametrize(("stated", "scaling"), STATED)
def test_positions_rescaled_by_a_named_rule_are_read(
    stated: dict[str, Any], scaling: Scaling, tmp_path: Path
) -> None:
    model = heedful.build("llama", **LLAMA, rope_scaling=scaling, seed=0).eval()
    yarn = {"scaling__original_context_length": 16} if isinstance(scaling, YarnScaling) else {}
    path = write_model(tmp_path / "m.gguf", model, **{f"rope__{n}": v for n, v in (stated | yarn).items()})
    tokens = torch.randint(0, 260, (2, 40))
    assert torch.allclose(heedful.load(path)(tokens), model(tokens), atol=1e-6)


def test_frequencies_divided_by_any_list_are_read(tmp_path: Path) -> None:
    listed = (1.0, 1.5, 4.0, 8.0)
    scaling = LongScaling(8.0, 64, listed, listed, 1.0)
    model = heedful.build("llama", **LLAMA, rope_scaling=scaling, seed=0).eval()
    path = write_model(tmp_path / "m.gguf", model, **{"rope_freqs.weight": np.array(listed, np.float32)})
    tokens = torch.randint(0, 260, (2, 40))
    assert torch.allclose(heedful.load(path)(tokens), model(tokens), atol=1e-6)


def test_positions_rescaled_by_an_unknown_rule_are_refused_rather_than_left_out(tmp_path: Path) -> None:
    model = heedful.build("llama", **LLAMA)
    factors = np.linspace(1, 8, 4, dtype=np.float32)
    said = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    with refused(WeightsError, "'yarn'", "rope_freqs"):
        heedful.load(write_model(tmp_path / "a.gguf", model, **said, **{"rope_freqs.weight": factors}))
    with pytest.raises(WeightsError, match="'longrope' is not read"):
        heedful.load(write_model(tmp_path / "b.gguf", model, rope__scaling__type="longrope"))
    with refused(WeightsError, "'yarn'", "yarn_log_multiplier"):
        more = {"rope__scaling__yarn_log_multiplier": 0.1}
        heedful.load(write_model(tmp_path / "c.gguf", model, **said, **more))


def test_biases_are_seen_from_the_tensors(tmp_path: Path) -> None:
    model = heedful.build("llama", **LLAMA, bias=True, ffn_bias=True, seed=0).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    again = heedful.load(write_model(tmp_path / "m.gguf", model))
    tokens = torch.randint(0, 260, (2, 9))
    assert torch.allclose(again(tokens), model(tokens), atol=1e-6)


def split_model(path: Path, model: Any, count: int) -> list[Path]:
    """Write a model as llama.cpp splits one: the metadata in the first part, and each knows its number."""
    whole = GGUFFile(write_model(path.with_name("whole.gguf"), model))
    names, parts = sorted(whole.entries), []
    for number in range(count):
        tensors = {name: whole.read(name).numpy() for name in names[number::count]}
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in whole.metadata.items() if number == 0 else ():
            if key != "general.architecture":
                (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(names))
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        parts.append(path.with_name(f"{path.stem}-{number + 1:05d}-of-{count:05d}.gguf"))
        writer.write_header_to_file(parts[-1])
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def test_any_part_of_a_split_file_opens_the_whole_model(tmp_path: Path) -> None:
    model = heedful.build("llama", **LLAMA, seed=0).eval()
    parts = split_model(tmp_path / "m.gguf", model, 3)
    tokens = torch.randint(0, 260, (2, 9))
    for part in parts:
        assert torch.allclose(heedful.load(part)(tokens), model(tokens), atol=1e-6)
    parts[1].rename(tmp_path / "second.gguf")
    with refused(NotFound, "m-00002-of-00003.gguf, one of 3 parts"):
        heedful.load(parts[0])
    with refused(NotFound, "part 2 of 3", hint="NAME-00002-of-00003.gguf"):
        heedful.load(tmp_path / "second.gguf")
    split_model(tmp_path / "m.gguf", model, 3)
    other = split_model(tmp_path / "n.gguf", heedful.build("llama", **LLAMA | {"layers": 1}), 3)
    other[2].rename(parts[2])
    with refused(CorruptFile, "parts", "tensors"):
        heedful.load(parts[0])


def test_what_is_no_model_says_what_it_is(tmp_path: Path) -> None:
    table = {"token_embd.weight": np.ones((4, 32), np.float32)}
    path = write(tmp_path / "a.gguf", table, extra=lambda writer: writer.add_type("adapter"))
    with refused(NotFound, "no model", "'adapter'"):
        heedful.load(path)
    path = write(tmp_path / "b.gguf", table)
    damaged(path, named("general.architecture"), named("general.brchitecture"))
    with refused(NotFound, "general.architecture"):
        heedful.load(path)


def test_a_newer_kind_of_block_and_an_old_version_are_not_called_damage(two: Path) -> None:
    whole = two.read_bytes()
    two.write_bytes(whole.replace(SHAPE, SHAPE[:-4] + (99).to_bytes(4, "little")))
    with refused(WeightsError, "type 99", hint="-U gguf"):
        GGUFFile(two)
    for version in (b"\1\0\0\0", b"\0\0\0\3"):
        two.write_bytes(b"GGUF" + version + whole[8:])
        with refused(WeightsError, "version", hint="convert"):
            GGUFFile(two)


def test_bad_files_are_one_clear_error_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(CorruptFile, match="does not begin with GGUF"):
        heedful.load(tmp_path / "a.gguf")
    whole = write_model(tmp_path / "b.gguf", heedful.build("llama", **LLAMA)).read_bytes()
    (tmp_path / "c.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFile, match="truncated"):
        heedful.load(tmp_path / "c.gguf")
    write(tmp_path / "d.gguf", {"x": np.ones((4, 32), np.float32)}, architecture="whisper")
    with pytest.raises(NotFound, match="whisper"):
        heedful.load(tmp_path / "d.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackage, match=r"heedful\[gguf\]"):
        heedful.load(tmp_path / "b.gguf")


def test_a_vocabulary_with_scores_is_the_sentencepiece_model_it_came_from(tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece trains the vocabulary")
    from heedful.text.gguf import from_gguf

    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(WRITTEN * 3), model_prefix=str(tmp_path / "m"), vocab_size=420, minloglevel=2,
        hard_vocab_limit=False, num_threads=1, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    theirs = spm.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(theirs.get_piece_size())
    kinds = [
        2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1
        for i in ids
    ]
    ours = from_gguf({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [theirs.get_score(i) for i in ids], "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    })  # fmt: skip
    assert ours is not None
    assert (ours.bos, ours.eos) == (1, 2)
    for line in WRITTEN:
        assert ours.encode(line) == [1, *theirs.encode(line)], line


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["a", " 2026", "!!", "\n", "\n", "b"]),
        ("smollm", ["a", " ", "2", "0", "2", "6", "!!", "\n", "\n", "b"]),
        ("llama-bpe", ["a", " ", "202", "6", "!!\n\n", "b"]),
        ("qwen2", ["a", " ", "2", "0", "2", "6", "!!\n\n", "b"]),
        ("falcon", ["a", " ", "202", "6", "!!", "\n", "\n", "b"]),
        ("gpt-4o", ["a", " ", "202", "6", "!!\n\n", "b"]),
        ("bloom", ["a", " 2026", "!!\n\n", "b"]),
    ],
)
def test_text_is_cut_as_the_file_says_before_bytes_are_merged(pre: str, pieces: list[str]) -> None:
    from tokenizers import pre_tokenizers

    from heedful.text.gguf import from_gguf

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ours = from_gguf({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": [],
        "tokenizer.ggml.tokens": alphabet,
    })  # fmt: skip
    assert ours is not None
    text = "a 2026!!\n\nb"
    cut = ours.backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[slice(*span)] for _, span in cut] == pieces
    assert ours.decode(ours.encode(text)) == text


def test_a_vocabulary_in_gguf_composes_letters_frames_texts_and_leaves_out_their_end() -> None:
    from heedful.text.gguf import from_gguf

    names = ["a", "Ã", "©", "e", "Ì", "ģ", "Ã©", "[CLS]", "<end>"]
    told = {
        "model": "gpt2", "pre": "qwen2", "tokens": names, "token_type": [1] * 7 + [3, 1], "merges": ["Ã ©"],
        "cls_token_id": 7, "eos_token_id": 8, "add_bos_token": True, "add_eos_token": True,
    }  # fmt: skip
    tokenizer = from_gguf({f"tokenizer.ggml.{name}": value for name, value in told.items()})
    assert tokenizer is not None
    assert tokenizer.encode("e\u0301") == [7, 6, 8]
    assert tokenizer.decode([7, 6, 8]) == "é"  # its end, which stands among the words, is special too


def test_the_header_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    def more(writer: Any) -> None:
        writer.add_token_list(["a", "ä", ""])
        writer.add_token_scores([0.5, -1.0, 0.0])
        writer.add_bool("llama.flag", True)
        writer.add_int64("llama.low", -(2**40))
        writer.add_custom_alignment(64)

    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    path = write(tmp_path / "t.gguf", {"a": values, "b": values.astype(np.float16)}, extra=more)
    theirs, ours = gguf.GGUFReader(path), GGUFFile(path)
    fields = {n: f.contents() for n, f in theirs.fields.items() if not n.startswith("GGUF.")}
    assert ours.metadata == fields
    assert {n: e.shape for n, e in ours.entries.items()} == {"a": (3, 32), "b": (3, 32)}
    assert torch.equal(ours.read("a"), torch.from_numpy(values))
    assert torch.equal(ours.read("b"), torch.from_numpy(values))


def damaged(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    return path


def named(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two tensors of 4 × 32, one after the other."""
    tensors = {"one": np.zeros((4, 32), np.float32), "two": np.ones((4, 32), np.float32)}
    return write(
        tmp_path / "t.gguf", tensors, extra=lambda writer: writer.add_token_list(["first", "second"])
    )


SHAPE = (32).to_bytes(8, "little") + (4).to_bytes(8, "little") + (0).to_bytes(4, "little")
PLACES = [(512, 0), (512, 256), (512, 544)]  # in the place of the first, over its end, after a gap


@pytest.mark.parametrize(("place", "wrong"), PLACES)
def test_tensors_in_gguf_that_overlap_or_leave_a_gap_are_refused(place: int, wrong: int, two: Path) -> None:
    old, new = (SHAPE + n.to_bytes(8, "little") for n in (place, wrong))
    with pytest.raises(CorruptFile, match="'two' begins at"):
        GGUFFile(damaged(two, old, new))


def test_metadata_that_are_no_utf_8_are_named(two: Path) -> None:
    with refused(CorruptFile, "'tokenizer.ggml.tokens'", "UTF-8"):
        GGUFFile(damaged(two, b"second", b"sec\xff\xfed"))


def test_a_list_that_runs_past_the_end_is_refused_at_once(two: Path) -> None:
    head = named("tokenizer.ggml.tokens") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    for count in (3, 2**20, 2**60):
        old, new = (head + n.to_bytes(8, "little") for n in (2, count))
        with pytest.raises(CorruptFile, match="announce"):
            GGUFFile(damaged(two, old, new))
        damaged(two, new, old)


def test_bytes_that_no_tensor_claims_are_refused(two: Path) -> None:
    two.write_bytes(two.read_bytes() + b"\0")
    with pytest.raises(CorruptFile, match="the file at"):
        GGUFFile(two)
