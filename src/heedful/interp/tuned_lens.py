"""The tuned lens: an affine map for each layer, learnt so that the model's own head reads it well.

    logits_l = head(norm(x_l + A_l x_l + b_l)),   min KL(p_model ‖ p_l)      A_l and b_l begin at zero

(Belrose et al. 2023, arXiv 2303.08112.) Before it is trained it is the logit lens. The model stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.interp.activations import Report, Texts, check_predicts_next, make_batches, read_texts
from heedful.interp.inputs import Input, Text, reading, stack_of, word_head
from heedful.interp.lens import Lens
from heedful.interp.prediction import divergence
from heedful.interp.saved_module import load_module, save_module
from heedful.models.base import Model, Seq2Seq
from heedful.nn.block import Stack
from heedful.nn.context import Context, Mask, Watch

FORMAT = "heedful.tuned_lens"


class TunedLens(nn.Module):
    """x_l + A_l x_l + b_l for every layer l, by the names of the values."""

    def __init__(self, names: list[str], dim: int) -> None:
        super().__init__()
        self.names, self.dim = names, dim
        self.weight = nn.Parameter(torch.zeros(len(names), dim, dim))
        self.bias = nn.Parameter(torch.zeros(len(names), dim))

    def translate(self, layer: int, x: Tensor) -> Tensor:
        """Return what the last layer would have handed on, as far as layer `layer` tells: (…, D)."""
        return x + (x.float() @ self.weight[layer].T + self.bias[layer]).to(x.dtype)

    def save(self, path: str | Path) -> Path:
        """Write the lens as one safetensors file."""
        return save_module(self, path, FORMAT, {"names": self.names, "dim": self.dim})


def load_tuned_lens(path: str | Path, device: str | torch.device = "cpu") -> TunedLens:
    """Read what `TunedLens.save` wrote."""
    return load_module(path, FORMAT, lambda settings: TunedLens(**settings), device, "TunedLens.save")


def _layer_values(model: Model) -> tuple[list[str], Stack]:
    """The values that a lens reads: of the embedding and of every layer but the last."""
    where, stack = stack_of(model)
    start = "target_embed" if isinstance(model, Seq2Seq) else "embed"
    names = [f"{start}.output", *(f"{where}.{i}.output" for i in range(len(stack) - 1))]
    shapes = model.names()
    width = shapes[f"{where}.{len(stack) - 1}.output"][-1]
    return [name for name in names if shapes[name][-1] == width], stack


def _read_out(model: Model, stack: Stack, x: Tensor) -> Tensor:
    """head(norm(x)): logits of vectors (B, T, D)."""
    pos = torch.arange(x.shape[1], device=x.device)[None]
    return cast(Tensor, word_head(model)(stack.finish(x), Context(pos, pos, Mask())))


def train_tuned_lens(
    model: Model, texts: Texts, *, steps: int = 200, learning_rate: float = 1e-3, max_length: int = 128,
    max_tokens: int = 512, seed: int = 0, report: Report | None = None,
) -> TunedLens:  # fmt: skip
    """Learn the lens on texts: in each step, one batch of them, every layer is brought nearer to the last.

    `report` is called with the number of steps done and of all, and may raise to stop.
    """
    check_predicts_next(model)
    names, stack = _layer_values(model)
    if not names:
        raise InputError(f"no layer of this {model.family.name} is as wide as its last")
    lens = TunedLens(names, int(model.names()[names[-1]][-1])).to(model.device)
    batches = list(make_batches(read_texts(model, texts, max_length=max_length), max_tokens))
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(lens.parameters(), lr=learning_rate)
    for step in range(steps):
        if report is not None:
            report(step, steps)
        batch = batches[int(torch.randint(len(batches), (), generator=order))]
        watch = Watch(*names, detach=True)
        with torch.no_grad():
            final = batch.run(model, watch).float().log_softmax(-1)
        valid = batch.read[1]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * (1 - step / steps)
        optimiser.zero_grad()
        for layer, name in enumerate(names):  # one after another: logits of all at once are many
            mine = _read_out(model, stack, lens.translate(layer, watch[name])).float().log_softmax(-1)
            gap = (final.exp() * (final - mine)).sum(-1)[valid].mean()
            _add_gradients(gap, lens)
        optimiser.step()
    if report is not None:
        report(steps, steps)
    return lens.requires_grad_(False)


def _add_gradients(loss: Tensor, lens: TunedLens) -> None:
    """Add the gradients of the lens alone: the model gets none."""
    for parameter, gradient in zip(
        (lens.weight, lens.bias), torch.autograd.grad(loss, (lens.weight, lens.bias)), strict=True
    ):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@torch.no_grad()
def tuned_lens(model: Model, text: Text | Input, lens: TunedLens, target: Text | None = None) -> Lens:
    """Return what each layer would predict through a tuned lens; the last row is the model's own prediction.

    The result is that of `logit_lens`: likeliest tokens, ranks and entropies by layer and position.
    """
    names, stack = _layer_values(model)
    if names != lens.names or lens.dim != int(model.names()[names[-1]][-1]):
        raise InputError(
            f"the lens was trained on {len(lens.names)} layers of {lens.dim} entries",
            hint=f"this model has {len(names)}: train one for it",
        )
    inputs, watch = reading(model, text, target), Watch(*names)
    final = inputs.run(model, watch)
    logits = [_read_out(model, stack, lens.translate(i, watch[name]))[0] for i, name in enumerate(names)]
    where, _ = stack_of(model)
    layers = (*(n.removesuffix(".output") for n in names), f"{where}.{len(stack) - 1}")
    return Lens(model, layers, inputs.names, torch.stack([*logits, final[0]]))


def lens_divergence(lens: Lens) -> Tensor:
    """KL(p_model ‖ p_l) of every layer and position in nats, (L, T): how far each is from the last."""
    return torch.stack([divergence(lens.logits[-1], row) for row in lens.logits])
