"""How long the first screen takes: from the start of `heed studio` to the picture, and to change its text.

python benchmarks/first_picture.py [--runs 3]

Each run starts the command anew, opens its address in Chromium as soon as it is printed, and waits until all
stages are drawn. The toggle is from the click to the frame after the other text's weights are there. Beside
the seconds stand those of the studio's processor up to the picture, which other programs change little, and
the load of the machine. A first run, which compiles the sources as any first start does, is not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = "() => document.querySelector('[data-stage=head] .mp-percent') !== null"
TOGGLE = """() => new Promise((done) => {
  const weight = () => document.querySelector('[data-stage=attention] .mp-brief').textContent;
  const [before, start] = [weight(), performance.now()];
  const end = () => requestAnimationFrame(() => done(performance.now() - start));
  const look = () => (weight() === before ? requestAnimationFrame(look) : end());
  document.querySelector('.mp-toggle button[aria-pressed=false]').click();
  requestAnimationFrame(look);
})"""


def measure_start(browser: Any, command: str, compiled: str) -> dict[str, float]:
    """Start the studio once; return the seconds to its address, to the picture, and of five toggles.

    `compiled` is the folder of compiled sources.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = compiled
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        studio = subprocess.Popen(
            [command, "studio", "--no-browser"], cwd=folder, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        try:
            assert studio.stdout is not None
            address = studio.stdout.readline().strip()
            printed = time.perf_counter() - start
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(address)
            page.wait_for_function(DRAWN, timeout=120_000)
            drawn = time.perf_counter() - start
            ticks = Path(f"/proc/{studio.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            processor = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            toggles = [page.evaluate(TOGGLE) / 1000 for _ in range(5)]
            page.close()
        finally:
            studio.terminate()
            studio.wait()
    seconds = {"address": printed, "picture": drawn, "processor": processor}
    return seconds | {"toggle": statistics.median(toggles)}


def main() -> None:
    """Print the median and the range of several runs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    command = str(Path(sys.executable).with_name("heed"))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as compiled:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        rows = [measure_start(browser, command, compiled) for _ in range(runs + 1)][1:]
        browser.close()
    for name in rows[0]:
        values = sorted(row[name] for row in rows)
        print(f"{name:9} {statistics.median(values):6.3f} s   ({values[0]:.3f} … {values[-1]:.3f})")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
