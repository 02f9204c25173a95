"""BERT and the encoders that came of it, against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import heedful
from heedful.nn.context import Context, Mask
from tests.parity import harness
from tests.parity.harness import ATTENTIONS, Case

BERT = {
    "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 32, "layer_norm_eps": 1e-6,
}  # fmt: skip
DISTIL = {
    "vocab_size": 99, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 32,
}  # fmt: skip
NARROW = {**BERT, "embedding_size": 12}
UNTIED = {"tie_word_embeddings": False}


def bert(id: str, kind: str, output: str = "logits", **values: object) -> Case:
    return Case(f"bert-{id}", f"Bert{kind}", "BertConfig", {**BERT, **values}, output, ATTENTIONS, types=True)


def roberta(id: str, kind: str, output: str = "logits", **values: object) -> Case:
    return Case(f"roberta-{id}", f"Roberta{kind}", "RobertaConfig", {**BERT, **values}, output, ATTENTIONS)


def distil(id: str, kind: str, output: str = "logits", **values: object) -> Case:
    values = {**DISTIL, **values}
    return Case(f"distilbert-{id}", f"DistilBert{kind}", "DistilBertConfig", values, output, ATTENTIONS)


def albert(id: str, kind: str, output: str = "logits", **values: object) -> Case:
    values = {**NARROW, **values}
    return Case(f"albert-{id}", f"Albert{kind}", "AlbertConfig", values, output, ATTENTIONS, types=True)


def electra(id: str, kind: str, output: str = "logits", **values: object) -> Case:
    values = {**NARROW, **values}
    return Case(f"electra-{id}", f"Electra{kind}", "ElectraConfig", values, output, ATTENTIONS, types=True)


CASES = [
    bert("pretrain", "ForPreTraining", "prediction_logits"),
    bert("pretrain-untied", "ForPreTraining", "prediction_logits", **UNTIED),
    bert("mlm", "ForMaskedLM", hidden_act="gelu_new", num_attention_heads=1),
    bert("mlm-untied", "ForMaskedLM", hidden_act="relu", type_vocab_size=3, **UNTIED),
    bert("next", "ForNextSentencePrediction"),
    bert("classify", "ForSequenceClassification", num_labels=3, hidden_act="silu"),
    bert("tag", "ForTokenClassification", num_labels=5),
    bert("span", "ForQuestionAnswering", "span"),
    bert("none", "Model", "last_hidden_state"),
    roberta("mlm", "ForMaskedLM"),
    roberta("mlm-untied", "ForMaskedLM", hidden_act="relu", pad_token_id=0, type_vocab_size=1, **UNTIED),
    roberta("classify", "ForSequenceClassification", num_labels=3, pad_token_id=4),
    roberta("tag", "ForTokenClassification", num_labels=5),
    roberta("span", "ForQuestionAnswering", "span"),
    roberta("none", "Model", "last_hidden_state"),
    Case("xlm-roberta", "XLMRobertaForMaskedLM", "XLMRobertaConfig", BERT, patterns=ATTENTIONS),
    Case("xlm-tag", "XLMRobertaForTokenClassification", "XLMRobertaConfig", {**BERT, "num_labels": 5}),
    distil("mlm", "ForMaskedLM"),
    distil("mlm-untied", "ForMaskedLM", activation="relu", n_heads=1, **UNTIED),
    distil("classify", "ForSequenceClassification", num_labels=3),
    distil("tag", "ForTokenClassification", num_labels=5, sinusoidal_pos_embds=True),
    distil("span", "ForQuestionAnswering", "span"),
    distil("none", "Model", "last_hidden_state"),
    albert("pretrain", "ForPreTraining", "prediction_logits", num_hidden_layers=3),
    albert("mlm-groups", "ForMaskedLM", num_hidden_layers=4, num_hidden_groups=2),
    albert("mlm-untied", "ForMaskedLM", hidden_act="relu", embedding_size=24, **UNTIED),
    albert("classify", "ForSequenceClassification", num_labels=3),
    albert("tag", "ForTokenClassification", num_labels=5, inner_group_num=2),
    albert("span", "ForQuestionAnswering", "span", num_attention_heads=1),
    albert("none", "Model", "last_hidden_state", num_hidden_layers=5, num_hidden_groups=3, inner_group_num=2),
    electra("detect", "ForPreTraining"),
    electra("detect-wide", "ForPreTraining", embedding_size=24, hidden_act="relu"),
    electra("mlm", "ForMaskedLM"),
    electra("mlm-untied", "ForMaskedLM", hidden_act="relu", embedding_size=24, **UNTIED),
    electra("classify", "ForSequenceClassification", num_labels=3),
    electra("tag", "ForTokenClassification", num_labels=5),
    electra("span", "ForQuestionAnswering", "span"),
    electra("none", "Model", "last_hidden_state"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_and_patterns_equal_the_published_implementation(case: Case, tmp_path: Path) -> None:
    harness.check_logits_and_patterns(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padding_on_either_side_gives_the_unpadded_answer(case: Case, tmp_path: Path) -> None:
    harness.check_padding(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_then_save_gives_back_every_tensor_and_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_there_and_back(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_built_here_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_fresh_opens_there(case, tmp_path)


def context(tokens: Tensor) -> Context:
    pos = torch.arange(tokens.shape[1])[None]
    return Context(pos, pos, Mask())


@torch.no_grad()
def test_the_sentence_pair_logits_stand_beside_the_masked_words(tmp_path: Path) -> None:
    case = CASES[0]
    reference, model = harness.make(case, tmp_path), heedful.load(tmp_path)
    tokens, types = harness.inputs(model, case)
    expected = harness.run_theirs(reference, tokens, types)["seq_relationship_logits"]
    got = model.head.next(model.encode(tokens, types=types), context(tokens))
    assert (got - expected).abs().max() <= 1e-4


def rewrite(folder: Path, rename: dict[str, str], architecture: str, **more: Tensor) -> dict[str, Tensor]:
    """The checkpoint in `folder` as an old file would hold it."""
    tensors = {}
    for name, tensor in harness.read(folder).items():
        for new, old in rename.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    tensors |= more
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return tensors


def same(folder: Path, tensors: dict[str, Tensor], dropped: set[str]) -> None:
    heedful.save(heedful.load(folder), folder / "saved")
    after = harness.read(folder / "saved")
    assert set(tensors) - set(after) == dropped
    assert all(torch.equal(after[name], tensors[name]) for name in after)


def test_the_published_bert_file_is_a_pretraining_one_under_old_names(tmp_path: Path) -> None:
    reference = harness.make(CASES[0], tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    table = reference.bert.embeddings.word_embeddings.weight.detach().clone()
    more = {"cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(32)[None]}
    tensors = rewrite(tmp_path, old, "BertForMaskedLM", **more)
    model = heedful.load(tmp_path)
    assert model.config.head == "pretrain"
    assert model.origin.dropped == ["bert.embeddings.position_ids"]
    same(tmp_path, tensors, {"bert.embeddings.position_ids"})


@pytest.mark.parametrize("id", ["roberta-mlm", "roberta-classify", "bert-tag", "bert-mlm"])
def test_a_pooler_that_the_head_does_not_read_is_kept(id: str, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.id == id)
    harness.make(case, tmp_path)
    stem = id.partition("-")[0] + ".pooler.dense"
    pooler = {f"{stem}.weight": torch.randn(24, 24), f"{stem}.bias": torch.randn(24)}
    same(tmp_path, rewrite(tmp_path, {}, case.architecture, **pooler), set())


def test_an_encoder_without_its_pooler_loads(tmp_path: Path) -> None:
    import transformers

    transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False).save_pretrained(tmp_path)
    model = heedful.load(tmp_path)
    assert (model.config.head, model.config.pooler) == ("none", False)
    same(tmp_path, harness.read(tmp_path), set())


def test_a_masked_lm_file_whose_bias_is_repeated_gives_the_repetition_back(tmp_path: Path) -> None:
    reference = harness.make(next(c for c in CASES if c.id == "roberta-mlm"), tmp_path)
    table = reference.roberta.embeddings.word_embeddings.weight.detach().clone()
    bias = harness.read(tmp_path)["lm_head.bias"].clone()
    more = {"lm_head.decoder.weight": table, "lm_head.decoder.bias": bias}
    same(tmp_path, rewrite(tmp_path, {}, "RobertaForMaskedLM", **more), set())
