"""The documentation of every public name begins with a sentence and has an example that runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import heedful
from heedful.weights.hub import BASES, installed_models

NAMES = [name for name in heedful.__all__ if callable(getattr(heedful, name))]
BASE_NAMES = ("all-minilm-l6-v2", "smollm2-135m-instruct", "sentiment")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(heedful, name)) or ""
    assert text.partition("\n")[0].endswith((".", ":")), "begin with a sentence"
    if installed_models().keys() != BASES.keys() and any(base in text for base in BASE_NAMES):
        pytest.skip("the bases are not installed")
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples, "show an example"
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert not result.failed
