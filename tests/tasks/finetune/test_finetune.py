"""heed finetune: from a tiny file to a checkpoint that loads and does its task."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import heedful
from heedful.data.batch import Batch
from heedful.models.base import LM
from heedful.tasks.examples import Examples
from heedful.tasks.finetune import FinetuneRequest, run
from heedful.tasks.finetune.data import read_and_split
from heedful.tasks.finetune.run import prepare_training
from heedful.train.fit import Step
from heedful.train.recipes.train import TrainingLoop
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


def taught(heed: Heed, *arguments: object) -> dict[str, Any]:
    """What a run that ends well tells as JSON."""
    code, out, err = heed("finetune", *arguments, "--out", "made", "--json", "-q")
    assert code == 0, (out, err)
    found: dict[str, Any] = json.loads(out)
    return found


def used(told: dict[str, Any]) -> Any:
    """The line that was printed, run."""
    return eval(told["use"], {"heedful": heedful})


def test_a_run_of_minutes_ends_with_its_time(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.tagged(tmp_path / "names.conll")
    told = taught(heed, bases["encoder"], file, "--lr", 5e-3, "--minutes", 0.02)
    assert told["settings"]["minutes"] == 0.02
    assert told["steps"] > 1
    code, _, err = heed("finetune", bases["encoder"], file, "--minutes", 1, "--epochs", 1)
    assert (code, "--epochs and --minutes both say how long to train" in err) == (3, True)


def test_classes_are_learnt_from_a_csv_file(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    told = taught(heed, bases["encoder"], toy.classes(tmp_path / "verbs.csv"), "--lr", 5e-3)
    assert told["task"] == "classify"
    assert told["scores"]["accuracy"] > 0.85
    model = heedful.load("made")
    assert model.hf_config["id2label"] == {"0": "likes", "1": "paints", "2": "sees"}
    assert used(told)("eve paints cats")[0]["label"] == "paints"


def test_two_texts_are_classified_together(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    pairs = [
        (a, b, "same" if a.split()[1] == b.split()[1] else "other")
        for a in toy.SENTENCES[:12]
        for b in toy.SENTENCES[::3]
    ]
    file = toy.table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "label"), pairs)
    told = taught(heed, bases["encoder"], file, "--lr", 3e-3, "--epochs", 1)
    assert told["data"]["read_as"] == {"text": "sentence1", "pair": "sentence2", "label": "label"}


def test_tags_are_learnt_from_a_conll_file(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    told = taught(heed, bases["encoder"], toy.tagged(tmp_path / "names.conll"), "--lr", 5e-3, "--epochs", 8)
    assert told["task"] == "tag"
    assert told["scores"]["f1"] > 0.9
    assert heedful.load("made").hf_config["id2label"] == {"0": "O", "1": "B-ACT", "2": "B-PER"}
    assert [(e["word"], e["entity"]) for e in used(told)("bob likes cats")] == [
        ("bob", "B-PER"),
        ("likes", "B-ACT"),
    ]


def test_tags_are_learnt_from_json_lines(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [
        {"tokens": s.split(), "tags": ["I-PER", "O", *("O" for _ in s.split()[2:])]} for s in toy.SENTENCES
    ]
    rows[3]["tags"] = ["O"]
    told = taught(
        heed, bases["encoder"], toy.lines(tmp_path / "names.jsonl", rows), "--lr", 5e-3, "--epochs", 8
    )
    assert told["scores"]["f1"] > 0.9
    assert told["data"]["left_out"] == ["1 row whose words and tags differ in number is left out: line 4"]


def test_answers_are_learnt_and_articles_stay_whole(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    told = taught(heed, bases["encoder"], toy.asked(tmp_path / "who.json"), "--lr", 5e-3, "--epochs", 10)
    assert told["task"] == "answer"
    assert told["valid_rows"] == 12  # one of the three articles
    assert told["scores"]["f1"] > 90
    assert used(told)(question="who ?", context="bob sees the sea")["answer"] == "bob"


def test_a_table_of_questions_will_do(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"context": s, "question": "who ?", "answer": s.split()[0]} for s in toy.SENTENCES]
    rows[5]["answer"] = "zoe"
    told = taught(
        heed, bases["encoder"], toy.lines(tmp_path / "who.jsonl", rows), "--lr", 5e-3, "--epochs", 8
    )
    assert told["scores"]["exact_match"] > 90
    assert "whose answer is not in the text" in told["data"]["left_out"][0]


def test_a_translation_is_learnt(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [(s, toy.german(s)) for s in toy.SENTENCES]
    file = toy.table(tmp_path / "texts.csv", ("en", "de"), rows)
    told = taught(heed, bases["both"], file, "--lr", 5e-3, "--epochs", 25)
    assert told["task"] == "translate"
    assert told["scores"]["bleu"] > 70
    assert told["scores"]["signature"].startswith("nrefs:1|")
    assert used(told)("bob sees cats")[0]["translation_text"] == "bert sieht cats"


@pytest.mark.parametrize("base", ["both", "decoder"])
def test_summaries_are_learnt_by_both_kinds_of_model(
    base: str, heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"document": s, "summary": " ".join(s.split()[:2])} for s in toy.SENTENCES]
    told = taught(heed, bases[base], toy.lines(tmp_path / "d.jsonl", rows), "--lr", 5e-3, "--epochs", 20)
    assert told["task"] == "summarize"
    assert told["scores"]["rougeL"] > 80
    model = heedful.load("made")
    if isinstance(model, LM):
        assert model.hf_config["task_prompt"] == "{text}\nTL;DR:"
    assert used(told)("eve likes the sea")[0]["summary_text"] == "eve likes"


def test_a_model_that_writes_too_much_is_scored_as_in_an_evaluation(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = lambda summary: [{"document": s, "summary": summary(s)} for s in toy.SENTENCES]
    train = toy.lines(tmp_path / "train.jsonl", rows(lambda s: f"{s} {s} {s}"))
    valid = toy.lines(tmp_path / "valid.jsonl", rows(lambda s: s.split()[0]))
    told = taught(heed, bases["decoder"], train, "--valid", valid, "--lr", 5e-3, "--epochs", 20)
    code, out, err = heed("eval", "made", valid, "--task", "summarize", "--json")
    assert code == 0, (out, err)
    assert told["scores"]["rougeL"] == pytest.approx(json.loads(out)["rougeL"])
    assert 0 < told["scores"]["rougeL"] < 50


def test_the_cosine_of_two_sentences_follows_the_scores(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    close = lambda a, b: 5.0 * (a.split()[0] == b.split()[0])
    rows = [(a, b, close(a, b)) for a in toy.SENTENCES[::5] for b in toy.SENTENCES[::2]]
    file = toy.table(tmp_path / "close.csv", ("sentence1", "sentence2", "score"), rows)
    told = taught(heed, bases["encoder"], file, "--lr", 3e-3, "--epochs", 6)
    assert told["task"] == "similarity"
    assert told["scores"]["spearman"] > 0.7
    model = heedful.load("made")
    assert model.pooling is not None
    a, b, c = heedful.embed(model, ["ann sees cats", "ann likes the sea", "bob sees cats"])
    assert a @ b > a @ c


def test_plain_text_is_gone_on_with(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_text("\n".join(toy.SENTENCES * 4), encoding="utf-8")
    told = taught(heed, bases["decoder"], file, "--lr", 3e-3, "--epochs", 8, "--length", 32)
    assert told["task"] == "complete"
    assert told["scores"]["perplexity"] < 3
    assert told["data"]["characters"] == len("\n".join(toy.SENTENCES * 4))


def test_prompts_are_completed(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"prompt": s.rsplit(" ", 1)[0], "completion": "b c"} for s in toy.SENTENCES]
    told = taught(heed, bases["decoder"], toy.lines(tmp_path / "p.jsonl", rows), "--lr", 5e-3, "--epochs", 8)
    assert told["scores"]["perplexity"] < 1.2
    assert used(told)("eve sees a red")[0]["generated_text"] == "eve sees a red b c"


def test_an_adapter_is_written_beside_its_weights(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.classes(tmp_path / "verbs.csv")
    told = taught(heed, bases["encoder"], file, "--lora", "--lr", 1e-2)
    assert told["learning"] < told["parameters"] / 2
    assert told["scores"]["accuracy"] > 0.85
    assert Path("made/adapter.safetensors").is_file()
    model = heedful.load("made")
    logits = model(torch.tensor([model.tokenizer.encode("ann sees the sea")]))
    assert int(logits.argmax()) == 2


def test_what_was_taught_can_be_taught_again(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.classes(tmp_path / "verbs.csv")
    taught(heed, bases["encoder"], file, "--lora", "--lr", 1e-2)
    code, out, err = heed("finetune", "made", file, "--out", "again", "--epochs", 1, "--lr", 1e-6)
    assert code == 0
    assert "with its own head of 3 classes" in err
    assert "without training: accuracy" in err
    assert float(out.split("accuracy ")[1].split()[0]) > 0.85


def test_a_tagger_that_is_taught_again_keeps_its_head(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.tagged(tmp_path / "names.conll")
    first = taught(heed, bases["encoder"], file, "--lr", 5e-3, "--epochs", 8)
    code, _, err = heed("finetune", "made", file, "--out", "again", "--epochs", 1, "--lr", 1e-6)
    assert code == 0, err
    assert "with its own head of" in err
    assert f"without training: f1 {first['scores']['f1']:.4f}" in err, err


def test_a_new_head_has_nothing_of_an_earlier_one_with_as_many_labels(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    taught(heed, bases["encoder"], toy.classes(tmp_path / "verbs.csv"), "--lr", 5e-3, "--epochs", 1)
    model = heedful.load("made")
    new = heedful.load("made", head="classify", labels=["x", "y", "z"], seed=1)
    for name, tensor in new.head.label.state_dict().items():
        assert not tensor.any() or not torch.equal(tensor, model.head.label.state_dict()[name])
    assert torch.equal(new.embed.table, model.embed.table)


def test_the_same_seed_gives_the_same_weights(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.classes(tmp_path / "verbs.csv")
    for out in ("one", "two"):
        heed("finetune", bases["encoder"], file, "--out", out, "--epochs", 1, "-q")
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_the_last_line_is_python_and_the_rest_is_on_stderr(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    code, out, err = heed("finetune", bases["encoder"], toy.classes(tmp_path / "verbs.csv"), "--epochs", 1)
    assert code == 0
    assert out.splitlines()[-1] == 'heedful.pipeline("text-classification", model="verbs-encoder")'
    assert "accuracy" in out
    assert 'use the new model with: heed classify "…" --model verbs-encoder' in err
    assert "labels: sees (12), likes (12), paints (12)" in err
    assert "columns: text = 'text', label = 'label'" in err
    assert "validation: 7 rows held out" in err or "validation: 6 rows held out" in err
    assert Path("verbs-encoder/config.json").is_file()


def test_the_card_says_what_was_done(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    import hashlib

    import yaml

    file = toy.classes(tmp_path / "verbs.csv")
    told = taught(heed, bases["encoder"], file, "--epochs", 1, "--seed", 3)
    _, head, body = Path("made/README.md").read_text(encoding="utf-8").split("---\n", 2)
    said = yaml.safe_load(head)
    assert (said["license"], said["pipeline_tag"]) == ("unknown", "text-classification")
    assert said["base_model"] == "encoder"
    assert str(tmp_path) not in body
    found = said["model-index"][0]["results"][0]["metrics"]
    assert found[0]["value"] == round(told["scores"]["accuracy"], 4)
    assert hashlib.sha256(file.read_bytes()).hexdigest() in body
    assert "--epochs 1.0 --seed 3" in body
    assert "`likes`, `paints`, `sees`" in body


def test_an_interrupted_run_leaves_its_last_measured_weights(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TrainingLoop.evaluate

    def stop(loop: TrainingLoop, step: Step | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        whole(loop, step)

    monkeypatch.setattr(TrainingLoop, "evaluate", stop)
    file = toy.classes(tmp_path / "v.csv")
    code, _, err = heed("finetune", bases["encoder"], file, "--out", "made", "--full")
    assert code == 130
    assert "the weights of step 5 are in made" in err
    assert heedful.load("made").config.labels == 3


def test_a_run_that_diverges_leaves_nothing(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.classes(tmp_path / "v.csv")
    code, _, err = heed("finetune", bases["encoder"], file, "--out", "made", "--lr", 1e30, "-q")
    assert code == 5
    assert "Try a lower lr" in err
    assert [p.name for p in tmp_path.iterdir()] == ["v.csv"]


def test_an_interrupted_run_that_was_never_measured_says_so(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingLoop, "count", lambda loop, step: os.kill(os.getpid(), signal.SIGINT))
    file = toy.classes(tmp_path / "v.csv")
    code, _, err = heed("finetune", bases["encoder"], file, "--out", "made", "--full", "-q")
    assert code == 130
    assert "interrupted at step 1" in err
    assert "its weights, not measured yet, are in made" in err


def test_the_line_works_whatever_the_folder_is_called(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.classes(tmp_path / "v.csv")
    _, out, _ = heed("finetune", bases["encoder"], file, "--out", 'my "first"', "--epochs", 1, "-q")
    assert eval(out.splitlines()[-1], {"heedful": heedful})("ann sees cats")[0]["label"]


def test_a_place_that_cannot_be_written_is_told_before_training(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingLoop, "run", None)
    file = toy.classes(tmp_path / "v.csv")
    code, _, err = heed("finetune", bases["encoder"], file, "--out", "v.csv/made", "-q")
    assert code == 3
    assert "would lie in" in err


def test_a_full_disk_is_one_line_and_leaves_nothing(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    import resource

    file = toy.classes(tmp_path / "v.csv")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # no file may grow beyond it
    try:
        code, _, err = heed("finetune", bases["encoder"], file, "--out", "made", "--epochs", 1, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    assert "could not write made" in err
    assert "nothing is left there" in err
    assert [p.name for p in tmp_path.iterdir()] == ["v.csv"]


def test_many_classes_learn_faster_and_longer(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [(s, s.split()[0] + s.split()[-1]) for s in toy.SENTENCES * 8]  # 24 of each
    file = toy.table(tmp_path / "many.csv", ("text", "label"), rows)
    told = taught(heed, bases["encoder"], file, "--epochs", 1)
    assert len(told["data"]["labels"]) == 12
    assert told["settings"]["lr"] == 2e-4
    code, out, _ = heed(
        "finetune", bases["encoder"], toy.classes(tmp_path / "few.csv"), "--epochs", 1, "--json"
    )
    assert code == 0
    assert json.loads(out)["settings"]["lr"] == 5e-5


def test_sentence_vectors_are_measured_on_pairs_with_scores(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        (a, b, float(a.split()[0] == b.split()[0])) for a in toy.SENTENCES[::5] for b in toy.SENTENCES[::2]
    ]
    file = toy.table(tmp_path / "close.csv", ("sentence1", "sentence2", "score"), rows)
    taught(heed, bases["encoder"], file, "--epochs", 1)
    code, out, err = heed("eval", "made", file, "--json", "--fail-under", 2)
    assert (code, err) == (1, "")
    told = json.loads(out)  # one object, also where the score is too low
    assert (told["task"], told["rows"], told["ok"]) == ("similarity", len(rows), False)
    assert -1 <= told["spearman"] <= 1


def test_what_uses_a_result_is_a_command() -> None:
    from heedful.cli import COMMANDS
    from heedful.cli.finetune import USED_BY
    from heedful.tasks.registry import trainable_tasks

    assert set(USED_BY) == set(trainable_tasks())
    assert {line.split()[0] for line in USED_BY.values()} <= set(COMMANDS)


def test_before_training_it_says_what_guessing_gives_and_how_long_it_will_take(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    rows = [(s, "rare" if i % 5 == 0 else "usual") for i, s in enumerate(toy.SENTENCES * 8)]
    toy.table(file, ("text", "label"), rows)
    options = ("--full", "--no-balance", "--epochs", 4, "--batch", 8)
    code, _, err = heed("finetune", bases["encoder"], file, *options, "--out", tmp_path / "out")
    assert code == 0
    assert re.search(r"without training: accuracy 0\.[678]\d+ by always saying 'usual'", err)
    assert re.search(r"time: about \d\d:\d\d \(\d+ steps of [\d.]+ m?s, 4 evaluations of [\d.]+ m?s\)", err)


def test_the_base_alone_is_scored_by_its_own_vectors(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BASE_SHARE", 1.0)
    file, out = toy.classes(tmp_path / "rows.csv"), tmp_path / "out"
    _, _, err = heed("finetune", bases["encoder"], file, "--full", "--epochs", 2, "--out", out)
    found = re.search(
        r"accuracy [\d.]+ by always saying '\w+', ([\d.]+) by a linear head on the model's own", err
    )
    assert found
    assert float(found[1]) > 0.5  # of three classes: the vectors tell the verb
    pairs = [(name, s, int(s.startswith(name))) for name in toy.NAMES for s in toy.SENTENCES]
    table = toy.table(tmp_path / "pairs.csv", ("query", "document", "relevance"), pairs)
    code, _, err = heed("finetune", bases["encoder"], table, "--epochs", 1, "--out", tmp_path / "ranks")
    assert code == 0, err
    assert re.search(r"without training: ndcg [\d.]+ by the cosine of the model's own vectors", err)


def test_the_foretold_steps_are_those_of_training_and_leave_no_trace(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = FinetuneRequest(str(bases["encoder"]), str(toy.classes(tmp_path / "rows.csv")), lora=False)
    split = read_and_split(request, print)
    setup = prepare_training(request, split, heedful.load(bases["encoder"]), print)
    before = {name: p.detach().clone() for name, p in setup.task.model.named_parameters()}
    found = run.predict_duration(setup, split.valid)
    assert found.steps == setup.config.steps
    assert found.evaluations == -(-found.steps // len(setup.batches))
    assert found.seconds == pytest.approx(
        found.steps * found.step_seconds + found.evaluations * found.evaluation_seconds
    )
    assert all(torch.equal(p, before[name]) for name, p in setup.task.model.named_parameters())
    picked: list[Batch] = []

    def keep_batches(model: object, purpose: object, batches: Iterable[Batch], *more: object) -> list[float]:
        picked.extend(batches)
        return []

    monkeypatch.setattr(run, "measure_steps", keep_batches)
    run.time_steps(setup, [3, 1])
    assert [batch.tokens.tolist() for batch in picked] == [setup.batches[k].tokens.tolist() for k in (3, 1)]


@pytest.mark.parametrize(("device", "foretold"), [("cpu", 5.0), ("cuda", 1.0)])
def test_what_a_gpu_does_once_for_a_shape_is_not_foretold_of_every_step(
    device: str, foretold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_is_slow(setup: object, steps: list[int]) -> list[float]:
        _warm, *measured = steps
        return [9.0, *(1.0 if k in measured[:i] else 5.0 for i, k in enumerate(measured))]

    monkeypatch.setattr(run, "time_steps", first_is_slow)
    monkeypatch.setattr(run, "time_evaluation", lambda setup, valid: 0.0)
    setup = SimpleNamespace(
        config=SimpleNamespace(steps=100, minutes=None),
        batches=[Batch(tokens=torch.zeros(2, 8, dtype=torch.long))] * 100,
        task=SimpleNamespace(model=SimpleNamespace(device=torch.device(device))), has_head=False,
        steps_between_evaluations=50,
    )  # fmt: skip
    assert run.predict_duration(setup, Examples([], [])).step_seconds == foretold  # type: ignore[arg-type]
