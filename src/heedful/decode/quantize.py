"""heedful.quantize(model, "int8"): the matrices of a model in 8 or 4 bits, after training, without data."""

from __future__ import annotations

from heedful.core.errors import ConfigError
from heedful.models.base import Model
from heedful.models.tensor_parallel import check_whole
from heedful.nn.adapt import adapted_modules
from heedful.nn.quantised import GROUP, quantise_modules


def quantize(model: Model, kind: str = "int8", *, group: int = GROUP, tables: bool = False) -> Model:
    """Round the weights of `model` in place, and give it back in eval mode, with nothing left to train.

    "int8": one scale for each output. "int4": one for each `group` inputs; tables and heads take 8 bits.
    `tables` rounds the vectors of tokens too where no head shares them, and they stay as they are otherwise.
    `save(model, folder, quantized=True)` keeps the rounded matrices, under our own names, and `load` reads
    them. Without `quantized`, `save` widens them to floats, which other libraries open.
    """
    check_whole(model)
    if "quantization" in model.hf_config:
        kind = model.hf_config["quantization"]["kind"]
        raise ConfigError(f"this model is quantised already, to {kind}", hint="take the one it was made from")
    if next(adapted_modules(model), None) is not None:
        raise ConfigError("this model has an adapter", hint="call heedful.merge(model) first")
    if group < 2 or group % 2:
        raise ConfigError(f"group={group} must be even: two numbers share a byte", hint="take 32 or 64")
    if not quantise_modules(model, kind, group, tables):
        raise ConfigError(
            f"nothing here can be quantised: {model.family.name} has no attention, MLP or word head"
        )
    settings = {"kind": kind, "group": group} | ({"tables": True} if tables else {})
    model.hf_config = model.hf_config | {"quantization": settings}
    return model.requires_grad_(False).eval()
