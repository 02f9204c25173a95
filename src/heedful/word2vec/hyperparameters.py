"""The settings of a training run: one frozen value, checked once and saved beside the vectors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from heedful.checks import check_choice, check_integer, check_number
from heedful.errors import ConfigError, nearest

CHOICES = {"mode": ("skipgram", "cbow"), "loss": ("negative", "hierarchical"), "cbow": ("mean", "sum")}
MINIMUM = {"dim": 1, "window": 1, "negatives": 1, "min_count": 1, "epochs": 1, "seed": 0}
DEFAULT_SUBSAMPLE = 1e-3  # the authors' threshold, made for vocabularies of many thousand words
# The gradient of CBOW's mean is divided by the number of context words, so it needs a larger learning rate
# (İrsoy, Benton & Stratos 2021, "Corrected CBOW performs as well as skip-gram").
DEFAULT_RATE, CBOW_MEAN_RATE = 0.025, 0.075


@dataclass(frozen=True)
class Settings:
    """Mikolov et al. 2013a (arXiv 1301.3781), 2013b (arXiv 1310.4546); defaults of the authors' program."""

    dim: int = 100
    window: int = 5
    mode: str = "skipgram"  # skipgram: each context word predicts the centre; cbow: their mean or sum does
    loss: str = "negative"  # negative: against noise words; hierarchical: along the Huffman path
    negatives: int = 5  # noise words, drawn once per window and shared by its examples
    min_count: int = 5
    max_vocab: int | None = None  # keep only this many of the most frequent words
    subsample: float | None = None  # t: keep a word of frequency f with probability √(t/f) + t/f; 0 keeps all
    noise_exponent: float = 0.75  # P(w) ∝ count(w)^exponent
    dynamic: bool = True  # draw the reach of each window evenly from 1..window; False: always window
    cbow: str = "mean"
    rate: float | None = None  # the first learning rate; None: DEFAULT_RATE or CBOW_MEAN_RATE
    min_rate: float = 1e-4
    epochs: int = 5
    seed: int = 0

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
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                hint = nearest(name, known) or f"choose from {', '.join(sorted(known))}"
                raise ConfigError(f"unknown setting {name}={values[name]!r:.80}", hint=hint)
        return cls(**values)
