"""Sentence vectors: `embed`, and how a sentence-transformers checkpoint pools the vectors of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import is_integer
from heedful.core.errors import ConfigError, CorruptFile, InputError
from heedful.core.files import read_json, write_json
from heedful.core.padding import pad_rows, valid_mask
from heedful.models.base import LM, Model
from heedful.nn.head import pool_tokens
from heedful.text import Tokenizer

MODES = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max", "pooling_mode_lasttoken": "last",
}  # fmt: skip

GGUF_POOLING = {"mean": 1, "first": 2, "last": 3}  # how GGUF files number them
OWN_NORMALISE, OWN_LENGTH = "heedful.weights.pooling.normalise", "heedful.weights.pooling.length"


@dataclass(frozen=True)
class Pooling:
    """mean, first, last or max over the valid tokens, at most `length` of them; `normalise` to length 1."""

    mode: str = "mean"
    normalise: bool = False
    length: int | None = None


def pool(hidden: Tensor, valid: Tensor, pooling: Pooling) -> Tensor:
    """(B, T, D) → (B, D)"""
    vector = pool_tokens(hidden, valid, pooling.mode)
    return F.normalize(vector, dim=-1) if pooling.normalise else vector


def embed(
    model: Model, sentences: Sequence[str], *, batch: int = 32, pooling: Pooling | None = None
) -> Tensor:
    """Return one vector per sentence as a tensor (N, D).

    The vectors are pooled as the checkpoint defines it, and by the mean if it defines nothing.

    >>> import heedful
    >>> encoder = heedful.load("all-minilm-l6-v2")
    >>> vectors = heedful.embed(encoder, ["Seattle motel", "Seattle hotel", "bread"])
    >>> vectors.shape
    torch.Size([3, 384])
    >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
    True

    Args:
        batch: Compute this many sentences at once. It does not change the result.
        pooling: Pool differently from the checkpoint.
    """
    if isinstance(sentences, str):
        raise InputError(
            "embed takes a list of sentences, got one string", hint="write embed(model, [sentence])"
        )
    if model.tokenizer is None:
        raise InputError(
            "this model has no tokenizer",
            hint="load one from a folder that has, or encode ids with model.encode",
        )
    if not isinstance(model, LM):
        raise InputError(
            "embed needs an encoder or a decoder", hint="an encoder-decoder has model.encode(source)"
        )
    chosen = pooling or model.pooling or Pooling()
    ids = [encode_truncated(model.tokenizer, sentence, chosen.length) for sentence in sentences]
    return embed_ids(model, ids, chosen, batch=batch)


def embed_ids(model: LM, ids: Sequence[list[int]], pooling: Pooling, *, batch: int = 32) -> Tensor:
    """One vector per row of ids, (N, D), pooled as `pooling` says."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))  # alike lengths together: less padding
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    out = torch.zeros(len(ids), model.config.dim)

    @torch.no_grad()
    def embed_rows(rows: list[int]) -> None:
        lengths = [len(ids[i]) for i in rows]
        width = max(1, *lengths)
        tokens = torch.from_numpy(pad_rows([ids[i] for i in rows], width=width)).to(model.device)
        valid = torch.from_numpy(valid_mask(lengths, width)).to(model.device)
        hidden = model.encode(tokens, valid=None if min(lengths) == width else valid)
        out[rows] = pool(hidden, valid, pooling).float().cpu()

    threads = torch.get_num_threads()
    if model.device.type != "cpu" or threads == 1 or len(batches) == 1:
        for rows in batches:
            embed_rows(rows)
        return out
    # One batch to a thread: nobody waits for the others at the end of every product.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        list(workers.map(embed_rows, batches))
    torch.set_num_threads(threads)  # a part of that setting is shared by all threads
    return out


def encode_truncated(tokenizer: Tokenizer, text: str, length: int | None) -> list[int]:
    """Return at most `length` ids of a text: it loses its end, and the special tokens around it stay."""
    if length is None:
        return tokenizer.encode(text)
    encoding = tokenizer.encoding(tokenizer.beginning(text, length))
    ids: list[int] = encoding.ids
    if len(ids) <= length:
        return ids
    end = max((i + 1 for i, special in enumerate(encoding.special_tokens_mask) if not special), default=0)
    return ids[: max(0, length - (len(ids) - end))] + ids[end:]


def read_pooling(folder: Path) -> Pooling | None:
    """What modules.json and its folders say; None for a checkpoint that is not for sentences."""
    if not (folder / "modules.json").is_file():
        return None
    modules = _read_json(folder / "modules.json", list)
    try:
        kinds = {m["type"].rsplit(".", 1)[-1]: str(m["path"]) for m in modules}
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptFile(
            f"{folder / 'modules.json'} is damaged ({error!r})", hint="fetch it again"
        ) from None
    unknown = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize", "Dropout"})
    if unknown:
        raise ConfigError(
            f"{folder / 'modules.json'} lists {unknown[0]}, which is not supported, so its sentence "
            "vectors would be others",
            hint="remove that file to load the encoder alone",
        )
    mode = "mean"
    if "Pooling" in kinds:
        settings = _read_json(folder / kinds["Pooling"] / "config.json", dict)
        chosen = [MODES.get(k, k) for k, v in settings.items() if k.startswith("pooling_mode") and v is True]
        chosen += [settings["pooling_mode"]] if isinstance(settings.get("pooling_mode"), str) else []
        if len(chosen) != 1 or chosen[0] not in MODES.values():
            raise ConfigError(
                f"{folder} pools by {chosen}", hint=f"it should be one of {', '.join(MODES.values())}"
            )
        mode = chosen[0]
    limits = folder / "sentence_bert_config.json"
    length = _read_json(limits, dict).get("max_seq_length") if limits.is_file() else None
    if length is not None and (not is_integer(length) or length < 1):
        raise ConfigError(
            f'{limits} has "max_seq_length": {length!r:.80}', hint="it should be a whole number or null"
        )
    return Pooling(mode, "Normalize" in kinds, length)


def _read_json(path: Path, kind: type) -> Any:
    try:
        return read_json(path, kind)
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{path} is missing ({error!s:.80})", hint="fetch it again") from None


def pooling_from_gguf(metadata: Mapping[str, Any], architecture: str) -> Pooling | None:
    """How a GGUF file pools. The format has no word for `normalise`: other programs do it, and so do we."""
    kind = metadata.get(f"{architecture}.pooling_type")
    modes = [mode for mode, number in GGUF_POOLING.items() if number == kind]
    length, normalise = metadata.get(OWN_LENGTH), bool(metadata.get(OWN_NORMALISE, True))
    return Pooling(modes[0], normalise, length) if modes else None


def gguf_pooling(pooling: Pooling, architecture: str) -> dict[str, Any]:
    """The metadata that `pooling_from_gguf` reads; what the format cannot say stands under names of ours."""
    if pooling.mode not in GGUF_POOLING:
        raise ConfigError(f"GGUF cannot pool by {pooling.mode!r}", hint=f"it has {', '.join(GGUF_POOLING)}")
    own = {OWN_NORMALISE: pooling.normalise} | (
        {} if pooling.length is None else {OWN_LENGTH: pooling.length}
    )
    return {f"{architecture}.pooling_type": GGUF_POOLING[pooling.mode]} | own


def write_pooling(pooling: Pooling | None, folder: Path, dim: int) -> None:
    """The files `read_pooling` reads; nothing for a model that is not for sentences."""
    if pooling is None:
        (folder / "modules.json").unlink(missing_ok=True)  # of an earlier model in the same folder
        return
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalise else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    settings = {"word_embedding_dimension": dim} | {key: mode == pooling.mode for key, mode in MODES.items()}
    write_json(folder / "1_Pooling" / "config.json", settings)
    limits = {"max_seq_length": pooling.length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limits)
