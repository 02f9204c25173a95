"""The systems that are compared, and the width at which each has a given number of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heedful.classroom.text_files import load_yaml
from heedful.core.errors import ConfigError, NotFound, find_named
from heedful.models import find_config
from heedful.models.base import LM, Model
from heedful.models.counting import parameter_count
from heedful.nn.block import NamedParts
from heedful.nn.context import Part
from heedful.text import Tokenizer, load_tokenizer, save_tokenizer
from heedful.text.tokenizer_training import train_tokenizer
from heedful.weights.loading import build

MAX_DIM = 8192  # the widest model that is tried


@dataclass(frozen=True)
class System:
    """A way to mix tokens, as a family of models: how deep it is built and how its layers reach back."""

    family: str
    label: str
    mixing: str  # recurrence, attention, linear attention, state space
    lr: float
    depth: int = 1  # layers for each layer that was asked for: a block without an MLP counts half
    more_layers: int = 0  # added to that
    multiple: int = 1  # what the width must be a multiple of
    options: Mapping[str, Any] = field(default_factory=dict)  # other fields of the config
    table_std: float | None = None  # of the token table at the start, where no norm stands behind it
    hidden_ratio: float | None = None  # width of the MLP over that of the block, as the family's paper has it

    def path_length(self, distance: int, layers: int) -> int:
        """Return how many parts a gradient passes, one after another, to the input `distance` tokens back.

        A recurrence is passed once for every token between; attention reaches every token in one step. The
        state of linear attention and of a state space is carried by `distance` steps too, but each only
        scales it: no matrix and no nonlinearity stands between, and the whole sum is computed at once.
        """
        return layers + distance if self.mixing == "recurrence" else layers


def read_systems(kind: str) -> dict[str, System]:
    """Return the systems of one kind of race by their families, from systems.yaml."""
    tables = load_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {family: System(family, **row) for family, row in tables[kind].items()}


SYSTEMS, TRANSLATORS = read_systems("language models"), read_systems("translators")


@dataclass(frozen=True)
class SizedSystem:
    """A system in the size that comes nearest to a number of parameters."""

    system: System
    model: Mapping[str, Any]  # fields of the family's config, the vocabulary left out
    parameters: int

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return int(self.model["layers"])


def find_systems(names: Sequence[str], systems: Mapping[str, System] = SYSTEMS) -> list[System]:
    """Return the systems with these names; raise NotFound for an unknown one."""
    return [find_named(systems, name, f"no system is called {name!r}", NotFound) for name in names]


def size_system(system: System, parameters: int, *, vocab: int, layers: int, context: int) -> SizedSystem:
    """Return the system at the width whose number of parameters comes nearest to `parameters`.

    Where the width must be a multiple of something, the MLP's width makes up for what is missing.
    """
    family, config = find_config(system.family)
    options = config.field_names()
    fixed: dict[str, Any] = {"layers": layers * system.depth + system.more_layers, **system.options}
    if "context" in options:
        fixed["context"] = context
    ratio = system.hidden_ratio

    def at_width(dim: int, hidden: int | None = None) -> tuple[dict[str, Any], int]:
        sizes = fixed | {"dim": dim} | ({"table_dim": dim} if "table_dim" in options else {})
        if ratio is not None:
            sizes["hidden"] = hidden or max(1, round(ratio * dim))
        return sizes, parameter_count(family, config.change(vocab=vocab, **sizes))

    low, high = 1, MAX_DIM // system.multiple
    while low < high:  # the widest that has no more than `parameters`
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if at_width(middle * system.multiple)[1] <= parameters else (low, middle - 1)
        )
    nearest = [at_width(m * system.multiple) for m in (low, low + 1)]
    best = min(nearest, key=lambda one: abs(one[1] - parameters))
    if ratio is not None:
        dim, hidden = best[0]["dim"], best[0]["hidden"]
        each = at_width(dim, hidden + 1)[1] - best[1]
        best = at_width(dim, max(1, hidden + round((parameters - best[1]) / each)))
    if not 0.5 < best[1] / parameters < 2:
        raise ConfigError(
            f"{system.label} has {best[1]:,} parameters at its smallest; {parameters:,} were asked for",
            hint="use a larger budget of parameters or a smaller vocabulary",
        )
    return SizedSystem(system, best[0], best[1])


def build_system(
    sized_system: SizedSystem, *, vocab: int, seed: int = 0, device: torch.device | str = "cpu", **sizes: Any
) -> Model:
    """Return a model of the system with random weights; `sizes` replace some of the system's.

    GPT-2's tables start with a standard deviation of 0.02, which a norm makes up for. A recurrence has none:
    it would see next to nothing of its input, and learn for hundreds of steps to see more.
    """
    system = sized_system.system
    sizes = {**sized_system.model, **sizes}
    model = build(system.family, vocab=vocab, seed=seed, device=device, **sizes)
    if system.table_std is not None:
        with torch.no_grad():
            for embed in model.tables.values():
                embed.table.mul_(system.table_std / float(embed.table.std()))
    return model


def shared_tokenizer(
    folder: Path, kind: str, files: Sequence[str], vocab: int, special: Sequence[str] | None = None
) -> Tokenizer:
    """Return the tokenizer in a folder, or train it there: all models of a comparison share one."""
    tokenizer = load_tokenizer(folder, {}) if folder.is_dir() else None
    if tokenizer is None:
        tokenizer = train_tokenizer(kind, list(files), vocab, special=special)
        folder.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, folder)
    return tokenizer


def mixing_part(model: LM) -> Part:
    """Return the part of a model in which tokens reach each other: attention, recurrence or state space.

    Of several kinds it is the one that reaches furthest: Based's linear attention, not its convolutions.
    """
    for block in (model.blocks[i] for i in range(len(model.blocks))):
        if not isinstance(block, NamedParts):
            return block
        for name in ("attn", "ssm"):
            if name in block.names:
                return block.part(name)
    raise ConfigError(f"{model.family.name} has no part that mixes tokens")
