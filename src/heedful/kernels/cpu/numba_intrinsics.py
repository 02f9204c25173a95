"""Memory by address, shared words and bits inside Numba functions: what its own language leaves out.

A row that is reached by its address is an array that cannot wrap around, so LLVM turns loops over it into
vector code. Words that threads share are read and changed atomically, in one order for all.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic as numba_intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Int = Any  # Numba's machine numbers, which Python's and numpy's both become
Float = Any
Array = Any

PAUSE = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else ""


# It changes when any source of the CPU's kernels does.
SOURCE_STATS = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
SOURCE_STAMP = tuple((stat.st_mtime_ns, stat.st_size) for stat in SOURCE_STATS)


def compile_cached(function: F) -> F:
    """Machine code that runs without the interpreter's lock, kept on disk between runs.

    Numba looks only at the file a function stands in. What it calls in other files is part of the code too.
    """
    fast = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # not ninf: a hidden key's score is −∞
    # Python's way to divide looks whether there is a zero, and a loop that looks is not a vector code.
    options: Any = {"fastmath": fast, "boundscheck": False, "error_model": "numpy"}
    compiled: Any = njit(nogil=True, cache=True, **options)(function)
    compiled._cache._cache_file._source_stamp = SOURCE_STAMP
    return cast(F, compiled)


def compile_inline(function: F) -> F:
    return cast(F, njit(inline="always", fastmath=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function of LLVM values as one that Numba's compiler can call; its first argument is Numba's own.

    The type of an argument that is a constant tells its value.
    """
    return numba_intrinsic(prefer_literal=True)(function)


def call_llvm(builder: Any, name: str, result: Any, *args: Any, fastmath: tuple[str, ...] = ()) -> Any:
    """Call one of LLVM's own functions by its name."""
    kind = ir.FunctionType(result, [a.type for a in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args, fastmath=fastmath)


def emit_prefetch(builder: Any, address: Any, locality: int) -> None:
    """Ask memory for the 64 bytes at an address; 3 wants them in the nearest cache."""
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    constants = [ir.Constant(ir.IntType(32), value) for value in (0, locality, 1)]
    call_llvm(builder, "llvm.prefetch.p0i8", ir.VoidType(), place, *constants)


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
def truncate(typingctx: Any, number: Any) -> tuple[Any, Callable]:
    """A float32 without its fraction, as 32 bits; Numba's own way goes through 64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fptosi(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


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
def atomic_add(typingctx: Any, array: Any, index: Any, value: Any) -> tuple[Any, Callable]:
    """array[index], to which `value` is added then: of those who add 1, no two threads get the same."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], *args[:2])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> tuple[Any, Callable]:
    """Tell the core that this thread waits in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if PAUSE:
            call_llvm(builder, PAUSE, ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> tuple[Any, Callable]:
    """Ask memory for the 64 bytes at an address, without waiting for them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_prefetch(builder, args[0], 2)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


sched_yield = types.ExternalFunction("sched_yield", types.int32())  # let another thread have the core
