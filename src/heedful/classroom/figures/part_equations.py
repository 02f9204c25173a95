"""The title and the equations of every part as a textbook writes them, with the arguments of the part.

Docstrings in `nn/` give the same equations in the words of the code; these are typeset on pages (see
web/src/figures/formula.tsx for the language). A part that computes and is not in the
table fails a test; one of a user's own has its class's name and no equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from heedful.nn.attention.attentive import Additive, AttentiveUnit, Concat, Dot, General, InputFeeding, Maxout
from heedful.nn.attention.differential import DifferentialAttention
from heedful.nn.attention.disentangled import ConvBlock, DisentangledAttention, Neighbours
from heedful.nn.attention.latent import LatentAttention
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.attention.relative import RelativeAttention, SentenceRelativeAttention
from heedful.nn.attention.sparse import BlockSparseAttention, WindowedAttention
from heedful.nn.block import Block, NormedResidualBlock, ParallelBlock, SandwichBlock
from heedful.nn.embedding import Embedding, SoundEmbedding
from heedful.nn.ffn import ACTIVATIONS, MLP, GatedMLP
from heedful.nn.head import (
    ClassifyHead,
    DetectHead,
    LMHead,
    MLMHead,
    NextHead,
    NoHead,
    PretrainHead,
    SentenceHead,
    SpanHead,
    TagHead,
)
from heedful.nn.moe import MoE, SigmoidRouter
from heedful.nn.norm import GroupRMSNorm, OffsetLayerNorm, OffsetRMSNorm, RMSNorm
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, RoundedALiBi, SineTable, Sinusoidal
from heedful.nn.recurrent import GRU, LSTM, RNN, Bidirectional, GatedUnit
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.linear_attention import (
    GatedConv,
    GatedLinearAttention,
    LinearAttention,
    Retention,
)
from heedful.nn.state_space.rwkv import ChannelMix, TimeMix
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba

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
    return [f"q = {q}, k = {k}, v = W_V {other}", scaled_softmax(part, part.head_dim)]


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


Row = tuple[type[nn.Module], str, Equations | Callable[[Any], Equations]]
# The first that fits; a class stands before the class that it is made from.
TABLE: tuple[Row, ...] = (
    (CrossAttention, "Cross-attention", attention_equations),
    (LatentAttention, "Latent attention", lambda part: [
        "c = norm(W_c x), r = R_s W_r x", "k = [U c ; r], v = V c",
        scaled_softmax(part, part.head_dim + part.rope_dim)]),
    (DisentangledAttention, "Disentangled attention",
     ["s_ij = (q_i k_j^T + q_i r_δ^T + k_j l_δ^T) / √(3 K), δ = i - j", "A = softmax(s)"]),
    (SentenceRelativeAttention, "Attention by distance and sentence",
     ["s_ij = ((q_i + a) k_j^T + (q_i + b) (W_R r_{i-j})^T + (q_i + c) e_{ij}^T) / √K", "A = softmax(s)"]),
    (RelativeAttention, "Attention by distance",
     ["s_ij = ((q_i + a) k_j^T + (q_i + b) (W_R r_{i-j})^T) / √K", "A = softmax(s)"]),
    (DifferentialAttention, "Differential attention",
     ["A = softmax(q_1 k_1^T / √K) - λ softmax(q_2 k_2^T / √K)", "λ = e^{a_1 b_1} - e^{a_2 b_2} + λ_0",
      "y = (1 - λ_0) norm(A v)"]),
    (WindowedAttention, "Attention in a window", lambda part: [
        *attention_equations(part), f"A_ij = 0 for |i - j| ≥ {part.window}"]),
    (BlockSparseAttention, "Attention of blocks", lambda part: [
        *attention_equations(part), f"A_ij = 0 but for blocks of {part.block}: first, last, near, random"]),
    (Attention, "Self-attention", attention_equations),
    (LinearAttention, "Linear attention", ["A_ts = φ(q_t) φ(k_s)^T / Σ_s φ(q_t) φ(k_s)^T, s ≤ t"]),
    (GatedLinearAttention, "Gated linear attention",
     ["S_t = diag(α_t) S_{t-1} + k_t v_t^T", "y_t = S_t^T q_t / √K", "out = W_O (norm(y) ⊙ silu(W_G x))"]),
    (Retention, "Retention",
     ["S_t = γ S_{t-1} + k_t v_t^T, γ_h = 1 - 2^{-5-h}", "y_t = S_t^T q_t / √K",
      "out = W_O (norm(y) ⊙ silu(W_G x))"]),
    (TimeMix, "Time mixing",
     ["x_μ = μ ⊙ x_t + (1 - μ) ⊙ x_{t-1}",
      "a_ts = e^{k_s - (t-1-s) w} for s < t, a_tt = e^{u + k_t}", "y_t = Σ_s a_ts v_s / Σ_s a_ts",
      "out = W_O (sigma(W_R x_μ) ⊙ y)"]),
    (ChannelMix, "Channel mixing", ["out = sigma(W_R x_μ) ⊙ W_V max(0, W_K x_μ)²"]),
    (AttentiveUnit, "Decoder with alignment",
     ["c_t = Σ_j α_tj m_j", "s_t = GRU([y_{t-1} ; c_t], s_{t-1})"]),
    (InputFeeding, "Decoder with alignment",
     ["h_t = LSTM([x_t ; a_{t-1}], h_{t-1})", "c_t = Σ_j α_tj m_j", "a_t = tanh(W [c_t ; h_t])"]),
    (Additive, "Additive score", ["e_tj = v^T tanh(W s_{t-1} + U m_j)", "α_t = softmax(e_t)"]),
    (Concat, "Concat score", ["e_tj = v^T tanh(W [h_t ; m_j])", "α_t = softmax(e_t)"]),
    (General, "General score", ["e_tj = h_t^T W m_j", "α_t = softmax(e_t)"]),
    (Dot, "Dot score", ["e_tj = h_t^T m_j", "α_t = softmax(e_t)"]),
    (Mamba, "Selective state space",
     ["h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t", "y_t = C_t h_t + D u_t",
      "Δ_t = softplus(W_Δ u_t), B_t = W_B u_t, C_t = W_C u_t"]),
    (Mamba2, "State space with one decay for a head",
     ["h_t = exp(Δ_t A) h_{t-1} + Δ_t u_t B_t^T", "y_t = h_t C_t + D u_t",
      "out = W_O norm(y ⊙ silu(W_G x)), Δ_t = softplus(W_Δ x_t + b)"]),
    (GatedDeltaNet, "Gated delta rule",
     ["S_t = α_t S_{t-1} + β_t k_t (v_t - α_t S_{t-1}^T k_t)^T", "y_t = S_t^T q_t / √K",
      "out = W_O (norm(y) ⊙ silu(W_G x))"]),
    (S4, "State space", ["h_t = exp(Δ A) h_{t-1} + u_t", "y_t = 2 Re(Σ_n c_n h_tn) + D u_t"]),
    (LSTM, "LSTM cell",
     ["i, f, o = sigma(W x_t + U h_{t-1} + b), g = tanh(W x_t + U h_{t-1} + b)", "c_t = f ⊙ c_{t-1} + i ⊙ g",
      "h_t = o ⊙ tanh(c_t)"]),
    (GRU, "GRU cell",
     ["r, z = sigma(W x_t + U h_{t-1} + b), n = tanh(W x_t + b + r ⊙ (U h_{t-1} + d))",
      "h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}"]),
    (GatedUnit, "Gated recurrent unit",
     ["r, z = sigma(W x_t + U h_{t-1}), n = tanh(W x_t + U (r ⊙ h_{t-1}))",
      "h_t = (1 - z) ⊙ h_{t-1} + z ⊙ n"]),
    (RNN, "RNN cell", ["h_t = tanh(W x_t + U h_{t-1} + b)"]),
    (Bidirectional, "Reading both ways", ["h_t = [a_t ; b_t]"]),
    (MoE, "Mixture of experts", router_equations),
    (GatedMLP, "Gated MLP", lambda part: [f"y = W_2 ({activation_name(part)}(W_G x) ⊙ W_1 x)"]),
    (MLP, "MLP", lambda part: [f"y = W_2 {activation_name(part)}(W_1 x)"]),
    (GatedConv, "Gated convolution", ["y = W_O (silu(conv(W_V x)) ⊙ W_G x)"]),
    (Neighbours, "Convolution", lambda part: [f"y_t = {activation_name(part)}(Σ_o W_o x_{{t+o}} + b)"]),
    (Maxout, "Maxout", ["y_k = max(z_{2k-1}, z_{2k}), z = W x + b"]),
    (SoundEmbedding, "Embedding of sound",
     ["y_t = gelu(W_1 [m_{t-1} ; m_t ; m_{t+1}])", "x_t = gelu(W_2 [y_{2t-1} ; y_{2t} ; y_{2t+1}]) + p_t"]),
    (Embedding, "Embedding", embedding_equations),
    (SineTable, "Sinusoidal positions", ["p_t = [sin(t / 10000^{2i/(D-2)}) ; cos(t / 10000^{2i/(D-2)})]"]),
    (Sinusoidal, "Sinusoidal positions", sinusoid_equations),
    (Learned, "Learned positions", lambda part: [
        f"p_t = P[t + {part.offset}]" if part.offset else "p_t = P[t]"]),
    (Rotary, "Rotary positions", ["q_t → R_t q_t, k_s → R_s k_s"]),
    (RoundedALiBi, "Linear biases", ["s_ij → s_ij + m_h j / √K"]),
    (ALiBi, "Linear biases", ["s_ij → s_ij - m_h (i - j)"]),
    (BucketBias, "Biases of distances", ["s_ij → s_ij + b_{j-i}"]),
    (Block, "Block", block_equations),
    (ParallelBlock, "Block", block_equations), (NormedResidualBlock, "Block", block_equations),
    (RMSNorm, "RMSNorm", norm_equations),
    (GroupRMSNorm, "RMSNorm of groups", ["y_g = γ_g x_g / √(mean(x_g²) + ε)"]),
    (nn.LayerNorm, "LayerNorm", norm_equations),
    (MLMHead, "Masked word head", ["p = softmax(E norm(act(W x)) + b)"]),
    (LMHead, "Language model head", word_equations),
    (ClassifyHead, "Classification head", ["p = softmax(W pool(x) + b)"]),
    (SentenceHead, "Classification head", ["p = softmax(W v / ‖v‖ + b), v = pool(x)"]),
    (NextHead, "Next sentence head", ["p = softmax(W pool(x) + b)"]),
    (TagHead, "Token classification head", ["p_t = softmax(W x_t + b)"]),
    (SpanHead, "Answer span head", ["p_start = softmax(X w_1), p_end = softmax(X w_2)"]),
    (DetectHead, "Replaced token detection", ["p_t = sigma(w^T act(W x_t) + b)"]),
    (NoHead, "Last hidden states", []),
)  # fmt: skip


def row_of(module: nn.Module) -> Row | None:
    """Return the row of the table for a part; of a head with several, of that which speaks of words."""
    module = module.words if isinstance(module, PretrainHead) else module
    return next((row for row in TABLE if isinstance(module, row[0])), None)


def title_of(module: nn.Module) -> str:
    """Return the name of a part in the field's words."""
    row = row_of(module)
    return type(module).__name__ if row is None else row[1]


def equations_of(module: nn.Module) -> Equations:
    """Return the equations of a part, a line each; none of a part that the table does not know."""
    row = row_of(module)
    if row is None:
        return []
    return list(row[2]) if isinstance(row[2], list) else row[2](module)
