"""Dictionaries go to the folders of SAELens and come back, and their features are what its equations give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import heedful
from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.interp.learn.dictionary import Dictionary, DictionaryConfig, fit_dictionary, load_dictionary
from heedful.interp.learn.saelens import hook_name, load_saelens, save_saelens, value_name

D, M, E = 12, 40, 7
SITES = "blocks.1.output", "blocks.1.ffn.output"
ARCHITECTURES = (
    "standard", "topk", "jumprelu", "gated", "transcoder", "skip_transcoder", "jumprelu_transcoder",
    "jumprelu_skip_transcoder",
)  # fmt: skip


def values(count: int = 50) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(1)) * 3 + 0.5


def weights(architecture: str) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(2)
    normal = lambda *shape: torch.randn(*shape, generator=draw)
    out = E if "transcoder" in architecture else D
    tensors = {"W_enc": normal(D, M), "W_dec": normal(M, out), "b_dec": normal(out)}
    if architecture == "gated":
        tensors |= {"b_gate": normal(M), "b_mag": normal(M), "r_mag": normal(M) / 3}
    else:
        tensors["b_enc"] = normal(M)
    if "jumprelu" in architecture:
        tensors["threshold"] = normal(M).abs()
    if "skip" in architecture:
        tensors["W_skip"] = normal(out, D)
    return tensors


def equations(cfg: dict[str, Any], t: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """What SAELens computes: features and output."""
    shift, size = torch.zeros(len(x), 1), torch.ones(len(x), 1)
    inside, outside = size, size
    if cfg["normalize_activations"] == "layer_norm":
        shift, outside = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        inside = outside + 1e-5
    if cfg["normalize_activations"] == "constant_norm_rescale":
        inside = outside = x.norm(dim=-1, keepdim=True) / math.sqrt(D)
    z = (x - shift) / inside - (t["b_dec"] if cfg["apply_b_dec_to_input"] else 0)
    if cfg["architecture"] == "gated":
        f = (z @ t["W_enc"] + t["b_gate"] > 0) * (z @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]).relu()
    else:
        pre = z @ t["W_enc"] + t["b_enc"]
        f = pre.relu()
        if cfg.get("rescale_acts_by_decoder_norm"):
            f = f * t["W_dec"].norm(dim=-1)
        if "threshold" in t:
            f = f * (pre > t["threshold"])
        if cfg["architecture"] == "topk":
            f = f * (f >= f.topk(cfg["k"], -1).values[:, -1:])
    lengths = t["W_dec"].norm(dim=-1) if cfg.get("rescale_acts_by_decoder_norm") else torch.ones(M)
    y = (f / lengths) @ t["W_dec"] + t["b_dec"]
    if "transcoder" not in cfg["architecture"]:
        y = y * outside + shift
    return f, y + x @ t["W_skip"].T if "W_skip" in t else y


@pytest.mark.parametrize("normalize", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_is_read_as_its_equations_say(architecture: str, normalize: str, tmp_path: Path) -> None:
    transcoder = "transcoder" in architecture
    if transcoder and normalize != "none":
        pytest.skip("transcoders are not normalized")
    cfg = {
        "architecture": architecture, "d_in": D, "d_sae": M, "apply_b_dec_to_input": not transcoder, "k": 6,
        "normalize_activations": normalize, "rescale_acts_by_decoder_norm": architecture == "topk",
        "metadata": {
            "sae_lens_version": "6.0.0", "hook_name": "blocks.1.hook_resid_post",
            "hook_name_out": "blocks.1.hook_mlp_out",
        },
    }  # fmt: skip
    tensors = weights(architecture)
    save_file(tensors, tmp_path / "sae_weights.safetensors")
    (tmp_path / "cfg.json").write_text(json.dumps(cfg))
    dictionary = load_dictionary(tmp_path)
    assert (dictionary.config.source, dictionary.config.target) == (SITES[0], SITES[transcoder])
    f, y = equations(cfg, tensors, values())
    torch.testing.assert_close(dictionary.encode(values()), f, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dictionary(values()), y, atol=1e-4, rtol=1e-4)


def folder_of(architecture: str, path: Path, **metadata: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write a folder as SAELens does, and return its settings and weights."""
    cfg = {
        "architecture": architecture, "d_in": D, "d_sae": M, "k": 6, "normalize_activations": "none",
        "apply_b_dec_to_input": "transcoder" not in architecture,
        "rescale_acts_by_decoder_norm": architecture == "topk", "metadata": metadata,
    }  # fmt: skip
    tensors = weights(architecture)
    save_file(tensors, path / "sae_weights.safetensors")
    (path / "cfg.json").write_text(json.dumps(cfg))
    return cfg, tensors


def test_a_folder_of_the_first_versions_is_read(tmp_path: Path) -> None:
    cfg, tensors = folder_of("standard", tmp_path)
    early = {
        "hook_point": "blocks.1.hook_resid_pre", "d_in": D, "d_sae": M, "activation_fn_str": "topk",
        "activation_fn_kwargs": {"k": 6}, "normalize_activations": False,
    }  # fmt: skip
    (tmp_path / "cfg.json").write_text(json.dumps(early))
    dictionary = load_dictionary(tmp_path)
    assert dictionary.config.source == "blocks.1.input"
    f, _ = equations(cfg | {"architecture": "topk"}, tensors, values())
    torch.testing.assert_close(dictionary.encode(values()), f, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["standard", "topk", "gated", "jumprelu_transcoder"])
def test_a_dictionary_of_centred_vectors_reads_vectors_that_are_not_centred(
    architecture: str, tmp_path: Path
) -> None:
    kwargs = {"center_writing_weights": True}
    cfg, tensors = folder_of(
        architecture, tmp_path, hook_name="blocks.1.hook_resid_pre", model_from_pretrained_kwargs=kwargs
    )
    f, _ = equations(cfg, tensors, values() - values().mean(-1, keepdim=True))
    torch.testing.assert_close(load_dictionary(tmp_path).encode(values()), f, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["standard", "gated", "skip_transcoder"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_dictionary_before_the_weights_of_a_norm_reads_what_is_behind_them(
    family: str, architecture: str, tmp_path: Path
) -> None:
    model = heedful.build(family, vocab=9, dim=D, layers=2, heads=2, hidden=8, context=8)
    for parameter in model.get_submodule("blocks.1.ffn_norm").parameters():
        nn.init.normal_(parameter)
    cfg, tensors = folder_of(
        architecture, tmp_path, hook_name="blocks.1.ln2.hook_normalized", hook_name_out=SITES[1]
    )
    with pytest.raises(InputError, match="model=model"):
        load_dictionary(tmp_path)
    dictionary = load_dictionary(tmp_path, model=model)
    assert dictionary.config.source == "blocks.1.ffn_norm.output"
    watch = heedful.Watch("blocks.1.ffn_norm.*")
    model(torch.tensor([[3, 1, 4, 1, 5]]), watch=watch)
    x, scale, written = (watch[f"blocks.1.ffn_norm.{end}"][0] for end in ("input", "scale", "output"))
    normalized = (x - x.mean(-1, keepdim=True) if family == "gpt2" else x) / scale
    f, y = equations(cfg, tensors, normalized)
    torch.testing.assert_close(dictionary.encode(written), f, atol=1e-3, rtol=1e-3)
    if architecture != "skip_transcoder":  # what it reads, it writes, behind the weights
        y = y * model.get_submodule("blocks.1.ffn_norm").weight
        y = y + (model.get_submodule("blocks.1.ffn_norm").bias if family == "gpt2" else 0)
    torch.testing.assert_close(dictionary(written), y, atol=1e-3, rtol=1e-3)


def test_the_input_of_an_mlp_is_before_its_norm_unless_gemma_scope_says_otherwise(tmp_path: Path) -> None:
    folder_of("transcoder", tmp_path, hook_name="blocks.1.hook_mlp_in", hook_name_out="blocks.1.hook_mlp_out")
    assert load_dictionary(tmp_path).config.source == "blocks.1.after_attn"
    folder_of(
        "transcoder", tmp_path, hook_name="blocks.1.hook_mlp_in", hook_name_out="blocks.1.hook_mlp_out",
        hf_hook_name="model.layers.1.pre_feedforward_layernorm.output",
    )  # fmt: skip
    assert load_dictionary(tmp_path).config.source == "blocks.1.ffn_norm.output"


def trained(kind: str, target: str = SITES[0], skip: bool = False) -> Dictionary:
    """A dictionary with a mean, scales and every kind of parameter away from zero."""
    out = D if target == SITES[0] else E
    config = DictionaryConfig(SITES[0], target, M, D, out, kind, 5, skip=skip)  # type: ignore[arg-type]
    dictionary, draw = Dictionary(config), torch.Generator().manual_seed(3)
    state = {n: torch.randn(t.shape, generator=draw) for n, t in dictionary.state_dict().items()}
    for name in ("scale", "target_scale", "threshold", "outlier"):
        if name in state:
            state[name] = state[name].abs() + 0.5
    dictionary.load_state_dict(state)
    return dictionary


OURS = [
    ("topk", SITES[0], False), ("l1", SITES[0], False), ("jumprelu", SITES[0], False),
    ("gated", SITES[0], False), ("batchtopk", SITES[0], False), ("l1", SITES[1], False),
    ("l1", SITES[1], True), ("jumprelu", SITES[1], False), ("batchtopk", SITES[1], True),
]  # fmt: skip


@pytest.mark.parametrize("setting", OURS)
def test_a_dictionary_of_ours_is_the_same_after_it_was_a_folder(
    setting: tuple[str, str, bool], tmp_path: Path
) -> None:
    dictionary = trained(*setting)
    again = load_dictionary(save_saelens(dictionary, tmp_path / "sae"))
    assert (again.config.source, again.config.target) == (dictionary.config.source, dictionary.config.target)
    torch.testing.assert_close(again.encode(values()), dictionary.encode(values()), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(again(values()), dictionary(values()), atol=1e-4, rtol=1e-4)


def test_names_of_hooks_and_values_match() -> None:
    assert hook_name("blocks.3.attn.heads") == "blocks.3.attn.hook_z"
    assert value_name("blocks.11.hook_resid_pre") == "blocks.11.input"
    assert value_name(hook_name("embed.output")) == "embed.output"


def test_folders_that_cannot_be_read_or_written_say_why(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_saelens(tmp_path)
    crosscoder = fit_dictionary(
        values(), values(), "blocks.0.output + blocks.1.output", "blocks.0.output + blocks.1.output", width=8,
        k=2, steps=1,
    )  # fmt: skip
    for dictionary in (crosscoder, trained("topk", SITES[1])):
        with pytest.raises(InputError, match="SAELens has no"):
            save_saelens(dictionary, tmp_path / "none")
    folder = save_saelens(trained("l1"), tmp_path / "sae")
    cfg = json.loads((folder / "cfg.json").read_text())
    (folder / "cfg.json").write_text(json.dumps(cfg | {"architecture": "temporal"}))
    with pytest.raises(InputError, match="temporal"):
        load_dictionary(folder)
    (folder / "cfg.json").write_text("{")
    with pytest.raises(CorruptFile):
        load_dictionary(folder)


# With the library itself, where it is installed (`pip install sae-lens`).


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_saelens_writes_gives_the_same_features_here(architecture: str, tmp_path: Path) -> None:
    saelens = pytest.importorskip("sae_lens")
    transcoder = "transcoder" in architecture
    sae_class, config_class = saelens.registry.get_sae_class(architecture)
    more = {"d_out": E, "apply_b_dec_to_input": False} if transcoder else {}
    more |= {"k": 6} if architecture == "topk" else {}
    config = config_class(d_in=D, d_sae=M, **more)
    config.metadata.hook_name, config.metadata.hook_name_out = (
        "blocks.1.hook_resid_post",
        "blocks.1.hook_mlp_out",
    )
    sae = sae_class(config)
    sae.load_state_dict(weights(architecture))
    sae.save_model(tmp_path)
    dictionary = load_dictionary(tmp_path)
    torch.testing.assert_close(dictionary.encode(values()), sae.encode(values()), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dictionary(values()), sae(values()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["batchtopk", "matryoshka_batchtopk"])
def test_what_saelens_writes_after_training_by_batches_gives_the_same_features(
    architecture: str, tmp_path: Path
) -> None:
    saelens = pytest.importorskip("sae_lens")
    sae_class, config_class = saelens.registry.get_sae_training_class(architecture)
    more = {"matryoshka_widths": [10, M]} if "matryoshka" in architecture else {}
    sae = sae_class(config_class(d_in=D, d_sae=M, k=6, **more))
    with torch.no_grad():
        for name, tensor in weights("standard").items():
            getattr(sae, name).copy_(tensor)
        sae.topk_threshold.fill_(0.7)
    sae.save_inference_model(tmp_path)
    dictionary, other = load_dictionary(tmp_path), saelens.SAE.load_from_disk(tmp_path)
    torch.testing.assert_close(dictionary.encode(values()), other.encode(values()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("setting", OURS)
def test_saelens_opens_what_is_written_here(setting: tuple[str, str, bool], tmp_path: Path) -> None:
    saelens = pytest.importorskip("sae_lens")
    dictionary = trained(*setting)
    sae = saelens.SAE.load_from_disk(save_saelens(dictionary, tmp_path))
    torch.testing.assert_close(sae.encode(values()), dictionary.encode(values()), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sae(values()), dictionary(values()), atol=1e-4, rtol=1e-4)
