"""The folder of a run.

config.yaml      its settings: `heed train config.yaml` runs them again
metrics.jsonl    one line every few steps and per evaluation, under the names of Hugging Face's trainer
samples.jsonl    texts a writing model made on its way
env.json         the machine and its packages
log.txt          the lines that were printed on the terminal
run.lock         the process that trains here, while it does
tokenizer/       the vocabulary
checkpoints/     models with all that is needed to resume; best.json and last.json name two of them

`draw_curves` draws the metrics of runs with dots in a terminal; `heedful.view.training` makes a figure of
them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.core.errors import ConfigError, CorruptFile, NotFound
from heedful.core.files import make_folder, write_text
from heedful.core.lazy import import_optional
from heedful.core.locks import FileLock
from heedful.train.checkpoint import newest, run_lock
from heedful.train.recipes.recipes import (
    ResolvedSettings,
    check_same_settings,
    resolve_settings,
    settings_yaml,
)

STEP = "train/global_step"


class RunFiles:
    """The files in which a run keeps what it measured, so that a resumed one knows it.

    A run of `heed train` has `settings`, which are written too, and a log. Where a run has no folder, and in
    all its processes but the first, nothing is written (`writes` is False). `fit` writes the checkpoints.
    """

    def __init__(
        self, path: Path = Path(), settings: ResolvedSettings | None = None, *, writes: bool = True
    ) -> None:
        self.path, self.settings, self.writes = path, settings, writes
        self.lock: FileLock | None = None
        self.board: Any = None

    @classmethod
    def open(cls, path: Path, settings: ResolvedSettings, resume: bool, tensorboard: bool) -> RunFiles:
        """Make the folder of a run and lock it.

        Raise ConfigError for a folder with a run that is not to be resumed, or has other settings.
        """
        make_folder(path)
        files = cls(path, settings)
        files.lock = run_lock(path)
        files.lock.acquire()
        try:
            fresh = newest(path) is None
            if not fresh and not resume:
                hint = "--resume continues it, --folder names another place"
                raise ConfigError(f"{path} holds a run already", hint=hint)
            if resume and (path / "config.yaml").is_file():
                old = resolve_settings(str(path / "config.yaml")).recipe
                check_same_settings(path, old, settings.recipe)
            if fresh:
                files.begin()
            files.board = tensorboard_writer(path) if tensorboard else None
        except BaseException:
            files.close()
            raise
        return files

    def close(self) -> None:
        """Write what TensorBoard's writer still holds, and release the lock of the folder."""
        if self.board is not None:
            self.board.close()
        if self.lock is not None:
            self.lock.release()

    def begin(self) -> None:
        """Write the settings and the environment; a resumed run does so once its first step succeeded."""
        if not self.writes or self.settings is None:
            return
        environment = {
            "heedful": heedful.__version__, "torch": torch.__version__, "python": sys.version.split()[0],
            "system": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None, "command": sys.argv,
        }  # fmt: skip
        write_text(self.path / "config.yaml", settings_yaml(self.settings))
        write_text(self.path / "env.json", json.dumps(environment, indent=2) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps after the checkpoint that a killed run left: they will be taken again."""
        for name in ("metrics.jsonl", "samples.jsonl") if self.writes else ():
            file = self.path / name
            if file.is_file():
                lines = file.read_text(encoding="utf-8").splitlines()
                write_text(file, "".join(line + "\n" for line in lines if _step(line) <= step))

    def metrics(self, values: Mapping[str, float | int]) -> None:
        """Append one line of numbers to metrics.jsonl."""
        self._append("metrics.jsonl", dict(values))
        if self.board is not None:
            for name, value in values.items():
                if name != STEP:
                    self.board.add_scalar(name, value, int(values[STEP]))

    def sample(self, step: int, text: str) -> None:
        """Append one text to samples.jsonl."""
        self._append("samples.jsonl", {STEP: step, "text": text})

    def log(self, line: str) -> None:
        """Append one line to log.txt, with the time."""
        if self.settings is not None:
            self._append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}")

    def _append(self, name: str, line: str | Mapping[str, Any]) -> None:
        if self.writes:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n")


def _step(line: str) -> float:
    try:
        return float(json.loads(line)[STEP])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # half a line of a run that was killed


def tensorboard_writer(path: Path) -> Any:
    """Return a writer of TensorBoard's event files."""
    return import_optional("torch.utils.tensorboard", "--tensorboard").SummaryWriter(str(path))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a run's metrics.jsonl; the last is left out if only a part of it is written."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise NotFound(f"{file} is not there", hint="give the folder of a run")
    lines, damaged, end = read_lines(file)
    if damaged:
        raise CorruptFile(f"{file}, line {damaged[0]}: damaged")
    with suppress(ValueError):  # a whole line may have no end
        lines.append((end, json.loads(file.read_bytes()[end:])))
    return [line for _, line in lines]


def read_lines(file: Path, start: int = 0) -> tuple[list[tuple[int, dict[str, Any]]], list[int], int]:
    """Return the lines of a file that is being written, from a byte on, each with where the next begins; the
    numbers of damaged ones; and where the last ended. A line that has no end yet is left for later.
    """
    if not file.is_file():
        return [], [], start
    with file.open("rb") as source:
        source.seek(start)
        data = source.read()
    lines, damaged, at = [], list[int](), start
    for number, raw in enumerate(data.split(b"\n")[:-1], 1):
        at += len(raw) + 1
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        if isinstance(line, dict):
            lines.append((at, line))
        elif raw.strip():
            damaged.append(number)
    return lines, damaged, at


Curve = list[tuple[float, float]]  # (step, value)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column
COLOURS = ("36", "33", "35", "32", "34", "31")


def metric_curves(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Return the finite values of each metric with their steps, and with tokens and seconds if these were
    logged, else None.
    """
    curves: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        step = line.get(STEP)
        if not isinstance(step, int | float):
            continue
        tokens, seconds = line.get("train/tokens"), line.get("train/seconds", line.get("train/runtime"))
        for name, value in line.items():
            if name == STEP or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            curve = curves.setdefault(name, {"step": [], "value": [], "tokens": [], "seconds": []})
            for key, one in (("step", step), ("value", value), ("tokens", tokens), ("seconds", seconds)):
                curve[key].append(one)
    for curve in curves.values():
        for key in ("tokens", "seconds"):
            if all(v is None for v in curve[key]):
                curve[key] = None  # type: ignore[assignment]
    return curves


def read_curves(runs: Sequence[Path], metric: str) -> dict[str, Curve]:
    """Return every curve of a metric: "train" and "eval" of a run, with its name if there are several."""
    curves_by_name: dict[str, Curve] = {}
    for run in runs:
        curves = metric_curves(read_metrics(run))
        for side in ("train", "eval"):
            if curve := curves.get(f"{side}/{metric}"):
                points = list(zip(curve["step"], curve["value"], strict=True))
                curves_by_name[f"{run.name} {side}" if len(runs) > 1 else side] = points
    return curves_by_name


def draw_curves(
    curves: Mapping[str, Curve],
    title: str,
    width: int | None = None,
    height: int = 16,
    colour: bool | None = None,
) -> str:
    """Return the curves as text, in which every character is two by four dots."""
    width = width or min(shutil.get_terminal_size().columns, 100)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ if colour is None else colour
    points = [p for curve in curves.values() for p in curve]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    columns = width - 10
    cells = [[0] * columns for _ in range(height)]
    owner = [[-1] * columns for _ in range(height)]
    for k, curve in enumerate(curves.values()):
        for x, y in interpolate(curve, left, right, columns * 2):
            down = round((high - y) / ((high - low) or 1) * (height * 4 - 1))
            cells[down // 4][x // 2] |= DOTS[down % 4][x % 2]
            owner[down // 4][x // 2] = k
    paint = lambda text, k: f"\033[{COLOURS[k % len(COLOURS)]}m{text}\033[0m" if colour and k >= 0 else text
    lines = [f"{title}   " + "   ".join(paint(f"⠶ {name}", k) for k, name in enumerate(curves))]
    for r in range(height):
        label = f"{high - (high - low) * r / (height - 1):9.4g}" if r % 5 == 0 or r == height - 1 else " " * 9
        lines.append(
            f"{label} "
            + "".join(paint(chr(0x2800 + c), o) for c, o in zip(cells[r], owner[r], strict=True)).rstrip()
        )
    lines.append(" " * 10 + f"{left:<{max(1, columns // 2)}g}{right:>{columns - max(1, columns // 2)}g}")
    return "\n".join(lines)


def interpolate(curve: Curve, left: float, right: float, columns: int) -> list[tuple[int, float]]:
    """Return a value for every column between a curve's first and last point, by linear interpolation."""
    place = lambda x: (x - left) / ((right - left) or 1) * (columns - 1)
    out: list[tuple[int, float]] = []
    for (x0, y0), (x1, y1) in zip(curve, curve[1:] or curve, strict=False):
        a, b = place(x0), place(x1)
        for column in range(round(a), round(b) + 1):
            part = (column - a) / (b - a) if b > a else 0.0
            out.append((column, y0 + (y1 - y0) * min(max(part, 0.0), 1.0)))
    return out
