"""What `transformers` computes inside, by raw forward hooks on its modules, under the names that we give it.

A row of the table is our name and where theirs is found: a module and `in` or `out`; `q`, `k`, `v`, `scores`
and `pattern` are what its attention function is given and makes, `scale` is that of a norm, from what it is
given. `*` is the number of a layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Callable[[Tensor, Tensor], Tensor]  # theirs, ours → theirs in our shape
Rows = list[tuple[str, str, str] | tuple[str, str, str, Form]]
Values = dict[tuple[str, str], Tensor]  # (module, what) → value


@contextmanager
def hooked(reference: nn.Module) -> Iterator[Values]:
    """Collect what every module is given and gives back, and what every attention computes."""
    found: Values = {}
    names = {module: name for name, module in reference.named_modules()}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if given is not None:
            found[names[module], "in"] = given
            eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
            if eps is not None:  # a norm
                x = given - given.mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else given
                found[names[module], "scale"] = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        several = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
        gave = [x for x in several if isinstance(x, Tensor)]
        for i, value in enumerate(gave):
            found[names[module], "out" if i == 0 else f"out{i}"] = value

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        out, pattern = eager(module, q, k, v, *args, **kwargs)
        repeated = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scale = kwargs.get("scaling")
        scores = q @ repeated.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        bias = kwargs.get("position_bias")
        values = {"q": q, "k": k, "v": v, "pattern": pattern}
        values["scores"] = scores if bias is None else scores + bias
        found.update({(names[module], what): value for what, value in values.items()})
        return out, pattern

    home = sys.modules[type(reference).__module__]
    eager = getattr(home, "eager_attention_forward", None)
    handles = [m.register_forward_hook(hook, with_kwargs=True) for m in reference.modules()]
    if eager is not None:
        home.eager_attention_forward = attend  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        if eager is not None:
            home.eager_attention_forward = eager  # type: ignore[attr-defined]
        for handle in handles:
            handle.remove()


def expand(rows: Rows, reference: nn.Module) -> Iterator[tuple[str, str, str, Form]]:
    """Yield the rows of the layers that there are."""
    modules = dict(reference.named_modules())
    for ours, module, what, *form in rows:
        layers = [str(i) for i in range(9)] if "*" in ours else [""]
        for layer in layers:
            where = module.replace("*", layer)
            if where in modules:
                yield ours.replace("*", layer), where, what, form[0] if form else same


def same(theirs: Tensor, ours: Tensor) -> Tensor:
    return theirs


def heads(theirs: Tensor, ours: Tensor) -> Tensor:
    """(B, T, H·K) → (B, H, T, K)"""
    return theirs.unflatten(-1, (ours.shape[1], -1)).transpose(1, 2)


def latent(theirs: Tensor, ours: Tensor) -> Tensor:
    """(B, T, R) → (B, 1, T, R)"""
    return theirs[:, None]


def piece(index: int, count: int) -> Form:
    """One of `count` equal pieces of the last axis."""
    return lambda theirs, ours: theirs.chunk(count, -1)[index]


def rows_of_tokens(theirs: Tensor, ours: Tensor) -> Tensor:
    """(B·T, ·) → (B, T, ·)"""
    return theirs.unflatten(0, ours.shape[:2])


def halves(theirs: Tensor, size: int) -> Tensor:
    """The last `size` entries with rotary pairs half a head apart, as ours stand, not side by side."""
    turned = theirs[..., -size:].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat((theirs[..., :-size], turned), -1)


def norm(ours: str, theirs: str) -> Rows:
    return [
        (f"{ours}.input", theirs, "in"),
        (f"{ours}.scale", theirs, "scale"),
        (f"{ours}.output", theirs, "out"),
    ]


def attention(ours: str, theirs: str) -> Rows:
    return [(f"{ours}.{word}", theirs, word) for word in ("q", "k", "v", "scores", "pattern")]


def prefixed(prefix: str, rows: Rows) -> Rows:
    return [(ours, f"{prefix}{theirs}", *rest) for ours, theirs, *rest in rows]  # type: ignore[misc]


GPT2: Rows = [
    *prefixed("transformer.", [
        ("embed.token", "wte", "out"), ("embed.position", "wpe", "out"), ("embed.output", "drop", "out"),
        ("blocks.*.input", "h.*", "in"), ("blocks.*.output", "h.*", "out"),
        ("blocks.*.after_attn", "h.*.ln_2", "in"),
        *norm("blocks.*.attn_norm", "h.*.ln_1"), *norm("blocks.*.ffn_norm", "h.*.ln_2"),
        *attention("blocks.*.attn", "h.*.attn"), ("blocks.*.attn.heads", "h.*.attn.c_proj", "in", heads),
        ("blocks.*.attn.output", "h.*.attn", "out"), ("blocks.*.ffn.up", "h.*.mlp.c_fc", "out"),
        ("blocks.*.ffn.hidden", "h.*.mlp.c_proj", "in"), ("blocks.*.ffn.output", "h.*.mlp", "out"),
        ("blocks.norm.scale", "ln_f", "scale"), ("blocks.output", "ln_f", "out"),
    ]),
    ("head.logits", "lm_head", "out"),
]  # fmt: skip

DECODER: Rows = [
    ("embed.token", "embed_tokens", "out"), ("embed.output", "embed_tokens", "out"),
    ("blocks.*.input", "layers.*", "in"), ("blocks.*.output", "layers.*", "out"),
    *norm("blocks.*.attn_norm", "layers.*.input_layernorm"),
    *norm("blocks.*.ffn_norm", "layers.*.post_attention_layernorm"),
    ("blocks.*.after_attn", "layers.*.post_attention_layernorm", "in"),
    *attention("blocks.*.attn", "layers.*.self_attn"),
    ("blocks.*.attn.heads", "layers.*.self_attn.o_proj", "in", heads),
    ("blocks.*.attn.output", "layers.*.self_attn", "out"),
    ("blocks.*.ffn.gate", "layers.*.mlp.gate_proj", "out"),
    ("blocks.*.ffn.up", "layers.*.mlp.up_proj", "out"),
    ("blocks.*.ffn.hidden", "layers.*.mlp.down_proj", "in"), ("blocks.*.ffn.output", "layers.*.mlp", "out"),
    ("blocks.norm.scale", "norm", "scale"), ("blocks.output", "norm", "out"),
]  # fmt: skip

LLAMA: Rows = [
    *prefixed("model.", [
        *DECODER,
        ("blocks.*.attn.q_unrotated", "layers.*.self_attn.q_proj", "out", heads),
        ("blocks.*.attn.k_unrotated", "layers.*.self_attn.k_proj", "out", heads),
    ]),
    ("head.logits", "lm_head", "out"),
]  # fmt: skip


def turned(form: Form) -> Form:
    """A query or key with a rotary part of 4 entries, which stand otherwise there."""
    return lambda theirs, ours: halves(form(theirs, ours), 4)


def chosen(theirs: Tensor, ours: Tensor) -> Tensor:
    """What belongs to the experts of a token, (B·T, k, ·) → (B, T, k, ·)"""
    return theirs.unflatten(0, ours.shape[:2])


def derive_experts(reference: Any, found: Values) -> None:
    """What each chosen expert makes of a token, by the published equation; the best expert first.

    transformers names the chosen ones in no order, and computes all tokens of an expert at once.
    """
    for name, module in reference.named_modules():
        if not name.endswith(".mlp.experts"):
            continue
        gate, x = name.replace("experts", "gate"), found[name, "in"]  # (N, D)
        weights, experts = found[gate, "out1"], found[gate, "out2"]
        best = (found[gate, "out"].sigmoid() + reference.get_submodule(gate).e_score_correction_bias).gather(
            1, experts
        )
        order = best.argsort(-1, descending=True)
        found[gate, "weights"], chosen = weights.gather(1, order), experts.gather(1, order)
        gates, ups = (torch.einsum("nd,nkfd->nkf", x, m[chosen]) for m in module.gate_up_proj.chunk(2, 1))
        found[gate, "chosen"], found[name, "hidden"] = chosen, module.act_fn(gates) * ups
        found[name, "output"] = torch.einsum("nkf,nkdf->nkd", found[name, "hidden"], module.down_proj[chosen])


def derive_states(reference: Any, found: Values) -> None:
    """Mamba's convolution, step size and states by the equations of the paper, one token after the other."""
    for name, module in reference.named_modules():
        if not name.endswith(".mixer"):
            continue
        value, _ = found[f"{name}.in_proj", "out"].chunk(2, -1)
        u, low = found[f"{name}.x_proj", "in"], found[f"{name}.x_proj", "out"]
        size = module.ssm_state_size
        delta = F.softplus(module.dt_proj(low[..., : -2 * size]))
        conv, width = module.conv1d, module.conv_kernel_size
        found[name, "conv"] = F.conv1d(
            F.pad(value.mT, (width - 1, 0)), conv.weight, conv.bias, groups=value.shape[-1]
        ).mT
        B, C, A = low[..., -2 * size : -size], low[..., -size:], -module.A_log.exp()
        h, states = torch.zeros(len(u), *A.shape), []
        for t in range(u.shape[1]):
            h = (delta[:, t, :, None] * A).exp() * h + (delta[:, t] * u[:, t])[..., None] * B[:, t, None]
            states.append(h)
        found[name, "h"], found[name, "delta"], found[name, "skip"] = (
            torch.stack(states, 1),
            delta,
            module.D * u,
        )
        found[name, "heads"] = torch.einsum("btfn,btn->btf", found[name, "h"], C)


def channels(theirs: Tensor, ours: Tensor) -> Tensor:
    """(B, T, F) → (B, F, T, 1)"""
    return theirs.mT[..., None]


DERIVE = {"deepseek-v3-grouped": derive_experts, "mamba": derive_states}

MOE = "layers.*.mlp"
DEEPSEEK: Rows = [
    *prefixed("model.", [
        *(row for row in DECODER if row[0].rpartition(".")[2] not in ("q", "k")),
        ("blocks.*.attn.q_latent", "layers.*.self_attn.q_a_layernorm", "out"),
        *norm("blocks.*.attn.q_norm", "layers.*.self_attn.q_a_layernorm"),
        ("blocks.*.attn.q_unrotated", "layers.*.self_attn.q_b_proj", "out", turned(heads)),
        ("blocks.*.attn.kv_latent", "layers.*.self_attn.kv_a_layernorm", "out", latent),
        ("blocks.*.attn.kv_norm.input", "layers.*.self_attn.kv_a_layernorm", "in", latent),
        ("blocks.*.attn.kv_norm.scale", "layers.*.self_attn.kv_a_layernorm", "scale", latent),
        ("blocks.*.attn.kv_norm.output", "layers.*.self_attn.kv_a_layernorm", "out", latent),
        ("blocks.*.attn.k_unrotated", "layers.*.self_attn.kv_a_proj_with_mqa", "out",
         lambda theirs, ours: halves(theirs[:, None, :, -4:], 4)),
        ("blocks.*.attn.q", "layers.*.self_attn", "q"), ("blocks.*.attn.k", "layers.*.self_attn", "k"),
        ("blocks.*.ffn.router", f"{MOE}.gate", "out", lambda t, ours: rows_of_tokens(t, ours).sigmoid()),
        ("blocks.*.ffn.shared.gate", f"{MOE}.shared_experts.gate_proj", "out"),
        ("blocks.*.ffn.shared.up", f"{MOE}.shared_experts.up_proj", "out"),
        *((f"blocks.*.ffn.{word}", f"{MOE}.gate", word, chosen) for word in ("chosen", "weights")),
        *((f"blocks.*.ffn.experts.{word}", f"{MOE}.experts", word, chosen) for word in ("hidden", "output")),
        ("blocks.*.ffn.shared.hidden", f"{MOE}.shared_experts.down_proj", "in"),
        ("blocks.*.ffn.shared.output", f"{MOE}.shared_experts", "out"),
    ]),
    ("head.logits", "lm_head", "out"),
]  # fmt: skip

BERT_ROWS: Rows = [
    *prefixed("bert.", [
        ("embed.token", "embeddings.word_embeddings", "out"),
        ("embed.position", "embeddings.position_embeddings", "out"),
        ("embed.types", "embeddings.token_type_embeddings", "out"),
        *norm("embed.norm", "embeddings.LayerNorm"), ("embed.output", "embeddings", "out"),
        *prefixed("encoder.layer.*", [
            ("blocks.*.input", "", "in"), ("blocks.*.output", "", "out"),
            *attention("blocks.*.attn", ".attention.self"),
            ("blocks.*.attn.heads", ".attention.output.dense", "in", heads),
            ("blocks.*.attn.output", ".attention.output.dense", "out"),
            *norm("blocks.*.attn_norm", ".attention.output.LayerNorm"),
            ("blocks.*.after_attn", ".attention", "out"),
            ("blocks.*.ffn.up", ".intermediate.dense", "out"), ("blocks.*.ffn.hidden", ".output.dense", "in"),
            ("blocks.*.ffn.output", ".output.dense", "out"), *norm("blocks.*.ffn_norm", ".output.LayerNorm"),
        ]),
        ("blocks.output", "encoder", "out"),
    ]),
    ("head.features", "cls.predictions.transform", "out"), ("head.logits", "cls.predictions.decoder", "out"),
]  # fmt: skip


def t5_stack(stack: str, parts: dict[str, str]) -> Rows:
    rows: Rows = [
        (f"{stack}.*.input", f"{stack}.block.*", "in"),
        (f"{stack}.*.output", f"{stack}.block.*", "out"),
    ]
    for i, (name, theirs) in enumerate(parts.items()):
        layer = f"{stack}.block.*.layer.{i}"
        rows += norm(f"{stack}.*.{name}_norm", f"{layer}.layer_norm")
        rows += [(f"{stack}.*.{name}.output", f"{layer}.{theirs}", "out")]
        rows += [] if i == len(parts) - 1 else [(f"{stack}.*.after_{name}", layer, "out")]
        if name == "ffn":
            rows += [(f"{stack}.*.ffn.up", f"{layer}.{theirs}.wi", "out")]
            rows += [(f"{stack}.*.ffn.hidden", f"{layer}.{theirs}.wo", "in")]
        else:
            rows += attention(f"{stack}.*.{name}", f"{layer}.{theirs}")
            rows += [(f"{stack}.*.{name}.heads", f"{layer}.{theirs}.o", "in", heads)]
    rows += [(f"{stack}.norm.scale", f"{stack}.final_layer_norm", "scale")]
    embed = "embed" if stack == "encoder" else "target_embed"
    rows += [(f"{embed}.{word}", f"{stack}.embed_tokens", "out") for word in ("token", "output")]
    rows += [(f"{stack}.bias", f"{stack}.block.0.layer.0.SelfAttention", "out1")]
    return [*rows, (f"{stack}.output", f"{stack}.final_layer_norm", "out")]


T5: Rows = [
    *t5_stack("encoder", {"attn": "SelfAttention", "ffn": "DenseReluDense"}),
    *t5_stack("decoder", {"attn": "SelfAttention", "cross": "EncDecAttention", "ffn": "DenseReluDense"}),
    ("head.logits", "lm_head", "out"),
]


def bart_stack(stack: str, embed: str, parts: dict[str, tuple[str, str]]) -> Rows:
    layer = f"model.{stack}.layers.*"
    rows: Rows = [(f"{stack}.*.input", layer, "in"), (f"{stack}.*.output", layer, "out")]
    for name, (theirs, their_norm) in parts.items():
        rows += norm(f"{stack}.*.{name}_norm", f"{layer}.{their_norm}")
        rows += [(f"{stack}.*.after_{name}", f"{layer}.{their_norm}", "out")]
        rows += attention(f"{stack}.*.{name}", f"{layer}.{theirs}")
        rows += [(f"{stack}.*.{name}.heads", f"{layer}.{theirs}.out_proj", "in", heads)]
        rows += [(f"{stack}.*.{name}.output", f"{layer}.{theirs}", "out")]
    rows += norm(f"{stack}.*.ffn_norm", f"{layer}.final_layer_norm")
    rows += [(f"{stack}.*.ffn.up", f"{layer}.fc1", "out"), (f"{stack}.*.ffn.hidden", f"{layer}.fc2", "in")]
    rows += [(f"{stack}.*.ffn.output", f"{layer}.fc2", "out")]
    their_embed = f"model.{stack}.embed"
    rows += [
        (f"{embed}.token", f"{their_embed}_tokens", "out"),
        (f"{embed}.position", f"{their_embed}_positions", "out"),
    ]
    rows += norm(f"{embed}.norm", f"model.{stack}.layernorm_embedding")
    return [*rows, (f"{embed}.output", f"model.{stack}.layernorm_embedding", "out")]


SELF, CROSS = ("self_attn", "self_attn_layer_norm"), ("encoder_attn", "encoder_attn_layer_norm")
BART: Rows = [
    *bart_stack("encoder", "embed", {"attn": SELF}),
    *bart_stack("decoder", "target_embed", {"attn": SELF, "cross": CROSS}),
    ("encoder.output", "model.encoder", "out"), ("decoder.output", "model.decoder", "out"),
    ("head.logits", "", "out"),
]  # fmt: skip

MIXER = "layers.*.mixer"
MAMBA: Rows = [
    *prefixed("backbone.", [
        ("embed.token", "embeddings", "out"), ("blocks.*.input", "layers.*", "in"),
        ("blocks.*.output", "layers.*", "out"), *norm("blocks.*.ssm_norm", "layers.*.norm"),
        ("blocks.*.ssm.value", f"{MIXER}.in_proj", "out", piece(0, 2)),
        ("blocks.*.ssm.gate", f"{MIXER}.in_proj", "out", piece(1, 2)),
        *((f"blocks.*.ssm.{word}", MIXER, word) for word in ("conv", "h", "delta")),
        *((f"blocks.*.ssm.{word}", MIXER, word, channels) for word in ("heads", "skip")),
        ("blocks.*.ssm.v", f"{MIXER}.x_proj", "in", channels), ("embed.output", "embeddings", "out"),
        ("blocks.*.ssm.B", f"{MIXER}.x_proj", "out", lambda theirs, ours: theirs[..., -16:-8]),
        ("blocks.*.ssm.C", f"{MIXER}.x_proj", "out", lambda theirs, ours: theirs[..., -8:]),
        ("blocks.*.ssm.hidden", f"{MIXER}.out_proj", "in"), ("blocks.*.ssm.output", MIXER, "out"),
        ("blocks.norm.scale", "norm_f", "scale"), ("blocks.output", "norm_f", "out"),
    ]),
    ("head.logits", "lm_head", "out"),
]  # fmt: skip

TABLE: dict[str, Rows] = {  # by the id of a case in tests/parity/cases.py
    "gpt2": GPT2, "llama": LLAMA, "bert-mlm": BERT_ROWS, "t5": T5, "bart": BART, "mamba": MAMBA,
    "deepseek-v3-grouped": DEEPSEEK,
}  # fmt: skip
