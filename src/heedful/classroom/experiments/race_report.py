"""The report of a race: what was measured, drawn and said. Every sentence is computed from the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heedful.classroom.experiments.gradient_flow import mean_interval
from heedful.classroom.experiments.measurement_store import MeasurementStore
from heedful.classroom.experiments.recall_tasks import SYMBOLS, TASKS
from heedful.classroom.experiments.report import Section
from heedful.classroom.experiments.systems import SYSTEMS, System
from heedful.classroom.figures import panels
from heedful.tasks.metrics.scores import interval

Values = Mapping[str, Any]


def race_sections(store: MeasurementStore) -> list[Section]:
    """Return a section for everything that was measured so far."""
    measurements = {
        kind: measurements_of(store, kind) for kind in ("size", "training", "speed", "gradient", *SECTIONS)
    }
    sections = [size_section(measurements["size"])] if measurements["size"] else []
    if losses := {name: v for name, v in measurements["training"].items() if name in measurements["speed"]}:
        sections.append(loss_section(losses, measurements["speed"]))
    sections += [make(measurements[kind]) for kind, make in SECTIONS.items() if measurements[kind]]
    if measurements["gradient"] and (gains := store.values("gains").get("rnn")) is not None:
        sections.append(gradient_section(measurements["gradient"], gains))
    values = store.values("task")
    return sections + [
        task_section(task, values) for task in TASKS if any(name.startswith(f"{task}-") for name in values)
    ]


def measurements_of(
    store: MeasurementStore, kind: str, systems: Mapping[str, System] = SYSTEMS
) -> dict[str, Any]:
    """Return the measurements of one kind under the labels of their systems, in the systems' order."""
    values = store.values(kind)
    return {systems[name].label: values[name] for name in systems if values.get(name)}


def system_table(
    title: str, rows: Sequence[Sequence[str]], systems: Mapping[str, Any], columns: Sequence[str]
) -> panels.Panel:
    """Return a table with a row for each system."""
    return panels.table(title, rows, list(systems), columns, axes=("system", ""))


def slope_text(fit: Values, form: str = ".2f") -> str:
    """Return a slope with its interval: 1.93 [1.89, 1.97]."""
    return f"{fit['slope']:{form}} [{fit['low']:{form}}, {fit['high']:{form}}]"


def size_section(sizes: Values) -> Section:
    """Return the table of systems: parameters, layers, width, path length."""
    distances = list(next(iter(sizes.values()))["paths"])
    paths = [f"path, {k} back" for k in distances]
    columns = ["mixes by", "parameters", "layers", "width", "learning rate", *paths]
    rows = [
        [
            v["mixing"], f"{v['parameters']:,}", str(v["model"]["layers"]), str(v["model"]["dim"]),
            f"{v['lr']:g}", *(str(v["paths"][k]) for k in distances),
        ]
        for v in sizes.values()
    ]  # fmt: skip
    text = [
        "All systems have about as many parameters, and read the same tokens in the same order. The path is "
        "the number of parts that a gradient passes, one after another, on its way to the input that "
        "many tokens back."
    ]
    return Section("sizes", "The systems", text, tables=[system_table("systems", rows, sizes, columns)])


def loss_section(losses: Values, steps: Values) -> Section:
    """Return validation loss over tokens and over seconds, and the speed of training."""
    tokens = max((v["tokens"] for v in losses.values()), key=len)
    speed = {name: steps[name]["tokens"] / steps[name]["seconds"] for name in losses}
    seconds = {name: np.array(v["tokens"]) / speed[name] for name, v in losses.items()}
    clock = np.linspace(0, max(s[-1] for s in seconds.values()), 49)[1:]
    over = lambda x, at, name: np.interp(x, at, losses[name]["loss"], left=np.nan, right=np.nan)
    by_tokens = np.array([over(tokens, v["tokens"], name) for name, v in losses.items()])
    by_seconds = np.array([over(clock, seconds[name], name) for name in losses])
    best, fastest = min(losses, key=lambda n: losses[n]["loss"][-1]), max(speed, key=lambda n: speed[n])
    rows = [[f"{v['loss'][-1]:.3f}", f"{speed[n]:,.0f}", f"{seconds[n][-1]:.1f}"] for n, v in losses.items()]
    text = [
        f"After {tokens[-1]:,} tokens {best} has the lowest validation loss, "
        f"{losses[best]['loss'][-1]:.3f} nats per token; {fastest} trains fastest, "
        f"{speed[fastest]:,.0f} tokens a second.",
        "Seconds are those of the shortest of several training steps, on a CPU the processor time of one "
        "thread, so that other work on the machine does not count.",
    ]
    axes = ("validation loss", "tokens"), ("validation loss", "seconds of training")
    drawn = [
        panels.lines("loss over tokens", by_tokens, list(losses), tokens, axes=axes[0]),
        panels.lines(
            "loss over seconds", by_seconds, list(losses), [f"{t:.3f}" for t in clock], axes=axes[1]
        ),
    ]
    columns = ["last loss", "tokens a second", "seconds"]
    table = system_table("speed", rows, losses, columns)
    return Section("loss", "Loss against tokens and seconds", text, drawn, [table])


def layer_section(measurements: Values) -> Section:
    """Return the time of a layer over length and width, with the exponents."""
    first = next(iter(measurements.values()))
    table = [[slope_text(v["length_exponent"]), slope_text(v["dim_exponent"])] for v in measurements.values()]
    lengths = sorted({n for v in measurements.values() for n in v["lengths"]})
    seconds = [dict(zip(v["lengths"], v["by_length"], strict=True)) for v in measurements.values()]
    by_length = np.log10(np.array([[one.get(n, np.nan) for n in lengths] for one in seconds]))
    by_dim = np.log10(np.array([v["by_dim"] for v in measurements.values()]))
    logs = lambda values: [f"{np.log10(v):.4f}" for v in values]
    text = [
        f"One layer's mixing part, forward, width {first['dim']} for the lengths and length "
        f"{first['length']} for the widths: the least processor time of one thread over several calls. Time "
        "grows as a power of the length; the exponent with its 95 % interval is that of the longest texts of "
        f"each system, up to {lengths[-1]:,} tokens.",
        "Attention is O(n²·d), a recurrence O(n·d²), linear attention and state spaces are linear in n. All "
        "have matrices of d × d too; at small widths the work around them weighs more than they do.",
    ]
    length_axes, dim_axes = ("log₁₀ seconds", "log₁₀ tokens"), ("log₁₀ seconds", "log₁₀ width")
    drawn = [
        panels.lines("time over length", by_length, list(measurements), logs(lengths), axes=length_axes),
        panels.lines("time over width", by_dim, list(measurements), logs(first["dims"]), axes=dim_axes),
    ]
    exponents = system_table("exponents", table, measurements, ["of the length n", "of the width d"])
    return Section("layers", "Time of one layer", text, drawn, [exponents])


def generation_section(measurements: Values) -> Section:
    """Return time and memory of one more token over the length of the context."""
    contexts = next(iter(measurements.values()))["contexts"]
    x = [f"{np.log10(n):.4f}" for n in contexts]
    grows = {n: v["bytes"][-1] / max(v["bytes"][0], 1) for n, v in measurements.items()}
    fixed = [n for n, g in grows.items() if g < 1.01]
    table = [
        [
            f"{1e3 * v['step'][0]:.2f}", f"{1e3 * v['step'][-1]:.2f}", f"{1e3 * v['whole'][-1]:.2f}",
            f"{v['bytes'][0]:,}", f"{v['bytes'][-1]:,}",
        ]
        for v in measurements.values()
    ]  # fmt: skip
    short, long = f"{contexts[0]:,}", f"{contexts[-1]:,}"
    text = [
        f"Behind {long} tokens instead of {short}, memory is the same for {', '.join(fixed) or 'none'}; for "
        "the others it grows with the text. Without a cache the whole text is read again for every token."
    ]
    columns = [f"ms, {short} tokens", f"ms, {long} tokens", f"ms, {long}, no cache"]
    columns += [f"bytes, {short}", f"bytes, {long}"]
    seconds = np.array([v["step"] for v in measurements.values()])
    kilobytes = np.array([v["bytes"] for v in measurements.values()]) / 1e3
    axis = "log₁₀ tokens before it"
    drawn = [
        panels.lines("time with a cache", seconds * 1e3, list(measurements), x, axes=("milliseconds", axis)),
        panels.lines("memory", kilobytes, list(measurements), x, axes=("kilobytes", axis)),
    ]
    tables = [system_table("one token", table, measurements, columns)]
    return Section("generation", "One more token", text, drawn, tables)


def position_section(measurements: Values) -> Section:
    """Return the loss by position in the context."""
    length = min(len(v["loss"]) for v in measurements.values())
    values = np.array([v["loss"][:length] for v in measurements.values()])
    width = max(1, length // 8)
    parts = values[:, : length // width * width].reshape(len(values), -1, width).mean(2)
    gains = {n: float(p[0] - p[-1]) for n, p in zip(measurements, parts, strict=True)}
    most = max(gains, key=lambda n: gains[n])
    text = [
        f"A model that uses its context gets surer along it. From the first {width} positions to the last "
        f"{width} the loss of {most} falls most, by {gains[most]:.2f} nats."
    ]
    middle = [f"{(i + 0.5) * width:.1f}" for i in range(parts.shape[1])]
    panel = panels.lines("loss by position", parts, list(measurements), middle, axes=("loss", "position"))
    rows = [
        [f"{p[0]:.3f}", f"{p[-1]:.3f}", f"{gains[n]:+.3f}"] for n, p in zip(measurements, parts, strict=True)
    ]
    columns = [f"first {width}", f"last {width}", "gain"]
    table = system_table("loss", rows, measurements, columns)
    return Section("positions", "Loss by position", text, [panel], [table])


def gradient_section(measurements: Values, gains: Sequence[Values]) -> Section:
    """Return gradients over distance with their rates, and the RNN whose gradients explode."""
    rate_text = lambda rate: slope_text(rate, "+.3f")
    rows = [
        [rate_text(v["trained"]["rate"]), rate_text(v["untrained"]["rate"])] for v in measurements.values()
    ]
    distances = list(range(min(len(v["trained"]["norms"]) for v in measurements.values())))
    logs = lambda norms: np.log10(np.array([n[: len(distances)] for n in norms]))
    sign = lambda rate: "explodes" if rate["low"] > 0 else "vanishes" if rate["high"] < 0 else "neither"
    scaled = [[rate_text(g["rate"]), sign(g["rate"])] for g in gains]
    steepest = min(measurements, key=lambda n: measurements[n]["trained"]["rate"]["slope"])
    text = [
        "ln ‖∂L/∂x‖ of the loss at the last position with respect to the input k steps back is fitted by a "
        "line: its slope is the rate per step. 0 is flat, below 0 the gradient vanishes exponentially, above "
        "0 it explodes.",
        f"Among the trained models {steepest} forgets fastest: by a factor of "
        f"{np.exp(-measurements[steepest]['trained']['rate']['slope']):.2f} with every step.",
        "An RNN whose recurrent matrix is an orthogonal one times a gain shows both: its gradient vanishes "
        "below 1 and explodes above.",
    ]
    trained = logs([v["trained"]["norms"] for v in measurements.values()])
    by_gain = [g["norms"] for g in gains]
    names, axes = [f"{g['gain']:g}" for g in gains], ("log₁₀ of the gradient's norm", "steps back")
    drawn = [
        panels.lines("trained", trained, list(measurements), distances, axes=axes),
        panels.lines(
            "RNNs of different gains, untrained", np.log10(np.array(by_gain)), [f"gain {n}" for n in names],
            list(range(len(by_gain[0]))), axes=axes,
        ),
    ]  # fmt: skip
    tables = [
        system_table("rates", rows, measurements, ["trained", "untrained"]),
        panels.table("gains", scaled, names, ["rate", "its gradient"], axes=("gain of the RNN", "")),
    ]
    return Section("gradients", "How far back the loss reaches", text, drawn, tables)


# The sections about one kind of measurement, in the order of the report.
SECTIONS = {"layer": layer_section, "generation": generation_section, "position": position_section}


def task_section(task: str, values: Values) -> Section:
    """Return the accuracy of every system on a task by distance, with intervals over seeds."""
    runs: dict[str, list[Values]] = {}
    for name in SYSTEMS:
        if seeds := [v for key, v in values.items() if key.startswith(f"{task}-{name}-")]:
            runs[SYSTEMS[name].label] = seeds
    distances = next(iter(runs.values()))[0]["distance"]
    shares = {
        n: np.array([np.array(s["right"]) / np.array(s["count"]) for s in seeds]) for n, seeds in runs.items()
    }
    cells = []
    for n, seeds in runs.items():
        counts = [sum(s["count"][i] for s in seeds) for i in range(len(distances))]
        cells.append([str(len(seeds)), *map(accuracy_text, shares[n].T, counts)])
    solved = [n for n, s in shares.items() if s.mean(0)[-1] > 0.9]
    failed = [n for n, s in shares.items() if s.mean(0)[-1] < 2 / SYMBOLS]
    starts = {n: seeds[0].get("table_std") for n, seeds in runs.items()}
    begun = "; ".join(
        f"{std:g} for {', '.join(n for n, own in starts.items() if own == std)}"
        for std in sorted({std for std in starts.values() if std is not None})
    )
    text = [
        f"At the longest distance (from {distances[-1]} on) more than 90 % right: "
        f"{', '.join(solved) or 'none'}; near chance ({1 / SYMBOLS:.1%}): {', '.join(failed) or 'none'}. "
        "Means over seeds, with 95 % intervals.",
        *([f"Standard deviation of the token vectors at the start: {begun}."] if begun else []),
    ]
    means = np.array([s.mean(0) for s in shares.values()])
    panel = panels.lines(task, means, list(runs), distances, axes=("accuracy", "distance at least"))
    columns = ["seeds", *(f"{d}–{2 * d - 1}" for d in distances)]
    table = panels.table(task, cells, list(runs), columns, axes=("system", "distance"))
    return Section(f"task-{task}", f"{task.capitalize()}: accuracy by distance", text, [panel], [table])


def accuracy_text(shares: Sequence[float] | np.ndarray, count: int) -> str:
    """Return the mean of the seeds' accuracies with its interval: over the seeds, and no narrower than that
    of `count` answers.
    """
    mean, *between_seeds = mean_interval([float(s) for s in shares])
    ends = [*interval(mean, count), *(end for end in between_seeds if not math.isnan(end))]
    return f"{mean:.2f} [{max(min(ends), 0):.2f}, {min(max(ends), 1):.2f}]"
