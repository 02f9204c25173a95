"""Protections of the process that runs a student's file, from the operating system and from Python.

Landlock (Linux 5.13) takes files away: the process reads Python and its libraries, and writes its own folder.
seccomp takes system calls away: no program, no socket, no signal, no change of a file's mode, and nothing
that reaches another process. Both hold against code that calls C, and neither can be undone. The audit hook
of Python is the minimum that every system has. It names what was tried, and stops accidents only: code that
means harm gets around it. Limits of memory, time and file size come on top, where the system has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PRINT_FILE = "printed.txt"  # where prints go
PROTECTIONS = ("landlock", "seccomp", "hook")
NO_NEW_PRIVILEGES = 38  # of prctl: without it the kernel takes no filter from an ordinary user

# What it reads besides Python and its libraries. /proc and /etc are not open as a whole: root grades as well.
READABLE = (
    "/usr", "/lib", "/lib64", "/opt", "/nix", "/gnu",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup",
    "/dev/urandom", "/dev/random", "/dev/zero", "/dev/null",
)  # fmt: skip
FILE_RIGHTS = 0b1100000000000110  # of Landlock: write, read, truncate, use devices; folders have more
READ_RIGHTS = 0b1100  # files and folders
RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}  # how many kinds of access Landlock knows; 16 from version 5

# Refused system calls, with their numbers on x86_64 and on aarch64 (None: it does not exist there).
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "socket": (41, 198), "io_uring_setup": (425, 425),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "fanotify_init": (300, 262), "reboot": (169, 142), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "swapon": (167, 224), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "iopl": (172, None), "ioperm": (173, None), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116),
}  # fmt: skip
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column above, and the kernel's name
CLONE, CLONE3, PRLIMIT, FCNTL = (56, 220), (435, 435), (302, 261), (72, 25)
CLONE_THREAD, OWNERS_OF_SIGNALS = 0x10000, (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX send signals, too


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call of Linux that libc has no name for; the result is negative where it failed."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))


def end_with_parent() -> None:
    """Let the system end this process when the one that forked it ends, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def confine_files(folder: str, readable: Iterable[str]) -> bool:
    """Let this process read `readable`, write `folder` and no other file, by Landlock; False without it."""
    version = system_call(444, None, 0, 1) if sys.platform == "linux" else -1
    if version < 1:
        return False
    every = (1 << RIGHTS_BY_VERSION.get(version, 16)) - 1
    # From version 4 on also no TCP (two kinds), from version 6 on no signals and no abstract sockets.
    handled = struct.pack("QQQ", every, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = system_call(444, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    writable = every & ~1  # everything but running programs
    for path, rights in [*((path, READ_RIGHTS) for path in readable), (folder, writable), ("/dev/null", 6)]:
        with contextlib.suppress(OSError):  # this system does not have that path
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights &= every if os.path.isdir(path) else FILE_RIGHTS & every
            system_call(445, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
            os.close(descriptor)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_confined = system_call(446, rules, 0) == 0
    os.close(rules)
    return is_confined


def refuse_system_calls() -> bool:
    """Refuse programs, sockets, signals and other processes by a seccomp filter; False without it.

    The filter is a small program for the kernel: load a word of the call, compare it, jump, give a verdict.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return False
    column, machine = MACHINES[platform.machine()]
    load = lambda offset: struct.pack("HBBI", 0x20, 0, 0, offset)
    compare = lambda value, yes, no, how=0x15: struct.pack("HBBI", how, yes, no, value)  # 0x15: is it equal?
    allow = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    refuse = lambda code=errno.EPERM: struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | code)
    first, second = load(16), load(24)  # the arguments of the call
    at_least, has_bit = 0x35, 0x45
    program = [load(4), compare(machine, 1, 0), refuse(), load(0)]
    program += [compare(0x40000000, 0, 1, at_least), refuse()]
    for numbers in REFUSED_CALLS.values():
        if (number := numbers[column]) is not None:
            program += [compare(number, 0, 1), refuse()]
    # A thread may start, a process may not. glibc falls back to clone, whose flags a filter can read.
    program += [compare(CLONE3[column], 0, 1), refuse(errno.ENOSYS)]
    program += [compare(CLONE[column], 0, 4), first, compare(CLONE_THREAD, 0, 1, has_bit), allow, refuse()]
    # Of its own limits alone: 0 is the process itself.
    program += [compare(PRLIMIT[column], 0, 4), first, compare(0, 0, 1), allow, refuse()]
    owners = [part for value in OWNERS_OF_SIGNALS for part in (compare(value, 0, 1), refuse())]
    program += [compare(FCNTL[column], 0, 1 + len(owners)), second, *owners, allow]
    code = ctypes.create_string_buffer(b"".join(program))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter_, 0, 0) == 0


def protect_process(protections: Iterable[str]) -> list[str]:
    """Begin those protections of the system that are asked for, and return the ones that it has."""
    libraries = [sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    begin = {
        "landlock": lambda: confine_files(os.getcwd(), [*READABLE, *libraries]),
        "seccomp": refuse_system_calls,
    }
    return [name for name in protections if name in begin and begin[name]()]


def set_limits(memory: int, seconds: int, file_bytes: int, result_bytes: int) -> bool:
    """Limit further memory, CPU time and sizes of files, where the system can."""
    if resource is None:
        return False
    base = 0
    with contextlib.suppress(OSError):
        base = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: result_bytes, resource.RLIMIT_CORE: 0}
    for kind, limit in (limits | ({resource.RLIMIT_AS: base + memory} if base else {})).items():
        with contextlib.suppress(ValueError, OSError):  # a stricter limit holds already
            resource.setrlimit(kind, (limit, limit))
    limit_files(file_bytes)
    return True


def limit_files(size: int) -> None:
    """Let files grow to `size`, below the limit that holds for good."""
    if resource is not None:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


PROGRAMS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn")
NETWORK = ("socket.connect", "socket.bind", "socket.send", "socket.getaddrinfo", "socket.gethostby")
CHANGES = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.utime", "shutil.",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(PermissionError):
    """Something that no solution needs, and that this process does not do."""


def refuse_by_hook(folder: str, refused_actions: list[str]) -> None:
    """Refuse programs, network, signals, and changes of files outside `folder`, from now on."""

    def is_inside(path: Any) -> bool:
        if isinstance(path, int):  # open already
            return True
        real = os.path.realpath(os.fsdecode(path))
        return real in (os.devnull, folder) or real.startswith(folder + os.sep)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        action = None
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and not is_inside(path):
                action = f"write {os.fsdecode(path)[-80:]!r}"  # the end of a long path tells more
        elif event.startswith(CHANGES):
            if not all(is_inside(p) for p in arguments[:2] if isinstance(p, str | bytes | os.PathLike)):
                action = f"change a file ({event})"
        elif event.startswith(PROGRAMS):
            action = f"start a program ({event})"
        elif event.startswith(NETWORK):
            action = f"use the network ({event})"
        elif event in ("os.kill", "os.killpg"):
            action = "send a signal to a process"
        if action is not None:
            refused_actions.append(action)
            raise RefusedError(action)

    sys.addaudithook(watch)
