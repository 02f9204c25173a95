"""Models that you assemble from parts yourself: LM(embed, stack, head).

Such a model belongs to no family of the registry, so no config.json can say how it is built. What can be
known is read from its parts: vocabulary, sizes, head, context. It can therefore be counted, trained and
generated from, and its weights are saved under the names they have here. Your code is what knows the parts:
to load the weights, assemble the model again and fill it with `heedful.load(FOLDER, into=model)`. A model of
a family that got a head of your own is treated alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.core.errors import ConfigError
from heedful.models.family import Config, Family

if TYPE_CHECKING:
    from heedful.models.base import Model

MODEL_TYPE = "heedful-assembled"


class AssembledConfig(Config):
    """The sizes that the parts of a model show."""

    context: int | None = None


def refuse_to_build(config: AssembledConfig) -> Model:
    """Raise ConfigError: sizes alone do not say which parts a model has."""
    raise ConfigError(
        "a model of your own parts cannot be built from its config",
        hint="assemble it again, and fill it with `heedful.load(FOLDER, into=model)`",
    )


ASSEMBLED = Family(
    "assembled", AssembledConfig, refuse_to_build, (),
    {
        "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
        "max_position_embeddings": "context",
    },
    {}, AssembledConfig(vocab=1, dim=1, layers=1), "next_token",
)  # fmt: skip


def describe_parts(model: Any) -> AssembledConfig:
    """Return the config that the parts of an LM or a Seq2Seq show."""
    stack = model.blocks if hasattr(model, "blocks") else model.decoder
    table = list(model.tables.values())[-1]  # of an encoder-decoder, that of the target
    return AssembledConfig(
        vocab=max(1, table.vocab), dim=table.token.embedding_dim, context=table.context,
        head=model.head.kind, layers=max(1, len(stack)) if hasattr(stack, "__len__") else 1,
    )  # fmt: skip


def has_own_parts(model: Model) -> bool:
    """Return whether only your own code can build this model: it has no family, or a head from outside."""
    head = type(getattr(model, "head", None)).__module__
    return model.family is ASSEMBLED or head.partition(".")[0] not in ("heedful", "builtins")
