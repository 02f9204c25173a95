"""Bad input: one clear typed error each, that names the value, the expectation and the way out."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from pathlib import Path

import pytest
import torch

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
from heedful.models.base import Model
from tests.refusal import refused


@pytest.fixture
def model() -> Model:
    return heedful.build("gpt2", vocab=50, dim=16, layers=1, heads=2, context=8, seed=0).eval()


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    return heedful.save(model, tmp_path / "m")


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def retensor(folder: Path, change: object) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)  # type: ignore[operator]
    save_file(tensors, folder / "model.safetensors")


def test_an_unknown_model_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(NotFound, match="did you mean 'gpt2'"):
        heedful.build("gtp2")


def test_a_config_in_the_place_of_a_name_is_told_how_sizes_are_given() -> None:
    config = heedful.build("gpt2", device="meta").config
    with refused(NotFound, "name", hint="build"):
        heedful.build(config)


def test_an_unknown_field_is_answered_with_the_nearest_one() -> None:
    with refused(ConfigError, "'layer'", hint="'layers'"):
        heedful.build("gpt2", layer=2)


def test_heads_that_do_not_divide_the_dimension_name_those_that_do() -> None:
    with refused(ConfigError, "heads=5", "dim=64", hint="4"):
        heedful.build("llama", dim=64, heads=5, layers=1, vocab=10)


def test_key_value_heads_must_divide_the_heads() -> None:
    with refused(ConfigError, "kv_heads=3", "heads=4"):
        heedful.build("llama", dim=64, heads=4, kv_heads=3, layers=1, vocab=10)


def test_sizes_below_one_are_named() -> None:
    with refused(ConfigError, "layers=0", "at least 1"):
        heedful.build("gpt2", layers=0)


def test_an_unknown_head_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="head='mlm' .* did you mean 'lm'"):
        heedful.build("gpt2", dim=16, heads=2, layers=1, vocab=9, head="mlm")


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gelu'"):
        heedful.build("gpt2", dim=16, heads=2, layers=1, vocab=9, act="gelo")


@pytest.mark.parametrize("bad", [50, -1])
def test_tokens_outside_the_vocabulary_are_named(model: Model, bad: int) -> None:
    with refused(InputError, bad, hint="0 … 49"):
        model(torch.tensor([[1, bad]]))


def test_a_sequence_longer_than_the_learned_positions_is_said(model: Model) -> None:
    with refused(InputError, "9 long", hint="8"):
        model(torch.zeros(1, 9, dtype=torch.long))
    with pytest.raises(InputError, match="is 9 long"):
        model.start(torch.zeros(1, 9, dtype=torch.long))


def test_steps_past_the_learned_positions_are_said(model: Model) -> None:
    state = model.start(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(InputError, match="is 9 long"):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


def test_padding_does_not_count_towards_the_learned_positions(model: Model) -> None:
    valid = torch.arange(12)[None] < 8
    assert model(torch.zeros(1, 12, dtype=torch.long), valid=valid).shape == (1, 12, 50)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(3, dtype=torch.long), r"\(B, T\) tensor"),
        (torch.zeros(1, 3), "float32"),
        (torch.zeros(1, 0).long(), "empty"),
    ],
)
def test_tokens_of_the_wrong_kind_are_named(model: Model, tokens: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(tokens)


def test_a_mask_of_the_wrong_shape_or_dtype_is_named(model: Model) -> None:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with refused(InputError, "valid", "bool", "(2, 3)"):
        model(tokens, valid=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="int64"):
        model(tokens, valid=torch.ones(2, 3, dtype=torch.long))


def test_calling_a_model_without_a_head_says_so() -> None:
    model = heedful.build("gpt2", dim=16, heads=2, layers=1, vocab=9, head="none")
    assert model.encode(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 16)
    with pytest.raises(InputError, match=r"model\.encode"):
        model(torch.zeros(1, 3, dtype=torch.long))


def test_a_path_that_leads_nowhere_is_said() -> None:
    with refused(NotFound, "'./no-such-folder'", ".gguf"):
        heedful.load("./no-such-folder")


def test_a_hub_id_offline_is_one_clear_line() -> None:
    with refused(NotFound, "nobody/nothing-of-this-name", "local cache"):
        heedful.load("nobody/nothing-of-this-name")


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no config\.json"):
        heedful.load(tmp_path)


def test_an_unknown_model_type_is_named(folder: Path) -> None:
    rewrite(folder, model_type="gpt22")
    with refused(NotFound, "model_type='gpt22'", hint="gpt_neo, gpt_neox"):
        heedful.load(folder)


def test_an_unknown_architecture_lists_the_known(folder: Path) -> None:
    rewrite(folder, architectures=["GPT2ForMusic"])
    with refused(ConfigError, "GPT2ForMusic", hint="GPT2LMHeadModel"):
        heedful.load(folder)


def test_a_setting_that_changes_the_equation_is_refused(folder: Path) -> None:
    rewrite(folder, add_cross_attention=True)
    with refused(ConfigError, "add_cross_attention=True"):
        heedful.load(folder)


def test_a_damaged_config_is_said(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CorruptFile, match="is not JSON"):
        heedful.load(folder)


def test_a_truncated_file_is_said(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptFile, match="truncated"):
        heedful.load(folder)


@pytest.mark.parametrize(
    "junk", [b"", b"\x00" * 4, b"hello world, this is text", struct.pack("<Q", 20) + b"{not json at all...}"]
)
def test_a_file_that_is_no_safetensors_is_said(folder: Path, junk: bytes) -> None:
    (folder / "model.safetensors").write_bytes(junk)
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        heedful.load(folder)


def test_every_flipped_byte_of_the_header_is_an_error_or_harmless(folder: Path) -> None:
    path = folder / "model.safetensors"
    good = path.read_bytes()
    for i in range(0, 400, 7):
        path.write_bytes(good[:i] + bytes([good[i] ^ 0x15]) + good[i + 1 :])
        with contextlib.suppress(HeedfulError):
            heedful.load(folder)


def test_a_pickle_in_disguise_is_not_opened(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (folder / "opened",))  # type: ignore[return-value]

    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CorruptFile, match="pickle"):
        heedful.load(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(CorruptFile, match="more than tensors"):
        heedful.load(folder)
    assert not (folder / "opened").exists()


def test_a_missing_tensor_names_the_nearest(folder: Path) -> None:
    retensor(
        folder, lambda t: t.update({"transformer.h.0.ln_9.weight": t.pop("transformer.h.0.ln_1.weight")})
    )
    with refused(MissingTensor, "'transformer.h.0.ln_1.weight'", hint="ln_9"):
        heedful.load(folder)


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    retensor(folder, lambda t: t.update({"transformer.h.0.attn.extra": torch.zeros(3)}))
    with refused(UnexpectedTensor, "transformer.h.0.attn.extra"):
        heedful.load(folder)


def test_a_tensor_of_the_wrong_shape_is_named(folder: Path) -> None:
    retensor(folder, lambda t: t.update({"transformer.wte.weight": torch.zeros(50, 17)}))
    with refused(WrongShape, "transformer.wte.weight", "(50, 17)", "(50, 16)"):
        heedful.load(folder)


def test_a_tied_copy_that_differs_is_refused(folder: Path) -> None:
    retensor(folder, lambda t: t.update({"lm_head.weight": torch.zeros(50, 16)}))
    with pytest.raises(WeightsError, match="should repeat"):
        heedful.load(folder)


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NotFound, match="model-00001-of-00002"):
        heedful.load(folder)


def test_saving_into_a_file_is_refused(model: Model, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="is a file"):
        heedful.save(model, tmp_path / "taken")


def test_embedding_a_single_string_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="takes a list"):
        heedful.embed(model, "hello")  # type: ignore[arg-type]


def test_embedding_without_a_tokenizer_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        heedful.embed(model, ["hello"])
