"""Attention of models made elsewhere: anything that answers `model(**inputs, output_attentions=True)`.

That is how models of `transformers` answer. The package itself is never imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.pattern_selection import group_words, marks
from heedful.classroom.figures.token_labels import spell_token
from heedful.core.errors import InputError
from heedful.interp.inputs import OPEN, is_pair

WRITE = 24  # tokens an encoder-decoder writes where no target is given


def figure_entry(
    name: str,
    values: Any,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    cross: bool = False,
    predicted_rows: bool = False,
    window: int | None = None,
    kind: str = "",
    mark: str | None = None,
    second: int | None = None,
) -> dict[str, Any]:
    """One layer's pattern (H, T, S) as a figure holds it.

    `predicted_rows` says that rows are the tokens predicted, not those read; `window` is how many positions a
    query sees. `mark` is how the vocabulary marks words, by default as these tokens do; `second` is where
    the second of two texts begins.
    """
    array = np.asarray(torch.as_tensor(values).detach().float().cpu().numpy())
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3:
        raise InputError(
            f"{name} has shape {array.shape}", hint="a layer's pattern is (heads, queries, keys)"
        )
    if array.shape[1:] != (len(queries), len(keys)):
        wanted = f"{len(queries)} queries and {len(keys)} keys"
        raise InputError(
            f"{name} has shape {array.shape}, which does not fit {wanted}", hint="give a name to each"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name} has entries that are no finite numbers", hint="mask with 0, not with nan")
    kind = kind or ("effective" if array.min(initial=0.0) < 0 else "softmax")
    told = marks([*queries, *keys]) if mark is None else mark
    return {
        "name": name, "kind": kind, "cross": cross, "queries": list(queries), "keys": list(keys),
        "written": predicted_rows, "window": window, "values": array, "second": None if cross else second,
        "query_words": group_words(queries, told), "key_words": group_words(keys, told),
    }  # fmt: skip


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Without fused kernels, which hold no weights, and without dropout; both are put back."""
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    training = bool(getattr(model, "training", False))
    switch = before not in (None, "eager") and callable(getattr(model, "set_attn_implementation", None))
    if switch:
        model.set_attn_implementation("eager")
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if switch:
            model.set_attn_implementation(before)
        if training:
            model.train()


def inputs_of(model: Any, text: Any, tokenizer: Any) -> dict[str, Any]:
    """What the model is called with: a text through its tokenizer, ids, or inputs as they are."""
    if isinstance(text, Mapping):
        return dict(text)
    if isinstance(text, str) or is_pair(text):
        if tokenizer is None:
            raise InputError("a text needs the model's tokenizer: view.attention(model, text, tokenizer=tok)")
        found = dict(tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt"))
        if not found["input_ids"].numel():
            raise InputError("the text is empty", hint="give at least one token")
    else:
        found = {"input_ids": torch.atleast_2d(torch.as_tensor(text)).long()}
    device = getattr(model, "device", torch.device("cpu"))
    return {name: value.to(device) for name, value in found.items()}


def token_names(tokenizer: Any, ids: torch.Tensor) -> list[str]:
    """The tokens of ids (1, T), those of a byte-level vocabulary spelled out."""
    if len(ids) != 1:
        raise InputError(f"one sequence at a time: ids must be (1, T); got {tuple(ids.shape)}")
    listed = ids[0].tolist()
    if tokenizer is None:
        return [str(i) for i in listed]
    found = [str(t) for t in tokenizer.convert_ids_to_tokens(listed)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return [spell_token(t) for t in found] if type(decoder).__name__ == "ByteLevel" else found


def written_tokens(tokenizer: Any, decoder_input: torch.Tensor, logits: Any) -> list[str]:
    """The word that each position of a target writes: the next one, and at the end the likeliest."""
    if not isinstance(logits, torch.Tensor) or logits.dim() != 3:
        return [*token_names(tokenizer, decoder_input)[1:], OPEN]
    return token_names(tokenizer, torch.cat((decoder_input[:, 1:], logits[:, -1:].argmax(-1)), 1))


def decoder_ids(model: Any, inputs: Mapping[str, Any], target: Any, tokenizer: Any) -> torch.Tensor:
    """What the decoder reads: a target with the start token before it, ids, or what the model writes."""
    device = inputs["input_ids"].device
    if target is None:
        written: torch.Tensor = model.generate(**inputs, max_new_tokens=WRITE, do_sample=False, num_beams=1)
        return written
    if not isinstance(target, str):
        return torch.atleast_2d(torch.as_tensor(target, device=device)).long()
    if tokenizer is None:
        raise InputError("a target given as text needs tokenizer=", hint="or give its ids")
    ids = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(device)
    start = ids.new_full((1, 1), int(model.config.decoder_start_token_id))
    return torch.cat((start, ids), 1)


def attention_patterns(model: Any, text: Any, target: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """Every pattern of one pass."""
    if not callable(model):
        raise InputError(f"a {type(model).__name__} is no model", hint="give one, or tokens= and pattern=")
    inputs = inputs_of(model, text, tokenizer)
    both = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    source = token_names(tokenizer, inputs["input_ids"])
    found: list[dict[str, Any]] = []
    with eager(model):
        if both:
            inputs["decoder_input_ids"] = decoder_ids(model, inputs, target, tokenizer)
        out = model(**inputs, output_attentions=True)
    if both:
        read = inputs["decoder_input_ids"]
        mine, written = (
            token_names(tokenizer, read),
            written_tokens(tokenizer, read, getattr(out, "logits", None)),
        )
        found += layers(getattr(out, "encoder_attentions", None), "encoder.{}", source, source)
        found += layers(getattr(out, "decoder_attentions", None), "decoder.{}", mine, mine)
        found += layers(
            getattr(out, "cross_attentions", None), "decoder.{}.cross", written, source, cross=True
        )
    else:
        second = list(tokenizer(*text).sequence_ids(0)).index(1) if is_pair(text) else None
        found += layers(getattr(out, "attentions", None), "layers.{}", source, source, second=second)
    if not found:
        raise InputError(
            f"{type(model).__name__} gave no attentions",
            hint=(
                "load it with attn_implementation='eager', or draw weights you have: "
                "view.attention(tokens=…, pattern=…)"
            ),
        )
    return found


def layers(
    values: Any,
    name: str,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    cross: bool = False,
    second: int | None = None,
) -> list[dict[str, Any]]:
    """The patterns of a stack; a layer without attention has None."""
    return [
        figure_entry(name.format(i), layer, queries, keys, cross=cross, predicted_rows=cross, second=second)
        for i, layer in enumerate(values or ())
        if layer is not None
    ]
