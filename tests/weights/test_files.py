"""Files of weights: what is written in pieces is read as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

import heedful
from heedful.weights.formats.tensor_files import open_folder, write_safetensors


def test_tensors_in_shards_read_back_as_one_folder(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.randn(4, 8) for i in range(5)}  # 128 bytes each
    write_safetensors(tmp_path, tensors, shard_bytes=300)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 128
    source = open_folder(tmp_path)
    assert source.entries.keys() == index["weight_map"].keys() == tensors.keys()
    assert all(torch.equal(source.read(name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama"])
def test_a_model_that_was_built_here_is_saved_with_the_ids_of_its_tokenizer(
    family: str, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("the cat sat on the mat\n" * 20)
    tokenizer = heedful.train_tokenizer("bpe", [tmp_path / "lines.txt"], 300, special=["eos", "bos"])
    model = heedful.build(family, vocab=len(tokenizer), dim=16, layers=1, heads=2, context=32)
    model.tokenizer = tokenizer
    config = json.loads((heedful.save(model, tmp_path / "model") / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (tokenizer.bos, tokenizer.eos)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert theirs.generation_config.eos_token_id == tokenizer.eos


def test_saving_over_shards_leaves_no_old_weights(tmp_path: Path) -> None:
    old = {"a": torch.zeros(4), "b": torch.zeros(4)}
    new = {"a": torch.ones(4), "b": torch.ones(4)}
    write_safetensors(tmp_path, old, shard_bytes=16)
    write_safetensors(tmp_path, new)
    assert torch.equal(open_folder(tmp_path).read("a"), new["a"])
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    write_safetensors(tmp_path, old, shard_bytes=16)
    assert torch.equal(open_folder(tmp_path).read("b"), old["b"])
    assert not (tmp_path / "model.safetensors").exists()
