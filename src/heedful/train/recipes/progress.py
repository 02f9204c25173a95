"""The progress of a run on stderr: a bar in a terminal, elsewhere a line of key=value every ten seconds.

A reporter gets every step's numbers and shows what there is room and time for. Values step and steps, or
word and words, say how far the run is. `heed train`, `heed finetune`, `heed eval` and `heed word2vec train`
hand one down; the silent one is for -q, and for all processes of a run but the first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from heedful.core.progress import print_above

LINE_SECONDS = 10.0  # seconds between lines where there is no terminal


class ProgressReporter:
    """Where a run reports how far it is. This one shows nothing: for -q, and for all processes but one."""

    def step(self, values: Mapping[str, Any]) -> None: ...

    def report(self, line: str) -> None: ...

    def close(self) -> None: ...


class LineReporter(ProgressReporter):
    """Print a line now and then, for logs and pipes."""

    def __init__(self, unit: str = "step") -> None:
        self.unit, self.last = unit, 0.0

    def step(self, values: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last >= LINE_SECONDS or values[self.unit] == values[f"{self.unit}s"]:
            self.last = now
            shown = {name: value for name, value in values.items() if value is not None}
            self.report(" ".join(f"{name}={format_value(name, value)}" for name, value in shown.items()))

    def report(self, line: str) -> None:
        print_above(line)


class BarReporter(ProgressReporter):
    """Show a progress bar in a terminal, with other lines scrolling above it."""

    def __init__(self, total: int, unit: str = "step") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        fixed = lambda text: TextColumn(text, table_column=Column(no_wrap=True, min_width=4))
        columns = (fixed(f"{unit} {{task.completed:.0f}}/{{task.total:.0f}}"), BarColumn(bar_width=12))
        texts = (fixed("{task.percentage:>3.0f}%"), TextColumn("{task.fields[shown]}"))
        self.rich = Rich(
            *columns, *texts, console=Console(stderr=True, highlight=False), refresh_per_second=4
        )
        self.unit, self.task = unit, self.rich.add_task("", total=total, shown="")
        # beside the step, the bar and the percentage
        self.free_width = self.rich.console.width - 2 * len(str(total)) - 26
        self.rich.start()

    def step(self, values: Mapping[str, Any]) -> None:
        done, total = self.unit, f"{self.unit}s"
        parts = {n: self.part(n, v) for n, v in values.items() if n not in (done, total) and v is not None}
        for name in ("grad", "memory", "lr", "ema", "val"):  # left out in this order in a narrow terminal
            if len("  ".join(parts.values())) > self.free_width:
                parts.pop(name, None)
        self.rich.update(
            self.task, completed=values[done], total=values[total], shown="  ".join(parts.values())
        )

    def part(self, name: str, value: Any) -> str:
        """Return one value with its name or its unit."""
        text = format_value(name, value)
        units = {"tokens_per_second": f"{text} tok/s", "words_per_second": f"{text} words/s"}
        return (units | {"memory": text, "ema": f"(ema {text})"}).get(name, f"{name} {text}")

    def report(self, line: str) -> None:
        self.rich.console.print(line, markup=False)

    def close(self) -> None:
        self.rich.stop()


def make_reporter(total: int, quiet: bool = False, unit: str = "step") -> ProgressReporter:
    """Return the reporter that suits stderr: a bar in a terminal, lines elsewhere."""
    if quiet:
        return ProgressReporter()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return BarReporter(total, unit)
    return LineReporter(unit)


def format_value(name: str, value: Any) -> str:
    """Return a number as people read it."""
    if name == "lr":
        return f"{value:.2e}"
    if name.endswith("_per_second"):
        return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"
    if name == "memory":
        return f"{value / 1e9:.2f}GB"
    if name == "eta":
        return format_clock(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def format_clock(seconds: float) -> str:
    """90 → 01:30; an hour and more → 1:01:30."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"
