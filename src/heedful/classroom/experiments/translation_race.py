"""`heed race --translation`: one vector, alignment and attention alone on the same pairs, by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from heedful.classroom.experiments.ledger import hardware
from heedful.classroom.experiments.measurement_store import Comparison, Measurement
from heedful.classroom.experiments.race_report import measurements_of
from heedful.classroom.experiments.report import Report, Section
from heedful.classroom.experiments.systems import (
    TRANSLATORS,
    SizedSystem,
    find_systems,
    shared_tokenizer,
    size_system,
)
from heedful.classroom.experiments.translation_data import PAIRS_NAME, prepare_pairs, write_pairs
from heedful.classroom.figures import panels
from heedful.core.files import expand_paths, name_files
from heedful.data.tokenization import find_template
from heedful.decode.loop import generate
from heedful.interp.inputs import reading
from heedful.nn.context import Watch
from heedful.tasks.metrics.generated import bleu, bleu_interval
from heedful.train.config import TrainConfig
from heedful.train.recipes.recipes import Evaluation, Recipe, TokenizerOptions

# Translators whose training steps are recorded on a GPU, on batches of few shapes; the fused kernel of the
# others' encoders asks the host for the lengths of its rows, which nothing recorded can.
RECORDED = ("rnnsearch", "transformer")
MULTIPLE = 8  # to which lengths of recorded batches are rounded up


@dataclass(frozen=True)
class TranslationSettings:
    """The settings of a race of translators."""

    systems: tuple[str, ...] = tuple(TRANSLATORS)
    pairs: int = 200_000  # that are trained on at most
    max_joined: int = 6  # the most consecutive pairs in a training text
    test_joined: int = 12  # and in a text to test on: six short sentences have far fewer words than 80
    train_words: int = 30
    buckets: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 80)  # the most words of a source
    test_rows: int = 200  # of each bucket
    parameters: int = 8_000_000
    layers: int = 3  # of the Transformer; the others have one
    tokenizer: str = "bpe"
    vocab: int = 4000
    length: int = 192
    batch: int = 192
    steps: int = 4000
    lr_factor: float = 0.4  # of each system's learning rate, which is that of a small model
    dtype: str = "float32"
    seed: int = 0


FULL_TRANSLATION = TranslationSettings()
QUICK_TRANSLATION = TranslationSettings(
    pairs=4000, buckets=(10, 20, 30, 45, 60, 80), test_rows=24, parameters=60_000, layers=1, tokenizer="word",
    vocab=100, length=100, batch=32, steps=300, test_joined=6, lr_factor=1.0,
)  # fmt: skip


class TranslationRace(Comparison):
    """One race of translators in a folder."""

    def __init__(
        self, folder: Path, files: Sequence[str], settings: TranslationSettings, device: torch.device,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        s = self.settings = settings
        self.pairs_name = name_files(expand_paths(list(files))) if files else PAIRS_NAME
        common = {n: v for n, v in asdict(s).items() if n != "systems"} | {"data": self.pairs_name}
        super().__init__(folder, device, report, common)
        systems = find_systems(s.systems, TRANSLATORS)
        self.data = prepare_pairs(
            files, count=s.pairs, max_joined=s.max_joined, test_joined=s.test_joined,
            train_words=s.train_words, buckets=s.buckets, test_rows=s.test_rows, seed=s.seed,
        )  # fmt: skip
        self.files = write_pairs(self.data.train, folder / "data", "train")
        self.valid = write_pairs(self.data.valid, folder / "data", "valid")
        self.tokenizer = shared_tokenizer(
            folder / "tokenizer", s.tokenizer, self.files, s.vocab, ("unk", "bos", "eos", "pad")
        )
        sizes = {"vocab": len(self.tokenizer), "layers": s.layers, "context": s.length}
        self.competitors = [size_system(system, s.parameters, **sizes) for system in systems]

    def measurements(self) -> Iterator[Measurement]:
        """Yield for every system its training, its translations, and what it looks at in one of them."""
        kinds = {"training": self.train_translator, "bleu": self.translate, "alignment": self.align}
        for one in self.competitors:
            settings = {"model": dict(one.model), "lr": one.system.lr}
            for kind, measure in kinds.items():
                yield Measurement(f"{kind}-{one.system.family}", settings, partial(measure, one))

    def train_translator(self, competitor: SizedSystem) -> Mapping[str, Any]:
        """Train a system on the short pairs."""
        s, family = self.settings, competitor.system.family
        every, recorded = max(1, s.steps // 8), self.device.type == "cuda" and family in RECORDED
        recipe = Recipe(
            family, "one of the systems of a race of translators", "translate",
            TokenizerOptions(str(self.folder / "tokenizer"), s.vocab), dict(competitor.model),
            {"length": s.length, "batch": s.batch, "truncate": True, "multiple": MULTIPLE if recorded else 1},
            TrainConfig(
                steps=s.steps, lr=s.lr_factor * competitor.system.lr, warmup=max(1, s.steps // 10),
                dtype=s.dtype, seed=s.seed, save_every=every,
            ),
            Evaluation(every=every, batches=8, log=every, sample=0),
        )  # fmt: skip
        start_token = cast(int, self.tokenizer.bos)
        result = self.train(
            competitor, recipe, self.tokenizer, self.files, self.valid, start_token=start_token
        )
        label, loss = competitor.system.label, result.scores.get("loss")
        return {"label": label, "parameters": competitor.parameters, "loss": loss}

    def translate(self, competitor: SizedSystem) -> Mapping[str, Any]:
        """Translate the test texts greedily; return the BLEU of every bucket with its interval.

        `ratio` is the number of words written over that of the references.
        """
        model, around = self.load_trained(competitor), find_template(self.tokenizer, end=True)
        end = cast(int, self.tokenizer.eos)
        scores: dict[str, Any] = {n: [] for n in ("words", "bleu", "interval", "ratio", "rows", "texts")}
        for words, pairs in self.data.test.items():
            sources = [
                [*around.before, *self.tokenizer.encode(s, special=False), *around.after] for s, _ in pairs
            ]
            written = generate(model, sources, max_tokens=2 * max(map(len, sources)) + 8, eos=(end,))
            texts = [self.tokenizer.decode([i for i in ids if i != end]) for ids in written]
            truths = [t for _, t in pairs]
            scores["words"].append(words)
            scores["bleu"].append(bleu(truths, texts)["bleu"])
            scores["interval"].append(bleu_interval(truths, texts))
            scores["ratio"].append(len(" ".join(texts).split()) / len(" ".join(truths).split()))
            scores["rows"].append(len(pairs))
            scores["texts"].append(texts)
        return scores

    def align(self, competitor: SizedSystem) -> Mapping[str, Any] | None:
        """Return the scores and weights with which a target looks at its source, averaged over heads."""
        words = [w for w in self.data.test if w <= self.settings.train_words][-1]
        source, target = min(self.data.test[words], key=lambda p: len(p[0]))
        model = self.load_trained(competitor)
        given, watch = reading(model, source, target), Watch("*")
        given.run(model, watch)
        names = [n for n in watch if n.startswith("decoder.") and ".attn." not in n]  # which looks at itself
        last = {kind: [n for n in names if n.endswith(kind)] for kind in ("scores", "pattern")}
        if not last["pattern"]:
            return None
        mean = lambda kind: watch[last[kind][-1]][0].mean(0).tolist()
        return {
            "source": given.tokens, "target": given.target_tokens, "scores": mean("scores"),
            "pattern": mean("pattern"), "label": competitor.system.label,
        }  # fmt: skip

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""
        s = self.settings
        about = {
            "pairs": self.pairs_name, "trained on": f"up to {s.train_words} words",
            "joined": f"1 to {s.max_joined} consecutive pairs, tested on 1 to {s.test_joined}",
            "steps": f"{s.steps:,} of {s.batch} pairs",
            "machine": hardware(self.device.type),
        }  # fmt: skip
        training, scores, alignments = (
            measurements_of(self.store, kind, TRANSLATORS) for kind in ("training", "bleu", "alignment")
        )
        sections = [bleu_section(scores, training)] if scores else []
        sections += [alignment_section(alignments), score_section(alignments)] if alignments else []
        return Report("Translators side by side", command, about, sections)


# The report of a race of translators: BLEU by length, alignments, additive scores next to dot products.


def bleu_section(results: dict[str, Any], training: dict[str, Any]) -> Section:
    """Return BLEU by the number of words of the source, with intervals, and how much of it each keeps."""
    words = next(iter(results.values()))["words"]
    values = np.array([v["bleu"] for v in results.values()])
    best = {name: int(row.argmax()) for name, row in zip(results, values, strict=True)}
    shares = {n: v["bleu"][-1] / max(v["bleu"][best[n]], 1e-9) for n, v in results.items()}
    least, most = (choose(shares, key=lambda n: shares[n]) for choose in (min, max))
    text = [
        f"Of its best BLEU {least} keeps {shares[least]:.0%} on sources of up to {words[-1]} words, {most} "
        f"{shares[most]:.0%}. Test texts are joined from sources that no model has seen; in brackets stand "
        "where 95 % of the BLEUs of texts drawn with replacement lie.",
        "A model that stops too early writes fewer words than the references have: the second table.",
    ]
    spans = [f"{low + 1}–{high}" for low, high in zip((0, *words), words, strict=False)]
    cells = [
        [
            f"{training[n]['parameters']:,}" if n in training else "",
            *(f"{b:.1f} [{i[0]:.1f}, {i[1]:.1f}]" for b, i in zip(v["bleu"], v["interval"], strict=True)),
            f"{shares[n]:.0%}",
        ]
        for n, v in results.items()
    ]
    columns = ["parameters", *(f"{span} words" for span in spans), "kept"]
    ratios = [[f"{r:.2f}" for r in v["ratio"]] for v in results.values()]
    drawn = panels.lines(
        "BLEU by length", values, list(results), words, axes=("BLEU", "words of the source, at most")
    )
    tables = [
        panels.table("BLEU", cells, list(results), columns, axes=("system", "")),
        panels.table(
            "words written", ratios, list(results), columns[1:-1], axes=("of the references' words", "")
        ),
    ]
    return Section("bleu", "BLEU by the length of the source", text, [drawn], tables)


def matrices(results: dict[str, Any], kind: str) -> list[panels.Panel]:
    """Return what every system has of a kind, as heat maps of target and source."""
    return [
        panels.matrix(name, np.array(v[kind]), v["target"], v["source"], axes=("target", "source"))
        for name, v in results.items()
    ]


def alignment_section(results: dict[str, Any]) -> Section:
    """Return the weights with which each target token looks at the source."""
    text = [
        "Each row is a token that the decoder reads, each column a token of the source; weights are the "
        "mean over the heads of the last layer. Plain seq2seq has none: all it knows of the source is one "
        "vector."
    ]
    return Section("alignments", "Alignments side by side", text, matrices(results, "pattern"))


def score_section(results: dict[str, Any]) -> Section:
    """Return the scores before the softmax: additive ones next to dot products."""
    rows = []
    for v in results.values():
        scores = np.array(v["scores"])
        rows.append([f"{scores.min():.2f}", f"{scores.max():.2f}", f"{scores.std():.2f}"])
    text = [
        "RNNsearch's score is vᵀ tanh(W q + U m), bounded by Σ|v|; Luong's is the product qᵀ m, which "
        "grows with the vectors; the Transformer divides its product by √d_k."
    ]
    table = panels.table(
        "scores", rows, list(results), ["lowest", "highest", "standard deviation"], axes=("system", "")
    )
    return Section(
        "scores", "Additive scores next to dot products", text, matrices(results, "scores"), [table]
    )
