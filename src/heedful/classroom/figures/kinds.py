"""The kinds of figure that are more than panels: how each is drawn, and its numbers as rows of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.canvas import (
    ACCENT,
    BAR,
    FAINT,
    INK,
    SOFT,
    Box,
    Cells,
    Drawing,
    Picture,
    Shape,
    Stroke,
    TextLabel,
    color_rows,
    greatest,
)
from heedful.classroom.figures.panels import (
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
Rows = Iterator[list[Any]]  # of a table; the names of the columns stand in the first
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
    """Yield a row for each query and key."""
    shown, name = select_pattern(data), data["patterns"][data["pattern"]]["name"]
    yield ["layer", "head", "query_at", "query", "key_at", "key", "weight"]
    for t, query in enumerate(shown.queries):
        for s, key in enumerate(shown.keys):
            at = shown.query_at[t], query, shown.key_at[s], key
            yield [name, data["head"], *at, shown.values[t, s]]


def score_rows(data: Data) -> Rows:
    """Yield the scores of each head."""
    yield ["layer", "head", "entropy_bits", *SCORES[1:]]
    for score in data["scores"]:
        yield [score["name"], score["head"], *(score.get(name) for name in SCORES)]


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
    """Draw a bar for each of the most likely tokens."""
    shown, chain = data["shown"], data["chain"]
    caption = lambda i, p: f"{percent(float(p))}   (logit {brief(float(data['logits'][i]))})"
    captions = [caption(i, p) for i, p in zip(shown, chain["final"], strict=True)]
    return bar_chart(
        [data["names"][i] for i in shown], chain["final"].tolist(), captions, marks=chain["p"].tolist(),
        highlighted_row=shown.index(data["drawn"]),
        note="bar: probability it is drawn with; line: at temperature 1",
    )  # fmt: skip


def next_token_rows(data: Data) -> Rows:
    """Yield a row per token shown, with its probability after each rule."""
    yield ["token", "id", "logit", *CHAIN, "drawn"]
    for row, id in enumerate(data["shown"]):
        chances = (data["chain"][rule][row] for rule in CHAIN)
        yield [data["names"][id], id, data["logits"][id], *chances, int(id == data["drawn"])]


def draw_beams(data: Data) -> Drawing:
    """Draw a search as a tree: steps across, what each step weighed down, best first.

    The best text is bold; what leads to a text that was found is plain; the rest is grey and dashed.
    """
    listed = data["branches"]
    column = max(longest([b["name"] for b in listed]) + 34, 86.0)
    most = 1 + max((b["rank"] for b in listed), default=0)  # groups of a search stand below each other
    rows = [b["group"] * most + b["rank"] for b in listed]
    place = [
        (16 + (b["step"] - 1) * column, 34 + BRANCH_HEIGHT * r) for b, r in zip(listed, rows, strict=True)
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


# The picture of a model: tokens across, stages down.


LEFT, COLUMN = 190.0, 58.0  # the room of titles, and of one token
PER_TOKEN_KINDS = ("embedding", "recurrence", "state", "memory")  # drawn for every token, not the row alone
LETTERS = 26  # of a title in one line
TERMS = 4  # of a weighted sum that are drawn
PATCH = (48.0, 12.0)  # a vector of 64 numbers: four rows of sixteen


def draw_model(data: Data) -> Drawing:
    """Draw the first text of a figure: each stage with its title on the left and its tokens as columns."""
    picture = data["pictures"][0]
    columns = max(len(picture[side]) for side in ("tokens", "target", "written"))
    right = LEFT + max(columns * COLUMN, 640.0)  # a weighted sum takes so much
    shapes: list[Shape] = []
    y = 8.0
    for stage in picture["stages"]:
        title = stage["title"]
        for i, line in enumerate(re.split("(?<=,) ", title) if len(title) > LETTERS else [title]):
            bold = stage["kind"] != "layer"
            shapes.append(TextLabel(12, y + 7 + 14 * i, short(line, LETTERS), 11.5, bold=bold))
        stage_shapes, height = draw_stage(picture, stage, y)
        shapes += stage_shapes
        y += height
        shapes.append(Stroke([(12, y - 8), (right, y - 8)], FAINT))
    return shapes, right + 12, y


def draw_stage(picture: Data, stage: Data, y: float) -> tuple[list[Shape], float]:
    """Return the shapes of one stage at a height, and how high they are."""
    tokens, row = picture[stage["side"]], picture["row"]
    if stage["kind"] == "tokens":
        return token_row(tokens, y, None), 32.0
    if stage["kind"] == "layer":
        at = min(row, len(tokens) - 1)
        lengths = [f"{part['title']} {brief(float(part['lengths'][at]))}" for part in stage["parts"]]
        note = f"length of what it gives:  {',  '.join(lengths)}"
        return [TextLabel(LEFT, y + 7, note, 10.5, colour=SOFT)], 26.0
    if stage["kind"] == "attention":
        return draw_look(picture, stage["pattern"], y)
    if stage["kind"] == "sum":
        return draw_sum(picture, stage, y), 44.0
    if stage["prediction"] is not None:
        return draw_prediction(picture, stage["prediction"], y)
    if stage["kind"] in PER_TOKEN_KINDS:
        return draw_columns(stage["vectors"], y), 18.0 * len(stage["vectors"]) + 14
    shapes: list[Shape] = []
    x = LEFT
    for rows in (rows for rows in stage["vectors"] if rows["side"] == stage["side"]):
        vector = rows["numbers"][min(row, len(rows["numbers"]) - 1)]
        shapes.append(vector_patch(vector, vector, x, y + 1))
        shapes.append(TextLabel(x, y + 22, rows["label"], 9.5, colour=SOFT))
        x += max(PATCH[0], 6.0 * len(rows["label"])) + 22
    if stage["experts"] is not None:
        expert_ids, weights = (stage["experts"][word][row].tolist() for word in ("chosen", "weights"))
        routing = ",  ".join(f"{e}: {brief(w)}" for e, w in zip(expert_ids, weights, strict=True))
        shapes.append(TextLabel(x, y + 8, f"experts  {routing}", 10.5))
    return shapes, 44.0


def draw_columns(vectors: Sequence[Data], y: float) -> list[Shape]:
    """Return the vectors of every token in its column."""
    shapes: list[Shape] = []
    for i, rows in enumerate(vectors):
        shapes.append(TextLabel(LEFT - 8, y + 8 + 18 * i, rows["label"], 10, "end", SOFT))
        shapes += [
            vector_patch(vector, rows["numbers"], LEFT + t * COLUMN + 4, y + 2 + 18 * i)
            for t, vector in enumerate(rows["numbers"])
        ]
    return shapes


def vector_patch(vector: np.ndarray, of: np.ndarray, x: float, y: float) -> Cells:
    """Return a vector as a patch of cells, coloured by the square roots of sizes on the scale of others."""
    width = min(16, len(vector))
    padded = np.zeros(width * -(-len(vector) // width), dtype=np.float32)
    padded[: len(vector)] = vector
    grid = padded.reshape(-1, width)
    paint = color_rows(grid, greatest(of), scale="sqrt", signed=True)
    return Cells(x, y, *PATCH, paint, "signed")


def token_row(tokens: list[str], y: float, row: int | None) -> list[Shape]:
    """Return tokens in their columns; that of the row is marked."""
    colour = lambda t: ACCENT if t == row else INK
    return [
        TextLabel(LEFT + t * COLUMN + 28, y + 8, short(token, 9), 11.5, "middle", colour(t), bold=t == row)
        for t, token in enumerate(tokens)
    ]


def draw_look(picture: Data, pattern: Data, y: float) -> tuple[list[Shape], float]:
    """Return the keys above, the rows below, and a line to each key as wide as its weight."""
    row, keys, queries = picture["row"], picture[pattern["keys"]], picture[pattern["queries"]]
    weights = pattern["values"][row]
    greatest = max(float(np.abs(weights).max()), 1e-9)
    shapes: list[Shape] = token_row(keys, y, None)
    start = LEFT + row * COLUMN + 28
    for s, weight in enumerate(weights.tolist()):
        x = LEFT + s * COLUMN + 28
        share = abs(weight) / greatest
        if share < 0.02:
            continue
        colour = BAR if weight >= 0 else ACCENT
        steps = [k / 30 for k in range(31)]
        curve = [(start + (x - start) * (3 * k * k - 2 * k**3), y + 104 - 74 * k) for k in steps]
        shapes.append(Stroke(curve, colour, 0.6 + 7 * share, alpha=0.35 + 0.55 * share))
        if share > 0.1:
            shapes.append(TextLabel(x, y + 22, brief(weight), 10.5, "middle"))
    return [*shapes, *token_row(queries, y + 108, row)], 140.0


def draw_sum(picture: Data, stage: Data, y: float) -> list[Shape]:
    """Return the values of the keys with the greatest weights, each next to its weight, and their sum."""
    value, total = stage["vectors"]
    row, keys = picture["row"], picture[stage["pattern"]["keys"]]
    weights = stage["pattern"]["values"][row]
    shapes: list[Shape] = []
    x = LEFT
    for term, s in enumerate(np.argsort(-np.abs(weights))[:TERMS].tolist()):
        weight = float(weights[s])
        factor = brief(weight) if term == 0 else f"{'−' if weight < 0 else '+'} {brief(abs(weight))}"
        shapes.append(TextLabel(x + 50, y + 8, f"{factor} ×", 11, "end"))
        shapes.append(vector_patch(value["numbers"][s], value["numbers"], x + 56, y + 1))
        shapes.append(TextLabel(x + 56, y + 22, short(keys[s], 9), 9.5, colour=SOFT))
        x += 122
    shapes.append(TextLabel(x + 50, y + 8, "+ …  =" if len(weights) > TERMS else "=", 11, "end"))
    shapes.append(vector_patch(total["numbers"][row], total["numbers"], x + 58, y + 1))
    return shapes


def draw_prediction(picture: Data, prediction: Data, y: float) -> tuple[list[Shape], float]:
    """Return a bar for each of the most likely answers."""
    at = min(picture["row"], len(prediction["names"]) - 1)
    before, names, chances = "", [], []
    if prediction["filled_names"]:
        before, names, chances = "masked: ", prediction["filled_names"], prediction["filled_chances"]
    elif at >= 0:
        names, chances = prediction["names"][at], prediction["chances"][at].tolist()
    shapes: list[Shape] = []
    for i, (name, chance) in enumerate(zip(names, chances, strict=True)):
        line = y + 4 + 19 * i
        shapes.append(TextLabel(LEFT + 116, line + 6, before + short(name, 16), 11.5, "end"))
        shapes.append(Box(LEFT + 124, line, max(1.0, 260 * chance), 12, BAR))
        shapes.append(TextLabel(LEFT + 132 + 260 * chance, line + 6, percent(chance), 10.5, colour=SOFT))
    return shapes, 19.0 * len(names) + 24


def number_rows(data: Data) -> Rows:
    """Yield the numbers of vectors, patterns and answers behind their text, stage, value, token and place."""
    yield ["text", "stage", "value", "row", "column", "number"]
    for text, picture in enumerate(data["pictures"]):
        for stage in picture["stages"]:
            for rows in stage["vectors"]:
                names = ["text"] if rows["side"] == "text" else picture[rows["side"]]
                for (t, i), value in np.ndenumerate(rows["numbers"]):
                    yield [text, stage["title"], rows["name"], visible_text(names[t]), i, value]
            pattern, prediction = stage["pattern"], stage["prediction"]
            if pattern is not None and stage["kind"] == "attention":
                queries, keys = picture[pattern["queries"]], picture[pattern["keys"]]
                for (t, s), value in np.ndenumerate(pattern["values"]):
                    names = visible_text(queries[t]), visible_text(keys[s])
                    yield [text, stage["title"], pattern["name"], *names, value]
            columns = (prediction[word] for word in ("rows", "names", "chances")) if prediction else ()
            for row, names, chances in zip(*columns, strict=True):
                for name, chance in zip(names, chances.tolist(), strict=True):
                    yield [text, stage["title"], "probability", visible_text(row), visible_text(name), chance]


# An image once for each token that was written, tinted where the model looked.


TINT = np.array([230.0, 85.0, 0.0])  # of the greatest weight; no weight leaves the image as it is
STRONGEST = 0.75  # how much of a pixel the tint may take
PAGE, TILE_GAP, HEADING = 660.0, 14.0, 23.0


def tint_image(pixels: np.ndarray, weights: np.ndarray, limit: float) -> np.ndarray:
    """The pixels (H, W, 3) under a tint that is as strong as the weight (R, C) of their patch."""
    (height, width, _), (rows, columns) = pixels.shape, weights.shape
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    share = STRONGEST * np.clip(weights / (limit or 1.0), 0.0, 1.0)[down][:, across, None]  # (H, W, 1)
    return np.rint(pixels * (1 - share) + TINT * share).astype(np.uint8)


def draw_image_attention(data: Mapping[str, Any]) -> Drawing:
    """Draw the image as it is, and once per token, below its name."""
    pixels, panel = np.asarray(data["pixels"]), data["panels"][0]
    weights = np.asarray(panel["values"])[:, data["first"] :].reshape(len(panel["rows"]), *data["grid"])
    height, width, _ = pixels.shape
    scale = min(300 / width, 180 / height)
    wide, high = width * scale, height * scale
    columns = max(1, int((PAGE + TILE_GAP) // (wide + TILE_GAP)))
    tiles = [("the image", pixels)]
    limit = float(weights.max())
    numbered = panel["rowTitle"] == "token written"  # layers and heads have their numbers
    names = [f"{i + 1}: {short(name)}" if numbered else name for i, name in enumerate(panel["rows"])]
    tiles += [(name, tint_image(pixels, one, limit)) for name, one in zip(names, weights, strict=True)]
    shapes: list[Shape] = []
    for i, (name, tile) in enumerate(tiles):
        x, y = 12 + (i % columns) * (wide + TILE_GAP), (i // columns) * (high + HEADING + TILE_GAP)
        shapes += [
            TextLabel(x, y + 8, name, 14.5, bold=i > 0, colour=SOFT if i == 0 else "ink"),
            Picture(x, y + HEADING, wide, high, tile),
            Box(x, y + HEADING, wide, high, stroke=FAINT),
        ]
    down = -(-len(tiles) // columns) * (high + HEADING + TILE_GAP)
    shapes.append(TextLabel(12, down + 6, f"no tint: weight 0; full tint: {limit:.2f}", 13, colour=SOFT))
    return shapes, min(len(tiles), columns) * (wide + TILE_GAP) + 12, down + 22


# A graph whose nodes stand in layers, drawn from the bottom up: lines as strong as their values.


ROW, NODE_GAP, HIGH = 54.0, 26.0, 22.0
LAYER = re.compile(r"^\w+\.(\d+)")


def draw_graph(data: Mapping[str, Any]) -> Drawing:
    """Draw nodes from the embedding at the bottom to the logits on top; edges that take away are dashed."""
    rows = layer_rows(data["nodes"])
    wide = lambda name: width(short(name, 24)) + 14
    across = max(sum(map(wide, row)) + NODE_GAP * (len(row) - 1) for row in rows)
    place: dict[str, tuple[float, float]] = {}
    shapes: list[Shape] = []
    for depth, row in enumerate(rows):
        x = 24 + (across - sum(map(wide, row)) - NODE_GAP * (len(row) - 1)) / 2
        y = 16 + ROW * (len(rows) - 1 - depth)
        for name in row:
            place[name] = (x + wide(name) / 2, y)
            shapes.append(Box(x, y, wide(name), HIGH, stroke=SOFT))
            shapes.append(TextLabel(x + wide(name) / 2, y + HIGH / 2, short(name, 24), 12, "middle"))
            x += wide(name) + NODE_GAP
    largest = max((abs(value) for _, _, value in data["edges"]), default=1.0) or 1.0
    for sender, receiver, value in data["edges"]:
        # A part reads as itself, or, where its heads are nodes, as the first of them.
        node = receiver if receiver in place else next(name for name in place if name.startswith(receiver))
        shapes += _edge(place[sender], place[node], value, abs(value) / largest)
    return shapes, across + 300, 16 + ROW * len(rows)


def _edge(start: tuple[float, float], end: tuple[float, float], value: float, share: float) -> list[Shape]:
    """A curve between two boxes that bows where it passes others, with its value next to it."""
    (x0, y0), (x1, y1) = (start[0], start[1]), (end[0], end[1] + HIGH)
    levels = (start[1] - end[1]) / ROW
    bow = 0.0 if levels < 1.5 else 50.0 + 22.0 * levels
    at = lambda s: (x0 + (x1 - x0) * s + bow * math.sin(math.pi * s), y0 + (y1 - y0) * s)
    points = [at(k / 12) for k in range(13)]
    ink, dash = (BAR, ()) if value > 0 else (ACCENT, (4, 3))
    x, y = points[6 if levels < 1.5 else 4 + int(levels) % 5]
    label = TextLabel(x + 3, y, brief(value), 10, colour=INK if share > 0.25 else SOFT)
    return [Stroke(points, ink, 0.8 + 4 * share, dash, 0.35 + 0.6 * share), label]


def layer_rows(nodes: Sequence[str]) -> list[list[str]]:
    """Return the nodes in rows: a row for the attention and one for the feed-forward part of a layer."""
    rows: dict[str, list[str]] = {}
    for name in nodes:
        rows.setdefault(name.partition(" ")[0] if LAYER.match(name) else name, []).append(name)
    return list(rows.values())


def branch_rows(data: Data) -> Rows:
    """Yield every text that a search weighed."""
    yield ["at", *BRANCH]
    for i, branch in enumerate(data["branches"]):
        yield [i, *(branch[name] for name in BRANCH)]


def point_rows(data: Data) -> Rows:
    """Yield the words of a map, with their nearest in the full space."""
    yield ["word", "x", "y", "nearest"]
    for name, point, near in zip(data["names"], data["points"], data["near"], strict=True):
        yield [name, *point, " ".join(data["words"][j] for j in near)]


def draw_curves(data: Data) -> Drawing:
    """Draw the curves of training runs."""
    curves = [(curve["name"], curve["x"], curve["y"]) for curve in data["curves"]]
    return line_chart(curves, "step", data["metric"])


def curve_rows(data: Data) -> Rows:
    """Yield the points of training curves."""
    yield ["curve", "step", data["metric"]]
    for curve in data["curves"]:
        for x, y in zip(curve["x"], curve["y"], strict=True):
            yield [curve["name"], int(x), y]


def step_rows(data: Data) -> Rows:
    """Yield the lines of a worked calculation."""
    yield ["section", "step", "formula", "numbers", "result"]
    yield from map(list, data["rows"])


# How each kind is drawn, and the rows of its table. Every other kind is made of panels.
KINDS: dict[str, tuple[Callable[[Data], Drawing], Callable[[Data], Rows]]] = {
    "attention": (draw_attention, attention_rows),
    "heads": (draw_heads, score_rows),
    "steps": (draw_steps, step_rows),
    "next_token": (draw_next_token, next_token_rows),
    "beams": (draw_beams, branch_rows),
    "embeddings": (
        lambda data: point_map(data["points"].astype(float), data["names"], data["axes"]), point_rows
    ),
    "training": (draw_curves, curve_rows),
    "attribution_graph": (draw_graph, panel_rows),
    "model": (draw_model, number_rows),
    "image_attention": (draw_image_attention, panel_rows),
}  # fmt: skip
PANELS = (draw_panels, panel_rows)
