"""`heed train`: from a file to a model, stopped and gone on with, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import heedful
from heedful.data.readers import split_documents, texts
from heedful.models import FAMILIES, find_config
from heedful.train.checkpoint import newest
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import Step
from heedful.train.recipes import folder as run_files
from heedful.train.recipes.folder import RunFiles, read_metrics
from heedful.train.recipes.prepare import mark_line_ends, split_train_validation
from heedful.train.recipes.recipes import Evaluation, Recipe, ResolvedSettings, load_recipes, resolve_settings
from heedful.train.recipes.train import limit_threads, run_training
from tests.tasks.finetune.conftest import Heed
from tests.train import toys

TINY = (
    "--set", "model.dim=16", "--set", "model.layers=1", "--set", "model.heads=2", "--length", 16,
    "--batch", 4, "--set", "evaluate.sample=8", "--set", "evaluate.log=2",
)  # fmt: skip
CHARS = ("train", "shakespeare-char-cpu")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_text_file_becomes_a_model_that_load_opens(heed: Heed, files: dict[str, Path]) -> None:
    code, out, err = heed(*CHARS, files["text"], *TINY, "--steps", 8, "--set", "evaluate.every=4")
    assert code == 0
    path = Path(out.splitlines()[-1])
    model = heedful.load(path)
    assert "loss" in model.tokenizer.decode(model.tokenizer.encode("loss"))
    assert isinstance(heedful.generate(model, "ann ", max_tokens=4), str)
    run = path.parents[1]
    there = {p.name for p in run.iterdir()}
    wanted = {"config.yaml", "metrics.jsonl", "checkpoints", "best.json", "last.json", "env.json", "log.txt"}
    assert wanted | {"samples.jsonl", "tokenizer"} == there
    assert "step=8 steps=8 loss=" in err
    assert yaml.safe_load((run / "config.yaml").read_text())["files"] == [str(files["text"])]


@pytest.mark.parametrize("recipe", ["shakespeare-char-cpu", "char-rnn", "gpt2"])
def test_the_word_hello_alone_can_be_trained(recipe: str, heed: Heed) -> None:
    Path("hello.txt").write_text("hello")
    sizes = TINY[:-4] if recipe != "char-rnn" else TINY[:4]
    code, out, err = heed("train", recipe, "hello.txt", *sizes, "--steps", 2)
    assert code == 0
    assert heedful.load(out.splitlines()[-1]).tokenizer is not None
    if recipe != "gpt2":  # whose bytes and end of text are enough to hold one out
        assert "note: hello.txt is too short to hold 10% out" in err
        assert "--valid FILE" in err


def test_a_translator_reports_bleu_and_writes_what_it_translates(
    heed: Heed, files: dict[str, Path], tmp_path: Path
) -> None:
    assert load_recipes()["transformer-multi30k"].evaluate.patience is not None  # it stops early by default
    sets = ("model.dim=16", "model.layers=1", "model.heads=2", "tokenizer.vocab=300", "evaluate.every=2")
    changes = [word for one in sets for word in ("--set", one)]
    pairs = (files["source"], files["target"])
    code, _, err = heed("train", "transformer-multi30k", *pairs, *changes, "--steps", 2)
    assert code == 0
    assert "step 2: validation loss" in err
    assert "bleu" in err
    run = tmp_path / "runs" / "transformer-multi30k"
    assert any("eval/bleu" in line for line in lines(run / "metrics.jsonl"))
    samples = [line["text"] for line in lines(run / "samples.jsonl")]
    assert len(samples) == 4
    assert all(" → " in text and "(reference: " in text for text in samples)


def test_a_text_of_one_letter_is_told_what_it_lacks(heed: Heed) -> None:
    Path("one.txt").write_text("h")
    code, _, err = heed(*CHARS, "one.txt", *TINY, "--steps", 2)
    assert code == 3
    assert "one.txt contains nothing to train on\nhint: a row takes two tokens at least" in err


def test_metrics_have_the_names_that_others_read(heed: Heed, files: dict[str, Path]) -> None:
    heed(*CHARS, files["text"], *TINY, "--steps", 4, "--folder", "r")
    trained = [x for x in lines(Path("r/metrics.jsonl")) if "train/loss" in x]
    names = {"loss", "learning_rate", "grad_norm", "epoch", "global_step", "tokens_per_second"}
    names |= {"tokens", "seconds"}  # over which the studio draws curves
    assert {f"train/{n}" for n in names} == set(trained[-1])
    evaluated = [x for x in lines(Path("r/metrics.jsonl")) if "eval/loss" in x]
    assert {"train/global_step", "eval/loss", "eval/perplexity"} == set(evaluated[-1])
    assert [x["train/global_step"] for x in trained] == [2, 4]


def test_json_is_one_object_and_nothing_else(heed: Heed, files: dict[str, Path]) -> None:
    _, out, _ = heed(*CHARS, files["text"], *TINY, "--steps", 2, "--json", "-q")
    told = json.loads(out)
    assert told["schema"] == "heed/1"
    assert told["steps"] == 2
    assert Path(told["checkpoint"]).is_dir()


def test_a_dry_run_measures_and_writes_nothing(heed: Heed, files: dict[str, Path]) -> None:
    code, out, _ = heed(*CHARS, files["text"], *TINY, "--dry-run", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["parameters"] > 1000
    assert told["memory_bytes"] > 4 * told["weights_bytes"]
    averaged = json.loads(
        heed(*CHARS, files["text"], *TINY, "--set", "train.ema=0.9", "--dry-run", "--json")[1]
    )
    assert (
        averaged["memory_bytes"] - told["memory_bytes"] == averaged["average_bytes"] == told["weights_bytes"]
    )
    assert told["batch"] == [4, 16]
    assert not Path("runs").exists()


def test_a_resumed_run_ends_as_one_that_was_never_stopped(heed: Heed, files: dict[str, Path]) -> None:
    given = (*TINY, "--set", "train.schedule=constant", "--set", "evaluate.every=2", "-q")
    heed(*CHARS, files["text"], *given, "--steps", 6, "--folder", "whole")
    heed(*CHARS, files["text"], *given, "--steps", 3, "--folder", "parts")
    assert (
        heed(*CHARS, files["text"], *given, "--steps", 6, "--folder", "parts")[0] == 3
    )  # it has to be asked for
    assert heed(*CHARS, files["text"], *given, "--steps", 6, "--folder", "parts", "--resume")[0] == 0
    for name in ("model.safetensors", "optimiser.safetensors"):
        one, two = (Path(f) / "checkpoints" / "step-000006" / name for f in ("whole", "parts"))
        assert one.read_bytes() == two.read_bytes()


def test_a_run_is_resumed_and_extended_by_its_folder_alone_from_anywhere(
    heed: Heed, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("corpus.txt").write_bytes(files["text"].read_bytes())
    assert heed(*CHARS, "corpus.txt", *TINY, "--steps", 3, "-q")[0] == 0
    run = tmp_path / "runs" / "shakespeare-char-cpu"
    assert heed(*CHARS, "--resume", "--steps", 5, "-q")[0] == 0  # neither the file nor the settings again
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, _, err = heed("train", run, "--resume", "--steps", 7)
    assert code == 0
    assert "extended from 5 steps to 7 steps; its learning rate rises from" in err
    assert newest(run) == run / "checkpoints" / "step-000007"
    assert heed("train", run / "config.yaml", "--folder", "again", "--steps", 2, "-q")[0] == 0
    code, _, err = heed("train", run, "--steps", 9)
    assert (code, "--resume continues it" in err) == (3, True)
    code, _, err = heed("train", "gpt2", "--resume", "--folder", run)
    assert (code, "holds a run of 'shakespeare-char-cpu' and not of 'gpt2'" in err) == (3, True)


def test_a_run_of_minutes_is_ended_by_the_clock(heed: Heed, files: dict[str, Path]) -> None:
    code, out, _ = heed(*CHARS, files["text"], *TINY, "--minutes", 0.02, "--json", "-q")
    assert (code, json.loads(out)["steps"] > 1) == (0, True)
    code, _, err = heed(*CHARS, files["text"], *TINY, "--minutes", 1, "--steps", 5)
    assert (code, "steps and minutes both say how long to train" in err) == (3, True)


def test_lines_of_lost_steps_are_written_once(heed: Heed, files: dict[str, Path]) -> None:
    given = (*CHARS, files["text"], *TINY, "--set", "train.schedule=constant", "--folder", "r", "-q")
    heed(*given, "--steps", 4)
    with Path("r/metrics.jsonl").open("a") as file:
        file.write('{"train/global_step": 6, "train/loss": 1.0}\n{"train/global')
    heed(*given, "--steps", 8, "--resume")
    trained = [x for x in lines(Path("r/metrics.jsonl")) if "train/loss" in x]
    assert [x["train/global_step"] for x in trained] == [2, 4, 6, 8]
    tokens, seconds = ([x[f"train/{name}"] for x in trained] for name in ("tokens", "seconds"))
    assert tokens == [n * tokens[0] for n in (1, 2, 3, 4)]  # those of the run before are counted on
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_with_its_code(number: int, heed: Heed, files: dict[str, Path]) -> None:
    folder = Path("r").resolve()

    def later() -> None:
        while not (folder / "metrics.jsonl").is_file():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=later).start()
    code, out, err = heed(*CHARS, files["text"], *TINY, "--steps", 100_000, "--folder", folder)
    assert (code, out) == (128 + number, "")
    found = next((folder / "checkpoints").iterdir())
    assert f"error: interrupted at step {int(found.name[5:])}" in err
    assert f"--resume continues from {found}" in err
    assert heedful.load(found) is not None


def test_a_run_that_diverges_exits_5(heed: Heed, files: dict[str, Path]) -> None:
    code, _, err = heed(
        *CHARS,
        files["text"],
        *TINY,
        "--steps",
        40,
        "--lr",
        1e30,
        "--set",
        "train.clip=null",
        "--set",
        "train.warmup=0",
    )
    assert code == 5
    assert "no checkpoint was written yet" in err


def test_a_run_stops_when_nothing_gets_better(heed: Heed, files: dict[str, Path]) -> None:
    given = ("--set", "evaluate.every=1", "--set", "evaluate.patience=2", "--lr", 10.0, "--steps", 200)
    code, out, _ = heed(*CHARS, files["text"], *TINY, *given, "--json", "-q")
    told = json.loads(out)
    assert code == 0
    assert told["stopped_early"]
    assert told["steps"] == told["best_step"] + 2
    assert told["checkpoint"].endswith(f"step-{told['best_step']:06d}")


def test_an_evaluation_reads_no_more_held_out_batches_than_were_trained_on(
    heed: Heed, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int | None] = []
    whole = Step.evaluate

    def noted(step: Step, batches: Any, most: int | None = None) -> dict[str, float]:
        read.append(most)
        return whole(step, batches, most)

    monkeypatch.setattr(Step, "evaluate", noted)
    run = (*CHARS, files["text"], *TINY, "--steps", 2, "--set", "data.holdout=0.5")
    _, _, err = heed(*run, "--folder", "a")
    assert "evaluations read the first 2 of" in err
    heed(*run, "--folder", "b", "--set", "evaluate.batches=3")
    heed(*run, "--folder", "c", "--valid", files["text"])
    assert read == [2, 3, None]


def test_a_small_recurrence_is_trained_by_one_thread_and_others_by_all() -> None:
    torch.set_num_threads(2)
    for model, threads in ((toys.tiny("lstm"), 1), (toys.tiny("gpt2"), 2)):
        with limit_threads(model):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2


def small(recipe: Recipe, files: dict[str, Path]) -> ResolvedSettings:
    """A recipe with its family's smallest model, for a few steps."""
    tiny = FAMILIES[find_config(recipe.family)[0].name].tiny
    model = {n: getattr(tiny, n) for n in tiny.__dict__["given"] if n not in ("vocab", "source_vocab")}
    kept = {n: recipe.model[n] for n in ("head",) if n in recipe.model}
    used = "pairs" if recipe.objective == "masked_and_next" else "text"
    data = dict(recipe.data, length=32, batch=4)
    sources = ("source", "target") if recipe.objective == "translate" else (used,)
    data |= {"length": 64, "max_tokens": 512} if recipe.objective == "translate" else {}
    room = 600 if recipe.tokenizer.kind == "bpe" else 200
    changed = replace(
        recipe, model=model | kept, data=data, tokenizer=replace(recipe.tokenizer, vocab=room),
        train=replace(recipe.train, steps=2, warmup=0, save_every=None, dtype="float32", graph=False),
        evaluate=Evaluation(every=2, batches=2, sample=4), device="cpu",
    )  # fmt: skip
    return ResolvedSettings(
        "small", changed, tuple(str(files[s]) for s in sources), tuple(str(files[s]) for s in sources)
    )


@pytest.mark.parametrize("name", [n for n in load_recipes() if n != "distil"])
def test_every_recipe_trains(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    result = run_training(small(load_recipes()[name], files), tmp_path / "r", quiet=True)
    assert result.steps == 2
    assert result.scores["loss"] > 0
    model = heedful.load(result.checkpoint)
    assert model.family.name == find_config(load_recipes()[name].family)[0].name
    assert model.tokenizer is not None


def test_a_student_learns_from_a_teacher(files: dict[str, Path], tmp_path: Path) -> None:
    bert = replace(
        load_recipes()["bert"], objective="masked", model=dict(load_recipes()["bert"].model, head="mlm")
    )
    chosen = small(bert, files)
    run_training(chosen, tmp_path / "teacher", quiet=True)
    student = small(
        replace(load_recipes()["distil"], teacher=str(tmp_path / "teacher")), files
    )  # a run's folder
    result = run_training(student, tmp_path / "student", quiet=True)
    assert heedful.load(result.checkpoint).family.name == "distilbert"
    assert {"soft", "hard", "cosine"} <= set(result.scores)


def test_a_run_begins_with_the_model_of_another(files: dict[str, Path], tmp_path: Path) -> None:
    chosen = small(load_recipes()["gpt2"], files)
    run_training(chosen, tmp_path / "first", quiet=True)
    going_on = replace(chosen, recipe=replace(chosen.recipe, start=str(tmp_path / "first")))
    assert run_training(going_on, tmp_path / "second", quiet=True).steps == 2


@pytest.mark.parametrize(
    ("objective", "file", "metric"),
    [
        ("classify", "classes.tsv", "accuracy"),
        ("regress", "scores.tsv", "spearman"),
        ("tag", "tags.conll", "f1"),
    ],
)
def test_a_task_is_trained_and_measured(
    objective: str, file: str, metric: str, files: dict[str, Path], tmp_path: Path, heed: Heed
) -> None:
    recipe = replace(
        small(load_recipes()["bert"], files).recipe,
        objective=objective,
        data={"length": 32, "batch": 4, "holdout": 0.25},
    )
    tiny = {n: v for n, v in recipe.model.items() if n != "head"}
    result = run_training(
        ResolvedSettings(objective, replace(recipe, model=tiny), (str(files[file]),)),
        tmp_path / "r",
        quiet=True,
    )
    code, out, _ = heed("eval", tmp_path / "r", files[file], "--json")
    told = json.loads(out)
    assert code == 0
    assert told["task"] == objective
    assert metric in told
    assert result.steps == 2
    assert heed("eval", tmp_path / "r", files[file], "--fail-under", 2)[0] == 1


def test_the_end_of_a_text_is_held_out() -> None:
    whole = texts(["abcdefgh", "ij", "klmnopqrst"])
    first, last = ("|".join("".join(d) for d in part) for part in split_documents(whole, 0.25))
    assert (first, last.strip("|")) == ("abcdefgh|ij|klmno", "pqrst")


def test_lines_end_with_a_mark() -> None:
    assert ["".join(d) for d in mark_line_ends(texts(["a b\n\nc"]), "<eos>")] == [
        "a b <eos>\n <eos>\nc <eos>\n"
    ]


def test_held_out_rows_are_no_training_rows(files: dict[str, Path]) -> None:
    batches = toys.BATCHES["classify"](files, batch=4, seed=0)
    first, last = split_train_validation(batches, 0.25, seed=1)
    seen = [{tuple(row) for b in part.once() for row in b.tokens.tolist()} for part in (first, last)]
    assert first.row_count + last.row_count == batches.row_count
    assert first.row_count == 27
    assert first.fingerprint != last.fingerprint
    assert not {tuple(i for i in r if i) for r in seen[0]} & {tuple(i for i in r if i) for r in seen[1]}


def test_an_evaluation_is_the_mean_over_all_answers(files: dict[str, Path]) -> None:
    from heedful.train.fit import fit

    model = toys.tiny("gpt2", dropout=0.0)
    one, many = (toys.batches_of("next_token", files, batch=b) for b in (64, 3))
    step: Any = next(iter(fit(model, "next_token", many, TrainConfig(steps=1), Processes())))
    assert step.evaluate(one)["loss"] == pytest.approx(step.evaluate(many)["loss"], rel=1e-5)
    assert model.training


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_curves_of_a_run_that_is_writing_leave_out_half_a_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"train/global_step": 1, "train/loss": 2.0}\n{"train/glob')
    assert read_metrics(tmp_path) == [{"train/global_step": 1, "train/loss": 2.0}]


def test_event_files_are_complete_when_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    close = lambda: written.append("closed")
    board = SimpleNamespace(add_scalar=lambda *values: written.append(values), close=close)
    monkeypatch.setattr(run_files, "tensorboard_writer", lambda path: board)
    files = RunFiles.open(tmp_path, resolve_settings("char-rnn"), False, True)
    files.metrics({run_files.STEP: 1, "train/loss": 2.0})
    files.close()
    assert written == [("train/loss", 2.0, 1), "closed"]
