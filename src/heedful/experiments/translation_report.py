"""The report of a race of translators: BLEU by length, alignments, additive scores beside dot products."""

from __future__ import annotations

from typing import Any

import numpy as np

from heedful.experiments.measurement_store import MeasurementStore
from heedful.experiments.report import Section
from heedful.experiments.systems import TRANSLATORS
from heedful.view import panels


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


def bleu_section(found: dict[str, Any], training: dict[str, Any]) -> Section:
    """Return BLEU by the number of words of the source."""
    words = next(iter(found.values()))["words"]
    values = np.array([v["bleu"] for v in found.values()])
    falls = {name: float(row[0] - row[-1]) for name, row in zip(found, values, strict=True)}
    most = max(falls, key=lambda n: falls[n])
    text = [
        f"From sources of up to {words[0]} words to those of up to {words[-1]} the BLEU of {most} falls "
        "most, "
        f"by {falls[most]:.1f} points. Test pairs are joined from pairs that no model has seen.",
    ]
    columns = ["parameters", *(f"≤ {w} words" for w in words)]
    cells = [
        [f"{training[n]['parameters']:,}" if n in training else "", *(f"{b:.1f}" for b in row)]
        for n, row in zip(found, values, strict=True)
    ]
    drawn = panels.lines(
        "BLEU by length", values, list(found), words, axes=("BLEU", "words of the source, at most")
    )
    table = panels.table("BLEU", cells, list(found), columns, axes=("system", ""))
    return Section("bleu", "BLEU by the length of the source", text, [drawn], [table])


def matrices(found: dict[str, Any], kind: str) -> list[panels.Panel]:
    """Return what every system has of a kind, as heat maps of target and source."""
    return [
        panels.matrix(name, np.array(v[kind]), v["target"], v["source"], axes=("target", "source"))
        for name, v in found.items()
    ]


def alignment_section(found: dict[str, Any]) -> Section:
    """Return the weights with which each target token looks at the source."""
    text = [
        "Each row is a token that the decoder reads, each column a token of the source; weights are the "
        "mean over "
        "the heads of the last layer. Plain seq2seq has none: all it knows of the source is one vector.",
    ]
    return Section("alignments", "Alignments side by side", text, matrices(found, "pattern"))


def score_section(found: dict[str, Any]) -> Section:
    """Return the scores before the softmax: additive ones beside dot products."""
    rows = []
    for v in found.values():
        scores = np.array(v["scores"])
        rows.append([f"{scores.min():.2f}", f"{scores.max():.2f}", f"{scores.std():.2f}"])
    text = [
        "RNNsearch's score is vᵀ tanh(W q + U m), bounded by Σ|v|; Luong's is the product qᵀ m, which "
        "grows with "
        "the vectors; the Transformer divides its product by √d_k.",
    ]
    table = panels.table(
        "scores", rows, list(found), ["lowest", "highest", "standard deviation"], axes=("system", "")
    )
    return Section("scores", "Additive scores beside dot products", text, matrices(found, "scores"), [table])
