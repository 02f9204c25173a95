"""Fine-tuning from Python: data in memory, a model in memory, and a result that is used at once."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.checks import find_options
from heedful.core.errors import ConfigError, InputError
from heedful.tasks.finetune import FinetuneRequest, FinetuneResult
from tests.tasks.finetune import finetuning as toy

ROWS = [(sentence, sentence.split()[1]) for sentence in toy.SENTENCES]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def learnt(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    out = tmp_path_factory.mktemp("out") / "made"
    data = [{"note": text, "verb": label} for text, label in ROWS]
    return heedful.finetune(
        bases["encoder"], data, task="classify", text="note", label="verb", lr=5e-3, out=out, quiet=True
    )


def test_the_result_is_used_at_once(learnt: FinetuneResult) -> None:
    assert learnt.scores["accuracy"] > 0.8
    assert learnt.pipeline("ann sees cats") == heedful.pipeline(model=learnt.folder)("ann sees cats")
    assert learnt.model.label_names == ["likes", "paints", "sees"]


def test_the_card_has_a_call_in_python(learnt: FinetuneResult) -> None:
    card = (learnt.folder / "README.md").read_text()
    assert "heedful.finetune('encoder', data, text='note', label='verb', task='classify'" in card


def test_a_table_in_memory_teaches_what_its_file_teaches(
    learnt: FinetuneResult, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.table(tmp_path / "rows.csv", ("note", "verb"), ROWS)
    other = heedful.finetune(
        bases["encoder"],
        file,
        task="classify",
        text="note",
        label="verb",
        lr=5e-3,
        out=tmp_path / "o",
        quiet=True,
    )
    assert other.scores == learnt.scores
    same = zip(other.model.parameters(), learnt.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_tuples_and_a_model_in_memory_which_stays_as_it_is(bases: dict[str, Path], tmp_path: Path) -> None:
    base = heedful.load(bases["encoder"])
    before = [p.detach().clone() for p in base.parameters()]
    result = heedful.finetune(
        base, ROWS, task="classify", valid=ROWS[:9], epochs=1, out=tmp_path / "made", quiet=True
    )
    assert result.found["read_as"] == {"text": "0", "label": "1"}
    assert result.valid_rows == 9
    assert all(torch.equal(a, b) for a, b in zip(before, base.parameters(), strict=True))
    assert heedful.pipeline(model=result.folder)("ann sees cats")


def test_errors_name_arguments_and_not_options(bases: dict[str, Path]) -> None:
    rows = [(sentence, f"{sentence} and many more words") for sentence in toy.SENTENCES]
    with pytest.raises(InputError, match=r"give task= \(classify"):
        heedful.finetune(bases["encoder"], rows, quiet=True)
    with pytest.raises(InputError, match="no column 'nota' for text="):
        heedful.finetune(bases["encoder"], [{"note": "a", "kind": "b"}], text="nota", task="classify")


def test_the_example_of_the_page_runs(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    code = page.partition("## From Python")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    toy.table(tmp_path / "inbox.csv", ("text", "id"), [("it works", 1), ("it broke", 2)])
    exec(code.replace("all-minilm-l6-v2", str(bases["encoder"])), {})
    assert (tmp_path / "sorted.csv").read_text().startswith("text,id,label,score\n")


def test_every_option_of_the_command_is_an_option_of_the_function() -> None:
    parameters = inspect.signature(heedful.finetune).parameters
    options = {name for name, _, _ in find_options(FinetuneRequest)} - {"model", "file"}
    assert options <= set(parameters)
    assert all(name in (heedful.finetune.__doc__ or "") for name in options)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("x", ROWS), {"epoch": 1}, "no option 'epoch'.*'epochs'"),
        ((3, ROWS), {}, "model= is a int"),
        (("x", 3), {}, "data must be a list"),
        (("x", []), {}, "data has no rows"),
    ],
)
def test_a_wrong_call_is_one_clear_line(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        heedful.finetune(*arguments, **options)


def test_an_unknown_option_is_compared_with_those_that_may_be_given() -> None:
    with pytest.raises(InputError, match="no option 'file'") as caught:
        heedful.evaluate("x", ROWS, file="rows.csv")
    assert "'files'" not in str(caught.value)


def test_a_model_is_loaded_under_a_new_head(bases: dict[str, Path]) -> None:
    model = heedful.load(bases["encoder"], head="classify", labels=["good", "bad"])
    assert (model.config.head, model.label_names) == ("classify", ["good", "bad"])
    assert not model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a"]}, "labels= are those of a new head"),
        ({"head": "classify"}, "needs the names of its classes"),
        ({"head": "clasify", "labels": ["a"]}, "head='clasify' is not a head"),
        ({"head": "span", "labels": ["a"]}, "has no classes"),
        ({"head": "classify", "labels": ["a", "a"]}, "each once"),
        ({"head": "classify", "labels": "ab"}, "list of names"),
    ],
)
def test_a_wrong_head_is_one_clear_line(
    options: dict[str, Any], message: str, bases: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=message):
        heedful.load(bases["encoder"], **options)
