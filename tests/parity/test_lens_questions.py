"""Direct logit attribution, patching and direct path patching are those that TransformerLens computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.interp.intervene.patching import activation_patching, path_patching
from heedful.interp.observe.logit_attribution import logit_attribution
from heedful.models.base import Model
from tests.parity.lens_bridge import load_both

pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")

CLEAN, CORRUPT = (torch.tensor([[5, 8, n, 31, 44, 7]]) for n in (17, 62))
IDS = ["gpt2", "llama"]


def answers(model: Model) -> tuple[int, int]:
    with torch.no_grad():
        move = (model(CLEAN) - model(CORRUPT))[0, -1]
    return int(move.argmax()), int(move.argmin())


@pytest.mark.parametrize("id", IDS)
@torch.no_grad()
def test_shares_of_a_logit_difference_are_those_of_transformer_lens(id: str, tmp_path: Path) -> None:
    model, bridge = load_both(id, tmp_path)
    bridge.enable_compatibility_mode(
        disable_warnings=True, fold_value_biases=False
    )  # folds norms, as it must
    right, wrong = answers(model)
    _, cache = bridge.run_with_cache(CLEAN)
    ours = logit_attribution(model, CLEAN, right, wrong)
    stack, labels = cache.decompose_resid(mode="all", return_labels=True)
    theirs = cache.logit_attrs(stack, right, wrong)[:, 0, -1]
    found = dict(zip(labels, theirs.tolist(), strict=True))
    pairs = {"embed": "embed.token"} | ({"pos_embed": "embed.position"} if id == "gpt2" else {})
    for i in (0, 1):
        pairs |= {f"{i}_attn_out": f"blocks.{i}.attn", f"{i}_mlp_out": f"blocks.{i}.ffn"}
    assert pairs.keys() <= found.keys()
    for name, part in pairs.items():
        assert found[name] == pytest.approx(ours[part], abs=2e-5), (name, part)
    heads = cache.logit_attrs(cache.stack_head_results(), right, wrong)[:, 0, -1]
    assert torch.cat(list(ours.heads.values())).tolist() == pytest.approx(heads.tolist(), abs=2e-5)


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("blocks.*.input", "get_act_patch_resid_pre"),
        ("attention", "get_act_patch_attn_out"),
        ("mlp", "get_act_patch_mlp_out"),
        ("heads", "get_act_patch_attn_head_out_all_pos"),
    ],
)
@torch.no_grad()
def test_patches_restore_what_they_do_in_transformer_lens(
    id: str, what: str, function: str, tmp_path: Path
) -> None:
    from transformer_lens import patching

    model, bridge = load_both(id, tmp_path)
    right, wrong = answers(model)
    ours = activation_patching(model, CLEAN, CORRUPT, right, wrong, what)
    _, cache = bridge.run_with_cache(CLEAN)
    theirs = getattr(patching, function)(bridge, CORRUPT, cache, metric(ours, right, wrong))
    assert ours.values.flatten().tolist() == pytest.approx(theirs.flatten().tolist(), abs=2e-5)


@pytest.mark.parametrize("projection", ["q", "k", "v"])
@torch.no_grad()
def test_direct_paths_are_those_of_transformer_lens(projection: str, tmp_path: Path) -> None:
    from transformer_lens import patching

    model, bridge = load_both("gpt2", tmp_path)
    right, wrong = answers(model)
    ours = path_patching(model, CLEAN, CORRUPT, right, wrong, "heads", projection)
    caches = [bridge.run_with_cache(tokens)[1] for tokens in (CLEAN, CORRUPT)]
    theirs = patching.get_act_patch_direct_path_all_sources(
        bridge, CORRUPT, *caches, metric(ours, right, wrong), projection, verbose=False
    )
    layers, heads = theirs.shape[:2]
    matrix = theirs.reshape(layers * heads, layers * heads)
    known = ours.values.isfinite()
    assert known.sum() == heads**2 * layers * (layers - 1) / 2
    assert ours.values[known].tolist() == pytest.approx(matrix[known].tolist(), abs=2e-5)


def metric(found: Any, right: int, wrong: int) -> Any:
    """Return what measures logits as we do."""

    def restored(logits: Tensor) -> Tensor:
        d = logits[0, -1, right] - logits[0, -1, wrong]
        return (d - found.corrupt) / (found.clean - found.corrupt)

    return restored
