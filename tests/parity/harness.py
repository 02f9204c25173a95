"""Side by side with `transformers`: a tiny random model saved by one, loaded by the other, both ways."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import heedful
from heedful.models.base import LM, Model

LENGTH = 11


@dataclass(frozen=True)
class Case:
    """One published architecture at one tiny size."""

    id: str
    architecture: str  # class in transformers, e.g. "BertForMaskedLM"
    config: str  # e.g. "BertConfig"
    values: dict[str, Any]
    output: str = "logits"  # which field of their output is ours
    patterns: dict[str, str] = field(
        default_factory=dict
    )  # our watched name with * for the layer → their field
    types: bool = False  # also feed token types
    prepare: Callable[[Any], None] | None = (
        None  # change their model before it is saved (buffers that start at zero)
    )
    dropped: tuple[str, ...] = ()  # published buffers that ours leaves out, listed
    tolerance: float = 1e-4

    def __str__(self) -> str:
        return self.id


ATTENTIONS = {"blocks.*.attn.pattern": "attentions"}
SEQ2SEQ = {
    "encoder.*.attn.pattern": "encoder_attentions",
    "decoder.*.attn.pattern": "decoder_attentions",
    "decoder.*.cross.pattern": "cross_attentions",
}


def make(case: Case, folder: Path) -> Any:
    """Their model, random, saved in `folder`; every parameter is moved off its initial 0 or 1."""
    import transformers

    transformers.logging.set_verbosity_error()
    module = importlib.import_module("transformers")
    config = getattr(module, case.config)(**case.values)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(module, case.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    if case.prepare is not None:
        case.prepare(model)
    model.save_pretrained(folder)
    return model


def inputs(model: Model, case: Case, batch: int = 2) -> tuple[Tensor, Tensor | None]:
    torch.manual_seed(1)
    tokens = torch.randint(5, model.config.vocab, (batch, LENGTH))
    return tokens, torch.randint(0, 2, tokens.shape) if case.types else None


@torch.no_grad()
def run_theirs(reference: Any, tokens: Tensor, types: Tensor | None, target: Tensor | None = None) -> Any:
    given: dict[str, Any] = {} if types is None else {"token_type_ids": types}
    if target is not None:
        given["decoder_input_ids"] = target
    accepted = inspect.signature(reference.forward).parameters
    if "use_cache" in accepted:
        given["use_cache"] = False
    if not case_has_no_attention(reference):
        given["output_attentions"] = True
    answer = reference(input_ids=tokens, **given)
    if "start_logits" in answer:
        answer["span"] = torch.stack((answer["start_logits"], answer["end_logits"]), -1)
    return answer


def case_has_no_attention(reference: Any) -> bool:
    return reference.config.model_type == "mamba"


@torch.no_grad()
def run_ours(
    model: Model, tokens: Tensor, types: Tensor | None, target: Tensor | None = None, **more: Any
) -> Tensor:
    if target is not None:
        return model(tokens, target, **more)
    if types is not None:
        more["types"] = types
    if model.config.head == "none":
        return model.encode(tokens, **more)
    return model(tokens, **more)


def target_for(model: Model) -> Tensor | None:
    if isinstance(model, LM) or model.config.head == "none":
        return None
    torch.manual_seed(2)
    return torch.randint(5, model.config.vocab, (2, 7))


def check_logits_and_patterns(case: Case, folder: Path) -> None:
    """Our logits and patterns equal theirs."""
    reference, model = make(case, folder), heedful.load(folder)
    tokens, types = inputs(model, case)
    target = target_for(model)
    expected = run_theirs(reference, tokens, types, target)
    got = run_ours(model, tokens, types, target)
    assert got.shape == expected[case.output].shape
    assert (got - expected[case.output]).abs().max() <= case.tolerance
    for name, key in case.patterns.items():
        watch = heedful.Watch(name)
        run_ours(model, tokens, types, target, watch=watch)
        for layer, attention in enumerate(expected[key]):
            assert (watch[name.replace("*", str(layer))] - attention).abs().max() <= 1e-5, f"{name} {layer}"


def check_padding(case: Case, folder: Path) -> None:
    """Padded on either side, valid positions equal their unpadded answer."""
    reference, model = make(case, folder), heedful.load(folder)
    tokens, types = inputs(model, case, batch=1)
    target = target_for(model)
    target = None if target is None else target[:1]
    expected = run_theirs(reference, tokens, types, target)[case.output]
    for left in (True, False):
        pad = torch.full((1, 3), 3)
        row = torch.cat((pad, tokens) if left else (tokens, pad), 1)
        valid = torch.cat((pad == 0, tokens >= 0) if left else (tokens >= 0, pad == 0), 1)
        both = torch.cat((row, torch.full_like(row, 4)))  # beside a longer neighbour
        valids = torch.cat((valid, torch.ones_like(valid)))
        more: dict[str, Any] = {"valid": valids}
        kinds = None
        if types is not None:
            kinds = torch.cat((torch.zeros_like(pad), types) if left else (types, torch.zeros_like(pad)), 1)
            kinds = torch.cat((kinds, torch.zeros_like(kinds)))
        two = None if target is None else target.repeat(2, 1)
        got = run_ours(model, both, kinds, two, **more)[:1]
        if target is None and got.dim() > 1 and got.shape[1] == row.shape[1]:
            got = got[:, 3:] if left else got[:, :LENGTH]
        far = (got - expected).abs().max() / max(1.0, expected.abs().max())
        assert far <= 1e-5, f"{'left' if left else 'right'} {far:.1e}"


def check_there_and_back(case: Case, folder: Path) -> None:
    """Load then save gives back every tensor; theirs opens what ours wrote, no key missing or unexpected."""
    reference, model = make(case, folder), heedful.load(folder)
    saved = folder / "saved"
    heedful.save(model, saved)
    before, after = read(folder), read(saved)
    assert set(before) - set(after) <= set(case.dropped)
    assert not set(after) - set(before)
    for name, tensor in after.items():
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == [case.architecture]
    again, info = type(reference).from_pretrained(
        saved, output_loading_info=True, attn_implementation="eager"
    )
    assert not {k: v for k, v in info.items() if v and k != "error_msgs"}, info
    tokens, types = inputs(model, case)
    target = target_for(model)
    expected = run_theirs(reference, tokens, types, target)[case.output]
    assert (run_theirs(again.eval(), tokens, types, target)[case.output] - expected).abs().max() <= 1e-6


def check_fresh_opens_there(case: Case, folder: Path) -> None:
    """A model built here from the same config, saved, opens in theirs with the same logits."""
    make(case, folder)
    loaded = heedful.load(folder)
    from heedful.loading import assemble
    from heedful.nn.init import initialise

    model = assemble(loaded.family, loaded.config)
    initialise(model)
    model.eval()
    model.hf_config = {"pad_token_id": loaded.hf_config.get("pad_token_id")}  # theirs classifies by it
    saved = heedful.save(model, folder / "fresh")
    import transformers

    again, info = getattr(transformers, case.architecture).from_pretrained(
        saved, output_loading_info=True, attn_implementation="eager"
    )
    assert not {k: v for k, v in info.items() if v and k != "error_msgs"}, info
    tokens, types = inputs(model, case)
    target = target_for(model)
    expected = run_theirs(again.eval(), tokens, types, target)[case.output]
    assert (run_ours(model, tokens, types, target) - expected).abs().max() <= case.tolerance


def read(folder: Path) -> dict[str, Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no dict
