"""How much each head matters: every head switched off alone, several of them side by side in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.interp.attention import attention
from heedful.interp.change import means
from heedful.interp.inputs import Input, Text, reading
from heedful.interp.prediction import divergence
from heedful.models.base import Model
from heedful.nn.context import Watch

MAX_ROWS = 16  # heads in one batch
MAX_BYTES = 64 * 2**20  # of one batch's logits

Head = tuple[str, int]  # the path of its part, and its number


@dataclass(frozen=True)
class HeadEffect:
    """The effect of one head: KL(plain ‖ without) in nats, the mean over positions."""

    path: str
    head: int
    change: float


class _AblatedHeads(Watch):
    """Row b of a batch is without head b; `checkpoint` is called at every value, and may raise to stop."""

    def __init__(
        self, batch: Sequence[Head], means: Mapping[str, Tensor], checkpoint: Callable[[], None] | None
    ) -> None:
        super().__init__(edit={f"{path}.heads": self._silence(path, batch, means) for path, _ in batch})
        self.checkpoint = checkpoint

    @staticmethod
    def _silence(path: str, batch: Sequence[Head], means: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
        rows = [(row, head) for row, (where, head) in enumerate(batch) if where == path]

        def edit(heads: Tensor) -> Tensor:  # (B, H, T, K)
            mean = means.get(f"{path}.heads")
            for row, head in rows:
                heads[row, head] = 0.0 if mean is None else mean[head]
            return heads

        return edit

    def visit(self, name: str, value: Tensor) -> Tensor:
        if self.checkpoint is not None:
            self.checkpoint()
        return super().visit(name, value)


@torch.no_grad()
def each_head_effect(
    model: Model, inputs: Input, heads: Mapping[str, int], *, mean: Text | Input | None = None,
    checkpoint: Callable[[], None] | None = None,
) -> Iterator[HeadEffect]:  # fmt: skip
    """Yield the effect of every head in turn; `heads` has the number of heads of each part.

    A head that is off gives zero, or with `mean`, a reference text, its mean there (see `change.without`).
    The numbers are those of one head after the other. `checkpoint` is called all the time and may raise.
    """
    usual = {} if mean is None else means(model, mean, list(heads))
    plain = inputs.run(model, None if checkpoint is None else _AblatedHeads((), {}, checkpoint))
    rows = max(1, min(MAX_ROWS, MAX_BYTES // max(1, plain.numel() * 4)))
    every = [(path, head) for path, count in heads.items() for head in range(count)]
    for start in range(0, len(every), rows):
        batch = every[start : start + rows]
        changed = inputs.run(model, _AblatedHeads(batch, usual, checkpoint), repeat=len(batch))
        for (path, head), row in zip(batch, changed, strict=True):
            yield HeadEffect(path, head, float(divergence(plain[0], row).mean()))


def head_effects(
    model: Model, text: Text | Input, target: Text | None = None, *, mean: Text | Input | None = None
) -> dict[str, list[float]]:
    """Return how far predictions move, in nats, when each head alone is switched off, or says its mean."""
    given = reading(model, text, target)
    patterns = attention(model, given).patterns
    found: dict[str, list[float]] = {name.removesuffix(".pattern"): [] for name in patterns}
    counts = {name.removesuffix(".pattern"): pattern.heads for name, pattern in patterns.items()}
    for effect in each_head_effect(model, given, counts, mean=mean):
        found[effect.path].append(effect.change)
    return found
