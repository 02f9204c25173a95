"""Conversations as a task to learn: what a file may hold, which models fit, that answers become likelier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.data.input_files import read_input_file
from heedful.tasks.evaluate import default_task
from heedful.tasks.examples import UnusableRow, infer_file_task
from heedful.tasks.finetune import finetune
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.pipelines.text_generation import read_messages
from heedful.tasks.registry import trainable_tasks
from tests.refusal import refused
from tests.tasks.finetune.finetuning import SENTENCES, models

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] + ' ' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a ' }}{% endif %}"
)


def as_line(*turns: tuple[str, str], key: str = "messages") -> str:
    return json.dumps({key: [{"role": role, "content": text} for role, text in turns]})


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny decoder with a chat template, and the same without one."""
    root = tmp_path_factory.mktemp("models")
    plain = models(root)["decoder"]
    model = heedful.load(plain)
    model.tokenizer.chat_template = TEMPLATE
    return {"plain": plain, "talks": heedful.save(model, root / "talks")}


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Whoever is asked what someone does says it: the answer is the end of the question."""
    file = tmp_path / "talks.jsonl"
    lines = [as_line(("user", f"what does {s}"), ("assistant", s.split()[2])) for s in SENTENCES]
    file.write_text("\n".join([*lines, as_line(("user", "who ?"))]) + "\n")
    return file


def test_messages_and_sharegpts_form_are_read_alike() -> None:
    turns = [("system", "be kind"), ("user", "hi"), ("assistant", "hello")]
    ours = json.dumps([{"role": r, "content": t} for r, t in turns])
    names = {"user": "human", "assistant": "gpt"}
    theirs = json.dumps([{"from": names.get(r, r), "value": t} for r, t in turns])
    assert read_messages(ours) == read_messages(theirs)
    assert [m["role"] for m in read_messages(ours)] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("hello", "not a JSON list"),
        ('{"role": "user"}', "not a list"),
        ('[{"role": "user"}]', "lacks a role or a text"),
        ('[{"role": "user", "content": "hi"}]', "without an answer"),
        ('[{"role": "assistant", "content": "hi"}]', "without an answer"),
        ('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": " "}]', "without an answer"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "lacks a role or a text"),
    ],
)
def test_rows_that_cannot_be_used_say_why(cell: str, reason: str) -> None:
    with pytest.raises(UnusableRow, match=reason):
        read_messages(cell)


def test_calls_of_tools_and_lists_of_texts_are_kept_for_the_template() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "add", "tool_call_id": "7", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
    found = read_messages(json.dumps(turns))
    assert [message["content"] for message in found] == ["1 + 1?", "", "2", "It is 2."]
    assert found[1]["tool_calls"] == [call]
    assert (found[2]["name"], found[2]["tool_call_id"]) == ("add", "7")
    shared = [
        {"from": "human", "value": "1"},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "3"},
    ]
    assert [message["role"] for message in read_messages(json.dumps(shared))] == ["user", "tool", "assistant"]


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_a_file_of_conversations_is_known_by_its_column(tmp_path: Path, key: str) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(as_line(("user", "hi"), ("assistant", "hello"), key=key) + "\n")
    assert infer_file_task(read_input_file(str(file)), trainable_tasks(), None) == "chat"


def test_answers_become_likelier_and_the_saved_model_answers(
    decoders: dict[str, Path], talks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    request = FinetuneRequest(
        str(decoders["talks"]), str(talks), out=str(out), lr=3e-3, epochs=12, lora=False
    )
    result = finetune(request, quiet=True)
    assert result.task == "chat"
    assert result.scores["perplexity"] < 3
    answer = heedful.pipeline("conversational", str(out))(
        [{"role": "user", "content": "what does ann sees cats"}]
    )
    assert answer[-1]["role"] == "assistant"
    assert answer[-1]["content"].split()[0] in {s.split()[2] for s in SENTENCES}


def test_rows_without_an_answer_are_counted_and_left_out(decoders: dict[str, Path], talks: Path) -> None:
    examples = trainable_tasks()["chat"].read_examples(read_input_file(str(talks)), {})
    assert len(examples) == len(SENTENCES)
    assert any("without an answer" in note for note in examples.notes)


def test_a_model_without_a_chat_template_is_refused(
    decoders: dict[str, Path], talks: Path, tmp_path: Path
) -> None:
    request = FinetuneRequest(str(decoders["plain"]), str(talks), out=str(tmp_path / "out"))
    with refused(InputError, "chat template", hint="task=complete"):
        finetune(request, quiet=True)


@torch.no_grad()
def test_the_perplexity_is_that_of_the_answers_alone(decoders: dict[str, Path], talks: Path) -> None:

    task: Any = trainable_tasks()["chat"]
    examples = task.read_examples(read_input_file(str(talks)), {}).first(3)
    model = heedful.load(decoders["talks"])
    found = heedful.pipeline("conversational", model).score(examples, batch=2)  # type: ignore[attr-defined]
    losses = []
    for talk in examples.items:
        prompt = model.tokenizer.encode(model.tokenizer.chat(talk[:1]), special=False)
        answer = model.tokenizer.encode(talk[1]["content"] + model.tokenizer.roles["eos"], special=False)
        logits = model(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1].log_softmax(-1)
        losses += [-float(logits[i, token]) for i, token in enumerate(answer)]
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_a_file_of_conversations_is_evaluated_as_such(
    decoders: dict[str, Path], talks: Path, tmp_path: Path
) -> None:
    prose = tmp_path / "prose.txt"
    prose.write_text("ann sees cats")
    model, plain = heedful.load(decoders["talks"]), heedful.load(decoders["plain"])
    assert default_task(model, [str(talks)]) == "chat"
    assert default_task(model, [str(prose)]) == default_task(plain, [str(talks)]) == "perplexity"


def test_what_is_cut_and_what_the_template_refuses_is_told(
    decoders: dict[str, Path], talks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = heedful.load(decoders["talks"])
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message here') }}{% endif %}"
    model.tokenizer.chat_template = refuse + TEMPLATE
    strict = heedful.save(model, tmp_path / "strict")
    with talks.open("a") as file:
        for number in range(3):
            turns = ("system", f"be kind {number}"), ("user", "who ?"), ("assistant", "ann")
            file.write(as_line(*turns) + "\n")
        file.write(as_line(("user", "who ? " * 40), ("assistant", "ann")) + "\n")
        file.write(as_line(("user", "what ? " * 40), ("assistant", "bob")) + "\n")
    request = FinetuneRequest(str(strict), str(talks), out=str(tmp_path / "out"), epochs=1, length=32)
    finetune(request)
    said = capsys.readouterr().err
    assert "cut to 32 tokens" in said  # one or two of them, by the seed
    assert "conversations are left out: line" in said
    assert "no system message here" in said
    only = tmp_path / "only.jsonl"
    only.write_text((as_line(("system", "x"), ("user", "y"), ("assistant", "z")) + "\n") * 5)
    with refused(InputError, "no system message here"):
        finetune(FinetuneRequest(str(strict), str(only), out=str(tmp_path / "none")), quiet=True)
