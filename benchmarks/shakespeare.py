"""Tiny Shakespeare by character: seconds from the start of the process to a validation loss.

    python benchmarks/shakespeare.py                       a GPU: 6 layers × 384, context 256, to 1.4697
    python benchmarks/shakespeare.py --cpu                 4 layers × 128, context 64, to 1.88
    python benchmarks/shakespeare.py --cpu --nanogpt PATH  and nanoGPT's own train.py with the same sizes

HEED_DATA names a folder with lm/tinyshakespeare/input.txt.gz. The text is split 90/10 as nanoGPT does; the
loss is that of all of the last tenth. Everything counts: imports, the vocabulary, compilation, evaluations.
`--record` adds the figures to results/shakespeare.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGETS = {"gpu": 1.4697, "cpu": 1.88}
RECIPES = {"gpu": "shakespeare-char", "cpu": "shakespeare-char-cpu"}
# nanoGPT's README, "i only have a macbook": the same sizes, batch and number of steps.
NANO = {
    "cpu": "--device=cpu --compile=False --eval_iters=20 --block_size=64 --batch_size=12 --n_layer=4"
    " --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0 --eval_interval=250",
    "gpu": "--eval_iters=20 --log_interval=250",
}


def text() -> Path:
    """The corpus, unpacked beside nothing: a temporary file."""
    root = os.environ.get("HEED_DATA")
    if not root:
        sys.exit("HEED_DATA names no folder of data sets")
    packed = Path(root) / "lm" / "tinyshakespeare" / "input.txt.gz"
    out = Path(tempfile.mkdtemp(prefix="shakespeare-")) / "input.txt"
    out.write_bytes(gzip.decompress(packed.read_bytes()))
    return out


def ours(path: Path, kind: str, target: float, more: list[str]) -> dict[str, Any]:
    """`heed train` in a process of its own; its log is read while it runs."""
    folder = path.parent / "run"
    command = [
        sys.executable,
        "-m",
        "heedful.cli",
        "train",
        RECIPES[kind],
        str(path),
        "--folder",
        str(folder),
        *more,
    ]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parent
    )
    reached, best, last, steps = None, float("inf"), "", 0
    assert process.stderr is not None
    for line in process.stderr:
        last = line
        found = re.match(r"step (\d+): eval loss ([\d.]+)", line)
        if found:
            loss = float(found[2])
            if loss <= target and reached is None:
                reached, steps = time.perf_counter() - began, int(found[1])
            best = min(best, loss)
            print(f"  {time.perf_counter() - began:7.2f} s  {line.strip()}", file=sys.stderr)
    if process.wait():
        sys.exit(last)
    return {
        "program": "heedful",
        "to_target_s": reached,
        "steps": steps,
        "best": best,
        "whole_s": time.perf_counter() - began,
    }


def nanogpt(checkout: Path, path: Path, kind: str, target: float) -> dict[str, Any]:
    """nanoGPT's train.py, as it is, on the same text in its own format."""
    import numpy as np

    data = checkout / "data" / "shakespeare_char"
    whole = path.read_text()
    letters = sorted(set(whole))
    number = {c: i for i, c in enumerate(letters)}
    cut = int(len(whole) * 0.9)
    for name, part in (("train", whole[:cut]), ("val", whole[cut:])):
        np.array([number[c] for c in part], np.uint16).tofile(data / f"{name}.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    command = [
        sys.executable,
        "-u",
        "train.py",
        "config/train_shakespeare_char.py",
        *NANO[kind].split(),
        f"--out_dir={path.parent}/nano",
    ]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=checkout)
    reached, best, steps = None, float("inf"), 0
    assert process.stdout is not None
    for line in process.stdout:
        found = re.match(r"step (\d+): train loss [\d.]+, val loss ([\d.]+)", line)
        if found:
            print(f"  {time.perf_counter() - began:7.2f} s  {line.strip()}", file=sys.stderr)
            best = min(best, float(found[2]))
            if float(found[2]) <= target and reached is None:
                reached, steps = time.perf_counter() - began, int(found[1])
    process.wait()
    return {
        "program": "nanoGPT",
        "to_target_s": reached,
        "steps": steps,
        "best": best,
        "whole_s": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="the small setting")
    parser.add_argument("--target", type=float, help="the validation loss to reach")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, to be run side by side")
    parser.add_argument("--record", action="store_true", help="add the figures to results/shakespeare.json")
    a, more = parser.parse_known_args()
    kind = "cpu" if a.cpu else "gpu"
    target = a.target or TARGETS[kind]
    path = text()
    found = [ours(path, kind, target, [*(["--device", "cpu"] if a.cpu else []), *more])]
    if a.nanogpt:
        found.append(nanogpt(a.nanogpt, path, kind, target))
    for one in found:
        print(json.dumps({"setting": kind, "target": target, **one}))
    if a.record:
        from heedful.runs import ledger

        command = f"python benchmarks/shakespeare.py{' --cpu' if a.cpu else ''}"
        peer = next((f["to_target_s"] for f in found[1:]), None)
        row = ledger.row(
            f"Tiny Shakespeare, {RECIPES[kind]}: seconds to a validation loss of {target}; the best",
            {"seconds": found[0]["to_target_s"], "best": found[0]["best"]}, command, seed=0,
            data_sha256=ledger.sha256([path]), published=peer, source="nanoGPT beside it" if peer else None,
        )  # fmt: skip
        ledger.record(ROOT / "results" / "shakespeare.json", [row])


if __name__ == "__main__":
    main()
