"""`heed race --translation`: one vector, alignment and attention alone on the same pairs, by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from heedful.data.tokenization import find_template
from heedful.decode.loop import generate
from heedful.evaluate.generated import bleu
from heedful.experiments.measurement_store import MeasurementStore
from heedful.experiments.report import Report, machine_name
from heedful.experiments.sample_text import PAIRS_NAME
from heedful.experiments.systems import (
    TRANSLATORS,
    SizedSystem,
    build_model,
    find_systems,
    shared_tokenizer,
    size_system,
)
from heedful.experiments.translation_data import prepare_pairs, write_pairs
from heedful.experiments.translation_report import translation_sections
from heedful.files import expand_paths, name_files
from heedful.inspect.inputs import reading
from heedful.loading import load, save
from heedful.models.base import Model
from heedful.nn.context import Watch
from heedful.runs.prepare import config_entries
from heedful.runs.recipes import Evaluation, Recipe, TokenizerOptions
from heedful.runs.settings import ResolvedSettings
from heedful.runs.train import run_training
from heedful.train.checkpoint import of_run
from heedful.train.config import TrainConfig


@dataclass(frozen=True)
class TranslationSettings:
    """How large a race of translators is."""

    systems: tuple[str, ...] = tuple(TRANSLATORS)
    pairs: int = 100_000  # that are read
    max_joined: int = 6  # the most consecutive pairs in one
    train_words: int = 30
    buckets: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 80)  # the most words of a source
    test_rows: int = 200  # of each bucket
    parameters: int = 8_000_000
    layers: int = 3  # of the Transformer; the others have one
    tokenizer: str = "bpe"
    vocab: int = 8000
    length: int = 160
    batch: int = 128
    steps: int = 4000
    dtype: str = "float32"
    seed: int = 0


FULL_TRANSLATION = TranslationSettings()
QUICK_TRANSLATION = TranslationSettings(
    pairs=4000, buckets=(10, 20, 30, 45, 60, 80), test_rows=24, parameters=60_000, layers=1, tokenizer="word",
    vocab=100, length=100, batch=32, steps=300,
)  # fmt: skip


def translation_settings(quick: bool, systems: tuple[str, ...] | None = None) -> TranslationSettings:
    """Return the settings of a race of translators, of all or of some."""
    settings = QUICK_TRANSLATION if quick else FULL_TRANSLATION
    return settings if systems is None else replace(settings, systems=systems)


class TranslationRace:
    """One race of translators in a folder: every measurement is taken once and kept."""

    def __init__(
        self, folder: Path, files: Sequence[str], settings: TranslationSettings, device: torch.device,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        s = self.settings = settings
        self.folder, self.device, self.report = folder, device, report
        self.store = MeasurementStore(folder / "measurements")
        self.pairs_name = name_files(expand_paths(list(files))) if files else PAIRS_NAME
        systems = find_systems(s.systems, TRANSLATORS)
        self.data = prepare_pairs(
            files, count=s.pairs, max_joined=s.max_joined, train_words=s.train_words, buckets=s.buckets,
            test_rows=s.test_rows, seed=s.seed,
        )  # fmt: skip
        self.files = write_pairs(self.data.train, folder / "data", "train")
        self.valid = write_pairs(self.data.valid, folder / "data", "valid")
        self.tokenizer = shared_tokenizer(
            folder / "tokenizer", s.tokenizer, self.files, s.vocab, ("unk", "bos", "eos", "pad")
        )
        sizes = {"vocab": len(self.tokenizer), "layers": s.layers, "context": s.length}
        self.competitors = [size_system(system, s.parameters, **sizes) for system in systems]

    def measure(self) -> None:
        """Train every system, translate the test pairs, and keep what it looks at in one of them."""
        for competitor in self.competitors:
            self.take("training", competitor, self.train)
            self.take("bleu", competitor, self.translate)
            self.take("alignment", competitor, self.align)

    def take(self, kind: str, competitor: SizedSystem, measure: Callable[[SizedSystem], Any]) -> None:
        """Take a measurement of a system if it is not there yet, and report it."""

        def measure_now() -> Any:
            self.report(f"{kind} {competitor.system.family}")
            return measure(competitor)

        options = {n: v for n, v in asdict(self.settings).items() if n != "systems"}
        settings = {
            **options,
            "model": dict(competitor.model),
            "data": self.pairs_name,
            "lr": competitor.system.lr,
        }
        self.store.take(f"{kind}-{competitor.system.family}", settings, measure_now)

    def train(self, competitor: SizedSystem) -> Mapping[str, Any]:
        """Train a system on the short pairs."""
        s, family = self.settings, competitor.system.family
        start = self.folder / "start" / family
        if not start.is_dir():
            model = build_model(
                competitor, vocab=len(self.tokenizer), seed=s.seed, start_token=cast(int, self.tokenizer.bos)
            )
            model.tokenizer, model.hf_config = self.tokenizer, config_entries(self.tokenizer, ())
            save(model, start)
        every = max(1, s.steps // 8)
        recipe = Recipe(
            family, "one of the systems of a race of translators", "translate",
            TokenizerOptions(str(self.folder / "tokenizer"), s.vocab), dict(competitor.model),
            {"length": s.length, "batch": s.batch, "truncate": True},
            TrainConfig(
                steps=s.steps, lr=competitor.system.lr, warmup=max(1, s.steps // 10), dtype=s.dtype,
                seed=s.seed, save_every=every,
            ),
            Evaluation(every=every, batches=8, log=every, sample=0), start=str(start),
            device=str(self.device),
        )  # fmt: skip
        settings = ResolvedSettings(family, recipe, tuple(self.files), tuple(self.valid))
        result = run_training(settings, self.folder / family, resume=True, quiet=True)
        return {
            "label": competitor.system.label,
            "parameters": competitor.parameters,
            "loss": result.scores.get("loss"),
        }

    def load_trained(self, competitor: SizedSystem) -> Model:
        """Return a system as it was trained."""
        return load(of_run(self.folder / competitor.system.family), device=self.device)

    def translate(self, competitor: SizedSystem) -> Mapping[str, Any]:
        """Translate the test pairs greedily; return the BLEU of every bucket."""
        model, around = self.load_trained(competitor), find_template(self.tokenizer, end=True)
        found: dict[str, Any] = {"words": [], "bleu": [], "rows": []}
        for words, pairs in self.data.test.items():
            sources = [
                [*around.before, *self.tokenizer.encode(s, special=False), *around.after] for s, _ in pairs
            ]
            most = 2 * max(map(len, sources)) + 8
            end = cast(int, self.tokenizer.eos)
            written = generate(model, sources, max_tokens=most, eos=(end,))
            texts = [self.tokenizer.decode([i for i in ids if i != end]) for ids in written]
            found["words"].append(words)
            found["bleu"].append(bleu([t for _, t in pairs], texts)["bleu"])
            found["rows"].append(len(pairs))
        return found

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
            "joined": f"1 to {s.max_joined} consecutive pairs", "steps": f"{s.steps:,} of {s.batch} pairs",
            "machine": machine_name(self.device),
        }  # fmt: skip
        return Report("Translators side by side", command, about, translation_sections(self.store))
