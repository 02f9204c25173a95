"""Shared by all tests: one thread per worker, a fixed seed, `heed` in this process, where big data may be."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


Heed = Callable[..., tuple[int, str, str]]
FEW = 6  # a list of more families than these is the registry


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Heed:
    """Exit code, stdout and stderr of a command, run in an empty folder."""
    from heedful.cli import main

    monkeypatch.delenv("HEED_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small files to train on, one for each kind of data."""
    from tests.train import toys

    return toys.write(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def weights_folder() -> Path:
    """Published checkpoints that no package carries: HEED_WEIGHTS names the folder."""
    folder = os.environ.get("HEED_WEIGHTS")
    if not folder:
        pytest.skip("HEED_WEIGHTS names no folder of published checkpoints")
    return Path(folder)


def repeated_tests(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests over the registry that try again, with other values, what the core run tries anyway.

    A family that has no part or joint of its own (RoBERTa after BERT, Mistral after LLaMA) differs by values;
    its parity tests always run. Where a test pairs many families with data types, kinds of rounding or
    changes of a model, each family takes the combination that the fewest before it took: every family and
    every combination run, but not every pair.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and "parity" not in item.path.parts:
            family = call.params.get("family", call.params.get("name"))
            if isinstance(family, str):
                tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(family, []).append(item)
    tests = {name: families for name, families in tests.items() if len(families) > FEW}
    if not tests:
        return []
    from heedful.models import FAMILIES
    from tests.properties.tiny import variants

    repeated = []
    for families in tests.values():
        repeated += [cell for family in variants() & families.keys() for cell in families[family]]
        quick = {
            family: [cell for cell in cells if "slow" not in cell.keywords]
            for family, cells in families.items()
            if family in FAMILIES and family not in variants()
        }
        shared = Counter(combination(cell) for cells in quick.values() for cell in cells)
        taken: Counter[str] = Counter()
        for cells in quick.values():
            shared_cells = [cell for cell in cells if shared[combination(cell)] > FEW]
            if shared_cells:
                chosen = min(shared_cells, key=lambda cell: taken[combination(cell)])
                taken[combination(chosen)] += 1
                repeated += [cell for cell in shared_cells if cell is not chosen]
    return repeated


def combination(item: pytest.Item) -> str:
    """Return what a test is given beside its family."""
    given = item.callspec.params  # type: ignore[attr-defined]
    return repr([value for name, value in given.items() if name not in ("family", "name")])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()  # ten thousand tests and the libraries stay; each collection of garbage would walk them again


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    repeated = {id(item) for item in repeated_tests(items)}
    slow = [item for item in items if "slow" in item.keywords or id(item) in repeated]
    config.hook.pytest_deselected(items=slow)  # a skipped test costs milliseconds, and there are thousands
    left_out = {id(item) for item in slow}
    items[:] = [item for item in items if id(item) not in left_out]
