"""Reports: sentences, figures and tables as one HTML page, as Markdown with SVG files, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Panel, panel_rows
from heedful.classroom.text_files import fill_template
from heedful.core.files import write_text
from heedful.core.locks import lock_folder


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

    def drawing(self, section: Section) -> Figure:
        """Return the panels of a section as one figure, without its tables."""
        return Figure("report", section.title, self.about, {"panels": list(section.panels)})

    def to_html(self) -> str:
        """Return one page that fetches nothing: text, tables, and drawings for light and dark screens."""
        return fill_template("report.html", report=self, cells=table_cells)

    def to_markdown(self) -> str:
        """Return the report as Markdown; pictures stand in figures/ next to it."""
        row = lambda cells: "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
        lines = [f"# {self.title}", "", *(f"- {k}: {v}" for k, v in self.about.items()), ""]
        lines += ["```", self.command, "```", ""]
        for section in self.sections:
            lines += [f"## {section.title}", "", *(line + "\n" for line in section.text)]
            lines += [f"![{section.title}](figures/{section.name}.svg)", ""] if section.panels else []
            for head, rows in map(table_cells, section.tables):
                lines += [*map(row, (head, ["---", *["---:"] * (len(head) - 1)], *rows)), ""]
        return "\n".join(lines)

    def to_csv(self) -> str:
        """Return every number of the report, one a row."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["section", "panel", "row", "column", "value"])
        for section in self.sections:
            _, *rows = panel_rows({"panels": [*section.panels, *section.tables]})
            writer.writerows([section.name, *row] for row in rows)
        return out.getvalue()

    def save(self, folder: Path) -> Path:
        """Write report.html, report.md with figures/, report.csv and report.json; return the page."""
        figures = folder / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):  # several processes measure into one folder, and each reports at its end
            for section in self.sections:
                if section.panels:
                    self.drawing(section).save(figures / f"{section.name}.svg")
            write_text(folder / "report.md", self.to_markdown())
            write_text(folder / "report.csv", self.to_csv())
            write_text(folder / "report.json", json.dumps(self.to_json(), allow_nan=False))
            write_text(folder / "report.html", self.to_html())
        return folder / "report.html"


def table_cells(table: Panel) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table as texts."""
    cell = lambda v: v if isinstance(v, str) else f"{v:.4g}"
    rows = [[name, *map(cell, values)] for name, values in zip(table["rows"], table["values"], strict=True)]
    return [table["rowTitle"], *table["columns"]], rows
