"""Products with matrices that stay as a GGUF file stores them, and their values in float32, as vector code.

A block holds groups of 32 whole numbers n with a scale s and, in some formats, an offset m for each group:

    w = s (n − z) + m        so that        w · x = Σ over groups of s (n · x) + (m − s z) Σ x

x is rounded to 16 bits beforehand (`round_row_int16`), so n · x is whole-number arithmetic. A processor with
VNNI multiplies bytes, four at a time, and x is taken as 256 hi + lo; elsewhere two products of 16 bits and
their sum are one instruction (pmaddwd on x86). Each format is described by one `unpack_…` function, which
writes the instructions for one block; products and values are both made from it. The definition of a format
is `dequantize` of the `gguf` library, and tests compare the two. Floats of 16 bits are multiplied with x as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.ccallback import CFunc

from heedful.kernels.cpu.numba_intrinsics import (
    PAUSE,
    SOURCE_STAMP,
    Int,
    compile_cached,
    floats_at,
    intrinsic,
    literal_intrinsic,
    load_at,
)

GROUP = 32
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()
BYTES, LANES = ir.VectorType(I8, GROUP), ir.VectorType(FLOAT, 16)
FAST = ("nnan", "nsz", "contract", "reassoc")
# Where the order of factors is kept: a compiler that may change it computes other bits for several vectors.
ORDERED = ("nnan", "nsz", "contract")
TILE_VALUES = 256  # of a row of weights that are widened at once; a whole number of blocks of every format


def vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


@dataclass
class Emitter:
    """LLVM's builder, with the few vector operations that formats are written in.

    `lanes` is how many sums the products of a group are kept in, and so how often a scale is repeated.
    """

    builder: Any
    lanes: int = 16

    def number(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def load(self, address: Any, offset: int, kind: Any) -> Any:
        return load_at(self.builder, self.builder.add(address, self.number(offset)), kind, 1)

    def half(self, address: Any, offset: int) -> Any:
        """The float16 there, as float32.

        It goes through an ordinary register, which the empty line of assembly enforces: LLVM would insert the
        two bytes into any vector register there is, and so make a scale wait for the sum before it.
        """
        bits = self.builder.zext(self.load(address, offset, I16), I32)
        return self.builder.extract_element(self.halves(bits), ir.Constant(I32, 0))

    def halves(self, bits: Any) -> Any:
        """The two float16 that 32 bits are, as float32; see `half`."""
        b, zeros = self.builder, ir.Constant(vector(I32, 4), None)
        bits = b.asm(ir.FunctionType(I32, [I32]), "", "=r,0", [bits], False)
        eight = b.bitcast(b.insert_element(zeros, bits, ir.Constant(I32, 0)), vector(HALF, 8))
        return self.part(b.fpext(self.part(eight, 0, 4), vector(FLOAT, 4)), 0, 2)

    def two_words(self, blocks: Sequence[Any], offset: int) -> Any:
        """The 16 bits there of two blocks, in 32."""
        low, high = (self.builder.zext(self.load(block, offset, I16), I32) for block in blocks)
        return self.builder.or_(low, self.builder.shl(high, ir.Constant(I32, 16)))

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

    def nibbles(self, low_bytes: Any) -> tuple[Any, Any]:
        """The low and the high four bits of bytes."""
        low = self.builder.and_(low_bytes, self.every(low_bytes.type, 15))
        return low, self.builder.lshr(low_bytes, self.every(low_bytes.type, 4))

    def call(self, name: str, result: Any, *args: Any) -> Any:
        kind = ir.FunctionType(result, [a.type for a in args])
        function = self.builder.module.globals.get(name) or ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, args)

    def accumulate(self, a: Any, b: Any, total: Any) -> None:
        """total += a b"""
        product = self.builder.fmul(a, b, flags=ORDERED)
        self.builder.store(self.builder.fadd(product, self.builder.load(total), flags=ORDERED), total)

    def dot_group(self, n: Any, zero: int, x: Any, digits: Any) -> Any:
        """Sums of products of 32 numbers with x, in 32 bits; with VNNI `zero` is left to the caller."""
        b = self.builder
        if VNNI:
            kind, factor = vector(I32, 8), lambda bytes_: b.bitcast(bytes_, vector(I32, 8))
            high, low = (factor(self.load(digits, at, BYTES)) for at in (0, GROUP))
            upper = self.call(DOT_BYTES, kind, ir.Constant(kind, None), factor(n), high)
            return self.call(DOT_BYTES, kind, b.shl(upper, self.every(kind, 8)), factor(n), low)
        words = vector(I16, GROUP)
        return self.multiply_pairs(b.sub(b.zext(n, words), self.every(words, zero)), self.load(x, 0, words))

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

    def sum(self, a: Any) -> Any:
        kind = a.type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f32"
        function = self.builder.module.globals.get(name) or ir.Function(
            self.builder.module, ir.FunctionType(FLOAT, [FLOAT, kind]), name
        )
        return self.builder.call(function, [ir.Constant(FLOAT, 0.0), a], fastmath=FAST)


FEATURES = llvmlite.binding.get_host_cpu_features() if PAUSE else {}
# How many 16-bit factors x86's instruction for sums of two products takes, and its name.
MULTIPLY_ADD = (16, "llvm.x86.avx2.pmadd.wd") if FEATURES.get("avx2") else (0, "")
if FEATURES.get("avx512bw"):
    MULTIPLY_ADD = (32, "llvm.x86.avx512.pmaddw.d.512")
# Rows of weights and vectors of x that a tile has: all of its sums stay in registers.
TILE_ROWS, TILE_LANES = (8, 2 * LANES.count) if FEATURES.get("avx512f") else (4, LANES.count)
VNNI = bool(FEATURES.get("avx512vnni") and FEATURES.get("avx512vl"))
DOT_BYTES = "llvm.x86.avx512.vpdpbusd.256"


class Block(NamedTuple):
    """What a format's function gives of a block: groups of 32 bytes n without a sign, and what they mean."""

    numbers: list[Any]
    scales: list[Any]  # of each group, a vector of `lanes`, or None: 1
    zero: int = 0  # the n that stands for 0
    offsets: Any = None  # a vector with one for each group, or None


Unpack = Callable[[Emitter, Any], Block]


def unpack_int8(e: Emitter, block: Any) -> Block:
    """w = n − 128; the scale of a row is left to the caller"""
    return Block([e.builder.xor(e.load(block, 0, BYTES), e.every(BYTES, 128))], [None], 128)


def unpack_q8_0(e: Emitter, block: Any) -> Block:
    """w = d (n − 128)"""
    n = e.builder.xor(e.load(block, 2, BYTES), e.every(BYTES, 128))  # a sign becomes a distance from 128
    return Block([n], [e.splat(e.half(block, 0), e.lanes)], 128)


class Nibbles(NamedTuple):
    """The layout of Q4_0, Q4_1, Q5_0 and Q5_1: w = d (n − zero) + m, at these bytes of a block."""

    stored: int
    nibbles: int
    fifths: int = 0  # 32 bits, the fifth of each n; 0: there are none
    zero: int = 0
    has_offset: bool = False  # m follows d

    def unpack(self, e: Emitter, block: Any) -> Block:
        """Give the one group of a block."""
        n = e.join(*e.nibbles(e.load(block, self.nibbles, vector(I8, 16))))
        if self.fifths:
            n = e.builder.or_(n, sixteens(e, e.load(block, self.fifths, I32)))
        offsets = e.splat(e.half(block, 2), 1) if self.has_offset else None
        return Block([n], [e.splat(e.half(block, 0), e.lanes)], self.zero, offsets)

    def accumulate_pair(self, e: Emitter, blocks: Sequence[Any], vectors: Sequence[Sequence[Any]]) -> None:
        """Add the products of two blocks at once with vectors: digits for two groups together, and so on.

        The low bits of both are one vector and the high ones another, so that a sum of four products belongs
        to one block, and what there is to do next to products is done once for two blocks.
        """
        b, kind = e.builder, vector(I32, 8)
        both = e.join(*(e.load(block, self.nibbles, vector(I8, 16)) for block in blocks))
        numbers = list(e.nibbles(both))
        if self.fifths:
            words = [e.two_words(blocks, self.fifths + 2 * half) for half in range(2)]
            numbers = [b.or_(n, sixteens(e, word)) for n, word in zip(numbers, words, strict=True)]
        scales = e.halves(e.two_words(blocks, 0))
        offsets = e.halves(e.two_words(blocks, 2)) if self.has_offset else None
        if self.zero:
            offsets = b.fmul(scales, ir.Constant(scales.type, [-float(self.zero)] * 2), flags=ORDERED)
        for x, gain, sum_x, total_at, offset_at in vectors:
            total = ir.Constant(kind, None)
            for digit in range(2):
                for half, n in enumerate(numbers):
                    factors = b.bitcast(e.load(x, 64 * digit + 32 * half, BYTES), kind)
                    total = e.call(DOT_BYTES, kind, total, b.bitcast(n, kind), factors)
                total = b.shl(total, e.every(kind, 8)) if digit == 0 else total
            each = b.fmul(scales, gain, flags=ORDERED)
            e.accumulate(
                b.sitofp(total, vector(FLOAT, 8)), e.shuffle(each, each, [0] * 4 + [1] * 4), total_at
            )
            e.accumulate(offsets, sum_x, offset_at)


def sixteens(e: Emitter, bits: Any) -> Any:
    """16 for each of 32 bits that is set, else 0."""
    chosen = e.builder.bitcast(bits, vector(ir.IntType(1), GROUP))
    return e.builder.select(chosen, e.every(BYTES, 16), e.every(BYTES, 0))


def six_bits(e: Emitter, block: Any) -> tuple[list[Any], Any]:
    """d s and −e m for the eight groups of Q4_K and Q5_K; s and m have six bits each in twelve bytes."""
    b = e.builder
    of_scales, of_mins, last = (e.load(block, at, I32) for at in (4, 8, 12))
    right = lambda word, count: b.lshr(word, ir.Constant(I32, count))
    mask = lambda word, bits: b.and_(word, ir.Constant(I32, bits * 0x01010101))
    found = []
    for word, lower, unit in ((of_scales, last, 0), (of_mins, right(last, 4), 2)):
        first, upper = mask(word, 63), b.shl(mask(right(word, 6), 3), ir.Constant(I32, 4))
        second = b.or_(mask(lower, 15), upper)
        both = b.or_(b.zext(first, I64), b.shl(b.zext(second, I64), e.number(32)))
        six = b.uitofp(b.zext(b.bitcast(both, vector(I8, 8)), vector(I32, 8)), vector(FLOAT, 8))
        found.append(b.fmul(six, e.splat(e.half(block, unit), 8)))
    return [e.shuffle(found[0], found[0], [i] * e.lanes) for i in range(8)], b.fneg(found[1])


def unpack_q4_k(e: Emitter, block: Any) -> Block:
    """w = d s n − e m in eight groups"""
    scales, offsets = six_bits(e, block)
    numbers = [n for i in range(4) for n in e.nibbles(e.load(block, 16 + 32 * i, BYTES))]
    return Block(numbers, scales, 0, offsets)


def unpack_q5_k(e: Emitter, block: Any) -> Block:
    """w = d s n − e m in eight groups; bit i of 32 bytes is the fifth bit of group i"""
    scales, offsets = six_bits(e, block)
    b, fifth, one = e.builder, e.load(block, 16, BYTES), e.every(BYTES, 1)
    lower = [n for i in range(4) for n in e.nibbles(e.load(block, 48 + 32 * i, BYTES))]
    bits = [b.and_(b.lshr(fifth, e.every(BYTES, i)), one) for i in range(8)]
    numbers = [b.or_(n, b.shl(bit, e.every(BYTES, 4))) for n, bit in zip(lower, bits, strict=True)]
    return Block(numbers, scales, 0, offsets)


def unpack_q6_k(e: Emitter, block: Any) -> Block:
    """w = d s (n − 32), one s of 8 bits for each 16 numbers"""
    b, numbers, scales = e.builder, [], []
    units = b.sitofp(b.sext(e.load(block, 192, vector(I8, 16)), vector(I32, 16)), vector(FLOAT, 16))
    units = b.fmul(units, e.splat(e.half(block, 208), 16))
    for i in range(8):
        half, quarter = divmod(i, 4)
        lower = e.nibbles(e.load(block, 64 * half + 32 * (quarter % 2), BYTES))[quarter // 2]
        upper = b.lshr(e.load(block, 128 + 32 * half, BYTES), e.every(BYTES, 2 * quarter))
        numbers.append(b.or_(lower, b.shl(b.and_(upper, e.every(BYTES, 3)), e.every(BYTES, 4))))
        pair = [2 * i] * (e.lanes // 2) + [2 * i + 1] * (e.lanes // 2)
        scales.append(e.shuffle(units, units, pair))
    return Block(numbers, scales, 32)


@dataclass(frozen=True)
class Format:
    """How many numbers a block has, how many bytes, and what they mean; floats of 16 bits are not blocks."""

    size: int
    stored: int
    unpack: Unpack | None = None
    nibbles: Nibbles | None = None  # the layout of one whose blocks can be multiplied in pairs
    has_offset: bool = False


NIBBLES = {
    "Q4_0": Nibbles(18, 2, zero=8), "Q4_1": Nibbles(20, 4, has_offset=True),
    "Q5_0": Nibbles(22, 6, fifths=2, zero=16), "Q5_1": Nibbles(24, 8, fifths=4, has_offset=True),
}  # fmt: skip
# fmt: off
FORMATS = {
    "F32": Format(GROUP, 128), "F16": Format(GROUP, 64), "BF16": Format(GROUP, 64),
    "I8": Format(GROUP, GROUP, unpack_int8), "Q8_0": Format(32, 34, unpack_q8_0),
    "Q4_K": Format(256, 144, unpack_q4_k, has_offset=True),
    "Q5_K": Format(256, 176, unpack_q5_k, has_offset=True), "Q6_K": Format(256, 210, unpack_q6_k),
} | {n: Format(32, layout.stored, layout.unpack, layout, layout.has_offset) for n, layout in NIBBLES.items()}
# fmt: on


def sixteen_floats(e: Emitter, name: str, block: Any, part: int) -> Any:
    """16 floats, in 32 bits."""
    if name == "F32":
        return e.load(block, 64 * part, LANES)
    if name == "F16":
        return e.builder.fpext(e.load(block, 32 * part, vector(HALF, 16)), LANES)
    bits = e.builder.zext(e.load(block, 32 * part, vector(I16, 16)), vector(I32, 16))
    return e.builder.bitcast(e.builder.shl(bits, e.every(bits.type, 16)), LANES)


def emit_dot(e: Emitter, name: str, row: Any, vectors: Sequence[tuple[Any, Any]], blocks: Any) -> list[Any]:
    """Write w · x of one row for vectors: x in whole numbers with gains and sums, or in floats where w is."""
    b, form = e.builder, FORMATS[name]
    groups, lanes = form.size // GROUP, vector(FLOAT, e.lanes)
    few, two = vector(FLOAT, groups), vector(FLOAT, 2)
    totals = [[zeroed(b, kind) for kind in (lanes, lanes, few, two)] for _ in vectors]
    after = lambda address, index, count: b.add(address, b.mul(index, e.number(count)))
    sums = [after(gains, blocks, 4 * groups) for _, gains in vectors]
    start = e.number(0)
    if VNNI and form.nibbles is not None:
        pairs = b.lshr(blocks, e.number(1))
        with cgutils.for_range(b, pairs) as loop:
            first = after(row, loop.index, 2 * form.stored)
            given = []
            for (x, gains), sum_x, total in zip(vectors, sums, totals, strict=True):
                digits = after(after(x, blocks, 4 * form.size), loop.index, 128)
                gain, of_x = (e.load(after(at, loop.index, 8), 0, two) for at in (gains, sum_x))
                given.append((digits, gain, of_x, total[0], total[3]))
            form.nibbles.accumulate_pair(e, (first, b.add(first, e.number(form.stored))), given)
        start = b.shl(pairs, e.number(1))
    with cgutils.for_range(b, b.sub(blocks, start)) as loop:
        index = b.add(start, loop.index)
        stored = after(row, index, form.stored)
        floats = [sixteen_floats(e, name, stored, part) for part in range(2)] if form.unpack is None else []
        block = None if form.unpack is None else form.unpack(e, stored)
        for (x, gains), sums_at, total in zip(vectors, sums, totals, strict=True):
            for part, values_ in enumerate(floats):
                e.accumulate(values_, e.load(after(x, index, 4 * form.size), 64 * part, lanes), total[part])
            if block is None:
                continue
            gain, sum_x = (e.load(after(at, index, 4 * groups), 0, few) for at in (gains, sums_at))
            whole_at = after(x, index, 2 * form.size)
            digits_at = b.add(whole_at, b.mul(blocks, e.number(2 * form.size)))
            for i, (n, scale) in enumerate(zip(block.numbers, block.scales, strict=True)):
                at = [b.add(place, e.number(2 * GROUP * i)) for place in (whole_at, digits_at)]
                whole = e.dot_group(n, block.zero, *at)
                if VNNI and block.zero and groups > 1:  # the scale changes within a group: sums do not help
                    whole = b.sub(whole, e.dot_group(e.every(BYTES, block.zero), 0, *at))
                each = e.shuffle(gain, gain, [i] * e.lanes)
                each = each if scale is None else b.fmul(each, scale, flags=ORDERED)
                e.accumulate(b.sitofp(whole, lanes), each, total[i % 2])
            if VNNI and block.zero and groups == 1:
                zero, scale = ir.Constant(few, [-float(block.zero)]), block.scales[0]
                zero = zero if scale is None else b.fmul(zero, e.part(scale, 0, 1), flags=ORDERED)
                e.accumulate(zero, sum_x, total[2])
            if block.offsets is not None:
                e.accumulate(block.offsets, sum_x, total[2])
    results = []
    for first_half, second_half, *others in totals:
        result = e.sum(b.fadd(b.load(first_half), b.load(second_half), flags=ORDERED))
        for other in others if form.unpack is not None else ():
            result = b.fadd(result, e.sum(b.load(other)), flags=ORDERED)
        results.append(result)
    return results


def zeroed(builder: Any, kind: Any) -> Any:
    """Room for a sum, which is 0 where this is written."""
    place = cgutils.alloca_once(builder, kind)
    builder.store(ir.Constant(kind, None), place)
    return place


def emit_values(e: Emitter, name: str, block: Any) -> list[Any]:
    """Write the values of a block, 16 floats at a time."""
    b, unpack = e.builder, FORMATS[name].unpack
    if unpack is None:
        return [sixteen_floats(e, name, block, part) for part in range(2)]
    values, (numbers, scales, zero, offsets) = [], unpack(e, block)
    whole = vector(I32, 16)
    for i, (n, scale) in enumerate(zip(numbers, scales, strict=True)):
        for half in range(2):
            wide = b.sub(b.zext(e.part(n, 16 * half, 16), whole), e.every(whole, zero))
            value = b.sitofp(wide, vector(FLOAT, 16))
            if scale is not None:
                value = b.fmul(value, e.shuffle(scale, scale, [8 * half + j // 2 for j in range(16)]))
            if offsets is not None:
                value = b.fadd(value, e.shuffle(offsets, offsets, [i] * 16))
            values.append(value)
    return values


@literal_intrinsic
def dot_rows(
    typingctx: Any, name: Any, most: Any, weight: Any, rows: Any, blocks: Any, x: Any, x_bytes: Any,
    gains: Any, gains_bytes: Any, last: Any, out: Any,
) -> tuple[Any, Callable]:  # fmt: skip
    """out_br = w_r · x_b for rows of blocks and vectors b = 0 … last; the first two arguments are constants.

    Each vector begins some bytes after the one before. `most` are always computed: the last stands in for
    those that are missing. What a vector gets is the same to the bit next to any others.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, weight, rows, blocks, x, x_bytes, gains, gains_bytes, last, out = args
        form = FORMATS[name.literal_value]
        e = Emitter(builder, 8 if VNNI and form.unpack is not None else 16)
        length, vectors, outs = builder.mul(blocks, e.number(form.stored)), [], []
        for i in range(most.literal_value):
            is_last = builder.icmp_signed("<", last, e.number(i))
            which = builder.select(is_last, last, e.number(i))
            places = ((x, x_bytes), (gains, gains_bytes))
            vectors.append(tuple(builder.add(at, builder.mul(which, size)) for at, size in places))
            outs.append(builder.add(out, builder.mul(rows, e.number(4 * i))))
        with cgutils.for_range(builder, rows) as loop:  # two rows at once confuse the processor's prefetching
            row = builder.add(weight, builder.mul(loop.index, length))
            for result, to in zip(emit_dot(e, name.literal_value, row, vectors, blocks), outs, strict=True):
                place = builder.add(to, builder.mul(loop.index, e.number(4)))
                builder.store(result, builder.inttoptr(place, FLOAT.as_pointer()))
        return context.get_dummy_value()

    return types.void(name, most, *[types.int64] * 9), codegen


@literal_intrinsic
def values(typingctx: Any, name: Any, weight: Any, blocks: Any, out: Any) -> tuple[Any, Callable]:
    """Put the values of blocks to `out`, in float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, weight, blocks, out = args
        e, form = Emitter(builder), FORMATS[name.literal_value]
        with cgutils.for_range(builder, blocks) as loop:
            block = builder.add(weight, builder.mul(loop.index, e.number(form.stored)))
            to = builder.add(out, builder.mul(loop.index, e.number(4 * form.size)))
            for i, value in enumerate(emit_values(e, name.literal_value, block)):
                place = builder.inttoptr(builder.add(to, e.number(64 * i)), LANES.as_pointer())
                builder.store(value, place).align = 4
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


@cache
def dot_kernel(name: str, most: int = 1) -> int:
    """Return the address of a format's product with up to `most` vectors; `dot_rows` says of what numbers."""

    def kernel(
        weight: int, rows: int, blocks: int, x: int, x_bytes: int, gains: int, gains_bytes: int, last: int,
        out: int,
    ) -> None:  # fmt: skip
        dot_rows(name, most, weight, rows, blocks, x, x_bytes, gains, gains_bytes, last, out)

    return compile_pointer(kernel, 9)


@cache
def values_kernel(name: str) -> int:
    """Return the address of what widens a format: (weight, blocks, out)."""

    def kernel(weight: int, blocks: int, out: int) -> None:
        values(name, weight, blocks, out)

    return compile_pointer(kernel, 3)


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
def widen_blocks(kernel: Int, weight: Int, blocks: Int, out: Int) -> None:
    """Put the values of blocks to `out`, in float32, without the interpreter's lock."""
    call_kernel(kernel, (weight, blocks, out))


# A row of a panel: floats, or shorts and behind them what groups have. The cache would mix up powers of two.
PANEL_BYTES = 4 * TILE_VALUES + 64
GROUPS_AT, GROUP_BYTES = 2 * TILE_VALUES, 16  # two scales, one for each half of a group, and an offset


@literal_intrinsic
def widen_panel(typingctx: Any, name: Any, weight: Any, blocks: Any, panel: Any) -> tuple[Any, Callable]:
    """Put blocks of a row of whole numbers to `panel`: n − z in 16 bits, then scales and offset of groups."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, weight, blocks, panel = args
        e, form, words = Emitter(builder), FORMATS[name.literal_value], vector(I16, GROUP)
        assert form.unpack is not None

        def put(value: Any, address: Any) -> None:
            builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 2

        with cgutils.for_range(builder, blocks) as loop:
            block = builder.add(weight, builder.mul(loop.index, e.number(form.stored)))
            numbers, scales, zero, offsets = form.unpack(e, block)
            first = builder.mul(loop.index, e.number(len(numbers)))
            for i, (n, scale) in enumerate(zip(numbers, scales, strict=True)):
                group = builder.add(first, e.number(i))
                values = builder.sub(builder.zext(n, words), e.every(words, zero))
                put(values, builder.add(panel, builder.mul(group, e.number(2 * GROUP))))
                scale = e.every(LANES, 1) if scale is None else scale
                offset = ir.Constant(FLOAT, 0.0)
                if offsets is not None:
                    offset = builder.extract_element(offsets, ir.Constant(I32, i))
                at = builder.add(panel, builder.mul(group, e.number(GROUP_BYTES)))
                for j, lane in enumerate((0, e.lanes - 1)):
                    value = builder.extract_element(scale, ir.Constant(I32, lane))
                    put(value, builder.add(at, e.number(GROUPS_AT + 4 * j)))
                put(offset, builder.add(at, e.number(GROUPS_AT + 8)))
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 3), codegen


@literal_intrinsic
def multiply_panel(
    typingctx: Any, name: Any, lanes: Any, panel: Any, size: Any, x: Any, gains: Any, length: Any, out: Any,
    stride: Any,
) -> tuple[Any, Callable]:  # fmt: skip
    """out_rt += Σ_k w_rk x_kt for TILE_ROWS rows of a panel, `size` long, and a constant number of lanes t.

    x is arranged by `arrange_tile` for vectors of `length`, and so are the gains of its groups. Each row of
    `out` begins `stride` bytes after the one before.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, panel, size, x, gains, length, out, stride = args
        b, e, whole = builder, Emitter(builder), FORMATS[name.literal_value].unpack is not None
        after = lambda address, index, count: b.add(address, b.mul(index, e.number(count)))
        rows, parts = range(TILE_ROWS), range(lanes.literal_value // LANES.count)
        vectors = [after(x, length, (32 if whole else 64) * p) for p in parts]
        weights = [b.add(panel, e.number(PANEL_BYTES * r)) for r in rows]
        outs = [
            [b.add(b.add(out, b.mul(stride, e.number(r))), e.number(64 * p)) for p in parts] for r in rows
        ]

        def add_product(a: Any, c: Any, place: Any) -> None:
            sum_ = b.fadd(b.fmul(a, c, flags=ORDERED), e.load(place, 0, LANES), flags=ORDERED)
            b.store(sum_, b.inttoptr(place, LANES.as_pointer())).align = 4

        if not whole:
            totals = [[zeroed(b, LANES) for _ in parts] for _ in rows]
            with cgutils.for_range(b, size) as loop:
                factors = [e.load(after(at, loop.index, 64), 0, LANES) for at in vectors]
                for r in rows:
                    w = e.splat(e.load(after(weights[r], loop.index, 4), 0, FLOAT), LANES.count)
                    for p in parts:
                        e.accumulate(w, factors[p], totals[r][p])
            one = e.every(LANES, 1)
            for r in rows:
                for p in parts:
                    add_product(b.load(totals[r][p]), one, outs[r][p])
            return context.get_dummy_value()
        halves = 2 if name.literal_value == "Q6_K" else 1  # of a group, each with its own scale
        lines, sums, words = GROUP // 2 // halves, vector(I32, LANES.count), vector(I16, GROUP)
        # The gains of a tile's vectors, and behind them their sums, are two lines of lanes for each group.
        behind = b.mul(b.lshr(length, e.number(5)), e.number(64))
        own = [b.add(gains, b.mul(behind, e.number(2 * p))) for p in parts]
        with cgutils.for_range(b, b.lshr(size, e.number(5))) as loop:
            at = [after(vector_, loop.index, 64 * GROUP // 2) for vector_ in vectors]
            gain_at = [after(place, loop.index, 64) for place in own]
            for half in range(halves):
                totals = [[ir.Constant(sums, None) for _ in parts] for _ in rows]
                for k in range(half * lines, half * lines + lines):
                    factors = [e.load(place, 64 * k, words) for place in at]
                    for r in rows:
                        pair = e.load(after(weights[r], loop.index, 2 * GROUP), 4 * k, I32)
                        w = b.bitcast(e.splat(pair, LANES.count), words)
                        for p in parts:
                            totals[r][p] = b.add(totals[r][p], e.multiply_pairs(w, factors[p]))
                for r in rows:
                    scales = after(weights[r], loop.index, GROUP_BYTES)
                    scale = e.splat(e.load(scales, GROUPS_AT + 4 * half, FLOAT), LANES.count)
                    for p in parts:
                        each = b.fmul(scale, e.load(gain_at[p], 0, LANES), flags=ORDERED)
                        add_product(b.sitofp(totals[r][p], LANES), each, outs[r][p])
            if FORMATS[name.literal_value].has_offset:
                for r in rows:
                    scales = after(weights[r], loop.index, GROUP_BYTES)
                    offset = e.splat(e.load(scales, GROUPS_AT + 8, FLOAT), LANES.count)
                    for p in parts:
                        add_product(offset, e.load(b.add(gain_at[p], behind), 0, LANES), outs[r][p])
        return context.get_dummy_value()

    return types.void(name, lanes, *[types.int64] * 7), codegen


@cache
def tile_kernel(name: str) -> int:
    """Return the address of a format's product with many vectors, up to TILE_ROWS rows at a time.

    (weight, rows, blocks of a row, x, gains, vectors, panel, out): out (TILE_ROWS, vectors) = W x. A piece of
    each row is widened to `panel` and stays in the nearest cache for all vectors, a multiple of 16.
    """
    form = FORMATS[name]
    block, stored, whole = form.size, form.stored, form.unpack is not None
    x_bytes, most = 32 if whole else 64, TILE_LANES

    def kernel(
        weight: int, rows: int, blocks: int, x: int, gains: int, vectors: int, panel: int, out: int
    ) -> None:
        length, stride = blocks * block, 4 * vectors
        sums = carray(floats_at(out), (TILE_ROWS * vectors,))
        for i in range(len(sums)):
            sums[i] = np.float32(0.0)
        for start in range(0, length, TILE_VALUES):
            size = min(TILE_VALUES, length - start)
            for r in range(rows):
                source = weight + (r * blocks + start // block) * stored
                widen_panel_or_values(name, source, size // block, panel + PANEL_BYTES * r)
            t = 0
            while t < vectors:
                x_at = x + t // 16 * length * x_bytes + start * x_bytes
                gains_at = gains + 4 * (t // 16 * length + start // 2)
                if vectors - t >= most:
                    multiply_panel(name, most, panel, size, x_at, gains_at, length, out + 4 * t, stride)
                    t += most
                else:
                    multiply_panel(name, 16, panel, size, x_at, gains_at, length, out + 4 * t, stride)
                    t += 16

    widen_panel_or_values = widen_panel if whole else values
    return compile_pointer(kernel, 8)
