"""Reports: sentences, figures and tables as one HTML page, as Markdown with SVG files, and as CSV."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Panel
from heedful.core.files import write_text
from heedful.core.locks import lock_folder

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # nothing may be fetched
STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5a6270; --line: #d5d9e0; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a3abb8; --line: #363c46; --page: #14171c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
h2 { margin-top: 2.5rem; } .soft { color: var(--soft); } code { overflow-wrap: anywhere; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.92rem; } th, td { padding: 0.2rem 0.7rem; text-align: right;
  border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
.dark { display: none; }
@media (prefers-color-scheme: dark) { .light { display: none; } .dark { display: block; } }
"""


@dataclass(frozen=True)
class Section:
    """One finding: what was measured, in sentences, with the figure and the table of its numbers."""

    name: str  # of its files
    title: str
    text: Sequence[str]
    panels: Sequence[Panel] = ()  # drawn
    tables: Sequence[Panel] = ()


@dataclass(frozen=True)
class Report:
    """A comparison: how it was made, and what came out."""

    title: str
    command: str
    about: Mapping[str, Any]
    sections: Sequence[Section] = field(default_factory=tuple)

    def figure(self, section: Section) -> Figure:
        """Return the panels and tables of a section as one figure."""
        panels = [*section.panels, *section.tables]
        return Figure("report", section.title, self.about, {"panels": panels}, " ".join(section.text))

    def to_json(self) -> dict[str, Any]:
        """Return the report for the page of the studio: its sentences, and each section as a figure."""
        return {
            "title": self.title, "command": self.command, "about": dict(self.about),
            "sections": [
                {"name": s.name, "title": s.title, "text": list(s.text), "figure": self.figure(s).to_dict()}
                for s in self.sections
            ],
        }  # fmt: skip

    def to_html(self) -> str:
        """Return one page that fetches nothing: text, tables, and drawings for light and dark screens."""
        details = " · ".join(f"{k}: {v}" for k, v in self.about.items())
        body = [
            f"<h1>{html.escape(self.title)}</h1>", f'<p class="soft">{html.escape(details)}</p>',
            f"<p><code>{html.escape(self.command)}</code></p>",
        ]  # fmt: skip
        for section in self.sections:
            body.append(f'<h2 id="{section.name}">{html.escape(section.title)}</h2>')
            body += [f"<p>{html.escape(line)}</p>" for line in section.text]
            if section.panels:
                drawn = Figure("report", section.title, self.about, {"panels": list(section.panels)})
                for theme in ("light", "dark"):
                    picture = drawn.to_svg(theme).split("?>", 1)[1]
                    body.append(f'<div class="wide {theme}">{picture}</div>')
            body += [f'<div class="wide">{table_html(table)}</div>' for table in section.tables]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head>\n<body><main>"
            + "\n".join(body)
            + "</main></body></html>\n"
        )

    def to_markdown(self) -> str:
        """Return the report as Markdown; pictures stand in figures/ next to it."""
        lines = [f"# {self.title}", "", *(f"- {k}: {v}" for k, v in self.about.items()), ""]
        lines += ["```", self.command, "```", ""]
        for section in self.sections:
            lines += [f"## {section.title}", "", *(line + "\n" for line in section.text)]
            lines += [f"![{section.title}](figures/{section.name}.svg)", ""] if section.panels else []
            lines += [line for table in section.tables for line in (*table_markdown(table), "")]
        return "\n".join(lines)

    def to_csv(self) -> str:
        """Return every number of the report, one a row."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["section", "panel", "row", "column", "value"])
        for section in self.sections:
            for panel in (*section.panels, *section.tables):
                for i, row in enumerate(panel["rows"]):
                    for j, column in enumerate(panel["columns"]):
                        writer.writerow([section.name, panel["title"], row, column, panel["values"][i][j]])
        return out.getvalue()

    def save(self, folder: Path) -> Path:
        """Write report.html, report.md with figures/, report.csv and report.json; return the page."""
        figures = folder / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):  # several processes measure into one folder, and each reports at its end
            for section in self.sections:
                if section.panels:
                    drawn = Figure("report", section.title, self.about, {"panels": list(section.panels)})
                    drawn.save(figures / f"{section.name}.svg")
            write_text(folder / "report.md", self.to_markdown())
            write_text(folder / "report.csv", self.to_csv())
            write_text(folder / "report.json", json.dumps(self.to_json(), allow_nan=False))
            write_text(folder / "report.html", self.to_html())
        return folder / "report.html"


def machine_name(device: torch.device) -> str:
    """Return what a comparison ran on: the GPU, or the processor and its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def table_cells(table: Panel) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table as texts."""
    cell = lambda v: v if isinstance(v, str) else f"{v:.4g}"
    rows = [[name, *map(cell, values)] for name, values in zip(table["rows"], table["values"], strict=True)]
    return [table["rowTitle"], *table["columns"]], rows


def table_html(table: Panel) -> str:
    """Return a table as HTML."""
    head, rows = table_cells(table)
    line = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


def table_markdown(table: Panel) -> list[str]:
    """Return a table as lines of Markdown."""
    head, rows = table_cells(table)
    line = lambda cells: "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
    return [line(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(line, rows)]
