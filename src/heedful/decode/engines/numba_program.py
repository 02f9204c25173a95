"""A decoder's step on a CPU as one call: a list of instructions, written from the model's parts.

A `Program` knows parts, not models. A part it does not know, or a matrix it cannot read, and there is no
list: the plain step is used. What the instructions mean is in `kernels/cpu/rows.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.decode.engines.fallback import UnsupportedPart, find_fallback_reason
from heedful.decode.engines.numba_stepper import kv_caches, plain_dtype
from heedful.decode.slots import EagerSlots, Slot
from heedful.kernels.cpu import rows as R
from heedful.kernels.cpu.block_tensor import SIZES, STRIPE, BlockTensor
from heedful.kernels.cpu.blocks import (
    GROUP,
    RECORD,
    dot_kernel,
    stripe_kernel,
    values_kernel,
)  # fmt: skip
from heedful.kernels.cpu.team import Team
from heedful.models.base import LM, Seq2Seq
from heedful.nn.adapt import KeptHeads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, Activation, GatedMLP, gelu_tanh, squared_relu
from heedful.nn.head import LMHead
from heedful.nn.norm import LayerNorm, RMSNorm, norm_size
from heedful.nn.position import ALiBi, Learned, Rotary, Sinusoidal
from heedful.nn.quantised import Int4Linear, Int8Embedding, Int8Linear, TiedLinear
from heedful.nn.state import KV, SlidingKV

ACTS: dict[Activation, int] = {
    F.relu: R.RELU, F.gelu: R.GELU, gelu_tanh: R.GELU_TANH, F.silu: R.SILU, F.tanh: R.TANH,
    torch.tanh: R.TANH, squared_relu: R.SQUARED_RELU,
}  # fmt: skip


PIECE_BYTES, MAX_PIECES = 1 << 16, 256  # of weights that a thread takes at once
MANY_ROWS_PIECES = 64  # at most, where weights stay near while many rows are multiplied
PROMPT_ROWS = 128  # tokens of prompts that one call reads at most next to other texts
LOGITS = -1  # the place of logits, which are not in the workspace
FIELDS = {name.lower(): place for name, place in vars(R).items() if isinstance(place, int)}
KINDS = {"F32": R.FLOAT32, "F16": R.FLOAT16, "BF16": R.FLOAT16}  # of matrices that are multiplied as floats
SHORT_FLOATS = {torch.float16: "F16", torch.bfloat16: "BF16"}
Layer = Any  # nn.Linear, nn.Embedding, or what stands for one with whole numbers
Product = tuple[Layer, int] | tuple[Layer, int, int, int]  # a layer, where to, how, and an activation


@dataclass
class Program:
    """The instructions of one model, and everything they point to."""

    model: LM
    capacity: int  # positions that tables reach
    stripes: bool = True  # whether rows of floats and of int8 may be copied to stripes for many vectors
    code: list[list[int]] = field(default_factory=list)
    reals: list[float] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # what instructions point to
    rotary_tables: dict[int, tuple[int, int]] = field(default_factory=dict)  # a rotary's tables, made once
    size: int = 0  # of a row of the workspace
    copies: bool = False  # whether there are copies of weights, which may change
    slopes: Tensor | None = None  # the distances' weights, a head each
    layers: int = 0  # attentions so far: each has a cache
    # What ROUND made last: the place it is from, the size of its groups, and whether they are records.
    rounded: tuple[int, int, bool] | None = None

    def __post_init__(self) -> None:
        """Places for what every layer uses in turn, then the instructions in the order of the model."""
        model, parts = self.model, list(self.model.modules())
        self.is_wide = plain_dtype(model) == torch.float32
        attentions = [p for p in parts if isinstance(p, Attention)]
        hidden = [p.up.out_features for p in parts if isinstance(p, (MLP, GatedMLP))]
        widths = [max((getattr(p, name).out_features for p in attentions), default=0) for name in "qkvq"]
        self.widest = max([model.config.dim, *hidden, *widths])
        together = max((len(p.norm_names) for p in parts if type(p) is ParallelBlock), default=1)
        self.normed = [self.reserve(model.config.dim) for _ in range(together)]
        self.hidden = self.reserve(max(hidden, default=0))
        group = min([GROUP, *(p.group for p in parts if isinstance(p, Int4Linear))])
        # Of a rounded row: records of groups, or numbers of 16 bits with gains and sums (rows.py:round_row).
        sizes = RECORD * -(-self.widest // GROUP), 2 * (self.widest + 1) + 8 * -(-self.widest // group)
        self.rounded_bytes = -(-max(sizes) // 64) * 64
        self.q, self.k, self.v, self.heads = (self.reserve(width) for width in widths)
        x = self.embed(model.embed)
        if type(model.blocks.bias) is ALiBi:
            self.slopes = model.blocks.bias.slopes(torch.device("cpu"))
        elif model.blocks.bias is not None:
            raise UnsupportedPart(type(model.blocks.bias).__name__)
        if model.blocks.narrow is not None:
            raise UnsupportedPart("layers wider than the head")
        for i in range(len(model.blocks)):
            self.block(model.blocks[i], x)
        if model.blocks.norm is not None:
            self.norm(model.blocks.norm, x, x)
        self.head(model.head, x)

    def reserve(self, size: int) -> int:
        """Room in a row of the workspace, on its own cache line."""
        start = self.size
        self.size += -(-size // 16) * 16
        return start

    def address(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Return the address of a tensor that a kernel can read; it is kept while instructions use it."""
        if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise UnsupportedPart(f"a {tensor.dtype} tensor on {tensor.device}")
        if dtype in SHORT_FLOATS and self.is_wide:
            raise UnsupportedPart("weights of 16 bits with a table of others")
        self.tensors.append(tensor)
        return tensor.data_ptr()

    def table(self, tensor: Tensor) -> int:
        """Return the address of a tensor in float32, which may be a copy."""
        if tensor.dtype in SHORT_FLOATS and self.is_wide:
            raise UnsupportedPart("weights of 16 bits with a table of others")
        self.copies = self.copies or (isinstance(tensor, nn.Parameter) and tensor.dtype != torch.float32)
        return self.address(tensor.float().contiguous())

    def emit(self, op: int, real: float = 0.0, /, **fields: int) -> None:
        line = [0] * R.FIELDS
        line[R.OP] = op
        for name, value in fields.items():
            line[FIELDS[name]] = value
        if op not in (R.LINEAR, R.ROUND):
            self.rounded = None
        self.code.append(line)
        self.reals.append(real)

    def embed(self, part: Embedding) -> int:
        x, position = self.reserve(part.token.embedding_dim), part.position
        reach = torch.arange(self.capacity)[None]
        where = 0
        if type(position) is Learned:
            where = self.table(position.weight) + 4 * position.offset * position.embedding_dim
        elif type(position) is Sinusoidal:
            where = self.table(position(reach)[0])
        elif position is not None:
            raise UnsupportedPart(type(position).__name__)
        fields = {"in": part.token.embedding_dim, **self.matrix(part.token)}
        self.emit(R.EMBED, part.scale, to=x, bias=where, **fields)
        if part.norm is not None:
            self.norm(part.norm, x, x)
        return x

    def norm(self, part: nn.Module, source: int, to: int) -> None:
        if type(part) is LayerNorm:
            kind, size, bias = 0, part.normalized_shape[0], part.bias
        elif type(part) is RMSNorm:
            kind, size, bias = 1, part.weight.shape[0], None
        else:
            raise UnsupportedPart(type(part).__name__)
        where = 0 if bias is None else self.table(bias)
        fields = {"from": source, "in": size, "weight": self.table(part.weight), "bias": where}
        self.emit(R.NORM, part.eps, to=to, kind=kind, **fields)

    def matrix(self, part: Layer) -> dict[str, int]:
        """Return the fields of an instruction that reads the matrix of a part, by its kind."""
        weight, table = part.weight, isinstance(part, nn.Embedding)
        kind, stored = "F32", weight
        if isinstance(weight, BlockTensor) and weight.dense is None:
            kind, stored = weight.kind, weight.blocks
        elif weight.dtype in SHORT_FLOATS:
            kind = SHORT_FLOATS[weight.dtype]
        if stored is not weight or type(part) is nn.Linear or type(part) is nn.Embedding:
            columns, block = weight.shape[1], SIZES[kind][0]
            fields = {"kind": KINDS.get(kind, R.BLOCKS), "weight": self.address(stored, stored.dtype)}
            if columns % block == 0:
                fields |= {"row_bytes": stored.shape[1] * stored.itemsize, "row_blocks": columns // block}
                fields |= {"group": 0 if kind in KINDS else GROUP}
                if table and kind != "F32":
                    fields["kernel"] = values_kernel(kind)
                elif kind not in KINDS:
                    fields["stripes"] = stripe_kernel(kind)
                elif not table:
                    fields |= self.kernels(kind)
            elif kind != "F32":
                raise UnsupportedPart(f"rows of {columns} numbers in {kind}")
            return fields
        if type(part) is Int4Linear:
            fields = {"kind": R.INT4, "weight": self.address(weight, torch.uint8), "group": part.group}
        elif type(part) is Int8Linear or type(part) is TiedLinear or type(part) is Int8Embedding:
            size = weight.shape[1]
            fields = {"kind": R.INT8, "weight": self.address(weight, torch.int8), "group": GROUP}
            if size % GROUP == 0:
                fields |= {"row_bytes": size, "row_blocks": size // GROUP, **self.kernels("I8")}
        else:
            raise UnsupportedPart(type(part).__name__)
        return fields | {"scale": self.address(part.scale)}

    def kernels(self, kind: str) -> dict[str, int]:
        """Return the addresses of the code that multiplies with rows: one vector, and several or many."""
        if self.stripes:
            return {"kernel": dot_kernel(kind), "stripes": stripe_kernel(kind)}
        return {"kernel": dot_kernel(kind), "several": dot_kernel(kind, R.SEVERAL_VECTORS)}

    def linear(self, source: int, *products: Product, scale: float = 1.0) -> None:
        """y = act(scale · W x + b) put at its place, added to what is there, or multiplied with it.

        Threads share several products of one x together; a piece of one follows that of the product before.
        """
        lines, size, is_head = [], 0, products[0][1] == LOGITS
        for part, to, *how in products:
            mode, act = how or (R.SET, R.NONE)
            bias = 0 if part.bias is None else self.table(part.bias)
            line = self.matrix(part) | {"in": part.in_features, "out": part.out_features, "from": source}
            lines.append(line | {"bias": bias, "to": to, "mode": mode, "act": act, "head": is_head})
            size += part.weight.blocks.nbytes if isinstance(part.weight, BlockTensor) else part.weight.nbytes
            group, records = line.get("group", 0), "row_blocks" in line
            # unless this vector was rounded just before, or is read as it is
            if group and self.rounded != (source, group, records):
                rounds = {"from": source, "in": part.in_features, "group": group, "kernel": records}
                self.emit(R.ROUND, head=is_head, **rounds)
                self.rounded = source, group, records
        most = MAX_PIECES if self.stripes else MANY_ROWS_PIECES
        pieces = min(size // PIECE_BYTES, most, *(line["out"] // STRIPE for line in lines))
        for i, line in enumerate(lines):
            self.emit(R.LINEAR, scale, chunks=max(1, pieces), joined=len(lines) - i, **line)
            if self.rounded and self.rounded[0] == line["to"]:
                self.rounded = None

    def attend(self, part: Attention, source: int, x: int) -> None:
        """x += o(softmax(q kᵀ · scale + bias) v)"""
        H, G, K = part.heads, part.kv_heads, part.head_dim
        q, k, v, y = self.q, self.k, self.v, self.heads
        self.linear(source, (part.q, q), (part.k, k), (part.v, v))
        for norm, to, width in ((part.q_norm, q, H * K), (part.k_norm, k, G * K)):
            if norm is not None:  # a head each, or all of them
                for start in range(0, width, norm_size(norm)):
                    self.norm(norm, to + start, to + start)
        fields = {"q": q, "key": k, "value": v, "heads": H, "kv_heads": G, "size": K, "to": y}
        fields |= {"layer": self.layers}
        self.layers += 1
        fields |= {"window": part.window or 0, "slopes": self.weigh(part)} | self.turn(part.rotary)
        self.emit(R.TURN, **fields)
        self.emit(R.ATTEND, part.scale, chunks=H, **fields)
        self.linear(y, (part.o, x, R.ADD, R.NONE))

    def weigh(self, part: Attention) -> int:
        """Return the address of the weights of distances for the heads of a part; 0 if there are none."""
        if self.slopes is None:
            return 0
        slopes = self.slopes[list(part.kept)] if type(part) is KeptHeads else self.slopes
        if len(slopes) != part.heads:
            raise UnsupportedPart(f"{part.heads} heads with slopes for {len(slopes)}")
        return self.table(slopes)

    def turn(self, rotary: Rotary | None) -> dict[str, int]:
        if rotary is None:
            return {}
        if rotary.by_length:
            raise UnsupportedPart("angles that change with the length")
        if id(rotary) not in self.rotary_tables:
            reach = torch.arange(self.capacity)[None]
            cos, sin = rotary.table(reach, torch.tensor([[self.capacity]]))
            self.rotary_tables[id(rotary)] = self.table(cos[0, 0]), self.table(sin[0, 0])
        cos_at, sin_at = self.rotary_tables[id(rotary)]
        return {"cos": cos_at, "sin": sin_at, "turned": rotary.dim}

    def part(self, part: Part, source: int, x: int) -> None:
        """x += part(source)"""
        if type(part) is Attention or type(part) is KeptHeads:
            self.attend(part, source, x)
        elif type(part) is MLP:
            self.linear(source, (part.up, self.hidden, R.SET, act_code(part.act)))
            self.linear(self.hidden, (part.down, x, R.ADD, R.NONE))
        elif type(part) is GatedMLP:
            gate = part.gate, self.hidden, R.SET, act_code(part.act)
            self.linear(source, gate, (part.up, self.hidden, R.TIMES, R.NONE))
            self.linear(self.hidden, (part.down, x, R.ADD, R.NONE))
        else:
            raise UnsupportedPart(type(part).__name__)

    def block(self, block: Part, x: int) -> None:
        if type(block) is ParallelBlock:
            normed = dict(zip(block.norm_names, self.normed, strict=False))
            for name, to in normed.items():  # all parts read norms of what x was before
                self.norm(block.get_submodule(name), x, to)
            for name in block.names:
                self.part(block.part(name), normed[block.norm_name(name)], x)
        elif type(block) is Block:
            for name in block.names:
                norm = block.get_submodule(f"{name}_norm")
                if block.order == "pre":
                    self.norm(norm, x, self.normed[0])
                    self.part(block.part(name), self.normed[0], x)
                else:  # a part has read all of x before it adds to it
                    self.part(block.part(name), x, x)
                    self.norm(norm, x, x)
        else:
            raise UnsupportedPart(type(block).__name__)

    def head(self, head: nn.Module, x: int) -> None:
        """logits = scale · W x + b, or + shift"""
        if type(head) is not LMHead or (head.out.bias is not None and head.shift is not None):
            raise UnsupportedPart(type(head).__name__)
        self.linear(x, (head.out, LOGITS), scale=head.scale)
        if head.shift is not None:
            self.code[-1][R.BIAS] = self.table(head.shift)


def act_code(act: Activation) -> int:
    if act not in ACTS:
        raise UnsupportedPart(f"the activation {act}")
    return ACTS[act]


class RowProgram:
    """A listing at work: the workspace, what changes with every step, the threads.

    It steps up to `rows` rows, each at its own position with its own caches. `exact` makes the
    products of a row the same to the bit next to any other rows, also where one row alone would be
    faster.
    """

    def __init__(self, model: LM, rows: int, capacity: int, team: Team, *, exact: bool = False) -> None:
        self.listing = Program(model, capacity, stripes=not exact)
        self.limit, self.team = rows, team
        listing = self.listing
        self.code, self.reals = np.array(listing.code, np.int64), np.array(listing.reals, np.float32)
        self.workspace = torch.empty(rows, listing.size)
        self.rounded = torch.empty(rows, listing.rounded_bytes, dtype=torch.uint8)
        self.logits = torch.empty(rows, model.config.vocab)
        self.now, self.shared = np.zeros(7, np.int64), np.zeros(team.shared_words, np.int64)
        self.rows = np.zeros((rows, 3), np.int64)
        self.caches = np.zeros((listing.layers, rows, 3), np.int64)
        self.bound: tuple[list[Tensor], list[int]] = [], []  # keys that are in use, and their rows
        self.now[[R.STRIDE, R.ROUNDED_BYTES]] = listing.size, listing.rounded_bytes
        self.now[[R.WORK, R.ROUNDED]] = self.workspace.data_ptr(), self.rounded.data_ptr()
        self.now[R.LOGITS] = self.logits.data_ptr()
        self.attentions = [line for line in listing.code if line[R.OP] == R.ATTEND]

    def bind(self, caches: Sequence[KV | SlidingKV], rows: list[int]) -> None:
        """Let row i use row rows[i] of these caches; after a step on the same ones it does already."""
        keys = [kv.k for kv in caches if kv.k is not None]
        if rows == self.bound[1] and all(k is bound for k, bound in zip(keys, self.bound[0], strict=True)):
            return
        step = np.array([k[0].nbytes for k in keys])  # from one row to the next
        table = np.repeat(self.cache_table(caches)[:, None], len(rows), 1)
        table[..., :2] += step[:, None, None] * np.array(rows)[:, None]
        self.caches[:, : len(rows)] = table
        self.bound = keys, rows

    def allocate(self, caches: Sequence[KV | SlidingKV], rows: int, length: int) -> None:
        """Give `rows` texts room for `length` positions in caches that have less."""
        for kv, line in zip(caches, self.attentions, strict=True):
            room = min(length, kv.slots) if isinstance(kv, SlidingKV) else length
            if kv.k is None or kv.v is None:  # memory is taken when it is written to
                kv.k, kv.v = torch.zeros(2, rows, line[R.KV_HEADS], room, line[R.SIZE])
            elif kv.k.shape[2] < room:
                kv.k, kv.v = kv.grow(kv.k, kv.k, length), kv.grow(kv.v, kv.v, length)

    def cache_table(self, caches: Sequence[KV | SlidingKV]) -> np.ndarray:
        """Return where the first row of each layer's cache is, (layers, 3); refuse what no kernel reads."""
        table = np.zeros((len(caches), 3), np.int64)
        for entry, kv, line in zip(table, caches, self.attentions, strict=True):
            assert kv.k is not None
            assert kv.v is not None
            if kv.k.dtype != torch.float32 or not (kv.k.is_contiguous() and kv.v.is_contiguous()):
                raise UnsupportedPart(f"a cache of {kv.k.dtype}")
            if isinstance(kv, SlidingKV) != bool(line[R.WINDOW]):
                raise UnsupportedPart(f"a {type(kv).__name__} of a layer with another window")
            entry[:] = kv.k.data_ptr(), kv.v.data_ptr(), kv.k.shape[2]
        return table

    def step(self, rows: np.ndarray, num_logits: int | None = None) -> Tensor:
        """Step rows (B, 3): a token, the positions before it, the first that counts.

        Return the logits of the first `num_logits` of them, by default of all.
        """
        count = len(rows)
        num_logits = count if num_logits is None else num_logits
        self.rows[:count], self.now[[R.ROWS, R.ASKED]] = rows, (count, num_logits)
        self.team.run(self.code, self.reals, self.now, self.rows, self.caches, self.shared)
        return self.logits[:num_logits]

    def write(self, count: int, ends: Collection[int]) -> Tensor:
        """Continue the rows of the last step by their most likely tokens, (B, at most `count`).

        It stops after a column with one of `ends`. The model has read all but the last column then.
        """
        out = np.empty((int(self.now[R.ROWS]), count), np.int64)
        ahead = self.logits.numpy(), np.array([*ends], np.int64), out
        written = self.team.run(self.code, self.reals, self.now, self.rows, self.caches, self.shared, *ahead)
        return torch.from_numpy(out[:, :written])


class NumbaSlots(EagerSlots):
    """Texts side by side: every token of every one is a row of one call. Else there is an UnsupportedPart.

    A row writes its key and value before any row looks, so the tokens of a prompt can be rows of the same
    call as the newest tokens of others. A row's numbers depend on its own text alone, to the bit: not on its
    neighbours, nor on how a prompt was cut, nor on whether its beginning was copied.
    """

    chunk = 1  # a beginning of any length is the same to the bit

    def __init__(self, model: LM | Seq2Seq, max_rows: int, context: int | None = None) -> None:
        reason = find_fallback_reason(model)
        if reason is not None or not isinstance(model, LM):
            raise UnsupportedPart(reason or "an encoder-decoder")
        super().__init__(model, max_rows, context)
        caches = kv_caches(model.new_state(1, 1).parts)
        if caches is None:
            raise UnsupportedPart("a layer remembers something else than keys and values")
        self.vocab = model.embed.vocab
        spare = [kv.spare for kv in caches if isinstance(kv, SlidingKV)]
        self.prompt_rows = min([PROMPT_ROWS, *spare])  # what is overwritten must be out of every window
        team = Team(torch.get_num_threads())
        self.program = RowProgram(model, max_rows + PROMPT_ROWS, self.context, team, exact=True)
        self.program.allocate(caches, 1, 1)
        self.program.cache_table(caches)  # refuses what no kernel reads
        self.tables: dict[Slot, np.ndarray] = {}
        self.bound: list[Slot] = []

    def open(self, ids: Sequence[int], length: int) -> Slot:
        length = min(length, self.context)
        slot = super().open(ids, length)
        caches = kv_caches(slot.state.parts)
        assert caches is not None
        self.program.allocate(caches, 1, length)
        self.tables[slot] = self.program.cache_table(caches)
        return slot

    def copy_prefix(self, source: Slot, target: Slot, length: int) -> None:
        caches = kv_caches(target.state.parts)
        assert caches is not None
        self.program.allocate(caches, 1, target.capacity)
        super().copy_prefix(source, target, length)

    def piece(self, slot: Slot, left: int, budget: int) -> int:
        return min(left, budget, self.prompt_rows)

    @torch.no_grad()
    def forward(self, feeds: Sequence[tuple[Slot, Sequence[int]]]) -> Tensor:
        """The last token of each text first, because only these need logits; then the others."""
        for slot, ids in feeds:  # machine code looks at no bounds
            if slot.past + len(ids) > slot.capacity or not 0 <= min(ids) <= max(ids) < self.vocab:
                raise InputError(f"{ids} do not fit behind {slot.past} of {slot.capacity} positions")
        last = [(slot, ids[-1], slot.past + len(ids) - 1) for slot, ids in feeds]
        rest = [(slot, id, slot.past + i) for slot, ids in feeds for i, id in enumerate(ids[:-1])]
        rows = last + rest
        slots = [slot for slot, _, _ in rows]
        if slots != self.bound:
            self.program.caches[:, : len(rows)] = np.stack([self.tables[slot] for slot in slots], 1)
            self.bound = slots
        logits = self.program.step(np.array([(id, past, 0) for _, id, past in rows]), len(last))
        for slot, ids in feeds:
            slot.ids += ids
            slot.reusable = slot.state.past = slot.past
        return logits

    def close(self, slot: Slot) -> None:
        super().close(slot)
        self.tables.pop(slot)
        self.bound = []
