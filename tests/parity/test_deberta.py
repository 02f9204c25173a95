"""DeBERTa v1, v2 and v3 against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import heedful
from tests.parity import harness
from tests.parity.harness import ATTENTIONS, Case

# transformers scripts a few functions of these models.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")

SIZES = {
    "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 32, "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
}  # fmt: skip
V3 = {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"}


def v1(id: str, kind: str, output: str = "logits", types: bool = False, **values: object) -> Case:
    values = {**SIZES, **values}
    return Case(f"v1-{id}", f"Deberta{kind}", "DebertaConfig", values, output, ATTENTIONS, types=types)


def v2(id: str, kind: str, output: str = "logits", types: bool = False, **values: object) -> Case:
    values = {**SIZES, **values}
    return Case(f"v2-{id}", f"DebertaV2{kind}", "DebertaV2Config", values, output, ATTENTIONS, types=types)


CASES = [
    v1("mlm", "ForMaskedLM", legacy=False),
    v1("mlm-legacy", "ForMaskedLM", hidden_act="gelu_new", num_attention_heads=1),
    v1("mlm-legacy-untied", "ForMaskedLM", tie_word_embeddings=False, embedding_size=16),
    v1("near", "Model", "last_hidden_state", max_relative_positions=4),
    v1("c2p", "Model", "last_hidden_state", pos_att_type="c2p"),
    v1("p2c", "Model", "last_hidden_state", pos_att_type=["p2c"]),
    v1("both-and-types", "Model", "last_hidden_state", True, position_biased_input=True, type_vocab_size=2),
    v1("content-only", "Model", "last_hidden_state", relative_attention=False, position_biased_input=True),
    v1("classify", "ForSequenceClassification", num_labels=3, pooler_hidden_act="tanh"),
    v1("tag", "ForTokenClassification", num_labels=5),
    v1("span", "ForQuestionAnswering", "span"),
    v2("mlm-v3", "ForMaskedLM", legacy=False, **V3),
    v2("mlm-legacy", "ForMaskedLM"),
    v2("mlm-legacy-untied", "ForMaskedLM", tie_word_embeddings=False, embedding_size=16, **V3),
    v2("own-projections", "Model", "last_hidden_state", position_buckets=6, norm_rel_ebd="layer_norm"),
    v2("no-buckets", "Model", "last_hidden_state", share_att_key=True, max_relative_positions=5),
    v2("conv", "Model", "last_hidden_state", **V3, conv_kernel_size=3, conv_act="gelu"),
    v2("conv-wide", "Model", "last_hidden_state", conv_kernel_size=5, conv_groups=2),
    v2("c2p", "Model", "last_hidden_state", pos_att_type="c2p", position_buckets=4),
    v2("p2c-shared", "Model", "last_hidden_state", pos_att_type="p2c", share_att_key=True),
    v2("both-and-types", "Model", "last_hidden_state", True, position_biased_input=True, type_vocab_size=2),
    v2("content-only", "Model", "last_hidden_state", relative_attention=False, pos_att_type=None),
    v2("classify", "ForSequenceClassification", num_labels=3, **V3),
    v2("tag", "ForTokenClassification", num_labels=5, **V3),
    v2("span", "ForQuestionAnswering", "span", hidden_act="relu", **V3),
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


def test_a_released_file_names_no_class_and_holds_more_than_is_read(tmp_path: Path) -> None:
    harness.make(CASES[11], tmp_path)
    extra = {
        "deberta.embeddings.position_embeddings.weight": torch.zeros(32, 24),
        "mask_predictions.dense.weight": torch.zeros(24, 24),
    }
    save_file({**harness.read(tmp_path), **extra}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    silent = {key: value for key, value in config.items() if key not in ("architectures", "legacy")}
    (tmp_path / "config.json").write_text(json.dumps(silent))
    model = heedful.load(tmp_path)
    assert (model.config.head, model.config.legacy) == ("mlm", False)
    assert set(model.origin.dropped) == set(extra)
