"""A sparse dictionary of one layer of SmolLM2-135M, learnt from WikiText-2 and scored on its validation text.

    HEED_DATA=… python benchmarks/dictionary.py --device cuda --tokens 400000 --steps 3000 --width 4096
    HEED_DATA=… python benchmarks/dictionary.py --tokens 40000 --steps 400 --width 2304     # a CPU, minutes

Prints L0, the variance explained, the losses and what is recovered, the time, and a few features as tokens in
context. `--out dictionary.safetensors` keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch

import heedful
from heedful.classroom.figures.token_labels import readable, visible_text
from heedful.core.files import read_lines
from heedful.interp.activations import collect_activations, content_tokens
from heedful.interp.learn.dictionary import feature_examples, fit_dictionary, score_dictionary
from heedful.models.base import Model


def token_rows(model: Model, path: Path, tokens: int, length: int) -> list[list[int]]:
    """Return the first `tokens` tokens of a text in rows of `length`."""
    ids: list[int] = []
    for line in read_lines(path):
        ids += model.tokenizer.encode(line + "\n", special=False) if line.strip() else []
        if len(ids) >= tokens:
            break
    return [ids[i : i + length] for i in range(0, min(len(ids), tokens) - length + 1, length)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("tokens", 400_000), ("held-out", 8192), ("length", 128), ("layer", 5), ("width", 4096), ("k", 32),
        ("steps", 3000), ("batch", 4096), ("threads", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = Path(os.environ["HEED_DATA"]) / "lm" / "wikitext-2"
    model = heedful.load(args.model).to(args.device)
    name, begin = f"blocks.{args.layer}.output", time.perf_counter()
    read = token_rows(model, folder / "train.txt.gz", args.tokens, args.length)
    rows = 8192 if args.device != "cpu" else 512
    found = collect_activations(model, read, [name], max_tokens=rows)[name]
    x = found.values[content_tokens(model, found)].to(args.device)
    collected = time.perf_counter()
    made = fit_dictionary(
        x, x, name, name, width=args.width, k=args.k, steps=args.steps, batch=args.batch,
        learning_rate=args.learning_rate,
    )  # fmt: skip
    if x.is_cuda:
        torch.cuda.synchronize()
    trained = time.perf_counter()
    held_out = token_rows(model, folder / "valid.txt.gz", args.held_out, args.length)
    scores = score_dictionary(model, made, held_out)
    times = {"collect_s": collected - begin, "train_s": trained - collected}
    about = {"model": args.model, "value": name, "tokens": len(x), "score_s": time.perf_counter() - trained}
    print(json.dumps(about | scores.to_dict() | times, indent=1))
    for feature, examples in feature_examples(model, made, held_out, count=3).items():
        for e in examples:
            around = [visible_text(t) for t in readable(model, (*e.before, e.token, *e.after))]
            around[len(e.before)] = f"[{around[len(e.before)]}]"
            print(feature, f"{e.activation:.2f}", " ".join(around))
    if args.out:
        made.save(args.out)


if __name__ == "__main__":
    main()
