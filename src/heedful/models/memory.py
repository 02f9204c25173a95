"""Whether a model fits into the memory of its device, asked before anything is allocated.

needed = parameters × bytes of a number × copies     copies: 1 for the weights alone; in training also the
                                                     gradients and what the optimiser keeps of each weight
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from heedful.core.errors import OutOfMemory
from heedful.models.base import Config, Family
from heedful.nn.init import outline

CGROUP = Path("/sys/fs/cgroup")


def parameter_count(family: Family, config: Config) -> int:
    """Return how many numbers a model of this config holds, its head included; nothing is allocated."""
    with outline():
        return sum(p.numel() for p in family.build(config).parameters())


def check_memory(name: str, needed_bytes: int, device: torch.device, hint: str) -> None:
    """Raise OutOfMemory if the device has fewer than `needed_bytes` free.

    `name` begins the sentence: "'gpt3' has 175 B parameters and". `hint` says what to do instead.
    """
    free = available_bytes(device)
    if free is None or needed_bytes <= free:
        return
    raise OutOfMemory(
        f"{name} needs {gigabytes(needed_bytes)}, and {device} has {gigabytes(free)} free", hint=hint
    )


def gigabytes(size: int) -> str:
    """Return a number of bytes in GB, with three digits: 6230444800 → "6.23 GB"."""
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.3g} GB"


def available_bytes(device: torch.device) -> int | None:
    """Return how many bytes a device has free; None where that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [_system_free(), _cgroup_free()]
    return min((size for size in limits if size is not None), default=None)


def _system_free() -> int | None:
    """Return what the system could give to a process: free, reclaimable and swap."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical_memory()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["MemAvailable"] + sizes.get("SwapFree", 0) if "MemAvailable" in sizes else _physical_memory()


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_free() -> int | None:
    """Return what the control group of a container has left; the cache of files in it can be reclaimed."""
    for folder, limit, usage in (
        (CGROUP, "memory.max", "memory.current"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            allowed, used = (int((folder / name).read_text()) for name in (limit, usage))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
        cached = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))
        return max(0, allowed - used + cached)
    return None
