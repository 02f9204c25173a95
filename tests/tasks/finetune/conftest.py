"""Small files to train on, and `heed` called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.cli import main
from tests.train import toys

Heed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toys.write(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Heed:
    """Exit code, stdout and stderr of a command, run in an empty folder."""
    monkeypatch.delenv("HEED_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run
