"""Modern English under open licences, as plain sentences: encyclopaedia, web pages, conversation, requests.

The novels of `prose` know no phone and no airport. Beside them stand WikiText-2 and SQuAD's articles
(Wikipedia, CC BY-SA), EWT's web pages (CC BY-SA 4.0), Tatoeba's sentences (CC BY 2.0 FR), the requests of
CLINC150 (CC BY 3.0) and BANKING77 (CC BY 4.0). What the models are judged by is left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

from bundle import everyday_texts
from bundle.sentence_pairs import SENTENCE

WIKIPEDIA = ("lm/wikitext-2/train.txt.gz", "qa/squad/dev-v1.1.json.gz", "qa/squad/train_subset.json.gz")
SPOKEN = (
    "tagging/ud_english_ewt/train.conllu.gz", "translation/tatoeba/deu-eng.tsv.gz",
    "translation/tatoeba/fra-eng.tsv.gz", "classification/clinc150/train.tsv.gz",
    "classification/banking77/train.csv.gz",
)  # fmt: skip
FILES = (*WIKIPEDIA, *SPOKEN)
SOURCES = "WikiText-2, SQuAD's articles, UD English-EWT, Tatoeba, CLINC150, BANKING77"
LICENCES = "CC BY-SA and CC BY"


def read(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def untokenized(line: str) -> str:
    """WikiText's line as it is written elsewhere: no spaces before full stops, no marks in words."""
    line = re.sub(r" @(.)@ ", r"\1", line.strip())
    line = re.sub(r" ([,.;:!?%)\]]|'s|n't|'re|'ve|'ll)(?= |$)", r"\1", line)
    return re.sub(r"([(\[]) ", r"\1", line).replace("<unk>", "")


def documents(folder: Path) -> Iterator[list[str]]:
    """Texts as lists of sentences; sentences that stand alone are documents of one."""
    for line in read(folder / WIKIPEDIA[0]).splitlines():
        if line.strip() and not line.startswith(" ="):
            yield SENTENCE.split(untokenized(line))
    for name in WIKIPEDIA[1:]:
        for article in json.loads(read(folder / name))["data"]:
            for paragraph in article["paragraphs"]:
                yield SENTENCE.split(paragraph["context"])
    for line in read(folder / SPOKEN[0]).splitlines():
        if line.startswith("# text = "):
            yield [line[len("# text = ") :]]
    pairs = [line.split("\t")[0] for name in SPOKEN[1:3] for line in read(folder / name).splitlines()]
    tables = [csv.DictReader(io.StringIO(read(folder / SPOKEN[3])), delimiter="\t"),
              csv.DictReader(io.StringIO(read(folder / SPOKEN[4])))]  # fmt: skip
    requests = [row["text"].strip() for table in tables for row in table]
    for sentence in sorted({*pairs, *requests} - everyday_texts()):
        yield [sentence]
