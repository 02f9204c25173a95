"""Products with matrices that stay as a GGUF file stores them, and their values in float32, as vector code.

A block holds groups of 32 whole numbers n with a scale s and, in some formats, an offset m for each group:

    w = s n + m        so that        w · x = Σ over groups of s (n · x) + m Σ x

x is rounded to 16 bits beforehand (`kernels/cpu/rows.py:round_row`), so n · x is whole-number arithmetic. A
processor with VNNI multiplies bytes, four at a time, and x is taken as 256 hi + lo; elsewhere two products of
16 bits and their sum are one instruction (pmaddwd on x86).

Matrices of blocks are held in stripes of STRIPE rows side by side (`block_tensor.py:interleave`), so a vector
register holds the same four numbers of each row, times four entries of x that are the same for all. Sums then
need no exchange between lanes, and scales and offsets are vectors too. Each format is described by one
`unpack_…` function, which writes the instructions for one block of a stripe; products and values are both
made from it. The definition of a format is `dequantize` of the `gguf` library, and tests compare the two.

Matrices of floats and of int8 stay in rows, since PyTorch reads them as well. For many vectors, 16 rows at a
time are copied to a stripe. Floats are multiplied with x as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc

from heedful.kernels.cpu.block_tensor import SIZES, STRIPE
from heedful.kernels.cpu.numba_intrinsics import (
    PAUSE,
    SOURCE_STAMP,
    Int,
    call_llvm,
    compile_cached,
    emit_prefetch,
    intrinsic,
)

GROUP = 32
RECORD = 80  # bytes of a group of x: gain, its sums (whole, first and second half), then 32 whole numbers
NUMBERS_AT = 16
VECTORS, FLOAT_VECTORS = 4, 8  # of x that a stripe is multiplied with at once
NEAR_BLOCKS = 8  # of 32 floats of two stripes, 32 KB, that are multiplied with all vectors
AHEAD = 8192  # bytes of weights that are asked for before they are needed: memory answers late
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()
BYTES, WORDS, LANES = ir.VectorType(I8, GROUP), ir.VectorType(I32, STRIPE), ir.VectorType(FLOAT, STRIPE)
FAST = ("nnan", "nsz", "contract", "reassoc")
# Where the order of factors is kept: a compiler that may change it computes other bits for several vectors.
ORDERED = ("nnan", "nsz", "contract")


def vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


@dataclass
class Emitter:
    """LLVM's builder, with the few vector operations that formats are written in."""

    builder: Any

    def number(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def load(self, address: Any, offset: int, kind: Any) -> Any:
        place = self.builder.add(address, self.number(offset))
        return self.builder.load(self.builder.inttoptr(place, kind.as_pointer()), align=1)

    def at(self, address: Any, index: Any, count: int, offset: int = 0) -> Any:
        """The address of an entry of `count` bytes, and some bytes further."""
        b = self.builder
        return b.add(b.add(address, b.mul(index, self.number(count))), self.number(offset))

    def each(self, address: Any, step: Any, count: int, last: Any) -> list[Any]:
        """The addresses of entries 0 … last, `step` bytes apart; the last stands in for missing ones."""
        b, starts = self.builder, []
        for i in map(self.number, range(count)):
            which = b.select(b.icmp_signed("<", last, i), last, i)
            starts.append(b.add(address, b.mul(which, step)))
        return starts

    def every(self, kind: Any, value: int) -> Any:
        """A vector of one constant."""
        return ir.Constant(kind, [value] * kind.count)

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(vector(I32, len(order)), order))

    def join(self, a: Any, b: Any) -> Any:
        return self.shuffle(a, b, list(range(a.type.count + b.type.count)))

    def part(self, a: Any, start: int, count: int) -> Any:
        return self.shuffle(a, a, list(range(start, start + count)))

    def splat(self, scalar: Any, count: int) -> Any:
        first = self.builder.insert_element(
            ir.Constant(vector(scalar.type, count), ir.Undefined), scalar, ir.Constant(I32, 0)
        )
        return self.shuffle(first, first, [0] * count)

    def bits(self, value: Any, start: int, mask: int) -> Any:
        """(value >> start) & mask, of each lane."""
        shifted = self.builder.lshr(value, self.every(value.type, start)) if start else value
        return self.builder.and_(shifted, self.every(value.type, mask))

    def to_float(self, whole: Any) -> Any:
        return self.builder.sitofp(whole, vector(FLOAT, whole.type.count))

    def times(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b, flags=ORDERED)

    def prefetch(self, address: Any, count: int, ahead: int = AHEAD) -> None:
        """Ask for `count` bytes that lie some bytes after an address."""
        for start in range(0, count, 64):
            emit_prefetch(self.builder, self.builder.add(address, self.number(ahead + start)), 3)

    def call(self, name: str, result: Any, *args: Any) -> Any:
        return call_llvm(self.builder, name, result, *args)

    def accumulate(self, a: Any, b: Any, total: Any) -> None:
        """total += a b"""
        product = self.builder.fadd(self.times(a, b), self.builder.load(total), flags=ORDERED)
        self.builder.store(product, total)

    def dot_bytes(self, total: Any, n: Any, x: Any) -> Any:
        """total + sums of four products of bytes, those of n without a sign."""
        width = min(n.type.count, VNNI)
        parts = [
            self.call(
                f"llvm.x86.avx512.vpdpbusd.{32 * width}",
                vector(I32, width),
                *(self.part(value, start, width) for value in (total, n, x)),
            )
            for start in range(0, n.type.count, width)
        ]
        return parts[0] if len(parts) == 1 else self.join(*parts)

    def dot_words(self, numbers: Sequence[Any], x: Any) -> Any:
        """Sums of products of whole numbers, four in each lane's 32 bits, with those at x, for every lane.

        The numbers have no sign. x is the same for all lanes.
        """
        b = self.builder
        if VNNI:
            digits = []
            for digit in range(2):
                total = ir.Constant(WORDS, None)
                for i, n in enumerate(numbers):
                    factors = self.splat(self.load(x, GROUP * digit + 4 * i, I32), STRIPE)
                    total = self.dot_bytes(total, n, factors)
                digits.append(total)
            return b.add(b.shl(digits[0], self.every(WORDS, 8)), digits[1])
        totals = [ir.Constant(WORDS, None)] * 2
        for i, n in enumerate(numbers):
            factors = b.bitcast(self.splat(self.load(x, 8 * i, I64), STRIPE // 2), vector(I16, GROUP))
            for half in range(2):
                pairs = b.bitcast(self.part(n, STRIPE // 2 * half, STRIPE // 2), BYTES)
                product = self.multiply_pairs(b.zext(pairs, factors.type), factors)
                totals[half] = b.add(totals[half], product)
        even, odd = (self.shuffle(totals[0], totals[1], list(range(i, 2 * STRIPE, 2))) for i in range(2))
        return b.add(even, odd)

    def dot_row(self, n: Any, x: Any) -> Any:
        """Sums of products of the 32 numbers of a row, which have signs, with those at x.

        With VNNI the numbers are 128 more than they are: it takes them without a sign.
        """
        b, words = self.builder, vector(I16, GROUP)
        if not VNNI:
            return self.multiply_pairs(b.sext(n, words), self.load(x, 0, words))
        kind = vector(I32, GROUP // 4)
        n = b.bitcast(b.xor(n, self.every(BYTES, 128)), kind)
        high, low = (b.bitcast(self.load(x, at, BYTES), kind) for at in (0, GROUP))
        upper = b.shl(self.dot_bytes(ir.Constant(kind, None), n, high), self.every(kind, 8))
        return self.dot_bytes(upper, n, low)

    def multiply_pairs(self, a: Any, b: Any) -> Any:
        """16 sums of two products each, of 32 numbers of 16 bits."""
        width, name = MULTIPLY_ADD
        if name:
            parts = [
                self.call(name, vector(I32, width // 2), self.part(a, i, width), self.part(b, i, width))
                for i in range(0, GROUP, width)
            ]
            return parts[0] if len(parts) == 1 else self.join(*parts)
        wide = vector(I32, GROUP)
        products = self.builder.mul(self.builder.sext(a, wide), self.builder.sext(b, wide))
        even, odd = (self.shuffle(products, products, list(range(i, GROUP, 2))) for i in range(2))
        return self.builder.add(even, odd)

    def transpose(self, columns: Sequence[Any]) -> list[Any]:
        """The rows of 16 columns: blocks of one half of it change places, then blocks of a quarter …"""
        rows = list(columns)
        for step in (8, 4, 2, 1):
            for i in (i for i in range(16) if not i & step):
                a, b = rows[i], rows[i + step]
                rows[i] = self.shuffle(a, b, [16 + j - step if j & step else j for j in range(16)])
                rows[i + step] = self.shuffle(a, b, [16 + j if j & step else j + step for j in range(16)])
        return rows

    def sum(self, a: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{a.type.count}f32"
        return call_llvm(self.builder, name, FLOAT, ir.Constant(FLOAT, 0.0), a, fastmath=FAST)


FEATURES = llvmlite.binding.get_host_cpu_features() if PAUSE else {}
# How many 16-bit factors x86's instruction for sums of two products takes, and its name.
MULTIPLY_ADD = (16, "llvm.x86.avx2.pmadd.wd") if FEATURES.get("avx2") else (0, "")
if FEATURES.get("avx512bw"):
    MULTIPLY_ADD = (32, "llvm.x86.avx512.pmaddw.d.512")
# Sums of four products of bytes that an instruction adds; 0: there is none.
VNNI = 16 if FEATURES.get("avx512vnni") and FEATURES.get("avx512vl") else 8 if FEATURES.get("avxvnni") else 0


class Group(NamedTuple):
    """32 columns of a stripe: eight vectors with four numbers of each row, w = scale n + offset.

    With two scales each belongs to one half of the columns.
    """

    numbers: list[Any]
    scales: list[Any]
    offsets: list[Any]


Unpack = Callable[["Stripe"], list[Group]]


@dataclass
class Stripe(Emitter):
    """One block of a stripe; what lies at some bytes of a block of each row is a vector."""

    block: Any

    def words(self, offset: int, count: int) -> list[Any]:
        """The 32 bits at this place of a row's block, and those that follow."""
        return [self.load(self.block, STRIPE * (offset + 4 * i), WORDS) for i in range(count)]

    def halves(self, offset: int) -> Any:
        """The float16 there, as float32."""
        return self.builder.fpext(self.load(self.block, STRIPE * offset, vector(HALF, STRIPE)), LANES)

    def above(self, upper: Any, lower: Any) -> Any:
        """Upper bits above four lower ones, of each byte."""
        return self.builder.or_(lower, self.builder.shl(upper, self.every(WORDS, 4)))

    def scaled(self, zero: int, scale: Any) -> list[Any]:
        """The offset − zero · scale."""
        return [self.times(scale, self.every(LANES, -zero))]


SIGNS = 0x80808080  # of four bytes: without them a sign becomes a distance from −128
LOW, PAIRS, SIXES, ONES = 0x0F0F0F0F, 0x03030303, 0x3F3F3F3F, 0x01010101  # bits of each of four bytes


@dataclass(frozen=True)
class Bytes:
    """The layout of Q8_0, w = d (n − 128), and of int8, which has no d before its numbers."""

    start: int

    def __call__(self, e: Stripe) -> list[Group]:
        numbers = [e.builder.xor(n, e.every(WORDS, SIGNS)) for n in e.words(self.start, 8)]
        d = e.halves(0) if self.start else e.every(LANES, 1)  # an int8 row's scale is left to the caller
        return [Group(numbers, [d], e.scaled(128, d))]


@dataclass(frozen=True)
class Nibbles:
    """The layout of Q4_0, Q4_1, Q5_0 and Q5_1: w = d (n − zero) + m, at these bytes of a block."""

    nibbles: int
    fifths: int = 0  # 32 bits, the fifth of each n; 0: there are none
    zero: int = 0  # 0: m follows d

    def __call__(self, e: Stripe) -> list[Group]:
        words, d = e.words(self.nibbles, 4), e.halves(0)
        numbers = [e.bits(word, start, LOW) for start in (0, 4) for word in words]
        if self.fifths:
            (all_,) = e.words(self.fifths, 1)
            for i, n in enumerate(numbers):  # the product puts bit i to place 8 i + 4
                spread = e.builder.mul(e.bits(all_, 4 * i, 15), e.every(WORDS, 0x02040810))
                numbers[i] = e.builder.or_(n, e.bits(spread, 0, ONES << 4))
        return [Group(numbers, [d], e.scaled(self.zero, d) if self.zero else [e.halves(2)])]


def six_bits(e: Stripe) -> list[tuple[Any, Any]]:
    """d s and −e m for the eight groups of Q4_K and Q5_K; s and m have six bits each in twelve bytes."""
    of_scales, of_mins, last = e.words(4, 3)
    results = []
    for word, start, unit in ((of_scales, 0, e.halves(0)), (of_mins, 4, e.builder.fneg(e.halves(2)))):
        both = e.bits(word, 0, SIXES), e.above(e.bits(word, 6, PAIRS), e.bits(last, start, LOW))
        results.append([e.times(e.to_float(e.bits(both[i // 4], i % 4 * 8, 255)), unit) for i in range(8)])
    return list(zip(*results, strict=True))


@dataclass(frozen=True)
class NibbleGroups:
    """The layout of Q4_K and Q5_K: w = d s n − e m in eight groups."""

    nibbles: int
    fifths: int = 0  # 32 bytes, bit i of which is the fifth bit of group i; 0: there are none

    def __call__(self, e: Stripe) -> list[Group]:
        groups, fifths = [], e.words(self.fifths, 8) if self.fifths else []
        for i, (scale, offset) in enumerate(six_bits(e)):
            numbers = [e.bits(word, i % 2 * 4, LOW) for word in e.words(self.nibbles + 32 * (i // 2), 8)]
            for j, word in enumerate(fifths):
                numbers[j] = e.above(e.bits(word, i, ONES), numbers[j])
            groups.append(Group(numbers, [scale], [offset]))
        return groups


def unpack_q6_k(e: Stripe) -> list[Group]:
    """w = d s (n − 32), one s of 8 bits for each 16 numbers"""
    b, d, groups = e.builder, e.halves(208), []
    for i in range(8):
        half, quarter = divmod(i, 4)
        lower, upper = e.words(64 * half + 32 * (quarter % 2), 8), e.words(128 + 32 * half, 8)
        numbers = [
            e.above(e.bits(high, 2 * quarter, PAIRS), e.bits(low, quarter // 2 * 4, LOW))
            for low, high in zip(lower, upper, strict=True)
        ]
        (word,) = e.words(192 + i // 2 * 4, 1)
        at = [e.every(WORDS, 24 - (2 * i + j) % 4 * 8) for j in range(2)]
        scales = [e.times(e.to_float(b.ashr(b.shl(word, left), e.every(WORDS, 24))), d) for left in at]
        groups.append(Group(numbers, scales, [offset for s in scales for offset in e.scaled(32, s)]))
    return groups


UNPACK: dict[str, Unpack] = {
    "I8": Bytes(0), "Q8_0": Bytes(2), "Q4_0": Nibbles(2, zero=8), "Q4_1": Nibbles(4),
    "Q5_0": Nibbles(6, fifths=2, zero=16), "Q5_1": Nibbles(8, fifths=4),
    "Q4_K": NibbleGroups(16), "Q5_K": NibbleGroups(48, fifths=16), "Q6_K": unpack_q6_k,
}  # fmt: skip


FLOATS = ("F32", "F16", "BF16")  # which are stored in rows, as is int8


def sixteen_floats(e: Emitter, name: str, block: Any, part: int) -> Any:
    """16 floats, in 32 bits."""
    if name == "F32":
        return e.load(block, 64 * part, LANES)
    if name == "F16":
        return e.builder.fpext(e.load(block, 32 * part, vector(HALF, 16)), LANES)
    bits = e.builder.zext(e.load(block, 32 * part, vector(I16, 16)), vector(I32, 16))
    return e.builder.bitcast(e.builder.shl(bits, e.every(bits.type, 16)), LANES)


def emit_dot(e: Emitter, name: str, row: Any, vectors: Sequence[Any], blocks: Any) -> list[Any]:
    """Write w · x of one row of floats or int8, with vectors of floats or of records."""
    b, whole = e.builder, name == "I8"
    kind = vector(FLOAT, GROUP // 4) if whole and VNNI else LANES
    totals = [[zeroed(b, kind) for kind in (kind, kind, vector(FLOAT, 1))] for _ in vectors]
    with cgutils.for_range(b, blocks) as loop:
        stored = e.at(row, loop.index, SIZES[name][1])
        if len(vectors) == 1:
            e.prefetch(stored, SIZES[name][1])
        n = e.load(stored, 0, BYTES) if whole else None
        floats = [] if whole else [sixteen_floats(e, name, stored, part) for part in range(2)]
        for x, total in zip(vectors, totals, strict=True):
            if n is None:
                for part, values_ in enumerate(floats):
                    e.accumulate(
                        values_, e.load(e.at(x, loop.index, 4 * GROUP), 64 * part, LANES), total[part]
                    )
                continue
            record = e.at(x, loop.index, RECORD)
            gain = e.splat(e.load(record, 0, FLOAT), kind.count)
            e.accumulate(e.to_float(e.dot_row(n, b.add(record, e.number(NUMBERS_AT)))), gain, total[0])
            if VNNI:
                e.accumulate(e.every(vector(FLOAT, 1), -128), e.load(record, 4, vector(FLOAT, 1)), total[2])
    results = []
    for first_half, second_half, zeros in totals:
        result = e.sum(b.fadd(b.load(first_half), b.load(second_half), flags=ORDERED))
        results.append(b.fadd(result, b.extract_element(b.load(zeros), ir.Constant(I32, 0)), flags=ORDERED))
    return results


def zeroed(builder: Any, kind: Any) -> Any:
    """Room for a sum, which is 0 where this is written."""
    place = cgutils.alloca_once(builder, kind)
    builder.store(ir.Constant(kind, None), place)
    return place


def emit_values(e: Stripe, name: str, out: Any, length: Any) -> None:
    """Write the values of a block of a stripe to rows of `length` bytes."""
    for i, group in enumerate(UNPACK[name](e)):
        per_scale = len(group.numbers) // len(group.scales)
        columns = []
        for j, n in enumerate(group.numbers):
            scale, offset = group.scales[j // per_scale], group.offsets[j // per_scale]
            for k in range(4):
                value = e.times(e.to_float(e.bits(n, 8 * k, 255)), scale)
                columns.append(e.builder.fadd(value, offset, flags=ORDERED))
        for half in range(2):
            for r, row in enumerate(e.transpose(columns[16 * half : 16 * half + 16])):
                store(e.builder, row, e.at(out, e.builder.mul(length, e.number(r)), 1, 128 * i + 64 * half))


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


@intrinsic
def multiply_stripe(
    typingctx: Any, name: Any, count: Any, weight: Any, blocks: Any, x: Any, x_bytes: Any, last: Any,
    out: Any, out_bytes: Any,
) -> tuple[Any, Callable]:  # fmt: skip
    """out_br = w_r · x_b for the rows r of a stripe and vectors b = 0 … last; the first two are constants.

    `count` vectors of records are computed: the last stands in for those that are missing. What a
    vector gets is the same to the bit next to any others.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, weight, blocks, x, x_bytes, last, out, out_bytes = args
        b, e, (size, stored) = builder, Emitter(builder), SIZES[name.literal_value]
        starts = e.each(x, x_bytes, count.literal_value, last)
        outs = e.each(out, out_bytes, count.literal_value, last)
        totals = [zeroed(b, LANES) for _ in starts]
        with cgutils.for_range(b, blocks) as loop:
            stripe = Stripe(b, e.at(weight, loop.index, STRIPE * stored))
            if count.literal_value == 1:
                e.prefetch(stripe.block, STRIPE * stored)
            for i, group in enumerate(UNPACK[name.literal_value](stripe)):
                for start, total in zip(starts, totals, strict=True):
                    record = e.at(start, loop.index, RECORD * size // GROUP, RECORD * i)
                    emit_group(e, group, record, total)
        for total, place in zip(totals, outs, strict=True):
            store(b, b.load(total), place)
        return context.get_dummy_value()

    return types.void(name, count, *[types.int64] * 7), codegen


def emit_group(e: Emitter, group: Group, record: Any, total: Any) -> None:
    """Write total += w · x of 32 columns. With two scales, each goes with half of the numbers and of x."""
    gain = e.splat(e.load(record, 0, FLOAT), STRIPE)
    halves = len(group.scales)
    for j, (scale, offset) in enumerate(zip(group.scales, group.offsets, strict=True)):
        count, width = len(group.numbers) // halves, GROUP // halves * (1 if VNNI else 2)
        at = e.builder.add(record, e.number(NUMBERS_AT + width * j))
        whole = e.dot_words(group.numbers[count * j : count * (j + 1)], at)
        e.accumulate(e.to_float(whole), e.times(scale, gain), total)
        x_sum = e.load(record, 4 if halves == 1 else 8 + 4 * j, FLOAT)
        e.accumulate(offset, e.splat(x_sum, STRIPE), total)


@intrinsic
def multiply_floats(
    typingctx: Any, side: Any, weight: Any, blocks: Any, x: Any, x_bytes: Any, last: Any, out: Any,
    out_bytes: Any, begun: Any,
) -> tuple[Any, Callable]:  # fmt: skip
    """out_br = w_r · x_b, added to what is there if it was begun, for `side` stripes of float32 side by side.

    FLOAT_VECTORS vectors are computed: b = 0 … last, and the last stands in for those that are missing.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, weight, blocks, x, x_bytes, last, out, out_bytes, begun = args
        b, e, stripes = builder, Emitter(builder), range(side.literal_value)
        is_begun = b.icmp_signed("!=", begun, e.number(0))
        starts = e.each(x, x_bytes, FLOAT_VECTORS, last)
        outs = e.each(out, out_bytes, FLOAT_VECTORS, last)
        totals = [[zeroed(b, LANES) for _ in stripes] for _ in starts]
        for total, place in zip(totals, outs, strict=True):
            for s in stripes:
                b.store(b.select(is_begun, e.load(place, 64 * s, LANES), ir.Constant(LANES, None)), total[s])
        # A few columns at a time: in a longer loop LLVM moves more loads to the front than registers hold.
        with cgutils.for_range(b, b.mul(blocks, e.number(GROUP // 4))) as loop:
            block = e.at(weight, loop.index, 64 * 4 * len(stripes))
            entries = [e.at(start, loop.index, 4 * 4) for start in starts]
            for k in range(4):
                w = [e.load(block, 64 * (len(stripes) * k + s), LANES) for s in stripes]
                for entry, total in zip(entries, totals, strict=True):
                    factor = e.splat(e.load(entry, 4 * k, FLOAT), STRIPE)
                    for s in stripes:
                        e.accumulate(w[s], factor, total[s])
        for total, place in zip(totals, outs, strict=True):
            for s in stripes:
                store(b, b.load(total[s]), b.add(place, e.number(64 * s)))
        return context.get_dummy_value()

    return types.void(side, *[types.int64] * 8), codegen


@intrinsic
def copy_stripe(
    typingctx: Any, name: Any, weight: Any, blocks: Any, last: Any, room: Any, step: Any
) -> tuple[Any, Callable]:
    """Copy rows 0 … last of floats or int8 to a stripe in `room`, in float32 or as they are.

    `step` is how many bytes further the next column begins, or the next four of int8.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, weight, blocks, last, room, step = args
        b, e, stored = builder, Emitter(builder), SIZES[name.literal_value][1]
        length = b.mul(blocks, e.number(stored))
        starts = e.each(weight, length, STRIPE, last)
        with cgutils.for_range(b, blocks) as loop:
            rows = [e.at(start, loop.index, stored) for start in starts]
            for row in rows:  # the rows after these are needed next
                e.prefetch(b.add(row, b.mul(length, e.number(STRIPE))), 1, ahead=0)
            if name.literal_value == "I8":  # words of four numbers, of which a block has eight
                words = [e.load(row, 0, vector(I32, GROUP // 4)) for row in rows]
                columns = e.transpose([e.join(word, word) for word in words])[: GROUP // 4]
            else:
                columns = []
                for part in range(2):
                    columns += e.transpose([sixteen_floats(e, name.literal_value, row, part) for row in rows])
            first = b.mul(loop.index, e.number(len(columns)))
            for i, column in enumerate(columns):
                store(b, column, b.add(room, b.mul(b.add(first, e.number(i)), step)))
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 5), codegen


@intrinsic
def dot_rows(
    typingctx: Any, name: Any, most: Any, weight: Any, rows: Any, blocks: Any, x: Any, x_bytes: Any,
    last: Any, out: Any,
) -> tuple[Any, Callable]:  # fmt: skip
    """out_br = w_r · x_b for rows of floats or int8 and vectors b = 0 … last; the first two are constants.

    Each vector begins some bytes after the one before. `most` are always computed: the last stands in for
    those that are missing. What a vector gets is the same to the bit next to any others.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, weight, rows, blocks, x, x_bytes, last, out = args
        e = Emitter(builder)
        length = builder.mul(blocks, e.number(SIZES[name.literal_value][1]))
        vectors = e.each(x, x_bytes, most.literal_value, last)
        outs = [builder.add(out, builder.mul(rows, e.number(4 * i))) for i in range(len(vectors))]
        with cgutils.for_range(builder, rows) as loop:  # two rows at once confuse the processor's prefetching
            row = builder.add(weight, builder.mul(loop.index, length))
            for result, to in zip(emit_dot(e, name.literal_value, row, vectors, blocks), outs, strict=True):
                store(builder, result, e.at(to, loop.index, 4))
        return context.get_dummy_value()

    return types.void(name, most, *[types.int64] * 7), codegen


@intrinsic
def values(typingctx: Any, name: Any, weight: Any, blocks: Any, out: Any) -> tuple[Any, Callable]:
    """Put the values of a row of floats, or of a stripe, to `out`, in float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, weight, blocks, out = args
        e, (size, stored) = Emitter(builder), SIZES[name.literal_value]
        with cgutils.for_range(builder, blocks) as loop:
            to = e.at(out, loop.index, 4 * size)
            if name.literal_value in UNPACK:
                stripe = Stripe(builder, e.at(weight, loop.index, STRIPE * stored))
                emit_values(stripe, name.literal_value, to, builder.mul(blocks, e.number(4 * size)))
            else:
                for part in range(2):
                    floats = sixteen_floats(e, name.literal_value, e.at(weight, loop.index, stored), part)
                    store(builder, floats, builder.add(to, e.number(64 * part)))
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 3), codegen


def compile_pointer(function: Callable[..., None], count: int) -> int:
    """Return the address of the machine code of a function of `count` whole numbers; it is kept on disk."""
    compiled: Any = CFunc(function, ((types.int64,) * count, types.void), {}, {"nopython": True})
    compiled.enable_caching()
    compiled._cache._cache_file._source_stamp = SOURCE_STAMP
    compiled.compile()
    KERNELS.append(compiled)
    return int(compiled.address)


KERNELS: list[Any] = []  # that addresses are of


@intrinsic
def round_group(typingctx: Any, x: Any, record: Any) -> tuple[Any, Callable]:
    """Put 32 floats to a record: y = round(x / gain) in 16 bits, where gain = max |x| / m.

    The record has the gain, the sums of gain · y over the group and over its halves, and then y. For VNNI y
    is two digits, y = 256 hi + lo, first all hi and then all lo; the largest y, m, is the largest number
    that has two of them. The last place of y is far finer than that of weights.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b, e, (x, record) = builder, Emitter(builder), args
        floats, most = [e.load(x, 64 * half, LANES) for half in range(2)], 127 * 256 + 127
        sizes = [e.call("llvm.fabs.v16f32", LANES, part) for part in floats]
        larger = b.select(b.fcmp_ordered(">", *sizes), *sizes)
        top = e.call("llvm.vector.reduce.fmax.v16f32", FLOAT, larger)
        top = e.call("llvm.maxnum.f32", FLOAT, top, ir.Constant(FLOAT, 1e-30))
        factor = e.splat(b.fdiv(ir.Constant(FLOAT, most), top), STRIPE)
        gain = b.fmul(top, ir.Constant(FLOAT, 1 / most))
        nearest = [e.call("llvm.rint.v16f32", LANES, e.times(part, factor)) for part in floats]
        whole = [b.fptosi(part, WORDS) for part in nearest]
        sums = [b.sitofp(e.call("llvm.vector.reduce.add.v16i32", I32, part), FLOAT) for part in whole]
        head = [ir.Constant(FLOAT, 1), b.fadd(*sums), *sums]
        for i, value in enumerate(head):
            store(b, b.fmul(gain, value), b.add(record, e.number(4 * i)))
        y = e.join(*whole)
        to, wide = b.add(record, e.number(NUMBERS_AT)), y.type
        if VNNI:
            high = b.ashr(b.add(y, e.every(wide, 128)), e.every(wide, 8))
            store(b, b.trunc(high, BYTES), to)
            store(b, b.trunc(b.sub(y, b.shl(high, e.every(wide, 8))), BYTES), b.add(to, e.number(GROUP)))
        else:
            store(b, b.trunc(y, vector(I16, GROUP)), to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@cache
def dot_kernel(name: str, most: int = 1) -> int:
    """Return the address of the product with up to `most` vectors; `dot_rows` says of what numbers."""

    def kernel(weight: int, rows: int, blocks: int, x: int, x_bytes: int, last: int, out: int) -> None:
        dot_rows(name, most, weight, rows, blocks, x, x_bytes, last, out)

    return compile_pointer(kernel, 7)


@cache
def stripe_kernel(name: str) -> int:
    """Return the address of the product of stripes, or of rows as stripes, with any number of vectors.

    (weight, rows, blocks of a row, x, bytes from a vector to the next, vectors, out, bytes of a row of it):
    all rows of the last stripe are written.
    """
    stored = SIZES[name][1]

    def kernel(
        weight: int, rows: int, blocks: int, x: int, x_bytes: int, count: int, out: int, out_bytes: int
    ) -> None:
        room = np.empty(STRIPE * stored * blocks if name == "I8" else 0, np.int8)
        for first in range(0, rows, STRIPE):
            stripe = weight + first * blocks * stored
            if name == "I8":
                last_row = min(STRIPE, rows - first) - 1
                copy_stripe(name, stripe, blocks, last_row, room.ctypes.data, 4 * STRIPE)
                stripe = room.ctypes.data
            for t in range(0, count, VECTORS):
                x_at, to = x + t * x_bytes, out + 4 * first + t * out_bytes
                last = min(VECTORS, count - t) - 1
                if last == 0:
                    multiply_stripe(name, 1, stripe, blocks, x_at, x_bytes, last, to, out_bytes)
                else:
                    multiply_stripe(name, VECTORS, stripe, blocks, x_at, x_bytes, last, to, out_bytes)

    def float_kernel(
        weight: int, rows: int, blocks: int, x: int, x_bytes: int, count: int, out: int, out_bytes: int
    ) -> None:
        room, pieces = np.empty(2 * STRIPE * GROUP * blocks, np.float32), -(-blocks // NEAR_BLOCKS)
        for first in range(0, rows, 2 * STRIPE):
            side = 2 if rows - first > STRIPE else 1
            for s in range(side):
                row, to = first + STRIPE * s, room.ctypes.data + 4 * STRIPE * s
                last_row = min(STRIPE, rows - row) - 1
                copy_stripe(name, weight + row * blocks * stored, blocks, last_row, to, 4 * STRIPE * side)
            for piece in range(pieces):  # of columns, so that weights stay in the nearest cache
                low, high = piece * blocks // pieces, (piece + 1) * blocks // pieces
                near = room.ctypes.data + low * 4 * STRIPE * GROUP * side
                for t in range(0, count, FLOAT_VECTORS):
                    x_at, to = x + t * x_bytes + low * 4 * GROUP, out + 4 * first + t * out_bytes
                    last = min(FLOAT_VECTORS, count - t) - 1
                    if side == 2:
                        multiply_floats(2, near, high - low, x_at, x_bytes, last, to, out_bytes, piece)
                    else:
                        multiply_floats(1, near, high - low, x_at, x_bytes, last, to, out_bytes, piece)

    return compile_pointer(float_kernel if name in FLOATS else kernel, 8)


@cache
def values_kernel(name: str) -> int:
    """Return the address of what widens rows, or stripes: (weight, how many, blocks of a row, out)."""
    size, stored = SIZES[name]
    stripe = STRIPE if name in UNPACK else 1

    def kernel(weight: int, count: int, blocks: int, out: int) -> None:
        for i in range(count):
            values(name, weight + i * stripe * blocks * stored, blocks, out + 4 * i * stripe * blocks * size)

    return compile_pointer(kernel, 4)


@intrinsic
def call_kernel(typingctx: Any, address: Any, numbers: Any) -> tuple[Any, Callable]:
    """Call the machine code at an address with a tuple of whole numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * numbers.count)
        given = [builder.extract_value(args[1], i) for i in range(numbers.count)]
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, numbers.count)), codegen


@compile_cached
def widen_blocks(kernel: Int, weight: Int, count: Int, blocks: Int, out: Int) -> None:
    """Put the values of rows or stripes to `out`, in float32, without the interpreter's lock."""
    call_kernel(kernel, (weight, count, blocks, out))
