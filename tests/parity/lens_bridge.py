"""One tiny checkpoint as a model here and as a TransformerLens bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import heedful
from heedful.models.base import Model
from tests.parity.cases import find_case
from tests.parity.harness import publish


def load_both(id: str, folder: Path) -> tuple[Model, Any]:
    """Return the published case `id` loaded here, and the same weights as TransformerLens holds them."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    reference = publish(find_case(id), folder).reference
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(99)}, unk_token="w0"))
    special = {"unk_token": "w0", "pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=reference, tokenizer=tokenizer)
    return heedful.load(folder), bridge
