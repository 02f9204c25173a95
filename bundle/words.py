"""Word vectors that come with heedful: skip-gram on novels and on modern English, of words and nothing else.

    HEED_DATA=FOLDER python -m bundle.words [--seed 0] [--out FOLDER] [--words 10000] [--epochs 4]

Text is cut into words: lower case, without punctuation, a possessive ’s dropped. Modern text counts REPEATS
times. All words that occur MIN_COUNT times are trained; the most frequent are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import heedful
from bundle import SCRATCH, data_folder, modern
from bundle.cards import Card, hash_of, write_card
from bundle.prose import FILES as NOVEL_FILES
from bundle.prose import LICENCE, name_novels, novels
from bundle.timed import options, parsed, places, seeded
from heedful.classroom.experiments import ledger
from heedful.tasks.metrics.scores import spearman

WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*")
REPEATS, MIN_COUNT = 1, 10
DIGITS = 3  # after the point: the figures stay, and the file compresses to half its size
KEPT = ("motel", "banking")  # kept however rare they are, for people ask about them
SIMILARITY, ANALOGIES = "wordvec/EN-MEN-TR-3k.tsv.gz", "wordvec/questions-words.txt.gz"


def split_words(text: str) -> list[str]:
    """The words of a text in lower case; punctuation and numbers are no words."""
    found = WORD.findall(text.lower().replace("’", "'"))
    return [word.removesuffix("'s") for word in found]


def lines(folder: Path) -> Iterator[str]:
    """Sentences and paragraphs as words with spaces between them."""
    with novels(folder, "train").open(encoding="utf-8") as text:
        for line in text:
            yield " ".join(split_words(line))
    recent = [" ".join(split_words(" ".join(document))) for document in modern.documents(folder)]
    for _ in range(REPEATS):
        yield from recent


def analogies(vectors: heedful.Word2Vec, path: Path) -> dict[str, float]:
    """How many analogies whose words are all known are answered right: b − a + c, the three left out."""
    asked = [
        q.lower().split() for q in gzip.decompress(path.read_bytes()).decode().splitlines() if q[0] != ":"
    ]
    known = [q for q in asked if all(word in vectors for word in q)]
    right = sum(vectors.analogy(a, b, c, count=1)[0][0] == d for a, b, c, d in known)
    return {"analogies": right / max(len(known), 1), "analogies_asked": float(len(known))}


def train(folder: Path, given: argparse.Namespace) -> heedful.Word2Vec:
    """Vectors of all words that are frequent enough; those of the `words` most frequent are returned."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    text = SCRATCH / "words.txt"
    text.write_text("\n".join(lines(folder)) + "\n", encoding="utf-8")
    made = heedful.Word2Vec.train(
        text, dim=64, window=5, mode="skipgram", loss="negative", negatives=5, min_count=MIN_COUNT,
        subsample=1e-4, epochs=given.epochs, threads=1, seed=given.seed,
    )  # fmt: skip
    assert made.counts is not None
    common = np.argsort(-made.counts, kind="stable")[: given.words]
    kept = np.unique([*common, *(made.row(word) for word in KEPT if word in made)])
    return heedful.Word2Vec(
        [made.words[i] for i in kept],
        made.input[kept].round(DIGITS),
        counts=made.counts[kept],
        settings=made.settings,
    )


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--words", type=int, default=10_000, help="how many are kept")
    parser.add_argument("--epochs", type=int, default=4)
    given = parsed(parser)
    folder, (out, results, _) = data_folder(), places("words", given.out)
    made = train(folder, given)
    out.mkdir(parents=True, exist_ok=True)
    made.save(out / "vectors.bin.gz")
    pairs = [
        line.split() for line in gzip.decompress((folder / SIMILARITY).read_bytes()).decode().splitlines()
    ]
    known = [(a, b, float(s)) for a, b, s in pairs if a in made and b in made]
    rho = spearman([s for *_, s in known], [made.similarity(a, b) for a, b, _ in known])
    found = {"spearman": rho, "pairs": float(len(known)), **analogies(made, folder / ANALOGIES)}
    card = Card(
        "which words are used alike", "feature-extraction", f"{name_novels(folder)}; {modern.SOURCES}",
        f"{LICENCE}; {modern.LICENCES}",
        f"MEN, Spearman over the {len(known):,} of 3,000 pairs whose words are among the {len(made):,}",
    )  # fmt: skip
    said = ["python", "-m", "bundle.words", *seeded(given)]
    command, files = " ".join(["HEED_DATA=FOLDER", *said]), [NOVEL_FILES["train"], *modern.FILES]
    hashes = {one: hash_of(folder / one) for one in files}
    spent = time.perf_counter() - began
    write_card(out, "words", card, found, "spearman", command, given.seed, hashes, None, spent)
    judged, figure = [*files, SIMILARITY], round(100 * rho, 2)
    check = {"steps": [[*said, "--out", "{work}"]], "read": "figure", "tolerance": 1.0, "data": judged}
    row = ledger.row(
        f"{card.measure} × 100: words, skip-gram vectors of 64 numbers", figure, command, seed=given.seed,
        check=check, data_sha256=ledger.sha256(folder / one for one in judged),
    )  # fmt: skip
    ledger.record_rows(results / "words.json", [row])
    for word in ("king", "hotel", "computer"):
        print(word, made.neighbours(word, 8) if word in made else "is not there")
    print(json.dumps({"figure": figure, **found}))


if __name__ == "__main__":
    main()
