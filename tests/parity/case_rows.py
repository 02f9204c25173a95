"""A row of the tables of published architectures: a family, a config and a class of `transformers`.

A family's line says how its rows begin; a row says what is special: its name, the end of the class's name,
and the values of the config that differ. tests/parity/test_published.py checks every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Patterns = dict[str, str]  # our watched name with * for the layer → their field
ATTENTIONS: Patterns = {"blocks.*.attn.pattern": "attentions"}
SEQ2SEQ: Patterns = {
    "encoder.*.attn.pattern": "encoder_attentions",
    "decoder.*.attn.pattern": "decoder_attentions",
    "decoder.*.cross.pattern": "cross_attentions",
}
OUTPUTS = {"Model": "last_hidden_state", "ForQuestionAnswering": "span"}  # of other classes: logits


@dataclass(frozen=True)
class Case:
    """One published architecture at one tiny size."""

    id: str
    architecture: str  # class in transformers, e.g. "BertForMaskedLM"
    config: str  # e.g. "BertConfig"
    values: dict[str, Any]
    output: str = "logits"  # which field of their output is ours
    patterns: Patterns = field(default_factory=dict)
    types: bool = False  # also feed token types
    prepare: Callable[[Any], None] | None = None  # change their model before it is saved
    dropped: tuple[str, ...] = ()  # published buffers that ours leaves out, listed
    tolerance: float = 1e-4
    attention: str = "eager"  # which of their implementations; only this one shows patterns

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class Rows:
    """What all rows of one family share."""

    family: str  # begins the ids
    stem: str  # begins the names of the classes: "Bert"
    config: str
    values: dict[str, Any]
    patterns: Patterns = field(default_factory=dict)
    types: bool = False
    prepare: Callable[[Any], None] | None = None
    dropped: tuple[str, ...] = ()

    def __call__(self, name: str, kind: str, *changes: dict[str, Any], **more: Any) -> Case:
        """Return one row: its name, the end of the class's name, changed values; Case's fields by keyword."""
        fields = {name: getattr(self, name) for name in ("patterns", "types", "prepare", "dropped")}
        fields |= {"output": OUTPUTS.get(kind, "logits")} | more
        values = dict(self.values)
        for change in changes:
            values |= change
        id = f"{self.family}-{name}" if name else self.family
        return Case(id, f"{self.stem}{kind}", self.config, values, **fields)


CAUSAL, CLASSIFY, TAG = "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"
SPAN = "ForQuestionAnswering"
TWO_LAYERS = {"num_hidden_layers": 2}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}


def rope(kind: str, **values: float) -> dict[str, Any]:
    """Return the values of a config whose rotations are stretched."""
    if kind in ("yarn", "llama3"):
        values = {"original_max_position_embeddings": 16, **values}
    return {"rope_parameters": {"rope_theta": 5000.0, "rope_type": kind, **values}}
