"""Small things that the tests of decoding share: models from the published classes, toy tokenizers."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch

import heedful
from heedful.decode.engines.fallback import find_fallback_reason
from heedful.models.base import Model
from heedful.text.tokenizer import Tokenizer
from tests.properties.tiny import DECODERS, tiny

FAST = [f for f in DECODERS if find_fallback_reason(tiny(f)) is None]  # whose parts the fast steppers know
COMMON = {"vocab_size": 96, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **COMMON}),
    "llama": (
        "Llama",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "max_position_embeddings": 64, **COMMON},
    ),
    "t5": (
        "T5",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1,
         "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu", **COMMON},
    ),
    "bart": (
        "Bart",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
         "forced_eos_token_id": None, "max_position_embeddings": 64, "decoder_start_token_id": 2, **COMMON},
    ),
}  # fmt: skip
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration",
           "bart": "BartForConditionalGeneration"}  # fmt: skip


@functools.cache
def pair(name: str) -> tuple[Any, Model]:
    """A tiny random model of the published class, and ours with its weights."""
    import transformers

    stem, config = PUBLISHED[name]
    torch.manual_seed(3)
    theirs = getattr(transformers, CLASSES[name])(getattr(transformers, f"{stem}Config")(**config)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # large enough that texts differ and sometimes end
            if parameter.dim() > 1:
                parameter.normal_(0, 0.35)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = heedful.load(Path(folder))
    return theirs, ours


def letters(extra: tuple[str, ...] = ()) -> Tokenizer:
    """A byte-level tokenizer without merges: 256 bytes, then <end>, then what is asked for."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*alphabet, "<end>", *extra])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, {"eos": "<end>"})


@functools.cache
def speller() -> Model:
    """A tiny LLaMA that writes bytes."""
    model = tiny("llama", vocab=260)
    model.tokenizer = letters()
    return model
