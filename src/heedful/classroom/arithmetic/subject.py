"""What a calculation of a model is about: the model, its input, the token; its values in float64."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from heedful.classroom.arithmetic.worked import Derivation, Numbers
from heedful.core.checks import position_of
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, part_at, row_side, written_names
from heedful.models.base import Model
from heedful.nn.context import Watch
from heedful.nn.quantised import Quantised


def numbers(value: Tensor) -> Numbers:
    """A tensor as plain numbers, in float64."""
    return Numbers(value.detach().cpu().double().numpy())


def parameters(layer: nn.Module) -> tuple[Numbers, Numbers | None]:
    """W and b of a plain linear layer; whole numbers are written with their scale."""
    if not isinstance(layer, Quantised) and type(layer) is not nn.Linear:
        raise InputError(
            f"a {type(layer).__name__} has no plain matrix to show", hint="merge or reload the model"
        )
    weight = layer.dequantise(torch.float64) if isinstance(layer, Quantised) else layer.weight
    return numbers(weight), None if layer.bias is None else numbers(layer.bias)


@dataclass(frozen=True)
class Subject:
    """A model, what it reads, and the token whose arithmetic is asked for."""

    model: Model
    given: Input
    path: str
    head: int
    token: int | str

    @cached_property
    def watch(self) -> Watch:
        """A watch of everything that the model computes, filled once."""
        watch = Watch("*")
        with torch.no_grad():
            self.given.run(self.model, watch)
        return watch

    @cached_property
    def memory(self) -> Tensor | None:
        """The encoder's output that the decoder reads (1, S, D), if there is one."""
        if self.given.target is None:
            return None
        outputs = [self.watch.values.get(f"encoder.{name}") for name in ("norm.output", "output")]
        layers = [
            n for n in self.watch if n.startswith("encoder.") and n.endswith(".output") and n.count(".") == 2
        ]
        return next(
            (value for value in outputs if value is not None), self.watch[layers[-1]] if layers else None
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows at this path: tokens read, or the words written (see `row_labels`)."""
        has_target = self.given.target is not None
        side = row_side(self.path, part_at(self.model, self.path), has_target=has_target) if self.path else ""
        if side == "written":
            return written_names(self.model, self.given, self.watch.values.get("head.logits"))
        return self.given.tokens if side == "tokens" else self.given.names

    @property
    def at(self) -> int:
        return position_of(self.names, self.token)

    def value(self, word: str, path: str | None = None) -> Tensor:
        return self.watch[f"{self.path if path is None else path}.{word}"][0]

    def at_part(self, *kinds: type[nn.Module]) -> Subject:
        """Return the same pass at the part of the path, or without a path at the first of these kinds."""
        wanted = " or ".join(k.__name__ for k in kinds)
        if self.path:
            part = part_at(self.model, self.path)
            if not isinstance(part, kinds):
                raise InputError(f"{self.path} is a {type(part).__name__}", hint=f"this needs {wanted}")
            return self
        for name in self.watch:
            path = name.rpartition(".")[0]
            with contextlib.suppress(InputError):  # a value shown by a step inside a part
                if isinstance(part_at(self.model, path), kinds):
                    return self.within(path, self.head)
        raise InputError(f"{self.model.family.name} has no {wanted} to explain")

    def within(self, path: str, head: int, token: int | None = None) -> Subject:
        """Return the same pass at another part; `token` is a position where a name would mean another row."""
        other = replace(self, path=path, head=head, token=self.token if token is None else token)
        other.__dict__["watch"] = self.watch
        return other


def check_lines(
    derivation: Derivation, theirs: dict[str, Tensor], title: str = "", note: str = ""
) -> Derivation:
    """Compare lines of a calculation, by their labels, with what the model computed; give it a title."""
    for label, value in theirs.items():
        derivation.compare(label, derivation[label], value)
    derivation.title, derivation.note = title or derivation.title, note or derivation.note
    return derivation


def distinct_labels(names: tuple[str, ...]) -> list[str]:
    """Names that tell equal tokens apart by their position."""
    return [f"{n}({i})" if names.count(n) > 1 else n for i, n in enumerate(names)]
