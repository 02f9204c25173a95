"""Broken checkpoints: one clear line each; and files that only look broken are read."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import heedful
from heedful.core.errors import (
    ConfigError,
    CorruptFile,
    HeedfulError,
    InputError,
    MissingTensor,
    NotFound,
    UnexpectedTensor,
    WeightsError,
    WrongShape,
)
from heedful.weights.formats.tensor_files import SafeFile, open_folder, shards_of, write_safetensors
from heedful.weights.pooling import Pooling, pool, read_pooling
from tests.refusal import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = heedful.build("bert", vocab=30, dim=8, layers=1, heads=2, hidden=8, context=8, seed=0)
    return heedful.save(model, tmp_path / "m")


def test_a_header_whose_length_begins_like_a_pickle_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {f"t.{i}.weight": torch.full((2,), float(i)) for i in range(10)}
    save_file(tensors, path)
    assert path.read_bytes()[:2] == b"\x80\x02"  # 640 bytes; a pickle of protocol 2 begins so too
    assert torch.equal(SafeFile(path).read("t.3.weight"), tensors["t.3.weight"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_of_any_protocol_is_called_one(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"weight": list(range(300))}, protocol=protocol))
    with refused(CorruptFile, "pickle"):
        SafeFile(path)


INDEXES = ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null}}']


@pytest.mark.parametrize("text", INDEXES)
def test_a_damaged_index_is_said(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(CorruptFile, match="is damaged"):
        shards_of(index)


def test_a_tensor_like_no_other_is_named_in_a_whole_sentence(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"zzz": torch.zeros(2)}, file)
    with refused(UnexpectedTensor, "'zzz'", hint="config.json"):
        heedful.load(folder)
    save_file({"zzz": torch.zeros(2)}, file)
    with refused(MissingTensor, hint="config.json"):
        heedful.load(folder)


def test_a_header_may_not_promise_more_than_the_file_has(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CorruptFile, match="is truncated"):
        SafeFile(path)


def test_weights_that_cannot_be_written_leave_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    write_safetensors(tmp_path, {"a": torch.ones(3)})

    def full(tensors: object, path: Path, meta: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        write_safetensors(tmp_path, {"a": torch.zeros(3)})
    assert torch.equal(open_folder(tmp_path).read("a"), torch.ones(3))


def test_a_full_disk_is_called_so_and_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors
    import safetensors.torch

    def full(tensors: object, path: Path, meta: object) -> None:
        Path(path).write_bytes(b"half")
        raise safetensors.SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_safetensors(tmp_path, {"a": torch.zeros(3)})
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bert-base-uncased", "gpt2", "llama"])
def test_a_size_without_weights_is_told_apart_from_a_wrong_path(name: str) -> None:
    with refused(NotFound, f"'{name}'", hint="build"):
        heedful.load(name)


def test_a_name_misspelt_is_answered_with_the_nearest_model_at_hand() -> None:
    with refused(NotFound, "all-minilm-l6-v3", hint="'all-minilm-l6-v2'"):
        heedful.load("all-minilm-l6-v3")


def test_what_is_neither_a_path_nor_a_name_is_refused() -> None:
    with pytest.raises(NotFound, match="int is neither"):
        heedful.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("./no-such-folder", ["'./no-such-folder'", ".gguf"]),
        ("nobody/nothing-of-this-name", ["nobody/nothing-of-this-name", "local cache"]),
    ],
)
def test_a_path_or_an_id_that_leads_nowhere_is_said(path: str, values: list[str]) -> None:
    with refused(NotFound, *values):
        heedful.load(path)


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with refused(NotFound, "has no config.json"):
        heedful.load(tmp_path)


def rewrite(folder: Path, **changes: object) -> None:
    """Change keys of config.json; None leaves one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "kind", "said", "hint"),
    [
        ({"model_type": None}, NotFound, "no model_type", ""),
        ({"model_type": "berrt"}, NotFound, "\"model_type\": 'berrt'", "bert"),
        ({"architectures": ["BertForMusic"]}, ConfigError, "BertForMusic", "BertForMaskedLM"),
        ({"add_cross_attention": True}, ConfigError, '"add_cross_attention": True', ""),
    ],
)
def test_a_config_that_is_not_built_here_is_refused(
    changes: dict[str, object], kind: type[HeedfulError], said: str, hint: str, folder: Path
) -> None:
    rewrite(folder, **changes)
    with refused(kind, said, hint=hint):
        heedful.load(folder)


def test_a_damaged_config_is_said(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with refused(CorruptFile, "is not JSON"):
        heedful.load(folder)


@pytest.mark.parametrize(
    "junk", [b"", b"\x00" * 4, b"hello world, this is text", struct.pack("<Q", 20) + b"{not json at all...}"]
)
def test_a_file_that_is_no_safetensors_is_said(folder: Path, junk: bytes) -> None:
    (folder / "model.safetensors").write_bytes(junk)
    with refused(CorruptFile, "model.safetensors"):
        heedful.load(folder)


def test_a_pickle_in_disguise_is_not_opened(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return (Path.touch, (folder / "opened",))

    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with refused(CorruptFile, "pickle"):
        heedful.load(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Trap()}, folder / "pytorch_model.bin")
    with refused(CorruptFile, "more than tensors"):
        heedful.load(folder)
    assert not (folder / "opened").exists()


WORDS, NORM = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.LayerNorm.weight"


@pytest.mark.parametrize(
    ("change", "kind", "values", "hint"),
    [
        (lambda t: t.update({f"{NORM}s": t.pop(NORM)}), MissingTensor, [f"'{NORM}'"], "weights"),
        (lambda t: t.update({"bert.extra": torch.zeros(3)}), UnexpectedTensor, ["bert.extra"], ""),
        (lambda t: t.update({WORDS: torch.zeros(30, 9)}), WrongShape, [WORDS, "(30, 9)", "(30, 8)"], ""),
        (
            lambda t: t.update({"cls.predictions.decoder.weight": torch.zeros(30, 8)}),
            WeightsError,
            ["should repeat"],
            "",
        ),
        (lambda t: t.update({WORDS: t[WORDS].to(torch.int8)}), WeightsError, [f"'{WORDS}' holds int8"], ""),
    ],
    ids=["missing", "extra", "another shape", "an output that should be tied", "whole numbers"],
)
def test_a_tensor_that_does_not_fit_is_named(
    change: Callable[[dict[str, Tensor]], None],
    kind: type[HeedfulError],
    values: list[str],
    hint: str,
    folder: Path,
) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with refused(kind, *values, hint=hint):
        heedful.load(folder)


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    index = {"weight_map": {WORDS: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused(NotFound, "model-00001-of-00002"):
        heedful.load(folder)


def test_saving_into_a_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with refused(InputError, "is a file"):
        heedful.save(heedful.load(folder), tmp_path / "taken")


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"type": 3, "path": ""}]', '[{"type": "a.Pooling"}]'])
def test_damaged_modules_are_said(folder: Path, text: str) -> None:
    (folder / "modules.json").write_text(text)
    with pytest.raises(CorruptFile, match=r"modules\.json"):
        heedful.load(folder)


def test_pooling_that_is_not_there_is_said(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"type": "a.Pooling", "path": "1_Pooling"}]')
    with refused(CorruptFile, "1_Pooling", "config.json", "missing"):
        heedful.load(folder)


def test_a_further_layer_over_sentence_vectors_is_not_left_out_in_silence(folder: Path) -> None:
    parts = [{"type": "a.models.Transformer", "path": ""}, {"type": "a.models.Dense", "path": "2_Dense"}]
    (folder / "modules.json").write_text(json.dumps(parts))
    with refused(ConfigError, "Dense"):
        heedful.load(folder)


def test_saving_leaves_nothing_of_an_earlier_model(folder: Path) -> None:
    model = heedful.load(folder)
    model.pooling, model.generation = Pooling("first"), {"eos_token_id": 3}
    heedful.save(model, folder)
    assert read_pooling(folder) == Pooling("first")
    heedful.save(heedful.build("bert", vocab=30, dim=8, layers=1, heads=2, hidden=8, context=8), folder)
    again = heedful.load(folder)
    assert again.pooling is None
    assert again.generation == {}


def test_a_long_sentence_is_cut_before_the_token_that_ends_it(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat and the dog lay on the rug\n" * 3)
    tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=60)
    model = heedful.build("bert", vocab=len(tokenizer), dim=8, layers=1, heads=2, context=32, seed=0).eval()
    model.tokenizer, how = tokenizer, Pooling("mean", length=6)
    whole = tokenizer.encode("the cat sat on the mat and the dog")
    kept = torch.tensor([whole[:5] + [tokenizer.sep]])
    expected = pool(model.encode(kept), torch.ones(1, 6, dtype=torch.bool), how)
    found = heedful.embed(model, ["the cat sat on the mat and the dog", "the cat"], pooling=how)
    assert torch.allclose(found[:1], expected, atol=1e-6)


def headed(path: Path, header: str, size: int) -> Path:
    """A safetensors file with this header over the numbers 0, 1, 2 …"""
    text = header.encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{size}f", *range(size)))
    return path


ONE = '{{"dtype": "F32", "shape": [2], "data_offsets": [{}, {}]}}'


def test_a_header_with_the_same_key_twice_is_refused(tmp_path: Path) -> None:
    header = f'{{"a": {ONE.format(0, 8)}, "b": {ONE.format(8, 16)}, "a": {ONE.format(16, 24)}}}'
    with pytest.raises(CorruptFile, match="damaged"):
        SafeFile(headed(tmp_path / "model.safetensors", header, 6))


def test_tensors_whose_bytes_overlap_are_refused(tmp_path: Path) -> None:
    header = f'{{"a": {ONE.format(0, 8)}, "b": {ONE.format(4, 12)}}}'
    with pytest.raises(CorruptFile, match="damaged"):
        SafeFile(headed(tmp_path / "model.safetensors", header, 3))


def test_bytes_that_no_tensor_claims_are_refused(tmp_path: Path) -> None:
    for header, size in ((f'{{"a": {ONE.format(4, 12)}}}', 3), (f'{{"a": {ONE.format(0, 8)}}}', 3)):
        with pytest.raises(CorruptFile, match="damaged"):
            SafeFile(headed(tmp_path / "model.safetensors", header, size))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((4, 8), float(i)) for i in range(4)}
    write_safetensors(tmp_path, tensors, shard_bytes=300)
    second = tmp_path / "model-00002-of-00002.safetensors"
    save_file(load_file(second) | {"layer.0": torch.zeros(4, 8)}, second)
    with pytest.raises(CorruptFile, match=r"both hold 'layer\.0'"):
        open_folder(tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_that_training_programs_wrap_are_read(prefix: str, folder: Path) -> None:
    file, tokens = folder / "model.safetensors", torch.arange(5, 9)[None]
    expected = heedful.load(folder)(tokens)
    save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)
    assert torch.equal(heedful.load(folder)(tokens), expected)


def test_shards_are_read_without_their_index_if_all_are_there(folder: Path) -> None:
    tokens = torch.arange(5, 9)[None]
    expected = heedful.load(folder)(tokens)
    write_safetensors(folder, load_file(folder / "model.safetensors"), shard_bytes=2000)
    (folder / "model.safetensors.index.json").unlink()
    assert torch.equal(heedful.load(folder)(tokens), expected)
    lost = sorted(folder.glob("model-*"))[1]
    lost.unlink()
    with refused(NotFound, lost.name, hint="fetch"):
        heedful.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.gguf"])
def test_a_pointer_of_git_lfs_is_called_one(name: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with refused(CorruptFile, "git-lfs", hint="git lfs pull"):
        heedful.load(folder / name if name.endswith("gguf") else folder)


def test_a_checkpoint_of_a_training_program_is_called_one(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "pytorch_model.bin")
    with refused(CorruptFile, "state_dict, epoch", hint="alone"):
        heedful.load(folder)


def test_weights_of_eight_bits_without_scales_are_computed_in_sixteen(folder: Path) -> None:
    file = folder / "model.safetensors"
    narrow = {n: t.to(torch.float8_e4m3fn) if t.ndim == 2 else t for n, t in load_file(file).items()}
    save_file(narrow, file)
    model = heedful.load(folder)
    assert model.embed.token.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert torch.isfinite(model(torch.arange(5, 9)[None])).all()


def test_an_output_matrix_that_config_json_does_not_mention_is_not_called_tied(tmp_path: Path) -> None:
    model = heedful.build("llama", vocab=30, dim=8, layers=1, heads=2, hidden=8, context=8, seed=0)
    rewrite(heedful.save(model, tmp_path), architectures=["LlamaModel"])
    with refused(WeightsError, "'lm_head.weight'", hint="architectures"):
        heedful.load(tmp_path)


def test_a_folder_of_gguf_files_says_which_to_load(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with refused(NotFound, "config.json", hint="m.gguf"):
        heedful.load(tmp_path)
