"""Paths that lead nowhere, and the permissions of what is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import heedful
from heedful.core.files import make_folder_atomically, missing_file
from heedful.train.checkpoint import write_checkpoint
from heedful.train.distributed import Processes
from heedful.weights.adapters import save_adapter
from heedful.weights.formats.tensor_files import write_safetensors


def test_the_nearest_file_is_proposed_and_never_a_lock(tmp_path: Path) -> None:
    (tmp_path / "reviews.lock").touch()
    assert "lock" not in missing_file(tmp_path / "reviews.csv").hint
    (tmp_path / "review.csv").touch()
    assert "'review.csv'" in missing_file(tmp_path / "reviews.csv").hint


def test_a_folder_in_the_place_of_a_file_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    error = missing_file(tmp_path / "texts")
    assert error.message == f"{tmp_path / 'texts'} is a folder"
    assert error.hint == "name a file in it"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_weights_and_folders_follow_the_umask(umask: int, tmp_path: Path) -> None:
    model = heedful.build("gpt2", vocab=20, dim=8, layers=1, heads=2, context=8)
    before = os.umask(umask)
    try:
        heedful.save(model, tmp_path / "model")
        write_safetensors(tmp_path / "model", {"a": torch.ones(4), "b": torch.ones(4)}, shard_bytes=16)
        heedful.save(model, tmp_path / "again")
        tensors = {"a": torch.ones(1)}
        write_checkpoint(tmp_path / "run", 1, {}, model, {"optimiser": tensors, "ema": tensors}, Processes())
        heedful.lora(model, rank=2)
        save_adapter(model, tmp_path / "adapter")
        with make_folder_atomically(tmp_path / "cache", replace=False) as folder:
            (folder / "tokens").touch()
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    wrong = {
        path: oct(mode)
        for path, mode in modes.items()
        if mode != (0o777 if (tmp_path / path).is_dir() else 0o666) & ~umask
    }
    assert not wrong
