"""The compiled kernel: made once, found again, made anew when damaged, and careful about what it is given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.word2vec import machine


def test_training_imports_neither_numba_nor_torch():
    code = (
        "import sys\nfrom heedful.word2vec import Word2Vec\n"
        "Word2Vec.train([['a', 'b', 'c'] * 5] * 9, dim=4, min_count=1, epochs=1)\n"
        "print([name for name in ('numba', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_damaged_object_file_is_not_run(tmp_path):
    path = tmp_path / "kernel.o"
    assert machine.read(path) is None
    path.write_bytes(b"\0" * 500)
    assert machine.read(path) is None


def test_the_fingerprint_is_stable():
    assert machine.fingerprint() == machine.fingerprint()


def test_a_failed_compilation_says_how_to_see_it(tmp_path):
    with pytest.raises(HeedfulError, match="could not be compiled"):
        machine.compile_apart(tmp_path / "no such folder" / "kernel.o")


def test_an_array_of_another_kind_never_reaches_the_kernel():
    good = [np.zeros(4, machine.KINDS[kind]) if kind in machine.KINDS else 0 for kind in machine.SIGNATURE]
    assert len(machine.flat(good)) > len(good)
    with pytest.raises(TypeError, match="contiguous array of i4"):
        machine.flat([np.zeros(4), *good[1:]])
    with pytest.raises(TypeError, match="contiguous array of i4"):
        machine.flat([np.zeros(8, np.int32)[::2], *good[1:]])
