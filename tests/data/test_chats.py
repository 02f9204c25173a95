"""Batches of conversations: the answers have a loss, and nothing else has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import heedful
from heedful import data
from heedful.core.errors import InputError
from heedful.data.examples.chats import pack_rows, split_answers
from tests.refusal import refused

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m.role + ' ' + m.content + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    file.write_text("user says hello there\nassistant answers hi and bye\nsystem is kind\n" * 20)
    made = heedful.train_tokenizer("bpe", file, 300, special=("bos", "eos", "pad"))
    made.chat_template = TEMPLATE.replace("<s>", made.roles["bos"]).replace("</s>", made.roles["eos"])
    return made


def talk(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]


def learnt(batches: data.Batches, tokenizer: Any) -> list[str]:
    """What the rows of all batches of one epoch teach to write, run by run."""
    found = []
    for step in range(len(batches)):
        for labels in batches[step].labels.numpy():
            kept = np.flatnonzero(labels != data.IGNORE)
            runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
            found += [tokenizer.decode(labels[run].tolist()) for run in runs]
    return sorted(found)


def test_the_pieces_of_a_conversation_are_its_text_and_answers_end_with_the_end_token(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "kind"}, *talk("hello", "hi", "bye", "bye there")]
    (pieces,) = split_answers([*chat, {"role": "user", "content": "is not read"}], tokenizer)
    end = tokenizer.roles["eos"]
    assert "".join(text for text, _ in pieces) + "\n" == tokenizer.chat(chat, generation_prompt=False)
    assert [text for text, answer in pieces if answer] == [f"hi{end}", f"bye there{end}"]


def test_only_answers_have_a_loss(tokenizer: Any) -> None:
    chats = [talk("hello", "hi", "bye", "bye there"), talk("hello there", "hi and bye")]
    batches = data.chats(chats, tokenizer, length=64, batch=2)
    assert [text.removesuffix("</s>") for text in learnt(batches, tokenizer)] == sorted(
        [tokenizer.decode(tokenizer.encode(t, special=False)) for t in ("hi", "bye there", "hi and bye")]
    )


def test_a_prompt_is_read_as_it_will_be_when_the_model_answers(tokenizer: Any) -> None:
    chat = talk("hello there", "hi")
    tokens = data.chats([chat], tokenizer, length=64, batch=1)[0].tokens[0].tolist()
    prompt = tokenizer.encode(tokenizer.chat(chat[:1]), special=False)
    assert tokens[: len(prompt)] == prompt


def test_packed_conversations_share_rows_stay_apart_and_teach_the_same(tokenizer: Any) -> None:
    chats = [talk("hello " * (1 + n % 3), f"hi {'and ' * (n % 4)}bye") for n in range(120)]
    alone = data.chats(chats, tokenizer, length=64, batch=1, packed=False)
    packed = data.chats(chats, tokenizer, length=64, batch=1, packed=True)
    assert packed.row_count < alone.row_count
    assert learnt(packed, tokenizer) == learnt(alone, tokenizer)
    batch = packed[0]
    assert batch.documents is not None
    begins = np.flatnonzero(np.diff(batch.documents[0].numpy()) != 0)
    assert len(begins) >= 1
    labels = batch.labels[0].numpy()
    assert (labels[begins] == tokenizer.eos).all()  # the last thing to write is the end of one's own answer
    assert (labels[begins + 1] == data.IGNORE).all()


def test_few_conversations_are_not_packed(tokenizer: Any) -> None:
    batches = data.chats([talk("hello", "hi")] * 5, tokenizer, length=64, batch=2)
    assert batches.row_count == 5


def test_a_long_conversation_loses_its_beginning_and_keeps_its_last_answer(tokenizer: Any) -> None:
    chats = [talk("hello " * 50, "hi and bye")]
    with refused(InputError, "longer than 16 tokens"):
        data.chats(chats, tokenizer, length=16, batch=1)
    batches = data.chats(chats, tokenizer, length=16, batch=1, truncate=True)
    assert batches[0].tokens.shape == (1, 16)
    assert "bye" in learnt(batches, tokenizer)[0]


def test_a_conversation_without_an_answer_is_refused(tokenizer: Any) -> None:
    with refused(InputError, "no answer"):
        data.chats([talk("hello")], tokenizer, length=16, batch=1)


def test_rows_are_packed_to_the_brim_and_never_beyond() -> None:
    lengths = np.array([5, 3, 8, 2, 2, 7, 1])
    rows = pack_rows(lengths, 10)
    assert sorted(text for row in rows for text in row) == list(range(7))
    assert [int(lengths[row].sum()) for row in rows] == [10, 10, 8]
