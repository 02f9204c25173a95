"""How the models that come with heedful were trained, one command each. Nothing here is installed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

SCRATCH = Path(tempfile.gettempdir()) / "heedful-bundle"  # for parts of data sets


def data_folder() -> Path:
    """The folder of data sets that HEED_DATA names; a script without one ends here."""
    folder = Path(os.environ.get("HEED_DATA") or os.devnull)
    return folder if folder.is_dir() else sys.exit("HEED_DATA names no folder of data sets")


def everyday_texts() -> set[str]:
    """All inputs of the everyday lists: what the models are judged by is left out of what they learn from."""
    tables = (Path(__file__).parents[1] / "tests" / "everyday").glob("*.tsv")
    rows = [
        line.split("\t") for table in tables for line in table.read_text(encoding="utf-8").splitlines()[1:]
    ]
    return {cell for row in rows for cell in row}
