"""The largest differences from `transformers`, family by family, as a Markdown table.

python -m tests.parity.table
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import heedful
from tests.parity import harness
from tests.parity.harness import Case

FILES = (
    *("test_decoders", "test_bloom", "test_deepseek", "test_mamba"),
    *("test_encoders", "test_deberta", "test_encoder_decoders"),
)


def differences(case: Case, folder: Path) -> tuple[str, float, float]:
    """Family, largest logit difference, largest pattern difference."""
    reference, model = harness.make(case, folder), heedful.load(folder)
    tokens, types = harness.inputs(model, case)
    target = harness.target_for(model)
    expected = harness.run_theirs(reference, tokens, types, target)
    logits = (harness.run_ours(model, tokens, types, target) - expected[case.output]).abs().max()
    patterns = -1.0  # none compared
    for name, key in case.patterns.items():
        watch = heedful.Watch(name)
        harness.run_ours(model, tokens, types, target, watch=watch)
        for layer, attention in enumerate(expected[key]):
            patterns = max(patterns, float((watch[name.replace("*", str(layer))] - attention).abs().max()))
    return model.family.name, float(logits), patterns


def main() -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    for file in FILES:
        for case in importlib.import_module(f"tests.parity.{file}").CASES:
            with tempfile.TemporaryDirectory() as folder:
                family, *found = differences(case, Path(folder))
                rows.setdefault(family, []).append((found[0], found[1]))
    print("| family | configs | largest logit difference | largest pattern difference |")
    print("| --- | --- | --- | --- |")
    for family, found in rows.items():
        logit, pattern = (max(column) for column in zip(*found))
        shown = f"{pattern:.1e}" if pattern >= 0 else "none shown"
        print(f"| {family} | {len(found)} | {logit:.1e} | {shown} |")


if __name__ == "__main__":
    main()
