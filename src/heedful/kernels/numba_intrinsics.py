"""Memory by address, shared words and bits inside Numba functions: what its own language leaves out.

A row that is reached by its address is an array that cannot wrap around, so LLVM turns loops over it into
vector code. Words that threads share are read and changed atomically, in one order for all.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Int = Any  # Numba's machine numbers, which Python's and numpy's both become
Float = Any
Array = Any

PAUSE = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else ""


def source_stamp() -> tuple[tuple[int, int], ...]:
    """Return what changes when any source of the CPU's kernels does."""
    here = Path(__file__).parent
    sources = [path.stat() for path in (Path(__file__), here / "team.py", *sorted(here.glob("cpu_*.py")))]
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in sources)


SOURCE_STAMP = source_stamp()


def compile_cached(function: F) -> F:
    """Machine code that runs without the interpreter's lock, kept on disk between runs.

    Numba looks only at the file a function stands in. What it calls in other files is part of the code too.
    """
    fast = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # not ninf: a hidden key's score is −∞
    # Python's way to divide looks whether there is a zero, and a loop that looks is no vector code.
    options: Any = {"fastmath": fast, "boundscheck": False, "error_model": "numpy"}
    compiled: Any = njit(nogil=True, cache=True, **options)(function)
    compiled._cache._cache_file._source_stamp = SOURCE_STAMP
    return cast(F, compiled)


def compile_inline(function: F) -> F:
    return cast(F, njit(inline="always", fastmath=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function of LLVM values as one that Numba's compiler can call; its first argument is Numba's own."""
    return numba_intrinsic(function)


def _pointer(element: Any, kind: Any) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> tuple[Any, Callable]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], element.as_pointer())

        return types.CPointer(kind)(types.int64), codegen

    return at


floats_at = _pointer(ir.FloatType(), types.float32)  # give these to numba.carray
bytes_at = _pointer(ir.IntType(8), types.int8)
nibbles_at = _pointer(ir.IntType(8), types.uint8)
shorts_at = _pointer(ir.IntType(16), types.int16)


@intrinsic
def as_float(typingctx: Any, bits: Any) -> tuple[Any, Callable]:
    """The float32 that these 32 bits are."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def truncate(typingctx: Any, number: Any) -> tuple[Any, Callable]:
    """A float32 without its fraction, as 32 bits; Numba's own way goes through 64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fptosi(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


def find_multiply_add() -> tuple[str, int]:
    """Return the name of x86's instruction for sums of two 16-bit products, and how many factors it takes.

    LLVM finds it by itself in plain loops of one row only.
    """
    features = llvmlite.binding.get_host_cpu_features() if PAUSE else {}
    if features.get("avx512bw"):
        return "llvm.x86.avx512.pmaddw.d.512", 32
    return ("llvm.x86.avx2.pmadd.wd", 16) if features.get("avx2") else ("", 1)


MULTIPLY_ADD, LANES = find_multiply_add()


@intrinsic
def dot_four_int8(
    typingctx: Any, weight: Any, stride: Any, x: Any, blocks: Any, out: Any
) -> tuple[Any, Callable]:
    """out_r = w_r · x for four rows of int8, `stride` bytes apart, and int16 x, `blocks` times LANES long."""
    bytes_, shorts, ints = (
        ir.VectorType(ir.IntType(bits), count) for bits, count in ((8, LANES), (16, LANES), (32, LANES // 2))
    )

    def declare(builder: Any, name: str, kind: Any) -> Any:
        return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weight, stride, x, blocks, out = args
        number = lambda value: ir.Constant(ir.IntType(64), value)
        multiply_add = declare(builder, MULTIPLY_ADD, ir.FunctionType(ints, [shorts, shorts]))
        name = f"llvm.vector.reduce.add.v{LANES // 2}i32"
        reduce = declare(builder, name, ir.FunctionType(ir.IntType(32), [ints]))
        totals = [cgutils.alloca_once_value(builder, ir.Constant(ints, None)) for _ in range(4)]
        with cgutils.for_range(builder, blocks) as loop:
            at = builder.mul(loop.index, number(LANES))
            factors = load_at(builder, builder.add(x, builder.mul(at, number(2))), shorts, 2)
            for r, total in enumerate(totals):
                row = builder.add(builder.add(weight, builder.mul(stride, number(r))), at)
                numbers = builder.sext(load_at(builder, row, bytes_, 1), shorts)
                sums = builder.call(multiply_add, [numbers, factors])
                builder.store(builder.add(builder.load(total), sums), total)
        place = builder.inttoptr(out, ir.IntType(32).as_pointer())
        for r, total in enumerate(totals):
            builder.store(builder.call(reduce, [builder.load(total)]), builder.gep(place, [number(r)]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def load_at(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def atomic_load(typingctx: Any, array: Any, index: Any) -> tuple[Any, Callable]:
    """array[index], as all threads see it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature.args[0], *args), "seq_cst", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def atomic_store(typingctx: Any, array: Any, index: Any, value: Any) -> tuple[Any, Callable]:
    """array[index] = value, for all threads; what was written before it is seen before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _address(context, builder, signature.args[0], *args[:2]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def atomic_increment(typingctx: Any, array: Any, index: Any) -> tuple[Any, Callable]:
    """array[index], which then is one more: no two threads get the same."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], *args)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(array, types.intp), codegen


@intrinsic
def pause(typingctx: Any) -> tuple[Any, Callable]:
    """Tell the core that this thread waits in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if PAUSE:
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.globals.get(PAUSE) or ir.Function(builder.module, nothing, PAUSE), [])
        return context.get_dummy_value()

    return types.void(), codegen


sched_yield = types.ExternalFunction("sched_yield", types.int32())  # let another thread have the core
