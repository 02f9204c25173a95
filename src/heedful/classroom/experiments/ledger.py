"""Results as files. `python -m heedful.classroom.experiments.ledger` writes docs/results.md from them.

results/*.json are lists of rows. A row has
    claim         what was measured, on what
    figure        the number, or a few of them by name
    published     what a paper or another program has, or null
    source        where that is printed
    command       what to run to get the figure again, as one would type it
    seed  data_sha256  hardware  date
and, where `heed verify` can run it by itself, a `check` (verify.py): what to run, where in its output the
figure stands, how far off it may be, which data and which device it needs.

A row's name is its file's, followed by :2 … where a file has several: `heed verify stsb`, `heed verify mt:2`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.core.errors import CorruptFile
from heedful.core.files import sha256 as sha256
from heedful.core.files import write_text

KEYS = ("claim", "figure", "published", "source", "command", "seed", "data_sha256", "hardware", "date")
OPTIONAL = ("check",)
HEAD = """# Results

Every figure comes from a file in `results/`, which the command in the same row wrote. This page is made by
`python -m heedful.classroom.experiments.ledger`. For rows marked ✓, `heed verify ROW` runs the command again
and compares. It looks for data in the folder that `HEED_DATA` names.
"""


def hardware(device: str = "cuda") -> str:
    """Return the machine in a few words: its GPU, or its processor without one or for another device."""
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo")
    processor = re.search(r"model name\s*:\s*(.+)", about.read_text()) if about.is_file() else None
    return f"{os.cpu_count()} cores {processor[1].strip() if processor else platform.machine()}"


def row(claim: str, figure: Any, command: str, **more: Any) -> dict[str, Any]:
    """Return one result with the machine and the date; keys that are not given are null."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    own = {"claim": claim, "figure": figure, "command": command, "hardware": hardware(), "date": today}
    values = own | more
    unknown = set(values) - {*KEYS, *OPTIONAL}
    if unknown:
        raise ValueError(f"a result has no {', '.join(sorted(unknown))}; it has {', '.join(KEYS + OPTIONAL)}")
    return {key: values.get(key) for key in KEYS} | {key: values[key] for key in OPTIONAL if values.get(key)}


def record_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a file of results; a row with the same claim and hardware replaces the old one."""
    recorded = {(r["claim"], r["hardware"]): r for r in (read_rows(path) if path.is_file() else [])}
    recorded |= {(r["claim"], r["hardware"]): dict(r) for r in rows}
    write_text(path, json.dumps(list(recorded.values()), indent=2, ensure_ascii=False) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFile(f"{path} is not JSON ({error})") from None
    rows = rows if isinstance(rows, list) else [rows]
    for one in rows:
        missing = [key for key in KEYS if not isinstance(one, dict) or key not in one]
        if missing:
            raise CorruptFile(f"{path}: a result lacks {', '.join(missing)}")
    return rows


def named_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by name: the file's, with a number where it has several."""
    rows = read_rows(path)
    names = [path.stem] if len(rows) == 1 else [f"{path.stem}:{n}" for n in range(1, len(rows) + 1)]
    return dict(zip(names, rows, strict=True))


def rows_by_name(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every row of a folder by its name."""
    return {name: row for path in sorted(folder.glob("*.json")) for name, row in named_rows(path).items()}


def page(folder: Path) -> str:
    """Return the page of all results, with one table per file."""
    parts = [HEAD]
    for path in sorted(folder.glob("*.json")):
        parts.append(f"## {path.stem.replace('_', ' ').replace('-', ' ')}\n")
        parts.append(
            "| row | what | here | published | seed | hardware | date |\n|---|---|---|---|---|---|---|"
        )
        rows = named_rows(path)
        for name, r in rows.items():
            mark = f"`{name}`{' ✓' if r.get('check') else ''}"
            source = f" ({r['source']})" if r["source"] else ""
            published = "–" if r["published"] is None else format_figure(r["published"])
            cells = (
                mark, r["claim"], format_figure(r["figure"]), published + source, r["seed"], r["hardware"],
                r["date"],
            )  # fmt: skip
            parts.append("| " + " | ".join(cell(c) for c in cells) + " |")
        commands = dict.fromkeys(str(r["command"]) for r in rows.values() if r["command"])
        hashes = dict.fromkeys(str(r["data_sha256"]) for r in rows.values() if r["data_sha256"])
        parts.append("\n```\n" + "\n".join(commands) + "\n```\n")
        if hashes:
            parts.append("Data, SHA-256: " + ", ".join(f"`{h[:16]}…`" for h in hashes) + "\n")
    return "\n".join(parts)


def format_figure(figure: Any) -> str:
    """Return a figure as text: numbers rounded, several by name, a mean with its deviation."""
    if isinstance(figure, Mapping) and set(figure) == {"mean", "sd"}:
        return f"{format_figure(figure['mean'])} ± {format_figure(figure['sd'])}"
    if isinstance(figure, Mapping):
        nested = lambda value: isinstance(value, Mapping) and "sd" not in value
        deep = lambda value: f"({format_figure(value)})" if nested(value) else format_figure(value)
        return ", ".join(f"{name.replace('_', ' ')} {deep(value)}" for name, value in figure.items())
    if isinstance(figure, list):
        between = "; " if any(isinstance(v, Mapping) for v in figure) else " "
        return between.join(format_figure(v) for v in figure)
    if isinstance(figure, float):
        return f"{figure:,.4g}" if abs(figure) < 1000 else f"{figure:,.0f}"
    return f"{figure:,}" if isinstance(figure, int) and not isinstance(figure, bool) else str(figure)


def cell(value: Any) -> str:
    """Return a value as the text of a table cell, without line ends."""
    return "–" if value is None else " ".join(str(value).replace("|", "\\|").split())


def main(arguments: Sequence[str]) -> None:
    """Write the page from results/ here, or from another folder to another file."""
    parser = argparse.ArgumentParser(
        prog="python -m heedful.classroom.experiments.ledger", description=main.__doc__
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results"))
    parser.add_argument("page", nargs="?", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    if not any(options.folder.glob("*.json")):
        parser.error(f"{options.folder} has no results (*.json), so {options.page} is left as it is")
    write_text(options.page, page(options.folder))
    print(options.page)


if __name__ == "__main__":
    main(sys.argv[1:])
