"""Products with matrices that stay as a GGUF file stores them, and their values in float32, as vector code.

A block holds groups of 32 whole numbers n with a scale s and, in some formats, an offset m for each group:

    w = s n + m        so that        w · x = Σ over groups of s (n · x) + m Σ x

x is rounded to 16 bits beforehand (`round_row_int16`), so n · x is whole-number arithmetic: two products and
their sum are one instruction (pmaddwd on x86). Each format is described by one `unpack_…` function, which
writes the instructions for one block; products and values are both made from it. The definition of a format
is `dequantize` of the `gguf` library, and tests compare the two. Floats of 16 bits are multiplied with x as
it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils

from heedful.kernels.numba_intrinsics import PAUSE, Int, compile_cached, intrinsic, load_at

GROUP = 32
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()
BYTES, LANES = ir.VectorType(I8, GROUP), ir.VectorType(FLOAT, GROUP // 2)
FAST = ("nnan", "nsz", "contract", "reassoc")


def vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


@dataclass
class Emitter:
    """LLVM's builder, with the few vector operations that formats are written in."""

    builder: Any

    def number(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def load(self, address: Any, offset: int, kind: Any) -> Any:
        return load_at(self.builder, self.builder.add(address, self.number(offset)), kind, 1)

    def half(self, address: Any, offset: int) -> Any:
        """The float16 there, as float32."""
        return self.builder.fpext(self.load(address, offset, HALF), FLOAT)

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
        first = self.builder.insert_element(ir.Constant(vector(scalar.type, count), ir.Undefined), scalar, ir.Constant(I32, 0))
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
        product = self.builder.fmul(a, b, flags=FAST)
        self.builder.store(self.builder.fadd(product, self.builder.load(total), flags=FAST), total)

    def multiply_add(self, n: Any, x: Any) -> Any:
        """n_0 x_0 + n_1 x_1, n_2 x_2 + n_3 x_3, …: 16 sums in 32 bits of 32 products of 16 bits"""
        lanes, name = MULTIPLY_ADD
        if name:
            parts = [
                self.call(name, vector(I32, lanes // 2), self.part(n, i, lanes), self.part(x, i, lanes))
                for i in range(0, GROUP, lanes)
            ]
            return parts[0] if len(parts) == 1 else self.join(*parts)
        wide = vector(I32, GROUP)
        products = self.builder.mul(self.builder.sext(n, wide), self.builder.sext(x, wide))
        even, odd = (self.shuffle(products, products, list(range(i, GROUP, 2))) for i in range(2))
        return self.builder.add(even, odd)

    def sum(self, a: Any) -> Any:
        kind = a.type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f32"
        function = self.builder.module.globals.get(name) or ir.Function(
            self.builder.module, ir.FunctionType(FLOAT, [FLOAT, kind]), name
        )
        return self.builder.call(function, [ir.Constant(FLOAT, 0.0), a], fastmath=FAST)


def find_multiply_add() -> tuple[int, str]:
    """Return how many 16-bit factors x86's instruction for sums of two products takes, and its name."""
    features = llvmlite.binding.get_host_cpu_features() if PAUSE else {}
    if features.get("avx512bw"):
        return 32, "llvm.x86.avx512.pmaddw.d.512"
    return (16, "llvm.x86.avx2.pmadd.wd") if features.get("avx2") else (0, "")


MULTIPLY_ADD = find_multiply_add()

# A format's function gives the groups of a block, each as 32 whole numbers of 8 bits and a scale for every two
# of them, and the offsets, one for each group, or None.
Groups = tuple[list[tuple[Any, Any]], Any]
Unpack = Callable[[Emitter, Any], Groups]


def unpack_q8_0(e: Emitter, block: Any) -> Groups:
    """w = d n"""
    return [(e.load(block, 2, BYTES), e.splat(e.half(block, 0), 16))], None


def unpack_q4_0(e: Emitter, block: Any) -> Groups:
    """w = d (n − 8)"""
    n = e.join(*e.nibbles(e.load(block, 2, vector(I8, 16))))
    return [(e.builder.sub(n, e.every(BYTES, 8)), e.splat(e.half(block, 0), 16))], None


def unpack_q4_1(e: Emitter, block: Any) -> Groups:
    """w = d n + m"""
    n = e.join(*e.nibbles(e.load(block, 4, vector(I8, 16))))
    return [(n, e.splat(e.half(block, 0), 16))], e.splat(e.half(block, 2), 1)


def fifth_bits(e: Emitter, block: Any, at: int) -> Any:
    """16 for each of the 32 bits there that is set, else 0."""
    bits = e.builder.bitcast(e.load(block, at, I32), vector(ir.IntType(1), GROUP))
    return e.builder.select(bits, e.every(BYTES, 16), e.every(BYTES, 0))


def unpack_q5_0(e: Emitter, block: Any) -> Groups:
    """w = d (n − 16)"""
    n = e.builder.or_(e.join(*e.nibbles(e.load(block, 6, vector(I8, 16)))), fifth_bits(e, block, 2))
    return [(e.builder.sub(n, e.every(BYTES, 16)), e.splat(e.half(block, 0), 16))], None


def unpack_q5_1(e: Emitter, block: Any) -> Groups:
    """w = d n + m"""
    n = e.builder.or_(e.join(*e.nibbles(e.load(block, 8, vector(I8, 16)))), fifth_bits(e, block, 4))
    return [(n, e.splat(e.half(block, 0), 16))], e.splat(e.half(block, 2), 1)


def six_bits(e: Emitter, block: Any) -> tuple[Any, Any]:
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
    return found[0], b.fneg(found[1])


def unpack_q4_k(e: Emitter, block: Any) -> Groups:
    """w = d s n − e m in eight groups"""
    scales, offsets = six_bits(e, block)
    numbers = [n for i in range(4) for n in e.nibbles(e.load(block, 16 + 32 * i, BYTES))]
    return [(n, e.shuffle(scales, scales, [i] * 16)) for i, n in enumerate(numbers)], offsets


def unpack_q5_k(e: Emitter, block: Any) -> Groups:
    """w = d s n − e m in eight groups; bit i of 32 bytes is the fifth bit of group i"""
    scales, offsets = six_bits(e, block)
    b, fifth, groups = e.builder, e.load(block, 16, BYTES), []
    numbers = [n for i in range(4) for n in e.nibbles(e.load(block, 48 + 32 * i, BYTES))]
    for i, n in enumerate(numbers):
        bit = b.and_(b.lshr(fifth, e.every(BYTES, i)), e.every(BYTES, 1))
        n = b.or_(n, b.shl(bit, e.every(BYTES, 4)))
        groups.append((n, e.shuffle(scales, scales, [i] * 16)))
    return groups, offsets


def unpack_q6_k(e: Emitter, block: Any) -> Groups:
    """w = d s (n − 32), one s of 8 bits for each 16 numbers"""
    b, groups = e.builder, []
    scales = b.sitofp(b.sext(e.load(block, 192, vector(I8, 16)), vector(I32, 16)), LANES)
    scales = b.fmul(scales, e.splat(e.half(block, 208), 16))
    for i in range(8):
        half, quarter = divmod(i, 4)
        lower = e.nibbles(e.load(block, 64 * half + 32 * (quarter % 2), BYTES))[quarter // 2]
        upper = b.lshr(e.load(block, 128 + 32 * half, BYTES), e.every(BYTES, 2 * quarter))
        n = b.or_(lower, b.shl(b.and_(upper, e.every(BYTES, 3)), e.every(BYTES, 4)))
        scale = e.shuffle(scales, scales, [2 * i] * 8 + [2 * i + 1] * 8)
        groups.append((b.sub(n, e.every(BYTES, 32)), scale))
    return groups, None


@dataclass(frozen=True)
class Format:
    """How many numbers a block has, how many bytes, and what they mean; floats of 16 bits are no blocks."""

    size: int
    stored: int
    unpack: Unpack | None = None


FORMATS = {
    "F16": Format(GROUP, 64), "BF16": Format(GROUP, 64),
    "Q8_0": Format(32, 34, unpack_q8_0), "Q4_0": Format(32, 18, unpack_q4_0),
    "Q4_1": Format(32, 20, unpack_q4_1), "Q5_0": Format(32, 22, unpack_q5_0),
    "Q5_1": Format(32, 24, unpack_q5_1), "Q4_K": Format(256, 144, unpack_q4_k),
    "Q5_K": Format(256, 176, unpack_q5_k), "Q6_K": Format(256, 210, unpack_q6_k),
}  # fmt: skip
CODES = {name: code for code, name in enumerate(FORMATS)}
FLOAT_CODES = (CODES["F16"], CODES["BF16"])


def sixteen_floats(e: Emitter, name: str, block: Any, part: int) -> Any:
    """16 floats of 16 bits, in 32."""
    if name == "F16":
        return e.builder.fpext(e.load(block, 32 * part, vector(HALF, 16)), LANES)
    bits = e.builder.zext(e.load(block, 32 * part, vector(I16, 16)), vector(I32, 16))
    return e.builder.bitcast(e.builder.shl(bits, e.every(bits.type, 16)), LANES)


def emit_dot(e: Emitter, name: str, row: Any, x: Any, sums: Any, blocks: Any) -> Any:
    """Write w · x of one row: x in int16 with its sums over groups, or in float32 where w is a float."""
    b, form = e.builder, FORMATS[name]
    groups = form.size // GROUP
    totals = [zeroed(b, LANES), zeroed(b, LANES), zeroed(b, vector(FLOAT, groups))]
    with cgutils.for_range(b, blocks) as loop:
        block = b.add(row, b.mul(loop.index, e.number(form.stored)))
        width = 4 if form.unpack is None else 2
        xs = b.add(x, b.mul(loop.index, e.number(width * form.size)))
        if form.unpack is None:
            for part in range(2):
                w = sixteen_floats(e, name, block, part)
                e.accumulate(w, e.load(xs, 64 * part, LANES), totals[part])
        else:
            numbers, offsets = form.unpack(e, block)
            for i, (n, scale) in enumerate(numbers):
                words = vector(I16, GROUP)
                whole = e.multiply_add(b.sext(n, words), e.load(xs, 2 * GROUP * i, words))
                e.accumulate(b.sitofp(whole, LANES), scale, totals[i % 2])
            if offsets is not None:
                at = b.add(sums, b.mul(loop.index, e.number(4 * groups)))
                e.accumulate(offsets, e.load(at, 0, offsets.type), totals[2])
    first, second, third = (b.load(total) for total in totals)
    whole = e.sum(b.fadd(first, second, flags=FAST))
    return b.fadd(whole, e.sum(third), flags=FAST)


def emit_values(e: Emitter, name: str, row: Any, out: Any, blocks: Any) -> None:
    """Write the values of one row to `out`, in float32."""
    b, form = e.builder, FORMATS[name]
    with cgutils.for_range(b, blocks) as loop:
        block = b.add(row, b.mul(loop.index, e.number(form.stored)))
        to = b.add(out, b.mul(loop.index, e.number(4 * form.size)))
        if form.unpack is None:
            values = [sixteen_floats(e, name, block, part) for part in range(2)]
        else:
            values = []
            numbers, offsets = form.unpack(e, block)
            for i, (n, scale) in enumerate(numbers):
                for half in range(2):
                    floats = b.sitofp(b.sext(e.part(n, 16 * half, 16), vector(I32, 16)), LANES)
                    scales = e.shuffle(scale, scale, [8 * half + j // 2 for j in range(16)])
                    value = b.fmul(floats, scales)
                    if offsets is not None:
                        value = b.fadd(value, e.shuffle(offsets, offsets, [i] * 16))
                    values.append(value)
        for i, value in enumerate(values):
            place = b.inttoptr(b.add(to, e.number(64 * i)), LANES.as_pointer())
            b.store(value, place).align = 4


def zeroed(builder: Any, kind: Any) -> Any:
    """Room for a sum, which is 0 where this is written."""
    place = cgutils.alloca_once(builder, kind)
    builder.store(ir.Constant(kind, None), place)
    return place


@intrinsic
def dot_rows_blocks(
    typingctx: Any, code: Any, weight: Any, rows: Any, blocks: Any, x: Any, sums: Any, gain: Any, out: Any
) -> tuple[Any, Callable]:
    """out_r = gain · w_r · x for rows of a format, by its code; all but the gain are addresses and counts."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, weight, rows, blocks, x, sums, gain, out = args
        e = Emitter(builder)
        for name, form in FORMATS.items():
            with builder.if_then(builder.icmp_signed("==", code, e.number(CODES[name]))):
                length = builder.mul(blocks, e.number(form.stored))
                with cgutils.for_range(builder, rows) as loop:
                    row = builder.add(weight, builder.mul(loop.index, length))
                    result = builder.fmul(gain, emit_dot(e, name, row, x, sums, blocks))
                    place = builder.add(out, builder.mul(loop.index, e.number(4)))
                    builder.store(result, builder.inttoptr(place, FLOAT.as_pointer()))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32, types.int64), codegen


@intrinsic
def values_of_blocks(
    typingctx: Any, code: Any, weight: Any, blocks: Any, out: Any
) -> tuple[Any, Callable]:
    """Put the values of consecutive blocks of a format to `out`, in float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, weight, blocks, out = args
        e = Emitter(builder)
        for name in FORMATS:
            with builder.if_then(builder.icmp_signed("==", code, e.number(CODES[name]))):
                emit_values(e, name, weight, out, blocks)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@compile_cached
def widen_blocks(code: Int, weight: Int, blocks: Int, out: Int) -> None:
    """Put the values of consecutive blocks to `out`, in float32."""
    values_of_blocks(code, weight, blocks, out)
