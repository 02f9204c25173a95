"""SST-2 from random weights: small models that have read nothing but this data.

    HEED_DATA=… python benchmarks/from_scratch.py                   all; writes results/scratch-*.json
    HEED_DATA=… python benchmarks/from_scratch.py bilstm --seeds 1 --part     one seed, no row yet
    HEED_DATA=… python benchmarks/from_scratch.py bilstm --fold 0 --json      a score to choose settings by

bilstm, cnn, bert    accuracy on dev, median of 3 seeds

Their table is learnt by spelling (heedful.train.spelling): 944 of the 4,339 words of dev are not in the
training text, but their letters are. Each text is read twice, the second time with its vectors pushed to
where it hurts most (heedful.train.objectives.adversarial). Weights are averaged along the way, and the last
average is tested. What is held back and kept is told in finetuned.py, and settings are chosen as there.

HEED_DATA is a folder with classification/sst2.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the plans lie in bundle/, which is not installed

from bundle.plans import Plan, scored
from torch import nn

import heedful
from finetuned import THREE, Settings, learn, measure_task, parse_arguments, split_paths, train_config
from heedful.models.base import Model
from heedful.train.objectives import adversarial
from heedful.train.spelling import spell_embedding


@dataclass(frozen=True)
class Kind:
    """A family, how large it is, and how it begins and is pushed: a norm after the table asks for less."""

    config: dict[str, Any]
    lr: float = 1e-3
    std: float = 0.1  # of the table's first weights
    push: float = 1.0


KINDS = {
    "bilstm": Kind(dict(dim=384, layers=2, dropout=0.5)),
    "cnn": Kind(dict(dim=256, layers=2, hidden=512, kernel=5, dropout=0.5)),
    "bert": Kind(dict(dim=256, layers=3, heads=4, context=128, dropout=0.3), lr=5e-4, std=0.02, push=0.1),
}
SETTINGS = Settings("sentiment", "SST-2 dev, accuracy, from random weights", 6, 1e-3, 128, 1, THREE,
                    tolerance=1.5, script="from_scratch")  # fmt: skip
VOCABULARY = 20_000  # whole words nearly all; what is rare or new falls into pieces


def train_from_scratch(
    name: str, settings: Settings, plan: Plan, seed: int, run: int, a: argparse.Namespace
) -> tuple[Model, float]:
    """A model from random weights, trained."""
    family = name.removeprefix("scratch-")
    kind = KINDS[family]
    train, _ = split_paths()
    text, (_, *lines) = train.with_suffix(".txt"), train.read_text(encoding="utf-8").splitlines()
    text.write_text("\n".join(line.split("\t", 1)[1] for line in lines), encoding="utf-8")
    tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=VOCABULARY, lower=True)
    batches = plan.batches(a.data, tokenizer, settings.batch)
    labels = list(plan.names.values())
    model = heedful.build(family, vocab=len(tokenizer), seed=seed, device=a.device, head="classify",
                          labels=len(labels), **kind.config)  # fmt: skip
    model.tokenizer = tokenizer
    model.hf_config = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    nn.init.normal_(model.tables["tokens"].table, std=kind.std)
    held = plan.held(a.data)
    check = lambda: float(scored(model, plan, held)[plan.score])
    config = train_config(settings, batches, seed + run, a.steps, ema=0.998)
    with spell_embedding(model, std=kind.std):
        score = learn(
            model, adversarial(kind.push), batches, config, check, settings.checks, f"{name} {seed}"
        )
    return model, score


def main() -> None:
    _, a = parse_arguments(__doc__, KINDS)
    for family in a.names:
        kind = KINDS[family]
        settings = replace(SETTINGS, lr=kind.lr, what=f"{family}, {kind.config['layers']} layers")
        measure_task(f"scratch-{family}", replace(settings, **a.changes), a, train_from_scratch)


if __name__ == "__main__":
    main()
