"""The title and the equations of every part as a textbook writes them, with the arguments of the part.

Docstrings in `nn/` give the same equations in the words of the code; these are typeset on pages. They stand
in part_equations.yaml; those with numbers of the part are written here. A part that computes and has none
fails a test; one of a user's own has its class's name and no equation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from heedful.classroom.text_files import load_yaml
from heedful.nn.attention.disentangled import ConvBlock
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import NormedResidualBlock, ParallelBlock, SandwichBlock
from heedful.nn.ffn import ACTIVATIONS
from heedful.nn.head import PretrainHead
from heedful.nn.moe import SigmoidRouter
from heedful.nn.norm import OffsetLayerNorm, OffsetRMSNorm, RMSNorm

Equations = list[str]
# The first word of a config that means a function names it: relu, gelu, silu.
ACTIVATION_NAMES = {id(fn): name.partition("_")[0] for name, fn in reversed(ACTIVATIONS.items())}


def activation_name(part: Any) -> str:
    """Return what a part's activation is called."""
    return ACTIVATION_NAMES.get(id(part.act), "act")


def scaled_softmax(part: Any, size: int) -> str:
    """Return softmax attention with the scale that a part was made with; T5 has none."""
    usual = abs(part.scale * size**0.5 - 1) < 1e-6
    scaled = "q k^T" if part.scale == 1.0 else f"q k^T / √{size}" if usual else f"{part.scale:.3g} q k^T"
    cap = part.softcap if isinstance(part, Attention) else None
    return f"A = softmax({scaled if cap is None else f'{cap:g} tanh({scaled} / {cap:g})'})"


def attention_equations(part: Any) -> Equations:
    """Return what a head scores with its own numbers: rotated where positions turn queries and keys."""
    turned = isinstance(part, Attention) and part.rotary is not None
    other = "m" if isinstance(part, CrossAttention) else "x"
    normed = isinstance(part, Attention) and part.q_norm is not None
    of = lambda matrix, x: f"norm({matrix} {x})" if normed else f"{matrix} {x}"
    q, k = f"{'R_t ' * turned}{of('W_Q', 'x')}", f"{'R_s ' * turned}{of('W_K', other)}"
    lines = [f"q = {q}, k = {k}, v = W_V {other}", scaled_softmax(part, part.head_dim)]
    window = part.window if isinstance(part, Attention) else None
    return lines if window is None else [*lines, f"A_ij = 0 for |i - j| ≥ {window}"]


def router_equations(part: Any) -> Equations:
    """Return how experts are chosen, and what they give together."""
    squash = "sigma" if isinstance(part.router, SigmoidRouter) else "softmax"
    shared = "" if part.shared is None else "shared(x) + "
    return [f"s = {squash}(x E^T)", f"y = {shared}Σ_{{e ∈ top}} w_e expert_e(x)"]


def embedding_equations(part: Any) -> Equations:
    """Return the terms that an embedding adds, and the positions they come from."""
    scale = "" if part.scale == 1.0 else "√D " if round(part.scale**2) == part.token.embedding_dim else "s "
    terms = [f"{scale}{'' if part.widen is None else 'W '}E_{{w_t}}"]
    terms += ["p_t"] * (part.position is not None) + ["g_t"] * (part.types is not None)
    whole = " + ".join(terms)
    whole = whole if part.norm is None else f"norm({whole})"
    whole = whole if not isinstance(part.project, nn.Linear) else f"W {whole}"
    return [f"x_t = {whole}", *([] if part.position is None else equations_of(part.position))]


def patch_equations(part: Any) -> Equations:
    """Return how patches of an image become vectors, behind the learned ones that belong to no patch."""
    wrap = "{}" if part.norm is None else "norm({})"
    patch = wrap.format(f"E patch_t{'' if part.token.bias is None else ' + b'} + p_t")
    learned = [f"x_t = {wrap.format('c_t + p_t')} for t < {len(part.first)}"] if len(part.first) else []
    return [f"x_t = {patch}", *learned, *equations_of(part.position)]


def block_equations(part: Any) -> Equations:
    """Return how a block adds its parts, in their order and under their names."""
    if isinstance(part, ConvBlock):
        return ["y = norm(x + attn(x))", "y′ = norm(y + ffn(y))", "z = norm(y′ + conv(x))"]
    if isinstance(part, ParallelBlock) and part.separate:
        return [f"x′ = x + {' + '.join(f'{name}(norm_{{{name}}}(x))' for name in part.names)}"]
    if isinstance(part, ParallelBlock):
        return ["n = norm(x)", f"x′ = x + {' + '.join(f'{name}(n)' for name in part.names)}"]
    if isinstance(part, NormedResidualBlock):
        return [f"n = norm(x), x′ = n + {name}(n)" for name in part.names]
    if isinstance(part, SandwichBlock):
        first = "x" if isinstance(part.get_submodule(f"{part.names[0]}_norm"), nn.Identity) else "norm(x)"
        return [f"x′ = x + norm({name}({first}))" for name in part.names]
    line = "x′ = x + {}(norm(x))" if part.order == "pre" else "x′ = norm(x + {}(x))"
    return [line.format(name) for name in part.names]


def norm_equations(part: Any) -> Equations:
    """Return a layer norm's or a root mean square norm's equation."""
    gain = "(1 + γ) " if isinstance(part, OffsetLayerNorm | OffsetRMSNorm) else "γ "
    if isinstance(part, RMSNorm):
        return [f"y = {gain}x / √(mean(x²) + ε)"]
    gain = "" if part.weight is None else gain
    return [f"y = {gain}(x - mean(x)) / √(var(x) + ε)" + ("" if part.bias is None else " + β")]


def sinusoid_equations(part: Any) -> Equations:
    """Return the sines and cosines in the order in which a part lays them out, from its first position on."""
    angle = f"{f'(t + {part.offset})' if part.offset else 't'} / {part.base:g}^{{2i/D}}"
    if part.layout == "halves":
        return [f"p_t = [sin({angle}) ; cos({angle})]"]
    return [f"p_{{t,2i}} = sin({angle}), p_{{t,2i+1}} = cos({angle})"]


def word_equations(part: Any) -> Equations:
    """Return the logits of a head with its own scale, bias and soft limit, and their softmax."""
    logits = f"{'' if part.scale == 1.0 else f'{part.scale:.3g} '}E x"
    logits += "" if part.out.bias is None and part.shift is None else " + b"
    if part.softcap is not None:
        logits = f"{part.softcap:g} tanh(({logits}) / {part.softcap:g})"
    return [f"p = softmax({logits})"]


# The equations of these classes depend on what a part was made with.
FUNCTIONS: dict[str, Callable[[Any], Equations]] = {
    "Attention": attention_equations, "CrossAttention": attention_equations,
    "LatentAttention": lambda part: [
        "c = norm(W_c x), r = R_s W_r x", "k = [U c ; r], v = V c",
        scaled_softmax(part, part.head_dim + part.rope_dim)],
    "WindowedAttention": attention_equations,
    "BlockSparseAttention": lambda part: [
        *attention_equations(part), f"A_ij = 0 but for blocks of {part.block}: first, last, near, random"],
    "GatedAttention": lambda part: [*attention_equations(part), "out = W_O (sigma(W_G x) ⊙ A v)"],
    "SinkAttention": lambda part: [
        attention_equations(part)[0], f"s = q k^T / √{part.head_dim}",
        "A_ij = e^{s_ij} / (e^b + Σ_j e^{s_ij})"],
    "BiasedAttention": lambda part: [*attention_equations(part), *equations_of(part.position_bias)],
    "MoE": router_equations,
    "GatedMLP": lambda part: [f"y = W_2 ({activation_name(part)}(W_G x) ⊙ W_1 x)"],
    "MLP": lambda part: [f"y = W_2 {activation_name(part)}(W_1 x)"],
    "Neighbours": lambda part: [f"y_t = {activation_name(part)}(Σ_o W_o x_{{t+o}} + b)"],
    "Embedding": embedding_equations, "PatchEmbedding": patch_equations,
    "Sinusoidal": sinusoid_equations,
    "Learned": lambda part: [f"p_t = P[t + {part.offset}]" if part.offset else "p_t = P[t]"],
    "Block": block_equations, "ParallelBlock": block_equations, "NormedResidualBlock": block_equations,
    "RMSNorm": norm_equations, "LayerNorm": norm_equations,
    "LMHead": word_equations,
}  # fmt: skip


@functools.cache
def titles_and_equations() -> dict[str, list[str]]:
    """Return the title and the fixed equations of each class by its name."""
    rows: dict[str, list[str]] = load_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return rows


def class_name(module: nn.Module) -> str | None:
    """Return the class whose row a part has, if any; of a head with several, that which speaks of words."""
    module = module.words if isinstance(module, PretrainHead) else module
    for kind in type(module).__mro__:
        ours = kind is nn.LayerNorm or kind.__module__.startswith("heedful.")
        if ours and kind.__name__ in titles_and_equations():
            return kind.__name__
    return None


def title_of(module: nn.Module) -> str:
    """Return the name of a part in the field's words."""
    name = class_name(module)
    return type(module).__name__ if name is None else titles_and_equations()[name][0]


def equations_of(module: nn.Module) -> Equations:
    """Return the equations of a part, a line each; none of a part that the table does not know."""
    name = class_name(module)
    if name is None:
        return []
    words = module.words if isinstance(module, PretrainHead) else module
    return FUNCTIONS[name](words) if name in FUNCTIONS else list(titles_and_equations()[name][1:])
