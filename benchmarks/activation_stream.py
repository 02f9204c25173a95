"""Memory and time that the activations of a long corpus take on their way to disk, and a dictionary of them.

    HEED_DATA=… python benchmarks/activation_stream.py [--characters 36000000] [--folder FOLDER]

The corpus is the novels of ELTeC, one paragraph a text. The same command continues after it was killed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import heedful
from heedful.interp.learn.activation_store import ActivationStore, save_activations
from heedful.interp.learn.dictionary import train_dictionary


def paragraphs(path: Path, characters: int) -> Iterator[str]:
    """The paragraphs of novels, until there are so many characters."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            for text in json.loads(line)["text"].split("\n"):
                if characters > 0 and text.strip():
                    characters -= len(text)
                    yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--characters", type=int, default=29_000_000)
    parser.add_argument("--model", default="induction")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "heedful-activations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peak = lambda: round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
    model, name = heedful.load(args.model, dtype=torch.float32), f"blocks.{args.layer}.output"
    texts = paragraphs(Path(os.environ["HEED_DATA"]) / "lm/eltec-eng/train.jsonl.xz", args.characters)
    resumed = ActivationStore(args.folder).tokens if any(args.folder.glob("*.safetensors")) else 0
    figures, began = {"peak_mib_before": peak()}, time.process_time()
    store = save_activations(
        model, texts, [name], args.folder, max_length=256, max_tokens=4096, dtype=torch.float16
    )
    seconds = time.process_time() - began
    size = sum(shard.stat().st_size for shard in store.shards)
    figures |= {
        "tokens": store.tokens, "tokens_of_an_earlier_run": resumed,
        "shards": len(store), "mib_on_disk": round(size / 2**20),
        "tokens_per_cpu_second": round((store.tokens - resumed) / seconds), "peak_mib": peak(),
    }  # fmt: skip
    began = time.process_time()
    train_dictionary(model, store, name, width=1024, k=32, steps=args.steps, batch=1024)
    figures |= {"dictionary_cpu_seconds": round(time.process_time() - began), "peak_mib_dictionary": peak()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
