"""Chromium without a window, through Playwright; where there is none, tests are skipped and say so."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")


@functools.cache
def chromium() -> Any:
    """A running browser, one for all tests of a process: Playwright allows no second beside it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium here; install it (apt-get install chromium) or name it in CHROMIUM")
    playwright = sync_api.sync_playwright().start()
    atexit.register(playwright.stop)
    try:
        running = playwright.chromium.launch(executable_path=found, args=FLAGS)
        running.new_page().close()
    except sync_api.Error as error:
        pytest.skip(f"{found} does not start here: {str(error).splitlines()[0]}")
    return running
