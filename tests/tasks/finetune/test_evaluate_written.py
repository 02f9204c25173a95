"""`heed eval` of what a model writes: which columns it reads, what a decoder is asked, what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from heedful.core.errors import ConfigError, InputError
from heedful.tasks import Truncated
from heedful.tasks.evaluate import evaluate
from heedful.tasks.finetune.request import EvaluationRequest
from heedful.tasks.metrics.generated import rouge
from tests.tasks.finetune import finetuning
from tests.tasks.finetune.conftest import Heed
from tests.tasks.finetune.finetuning import SENTENCES, german, table

ROWS = [(s, german(s)) for s in SENTENCES[:6]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return finetuning.models(tmp_path_factory.mktemp("models"))


def columns(told: str) -> list[str]:
    found: list[str] = json.loads(told)["columns"]
    return found


def test_known_columns_are_found_and_shown_with_the_first_row(
    heed: Heed, models: dict[str, Path], tmp_path: Path
) -> None:
    dialogues = table(tmp_path / "s.csv", ("id", "dialogue", "summary"), [(7, *r) for r in ROWS])
    call = ("eval", models["decoder"], dialogues, "--task", "summarize", "--length", 6)
    told = json.loads(heed(*call, "--json")[1])
    assert told["columns"] == ["dialogue", "summary"]
    assert told["rows"] == 6
    assert told["first"]["text"] == ROWS[0][0]
    assert told["first"]["expected"] == ROWS[0][1]
    code, out, _ = heed(*call)
    assert code == 0
    assert "dialogue, summary" in out
    assert f"expected  {ROWS[0][1]}" in out


def test_columns_can_be_named_or_counted(heed: Heed, models: dict[str, Path], tmp_path: Path) -> None:
    odd = table(tmp_path / "t.csv", ("left", "right", "note"), [(*r, "x") for r in ROWS])
    call = ("eval", models["both"], odd, "--length", 4, "--limit", 1, "--batch", 2, "--json")
    assert columns(heed(*call, "--text", "left", "--label", "right")[1]) == ["left", "right"]
    assert columns(heed(*call, "--text", "1", "--label", "0")[1]) == ["1", "0"]
    call = call[:-1]
    code, _, error = heed(*call)
    assert code == 3
    assert "which column of" in error
    assert "name it with --text NAME" in error
    assert "did you mean 'left'" in heed(*call, "--text", "lefty")[2]


def test_two_columns_without_names_are_read_from_the_first_line(
    heed: Heed, models: dict[str, Path], tmp_path: Path
) -> None:
    bare = tmp_path / "t.tsv"
    bare.write_text("\n".join("\t".join(row) for row in (("cats", "cats"), *ROWS)))
    told = json.loads(heed("eval", models["both"], bare, "--length", 4, "--json")[1])
    assert (told["rows"], told["first"]["text"]) == (7, "cats")
    assert "bleu" in told


def test_lines_of_two_files_belong_together_and_empty_ones_are_left_out(
    heed: Heed, models: dict[str, Path], tmp_path: Path
) -> None:
    for i, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("\n".join(["one" if i else "", *(row[i] for row in ROWS)]))
    told = json.loads(heed("eval", models["both"], "a.en", "a.de", "--length", 4, "--json")[1])
    assert (told["rows"], told["left_out"]) == (6, 1)
    assert "or two files of as many lines" in heed("eval", models["both"], "a.en")[2]
    assert "have no columns" in heed("eval", models["both"], "a.en", "a.de", "--text", "x")[2]


def test_a_decoder_is_asked_and_a_long_text_loses_its_end_only(models: dict[str, Path]) -> None:
    model = heedful.load(models["decoder"])
    task = heedful.pipeline("summarization", model)
    with pytest.warns(Truncated):
        short, long = (task.prompt(text, True, 8) for text in (SENTENCES[0], " ".join(SENTENCES)))
    ask = model.tokenizer.encode("\nTL;DR:", special=False)
    assert model.tokenizer.decode(short) == f"{SENTENCES[0]}\nTL;DR:"
    assert long[-len(ask) :] == ask == short[-len(ask) :]
    assert len(short) < len(long) <= model.config.context - 8 + 1  # the last token written is not read
    assert " ".join(SENTENCES).startswith(model.tokenizer.decode(long).removesuffix("\nTL;DR:"))


def test_the_score_is_that_of_what_generate_writes(models: dict[str, Path], tmp_path: Path) -> None:
    model = heedful.load(models["both"])
    rows = table(tmp_path / "s.csv", ("document", "summary"), ROWS)
    written = heedful.generate(model, [text for text, _ in ROWS], beams=4, max_tokens=5)
    told = evaluate(model, "summarize", EvaluationRequest([str(rows)], batch=2, length=5))
    assert {k: told[k] for k in ("rouge1", "rouge2", "rougeL")} == rouge([t for _, t in ROWS], written)


@pytest.mark.parametrize(("base", "task"), [("decoder", "translate"), ("encoder", "summarize")])
def test_a_model_that_cannot_write_is_refused(
    base: str, task: str, models: dict[str, Path], tmp_path: Path
) -> None:
    rows = table(tmp_path / "t.csv", ("source", "target"), ROWS)
    with pytest.raises(InputError) as caught:
        evaluate(heedful.load(models[base]), task, EvaluationRequest([str(rows)]))
    assert caught.value.message.startswith(f"{task} needs a model that writes")
    assert caught.value.hint is not None


@pytest.mark.parametrize(("base", "hint"), [("encoder", "none of its tasks"), ("both", "try task=translate")])
def test_perplexity_of_a_model_that_has_none_names_the_task_it_has(
    base: str, hint: str, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(SENTENCES))
    with pytest.raises(InputError) as caught:
        evaluate(heedful.load(models[base]), "perplexity", EvaluationRequest([str(tmp_path / "a.txt")]))
    assert hint in (caught.value.hint or "")


def test_an_unknown_task_is_answered_with_the_nearest(models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        evaluate(heedful.load(models["both"]), "translat", EvaluationRequest(["a.txt"]))
    assert "'translate'" in (caught.value.hint or "")


def test_completions_are_measured_by_their_perplexity(
    heed: Heed, models: dict[str, Path], tmp_path: Path
) -> None:
    rows = table(tmp_path / "p.csv", ("prompt", "completion"), ROWS)
    code, out, err = heed("eval", models["decoder"], rows, "--task", "complete", "--json")
    assert code == 0, err
    assert json.loads(out)["perplexity"] > 1


def test_a_text_that_is_cut_is_reported(heed: Heed, models: dict[str, Path], tmp_path: Path) -> None:
    rows = table(tmp_path / "s.csv", ("document", "summary"), [(" ".join(SENTENCES), "x")])
    code, _, err = heed("eval", models["decoder"], rows, "--task", "summarize", "--length", 4, "--json")
    assert code == 0
    assert "cut off" in err


def test_settings_of_batches_may_be_options(models: dict[str, Path], tmp_path: Path) -> None:
    rows = table(tmp_path / "s.csv", ("document", "summary"), ROWS)
    model = heedful.load(models["both"])
    found = [
        evaluate(model, "summarize", EvaluationRequest([str(rows)], length=4)),
        evaluate(model, "summarize", EvaluationRequest([str(rows)], options={"max_tokens": 4})),
    ]
    assert found[0] == found[1]
