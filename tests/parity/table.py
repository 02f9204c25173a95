"""The largest differences from `transformers`, family by family, as a Markdown table.

python -m tests.parity.table
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import heedful
from tests.parity.cases import CASES, Case
from tests.parity.harness import publish, random_inputs, run_ours, run_theirs


def differences(case: Case, folder: Path) -> tuple[str, float, float]:
    """Return the family, the largest difference of logits and that of patterns, -1 if none is compared."""
    reference, model = publish(case, folder).reference, heedful.load(folder)
    inputs = random_inputs(model, case)
    expected = run_theirs(reference, *inputs)
    logits = (run_ours(model, *inputs) - expected[case.output]).abs().max()
    patterns = -1.0
    for name, key in case.patterns.items():
        watch = heedful.Watch(name)
        run_ours(model, *inputs, watch=watch)
        for layer, attention in enumerate(expected[key]):
            patterns = max(patterns, float((watch[name.replace("*", str(layer))] - attention).abs().max()))
    return model.family.name, float(logits), patterns


def main() -> None:
    """Print the table."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            family, logits, patterns = differences(case, Path(folder))
            rows.setdefault(family, []).append((logits, patterns))
    print("| family | configs | largest logit difference | largest pattern difference |")
    print("| --- | --- | --- | --- |")
    for family, found in rows.items():
        logit, pattern = (max(column) for column in zip(*found))
        shown = f"{pattern:.1e}" if pattern >= 0 else "none shown"
        print(f"| {family} | {len(found)} | {logit:.1e} | {shown} |")


if __name__ == "__main__":
    main()
