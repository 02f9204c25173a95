"""Names that tests of fine-tuning import from here; the fixtures stand in tests/conftest.py."""

from __future__ import annotations

from tests.conftest import Heed as Heed
from tests.conftest import heed as heed
