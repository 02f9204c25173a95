"""Fast code for processors, compiled by Numba when it is first used."""

from __future__ import annotations

import importlib.util
import platform
from functools import cache


@cache
def find_obstacle() -> str | None:
    """Return why these kernels cannot be compiled here; None if they can.

    On an x86 processor without instructions for 16-bit floats, Numba's code for them would end the process.
    """
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install 'heedful[fast]')"
    if platform.machine() in ("x86_64", "AMD64"):
        from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]

        if not get_host_cpu_features().get("f16c"):
            return "this processor has no instructions for 16-bit floats (F16C)"
    return None
