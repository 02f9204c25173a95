"""examples/looking_inside.ipynb runs from top to bottom, with whatever model its first line names."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.classroom.figures import Figure
from heedful.weights.hub import BASES, installed_models

NOTEBOOK = Path(__file__).parents[1] / "examples" / "looking_inside.ipynb"
DEFAULT = '"smollm2-135m-instruct"'
needs_bases = pytest.mark.skipif(
    installed_models().keys() != BASES.keys(), reason="the bases are not installed"
)


def code_cells() -> list[str]:
    """Return the cells of code in order."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_notebook(model: str) -> tuple[dict[str, Any], list[Figure]]:
    """Run every cell with a model; return the names it made and the figures that cells end with."""
    names: dict[str, Any] = {"__name__": "notebook"}
    first, *rest = code_cells()
    assert first.startswith(f"MODEL = {DEFAULT}")
    shown = []
    try:
        for number, code in enumerate([first.replace(DEFAULT, repr(model), 1), *rest]):
            tree = ast.parse(code, filename=f"cell {number}")
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"cell {number}", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
                shown += [value] if isinstance(value, Figure) else []
    finally:
        torch.set_grad_enabled(True)
    return names, shown


def test_the_notebook_runs_with_the_bundled_gpt(capsys: pytest.CaptureFixture[str]) -> None:
    names, figures = run_notebook("prose")
    assert len(figures) == 19
    assert all("<svg" in figure.to_svg() for figure in figures)
    assert names["shares"].total == pytest.approx(names["shares"].logit, abs=1e-4)
    assert "blocks.0.attn.pattern" in capsys.readouterr().out


def test_the_notebook_runs_with_a_model_of_another_family(tmp_path: Path) -> None:
    model = heedful.build("llama", vocab=2048, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, context=128)
    model.tokenizer = heedful.load("prose").tokenizer
    heedful.save(model, tmp_path / "llama")
    names, _ = run_notebook(str(tmp_path / "llama"))
    assert names["residual"].values.shape[0] == 2


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs")] == []


@pytest.mark.slow
@needs_bases
def test_in_the_published_model_heads_that_repeat_are_found_and_missed() -> None:
    names, _ = run_notebook("smollm2-135m-instruct")
    assert names["best"][0].low > 0.8
    with torch.no_grad():
        plain, without_them = names["second_half"]([]), names["second_half"](names["best"])
    assert without_them > 2 * plain
