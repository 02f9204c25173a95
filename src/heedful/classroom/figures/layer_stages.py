"""The stages of a stack: its layers folded, and the chosen one part by part, by what each part is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from heedful.classroom.figures.part_equations import equations_of, title_of
from heedful.classroom.figures.picture_choice import HeadChoice, check_head, strongest_look
from heedful.interp.inputs import Input, Result, Side, attends_to_source, stack_of, stacks_of
from heedful.interp.observe.attention import Pattern
from heedful.interp.observe.mixing import AttentionGroup, attention_groups, mixer_of, window_of
from heedful.models.base import Model
from heedful.nn.attention.attentive import AttentiveUnit, Decoding, InputFeeding
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import Block, NamedParts
from heedful.nn.context import Part, Watch
from heedful.nn.moe import MoE
from heedful.nn.recurrent import Bidirectional, Recurrence
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba

LABELS = {
    "q": "query", "k": "key", "v": "value", "heads": "weighted sum", "h": "state h", "c": "cell c",
    "i": "input gate", "f": "forget gate", "o": "output gate", "g": "candidate", "r": "reset gate",
    "z": "update gate", "n": "candidate", "delta": "step Δ", "up": "up", "gate": "gate", "hidden": "hidden",
    "conv": "convolution", "skip": "skip D u", "value": "read",
}  # fmt: skip


WIDTH = 64  # numbers of a vector that are kept
HEAD_WIDTH = 256  # of a head's vector: a product of two is worked out number by number


@dataclass(frozen=True)
class VectorRows(Result):
    """The vectors of one watched value, one per token: the first `WIDTH` of `size` numbers each, of a
    head's vectors the first `HEAD_WIDTH`.

    `name` is the value's name in a Watch. For a value with heads or channels it is the entry `head` of
    the axis `axis` (counted without the batch). `lengths` are the norms of the whole vectors.
    """

    label: str
    name: str
    side: str  # whose tokens the rows are: a Side, or "text" where one vector stands for all
    numbers: Tensor  # (T, ≤ WIDTH or HEAD_WIDTH)
    lengths: Tensor  # (T,)
    size: int
    head: int | None = None
    axis: int = 0


@dataclass(frozen=True)
class HeadPattern(Result):
    """The pattern of one head of `heads`: (T, S), with the scores before the softmax where there are some.

    `unit` is the name of a head: a state space has channels. Kind "softmax": rows sum to 1. Kind
    "effective": signed, what a recurrence amounts to without what `leaves_out` names. `every_head` has the
    picture's row in all heads (H, S); `group` heads share their keys and values.
    """

    name: str
    head: int
    heads: int
    kind: str
    values: Tensor
    scores: Tensor | None
    queries: Side
    keys: Side
    every_head: Tensor
    group: int
    leaves_out: str = ""
    unit: str = "head"


@dataclass(frozen=True)
class ExpertChoice(Result):
    """A router's score of every expert (T, E), the experts each token goes to (T, k), and their weights."""

    name: str
    router: Tensor
    chosen: Tensor
    weights: Tensor


@dataclass(frozen=True)
class StagePrediction(Result):
    """The predictions, the most likely first: `names` and `chances` have a row for each of `rows`.

    Kind "words": one row per token; "labels": one; "tags": one per token; "spans": start and end;
    "vectors": none. `follows` says that a word is the one after its row, `filled_names` are what an
    encoder puts in place of the picture's row when that row is masked.
    """

    kind: str
    follows: bool
    rows: list[str]
    names: list[list[str]]
    chances: Tensor
    position: int
    filled_names: list[str] = field(default_factory=list)
    filled_chances: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class PartSize(Result):
    """A part of a layer that is not unfolded: its title, its equations, and the length of its output."""

    path: str
    title: str
    equations: list[str]
    lengths: Tensor  # (T,)


@dataclass(frozen=True)
class Stage(Result):
    """One station of the text on its way through the model.

    `kind` says how it is drawn: tokens, embedding, layer (folded: `parts`), norm, attention, sum, recurrence,
    state, mlp, experts, convolution, other, residual, memory, head. `page` and `params` lead to the page of
    the studio that shows more of it, `row_param` is the parameter that takes the row.
    """

    kind: str
    title: str
    path: str
    side: Side
    equations: list[str] = field(default_factory=list)
    note: str = ""
    vectors: list[VectorRows] = field(default_factory=list)
    pattern: HeadPattern | None = None
    experts: ExpertChoice | None = None
    prediction: StagePrediction | None = None
    parts: list[PartSize] = field(default_factory=list)
    page: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    row_param: str = ""


@dataclass(frozen=True)
class LayerStages:
    """The stages of the stack called `stack`, from the values of one pass."""

    model: Model
    inputs: Input
    watch: Watch
    patterns: Mapping[str, Pattern]
    choice: HeadChoice
    stack: str

    @property
    def side(self) -> Side:
        """Whose tokens the rows of this stack are."""
        return "target" if self.stack == "decoder" else "tokens"

    def vectors(
        self, label: str, name: str, *, head: int | None = None, axis: int = 0, side: str = ""
    ) -> VectorRows:
        """Return a watched value as rows of vectors; of a value with heads, the entry `head` of an axis."""
        value: Tensor = self.watch[name][0].detach().float().cpu()
        if head is not None:
            value = value.select(axis, head)
            value = value[:, None] if value.dim() == 1 else value
        value = value[None] if value.dim() == 1 else value.flatten(1)
        first = value[:, : WIDTH if head is None else HEAD_WIDTH].clone()
        size = value.shape[1]
        return VectorRows(label, name, side or self.side, first, value.norm(dim=-1), size, head, axis)

    def watched_vectors(self, path: str, *words: str) -> list[VectorRows]:
        """Return those of a part's values that were watched, under the words of the field."""
        names = {word: f"{path}.{word}" for word in words}
        return [self.vectors(LABELS.get(w, w), name) for w, name in names.items() if name in self.watch]

    def stage(
        self, kind: str, path: str, part: nn.Module, vectors: list[VectorRows], note: str = "", *,
        title: str = "", **more: Any,
    ) -> Stage:  # fmt: skip
        """Return a stage about a part, which gives its equations and, by default, its title."""
        return Stage(
            kind, title or title_of(part), path, self.side, equations_of(part), note, vectors, **more
        )

    def stages(self) -> list[Stage]:
        """Return a stage for every layer, and those of its parts for the chosen one."""
        stages: list[Stage] = []
        stack = stacks_of(self.model)[self.stack]
        for number in range(len(stack)):
            path, layer = f"{self.stack}.{number}", stack[number]
            if (self.stack, number) == (self.choice.stack, self.choice.layer):
                unfold = self.block_stages if isinstance(layer, NamedParts) else self.part_stages
                stages += unfold(path, layer)
            else:
                stages.append(self.layer_stage(path, number, layer))
        return stages

    def layer_stage(self, path: str, number: int, layer: Part) -> Stage:
        """Return a layer with the lengths of what its parts give."""
        inner = {path: layer}
        if isinstance(layer, NamedParts):
            inner = {f"{path}.{name}": layer.part(name) for name in layer.names}
        lengths = lambda name: self.watch[name][0].detach().float().norm(dim=-1).cpu()
        parts = [
            PartSize(name, title_of(part), equations_of(part), lengths(f"{name}.output"))
            for name, part in inner.items()
        ]
        output, title = [self.vectors("output", f"{path}.output")], f"Layer {number}"
        return self.stage("layer", path, layer, output, title=title, parts=parts, **self.lens_page(path))

    def block_stages(self, path: str, block: Part) -> list[Stage]:
        """Return the parts of a block, with their norms and what they add to the residual stream."""
        assert isinstance(block, NamedParts)
        stages: list[Stage] = []
        before = f"{path}.input"
        pre = not isinstance(block, Block) or block.order == "pre"
        for index, name in enumerate(block.names):
            last = index == len(block.names) - 1
            norm = block.norm_name(name)
            shown = (norm != "norm" or index == 0) and not isinstance(block.get_submodule(norm), nn.Identity)
            if pre and shown:
                # The page about norms works out the first of a block alone.
                params = {"topic": "block" if index else "norm", "part": path}
                rows, module = self.watched_vectors(f"{path}.{norm}", "output"), block.get_submodule(norm)
                stages.append(self.stage("norm", f"{path}.{norm}", module, rows, page="steps", params=params,
                                         row_param="q"))  # fmt: skip
            stages += self.part_stages(f"{path}.{name}", block.part(name))
            after = f"{path}.output" if last else f"{path}.after_{name}"
            if after in self.watch:
                stages.append(self.residual_stage(path, block, name, before, after, pre))
            before = after
        return stages

    def lens_page(self, path: str) -> dict[str, Any]:
        """Return the page of what each layer would say, set to that of a path if it is asked for words."""
        stack, number = path.split(".")[:2]
        params = {"l": int(number) + 1} if stack == stack_of(self.model)[0] else {}  # row 0 is the embedding
        return {"page": "layers", "params": params, "row_param": "pos"}

    def residual_stage(
        self, path: str, block: NamedParts, name: str, before: str, after: str, pre: bool
    ) -> Stage:
        """Return what a part adds to the residual stream, and the stream after it."""
        every = block.names if not isinstance(block, Block) else (name,)
        additions = [self.vectors(f"{title_of(block.part(n))} adds", f"{path}.{n}.output") for n in every]
        stream = [self.vectors("stream before", before)] if before in self.watch else []
        rows = [*stream, *additions, self.vectors("stream after", after)]
        title = "Residual stream" if pre else "Add and norm"
        equations = equations_of(block)
        equations = [equations[block.names.index(name)]] if isinstance(block, Block) else equations
        return Stage("residual", title, after, self.side, equations, "", rows, **self.lens_page(path))

    def part_stages(self, path: str, part: Part) -> list[Stage]:
        """Return the stages of one part, by what it is."""
        match part:
            case AttentiveUnit():
                return [*self.attention_stages(path, part), self.recurrence_stage(f"{path}.unit", part.unit)]
            case InputFeeding():
                cells = [
                    self.recurrence_stage(f"{path}.layers.{i}", cast(Recurrence, cell))
                    for i, cell in enumerate(part.layers)
                ]
                return [*cells, *self.attention_stages(path, part)]
            case Recurrence():
                return [self.recurrence_stage(path, part)]
            case Bidirectional():
                directions = {"ahead": part.ahead, "back": part.back}
                return [self.recurrence_stage(f"{path}.{name}", cell) for name, cell in directions.items()]
            case MoE():
                return [self.expert_stage(path, part)]
        if part.pattern_kind is not None:
            return self.attention_stages(path, part)
        by = mixer_of(part)
        kind = by if by == "convolution" else "mlp" if f"{path}.hidden" in self.watch else "other"
        window = window_of(part)
        note = "" if window is None else f"Each row sees {window} tokens."
        rows = self.watched_vectors(path, "value", "conv", "gate", "up", "hidden", "output")
        page, params = ("states", {"mlp": f"{path}.hidden"}) if kind == "mlp" else ("layers", {})
        return [self.stage(kind, path, part, rows, note, page=page, params=params)]

    def recurrence_stage(self, path: str, cell: Recurrence) -> Stage:
        """Return a recurrent cell, unrolled: its gates and its state after every token."""
        direction = "from the last token to the first" if cell.reverse else "from token to token"
        rows, params = self.watched_vectors(path, *cell.shown), {"part": path}
        return self.stage(
            "recurrence", path, cell, rows, f"Unrolled {direction}.", page="states", params=params
        )

    def expert_stage(self, path: str, part: MoE) -> Stage:
        """Return a mixture of experts: how the router likes each, and which it chooses."""
        router, expert_ids, weights = (
            self.watch[f"{path}.{w}"][0].cpu() for w in ("router", "chosen", "weights")
        )
        experts = ExpertChoice(path, router.float(), expert_ids, weights.float())
        routing = f"Every token goes to {expert_ids.shape[-1]} of {router.shape[-1]} experts"
        note = f"{routing}{'.' if part.shared is None else ', and to one that all share.'}"
        rows = self.watched_vectors(path, "output")
        return self.stage("experts", path, part, rows, note, experts=experts, **self.lens_page(path))

    def attention_stages(self, path: str, part: Part) -> list[Stage]:
        """Return one head's pattern, and the weighted sum it takes; of a state space, its state between."""
        group = next(g for g in attention_groups(self.model) if path in g.layers)
        pattern = self.head_pattern(path, part, group)
        at = {"g": group.name, "l": group.layers.index(path), "h": pattern.head}
        look, total = self.look_stage(path, part, pattern, at), self.sum_stage(path, part, pattern, at)
        return (
            [look, self.state_stage(path, pattern), total]
            if isinstance(part, S4 | Mamba | Mamba2 | GatedDeltaNet)
            else [look, total]
        )

    def of_head(self, path: str, word: str, pattern: HeadPattern) -> list[VectorRows]:
        """Return one head's queries, keys, values or sums, if they were watched; heads may share keys."""
        name = f"{path}.{word}"
        if name not in self.watch:
            return []
        head = pattern.head * self.watch[name].shape[1] // pattern.heads
        return [self.vectors(LABELS[word], name, head=head, side=pattern.keys if word in ("k", "v") else "")]

    def look_stage(self, path: str, part: Part, pattern: HeadPattern, at: dict[str, Any]) -> Stage:
        """Return what one head looks at."""
        unit = pattern.unit
        title = "Alignment" if isinstance(part, Decoding) else title_of(part)
        title += f", {unit} {pattern.head}" if pattern.heads > 1 else ""
        note = f"One of {pattern.heads} {unit}s." if pattern.heads > 1 else ""
        if pattern.kind == "effective":
            difference = mixer_of(part) == "attention"
            what = (
                "one softmax is taken from another"
                if difference
                else "what the recurrence amounts to, token by token"
            )
            note += f" The weights are signed: {what}."
        equations = equations_of(part.score if isinstance(part, Decoding) else part)
        bias = stacks_of(self.model)[self.stack].bias
        if bias is not None and not attends_to_source(part):
            equations += equations_of(bias)
        rows = [*self.of_head(path, "q", pattern), *self.of_head(path, "k", pattern)]
        return Stage("attention", title, path, self.side, equations, note.strip(), rows, pattern,
                     page="attention", params=at, row_param="q")  # fmt: skip

    def sum_stage(self, path: str, part: Part, pattern: HeadPattern, at: dict[str, Any]) -> Stage:
        """Return the values that a head reads and their weighted sum; its page works it out, where it can."""
        is_alignment = isinstance(part, Decoding)
        title = "Context vector" if is_alignment else "Weighted sum of values"
        equation = "c_t = Σ_j α_tj m_j" if is_alignment else "z_i = Σ_j A_ij v_j"
        page, params = "attention", at
        if isinstance(part, Attention | CrossAttention | Decoding):
            page, params = "steps", {"topic": "alignment"} if is_alignment else {"topic": "attention", **at}
        rows = [*self.of_head(path, "v", pattern), *self.of_head(path, "heads", pattern)]
        return Stage("sum", title, path, self.side, [equation], "", rows, pattern, page=page, params=params,
                     row_param="q")  # fmt: skip

    def state_stage(self, path: str, pattern: HeadPattern) -> Stage:
        """Return the state of one channel or head after every token, and how far each token moves it."""
        words = [word for word in ("delta", "h") if f"{path}.{word}" in self.watch]
        rows = [self.vectors(LABELS[word], f"{path}.{word}", head=pattern.head, axis=1) for word in words]
        size = "a few numbers for each channel" if pattern.unit == "channel" else "one matrix per head"
        title, note = f"State, {pattern.unit} {pattern.head}", f"What is carried from token to token: {size}."
        return Stage("state", title, path, self.side, [], note, rows, page="states",
                     params={"part": path})  # fmt: skip

    def head_pattern(self, path: str, part: Part, group: AttentionGroup) -> HeadPattern:
        """Return the pattern of the chosen head; of another part of the layer, that of its strongest look."""
        pattern, head = self.patterns[f"{path}.pattern"], self.choice.head
        check_head(pattern.name, head if path == self.choice.path else None, pattern.heads)
        if path != self.choice.path or head is None:
            _, head, _ = strongest_look(self.model, self.inputs, [pattern], None, self.choice.row)
        scores = None
        if f"{path}.scores" in self.watch:
            scores = self.watch[f"{path}.scores"][0, head].float().cpu()
        values = pattern.values[head].float().cpu()
        row = min(self.choice.row, values.shape[0] - 1) if self.stack == self.choice.stack else -1
        every_head = pattern.values[:, row].float().cpu()
        keys = self.watch[f"{path}.k"].shape if f"{path}.k" in self.watch else ()
        shared = pattern.heads // keys[1] if len(keys) == 4 else 1
        return HeadPattern(
            pattern.name, head, pattern.heads, pattern.kind, values, scores, group.queries, group.keys,
            every_head, shared, pattern.leaves_out, "channel" if isinstance(part, S4 | Mamba) else "head",
        )  # fmt: skip
