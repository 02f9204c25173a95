"""The capabilities of a model, found from its parts. The page chooses panels by them, never by the family."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from heedful.classroom.arithmetic.from_model import explainable_topics
from heedful.classroom.studio.model_registry import Entry, LoadedModel
from heedful.core.errors import HeedfulError
from heedful.decode.request import context_length
from heedful.interp.inputs import probe_input, stacks_of
from heedful.interp.observe.mixing import (
    AttentionGroup,
    attention_groups,
    mixers_of,
    position_type,
)
from heedful.interp.observe.prediction import answer_names, predicts
from heedful.interp.observe.recurrent_states import recurrent_parts
from heedful.models.base import MediaLM, Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.nn.head import NoHead
from heedful.nn.norm import RMSNorm
from heedful.word2vec import Word2Vec

MAX_CARD_BYTES = 200_000  # of a model card that is shown
CARDS = Path(__file__).parent / "cards"  # cards of installed models that have none of their own


def read_card(entry: Entry) -> str | None:
    """Return the text of a model's card: its own README.md, or ours for an installed model without one."""
    card = (entry.path if entry.path.is_dir() else entry.path.parent) / "README.md"
    if entry.source == "package" and not card.is_file():
        card = CARDS / f"{entry.id}.md"
    short = card.is_file() and card.stat().st_size <= MAX_CARD_BYTES
    return card.read_text(encoding="utf-8", errors="replace") if short else None


def score_of(card: str | None) -> dict[str, Any] | None:
    """Return {"metric", "score"} from the YAML head of a card, or None if it has no such head."""
    parts = (card or "").split("---\n", 2)
    try:
        head = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else None
    except yaml.YAMLError:
        return None
    if not isinstance(head, Mapping) or not {"metric", "score"} <= head.keys():
        return None
    return {"metric": str(head["metric"]), "score": head["score"]}


def heads_of(model: Model) -> dict[str, int]:
    """How many heads each layer that attends has, seen in a pass over a few tokens."""
    watch = Watch("*.pattern")
    with torch.no_grad():
        probe_input(model).run(model, watch)
    return {name.removesuffix(".pattern"): value.shape[1] for name, value in watch.values.items()}


def tasks_of(model: Model | Word2Vec) -> list[str]:
    """The tasks of heedful.pipeline that this model can do, that which it is for first."""
    from heedful.tasks.pipelines.text2text import languages
    from heedful.tasks.registry import TASK_BY_HEAD, TASKS

    if isinstance(model, Word2Vec):
        return ["neighbours", "analogy"]
    if model.tokenizer is None and not isinstance(model, MediaLM):
        return []
    tasks = []
    for task, row in TASKS.items():
        kind = row.load()
        # Any model gives vectors; the page offers that of those which are made for it.
        if kind.fits(model) and (kind.heads or model.config.head == "none"):
            tasks.append(task)
    # The page has no form for these.
    left_out = {"rerank", "automatic-speech-recognition", "zero-shot-image-classification"}
    if model.tokenizer is None or model.tokenizer.chat_template is None:
        left_out.add("conversational")
    if isinstance(model, Seq2Seq):
        translates = languages(model) is not None
        left_out |= {"summarization", "text2text-generation"} if translates else set()
        left_out |= {"fill-mask"} if model.tokenizer.mask is None else set()
    first = [TASK_BY_HEAD.get(model.config.head, "text-generation")]
    if "task_prompt" in model.hf_config:
        first = ["summarization"]
    elif model.image_processor is not None:
        first = ["image-to-text"]
    elif isinstance(model, Seq2Seq) and model.config.head == "lm":
        first = ["translation"]
    elif model.config.head == "none" and model.pooling is not None:
        first = ["sentence-similarity"]
    return [t for t in dict.fromkeys([*first, *tasks]) if t in tasks and t not in left_out]


def context(model: Model) -> dict[str, int | None]:
    if isinstance(model, Seq2Seq):
        return {"source": context_length(model, source=True), "target": context_length(model)}
    return {"tokens": context_length(model)}


def capabilities(loaded_model: LoadedModel, python: str) -> dict[str, Any]:
    """The capability record of a loaded model."""
    entry, model = loaded_model.entry, loaded_model.model
    kind = "vectors" if isinstance(model, Word2Vec) else model.kind
    card = read_card(entry)
    about = {"id": entry.id, "source": entry.source, "kind": kind, "tasks": tasks_of(model),
             "run": entry.run, "card": card, "measured": score_of(card), "python": python}  # fmt: skip
    if isinstance(model, Word2Vec):
        size = model.input.size + (0 if model.output is None else model.output.size)
        return about | {
            "family": "word2vec", "reads": "text", "params": int(size), "dim": model.dim,
            "vocab": len(model), "context": {},
            "attention": [], "position": {"type": "none"}, "recurrent": [], "mixing": [], "head": "none",
            "predicts": "vectors", "labels": None,
            "embeddings": ["input"] + ["output"] * (model.output is not None),
            "norm": None, "kv_cache": False, "chat": False, "mask_token": None, "topics": ["word2vec"],
            "stacks": [], "layers": 0, "tokenizer": {"kind": "words", "size": len(model), "merges": False,
            "special": {}}, "counts": model.counts is not None, "output": model.output is not None,
        }  # fmt: skip
    return about | _sequence(model)


def _sequence(model: Model) -> dict[str, Any]:
    heads, tokenizer = heads_of(model), model.tokenizer
    norm = next((m for m in model.modules() if isinstance(m, RMSNorm | nn.LayerNorm)), None)
    special = {} if tokenizer is None else tokenizer.roles
    layers = {name: len(stack) for name, stack in stacks_of(model).items()}
    return {
        "family": model.family.name, "params": sum(p.numel() for p in model.parameters()),
        "reads": "images" if model.image_processor else "sounds" if model.sound_processor else "text",
        "dim": model.config.dim, "vocab": model.config.vocab, "context": context(model),
        "attention": [describe_group(group, heads) for group in attention_groups(model)],
        "position": {"type": position_type(model)}, "mixing": mixers_of(model),
        "recurrent": [part.to_dict() for part in recurrent_parts(model)],
        "head": "none" if isinstance(model.head, NoHead) else model.config.head,
        "predicts": predicts(model), "labels": answer_names(model),
        "embeddings": ["input"] + ["output"] * (predicts(model) == "words"),
        "norm": None if norm is None else "rms" if isinstance(norm, RMSNorm) else "layer",
        "kv_cache": model.kind != "encoder", "mask_token": special.get("mask"),
        "chat": tokenizer is not None and tokenizer.chat_template is not None,
        "topics": explainable_topics(model), "stacks": list(layers), "layers": sum(layers.values()),
        "tokenizer": None if tokenizer is None else {
            "kind": (kind := type(tokenizer.backend.model).__name__), "size": len(tokenizer),
            "merges": kind == "BPE", "special": dict(special),
        },
    }  # fmt: skip


def describe_group(group: AttentionGroup, heads: Mapping[str, int]) -> dict[str, Any]:
    """Return a group of layers as the page reads it, with the number of heads of each."""
    return group.to_dict() | {"heads": [heads[layer] for layer in group.layers]}


def summary(entry: Entry) -> dict[str, Any]:
    """One line of the catalogue, from the shapes alone; remembered, since folders rarely change."""
    stamp = entry.path.stat().st_mtime if entry.path.exists() else 0.0
    return {"id": entry.id, "source": entry.source, "run": entry.run} | _summary(entry, stamp)


@functools.lru_cache(maxsize=1024)
def _summary(entry: Entry, stamp: float) -> dict[str, Any]:
    from heedful.tasks.registry import infer_task
    from heedful.weights.loading import skeleton

    about: dict[str, Any] = dict.fromkeys(("kind", "family", "params", "head", "error")) | {"tasks": []}
    if entry.vectors:
        return about | {"kind": "vectors", "family": "word2vec"}
    try:
        model = skeleton(entry.name)
        # What it is for; the record has all it can do.
        tasks = ["summarization" if "task_prompt" in model.hf_config else infer_task(model)]
    except (HeedfulError, OSError, ValueError, KeyError) as error:
        return about | {"error": " ".join(str(error).split())}
    params = sum(p.numel() for p in model.parameters())
    return about | {
        "kind": model.kind, "family": model.family.name, "params": params, "head": model.config.head,
        "tasks": tasks,
    }  # fmt: skip
