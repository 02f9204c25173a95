"""Sixteen floats as one value inside a Numba function, so that a kernel is vector code by construction.

Numba leaves vectorising to LLVM's loop passes, which give up where arrays might overlap; two of three
loops of word2vec do. Here a `float32x16` is a Numba type of its own, and each operation below is one or two
LLVM instructions. LLVM cuts it to what the processor has: one AVX-512 register, two AVX, four SSE or NEON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 16


F = TypeVar("F", bound=Callable[..., Any])
Floats = np.ndarray  # float32
Ints = np.ndarray  # int64; ids int32
Bits = np.ndarray  # uint32
Int = Any  # Numba's machine numbers, which Python's and numpy's both become
Float = Any
Lanes = Any  # sixteen float32


def compiled(function: F) -> F:
    """Machine code for machine.py to keep, each function inside its caller."""
    # a call would pass every array as seven words on the stack, more than some of the functions do
    return cast(F, njit(nogil=True, fastmath=True, boundscheck=False, forceinline=True)(function))


def inlined(function: F) -> F:
    return cast(F, njit(inline="always")(function))


def instruction(function: Callable[..., Any]) -> Any:
    """A function of LLVM values as one that Numba's compiler can call; its first argument is Numba's own."""
    return intrinsic(function)


VECTOR = ir.VectorType(ir.FloatType(), LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)


class Vector(types.Type):
    """The Numba type of sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """Numba keeps the value in an LLVM vector register."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VECTOR)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _constant(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _ints(value: int) -> ir.Constant:
    return ir.Constant(INTS, [value] * LANES)


def _call(builder: Any, name: str, result: ir.Type, operands: list[Any]) -> Any:
    """Call an LLVM intrinsic, letting it use fast-math rewriting."""
    function_type = ir.FunctionType(result, [o.type for o in operands])
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, function_type, name=name)
    return builder.call(function, operands)


@instruction
def load(typingctx: Any, array: Any, index: Any) -> tuple[Any, Callable]:
    """array.ravel()[index : index + 16]; the caller keeps within bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)

    return vector(array, types.intp), codegen


@instruction
def store(typingctx: Any, array: Any, index: Any, value: Any) -> tuple[Any, Callable]:
    """array.ravel()[index : index + 16] = value; the caller keeps within bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(pointer, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@instruction
def prefetch(typingctx: Any, array: Any, index: Any) -> tuple[Any, Callable]:
    """Ask for the cache line of array.ravel()[index], without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        flags = [ir.Constant(ir.IntType(32), value) for value in (1, 3, 1)]  # write, keep, data
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@instruction
def splat(typingctx: Any, value: Any) -> tuple[Any, Callable]:
    """The same float32 in all sixteen lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = builder.insert_element(
            ir.Constant(VECTOR, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0)
        )
        return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), _ints(0))

    return vector(types.float32), codegen


@instruction
def add(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable]:
    """a + b, lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return vector(vector, vector), codegen


@instruction
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable]:
    """a · b + c, lane by lane, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, list(args))

    return vector(vector, vector, vector), codegen


@instruction
def total(typingctx: Any, a: Any) -> tuple[Any, Callable]:
    """The sum over the lanes, as a tree: halves are added until one is left."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, width = args[0], LANES
        while width > 1:
            width //= 2
            lanes = ir.VectorType(ir.IntType(32), width)
            low = builder.shuffle_vector(value, value, ir.Constant(lanes, list(range(width))))
            high = builder.shuffle_vector(value, value, ir.Constant(lanes, list(range(width, 2 * width))))
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return types.float32(vector), codegen


def _exp_of_negative(builder: Any, a: Any) -> Any:
    """exp(-a) for a ≥ 0: 2ⁿ·2ᶠ with n whole and |f| ≤ ½, 2ᶠ by its series to the seventh power (error <
    1e-8).
    """
    limit = builder.select(builder.fcmp_ordered("<", a, _constant(87.0)), a, _constant(87.0))
    power = builder.fmul(limit, _constant(-1.4426950408889634))
    whole = _call(builder, f"llvm.rint.v{LANES}f32", VECTOR, [power])
    rest = builder.fsub(power, whole)
    series = [
        1.0,
        0.6931471805599453,
        0.2402265069591007,
        0.05550410866482158,
        0.009618129107628477,
        0.0013333558146428443,
        0.00015403530393381608,
        0.000015252733804059837,
    ]
    value = _constant(series[-1])
    for coefficient in reversed(series[:-1]):
        value = _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, [value, rest, _constant(coefficient)])
    exponent = builder.shl(builder.add(builder.fptosi(whole, INTS), _ints(127)), _ints(23))
    return builder.fmul(value, builder.bitcast(exponent, VECTOR))


def _split(builder: Any, x: Any) -> tuple[Any, Any]:
    """Is x ≥ 0, and exp(-|x|)."""
    positive = builder.fcmp_ordered(">=", x, _constant(0.0))
    size = builder.select(positive, x, builder.fneg(x))
    return positive, _exp_of_negative(builder, size)


@instruction
def sigmoid(typingctx: Any, x: Any) -> tuple[Any, Callable]:
    """σ(x) = 1 / (1 + exp(-x)), without a table and without clipping."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        positive, e = _split(builder, args[0])
        top = builder.select(positive, _constant(1.0), e)
        return builder.fdiv(top, builder.fadd(_constant(1.0), e))

    return vector(vector), codegen


@instruction
def softplus(typingctx: Any, x: Any) -> tuple[Any, Callable]:
    """log(1 + exp(x)) = max(x, 0) + 2·artanh(e / (2 + e)) with e = exp(-|x|), artanh by its odd series."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        positive, e = _split(builder, args[0])
        s = builder.fdiv(e, builder.fadd(_constant(2.0), e))
        square = builder.fmul(s, s)
        value = _constant(2.0 / 13.0)
        for odd in (11, 9, 7, 5, 3, 1):
            value = _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, [value, square, _constant(2.0 / odd)])
        above = builder.select(positive, args[0], _constant(0.0))
        return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, [value, s, above])

    return vector(vector), codegen
