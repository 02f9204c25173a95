"""Dictionaries in the folders of SAELens: `cfg.json` and `sae_weights.safetensors`.

    f = act((x − b_dec) W_enc + b_enc),   y = f W_dec + b_dec

SAELens is the library in which most published dictionaries are shared. Its folders hold one of these
architectures: standard, topk, jumprelu, gated, transcoder, skip_transcoder, jumprelu_transcoder and
jumprelu_skip_transcoder. Batch-top-k and matryoshka dictionaries are stored as jumprelu, with one threshold.
Features here and there are equal: means and scales of a `Dictionary` are folded into the weights. The layout
was read off SAELens 6.54.

Two things depend on how TransformerLens ran the model. With `center_writing_weights`, each vector of the
stream had mean zero, so the mean is taken out of the encoder here. `ln2.hook_normalized` is a norm's output
before its weight and bias, which no value here is, so the weight and bias of `model` are folded in.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.errors import CorruptFile, InputError
from heedful.core.files import missing_file, write_text
from heedful.interp.learn.dictionary import Dictionary, DictionaryConfig
from heedful.models.base import Model
from heedful.nn.norm import RMSNorm, gain_and_shift

# What a layer's values are called here and by the hooks of TransformerLens.
HOOKS = {
    "input": "hook_resid_pre", "after_attn": "hook_resid_mid", "output": "hook_resid_post",
    "attn.output": "hook_attn_out", "ffn.output": "hook_mlp_out", "attn.heads": "attn.hook_z",
    "attn_norm.output": "attn.hook_in", "ffn_norm.output": "mlp.hook_in", "ffn.hidden": "mlp.hook_post",
}  # fmt: skip
NORMALIZED = {"ln1.hook_normalized": "attn_norm.output", "ln2.hook_normalized": "ffn_norm.output"}
CENTRED = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
KINDS = {"l1": "standard", "topk": "topk", "jumprelu": "jumprelu", "batchtopk": "jumprelu", "gated": "gated"}
TRANSCODERS = {"l1": "", "jumprelu": "jumprelu_", "batchtopk": "jumprelu_"}
WEIGHTS = "sae_weights.safetensors"


def hook_name(name: str) -> str:
    """Return what TransformerLens calls a value: blocks.3.output → blocks.3.hook_resid_post."""
    layer = re.fullmatch(r"(blocks\.\d+)\.(.+)", name)
    return f"{layer[1]}.{HOOKS[layer[2]]}" if layer and layer[2] in HOOKS else name


def value_name(hook: str) -> str:
    """Return what a hook of TransformerLens is called here: blocks.3.hook_resid_post → blocks.3.output."""
    layer = re.fullmatch(r"(blocks\.\d+)\.(.+)", hook)
    ours = {there: here for here, there in HOOKS.items()} | {"hook_mlp_in": "after_attn"} | NORMALIZED
    return f"{layer[1]}.{ours[layer[2]]}" if layer and layer[2] in ours else hook


def save_saelens(dictionary: Dictionary, folder: str | Path, *, model_name: str = "") -> Path:
    """Write a dictionary as a folder that `SAE.load_from_disk` of SAELens opens, and return the folder.

    The length from which on vectors are left as they are has no place there and is left out.
    """
    from safetensors.torch import save_file

    folder, config, d = Path(folder), dictionary.config, dictionary
    same = config.source == config.target
    kind = KINDS[config.kind] if same else TRANSCODERS.get(config.kind)
    if len(config.targets) > 1 or kind is None or (same and config.skip):
        what = "crosscoder" if len(config.targets) > 1 else f"{config.kind} transcoder"
        raise InputError(f"SAELens has no {what}", hint="save it with dictionary.save(FILE)")
    scaled = d.encoder.weight / d.scale  # (M, D)
    shift = scaled @ d.mean
    tensors = {
        "W_enc": scaled.T, "W_dec": d.decoder * d.target_scale,
        "b_dec": d.bias * d.target_scale + d.target_mean,
    }  # fmt: skip
    if config.kind == "gated":
        gain = {"r_mag": d.log_gain, "b_mag": d.gain_bias - d.log_gain.exp() * shift}
        tensors |= gain | {"b_gate": d.encoder.bias - shift}
    else:
        tensors["b_enc"] = d.encoder.bias - shift
    if "jumprelu" in kind:
        tensors["threshold"] = d.threshold
    cfg: dict[str, Any] = {
        "d_in": config.inputs, "d_sae": config.width, "dtype": "float32", "device": "cpu",
        "apply_b_dec_to_input": False, "normalize_activations": config.normalize,
        "reshape_activations": "hook_z" if config.source.endswith("attn.heads") else "none",
        "architecture": kind,
        "metadata": {
            "sae_lens_version": "6.54.12", "model_name": model_name, "hook_name": hook_name(config.source),
            "heedful_source": config.source,
        },
    }  # fmt: skip
    if config.kind == "topk":
        cfg |= {"k": config.k, "rescale_acts_by_decoder_norm": False}
    if not same:
        cfg |= {"architecture": f"{kind}{'skip_' if config.skip else ''}transcoder", "d_out": config.outputs}
        cfg["metadata"] |= {"hook_name_out": hook_name(config.target), "heedful_target": config.target}
    if config.skip:
        tensors["W_skip"] = d.skip
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().float().cpu().contiguous() for name, t in tensors.items()}, folder / WEIGHTS)
    write_text(folder / "cfg.json", json.dumps(cfg, indent=1))
    return folder


def load_saelens(
    folder: str | Path, source: str | None = None, target: str | None = None, *,
    device: str | torch.device = "cpu", model: Model | None = None,
) -> Dictionary:  # fmt: skip
    """Read a folder that SAELens wrote.

    `source` and `target` name the values in this library. By default they follow from the hooks in cfg.json.
    Only a dictionary of `hook_normalized` needs the `model` that it was trained on. Folders of versions
    before 6, whose fields have other places, are read too.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    for name in ("cfg.json", WEIGHTS):
        if not (folder / name).is_file():
            raise missing_file(folder / name)
    try:
        cfg: dict[str, Any] = json.loads((folder / "cfg.json").read_text(encoding="utf-8"))
        tensors = {name: t.float() for name, t in load_file(folder / WEIGHTS).items()}
        dictionary = _from_saelens(cfg, tensors, source, target, model)
    except InputError:
        raise
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptFile(f"{folder} is not a folder of SAELens: {reason}", hint="copy it again") from None
    return dictionary.to(device)


def _from_saelens(
    cfg: dict[str, Any], tensors: dict[str, Tensor], source: str | None, target: str | None,
    model: Model | None,
) -> Dictionary:  # fmt: skip
    kind, metadata = cfg.get("architecture", "standard"), cfg.get("metadata") or cfg
    limit, arguments = cfg.get("k", 100), cfg.get("activation_fn_kwargs") or {}
    if (cfg.get("activation_fn") or cfg.get("activation_fn_str")) == "topk":  # before version 6
        kind, limit = "topk", arguments["k"]
    base = kind.removesuffix("transcoder").removesuffix("skip_").removesuffix("_") or "standard"
    ours = {"standard": "l1", "topk": "topk", "jumprelu": "jumprelu", "gated": "gated"}
    ours |= {"batchtopk": "batchtopk", "matryoshka_batchtopk": "batchtopk"}
    if base not in ours:
        raise InputError(
            f"the architecture {kind!r} of SAELens is not known here", hint=f"known are {', '.join(ours)}"
        )
    w_enc, w_dec, b_dec = (tensors[name] for name in ("W_enc", "W_dec", "b_dec"))
    hook = (
        metadata.get("hook_name") or metadata.get("hook_point") or "value"
    )  # the latter in the first versions
    # blocks.3.hook_resid_post → hook_resid_post; what was written here needs none of its corrections.
    site = "" if "heedful_source" in metadata else hook.partition(".")[2].partition(".")[2]
    if site == "hook_mlp_in" and str(metadata.get("hf_hook_name")).endswith("layernorm.output"):
        # Gemma Scope 2 is filed under the hook before the norm, and its Hugging Face name is right.
        hook = hook.replace("hook_mlp_in", "mlp.hook_in")
    source = source or metadata.get("heedful_source") or value_name(hook)
    there = metadata.get("heedful_target") or value_name(metadata.get("hook_name_out") or "") or source
    target = target or there if "transcoder" in kind else source
    normalize = cfg.get("normalize_activations")
    config = DictionaryConfig(
        source, target, w_enc.shape[1], w_enc.shape[0], w_dec.shape[1], ours[base], limit,  # type: ignore[arg-type]
        normalize=normalize if normalize in ("layer_norm", "constant_norm_rescale") else "none",
        skip="W_skip" in tensors,
    )  # fmt: skip
    dictionary = Dictionary(config).requires_grad_(False)
    apply = "transcoder" not in kind and cfg.get("apply_b_dec_to_input", True)
    centred = (metadata.get("model_from_pretrained_kwargs") or {}).get("center_writing_weights")
    centred = bool(centred) and site in CENTRED
    if config.normalize != "none" and (centred or site in NORMALIZED):
        raise InputError(
            f'{hook} with "normalize_activations": {config.normalize!r} cannot be read here',
            hint="choose a dictionary that does not normalize its activations",
        )
    # Some choose features by their size in the output: then each row of the decoder gets length 1.
    lengths = w_dec.norm(dim=1) if cfg.get("rescale_acts_by_decoder_norm") else torch.ones(len(w_dec))
    if cfg.get("finetuning_scaling_factor"):
        w_dec = w_dec * tensors["scaling_factor"][:, None]
    bias = tensors["b_gate"] if base == "gated" else tensors["b_enc"]
    state = dictionary.state_dict() | {
        "encoder.weight": w_enc.T * lengths[:, None], "encoder.bias": bias * lengths,
        "decoder": w_dec / lengths[:, None], "bias": b_dec,
    }  # fmt: skip
    if apply and not centred:
        state["mean"] = b_dec
    if base == "gated":
        state |= {"log_gain": tensors["r_mag"], "gain_bias": tensors["b_mag"]}
    if centred:  # f = act((x − mean x − b_dec) W + b), as one matrix and one bias
        shift = b_dec @ state["encoder.weight"].T if apply else b_dec.new_zeros(())
        state["encoder.bias"] = state["encoder.bias"] - shift
        if base == "gated":
            state["gain_bias"] = state["gain_bias"] - tensors["r_mag"].exp() * shift
        state["encoder.weight"] = state["encoder.weight"] - state["encoder.weight"].mean(1, keepdim=True)
    if base == "jumprelu":
        state["threshold"] = tensors["threshold"]
    if ours[base] == "batchtopk":  # a checkpoint of its training
        state["threshold"] = tensors["topk_threshold"].expand(config.width)
    if config.skip:
        state["skip"] = tensors["W_skip"]
    if site in NORMALIZED:
        gain, offset = _norm_weights(model, source, hook)
        state |= {"mean": offset + gain * state["mean"], "scale": gain}
        if source == target:
            state |= {"target_mean": offset, "target_scale": gain}
        if config.skip:
            state["skip"] = state["skip"] / gain
            state["bias"] = state["bias"] - state["skip"] @ offset
    dictionary.load_state_dict(state)
    return dictionary


def _norm_weights(model: Model | None, name: str, hook: str) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias (D,) of the norm whose output is called `name`."""
    if model is None:
        raise InputError(
            f"{hook} is a norm's output before its weight and bias, which no value here is",
            hint="in Python, give the model whose norm it is: `load_dictionary(FOLDER, model=model)`. The "
            "file that its `save(FILE)` writes needs no model",
        )
    norm = model.get_submodule(name.removesuffix(".output"))
    if not isinstance(norm, nn.LayerNorm | RMSNorm):
        raise InputError(f"{name} comes from a {type(norm).__name__}, and {hook} from a LayerNorm or RMSNorm")
    width = int(model.names()[name][-1])
    gain, offset = (torch.as_tensor(one).detach().float().cpu().expand(width) for one in gain_and_shift(norm))
    if not bool(gain.all()):
        raise InputError(f"the weight of {name} has zeros, so its input does not follow from its output")
    return gain, offset
