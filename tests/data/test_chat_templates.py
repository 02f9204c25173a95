"""Which tokens of a conversation have a loss, beside a plain construction with transformers' templates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from heedful import data
from heedful.text import Tokenizer

# As published models write conversations, in short; {% generation %} marks answers for transformers.
TEMPLATES = {
    "chatml": (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "inst": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}"
        "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"
    ),
    "thinking": (  # earlier answers lose their thoughts, as Qwen3's do
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "closed": (  # the end of the text stands behind the last message only, as in Phi-3
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
}
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|end|>"]
WORDS = [
    "hello there, how are you?",
    "  two  spaces",
    "zwölf Boxkämpfer 🎉",
    "[INST] no [/INST]",
    "1 + 1 = 2",
]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


CHATS = {
    "one turn": [user("hello there"), assistant("how are you?")],
    "system": [{"role": "system", "content": "Be brief."}, user("1 + 1"), assistant("2")],
    "several turns": [
        user("hello"),
        assistant("hi"),
        user("and?"),
        assistant("bye"),
        user("x"),
        assistant("y"),
    ],
    "last turn is the user's": [user("hello"), assistant("hi 🎉"), user("are you there?")],
    "a tool answers": [
        user("1 + 1"),
        assistant('{"call": "add"}'),
        {"role": "tool", "content": "2"},
        assistant("It is 2."),
    ],
    "line ends and spaces": [user("a\n\n b "), assistant("\n\n c\n"), user(" ")],
    "two users, two assistants": [user("a"), user("b"), assistant("c"), assistant("d")],
}


def make_tokenizer(kind: str) -> tuple[Tokenizer, Any]:
    """Our tokenizer and transformers' of one vocabulary: bytes, or words that begin with a space."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="</s>" if kind == "metaspace" else None))
    if kind == "bytes":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        backend.decoder = decoders.Metaspace(prepend_scheme="first", split=True)
        alphabet = sorted(set("".join(WORDS)) | set('system|<>/[]INSTuserassistanttool\n{}":'))
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator([*WORDS * 5, "user assistant system tool\n\n"], trainer)
    roles = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(backend.to_str()),
        **{f"{role}_token": token for role, token in roles.items()},
    )
    return Tokenizer(backend, roles), theirs


def plain_rows(
    theirs: Any, template: str, chat: list[dict[str, str]], end: str
) -> list[list[tuple[int, bool]]]:
    """Each answer with the conversation before it: its tokens, and which the assistant writes.

    The longest text that begins with another has that one's answer, too.
    """
    write = lambda some, **options: theirs.apply_chat_template(
        some, chat_template=template, tokenize=False, **options
    )
    read = lambda text: theirs(text, add_special_tokens=False)["input_ids"]
    found: dict[str, list[tuple[int, bool]]] = {}
    for i in (i for i, message in enumerate(chat) if i and message["role"] == "assistant"):
        prompt, whole = write(chat[:i], add_generation_prompt=True), write(chat[: i + 1])
        whole = whole[: whole.rfind(end) + len(end)]
        inside = next((text for text in found if whole.startswith(text)), "")
        known = found.pop(inside, [])
        ids, before = read(whole), len(read(prompt))
        if ids[:before] != read(prompt):  # the answer would melt into the prompt
            ids = read(prompt) + read(whole[len(prompt) :])
        marks = [known[k][1] if k < len(known) else k >= before for k in range(len(ids))]
        found[whole] = list(zip(ids, marks, strict=True))
    return list(found.values())


@pytest.mark.parametrize("chat", CHATS.values(), ids=list(CHATS))
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_losses_are_those_of_a_plain_construction(
    name: str, kind: str, chat: list[dict[str, str]]
) -> None:
    if name == "thinking" and chat is CHATS["two users, two assistants"]:
        pytest.skip("the second answer's prompt is not how the text with it begins")
    ours, theirs = make_tokenizer(kind)
    plain = TEMPLATES[name].replace("{% generation %}", "").replace("{% endgeneration %}", "")
    ours.chat_template = plain
    end = "<|im_end|>" if name in ("chatml", "thinking") else "</s>"
    ours.roles["eos"] = end
    batches = data.chats([chat], ours, length=512, batch=1, packed=False)
    rows = []
    for step in range(len(batches)):
        batch = batches[step]
        tokens, labels = batch.tokens[0].tolist(), batch.labels[0].tolist()
        last = [label for label in labels if label != data.IGNORE][-1]
        marks = [False, *(label != data.IGNORE for label in labels)]
        assert all(
            label in (data.IGNORE, token) for label, token in zip(labels, [*tokens[1:], last], strict=True)
        )
        rows.append(list(zip([*tokens, last], marks, strict=True)))
    assert sorted(rows) == sorted(plain_rows(theirs, plain, chat, end))


@pytest.mark.parametrize("chat", [CHATS["several turns"], CHATS["system"], CHATS["a tool answers"]])
@pytest.mark.parametrize("name", ["chatml", "inst"])
def test_losses_are_where_transformers_marks_what_the_assistant_writes(
    name: str, chat: list[dict[str, str]]
) -> None:
    ours, theirs = make_tokenizer("bytes")
    ours.chat_template = TEMPLATES[name].replace("{% generation %}", "").replace("{% endgeneration %}", "")
    ours.roles["eos"] = "<|im_end|>" if name == "chatml" else "</s>"
    marked = theirs.apply_chat_template(
        chat,
        chat_template=TEMPLATES[name],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    batch = data.chats([chat], ours, length=512, batch=1)[0]
    tokens, labels = batch.tokens[0].numpy(), batch.labels[0].numpy()
    assert marked["input_ids"][: len(tokens)] == tokens.tolist()
    assert np.flatnonzero(labels != data.IGNORE).tolist() == [
        i - 1 for i, mark in enumerate(marked["assistant_masks"]) if mark
    ]


def test_an_answer_whose_prompt_the_template_writes_otherwise_is_counted_and_not_learnt() -> None:
    ours, _ = make_tokenizer("bytes")
    ours.chat_template = TEMPLATES["thinking"]
    batches = data.chats([CHATS["two users, two assistants"]], ours, length=512, batch=1)
    assert batches.row_count == 1
    assert "1 of 2 answers is not learnt" in batches.notes[0]
