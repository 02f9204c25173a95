"""Files that all training tests read, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import toys


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toys.write(tmp_path_factory.mktemp("toys"))
