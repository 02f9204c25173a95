"""Which parts of a model multiply in float8 while it is trained (products: `kernels/float8_product.py`)."""

from __future__ import annotations

from torch import Tensor, nn

from heedful.kernels.float8_product import ROWS, Float8Linear, Head8, fits_float8, linear8, mlp8
from heedful.nn.attention import Attention
from heedful.nn.context import Context, PartState
from heedful.nn.ffn import MLP, gelu_tanh
from heedful.nn.head import LMHead, MLMHead

WORDS = True  # whether the word head's products join in


class Attention8(Attention):
    """Attention whose q, k and v are one product; their gradients are rounded into one tensor."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layers = self.q, self.k, self.v
        if not fits_float8(x, *layers) or len({layer.bias is None for layer in layers}) > 1:
            return super().project(x)
        q, k, v = linear8(x, *layers)
        return q, k, v


class MLP8(MLP):
    """down(gelu(up x)) whose hidden state is rounded as it is made, forward and back."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        plain = ctx.watches("up", "hidden") or (self.training and self.dropout > 0)
        plain = plain or not fits_float8(x, self.up, self.down)
        return super().forward(x, ctx, state) if plain else mlp8(x, self.up, self.down)


def use_float8(model: nn.Module) -> int:
    """Make every linear layer of the blocks a float8 one, in place, where its sizes are multiples of 16.

    How many there were is given back.
    """
    count = 0
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or name.startswith("head"):
            continue
        if module.in_features % ROWS == 0 and module.out_features % ROWS == 0:
            module.__class__ = Float8Linear
            count += 1
    for module in model.modules():
        if WORDS and isinstance(module, LMHead | MLMHead) and type(module.out) is nn.Linear:
            module.out.__class__ = Head8
        if type(module) is Attention and all(type(m) is Float8Linear for m in (module.q, module.k, module.v)):
            module.__class__ = Attention8
        if type(module) is MLP and module.act is gelu_tanh:
            layers = (module.up, module.down)
            if all(type(m) is Float8Linear and m.bias is not None for m in layers):
                module.__class__ = MLP8
    return count
