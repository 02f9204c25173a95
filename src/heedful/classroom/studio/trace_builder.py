"""From what a page asks to a trace: text cut to what fits, tokens replaced, more written, one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from heedful.classroom.figures.model_picture import LONGEST
from heedful.classroom.figures.patterns import group_words, marks_of
from heedful.classroom.figures.picture_choice import clearest_head, over_source, strongest_look
from heedful.classroom.figures.token_labels import readable, visible_tokens
from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.capabilities import context, describe_group, heads_of
from heedful.classroom.studio.jobs import check_waiting
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.traces import Edit, Trace, TraceRecorder
from heedful.core.errors import InputError
from heedful.core.images import draw_for_model
from heedful.data.tokenization import find_template
from heedful.decode.loop import stream
from heedful.interp.inputs import OPEN, Input, names_of, part_at, reading, token_id, written_ids
from heedful.interp.intervene.ablation import Ablation
from heedful.interp.observe.attention import divides_by_root, patterns_of
from heedful.interp.observe.mixing import attention_groups
from heedful.interp.observe.prediction import changed_position, default_position
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.attention.multi_head import SinkAttention

MOST = 1024  # tokens that are traced
PATTERN = 128 * 2**20  # bytes of one layer's pattern
SHARE = 224 * 2**20  # bytes of values that one pass may keep
WRITE = 24  # tokens an encoder-decoder writes by itself
TOP = 10  # predictions that are listed

Token = dict[str, Any]  # as docs/studio-api.md describes it


class SamplingOptions(BaseModel):
    """How tokens are drawn."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = Field(default=0, ge=0)


class TraceRequest(BaseModel):
    """One text for one model."""

    model: str
    text: str | None = None
    pair: str | None = None
    ids: list[int] | None = None
    target: str | list[int] | None = None
    generate: int = Field(default=0, ge=0, le=512)
    sampling: SamplingOptions = SamplingOptions()
    edit: Edit | None = None


def trace_words(loaded_model: LoadedModel, request: TraceRequest, id: str) -> Trace:
    """Return the vectors of the words of a text as a trace."""
    vectors = loaded_model.vectors
    text, warnings = tokens.tidy(request.text or "")
    words = tokens.words_of(vectors, text)[:MOST]
    missing = [w["text"] for w in words if w["id"] < 0]
    words = [w for w in words if w["id"] >= 0]
    if not words:
        raise InputError("no word of this text has a vector", hint="check its spelling and its case")
    if missing:
        warnings.append(f"{len(missing)} words have no vector and were left out: {', '.join(missing[:8])}")
    rows, names = [w["id"] for w in words], [w["text"] for w in words]
    value = torch.from_numpy(np.array(vectors.input[rows], dtype=np.float32))
    given, shapes = Input(torch.tensor([rows]), tuple(names)), {"vectors": tuple(value.shape)}
    response = {
        "id": id, "model": loaded_model.id, "tokens": words, "target": None, "written": None,
        "prompt": len(words), "cut": 0, "warnings": warnings, "groups": [], "shapes": shapes, "edited": False,
        "note": "word vectors attend to nothing: one vector for each word, in any context",
        "prediction": {"kind": "vectors", "position": 0, "top": []}, "generated": None, "change": None,
        "python": snippets.script(loaded_model.entry, f"print([vectors[word] for word in {names!r}])"),
    }  # fmt: skip
    return Trace(
        id, loaded_model.entry, text, given, Edit(), None, [], shapes, {"vectors": value}, None, response,
    )  # fmt: skip


class TraceBuilder:
    """One request while it is worked on."""

    def __init__(self, loaded_model: LoadedModel, request: TraceRequest) -> None:
        self.loaded_model, self.request = loaded_model, request
        self.edit = request.edit or Edit()
        self.model: Model = loaded_model.sequence
        self.heads = loaded_model.once("heads", lambda: heads_of(self.model))
        self.warnings: list[str] = []
        self.cut = 0
        self.pixels: Tensor | None = None  # of the image that a text is drawn as, if the model reads images
        self.generated: dict[str, Any] | None = None

    def trace(self, id: str) -> Trace:
        model, request = self.model, self.request
        texts = tuple(tokens.tidy(t)[0] for t in (request.text, request.pair) if t is not None)
        source = self.source()
        plain = [t["id"] for t in source]
        exact = self.cut == 0 and request.ids is None  # whether the texts alone give what is read
        exact = exact and (self.pixels is not None or plain == model.tokenizer.encoding(*texts).ids)
        source = self.replace_tokens(source, self.edit.tokens)
        ids = [t["id"] for t in source]
        prompt, target = len(ids), None
        if isinstance(model, Seq2Seq):
            target, prompt = self.target(ids)
        elif request.generate:
            # The last token that is written is not read again: it may stand behind the context.
            written = self.write(ids, request.generate)[: self.limit("tokens") - len(ids)]
            source, plain = source + tokens.tokens_of_ids(model, written), plain + written
            ids, exact = ids + written, exact and not written
        given = self.input(ids, target, source)
        edit, usual = self.edit, self.usual(given)
        shapes: dict[str, tuple[int, ...]] = {}
        room = SHARE

        def keep(name: str, value: Tensor) -> Tensor | None:
            """Keep values while there is room; scores are quickly computed again."""
            nonlocal room
            check_waiting()
            shapes[name] = tuple(value.shape)
            if name.endswith((".scores", ".bias")) or value.nbytes > room:
                return None
            room -= value.nbytes
            return value

        recorder = TraceRecorder(model, edit, usual, keep)
        with torch.no_grad():
            output = given.run(model, recorder)[0]
        recorder.values.pop("head.logits", None)  # it is the output
        text = (texts[0] if len(texts) == 1 else texts) if exact and ids == plain else None
        groups = attention_groups(model)
        trace = Trace(
            id, self.loaded_model.entry, text, given, edit, usual, groups, shapes, recorder.values, output
        )
        change = self.change(given, plain, output) if edit.any_off or ids != plain else None
        trace.response |= {
            "id": id, "model": self.loaded_model.id, "tokens": self.group_words(source),
            "target": None if target is None else self.group_words(target),
            "written": None if target is None else self.group_words(self.target_tokens(given, output)),
            "second": given.second, "prompt": prompt, "warnings": self.warnings, "cut": self.cut,
            "groups": self.describe_groups(trace),
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "note": "" if groups else f"{model.family.name} has no attention: look at its states",
            "prediction": tokens.prediction_at(model, output, default_position(model, given), TOP),
            "generated": self.generated, "causal": isinstance(model, LM) and model.causal,
            "look": self.clear_look(trace), "python": self.snippet(trace), "change": change,
            "edited": change is not None,
        }  # fmt: skip
        return trace

    def usual(self, inputs: Input) -> Input | None:
        """Return what the means are of that take the place of what is off."""
        if not self.edit.mean:
            return None
        reference = self.edit.reference
        return reading(self.model, tokens.tidy(reference)[0]) if reference else inputs

    def group_words(self, entries: list[Token]) -> list[Token]:
        """Return each token with the word it is a piece of, counted from 0."""
        mark = self.loaded_model.once("mark", lambda: marks_of(self.model))
        of = group_words(readable(self.model, [t["text"] for t in entries]), mark)
        return [token | {"word": word} for token, word in zip(entries, of, strict=True)]

    def target_tokens(self, inputs: Input, output: Tensor) -> list[Token]:
        """Return the word that each position of the target writes; its rows over the source carry it."""
        ids = written_ids(self.model, inputs, output[None])
        written = tokens.tokens_of_ids(self.model, [i for i in ids if i is not None])
        blank = {"id": -1, "text": OPEN, "shown": OPEN, "start": None, "end": None, "special": True}
        return written if ids[-1] is not None else [*written, blank]

    def limit(self, side: str) -> int:
        """How many tokens are read: the context's, and no more than a pattern of all heads has room for."""
        fits = max(16, math.isqrt(PATTERN // (4 * max(self.heads.values(), default=1))))
        return min(MOST, fits, context(self.model).get(side) or MOST)

    def source(self) -> list[Token]:
        """Return the tokens that are read, cut if there are too many; a warning reports the cut."""
        model, given = self.model, self.request.ids
        if model.image_processor is not None:
            return self.draw()
        limit = self.limit("source" if isinstance(model, Seq2Seq) else "tokens")
        if given is not None:
            source, count = tokens.tokens_of_ids(model, check_token_ids(model, given)[:limit]), len(given)
        else:
            source, count = self.encode_text(self.request.text or "", limit)
        if not source:
            raise InputError("the text is empty", hint="give at least one token")
        if isinstance(model, Seq2Seq) and given is None:  # as in training: with its end, if need be put there
            end = find_template(model.tokenizer, end=True).after
            if end and source[-1]["id"] != end[-1]:
                source = source[: limit - len(end)] + tokens.tokens_of_ids(model, end)
                count += len(end)
        self.warn(count, limit, "text")
        return source

    def draw(self) -> list[Token]:
        """Draw the text as an image for a model that reads images; what it reads are patches."""
        if self.request.ids is not None or self.edit.tokens or self.request.pair:
            raise InputError(
                "a patch of an image cannot be replaced like a token",
                hint="change the text: it is drawn, and read",
            )
        text, changes = tokens.tidy(self.request.text or "")
        if not text.strip():
            raise InputError("the text is empty", hint="give at least one letter to draw as an image")
        processor = self.model.image_processor
        image, notes = draw_for_model(text, processor, self.model.tokenizer)
        self.warnings += [*changes, "this model reads images: the text was drawn as one", *notes]
        self.pixels = processor(image).to(self.model.device)
        return [
            {"id": i, "text": name, "shown": name, "start": None, "end": None, "special": name[0] == "["}
            for i, name in enumerate(names_of(self.model, self.pixels))
        ]

    def encode_text(self, text: str, limit: int) -> tuple[list[Token], int]:
        """Return the first tokens of a text, with its pair behind it, and how many there are in all."""
        text, changes = tokens.tidy(text)
        self.warnings += changes
        if not self.request.pair:
            return tokens.token_positions(self.model, text, max_tokens=limit)
        if not isinstance(self.model, LM) or self.model.causal:
            raise InputError("only an encoder reads two texts at once", hint="put both into one text")
        pair, changes = tokens.tidy(self.request.pair)
        self.warnings += changes
        return tokens.token_positions(self.model, text, max_tokens=limit, pair=pair)

    def warn(self, count: int, limit: int, sequence_name: str) -> None:
        """Say what was cut."""
        if count > limit:
            self.cut += count - limit
            who = "this model reads" if limit < MOST else "the studio traces"
            length = f"the {sequence_name} has {count:,} tokens and {who} {limit:,}"
            self.warnings.append(f"{length}: the last {count - limit:,} were cut")

    def replace_tokens(
        self, entries: list[Token], edits: Mapping[str, int | str], side: str = "tokens"
    ) -> list[Token]:
        """Return the tokens with others in place of some."""
        entries = list(entries)
        for at, new in edits.items():
            if not at.lstrip("-").isdigit() or not -len(entries) <= int(at) < len(entries):
                raise InputError(f"unknown token {at!r} to replace", hint=f"they are 0 … {len(entries) - 1}")
            ids = check_token_ids(self.model, [token_id(self.model, new)], side)
            old = entries[int(at)]
            entries[int(at)] = tokens.tokens_of_ids(self.model, ids)[0] | {
                "start": old["start"], "end": old["end"],
            }  # fmt: skip
        return entries

    def target(self, ids: Sequence[int]) -> tuple[list[Token], int]:
        """Return the decoder's input, with its start token, and how much of it was given."""
        model, target, limit = self.model, self.request.target, self.limit("target")
        assert isinstance(model, Seq2Seq)
        start = tokens.tokens_of_ids(model, [model.start_token])
        if target is None:
            written = self.write(ids, self.request.generate or WRITE)[: limit - 1]
            read, prompt = start + tokens.tokens_of_ids(model, written), 1
        elif isinstance(target, str):
            read, count = self.encode_text(target, limit - 1)
            read, prompt = start + read, 1 + len(read)
            self.warn(count + 1, limit, "target")
        else:
            read = tokens.tokens_of_ids(model, check_token_ids(model, target, "target")[:limit])
            prompt = len(read)
            self.warn(len(target), limit, "target")
        return self.replace_tokens(read, self.edit.target_tokens, "target"), prompt

    def write(self, ids: Sequence[int], count: int) -> list[int]:
        """Go on from these ids, as the settings say; greedily by default."""
        model, settings = self.model, self.request.sampling.model_dump()
        room = MOST - (0 if isinstance(model, Seq2Seq) else len(ids))
        if count > room:
            self.warnings.append(f"{count} tokens were asked for and {max(room, 0)} are traced")
        if room < 1:
            return []
        prompt = list(ids) if self.pixels is None else self.pixels
        pieces = list(stream(model, prompt, max_tokens=min(count, room), **settings))
        finish = pieces[-1].finish
        written = pieces[:-1] if finish == "end" else pieces
        if finish == "context":
            self.warnings.append(f"the context was full after {len(pieces)} of {count} tokens")
        self.generated = {
            "text": "".join(p.text for p in pieces), "logprobs": [p.logprob for p in written],
            "finish": finish,
        }  # fmt: skip
        return [p.token for p in written]

    def input(self, ids: Sequence[int], target: list[Token] | None, source: list[Token]) -> Input:
        model = self.model
        read = torch.tensor([list(ids)], device=model.device) if self.pixels is None else self.pixels
        if target is not None:
            written = torch.tensor([[t["id"] for t in target]], device=model.device)
            return Input(read, names_of(model, read), written, names_of(model, written))
        sides, type_ids = [t.get("side") for t in source], [t.get("type", 0) for t in source]
        table = model.tables["tokens"].types
        minds = table is not None and 0 < max(type_ids) < table.num_embeddings
        types = torch.tensor([type_ids], device=model.device) if minds else None
        second = sides.index(1) if 1 in sides else None
        names = names_of(model, ids if self.pixels is None else read)
        return Input(read, names, types=types, second=second)

    @torch.no_grad()
    def change(self, inputs: Input, baseline: Sequence[int], output: Tensor) -> dict[str, Any]:
        """Return how the predictions moved, against the whole model on the tokens as they were."""
        plain = inputs.ids.new_tensor([baseline]) if self.pixels is None else self.pixels
        before = replace(inputs, ids=plain).run(self.model)[0]
        moved = Ablation(output[None], before[None]).change.reshape(-1)
        last = default_position(self.model, inputs)
        at, token = changed_position(self.model, inputs, moved, output)
        return {
            "kl": moved.tolist(), "kl_last": float(moved[last if len(moved) > 1 else 0]),
            "position": at, "token": visible_tokens(self.model, [token])[0],
            **tokens.matching_position(self.model, before, output, at, TOP),
        }  # fmt: skip

    def clear_look(self, trace: Trace) -> dict[str, Any] | None:
        """Return the head with the clearest matrix, on which a page opens, and its most telling row."""
        groups = over_source([group for group in trace.groups if group.kind == "softmax"])
        names = [f"{path}.pattern" for group in groups for path in group.layers]
        watched = {name: trace.values[name][None] for name in names if name in trace.values}
        given, output = trace.given, trace.output
        if not watched or output is None or max(given.ids.shape[1], len(given.tokens)) > LONGEST:
            return None
        patterns = patterns_of(self.model, given, watched, output[None])
        pattern, head = clearest_head(self.model, list(patterns.values()))
        _, _, row = strongest_look(self.model, given, [pattern], head, None)
        path = pattern.name.removesuffix(".pattern")
        group = next(group for group in groups if path in group.layers)
        return {"group": group.name, "layer": group.layers.index(path), "head": head, "row": row}

    def describe_groups(self, trace: Trace) -> list[dict[str, Any]]:
        """Return the groups of layers that attend, and how the scores of each become weights."""
        groups = []
        for group in trace.groups:
            parts = [part_at(self.model, path) for path in group.layers]
            sizes = [trace.shapes.get(f"{path}.q", (0,))[-1] for path in group.layers]
            root = [
                group.kind == "softmax" and size > 0 and divides_by_root(part, size)
                for part, size in zip(parts, sizes, strict=True)
            ]
            groups.append(describe_group(group, self.heads) | {
                "shape": list(trace.shapes[f"{group.layers[0]}.pattern"]), "divides_by_root": root,
                "sink": any(isinstance(part, SinkAttention) for part in parts),
            })  # fmt: skip
        return groups

    def snippet(self, trace: Trace) -> str:
        """Return the lines that give the first pattern, or the states, or what the edits change."""
        edit = trace.edit
        if edit.any_off:
            return snippets.of_trace(trace, "ablate", heads=edit.heads, layers=edit.layers, mean=edit.mean)
        if trace.groups:
            return snippets.of_trace(trace, "attention", name=trace.groups[0].layers[0])
        return snippets.of_trace(trace, "states")


def check_token_ids(model: Model, ids: Sequence[int], side: str = "tokens") -> list[int]:
    """Return ids that are tokens of the model's input or its target; raise InputError otherwise."""
    vocab = model.tables[side].vocab
    for i in ids:
        if not 0 <= i < vocab:
            raise InputError(f"unknown token {i}", hint=f"the vocabulary is 0 … {vocab - 1}")
    return list(ids)
