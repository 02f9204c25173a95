"""Shared by all tests: one thread per worker, a fixed seed, and where big data may be found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def weights_folder() -> Path:
    """Published checkpoints that no package carries: HEED_WEIGHTS names the folder."""
    folder = os.environ.get("HEED_WEIGHTS")
    if not folder:
        pytest.skip("HEED_WEIGHTS names no folder of published checkpoints")
    return Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: runs under `make test-all`"))
