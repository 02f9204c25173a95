"""The report of a race of translators: BLEU by length, alignments, additive scores beside dot products."""

from __future__ import annotations

from typing import Any

import numpy as np

from heedful.classroom.experiments.measurement_store import MeasurementStore
from heedful.classroom.experiments.report import Section
from heedful.classroom.experiments.systems import TRANSLATORS
from heedful.classroom.figures import panels


def translation_sections(store: MeasurementStore) -> list[Section]:
    """Return a section for everything that was measured so far."""
    values = {kind: store.values(kind) for kind in ("training", "bleu", "alignment")}
    known = lambda kind: {TRANSLATORS[n].label: values[kind][n] for n in TRANSLATORS if values[kind].get(n)}
    sections = []
    if known("bleu"):
        sections.append(bleu_section(known("bleu"), known("training")))
    if known("alignment"):
        sections += [alignment_section(known("alignment")), score_section(known("alignment"))]
    return sections


def bleu_section(results: dict[str, Any], training: dict[str, Any]) -> Section:
    """Return BLEU by the number of words of the source, with intervals, and how much of it each keeps."""
    words = next(iter(results.values()))["words"]
    values = np.array([v["bleu"] for v in results.values()])
    best = {name: int(row.argmax()) for name, row in zip(results, values, strict=True)}
    kept = {n: v["bleu"][-1] / max(v["bleu"][best[n]], 1e-9) for n, v in results.items()}
    least, most = (choose(kept, key=lambda n: kept[n]) for choose in (min, max))
    text = [
        f"Of its best BLEU {least} keeps {kept[least]:.0%} on sources of up to {words[-1]} words, {most} "
        f"{kept[most]:.0%}. Test texts are joined from sources that no model has seen; in brackets stand "
        "where 95 % of the BLEUs of texts drawn with replacement lie.",
        "A model that stops too early writes fewer words than the references have: the second table.",
    ]
    spans = [f"{low + 1}–{high}" for low, high in zip((0, *words), words, strict=False)]
    cells = [
        [
            f"{training[n]['parameters']:,}" if n in training else "",
            *(f"{b:.1f} [{i[0]:.1f}, {i[1]:.1f}]" for b, i in zip(v["bleu"], v["interval"], strict=True)),
            f"{kept[n]:.0%}",
        ]
        for n, v in results.items()
    ]
    columns = ["parameters", *(f"{span} words" for span in spans), "kept"]
    ratios = [[f"{r:.2f}" for r in v["ratio"]] for v in results.values()]
    drawn = panels.lines(
        "BLEU by length", values, list(results), words, axes=("BLEU", "words of the source, at most")
    )
    tables = [
        panels.table("BLEU", cells, list(results), columns, axes=("system", "")),
        panels.table(
            "words written", ratios, list(results), columns[1:-1], axes=("of the references' words", "")
        ),
    ]
    return Section("bleu", "BLEU by the length of the source", text, [drawn], tables)


def matrices(results: dict[str, Any], kind: str) -> list[panels.Panel]:
    """Return what every system has of a kind, as heat maps of target and source."""
    return [
        panels.matrix(name, np.array(v[kind]), v["target"], v["source"], axes=("target", "source"))
        for name, v in results.items()
    ]


def alignment_section(results: dict[str, Any]) -> Section:
    """Return the weights with which each target token looks at the source."""
    text = [
        "Each row is a token that the decoder reads, each column a token of the source; weights are the "
        "mean over the heads of the last layer. Plain seq2seq has none: all it knows of the source is one "
        "vector."
    ]
    return Section("alignments", "Alignments side by side", text, matrices(results, "pattern"))


def score_section(results: dict[str, Any]) -> Section:
    """Return the scores before the softmax: additive ones beside dot products."""
    rows = []
    for v in results.values():
        scores = np.array(v["scores"])
        rows.append([f"{scores.min():.2f}", f"{scores.max():.2f}", f"{scores.std():.2f}"])
    text = [
        "RNNsearch's score is vᵀ tanh(W q + U m), bounded by Σ|v|; Luong's is the product qᵀ m, which "
        "grows with the vectors; the Transformer divides its product by √d_k."
    ]
    table = panels.table(
        "scores", rows, list(results), ["lowest", "highest", "standard deviation"], axes=("system", "")
    )
    return Section(
        "scores", "Additive scores beside dot products", text, matrices(results, "scores"), [table]
    )
