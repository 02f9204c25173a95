"""The score of a model as it is kept, measured again: what its card and the ledger say must be this.

    HEED_DATA=FOLDER python -m bundle.measure answers | masked | fill-mask | prose-lstm | …
    HEED_DATA=FOLDER python -m bundle.measure translate-en-de [--part held] [--most 500] [--model FOLDER]

Adapters are measured on the base as it is installed, whatever they were trained on. `held` are the pairs that
translators are chosen by; all other scores are those of the data that chose nothing.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import heedful
from bundle import SCRATCH, data_folder, masked, prose, translators
from bundle.plans import PLANS, scored
from bundle.sentence_pairs import novels, told_of
from heedful.models.base import LM

NAMES = ("answers", "masked", "fill-mask", "prose", "prose-lstm", "prose-mamba", *translators.PLANS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--model", help="a folder to measure in the place of the bundled model")
    parser.add_argument("--part", choices=("held", "test"), default="test", help="of the sentence pairs")
    parser.add_argument("--most", type=int, default=1500, help="sentences that are translated")
    parser.add_argument("--beams", type=int, default=4)
    given = parser.parse_args()
    folder, name = data_folder(), given.name
    SCRATCH.mkdir(parents=True, exist_ok=True)
    model = heedful.load(given.model or name, dtype=None if name.startswith("prose") else torch.float32)
    found: dict[str, Any]
    if name == "answers":
        found = scored(model, PLANS[name], PLANS[name].test(folder))
    elif name in ("masked", "fill-mask"):
        assert isinstance(model, LM)
        unseen = told_of(novels(folder / masked.FILES[1]), model.tokenizer)
        found = masked.scores(model, unseen, masked.LENGTH, masked.CHECKS)
    elif name.startswith("prose"):
        assert isinstance(model, LM)
        found = prose.measured(model, prose.novels(folder, "valid"), prose.HELD)
    else:
        code, _ = translators.LANGUAGES[translators.PLANS[name].language]
        pairs = translators.parts(folder / "translation/tatoeba" / f"{code}-eng.tsv.gz")
        found = translators.score(model, pairs[given.part], given.most, given.beams)
    print(json.dumps({key: value for key, value in found.items() if isinstance(value, (int, float))}))


if __name__ == "__main__":
    main()
