"""The text of a student's file, read without running it: broken parts and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

RISKY_IMPORTS = {
    "os", "subprocess", "socket", "shutil", "ctypes", "multiprocessing", "urllib", "http", "requests",
    "pickle", "signal", "pty", "asyncio",
}  # fmt: skip
# What the parser raises: no Python, null bytes, or expressions too deep for it.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def leave_out_broken(source: str, name: str) -> tuple[str, dict[str, str]]:
    """Return a file without the parts that are no Python, and what is wrong with each, by its function.

    A part begins at a line without indentation. Left out, it becomes empty lines, so that numbers stay true.
    """
    try:
        compile(source, name, "exec", dont_inherit=True)
        return source, {}
    except UNREADABLE:
        pass
    broken: dict[str, str] = {}
    pieces: list[str] = []
    for part, first in top_level_parts(source):
        try:
            compile("\n" * first + part, name, "exec", dont_inherit=True)
            pieces.append(part)
        except UNREADABLE as error:
            function = re.match(r"(?:async\s+)?def\s+(\w+)", part)
            line = getattr(error, "lineno", None) or first + 1
            message = f"no Python in line {line}: {getattr(error, 'msg', str(error) or 'too deeply nested')}"
            broken.setdefault(function[1] if function else "", message)
            pieces.append("\n" * (part.count("\n")))
    return "".join(pieces), broken


def top_level_parts(source: str) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a file that begin without indentation, with the number of lines before each."""
    lines = source.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z_@]", line)]
    starts = [i for i in starts if not (i and lines[i - 1].startswith("@"))]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        if start < end:
            yield "".join(lines[start:end]), start


def parse_source(source: str) -> ast.Module:
    """Return the tree of a file, empty where there is none."""
    try:
        return ast.parse(source)
    except UNREADABLE:
        return ast.Module([], [])


def import_notes(source: str) -> list[str]:
    """Return a note on imports that no exercise needs."""
    modules = set()
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    notes = []
    if risky := sorted(modules & RISKY_IMPORTS):
        notes.append(
            f"it imports {', '.join(risky)}: while grading, programs, the network and files outside a "
            "temporary folder are refused"
        )
    return [*notes, *(["it imports heedful, which has the answers"] if "heedful" in modules else [])]
