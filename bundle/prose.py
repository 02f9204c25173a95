"""The small GPT-2 that comes with heedful, and word vectors, both learnt from English novels.

HEED_DATA=FOLDER python -m bundle.prose gpt [--steps 3000]
HEED_DATA=FOLDER python -m bundle.prose words
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import time
from pathlib import Path

import torch

import heedful
from bundle.cards import PACKAGE, Card, hash_of, write_card
from heedful import data
from heedful.evaluate.scores import spearman

SCRATCH = Path(os.environ.get("TMPDIR", "/tmp")) / "heedful-bundle"
NOVELS = "ELTeC English, 93 novels of 1840 to 1920 (COST Action CA16204)"
LICENCE = "texts in the public domain, mark-up CC BY 4.0"
FILES = {part: f"lm/eltec-eng/{part}.jsonl.xz" for part in ("train", "valid")}


def novels(folder: Path, part: str) -> Path:
    """The novels of a part as plain text, one paragraph a line."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    made = SCRATCH / f"novels-{part}.txt"
    with lzma.open(folder / FILES[part], "rt", encoding="utf-8") as lines:
        made.write_text("\n\n".join(json.loads(line)["text"] for line in lines), encoding="utf-8")
    return made


def gpt(folder: Path, out: Path, steps: int, seed: int) -> None:
    """A decoder of 4 layers × 192 over 4,096 pieces, kept in 8 bits; its perplexity on three unseen books."""
    began = time.perf_counter()
    text, held = novels(folder, "train"), novels(folder, "valid")
    tokenizer = heedful.train_tokenizer("bpe", [str(text)], vocab=4096, special=("eos",))
    batches = data.text(text, tokenizer, length=128, batch=16, seed=seed)
    unseen = data.text(held, tokenizer, length=128, batch=32, seed=0)
    sizes = dict(dim=192, layers=4, heads=6, context=256, dropout=0.0)
    model = heedful.build("gpt2", vocab=len(tokenizer), seed=seed, **sizes)
    model.tokenizer = tokenizer
    config = heedful.TrainConfig(
        steps=steps, lr=3e-3, warmup=steps // 15, schedule="linear", final=0.02, weight_decay=0.05,
        dtype="bfloat16", seed=seed,
    )  # fmt: skip
    for step in heedful.fit(model, "next_token", batches, config):
        if step.number % 100 == 0:
            print(f"{step.number}/{steps} {step.loss:.3f} {time.perf_counter() - began:.0f} s", flush=True)
        if step.number % 1000 == 0:
            print(
                heedful.generate(model.eval(), "It was", max_tokens=60, temperature=0.8, seed=0), flush=True
            )
            model.train()
    small = heedful.quantize(model.eval(), "int8")
    loss, count = 0.0, 0
    with torch.inference_mode():
        for k in range(40):
            batch = unseen[k]
            assert batch.labels is not None
            logits = small(batch.tokens)
            kept = batch.labels >= 0
            loss += float(
                torch.nn.functional.cross_entropy(logits[kept], batch.labels[kept], reduction="sum")
            )
            count += int(kept.sum())
    letters = len(held.read_text()[:2_000_000].split()) / len(tokenizer.encode(held.read_text()[:2_000_000]))
    found = {"perplexity_by_word": float(torch.tensor(loss / count / letters).exp()), "loss": loss / count}
    heedful.save(small, out)
    card = Card(
        "how a page of a Victorian novel may go on", "text-generation", NOVELS, LICENCE,
        "ELTeC valid, perplexity by word",
    )  # fmt: skip
    hashes = {one: hash_of(folder / one) for one in FILES.values()}
    command = f"HEED_DATA=FOLDER python -m bundle.prose gpt --steps {steps}"
    spent = time.perf_counter() - began
    write_card(out, "prose", card, found, "perplexity_by_word", command, seed, hashes, None, spent)
    print(found, heedful.generate(small, "It was", max_tokens=80, temperature=0.8, seed=1))


def words(folder: Path, out: Path, seed: int) -> None:
    """Skip-gram vectors of the 6,000 commonest words."""
    began = time.perf_counter()
    made = heedful.Word2Vec.train(
        novels(folder, "train"), dim=64, window=5, mode="skipgram", loss="negative", negatives=5,
        min_count=40, max_vocab=6000, subsample=1e-3, epochs=3, threads=1, seed=seed, lowercase=True,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    made.save(out / "vectors.bin")
    pairs = [
        line.split()
        for line in gzip.decompress((folder / "wordvec/EN-MEN-TR-3k.tsv.gz").read_bytes())
        .decode()
        .splitlines()
    ]
    known = [(a, b, float(s)) for a, b, s in pairs if a in made and b in made]
    rho = spearman([s for *_, s in known], [made.similarity(a, b) for a, b, _ in known])
    found = {"spearman": rho, "pairs": len(known)}
    card = Card(
        "which words are used alike", "feature-extraction", NOVELS, LICENCE,
        f"MEN, Spearman over the {len(known):,} of 3,000 pairs whose words are among the 6,000",
    )  # fmt: skip
    command = "HEED_DATA=FOLDER python -m bundle.prose words"
    hashes = {FILES["train"]: hash_of(folder / FILES["train"])}
    spent = time.perf_counter() - began
    write_card(out, "words", card, found, "spearman", command, seed, hashes, None, spent)
    print(found, made.neighbours("king", 8), made.analogy("man", "king", "woman"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["gpt", "words"])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(os.environ["HEED_DATA"])
    if given.what == "gpt":
        gpt(folder, PACKAGE / "prose", given.steps, given.seed)
    else:
        words(folder, PACKAGE / "words", given.seed)


if __name__ == "__main__":
    main()
