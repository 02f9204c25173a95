"""Files as they were released: old names, repeated, extra and missing tensors, configs that say little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError, UnexpectedTensor
from heedful.models.decoders.llama_lineage.deepseek import DEEPSEEK_V3
from heedful.nn.init import initialise
from heedful.weights.loading import assemble
from tests.parity.cases import BERT, find_case
from tests.parity.harness import publish, read_tensors

# transformers scripts a few functions of DeBERTa.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")


def rewrite(folder: Path, rename: dict[str, str], architecture: str, **more: Tensor) -> dict[str, Tensor]:
    """The checkpoint in `folder` as an old file would hold it."""
    tensors = {}
    for name, tensor in read_tensors(folder).items():
        for new, old in rename.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    tensors |= more
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return tensors


def check_given_back(folder: Path, tensors: dict[str, Tensor], dropped: set[str]) -> None:
    heedful.save(heedful.load(folder), folder / "saved")
    after = read_tensors(folder / "saved")
    assert set(tensors) - set(after) == dropped
    assert all(torch.equal(after[name], tensors[name]) for name in after)


def test_the_published_bert_file_is_a_pretraining_one_under_old_names(tmp_path: Path) -> None:
    reference = publish(find_case("bert-pretrain"), tmp_path).reference
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    table = reference.bert.embeddings.word_embeddings.weight.detach().clone()
    more = {"cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(32)[None]}
    tensors = rewrite(tmp_path, old, "BertForMaskedLM", **more)
    model = heedful.load(tmp_path)
    assert model.config.head == "pretrain"
    assert model.origin.dropped == ["bert.embeddings.position_ids"]
    check_given_back(tmp_path, tensors, {"bert.embeddings.position_ids"})


@pytest.mark.parametrize("id", ["roberta-mlm", "roberta-classify", "bert-tag", "bert-mlm"])
def test_a_pooler_that_the_head_does_not_read_is_kept(id: str, tmp_path: Path) -> None:
    case = find_case(id)
    publish(case, tmp_path)
    stem = id.partition("-")[0] + ".pooler.dense"
    pooler = {f"{stem}.weight": torch.randn(24, 24), f"{stem}.bias": torch.randn(24)}
    check_given_back(tmp_path, rewrite(tmp_path, {}, case.architecture, **pooler), set())


def test_an_encoder_without_its_pooler_loads(tmp_path: Path) -> None:
    transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False).save_pretrained(tmp_path)
    model = heedful.load(tmp_path)
    assert (model.config.head, model.config.pooler) == ("none", False)
    check_given_back(tmp_path, read_tensors(tmp_path), set())


def test_a_masked_lm_file_whose_bias_is_repeated_gives_the_repetition_back(tmp_path: Path) -> None:
    reference = publish(find_case("roberta-mlm"), tmp_path).reference
    table = reference.roberta.embeddings.word_embeddings.weight.detach().clone()
    bias = read_tensors(tmp_path)["lm_head.bias"].clone()
    more = {"lm_head.decoder.weight": table, "lm_head.decoder.bias": bias}
    check_given_back(tmp_path, rewrite(tmp_path, {}, "RobertaForMaskedLM", **more), set())


def test_a_released_deberta_names_no_class_and_holds_more_than_is_read(tmp_path: Path) -> None:
    publish(find_case("deberta-v2-mlm-v3"), tmp_path)
    extra = {
        "deberta.embeddings.position_embeddings.weight": torch.zeros(32, 24),
        "mask_predictions.dense.weight": torch.zeros(24, 24),
    }
    save_file({**read_tensors(tmp_path), **extra}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    silent = {key: value for key, value in config.items() if key not in ("architectures", "legacy")}
    (tmp_path / "config.json").write_text(json.dumps(silent))
    model = heedful.load(tmp_path)
    assert (model.config.head, model.config.legacy) == ("mlm", False)
    assert set(model.origin.dropped) == set(extra)


def test_repeated_tables_are_read_once_and_given_back(tmp_path: Path) -> None:
    """As old files of T5 have them."""
    publish(find_case("t5"), tmp_path)
    tensors = read_tensors(tmp_path)
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    save_file({**tensors, old: torch.zeros(8, 3)}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.origin.dropped == [old]
    assert read_tensors(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()
    for each in (model, heedful.load(tmp_path / "saved")):
        assert each.head.out.weight is each.embed.token.weight


def test_a_file_may_keep_any_one_of_the_repeated_tables(tmp_path: Path) -> None:
    publish(find_case("t5"), tmp_path)
    tensors = read_tensors(tmp_path)
    tensors["encoder.embed_tokens.weight"] = table = tensors.pop("shared.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert torch.equal(model.embed.token.weight, table)
    assert read_tensors(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()


def test_stored_sines_are_dropped_and_listed(tmp_path: Path) -> None:
    publish(find_case("marian"), tmp_path)
    tensors = read_tensors(tmp_path)
    tables = [f"model.{side}.embed_positions.weight" for side in ("decoder", "encoder")]
    save_file({**tensors, **{name: torch.zeros(32, 24) for name in tables}}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.origin.dropped == tables
    assert model.start_token == 98


def test_an_output_matrix_that_repeats_the_target_table_is_a_copy(tmp_path: Path) -> None:
    publish(find_case("marian-unshared"), tmp_path)
    tensors = read_tensors(tmp_path)
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.head.out.weight is model.target_embed.token.weight
    assert read_tensors(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()


@pytest.fixture
def tiny_deepseek(tmp_path: Path) -> Path:
    """A folder with the tiny DeepSeek-V3, as saved here."""
    model = assemble(DEEPSEEK_V3, DEEPSEEK_V3.tiny)
    initialise(model)
    return heedful.save(model, tmp_path / "tiny")


def change(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def test_in_half_precision_the_choosing_bias_keeps_its_own_dtype(tiny_deepseek: Path, tmp_path: Path) -> None:
    stored = read_tensors(tiny_deepseek)
    stored = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in stored.items()}
    change(tiny_deepseek, stored, dtype="bfloat16")
    heedful.save(heedful.load(tiny_deepseek), tmp_path / "again")
    again = read_tensors(tmp_path / "again")
    assert {n: t.dtype for n, t in again.items()} == {n: t.dtype for n, t in stored.items()}
    assert all(torch.equal(again[n], t) for n, t in stored.items())


def test_layers_that_predict_later_tokens_are_dropped_if_the_config_names_them(tiny_deepseek: Path) -> None:
    stored = read_tensors(tiny_deepseek)
    extra = {f"model.layers.2.{name}.weight": torch.zeros(2, 2) for name in ("eh_proj", "mlp.gate")}
    change(tiny_deepseek, stored | extra, num_nextn_predict_layers=1)
    model = heedful.load(tiny_deepseek)
    assert model.origin.dropped == sorted(extra)
    heedful.save(model, tiny_deepseek)
    assert json.loads((tiny_deepseek / "config.json").read_text())["num_nextn_predict_layers"] == 0
    change(tiny_deepseek, stored | extra)
    with pytest.raises(UnexpectedTensor, match="eh_proj"):
        heedful.load(tiny_deepseek)


def test_fp8_weights_are_an_error_that_names_the_way_out(tiny_deepseek: Path) -> None:
    scale = {"model.layers.0.self_attn.o_proj.weight_scale_inv": torch.ones(1, 1)}
    change(tiny_deepseek, read_tensors(tiny_deepseek) | scale)
    with pytest.raises(ConfigError, match="fp8_cast_bf16"):
        heedful.load(tiny_deepseek)


@pytest.mark.parametrize(
    ("key", "value"), [("scoring_func", "softmax"), ("topk_method", "greedy"), ("num_key_value_heads", 2)]
)
def test_what_cannot_be_built_is_an_error_that_names_the_key(
    tiny_deepseek: Path, key: str, value: Any
) -> None:
    change(tiny_deepseek, read_tensors(tiny_deepseek), **{key: value})
    with pytest.raises(ConfigError, match=key):
        heedful.load(tiny_deepseek)
