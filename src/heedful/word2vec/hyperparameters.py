"""The settings of a training run and their options: frozen, checked once, saved with the vectors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from heedful.core.checks import Option, check_choice, check_integer, check_number
from heedful.core.errors import ConfigError, nearest

CHOICES = {"mode": ("skipgram", "cbow"), "loss": ("negative", "hierarchical"), "cbow": ("mean", "sum")}
MINIMUM = {"dim": 1, "window": 1, "negatives": 1, "min_count": 1, "epochs": 1, "seed": 0}
DEFAULT_SUBSAMPLE = 1e-3  # the authors' threshold, made for vocabularies of many thousand words
# The gradient of CBOW's mean is divided by the number of context words, so it needs a larger learning rate
# (İrsoy, Benton & Stratos 2021, "Corrected CBOW performs as well as skip-gram").
DEFAULT_RATE, CBOW_MEAN_RATE = 0.025, 0.075


@dataclass(frozen=True)
class Settings:
    """Mikolov et al. 2013a (arXiv 1301.3781), 2013b (arXiv 1310.4546); defaults of the authors' program."""

    dim: Annotated[int, Option("Learn vectors of N numbers.")] = 100
    window: Annotated[int, Option("Look at N words on each side.")] = 5
    # skipgram: each context word predicts the centre; cbow: their mean or sum does
    mode: Annotated[str, Option("Learn by skipgram or cbow.")] = "skipgram"
    # negative: against noise words, drawn once per window and shared; hierarchical: along the Huffman path
    loss: Annotated[str, Option("Use the negative or hierarchical loss.")] = "negative"
    negatives: Annotated[int, Option("Draw N noise words per window.")] = 5
    min_count: Annotated[int, Option("Drop words seen less often.")] = 5
    max_vocab: Annotated[int | None, Option("Keep only the N most frequent words.")] = None
    # t: keep a word of frequency f with probability √(t/f) + t/f
    subsample: Annotated[
        float | None,
        Option("Thin out words more frequent than this; 0 keeps all. [default: 0.001, or 1 / vocabulary]"),
    ] = None
    noise_exponent: Annotated[float, Option("Draw noise words by their count to this power.")] = 0.75
    dynamic: Annotated[
        bool,
        Option("Draw each window's reach from 1 to --window, or always --window.", ("--dynamic/--fixed",)),
    ] = True
    cbow: Annotated[str, Option("Give CBOW the mean or sum of the context.")] = "mean"
    rate: Annotated[
        float | None, Option("Set the first learning rate. [default: 0.025; cbow mean 0.075]")
    ] = None
    min_rate: float = 1e-4
    epochs: Annotated[int, Option("Read the text N times.")] = 5
    seed: Annotated[int, Option("Draw the first vectors and everything else with this seed.")] = 0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"dynamic": bool(self.dynamic)}
        for name, choices in CHOICES.items():
            checked[name] = check_choice(name, getattr(self, name), choices, ConfigError)
        for name, minimum in MINIMUM.items():
            checked[name] = check_integer(name, getattr(self, name), minimum, error=ConfigError)
        if self.max_vocab is not None:
            checked["max_vocab"] = check_integer("max_vocab", self.max_vocab, 2, error=ConfigError)
        checked["noise_exponent"] = check_number("noise_exponent", self.noise_exponent, error=ConfigError)
        checked["min_rate"] = check_number("min_rate", self.min_rate, 0, error=ConfigError)
        if self.subsample is not None:
            checked["subsample"] = check_number("subsample", self.subsample, 0, error=ConfigError)
        if self.rate is not None:
            checked["rate"] = check_number("rate", self.rate, 0, 10, error=ConfigError)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def hierarchical(self) -> bool:
        return self.loss == "hierarchical"

    @property
    def initial_rate(self) -> float:
        """The learning rate at the first word."""
        if self.rate is not None:
            return self.rate
        return CBOW_MEAN_RATE if (self.mode, self.cbow) == ("cbow", "mean") else DEFAULT_RATE

    def rate_at(self, progress: float) -> float:
        """η = max(η_min, η_0 (1 - progress)), `progress` the share of all words of all epochs read so far."""
        return max(min(self.min_rate, self.initial_rate), self.initial_rate * (1.0 - progress))

    def subsample_threshold(self, vocabulary_size: int) -> float:
        """Return t of subsampling: as given, else max(10⁻³, 1/V) for a vocabulary of V words.

        A word of the mean frequency 1/V always stays, so that a tiny text is not emptied.
        """
        return max(DEFAULT_SUBSAMPLE, 1 / vocabulary_size) if self.subsample is None else self.subsample

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Build settings from names and values; an unknown name is an error that names the nearest one."""
        settings = {field.name for field in fields(cls)}
        for name in values:
            if name not in settings:
                hint = nearest(name, settings) or f"choose from {', '.join(sorted(settings))}"
                raise ConfigError(f"unknown setting `{name}={values[name]!r:.80}`", hint=hint)
        return cls(**values)
