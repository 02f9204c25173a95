"""From what a page asks to a trace: text cut to what fits, tokens replaced, more written, one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.classroom.figures.model_picture import LONGEST
from heedful.classroom.figures.patterns import group_words, marks_of
from heedful.classroom.figures.picture_choice import clearest_head, over_source, strongest_look
from heedful.classroom.figures.token_labels import readable, visible_tokens
from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.capabilities import context, describe_group, heads_of
from heedful.classroom.studio.model_registry import LoadedModel, Ticket
from heedful.classroom.studio.traces import Edits, Trace, TraceRecorder
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
WRITE = 24  # tokens an encoder-decoder writes by itself

TraceRequest = Mapping[str, Any]


def trace_words(loaded_model: LoadedModel, request: TraceRequest, id: str) -> Trace:
    """Return the vectors of the words of a text as a trace."""
    vectors = loaded_model.vectors
    text, warnings = tokens.tidy(request["text"] or "")
    words = tokens.words_of(vectors, text)[:MOST]
    rows = [w["id"] for w in words if w["id"] >= 0]
    if not rows:
        raise InputError("no word of this text has a vector", hint="check its spelling and its case")
    if len(rows) < len(words):
        missing = [w["text"] for w in words if w["id"] < 0]
        warnings.append(f"{len(missing)} words have no vector and were left out: {', '.join(missing[:8])}")
    words = [w for w in words if w["id"] >= 0]
    value = torch.from_numpy(np.array(vectors.input[rows], dtype=np.float32))
    given = Input(torch.tensor([rows]), tuple(w["text"] for w in words))
    trace = Trace(
        id, loaded_model.entry, text, given, Edits(), words, None, None, [], {"vectors": tuple(value.shape)},
        {"vectors": value}, None,
    )  # fmt: skip
    lines = f"print([vectors[word] for word in {[w['text'] for w in words]!r}])"
    trace.answer = {
        "id": id, "model": loaded_model.id, "tokens": words, "target": None, "written": None,
        "prompt": len(words), "cut": 0, "warnings": warnings, "groups": [],
        "shapes": {"vectors": list(value.shape)}, "edited": False,
        "note": "word vectors attend to nothing: one vector for each word, in any context",
        "prediction": {"kind": "vectors", "position": 0, "top": []}, "generated": None, "change": None,
        "python": snippets.script(loaded_model.entry, lines),
    }  # fmt: skip
    return trace


class TraceBuilder:
    """One request while it is worked on."""

    def __init__(self, loaded_model: LoadedModel, request: TraceRequest, ticket: Ticket) -> None:
        self.loaded_model, self.request, self.ticket = loaded_model, request, ticket
        self.model: Model = loaded_model.sequence
        self.heads = loaded_model.once("heads", lambda: heads_of(self.model))
        self.warnings: list[str] = []
        self.cut = 0
        self.pixels: Tensor | None = (
            None  # of the image that a text is drawn as, for a model that reads images
        )
        self.generated: dict[str, Any] | None = None

    def trace(self, id: str) -> Trace:
        model, request = self.model, self.request
        groups = attention_groups(model)
        source = self.source()
        plain = [t["id"] for t in source]
        exact = self.cut == 0 and request.get("ids") is None and plain == self.alone()
        source = self.replace_tokens(source, request.get("tokens") or {})
        ids = [t["id"] for t in source]
        prompt, target = len(ids), None
        if isinstance(model, Seq2Seq):
            target, prompt = self.target(ids)
        elif request.get("generate"):
            # The last token that is written is not read again: it may stand behind the context.
            written = self.write(ids, request["generate"])[: self.limit("tokens") - len(ids)]
            source, plain = source + tokens.tokens_of_ids(model, written), plain + written
            ids, exact = ids + written, exact and not written
        given = self.input(ids, target, source)
        edits = self.edits(given)
        recorder = TraceRecorder(edits.watch(model), self.ticket)
        with torch.no_grad():
            output = given.run(model, recorder)[0]
        read = self.texts() if exact and ids == plain else None
        text = read[0] if read is not None and len(read) == 1 else read
        spoken = None if target is None else self.group_words(self.target_tokens(given, output))
        source, target = self.group_words(source), None if target is None else self.group_words(target)
        trace = Trace(
            id, self.loaded_model.entry, text, given, edits, source, target, spoken, groups, recorder.shapes,
            dict(recorder.values), output,
        )  # fmt: skip
        trace.values.pop("head.logits", None)  # it is the output
        change = self.change(given, plain, output) if edits.any or ids != plain else None
        trace.answer = self.response(trace, prompt) | {"change": change, "edited": change is not None}
        return trace

    def edits(self, inputs: Input) -> Edits:
        """What is switched off, and what is put in its place."""
        heads, layers = self.request.get("heads") or {}, self.request.get("layers") or ()
        if not self.request.get("mean"):
            return Edits(heads, layers)
        reference = self.request.get("reference") or None
        usual = inputs if reference is None else reading(self.model, tokens.tidy(reference)[0])
        return Edits(heads, layers, usual, reference)

    def texts(self) -> tuple[str, ...]:
        """The text, or the two of a pair."""
        given = (self.request["text"], self.request.get("pair"))
        return tuple(tokens.tidy(t)[0] for t in given if t is not None)

    def alone(self) -> list[int]:
        """The ids that the text alone gives, or the pair; of an image the numbers of its patches."""
        if self.pixels is not None:
            return list(range(len(names_of(self.model, self.pixels))))
        return list(self.model.tokenizer.encoding(*self.texts()).ids)

    def group_words(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Each token with the word it is a piece of, counted from 0."""
        mark = self.loaded_model.once("mark", lambda: marks_of(self.model))
        of = group_words(readable(self.model, [t["text"] for t in listed]), mark)
        return [token | {"word": word} for token, word in zip(listed, of, strict=True)]

    def target_tokens(self, inputs: Input, output: Tensor) -> list[dict[str, Any]]:
        """The word that each position of the target writes; its rows over the source carry it."""
        ids = written_ids(self.model, inputs, output[None])
        written = tokens.tokens_of_ids(self.model, [i for i in ids if i is not None])
        blank = {"id": -1, "text": OPEN, "shown": OPEN, "start": None, "end": None, "special": True}
        return written if ids[-1] is not None else [*written, blank]

    def limit(self, side: str) -> int:
        """How many tokens are read: the context's, and no more than a pattern of all heads has room for."""
        widest = max(self.heads.values(), default=1)
        fits = max(16, math.isqrt(PATTERN // (4 * widest)))
        reach = context(self.model).get(side)
        return min(MOST, fits, MOST if reach is None else reach)

    def source(self) -> list[dict[str, Any]]:
        """The tokens that are read, cut if there are too many; a warning reports the cut."""
        model, given = self.model, self.request.get("ids")
        if model.image_processor is not None:
            return self.draw()
        limit = self.limit("source" if isinstance(model, Seq2Seq) else "tokens")
        if given is not None:
            source, count = tokens.tokens_of_ids(model, check_token_ids(model, given)[:limit]), len(given)
        else:
            source, count = self.encode_text(self.request.get("text") or "", limit)
        if not source:
            raise InputError("the text is empty", hint="give at least one token")
        if isinstance(model, Seq2Seq) and given is None:
            source, count = self.add_special_tokens(source, count, limit)
        self.warn(count, limit, "text")
        return source

    def draw(self) -> list[dict[str, Any]]:
        """Draw the text as an image for a model that reads images; what it reads are patches."""
        if self.request.get("ids") is not None or self.request.get("tokens") or self.request.get("pair"):
            raise InputError(
                "a patch of an image is not a token", hint="change the text: it is drawn, and read"
            )
        text, changes = tokens.tidy(self.request.get("text") or "")
        if not text.strip():
            raise InputError("the text is empty", hint="give at least one letter, which is drawn as an image")
        processor = self.model.image_processor
        image, notes = draw_for_model(text, processor, self.model.tokenizer)
        self.warnings += [*changes, "this model reads images: the text was drawn as one", *notes]
        self.pixels = processor(image).to(self.model.device)
        return [
            {"id": i, "text": name, "shown": name, "start": None, "end": None, "special": name[0] == "["}
            for i, name in enumerate(names_of(self.model, self.pixels))
        ]

    def encode_text(self, text: str, limit: int) -> tuple[list[dict[str, Any]], int]:
        text, changes = tokens.tidy(text)
        self.warnings += changes
        pair = self.request.get("pair")
        if not pair:
            return tokens.token_positions(self.model, text, max_tokens=limit)
        if not isinstance(self.model, LM) or self.model.causal:
            raise InputError("two texts at once are read by an encoder", hint="put both into one text")
        pair, changes = tokens.tidy(pair)
        self.warnings += changes
        return tokens.token_positions(self.model, text, max_tokens=limit, pair=pair)

    def add_special_tokens(
        self, listed: list[dict[str, Any]], count: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """A source as an encoder-decoder read it in training: with its end, if need be put there."""
        tokenizer = self.model.tokenizer
        end = find_template(tokenizer, end=True).after
        if not end or listed[-1]["id"] == end[-1]:
            return listed, count
        return listed[: limit - len(end)] + tokens.tokens_of_ids(self.model, end), count + len(end)

    def warn(self, count: int, limit: int, sequence_name: str) -> None:
        """Say what was cut."""
        if count > limit:
            self.cut += count - limit
            who = "this model reads" if limit < MOST else "the studio traces"
            length = f"the {sequence_name} has {count:,} tokens and {who} {limit:,}"
            self.warnings.append(f"{length}: the last {count - limit:,} were cut")

    def replace_tokens(
        self, listed: list[dict[str, Any]], edits: Mapping[str, int | str], side: str = "tokens"
    ) -> list[dict[str, Any]]:
        """The tokens with others in place of some."""
        listed = list(listed)
        for at, new in edits.items():
            if not at.lstrip("-").isdigit() or not -len(listed) <= int(at) < len(listed):
                raise InputError(f"unknown token {at!r} to replace", hint=f"they are 0 … {len(listed) - 1}")
            (id,) = check_token_ids(self.model, [token_id(self.model, new)], side)
            (token,) = tokens.tokens_of_ids(self.model, [id])
            old = listed[int(at)]
            listed[int(at)] = token | {"start": old["start"], "end": old["end"]}
        return listed

    def target(self, ids: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
        """The decoder's input, with its start token, and how much of it was given."""
        model, target = self.model, self.request.get("target")
        assert isinstance(model, Seq2Seq)
        start = tokens.tokens_of_ids(model, [model.start_token])
        if target is None:
            written = self.write(ids, self.request.get("generate") or WRITE)[: self.limit("target") - 1]
            read, prompt = start + tokens.tokens_of_ids(model, written), 1
        else:
            limit = self.limit("target")
            if isinstance(target, str):
                read, count = self.encode_text(target, limit - 1)
                read, count = start + read, count + 1
            else:
                read, count = (
                    tokens.tokens_of_ids(model, check_token_ids(model, target, "target")[:limit]),
                    len(target),
                )
            self.warn(count, limit, "target")
            prompt = len(read)
        return self.replace_tokens(read, self.request.get("target_tokens") or {}, "target"), prompt

    def write(self, ids: Sequence[int], count: int) -> list[int]:
        """Go on from these ids, as the settings say; greedily by default."""
        model, settings = self.model, dict(self.request.get("sampling") or {})
        room = MOST - (0 if isinstance(model, Seq2Seq) else len(ids))
        if count > room:
            self.warnings.append(f"{count} tokens were asked for and {max(room, 0)} are traced")
        if room < 1:
            return []
        pieces = []
        prompt = list(ids) if self.pixels is None else self.pixels
        for piece in stream(model, prompt, max_tokens=min(count, room), **settings):
            self.ticket.check()
            pieces.append(piece)
        ended = pieces[-1].finish == "end"
        written = pieces[:-1] if ended else pieces
        if pieces[-1].finish == "context":
            self.warnings.append(f"the context was full after {len(pieces)} of {count} tokens")
        self.generated = {
            "text": "".join(p.text for p in pieces), "logprobs": [p.logprob for p in written],
            "finish": pieces[-1].finish,
        }  # fmt: skip
        return [p.token for p in written]

    def input(
        self, ids: Sequence[int], target: list[dict[str, Any]] | None, source: list[dict[str, Any]]
    ) -> Input:
        model = self.model
        read = torch.tensor([list(ids)], device=model.device) if self.pixels is None else self.pixels
        if target is None:
            sides, type_ids = [t.get("side") for t in source], [t.get("type", 0) for t in source]
            table = model.tables["tokens"].types
            minds = table is not None and 0 < max(type_ids) < table.num_embeddings
            types = torch.tensor([type_ids], device=model.device) if minds else None
            second = sides.index(1) if 1 in sides else None
            return Input(read, names_of(model, ids), types=types, second=second)
        written = torch.tensor([[t["id"] for t in target]], device=model.device)
        return Input(read, names_of(model, read), written, names_of(model, written))

    def change(self, inputs: Input, baseline: Sequence[int], output: Tensor) -> dict[str, Any]:
        """How the predictions moved: against the model with everything on, on the tokens as they were."""
        with torch.no_grad():
            plain = inputs.ids.new_tensor([baseline]) if self.pixels is None else self.pixels
            before = replace(inputs, ids=plain).run(self.model)[0]
        moved = Ablation(output[None], before[None]).change.reshape(-1)
        last = default_position(self.model, inputs)
        at, token = changed_position(self.model, inputs, moved, output)
        return {
            "kl": moved.tolist(), "kl_last": float(moved[last if len(moved) > 1 else 0]),
            "position": at, "token": visible_tokens(self.model, [token])[0],
            **tokens.matching_position(self.model, before, output, at, 10),
        }  # fmt: skip

    def clear_look(self, trace: Trace) -> dict[str, Any] | None:
        """Return the head with the clearest matrix, on which a page opens, and its most telling row."""
        groups = over_source([group for group in trace.groups if group.kind == "softmax"])
        names = [f"{path}.pattern" for group in groups for path in group.layers]
        watched = {name: trace.values[name][None] for name in names if name in trace.values}
        if not watched or trace.output is None or max(trace.given.ids.shape[1], len(trace.tokens)) > LONGEST:
            return None
        patterns = patterns_of(self.model, trace.given, watched, trace.output[None])
        pattern, head = clearest_head(self.model, list(patterns.values()))
        _, _, row = strongest_look(self.model, trace.given, [pattern], head, None)
        path = pattern.name.removesuffix(".pattern")
        group = next(group for group in groups if path in group.layers)
        return {"group": group.name, "layer": group.layers.index(path), "head": head, "row": row}

    def response(self, trace: Trace, prompt: int) -> dict[str, Any]:
        model, output, edits = self.model, trace.output, trace.edits
        assert output is not None
        groups = []
        for group in trace.groups:
            shape = trace.shapes[f"{group.layers[0]}.pattern"]
            sizes = [trace.shapes.get(f"{path}.q", (0,))[-1] for path in group.layers]
            parts = [part_at(model, path) for path in group.layers]
            plain = group.kind == "softmax"
            root = [
                plain and size > 0 and divides_by_root(p, size) for p, size in zip(parts, sizes, strict=True)
            ]
            sink = any(isinstance(part, SinkAttention) for part in parts)
            scores = {"shape": list(shape), "divides_by_root": root, "sink": sink}
            groups.append(describe_group(group, self.heads) | scores)
        at = default_position(model, trace.given)
        note = "" if groups else f"{model.family.name} attends to nothing: look at its states"
        view, more = ("attention", {"name": groups[0]["layers"][0]}) if groups else ("states", {})
        if edits.any:  # what was switched off, as keywords
            options = {
                "heads": dict(edits.heads),
                "layers": list(edits.layers),
                "mean": edits.mean is not None,
            }
            view, more = "ablate", options
        return {
            "id": trace.id, "model": self.loaded_model.id, "tokens": trace.tokens, "target": trace.target,
            "written": trace.written, "second": trace.given.second,
            "prompt": prompt, "warnings": self.warnings, "cut": self.cut, "groups": groups,
            "shapes": {name: list(shape) for name, shape in trace.shapes.items()}, "note": note,
            "prediction": tokens.prediction_at(model, output, at, 10), "generated": self.generated,
            "causal": isinstance(model, LM) and model.causal, "look": self.clear_look(trace),
            "python": snippets.of_trace(trace, view, **more),
        }  # fmt: skip


def check_token_ids(model: Model, ids: Sequence[int], side: str = "tokens") -> list[int]:
    """Return ids that are tokens of the model's input or its target; raise InputError otherwise."""
    vocab = model.tables[side].vocab
    for i in ids:
        if not 0 <= i < vocab:
            raise InputError(f"unknown token {i}", hint=f"the vocabulary is 0 … {vocab - 1}")
    return list(ids)
