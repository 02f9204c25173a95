"""Encoders as ONNX files, run by onnxruntime: the same vectors and logits, for rows of any size."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError, MissingPackage
from heedful.models.base import Model
from heedful.weights.exporting import export_onnx
from tests.refusal import refused
from tests.weights.test_gguf_export import tiny_model

LISTED = "pip install 'heedful[onnx]'"


def run_elsewhere(path: Path, model: Model, tokens: Tensor, valid: Tensor) -> Tensor:
    runtime = pytest.importorskip("onnxruntime", reason=f"onnxruntime is not installed: {LISTED}")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed: dict[str, Any] = {"input_ids": tokens.numpy(), "attention_mask": valid.long().numpy()}
    if "token_type_ids" in {one.name for one in session.get_inputs()}:
        feed["token_type_ids"] = torch.zeros_like(tokens).numpy()
    return torch.from_numpy(session.run(None, feed)[0])


def padded(rows: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(5, 100, (rows, length), generator=torch.Generator().manual_seed(0))
    return tokens, torch.arange(length) < length - torch.arange(rows)[:, None]


CONFIGS = [
    ("bert", "none"),
    pytest.param("distilbert", "classify", marks=pytest.mark.slow),
    pytest.param("roberta", "tag", marks=pytest.mark.slow),
    pytest.param("mpnet", "none", marks=pytest.mark.slow),
    pytest.param("nomic-bert", "none", marks=pytest.mark.slow),
    pytest.param("modernbert", "none", marks=pytest.mark.slow),
    pytest.param("albert", "classify", marks=pytest.mark.slow),
    pytest.param("deberta-v2", "none", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("family", "head"), CONFIGS)
def test_encoders_give_the_same_for_any_size(
    family: str, head: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxscript", reason=f"onnxscript is not installed: {LISTED}")
    model = tiny_model(family, head=head)
    path = export_onnx(model, tmp_path / "m.onnx")
    loud = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == []  # what the exporter finds out on its way is nothing to tell
    for rows, length in ((1, 3), (4, 17)):
        tokens, valid = padded(rows, length)
        with torch.no_grad():
            ours = model.encode(tokens, valid=valid) if head == "none" else model(tokens, valid=valid)
        theirs = run_elsewhere(path, model, tokens, valid)
        seen = valid if ours.ndim == 3 else slice(None)
        assert torch.allclose(theirs[seen], ours[seen], atol=1e-4)


def test_sentence_vectors_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason=f"onnxscript is not installed: {LISTED}")
    tokenizers = pytest.importorskip("tokenizers")
    try:
        model = heedful.load("all-minilm-l6-v2")
    except heedful.core.errors.NotFound:
        pytest.skip("all-minilm-l6-v2 is not installed")
    path = export_onnx(model, tmp_path / "m.onnx")
    sentences = ["A man plays a guitar.", "It rains in Spain, mainly on the plain, they say.", "No"]
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "m.tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    tokens, valid = (torch.tensor([getattr(e, name) for e in encoded]) for name in ("ids", "attention_mask"))
    theirs = run_elsewhere(path, model, tokens, valid)
    assert torch.allclose(theirs, heedful.embed(model, sentences), atol=1e-4)


def test_what_is_no_encoder_and_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(MissingPackage, "ONNX", hint="heedful[onnx]"):
        export_onnx(tiny_model("bert"), tmp_path / "m.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys)
    with refused(ConfigError, "gpt2", hint="GGUF"):
        export_onnx(tiny_model("gpt2"), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
