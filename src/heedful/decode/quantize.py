"""heedful.quantize(model, "int8"): the matrices of a model in 8 or 4 bits, after training, without data."""

from __future__ import annotations

from heedful.core.errors import ConfigError
from heedful.models.base import Model
from heedful.models.tensor_parallel import check_whole
from heedful.nn.adapt import adapted_modules
from heedful.nn.quantised import GROUP, quantise_modules


def quantize(model: Model, kind: str = "int8", *, group: int = GROUP, tables: bool = False) -> Model:
    """Round the weights of a model to 8 or 4 bits, in place, and return it in eval mode.

    The model can no longer be trained. It uses less memory and generates faster.

    >>> import heedful
    >>> model = heedful.build("llama", vocab=128, dim=64, layers=2, heads=4, seed=0)
    >>> model = heedful.quantize(model, "int8")
    >>> type(model.blocks[0].ffn.up).__name__
    'Int8Linear'

    Args:
        kind: "int8" has one scale per output. "int4" has one per `group` inputs, with 8 bits for embeddings
            and heads.
        group: The number of inputs that share a scale in "int4".
        tables: Round the embeddings as well, where no head shares them.

    `save(model, folder, quantized=True)` stores the rounded matrices. Without `quantized`, `save` writes
    plain floats, which other libraries can open.
    """
    check_whole(model)
    if "quantization" in model.hf_config:
        kind = model.hf_config["quantization"]["kind"]
        raise ConfigError(f"this model is quantised already, to {kind}", hint="take the one it was made from")
    if next(adapted_modules(model), None) is not None:
        raise ConfigError("this model has an adapter", hint="call heedful.merge(model) first")
    if group < 2 or group % 2:
        raise ConfigError(f"`group={group}` must be even: two numbers share a byte", hint="take 32 or 64")
    if not quantise_modules(model, kind, group, tables):
        raise ConfigError(
            f"nothing here can be quantised: {model.family.name} has no attention, MLP or word head"
        )
    settings = {"kind": kind, "group": group} | ({"tables": True} if tables else {})
    model.hf_config = model.hf_config | {"quantization": settings}
    return model.requires_grad_(False).eval()
