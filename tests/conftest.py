"""Shared by all tests: one thread per worker, a fixed seed, and where big data may be found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


FEW = 6  # a list of more families than these is the registry


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


def tests_of_variants(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests that go over the registry, for families that have no part or joint of their own.

    Such a family (RoBERTa after BERT, Mistral after LLaMA) differs by values; its parity tests always run.
    """
    found = []
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and "parity" not in item.path.parts:
            found.append((item, call.params.get("family", call.params.get("name"))))
    over: dict[str, set[object]] = {}
    for item, family in found:
        if isinstance(family, str):
            over.setdefault(item.nodeid.partition("[")[0], set()).add(family)
    if not any(len(families) > FEW for families in over.values()):
        return []
    from tests.properties.tiny import variants

    return [
        item
        for item, family in found
        if isinstance(family, str) and family in variants() and len(over[item.nodeid.partition("[")[0]]) > FEW
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    repeated = {id(item) for item in tests_of_variants(items)}
    for item in items:
        if "slow" in item.keywords or id(item) in repeated:
            item.add_marker(pytest.mark.skip(reason="slow: runs under `make test-all`"))
