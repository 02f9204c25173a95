"""The kernel as machine code without Numba in the process that trains.

Numba costs half a second and some hundred megabytes to import and more to compile with. So a process of its
own compiles kernels.train_job once for this processor and leaves an object file in the cache; training maps
it with llvmlite alone and calls it through ctypes, which lets go of the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import HeedfulError, MissingPackage

SOURCES = ("simd.py", "sampling.py", "kernels.py", "machine.py")
# what train_job takes, in order: an array by its kind, or a number
KINDS = {"i4": np.int32, "i8": np.int64, "u4": np.uint32, "f4": np.float32}
SIGNATURE = [
    *("i4", "u4", "u4", "i8", "i8", "f4"),  # ids, keep, alias, paths, nodes, turns
    *("f4", "f4", "int", "int", "int", "int", "int", "float", "uint"),  # V, U, width, window … rate, seed
    *("i4", "f4", "f4", "f4", "f4", "i8", "i8", "f4", "i8"),  # kept, h, u, x, step, inputs … only
]
NUMBERS = {"int": ctypes.c_int64, "uint": ctypes.c_uint64, "float": ctypes.c_float}
# Numba's error handling and reference counting, which the object file names and train_job never reaches
UNUSED = (
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_unpickle",
    "numba_runtime_build_excinfo_struct",
    "numba_do_raise",
    "NRT_Free",
    "NRT_MemInfo_call_dtor",
)


class Sums(ctypes.Structure):
    """What train_job returns."""

    _fields_ = (("loss", ctypes.c_double), ("examples", ctypes.c_int64), ("words", ctypes.c_int64))


def cache_folder() -> Path:
    """HEED_CACHE, or the user's cache folder, or where temporary files go."""
    base = os.environ.get("HEED_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "heedful"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"heedful-{getpass.getuser()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def fingerprint() -> str:
    """Of everything the machine code depends on: sources, compiler, processor."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    for text in (
        metadata.version("numba"),
        metadata.version("llvmlite"),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    ):
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()[:24]


@cache
def train_job() -> Callable[..., tuple[float, int, int]]:
    """kernels.train_job, compiled; the arrays must be contiguous and of the kinds in SIGNATURE."""
    for name in ("numba", "llvmlite"):
        if util.find_spec(name) is None:
            raise MissingPackage(
                f"training on the processor needs {name}; pip install 'heedful[fast]', "
                "or train with device='cuda'"
            )
    path = cache_folder() / f"word2vec-{fingerprint()}.o"
    code = read(path)
    if code is None:
        compile_apart(path)
        code = read(path)
    if code is None:
        raise HeedfulError(f"the compiled kernel {path} cannot be read; set HEED_CACHE to another folder")
    return bind(code)


def read(path: Path) -> bytes | None:
    """The object code if the file is there and whole."""
    if not path.exists():
        return None
    data = path.read_bytes()
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def compile_apart(path: Path) -> None:
    command = [sys.executable, "-m", "heedful.word2vec.machine", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HeedfulError(f"the kernel could not be compiled: {last}; see all with: {' '.join(command)}")


def bind(code: bytes) -> Callable[..., tuple[float, int, int]]:
    """Map the object file and wrap its function, which gets room for its result and an error it never has."""
    import llvmlite.binding as llvm

    for unused in UNUSED:
        llvm.add_symbol(unused, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    name, code = code.split(b"\n", 1)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    kinds: list[Any] = [ctypes.POINTER(Sums), ctypes.POINTER(ctypes.c_void_p)]
    for kind in SIGNATURE:
        kinds += [NUMBERS[kind]] if kind in NUMBERS else [ctypes.c_void_p, ctypes.c_int64]
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(engine.get_function_address(name.decode()))

    def call(*arguments: Any) -> tuple[float, int, int]:
        sums, error = Sums(), ctypes.c_void_p()
        entry(ctypes.byref(sums), ctypes.byref(error), *flat(arguments))
        return sums.loss, sums.examples, sums.words

    call.engine = engine  # type: ignore[attr-defined]    # the code lives as long as its engine
    return call


def flat(arguments: Sequence[Any]) -> list[Any]:
    """Arrays as address and length, after a look at their kind: C would not look."""
    values: list[Any] = []
    for kind, value in zip(SIGNATURE, arguments, strict=True):
        if kind in NUMBERS:
            values.append(NUMBERS[kind](value))
            continue
        if value.dtype != KINDS[kind] or not value.flags.c_contiguous:
            raise TypeError(f"the kernel wants a contiguous array of {kind}, got {value.dtype}")
        values += [value.ctypes.data, value.size]
    return values


def build(path: Path) -> None:
    """Compile with Numba; write checksum, name and object code, under the file's name only when whole."""
    import llvmlite.binding as llvm
    from numba import njit

    entry, types = entry_point()
    result = njit(types, nogil=True, error_model="numpy")(entry).overloads[types.args]
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )
    data = result.fndesc.llvm_func_name.encode() + b"\n" + machine.emit_object(result.library._final_module)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(hashlib.sha256(data).digest() + data)
    Path(file.name).replace(path)


def entry_point() -> tuple[Callable[..., Any], Any]:
    """train_job behind plain addresses and lengths, and its Numba signature."""
    from numba import carray, from_dtype, types

    from heedful.word2vec import kernels

    kinds: list[Any] = []
    names: list[str] = []
    values: list[str] = []
    for i, kind in enumerate(SIGNATURE):
        if kind in NUMBERS:
            kinds.append({"int": types.int64, "uint": types.uint64, "float": types.float32}[kind])
            names.append(f"a{i}")
            values.append(f"a{i}")
        else:
            kinds += [types.CPointer(from_dtype(np.dtype(KINDS[kind]))), types.int64]
            names += [f"a{i}", f"n{i}"]
            values.append(f"carray(a{i}, n{i})")
    space: dict[str, Any] = {"carray": carray, "train_job": kernels.train_job}
    exec(f"def entry({', '.join(names)}):\n    return train_job({', '.join(values)})", space)
    return space["entry"], types.Tuple((types.float64, types.int64, types.int64))(*kinds)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
