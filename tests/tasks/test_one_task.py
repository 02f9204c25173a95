"""One class is a task: what is scored is what the pipeline answers, and a new task is a class and a line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import heedful
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.classification import text_batches
from heedful.data.input_files import read_input_file
from heedful.tasks.examples import TEXT, Examples, Role
from heedful.tasks.generation import ScoredByPerplexity
from heedful.tasks.metrics.scores import correlation_scores
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs
from heedful.tasks.registry import TASKS, TaskEntry, bind_task, trainable_tasks
from heedful.tasks.task import Task, TrainableTask, TrainingDefaults
from tests import image_toy
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed
from tests.tasks.finetune.conftest import heed as heed

COLUMNS = {"similarity": ("sentence1", "sentence2", "score"), "translate": ("en", "de"),
           "summarize": ("document", "summary"), "rerank": ("query", "document", "relevance"),
           "regress": ("text", "price")}  # fmt: skip
ROWS = [(s, toy.german(s)) for s in toy.SENTENCES[:6]]


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


def example_file(command: str, folder: Path) -> Path:
    if command == "classify":
        return toy.classes(folder / "c.csv")
    if command == "tag":
        return toy.tagged(folder / "t.conll")
    if command == "answer":
        return toy.asked(folder / "q.json")
    if command == "read":
        return image_toy.table(folder)
    if command == "classify-images":
        return image_toy.photos(folder / "photos", 4)
    rows: list[tuple[object, ...]] = list(ROWS)
    if command == "similarity":
        rows = [(a, b, i) for i, (a, b) in enumerate(ROWS)]
    if command == "regress":
        rows = [(a, i / 2) for i, (a, _) in enumerate(ROWS)]
    if command == "rerank":  # two queries, each with texts that answer it and others
        rows = [(ROWS[i % 2][0], b, i // 2 % 2) for i, (_, b) in enumerate(ROWS)]
    return toy.table(folder / "p.csv", COLUMNS[command], rows)


@pytest.fixture
def taught(
    request: pytest.FixtureRequest, bases: dict[str, Path], tmp_path: Path
) -> tuple[TrainableTask, Examples]:
    """A task bound to a model that has its head, and examples of it."""
    kind = trainable_tasks()[request.param]
    examples = kind.read_examples(read_input_file(str(example_file(request.param, tmp_path))), {})
    of_images = {"read": image_toy.reader, "classify-images": image_toy.vit}
    if request.param in of_images:
        base = of_images[request.param](tmp_path)
    else:
        base = heedful.load(bases["both" if kind.by_loss else "encoder"])
    return bind_task(kind, kind.attach_head(base, examples, 0)[0]), examples


ANSWERED = sorted(n for n, kind in trainable_tasks().items() if not issubclass(kind, ScoredByPerplexity))


# A reader that has learned nothing writes until its context is full.
@pytest.mark.filterwarnings("ignore::heedful.tasks.model_inputs.Truncated")
@pytest.mark.parametrize("taught", ANSWERED, indirect=True)
def test_what_is_scored_is_what_the_pipeline_answers(
    taught: tuple[TrainableTask, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, examples = taught
    kind, answered, scored = type(task), list[Any](), list[Any]()
    predict, compare = kind.predict, kind.compare

    def spy_predict(self: TrainableTask, *inputs: Any, **options: Any) -> Iterator[Any]:
        answered.extend(predict(self, *inputs, **options))
        return iter(answered)

    def spy_compare(self: TrainableTask, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        scored.extend(answers)
        return compare(self, examples, answers)

    spy_predict.__signature__ = inspect.signature(predict)  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "predict", spy_predict)
    monkeypatch.setattr(kind, "compare", spy_compare)
    scores = task.score(examples, batch=4, length=32, max_tokens=32)
    assert len(scored) == len(answered) == len(examples)
    assert all(a is b for a, b in zip(answered, scored, strict=True))
    assert scores


@pytest.mark.filterwarnings("ignore::heedful.tasks.model_inputs.Truncated")
@pytest.mark.parametrize("taught", sorted({*ANSWERED} - {"tag"}), indirect=True)  # that one finds spans
def test_rows_are_predicted_with_the_settings_that_are_scored(
    taught: tuple[TrainableTask, Examples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, kind = taught[0], type(taught[0])
    (tmp_path / "again").mkdir()
    file = str(example_file(task.command, tmp_path / "again"))
    calls: list[dict[str, Any]] = []
    predict = kind.predict

    def spy(self: TrainableTask, *inputs: Any, **options: Any) -> Any:
        calls.append(options)
        return predict(self, *inputs, **options)

    spy.__signature__ = inspect.signature(predict)  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "predict", spy)
    heedful.evaluate(task.model, file, task=task.command, batch=4, length=16)
    heedful.predict(task.model, file, task=task.command, batch=4, length=16, max_tokens=16)
    assert calls[0] == calls[1]


def test_every_name_of_a_task_is_one_class() -> None:
    names = [name for task, entry in TASKS.items() for name in (task, *entry.aliases)]
    assert len(names) == len(set(names))
    kinds = [entry.load() for entry in TASKS.values()]
    assert len(set(kinds)) == len(kinds)
    assert all(issubclass(kind, Task) for kind in kinds)
    assert len(trainable_tasks()) == sum(issubclass(kind, TrainableTask) for kind in kinds)


class TextRating(TrainableTask):
    """W pool(x) + b, a number for a text."""

    heads, needs = ("classify",), "a head that gives one number"
    command, head, objective, metric = "rate", "classify", "regress", "spearman"
    training = TrainingDefaults(lr=1e-4, lora_lr=1e-3, epochs=4, length=128)
    roles: ClassVar[Mapping[str, Role]] = {
        "text": Role("--text", TEXT), "rating": Role("--label", ("rating", "stars")),
    }  # fmt: skip

    def predict(self, inputs: Any, *, batch_size: int = BATCH_SIZE) -> Any:
        def rate(texts: list[str]) -> list[float]:
            found = self.forward(self.tokenize(texts, truncation=True), batch_size=batch_size)
            return [float(number) for number in found]

        return map_inputs(inputs, rate, batch_size)

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...]:
        return ("rating",)

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        counts = np.array([float(row[-1]) for row in examples.items], np.float32)
        tokens = examples.encode(self.tokenizer, options.length, 1)
        return text_batches("regress", tokens, 1, self.tokenizer, options, "score", counts)

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        return correlation_scores([float(row[1]) for row in examples.items], answers)


def test_a_new_task_is_one_class_and_one_line_of_the_registry(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "text-rating", TaskEntry(f"{__name__}:TextRating", ""))
    stars = {"sees": 1, "likes": 5, "paints": 3}
    rows = [(s, stars[s.split()[1]]) for s in toy.SENTENCES]
    file = toy.table(tmp_path / "stars.csv", ("text", "stars"), rows)
    call = ("--task", "rate", "--lr", 5e-3, "--out", "made", "--json", "-q")
    code, out, err = heed("finetune", bases["encoder"], file, *call)
    assert code == 0, err
    told = json.loads(out)
    assert told["use"] == 'heedful.pipeline("text-rating", model="made")'
    code, out, err = heed("eval", "made", file, "--task", "rate", "--json")
    assert code == 0, err
    assert json.loads(out)["spearman"] > 0.7
    low, high = heedful.pipeline("text-rating", model="made")(["ann sees cats", "ann likes cats"])
    assert low < high
    asked = toy.table(tmp_path / "asked.csv", ("text",), [("ann sees cats",), ("ann likes cats",)])
    code, _, err = heed("predict", "made", asked, "--out", "rated.jsonl")
    assert code == 0, err
    lines = Path("rated.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["score"] for line in lines] == [pytest.approx(n, abs=1e-5) for n in (low, high)]
