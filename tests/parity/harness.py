"""Side by side with `transformers`: a tiny random model saved there and loaded here, and both run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor

import heedful
from heedful.models.base import LM, Model
from tests.parity.case_rows import Case

LENGTH = 11

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass(frozen=True)
class Published:
    """One row of the table as a model of transformers, and the folder that it was saved in."""

    case: Case
    reference: Any
    folder: Path


def publish(case: Case, folder: Path) -> Published:
    """Save their model with random weights; every parameter is moved off its initial 0 or 1."""
    config = getattr(transformers, case.config)(**case.values)
    config._attn_implementation = case.attention
    torch.manual_seed(0)
    model = getattr(transformers, case.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    if case.prepare is not None:
        case.prepare(model)
    model.save_pretrained(folder)
    return Published(case, model, folder)


def open_there(
    architecture: str, folder: Path, attention: str = "eager", computed: Sequence[str] = ()
) -> Any:
    """Open a folder in transformers; no key may be missing, but for `computed` buffers, or unexpected."""
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation=attention
    )
    info["missing_keys"] = set(info["missing_keys"]) - set(computed)
    assert not {key: keys for key, keys in info.items() if keys and key != "error_msgs"}, info
    return model.eval()


def random_inputs(model: Model, case: Case, batch: int = 2) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return tokens, their types if the case has some, and a target if the model is an encoder-decoder."""
    torch.manual_seed(1)
    tokens = torch.randint(5, model.config.vocab, (batch, LENGTH))
    types = torch.randint(0, 2, tokens.shape) if case.types else None
    if isinstance(model, LM) or model.config.head == "none":
        return tokens, types, None
    torch.manual_seed(2)
    return tokens, types, torch.randint(5, model.config.vocab, (2, 7))[:batch]


@torch.no_grad()
def run_theirs(reference: Any, tokens: Tensor, types: Tensor | None, target: Tensor | None = None) -> Any:
    """Return the answer of transformers, with attentions; the two logits of a span stand under "span"."""
    options: dict[str, Any] = {} if types is None else {"token_type_ids": types}
    if target is not None:
        options["decoder_input_ids"] = target
    if "use_cache" in inspect.signature(reference.forward).parameters:
        options["use_cache"] = False
    shown = reference.config._attn_implementation == "eager"
    if shown and reference.config.model_type not in ("mamba", "mamba2", "falcon_mamba"):
        options["output_attentions"] = True
    answer = reference(input_ids=tokens, **options)
    if "start_logits" in answer:
        answer["span"] = torch.stack((answer["start_logits"], answer["end_logits"]), -1)
    return answer


@torch.no_grad()
def run_ours(
    model: Model, tokens: Tensor, types: Tensor | None, target: Tensor | None = None, **more: Any
) -> Tensor:
    """Return our logits, or the vectors of a model without a head."""
    if target is not None:
        return model(tokens, target, **more)
    if types is not None:
        more["types"] = types
    if model.config.head == "none":
        return model.encode(tokens, **more)
    return model(tokens, **more)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of a saved model."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no dict


def load_and_save(folder: Path, saved: Path) -> Model:
    """Load a published folder, save it in another one, and return the model: every tensor comes back."""
    model = heedful.load(folder)
    heedful.save(model, saved)
    before, after = read_tensors(folder), read_tensors(saved)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return model
