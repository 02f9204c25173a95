"""A model by its name is read once, and again when its files change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.tasks import FewShot, Search, forget_models, infill, log_probability, rank
from heedful.tasks import task as recent
from heedful.tasks.task import open_model
from tests.tasks.conftest import Tiny
from tests.tasks.real import scribbler


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was loaded, in order."""
    seen: list[Any] = []
    monkeypatch.setattr(recent, "load", lambda where: seen.append(where) or heedful.load(where))
    forget_models()
    yield seen
    forget_models()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return heedful.save(scribbler(), tmp_path / "scribbler")


def test_functions_that_take_a_name_load_its_model_once(loads: list[Any], folder: Path, tiny: Tiny) -> None:
    first = log_probability(folder, "abc").total
    assert log_probability(str(folder), "abc").total == first
    rank(folder, "abc", ["d", "e"])
    infill(folder, "ab ___ cd", ["d", "e"])
    examples = [("a", "x"), ("b", "y")]
    assert FewShot(folder, examples, labels=["x", "y"]).model is FewShot(folder, examples).model
    assert loads == [folder]
    other = heedful.save(tiny("none"), folder.parent / "encoder")
    Search(["a cat", "a dog"], other).find("cat")
    Search(["a cat"], other).find("cat")
    log_probability(folder, "abc")
    assert loads == [folder, other]


def test_a_model_whose_files_changed_is_loaded_again(loads: list[Any], folder: Path) -> None:
    before = log_probability(folder, "abc").total
    model = heedful.load(folder)
    with torch.no_grad():
        model.get_parameter("embed.token.weight").mul_(2)
    heedful.save(model, folder)
    assert log_probability(folder, "abc").total != before
    assert loads == [folder, folder]


def test_only_the_last_ones_are_kept(loads: list[Any], folder: Path) -> None:
    copies = [heedful.save(scribbler(), folder.parent / name) for name in "abc"]
    for copy in (*copies, copies[2], copies[1], copies[0]):
        open_model(copy)
    assert loads == [*copies, copies[0]]


def test_what_was_kept_can_be_forgotten(loads: list[Any], folder: Path) -> None:
    open_model(folder)
    forget_models()
    open_model(folder)
    assert len(loads) == 2


def test_an_adapter_is_loaded_again_when_its_base_changes(
    loads: list[Any], tmp_path: Path, tiny: Tiny
) -> None:
    from heedful.weights.loading import with_head
    from heedful.weights.saving import save_on_base

    base = heedful.save(tiny("none"), tmp_path / "base")
    taught = with_head(heedful.load(base), "classify", ["a", "b"])
    heedful.lora(taught)
    folder = save_on_base(taught, tmp_path / "taught", str(base))
    open_model(folder)
    (base / "README.md").write_text("new")
    open_model(folder)
    assert loads == [folder, folder]


def test_a_model_that_is_given_stays_the_callers_own(loads: list[Any]) -> None:
    model = scribbler()
    assert open_model(model) is model
    assert loads == []
