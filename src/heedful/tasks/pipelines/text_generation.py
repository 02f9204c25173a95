"""text-generation and conversational: continue a text, answer messages, and learn both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, ClassVar

from heedful import data
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.data.readers import Documents, documents, split_documents, texts
from heedful.models.base import LM, Model
from heedful.tasks.examples import ROLES, ColumnFlags, Examples, UnusableRow
from heedful.tasks.generation import (
    GENERATION_BATCH_SIZE,
    ScoredByPerplexity,
    TrainableGeneration,
    clean_text,
    truncate_prompt,
    wants_ids,
)
from heedful.tasks.model_inputs import map_inputs, truncates
from heedful.tasks.task import TrainingDefaults, row_keywords

DEFAULT_GENERATION = {"max_new_tokens": 256}


class TextGeneration(ScoredByPerplexity):
    """[{"generated_text"}]: for a text the text and what follows it, for messages these and the answer."""

    needs: ClassVar[str] = "a decoder that writes"
    command, file_kinds = "complete", ("table", "text")
    training = TrainingDefaults(
        lr=5e-5, lora_lr=5e-4, epochs=3, length=256, batch=8, steps=100, max_epochs=10
    )
    roles = ROLES["complete"]
    writers = "a decoder, such as smollm2-135m-instruct"

    def predict(
        self,
        text_inputs: Any,
        *,
        return_full_text: bool | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        prefix: str | None = None,
        stop_sequence: str | None = None,
        stop: str | Sequence[str] | None = None,
        truncation: bool | str | None = None,
        handle_long_generation: str | None = None,
        continue_final_message: bool | None = None,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Return num_return_sequences texts for each input. The other options are those of generation.

        `stop` ends a text before any of these strings, which transformers calls stop_strings or, for one,
        stop_sequence. A prompt beyond the context is an error; handle_long_generation="hole" keeps its end.
        """
        if handle_long_generation not in (None, "hole"):
            raise InputError(f"`handle_long_generation={handle_long_generation!r}` must be None or 'hole'")
        tensors = wants_ids(return_tensors, return_text, return_full_text)
        end_strings = stop if stop is not None else stop_sequence
        options = generation | ({} if end_strings is None else {"stop_strings": end_strings})
        cut = truncates(truncation) or handle_long_generation is not None
        full_text = return_full_text is None or return_full_text
        new = generation.get("max_new_tokens") or (
            1 if "max_length" in generation else DEFAULT_GENERATION["max_new_tokens"]
        )

        def predict_batch(batch: list[Any]) -> list[Any]:
            whole = [self.prompt_ids(one, prefix or "", continue_final_message) for one in batch]
            prompts = [truncate_prompt(self.model, ids, cut, new) for ids in whole]
            rows = self.generate_texts(prompts, options, DEFAULT_GENERATION, batch_size)
            if tensors:
                with_prompt = lambda ids, row: [{"generated_token_ids": [*ids, *g.ids]} for g in row]
                return list(map(with_prompt, prompts, rows))
            form = lambda one, text: self.format_output(one, text, full_text, clean_up_tokenization_spaces)
            written = lambda one, row: [{"generated_text": form(one, g.text)} for g in row]
            return list(map(written, batch, rows))

        one = isinstance(text_inputs, str) or is_chat(text_inputs)
        return predict_batch([text_inputs])[0] if one else map_inputs(text_inputs, predict_batch, batch_size)

    def call_options(self, **settings: Any) -> dict[str, Any]:
        return {"return_full_text": False} | super().call_options(**settings)

    def prompt_parts(self, inputs: Any) -> list[tuple[list[int], str]]:
        return [(self.prompt_ids(inputs, "", None), "")]

    def prompt_ids(self, text: Any, prefix: str, continue_final: bool | None) -> list[int]:
        """Return the prompt of a text or of messages; a final message of the assistant is continued."""
        if isinstance(text, str):
            return self.tokenizer.encode(prefix + text)
        messages = check_chat(text)
        if not (continue_final if continue_final is not None else messages[-1]["role"] == "assistant"):
            return self.chat_ids(messages)
        chat = self.tokenizer.chat(messages, generation_prompt=False)
        at = chat.rfind(messages[-1]["content"].strip())  # what the template puts behind it is left off
        return self.tokenizer.encode(chat[: at + len(messages[-1]["content"].strip())], special=False)

    def format_output(self, prompt: Any, text: str, full_text: bool, clean: bool | None) -> Any:
        """Return what was written, with the prompt before it if the full text is wanted."""
        if isinstance(prompt, str):
            text = prompt + text if full_text else text
            return clean_text(text, clean) if clean else text
        if not full_text:
            return text
        messages = [dict(m) for m in prompt]
        if messages[-1]["role"] == "assistant":
            return [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + text}]
        return [*messages, {"role": "assistant", "content": text}]

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return `Documents` of running text, or prompts of a table, with or without completions."""
        if source.kind != "text":
            return super().read_examples(source, column_flags)
        whole = documents(source.path, encoding=source.encoding)
        if not any(text.strip() for document in whole for text in document):
            raise InputError(f"{source.path} holds white space only")
        return Examples([whole], [str(source.path)])

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        """Return prompt and completion; what an instruction is about follows it after an empty line."""
        parts = {role: text for role, text in cells.items() if role != "input"}
        if about := cells.get("input", "").strip():
            parts["prompt"] = f"{parts['prompt']}\n\n{about}"
        return super(TrainableGeneration, cls).parse_cells(parts)  # a completion may begin with a space

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        if not is_running_text(examples):
            return super().split_validation(examples, seed)
        parts = split_documents(examples.items[0], 0.1)
        train, valid = (Examples([part], examples.locations) for part in parts)
        return train, valid, "the last tenth of the text"

    @classmethod
    def check_model(cls, model: Model) -> None:
        if not isinstance(model, LM):
            raise InputError(f"complete needs {cls.writers}", hint="this model has an encoder too")
        super().check_model(model)

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        return [] if is_running_text(examples) else [" ".join(row) for row in examples.items]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        if not is_running_text(examples):
            return {}
        return {"characters": sum(len(text) for document in examples.items[0] for text in document)}

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        first = examples.items[0]
        if not isinstance(first, Documents) and len(first) == 2:
            return super().batches(examples, options)
        source = first if isinstance(first, Documents) else texts([row[0] for row in examples.items])
        return data.next_token(
            source, self.tokenizer, length=options.length, batch=options.batch, seed=options.seed
        )


def is_running_text(examples: Examples) -> bool:
    """Return whether examples are running text, and not rows of a table."""
    return bool(examples.items) and isinstance(examples.items[0], Documents)


def is_chat(messages: Any) -> bool:
    """Return whether it is one conversation: a list of messages."""
    return isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], Mapping)


def check_chat(messages: Any) -> Sequence[Mapping[str, Any]]:
    """Return the messages; raise InputError if one has no role or no text."""
    if not is_chat(messages):
        raise InputError(f"the input must be a text or a list of messages; got {messages!r:.60}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InputError(f"message {i} must be {{'role': …, 'content': …}}; got {message!r:.60}")
        if not isinstance(message["content"], str):
            raise InputError(f"the content of message {i} must be a text; got {message['content']!r:.60}")
    checked: Sequence[Mapping[str, Any]] = messages
    return checked


# conversational: answer in a conversation, and learn from conversations how to.


SHAREGPT_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "model": "assistant", "system": "system", "tool": "tool", "observation": "tool",
}  # fmt: skip


class Conversation(list[dict[str, str]]):
    """Hold the messages of one conversation for the pipeline "conversational".

    Start it with a text of the user or with a list of messages. `add_user_input` adds the next message of
    the user, and the pipeline adds each reply. `past_user_inputs` and `generated_responses` give an earlier
    conversation as two lists.

    >>> import heedful
    >>> talk = heedful.Conversation("Hello!")
    >>> talk.add_message({"role": "assistant", "content": "Hello. How can I help?"})
    >>> talk.add_user_input("What is a token?")
    >>> [message["role"] for message in talk]
    ['user', 'assistant', 'user']
    """

    def __init__(
        self,
        messages: str | Iterable[Mapping[str, str]] | None = None,
        *,
        text: str | None = None,
        past_user_inputs: Sequence[str] = (),
        generated_responses: Sequence[str] = (),
    ) -> None:
        super().__init__()
        for user, assistant in zip_longest(past_user_inputs, generated_responses):
            if user is not None:
                self.add_user_input(user)
            if assistant is not None:
                self.append_response(assistant)
        first = text if messages is None else messages
        for message in [{"role": "user", "content": first}] if isinstance(first, str) else first or ():
            self.append(message)

    def __repr__(self) -> str:
        return "\n".join(f"{m['role']}: {m['content']}" for m in self)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, from the beginning."""
        return self

    def append(self, message: Mapping[str, str]) -> None:
        """Append a message of any role."""
        super().append(dict(check_chat([message])[0]))

    add_message = append

    def add_user_input(self, text: str, overwrite: bool = False) -> None:
        """Append a message of the user; `overwrite` replaces one that was not answered."""
        if overwrite and self and self[-1]["role"] == "user":
            self.pop()
        self.append({"role": "user", "content": text})

    def append_response(self, text: str) -> None:
        """Append a message of the assistant."""
        self.append({"role": "assistant", "content": text})

    @property
    def past_user_inputs(self) -> list[str]:
        """The messages of the user that were answered."""
        inputs = [m["content"] for m in self if m["role"] == "user"]
        return inputs[:-1] if self and self[-1]["role"] == "user" else inputs

    @property
    def generated_responses(self) -> list[str]:
        """The messages of the assistant."""
        return [m["content"] for m in self if m["role"] == "assistant"]


class Conversational(ScoredByPerplexity):
    """The conversation with the answer appended: a Conversation itself, a new one for a list of messages."""

    needs: ClassVar[str] = "a decoder trained to converse"
    fields = ("messages",)
    command, unit, cuts_texts = "chat", "conversations", False  # their batches tell what is cut
    training = TrainingDefaults(
        lr=2e-5, lora_lr=3e-4, epochs=3, length=512, batch=8, steps=100, max_epochs=10
    )
    roles = ROLES["chat"]
    writers = "a decoder trained to converse, such as smollm2-135m-instruct"

    def predict(
        self,
        conversations: Any,
        *,
        clean_up_tokenization_spaces: bool | None = None,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Append the next message to each conversation; a list of one is answered like that one.

        The options are those of generation.
        """
        if self.tokenizer.chat_template is None:
            raise InputError(
                "this model has no chat template", hint="use text-generation, or use a chat model"
            )

        def predict_batch(batch: list[Any]) -> list[Any]:
            starts = [one if isinstance(one, str) else check_chat(one) for one in batch]
            talks = [one if isinstance(one, Conversation) else Conversation(one) for one in starts]
            for i, talk in enumerate(talks):
                if talk[-1]["role"] == "assistant":
                    raise InputError(
                        f"conversation {i} ends with an answer", hint="add the next message of the user"
                    )
            rows = self.generate_texts(
                [self.chat_ids(talk) for talk in talks], generation, DEFAULT_GENERATION, batch_size
            )
            for talk, row in zip(talks, rows, strict=True):
                talk.append_response(clean_text(row[0].text, clean_up_tokenization_spaces))
            return talks

        if isinstance(conversations, (str, Conversation)) or is_chat(conversations):
            return predict_batch([conversations])[0]
        replies = map_inputs(conversations, predict_batch, batch_size, Conversation)
        return replies[0] if isinstance(replies, list) and len(replies) == 1 else replies

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[Any, ...]:
        return read_messages(cells["messages"])

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        return [" ".join(message["content"] for message in talk) for talk in examples.items]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        return {"answers": sum(message["role"] == "assistant" for talk in examples.items for message in talk)}

    @classmethod
    def check_model(cls, model: Model) -> None:
        super().check_model(model)
        if model.tokenizer is None or model.tokenizer.chat_template is None:
            raise InputError(
                "this model has no chat template: it does not define how to write a conversation",
                hint="use a chat model, or `task=complete` with prompts and completions",
            )

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of the conversations that the chat template writes; its notes tell of the others."""
        usable, left_out = [], dict[str, str]()
        for talk, where in zip(examples.items, examples.locations, strict=True):
            try:
                self.tokenizer.chat(talk, generation_prompt=False)
                usable.append(talk)
            except InputError as error:
                left_out[where] = error.message
        first = next(iter(left_out.items()), ("", ""))
        if not usable:
            raise InputError(f"{examples.path}, {first[0]}: {first[1]}", hint="no conversation can be used")
        made = data.chats(usable, self.tokenizer, **row_keywords(options))
        note = f"{len(left_out):,} of {len(examples):,} conversations are left out: {first[0]}, {first[1]}"
        return replace(made, notes=(*made.notes, note)) if left_out else made

    @classmethod
    def call_inputs(cls, rows: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
        return ((list(read_prompt(row[0])) for row in rows),)

    def answer_cells(self, answer: Any) -> dict[str, Any]:
        return {"generated_text": answer[-1]["content"]}

    def prompt_parts(self, inputs: Any) -> list[tuple[list[int], str]]:
        return [(self.chat_ids(inputs), "")]


def read_messages(cell: str) -> tuple[dict[str, Any], ...]:
    """Return the messages of a cell of JSON: [{"role", "content"}, …], or ShareGPT's "from" and "value".

    What else a message has (tool_calls, name …) is the chat template's to write. Raise UnusableRow for
    another thing, for a message without text, and for a talk without an answer.
    """
    try:
        items = json.loads(cell)
    except json.JSONDecodeError:
        raise UnusableRow("whose messages are not a JSON list") from None
    if not isinstance(items, list) or not all(isinstance(message, dict) for message in items):
        raise UnusableRow("whose messages are not a list of objects")
    messages = []
    for message in items:
        role = message.get("role", SHAREGPT_ROLES.get(str(message.get("from"))))
        text = message_text(message.get("content", message.get("value")))
        if text is None and message.get("tool_calls"):  # it calls a tool and says nothing
            text = ""
        if not isinstance(role, str) or text is None:
            raise UnusableRow("with a message that lacks a role or a text")
        others = {name: message[name] for name in message.keys() - {"from", "value"}}
        messages.append({**others, "role": role, "content": text})
    if not any(
        i and message["role"] == "assistant" and (message["content"].strip() or message.get("tool_calls"))
        for i, message in enumerate(messages)
    ):
        raise UnusableRow("without an answer of the assistant")
    return tuple(messages)


def message_text(content: Any) -> str | None:
    """Return the text of a message: a text, or a list of {"type": "text", "text": …}; None: it has none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts) if texts and len(texts) == len(parts) else None


def read_prompt(cell: str) -> Sequence[Mapping[str, Any]]:
    """Return a conversation to be continued: a text of the user, or messages without the last answer."""
    try:
        messages = json.loads(cell)
    except ValueError:
        messages = None
    if not isinstance(messages, list):
        return [{"role": "user", "content": cell}]
    if messages and isinstance(messages[-1], dict) and messages[-1].get("role") == "user":
        return messages
    try:
        return read_messages(cell)[:-1]
    except UnusableRow as error:
        raise InputError(f"there is a row {error}: {cell[:60]}", hint="leave it out") from None
