"""The kinds of figure that are more than panels: how each is drawn, and its numbers as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from heedful.classroom.figures.canvas import (
    ACCENT,
    FAINT,
    INK,
    SOFT,
    Box,
    Cells,
    Shape,
    Stroke,
    TextLabel,
    color_rows,
    greatest,
)
from heedful.classroom.figures.model_drawing import draw_graph, draw_image_attention, draw_model, number_rows
from heedful.classroom.figures.panels import (
    Drawing,
    bar_chart,
    draw_panels,
    heat_map,
    line_chart,
    longest,
    panel_rows,
    point_map,
)
from heedful.classroom.figures.patterns import select_pattern
from heedful.classroom.figures.token_labels import brief, percent, short, visible_text, width
from heedful.interp.observe.attention import pool_pattern

Data = Mapping[str, Any]
Rows = tuple[list[str], Iterator[list[Any]]]  # names of columns, rows
SCORES = ("entropy", "distance", "previous", "first", "induction")
CHAIN = ("p", "heated", "top_k", "top_p", "final")
BRANCH = ("step", "rank", "group", "name", "token", "parent", "logprob", "score", "final", "fate")
BRANCH_HEIGHT = 34.0


def draw_attention(data: Data) -> Drawing:
    """Draw the heat map of one head, or of all together."""
    shown, pattern = select_pattern(data), data["patterns"][data["pattern"]]
    return heat_map(
        shown.values, shown.queries, shown.keys, signed=pattern["kind"] == "effective", scale=data["scale"],
        palette=data["palette"],
        axes="word written ↓   source →" if pattern["written"] else "query ↓   key →",
        masked=shown.masked,
    )  # fmt: skip


def attention_rows(data: Data) -> Rows:
    """One row for each query and key."""
    shown = select_pattern(data)
    name, head = data["patterns"][data["pattern"]]["name"], data["head"]
    rows = (
        [name, head, shown.query_at[t], query, shown.key_at[s], key, shown.values[t, s]]
        for t, query in enumerate(shown.queries)
        for s, key in enumerate(shown.keys)
    )
    return ["layer", "head", "query_at", "query", "key_at", "key", "weight"], rows


def draw_heads(data: Data) -> Drawing:
    """Draw every head as a small picture: layers down, heads across."""
    size, gap, top = 58.0, 6.0, 22.0
    left = min(max(longest([p["name"] for p in data["patterns"]]) + 22, 60), 150)
    most = max(len(p["values"]) for p in data["patterns"])
    shapes: list[Shape] = [
        TextLabel(left + h * (size + gap) + size / 2, 10, str(h), 11, "middle", SOFT) for h in range(most)
    ]
    for row, pattern in enumerate(data["patterns"]):
        y, signed = top + row * (size + gap), pattern["kind"] == "effective"
        shapes.append(TextLabel(left - 8, y + size / 2, short(pattern["name"], 20), 11, "end", SOFT))
        for h, small in enumerate(pool_pattern(torch.from_numpy(pattern["values"]), 24).numpy()):
            x = left + h * (size + gap)
            paint = color_rows(small, greatest(small), scale=data["scale"], signed=signed)
            ramp = "signed" if signed else data["palette"]
            shapes += [Cells(x, y, size, size, paint, ramp), Box(x, y, size, size, stroke=FAINT)]
    return shapes, left + most * (size + gap) + 12, top + len(data["patterns"]) * (size + gap) + 8


def draw_steps(data: Data) -> Drawing:
    """Write the text of a worked calculation, in lines of at most 110 letters."""
    out: list[str] = []
    for line in data["text"]:
        line = line.rstrip() and visible_text("\u00a0" + line)[1:]
        start = len(line) - len(line.lstrip())
        while len(line) > 110:
            at = line.rfind(" ", start + 1, 110)
            at = at if at > start else 110
            out.append(line[:at])
            line = " " * (start + 4) + line[at:].lstrip()
        out.append(line)
    shapes: list[Shape] = [TextLabel(12, 8 + 17 * i, line, 11.5, font="mono") for i, line in enumerate(out)]
    return shapes, 12 + 7.1 * max(map(len, out)) + 16, 17.0 * len(out) + 12


def draw_next_token(data: Data) -> Drawing:
    """Draw a bar for each of the likeliest tokens."""
    shown, chain = data["shown"], data["chain"]
    captions = [
        f"{percent(float(p))}   (logit {brief(float(data['logits'][i]))})"
        for i, p in zip(shown, chain["final"], strict=True)
    ]
    return bar_chart(
        [data["names"][i] for i in shown], chain["final"].tolist(), captions, marks=chain["p"].tolist(),
        highlighted_row=shown.index(data["drawn"]),
        note="bar: probability it is drawn with; line: at temperature 1",
    )  # fmt: skip


def next_token_rows(data: Data) -> Rows:
    """One row for each token shown, with its probability after each rule."""
    rows = (
        [
            data["names"][i],
            i,
            data["logits"][i],
            *(data["chain"][k][r] for k in CHAIN),
            int(i == data["drawn"]),
        ]
        for r, i in enumerate(data["shown"])
    )
    return ["token", "id", "logit", *CHAIN, "drawn"], rows


def draw_beams(data: Data) -> Drawing:
    """Draw a search as a tree: steps across, what each step weighed down, best first.

    The best text is bold; what leads to a text that was found is plain; the rest is grey and dashed.
    """
    listed = data["branches"]
    column = max(longest([b["name"] for b in listed]) + 34, 86.0)
    most = 1 + max((b["rank"] for b in listed), default=0)  # groups of a search stand below each other
    rows = [b["group"] * most + b["rank"] for b in listed]
    place = [
        (16 + (b["step"] - 1) * column, 34 + BRANCH_HEIGHT * row) for b, row in zip(listed, rows, strict=True)
    ]
    out: list[Shape] = []
    for at, b in enumerate(listed):
        (x, y), ink = place[at], ACCENT if b["best"] else INK if b["lives"] else SOFT
        if b["parent"] >= 0:
            px, py = place[b["parent"]]
            start = px + 1.1 * width(short(listed[b["parent"]]["name"])) + 5  # the best is bold, and wider
            bold, dash = (2.2, ()) if b["best"] else (1.2, ()) if b["lives"] else (0.9, (3, 3))
            # A cubic curve in twelve pieces leaves and arrives level.
            share = [k / 12 for k in range(13)] if y != py else [0.0, 1.0]
            line = [(start + (x - 5 - start) * s, py + (y - py) * (3 * s * s - 2 * s**3)) for s in share]
            out.append(Stroke(line, ink, bold, dash, 1.0 if b["lives"] else 0.6))
        score = brief(b["score"]) if b["final"] is None else f"= {brief(b['final'])}"
        if b["fate"] == "finished":
            wide = max(width(short(b["name"])), width(score, 10)) + 10
            out.append(Box(x - 5, y - 9, wide, 30, stroke=ink))
        out.append(TextLabel(x, y, short(b["name"]), 12, colour=ink, bold=b["best"]))
        out.append(TextLabel(x, y + 13, score, 10, colour=ink))
    steps = max((b["step"] for b in listed), default=1)
    out += [TextLabel(16 + t * column, 10, f"step {t + 1}", 10.5, colour=SOFT) for t in range(steps)]
    return out, 16 + steps * column, 34 + BRANCH_HEIGHT * (max(rows, default=0) + 1)


# How each kind is drawn, and the rows of its table with their head. Every other kind is made of panels.
KINDS: dict[str, tuple[Callable[[Data], Drawing], Callable[[Data], Rows]]] = {
    "attention": (draw_attention, attention_rows),
    "heads": (
        draw_heads,
        lambda data: (
            ["layer", "head", "entropy_bits", *SCORES[1:]],
            ([s["name"], s["head"], *(s.get(k) for k in SCORES)] for s in data["scores"]),
        ),
    ),
    "steps": (
        draw_steps,
        lambda data: (["section", "step", "formula", "numbers", "result"], map(list, data["rows"])),
    ),
    "next_token": (draw_next_token, next_token_rows),
    "beams": (
        draw_beams,
        lambda data: (
            ["at", *BRANCH], ([i, *(b[k] for k in BRANCH)] for i, b in enumerate(data["branches"])),
        ),
    ),
    "embeddings": (
        lambda data: point_map(data["points"].astype(float), data["names"], data["axes"]),
        lambda data: (
            ["word", "x", "y", "nearest"],
            ([name, *point, " ".join(data["words"][j] for j in near)]
             for name, point, near in zip(data["names"], data["points"], data["near"], strict=True)),
        ),
    ),
    "training": (
        lambda data: line_chart(
            [(c["name"], c["x"], c["y"]) for c in data["curves"]], "step", data["metric"]
        ),
        lambda data: (
            ["curve", "step", data["metric"]],
            ([c["name"], int(x), y] for c in data["curves"] for x, y in zip(c["x"], c["y"], strict=True)),
        ),
    ),
    "attribution_graph": (draw_graph, panel_rows),
    "model": (
        draw_model, lambda data: (["text", "stage", "value", "row", "column", "number"], number_rows(data)),
    ),
    "image_attention": (draw_image_attention, panel_rows),
}  # fmt: skip
PANELS = (draw_panels, panel_rows)
