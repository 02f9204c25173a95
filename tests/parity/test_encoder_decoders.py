"""T5, mT5, BART and Marian against `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import heedful
from tests.parity import harness
from tests.parity.harness import ATTENTIONS, SEQ2SEQ, Case

T5 = {
    "vocab_size": 99, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 3,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip


BART = {
    "vocab_size": 99, "d_model": 24, "max_position_embeddings": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
}  # fmt: skip
UNEVEN = {
    "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 56, "scale_embedding": True,
}  # fmt: skip
START = {"pad_token_id": 98, "decoder_start_token_id": 98}
MARIAN = {**BART, **START, "activation_function": "swish", "scale_embedding": True}
UNSHARED = {**MARIAN, "vocab_size": 120, "decoder_vocab_size": 99, "share_encoder_decoder_embeddings": False}


def untie(model: Any) -> None:
    """An output matrix of its own, as published files of T5 1.1 have."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))


def t5(id: str, patterns: dict[str, str] | None = None, prepare: Any = None, **values: Any) -> Case:
    name = "T5ForConditionalGeneration"
    return Case(id, name, "T5Config", {**T5, **values}, patterns=patterns or {}, prepare=prepare)


def shift(model: Any) -> None:
    """A bias of the logits that is not all zero."""
    model.final_logits_bias.normal_()


def sines(model: Any) -> None:
    """Positions are no parameters to be moved: they are what the paper says."""
    shift(model)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = stack.embed_positions.create_weight()


CASES = [
    t5("t5", patterns=SEQ2SEQ),
    t5("t5-deep-encoder", num_layers=3, num_decoder_layers=1),
    t5("t5-32-buckets", relative_attention_num_buckets=32),
    t5("t5-v1.1", feed_forward_proj="gated-gelu", tie_word_embeddings=False, prepare=untie, patterns=SEQ2SEQ),
    t5("t5-gated-tied", feed_forward_proj="gated-silu"),
    t5("t5-unscaled-tied", feed_forward_proj="gelu", tie_word_embeddings=False),
    Case("t5-encoder", "T5EncoderModel", "T5Config", T5, output="last_hidden_state", patterns=ATTENTIONS),
    Case("mt5", "MT5ForConditionalGeneration", "MT5Config", {**T5, "num_heads": 2}, prepare=untie),
    Case("bart", "BartForConditionalGeneration", "BartConfig", BART, patterns=SEQ2SEQ, prepare=shift),
    Case("bart-uneven", "BartForConditionalGeneration", "BartConfig", {**BART, **UNEVEN}, prepare=shift),
    Case("bart-none", "BartModel", "BartConfig", BART, output="encoder_last_hidden_state"),
    Case("marian", "MarianMTModel", "MarianConfig", MARIAN, patterns=SEQ2SEQ, prepare=sines),
    Case("marian-unshared", "MarianMTModel", "MarianConfig", UNSHARED, prepare=sines),
    Case("marian-uneven", "MarianMTModel", "MarianConfig", {**MARIAN, **UNEVEN}, prepare=sines),
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


def test_repeated_tables_are_read_once_and_given_back(tmp_path: Path) -> None:
    """As old files of T5 have them."""
    harness.make(CASES[0], tmp_path)
    tensors = harness.read(tmp_path)
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    save_file({**tensors, old: torch.zeros(8, 3)}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.origin.dropped == [old]
    assert harness.read(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()
    for each in (model, heedful.load(tmp_path / "saved")):
        assert each.head.out.weight is each.embed.token.weight


def test_a_file_may_keep_any_one_of_the_repeated_tables(tmp_path: Path) -> None:
    harness.make(CASES[0], tmp_path)
    tensors = harness.read(tmp_path)
    tensors["encoder.embed_tokens.weight"] = table = tensors.pop("shared.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert torch.equal(model.embed.token.weight, table)
    assert harness.read(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()


@torch.no_grad()
def test_a_state_can_be_cropped_to_try_another_continuation() -> None:
    model = heedful.build("t5", vocab=50, dim=16, layers=1, heads=2, seed=0).eval()
    state = model.start(torch.arange(5, 11)[None])
    first = model.step(torch.tensor([[7, 8]]), state)
    state.crop(1)
    assert (model.step(torch.tensor([[7, 8]]), state) - first).abs().max() <= 1e-6


def test_stored_sines_are_dropped_and_listed(tmp_path: Path) -> None:
    harness.make(next(case for case in CASES if case.id == "marian"), tmp_path)
    tensors = harness.read(tmp_path)
    tables = [f"model.{side}.embed_positions.weight" for side in ("decoder", "encoder")]
    save_file({**tensors, **{name: torch.zeros(32, 24) for name in tables}}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.origin.dropped == tables
    assert model.start_token == 98


def test_an_output_matrix_that_repeats_the_target_table_is_a_copy(tmp_path: Path) -> None:
    harness.make(next(case for case in CASES if case.id == "marian-unshared"), tmp_path)
    tensors = harness.read(tmp_path)
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert model.head.out.weight is model.target_embed.token.weight
    assert harness.read(heedful.save(model, tmp_path / "saved")).keys() == tensors.keys()


@torch.no_grad()
def test_a_classifying_decoder_reads_the_source_again(tmp_path: Path) -> None:
    case = Case("bart-classify", "BartForSequenceClassification", "BartConfig", BART)
    reference, model = harness.make(case, tmp_path), heedful.load(tmp_path)
    tokens = torch.randint(5, 99, (2, 10))
    tokens[:, -1] = 2  # theirs looks for the last </s>
    expected = reference(input_ids=tokens).logits
    assert (model(tokens) - expected).abs().max() <= 1e-4
    pad = torch.full((2, 3), 4)
    for row, mark in (((pad, tokens), (pad < 0, tokens > 0)), ((tokens, pad), (tokens > 0, pad < 0))):
        assert (model(torch.cat(row, 1), valid=torch.cat(mark, 1)) - expected).abs().max() <= 1e-5
    saved = heedful.save(model, tmp_path / "saved")
    again, info = type(reference).from_pretrained(saved, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (again(input_ids=tokens).logits - expected).abs().max() <= 1e-6
