"""Sentences to learn names from: WikiANN's, those of web pages and tweets, and everyday ones.

WikiANN alone teaches that every text has a name. Tatoeba's sentences are spelt with capitals, so that those
in which every capital is explained (the beginning, days and languages, a name of our lists) are labelled by
rule; their few names, mostly Tom, Mary and Boston, are replaced by others of our lists.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

from bundle import SCRATCH, everyday_texts
from bundle.vocabulary import CAPITALISED, FIRST_NAMES, ORGANISATIONS, PLACES, SURNAMES

Tagged = list[tuple[str, str]]  # words with their labels
TOKEN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
KINDS = {"person": "PER", "location": "LOC", "corporation": "ORG", "group": "ORG"}  # of WNUT-17; others are O
FILES = (
    "ner/wikiann-en/train.conll.gz", "ner/uner-ewt/dev.iob2.gz", "ner/wnut17/train.conll.gz",
    "translation/tatoeba/deu-eng.tsv.gz",
)  # fmt: skip
# Everyday sentences about organisations are rare in Tatoeba.
TEMPLATES = """
{PER} has been with {ORG} since the spring .
My aunt used to work at {ORG} .
The new chief of {ORG} is called {PER} .
{ORG} opened an office in {LOC} last year .
I applied for a job at {ORG} and at {ORG} .
The shares of {ORG} fell again today .
She left {ORG} to join {ORG} .
{ORG} announced a new model this week .
According to {ORG} , prices will rise .
We ordered two laptops from {ORG} .
{PER} , a spokesman for {ORG} , refused to comment .
{ORG} will close its factory in {LOC} .
Both {ORG} and {ORG} have denied it .
He gave a talk at {ORG} about bees .
The phone was made by {ORG} in {LOC} .
{ORG} was founded by {PER} and {PER} .
{LOC} won the match against {LOC} .
{LOC} and {LOC} signed the treaty .
Have you read what {ORG} wrote about {PER} ?
My colleague {PER} studied at {ORG} in {LOC} .
{PER} was born in {LOC} and died in {LOC} .
{PER} wrote her first novel in {LOC} .
{PER} invented it while living in {LOC} .
Hello , I am {PER} and I come from {LOC} .
This is my friend {PER} .
Mr. {SUR} is on the phone .
Could you ask Mrs. {SUR} to call back ?
Dr. {SUR} is away until Monday .
Tell {PER} that dinner is ready .
Good morning , {PER} , how are you ?
Does the bus to {LOC} stop here ?
We drove from {LOC} to {LOC} in one day .
The museum in {LOC} is closed on Mondays .
They live on the island of {LOC} .
""".strip().splitlines()


def conll(text: str) -> Iterator[Tagged]:
    """The sentences of a file whose lines end with a label, or of UNER's, where it is the third cell."""
    rows: Tagged = []
    for line in [*text.splitlines(), ""]:
        cells = line.split("\t")
        if line.startswith("# ") and len(cells) == 1:
            continue
        if len(cells) < 2 or not cells[0].strip():
            if rows:
                yield rows
            rows = []
        elif cells[0].isdigit() and len(cells) == 5:
            rows.append((cells[1], cells[2] if cells[2][2:] in ("PER", "LOC", "ORG") else "O"))
        else:
            rows.append((cells[0], cells[-1].strip()))


def read(path: Path) -> list[Tagged]:
    return list(conll(gzip.decompress(path.read_bytes()).decode()))


def renamed(rows: Tagged) -> Tagged:
    """WNUT-17's labels as persons, places and organisations."""
    kinds = [(word, label.partition("-")) for word, label in rows]
    return [(word, f"{first}-{KINDS[kind]}" if kind in KINDS else "O") for word, (first, _, kind) in kinds]


def name(kind: str, rng: random.Random) -> Tagged:
    """A name of our lists, labelled; a person has a surname too in a third of the cases."""
    if kind == "PER":
        text = rng.choice(FIRST_NAMES) + (f" {rng.choice(SURNAMES)}" if rng.random() < 0.35 else "")
    else:
        text = rng.choice({"SUR": SURNAMES, "LOC": PLACES, "ORG": ORGANISATIONS}[kind])
    kind = "PER" if kind == "SUR" else kind
    return [(word, f"{'B' if k == 0 else 'I'}-{kind}") for k, word in enumerate(text.split())]


def filled(template: str, rng: random.Random) -> Tagged:
    """A template with names in it."""
    out: Tagged = []
    for word in template.split():
        out += name(word[1:-1], rng) if word.startswith("{") else [(word, "O")]
    return out


def labelled(sentence: str, common: set[str], rng: random.Random) -> Tagged | None:
    """An everyday sentence by rule, its names replaced by others; None if a capital is unexplained."""
    out: Tagged = []
    tokens = TOKEN.findall(sentence)
    for k, token in enumerate(tokens):
        bare = token.removesuffix("'s").removesuffix("’s")
        kind = "PER" if bare in FIRST_NAMES else "LOC" if bare in PLACES else None
        if token.islower() or not token[0].isalpha() or token in CAPITALISED:
            out.append((token, "O"))
        elif kind is not None and not (k == 0 and bare.lower() in common):
            out += name(kind, rng) + ([("'s", "O")] if bare != token else [])
        elif k == 0 and token.lower() in common:
            out.append((token, "O"))
        else:
            return None
    return out


def everyday(path: Path, plain: int, named: int, rng: random.Random) -> list[Tagged]:
    """Sentences of Tatoeba: so many without a name, and so many with some."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    sentences = sorted({line.split("\t")[0] for line in lines} - everyday_texts())
    rng.shuffle(sentences)
    common = {t for s in sentences for t in TOKEN.findall(s)[1:] if t.islower()}
    out: dict[bool, list[Tagged]] = {False: [], True: []}
    for sentence in sentences:
        rows = labelled(sentence, common, rng)
        if rows is not None:
            out[any(label != "O" for _, label in rows)].append(rows)
    return out[False][:plain] + out[True][:named]


def sentences(folder: Path, seed: int = 0) -> list[Tagged]:
    """All that entities learn from, in one mixture."""
    rng = random.Random(seed)
    wiki = [s for s in read(folder / FILES[0]) if len(s) >= 7 and s[-1][0] == "."]
    own = read(folder / FILES[1]) * 2
    noisy = [renamed(s) for s in read(folder / FILES[2]) if len(s) <= 60]
    simple = everyday(folder / FILES[3], 7000, 7000, rng)
    templates = [filled(t, rng) for t in TEMPLATES for _ in range(60)]
    out = wiki + own + noisy + simple + templates
    rng.shuffle(out)
    return out


def written(folder: Path, held: bool) -> Path:
    """The mixture as a file: its first thousand sentences are held back to choose by, the others train."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    every = sentences(folder)
    path = SCRATCH / f"names-{'held' if held else 'train'}.conll"
    some = every[:1000] if held else every[1000:]
    path.write_text("\n\n".join("\n".join(f"{w}\t{t}" for w, t in s) for s in some) + "\n", encoding="utf-8")
    return path


def measured(folder: Path) -> Path:
    """UNER's test sentences, which nothing was chosen by."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    path = SCRATCH / "names-test.conll"
    every = read(folder / "ner/uner-ewt/test.iob2.gz")
    path.write_text("\n\n".join("\n".join(f"{w}\t{t}" for w, t in s) for s in every) + "\n", encoding="utf-8")
    return path
