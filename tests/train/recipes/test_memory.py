"""A corpus larger than memory: anonymous memory stays small however long the text is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WATCHED = """
import sys, threading, time
peak = 0
def anonymous():
    found = (int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("RssAnon"))
    return next(found) * 1024
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.05)
threading.Thread(target=watch, daemon=True).start()
from heedful.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(max(peak, anonymous()))
"""


def peak(text: Path) -> int:
    """The most anonymous memory that `heed train` on a text takes, in bytes."""
    sizes = (
        "--set",
        "model.dim=64",
        "--set",
        "model.layers=2",
        "--set",
        "model.heads=2",
        "--set",
        "model.context=64",
    )
    run = (
        "--length",
        "64",
        "--batch",
        "8",
        "--steps",
        "20",
        "--set",
        "evaluate.batches=20",
        "-q",
        "--set",
        "tokenizer.kind=word",
    )
    command = [sys.executable, "-c", WATCHED, "train", "gpt2", str(text), *sizes, *run]
    done = subprocess.run(command, capture_output=True, text=True, cwd=text.parent)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is measured through /proc")
def test_a_gigabyte_of_text_trains_in_little_memory(tmp_path: Path) -> None:
    import random

    words = [
        "".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=3 + i % 8)) for i in range(20_000)
    ]
    rng = random.Random(0)
    page = "".join(" ".join(rng.choices(words, k=12)) + ".\n" for _ in range(12_000))
    with (tmp_path / "x.txt").open("w") as file:
        for _ in range(-(-1_000_000_000 // len(page))):
            file.write(page)
    assert (tmp_path / "x.txt").stat().st_size >= 1_000_000_000
    found = peak(tmp_path / "x.txt")
    print(f"RssAnon at its peak: {found / 1e9:.2f} GB")
    assert found < 1.5e9
