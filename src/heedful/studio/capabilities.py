"""What a model has, told by its parts: the page shows panels by this record and never asks for a family."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful.decode.request import context_length
from heedful.errors import HeedfulError
from heedful.inspect.from_model import TOPICS, Subject
from heedful.inspect.inputs import Input, names_of
from heedful.inspect.mixing import mixers_of, parts_of, position_type, stacks_of, window_of
from heedful.inspect.row_labels import Side, attends_to_source, key_side, row_side
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Part, Watch
from heedful.nn.head import NoHead
from heedful.nn.norm import RMSNorm
from heedful.nn.recurrent import Recurrence
from heedful.nn.ssm import S4, Mamba
from heedful.studio.model_registry import Entry, LoadedModel
from heedful.tasks.common import Pipeline
from heedful.word2vec import Word2Vec

PREDICTS = {
    "lm": "words", "mlm": "words", "pretrain": "words", "classify": "labels", "next": "labels", "tag": "tags",
    "detect": "tags", "span": "spans", "none": "vectors",
}  # fmt: skip


def model_kind(model: Model | Word2Vec) -> str:
    """encoder, decoder, encoder-decoder or vectors."""
    if isinstance(model, Word2Vec):
        return "vectors"
    if isinstance(model, Seq2Seq):
        return "encoder-decoder"
    return "decoder" if isinstance(model, LM) and model.causal else "encoder"


@dataclass(frozen=True)
class Group:
    """Layers that attend alike: one row of thumbnails each."""

    name: str  # blocks.attn, decoder.cross
    stack: str
    layers: tuple[str, ...]
    kind: str
    causal: bool
    cross: bool
    queries: Side  # whose tokens label the rows: those read, or the words written
    keys: Side
    windows: tuple[int | None, ...] = ()  # of each layer: how many tokens it sees at most
    leaves_out: str = ""  # what the layer does beside its pattern

    @property
    def title(self) -> str:
        side = {"encoder": "source", "decoder": "target"}.get(self.stack, "")
        return f"{side} over source" if self.cross else f"{side} over itself".strip() if side else "self"


def groups_of(model: Model) -> list[Group]:
    """Every part that has a pattern, by stack and by its word in the block."""
    found: dict[tuple[str, str], list[tuple[str, Part]]] = {}
    for path, part in parts_of(model):
        if part.pattern_kind is not None:
            stack, _, *rest = path.split(".")
            found.setdefault((stack, ".".join(rest) or "look"), []).append((path, part))
    out = []
    for (stack, word), parts in found.items():
        path, part = parts[0]
        cross, has_target = attends_to_source(part), isinstance(model, Seq2Seq)
        causal = not cross and (stack == "decoder" or (isinstance(model, LM) and model.causal))
        rows, keys = (side(path, part, has_target=has_target) for side in (row_side, key_side))
        layers, windows = tuple(p for p, _ in parts), tuple(window_of(p) for _, p in parts)
        kind = part.pattern_kind or "effective"
        left_out = part.pattern_leaves_out
        name = f"{stack}.{word}"
        out.append(Group(name, stack, layers, kind, causal, cross, rows, keys, windows, left_out))
    return out


def recurrent_of(model: Model) -> list[dict[str, Any]]:
    """Every part that shows a state which it carries from token to token, recurrent cells and state spaces:
    their gates and states, which side they read, whether backwards.
    """
    out = []
    for path, part in parts_of(model):
        if isinstance(part, Recurrence):
            states, words, hidden = [n for n in part.shown if n in ("h", "c")], list(part.shown), part.hidden
        elif isinstance(part, Mamba):
            states, words, hidden = ["h"], ["delta", "h"], part.A_log.numel()
        elif isinstance(part, S4):
            states, words, hidden = ["h"], ["h"], 2 * part.A_log.numel()
        else:
            continue
        side = {"encoder": "source", "decoder": "target"}.get(path.partition(".")[0], "tokens")
        gates = [g for g in words if g not in states] if isinstance(part, Recurrence) else []
        out.append({
            "path": path, "cell": type(part).__name__, "gates": gates, "states": states, "words": words,
            "hidden": hidden, "side": side, "reverse": isinstance(part, Recurrence) and part.reverse,
        })  # fmt: skip
    return out


def topics_of(model: Model) -> list[str]:
    """What `explain` can work out: asked once, on a few tokens; what it refuses is left out."""
    subject, out = Subject(model, probe(model), "", 0, -1), []
    for topic, work in TOPICS.items():
        try:
            work(subject)
        except (HeedfulError, NotImplementedError):
            continue
        out.append(topic)
    return out


def probe(model: Model) -> Input:
    """Two or three tokens, to see what comes out."""
    vocab = min(table.vocab for table in model.tables.values())
    ids = torch.tensor([[min(5, vocab - 1), min(6, vocab - 1), min(7, vocab - 1)]], device=model.device)
    if isinstance(model, Seq2Seq):
        return Input(ids, names_of(model, ids), ids[:, :2], names_of(model, ids[:, :2]))
    return Input(ids, names_of(model, ids))


def heads_of(model: Model) -> dict[str, int]:
    """How many heads each layer that attends has, seen in a pass over a few tokens."""
    watch = Watch("*.pattern")
    with torch.no_grad():
        probe(model).run(model, watch)
    return {name.removesuffix(".pattern"): value.shape[1] for name, value in watch.values.items()}


def tasks_of(model: Model | Word2Vec) -> list[str]:
    """The tasks of heedful.pipeline that this model can do, that which it is for first."""
    from heedful.tasks.pipeline import TASK_BY_HEAD, TASKS
    from heedful.tasks.text2text import languages

    if isinstance(model, Word2Vec):
        return ["neighbours", "analogy"]
    if model.tokenizer is None:
        return []
    found = []
    for task, row in TASKS.items():
        module, _, name = row.where.partition(":")
        kind: type[Pipeline] = getattr(importlib.import_module(module), name)
        # Any model gives vectors; the page offers that of those which are made for it.
        if kind.fits(model) and (kind.heads or model.config.head == "none"):
            found.append(task)
    left_out = set()
    if model.tokenizer.chat_template is None:
        left_out.add("conversational")
    if isinstance(model, Seq2Seq):
        known = languages(model) is not None
        left_out |= {"summarization", "text2text-generation"} if known else set()
        left_out |= {"fill-mask"} if model.tokenizer.mask is None else set()
    first = [TASK_BY_HEAD.get(model.config.head, "text-generation")]
    if "task_prompt" in model.hf_config:
        first = ["summarization"]
    elif isinstance(model, Seq2Seq) and model.config.head == "lm":
        first = ["translation"]
    elif model.config.head == "none" and model.pooling is not None:
        first = ["sentence-similarity"]
    return [t for t in dict.fromkeys([*first, *found]) if t in found and t not in left_out]


def describe_tokenizer(model: Model) -> dict[str, Any] | None:
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    kind = type(tokenizer.backend.model).__name__
    return {"kind": kind, "size": len(tokenizer), "merges": kind == "BPE", "special": dict(tokenizer.roles)}


def norm_of(model: Model) -> str | None:
    for module in model.modules():
        if isinstance(module, RMSNorm | nn.LayerNorm):
            return "rms" if isinstance(module, RMSNorm) else "layer"
    return None


def labels_of(model: Model) -> list[str] | None:
    """The names of a classifying head's labels."""
    if PREDICTS.get(model.config.head) not in ("labels", "tags"):
        return None
    if model.config.head == "next":
        return ["follows", "random"]
    if model.config.head == "detect":
        return ["original", "replaced"]
    return model.label_names


def context(model: Model) -> dict[str, int | None]:
    if isinstance(model, Seq2Seq):
        return {"source": context_length(model, source=True), "target": context_length(model)}
    return {"tokens": context_length(model)}


def capabilities(loaded_model: LoadedModel, python: str) -> dict[str, Any]:
    """The capability record of a loaded model."""
    entry, model = loaded_model.entry, loaded_model.model
    about = {"id": entry.id, "source": entry.source, "kind": model_kind(model), "tasks": tasks_of(model),
             "run": entry.run, "card": card(entry), "python": python}  # fmt: skip
    if isinstance(model, Word2Vec):
        size = model.input.size + (0 if model.output is None else model.output.size)
        return about | {
            "family": "word2vec", "params": int(size), "dim": model.dim, "vocab": len(model), "context": {},
            "attention": [], "position": {"type": "none"}, "recurrent": [], "mixing": [], "head": "none",
            "predicts": "vectors", "labels": None,
            "embeddings": ["input"] + ["output"] * (model.output is not None),
            "norm": None, "kv_cache": False, "chat": False, "mask_token": None, "topics": ["word2vec"],
            "stacks": [], "layers": 0, "tokenizer": {"kind": "words", "size": len(model), "merges": False,
            "special": {}}, "counts": model.counts is not None, "output": model.output is not None,
        }  # fmt: skip
    return about | _sequence(model)


def _sequence(model: Model) -> dict[str, Any]:
    heads, groups = heads_of(model), groups_of(model)
    special = {} if model.tokenizer is None else model.tokenizer.roles
    layers = {name: len(stack) for name, stack in stacks_of(model).items()}
    words = PREDICTS.get(model.config.head) == "words"
    return {
        "family": model.family.name, "params": sum(p.numel() for p in model.parameters()),
        "dim": model.config.dim, "vocab": model.config.vocab, "context": context(model),
        "attention": [describe_model(group, heads) for group in groups],
        "position": {"type": position_type(model)}, "recurrent": recurrent_of(model),
        "mixing": mixers_of(model),
        "head": "none" if isinstance(model.head, NoHead) else model.config.head,
        "predicts": PREDICTS.get(model.config.head, "vectors"), "labels": labels_of(model),
        "embeddings": ["input"] + ["output"] * words, "norm": norm_of(model),
        "kv_cache": model_kind(model) != "encoder", "mask_token": special.get("mask"),
        "chat": model.tokenizer is not None and model.tokenizer.chat_template is not None,
        "topics": topics_of(model), "stacks": list(layers), "layers": sum(layers.values()),
        "tokenizer": describe_tokenizer(model),
    }  # fmt: skip


def describe_model(group: Group, heads: dict[str, int]) -> dict[str, Any]:
    return {
        "name": group.name, "stack": group.stack, "layers": list(group.layers), "kind": group.kind,
        "heads": [heads[layer] for layer in group.layers], "causal": group.causal, "cross": group.cross,
        "title": group.title, "queries": group.queries, "keys": group.keys, "windows": list(group.windows),
        "leaves_out": group.leaves_out,
    }  # fmt: skip


def card(entry: Entry) -> str | None:
    """The model card beside the weights, if it is short enough to show."""
    path = (entry.path if entry.path.is_dir() else entry.path.parent) / "README.md"
    if not path.is_file() or path.stat().st_size > 200_000:
        return None
    return path.read_text(encoding="utf-8", errors="replace")


def summary(entry: Entry, memo: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One line of the catalogue, from the shapes alone; remembered, since folders rarely change."""
    stamp = entry.path.stat().st_mtime if entry.path.exists() else 0.0
    key = f"{entry.path}@{stamp}"
    if key not in memo:
        memo[key] = _summary(entry)
    return {"id": entry.id, "source": entry.source, "run": entry.run} | memo[key]


def _summary(entry: Entry) -> dict[str, Any]:
    from heedful.loading import skeleton
    from heedful.tasks.pipeline import infer_task

    about: dict[str, Any] = dict.fromkeys(("kind", "family", "params", "head", "error")) | {"tasks": []}
    if entry.vectors:
        return about | {"kind": "vectors", "family": "word2vec"}
    if entry.path.suffix == ".gguf":  # opening one takes seconds: what all of them are is known without
        kinds = set(gguf_kinds())
        return about | {"kind": kinds.pop() if len(kinds) == 1 else None}
    try:
        model = skeleton(entry.name)
        # What it is for; the record has all it can do.
        tasks = ["summarization" if "task_prompt" in model.hf_config else infer_task(model)]
    except (HeedfulError, OSError, ValueError, KeyError) as error:
        return about | {"error": " ".join(str(error).split())}
    params = sum(p.numel() for p in model.parameters())
    return about | {
        "kind": model_kind(model), "family": model.family.name, "params": params, "head": model.config.head,
        "tasks": tasks,
    }  # fmt: skip


def gguf_kinds() -> Iterator[str]:
    """The kinds of model that are read from such files."""
    from heedful.loading import assemble
    from heedful.models import FAMILIES
    from heedful.nn.init import outline

    for family in FAMILIES.values():
        if family.gguf:
            with outline():
                yield model_kind(assemble(family, family.tiny))
