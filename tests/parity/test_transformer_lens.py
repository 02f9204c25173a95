"""Every value that TransformerLens names is the one we name, for families that it shows rightly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful import Watch
from tests.parity.lens_bridge import load_both

pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")

BLOCK = {
    "blocks.*.input": "blocks.*.hook_resid_pre",
    "blocks.*.attn_norm.input": "blocks.*.ln1.hook_in",
    "blocks.*.attn_norm.scale": "blocks.*.ln1.hook_scale",
    "blocks.*.attn_norm.output": "blocks.*.ln1.hook_out",
    "blocks.*.attn.v": "blocks.*.attn.hook_v",
    "blocks.*.attn.scores": "blocks.*.attn.hook_attn_scores",
    "blocks.*.attn.pattern": "blocks.*.attn.hook_pattern",
    "blocks.*.attn.heads": "blocks.*.attn.hook_z",
    "blocks.*.attn.output": "blocks.*.hook_attn_out",
    "blocks.*.after_attn": "blocks.*.hook_resid_mid",
    "blocks.*.ffn_norm.input": "blocks.*.ln2.hook_in",
    "blocks.*.ffn_norm.scale": "blocks.*.ln2.hook_scale",
    "blocks.*.ffn_norm.output": "blocks.*.ln2.hook_out",
    "blocks.*.ffn.hidden": "blocks.*.mlp.hook_post",
    "blocks.*.ffn.output": "blocks.*.hook_mlp_out",
    "blocks.*.output": "blocks.*.hook_resid_post",
    "embed.token": "hook_embed",
    "blocks.norm.scale": "ln_final.hook_scale",
    "blocks.output": "ln_final.hook_out",
    "head.logits": "hook_unembed",
}
TABLE = {
    "gpt2": BLOCK
    | {
        "embed.position": "hook_pos_embed",
        "blocks.*.attn.q": "blocks.*.attn.hook_q",
        "blocks.*.attn.k": "blocks.*.attn.hook_k",
        "blocks.*.ffn.up": "blocks.*.mlp.hook_pre",
    },
    "llama": BLOCK
    | {
        "blocks.*.attn.q_unrotated": "blocks.*.attn.hook_q",
        "blocks.*.attn.k_unrotated": "blocks.*.attn.hook_k",
        "blocks.*.attn.q": "blocks.*.attn.hook_rot_q",
        "blocks.*.attn.k": "blocks.*.attn.hook_rot_k",
        "blocks.*.ffn.gate": "blocks.*.mlp.hook_pre",
        "blocks.*.ffn.up": "blocks.*.mlp.hook_pre_linear",
    },
}
ALIASES = ("embed.output",)  # the sum, which is their first resid_pre


@pytest.mark.parametrize("id", TABLE)
@torch.no_grad()
def test_every_value_is_that_of_transformer_lens(id: str, tmp_path: Path) -> None:
    loaded, bridge = load_both(id, tmp_path)
    tokens = torch.randint(5, 99, (2, 9), generator=torch.Generator().manual_seed(1))
    _, cache = bridge.run_with_cache(tokens)
    watch = Watch("*")
    loaded(tokens, watch=watch)
    pairs = {
        ours.replace("*", layer): theirs.replace("*", layer)
        for ours, theirs in TABLE[id].items()
        for layer in ("0", "1")
    }
    assert set(watch) - set(pairs) == set(ALIASES)
    for ours, theirs in pairs.items():
        assert gap(ours, watch, cache[theirs]) <= 4e-6, (ours, theirs)


def gap(name: str, watch: Watch, theirs: Tensor) -> float:
    """Return the largest difference; theirs may have heads after tokens."""
    ours = watch[name]
    theirs = theirs.transpose(1, 2) if theirs.shape[1:] != ours.shape[1:] else theirs
    far = (ours - theirs).abs()
    if name.endswith(".scores"):
        far = far.where(watch[name.replace("scores", "pattern")] > 0, 0.0)
    return float(far.max())
