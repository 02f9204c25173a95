"""How soon the studio shows something: a trace and all thumbnails of a random model of 12 layers × 12 heads.

    python benchmarks/studio.py [TOKENS …]        128 and 512 by default

Prints milliseconds and asserts nothing. The aim: a first picture within 1 s at 128 tokens, a head in 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.studio_app import create_studio_app

REPEATS = 5


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return (time.perf_counter() - began) * 1000, found


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("lengths", type=int, nargs="*", metavar="TOKENS", default=[128, 512])
    lengths = parser.parse_args().lengths
    with tempfile.TemporaryDirectory() as folder:
        model = heedful.build("gpt2", vocab=512, dim=192, layers=12, heads=12, context=max(lengths), seed=0)
        heedful.save(model, Path(folder) / "random")
        app = create_studio_app(models_folder=folder, runs_folder=folder)
        client = TestClient(app, base_url="http://127.0.0.1")
        client.get("/api/models/random")
        print(
            "tokens  trace  thumbnails  together  one head f16  one head again   (ms, median of",
            REPEATS,
            "runs)",
        )
        for length in lengths:
            rows = [once(client, length) for _ in range(REPEATS)]
            print(
                f"{length:6d}", *(f"{statistics.median(column):10.1f}" for column in zip(*rows, strict=True))
            )


def once(client: TestClient, length: int) -> tuple[float, ...]:
    ids = [i % 512 for i in range(length)]
    run, answer = timed(lambda: client.post("/api/trace", json={"model": "random", "ids": ids}).json())
    base = f"/api/trace/{answer['id']}"
    grid, _ = timed(lambda: client.get(f"{base}/thumbs", params={"group": "blocks.attn"}).content)
    head = {"name": "blocks.7.attn.pattern", "head": 3, "dtype": "f16"}
    one, _ = timed(lambda: client.get(f"{base}/tensor", params=head).content)
    again, _ = timed(lambda: client.get(f"{base}/tensor", params=head | {"head": 4}).content)
    return run, grid, run + grid, one, again


if __name__ == "__main__":
    main()
