"""text-generation: continue a text, or answer messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from heedful import data
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.data.readers import Documents, documents, split_documents, texts
from heedful.models.base import LM, Model
from heedful.tasks.examples import COMPLETION, INPUT_ROLES, PROMPT, ColumnFlags, Examples, Role
from heedful.tasks.generation import (
    GENERATION_BATCH_SIZE,
    clean_text,
    truncate_prompt,
    wants_ids,
)
from heedful.tasks.model_inputs import map_inputs, truncates
from heedful.tasks.pipelines.text_pairs import ScoredByPerplexity, TrainableGeneration
from heedful.tasks.task import TrainingDefaults

DEFAULT_GENERATION = {"max_new_tokens": 256}


class TextGeneration(ScoredByPerplexity):
    """[{"generated_text"}]: for a text the text and what follows it, for messages these and the answer."""

    needs: ClassVar[str] = "a decoder that writes"
    command, file_kinds = "complete", ("table", "text")
    training = TrainingDefaults(
        lr=5e-5, lora_lr=5e-4, epochs=3, length=256, batch=8, steps=100, max_epochs=10
    )
    roles: ClassVar[Mapping[str, Role]] = {
        "prompt": Role("--text", PROMPT), "input": INPUT_ROLES["complete"]["input"],
        "completion": Role("--label", COMPLETION, optional=True),
    }  # fmt: skip
    writers = "a decoder, such as smollm2-135m-instruct"

    @classmethod
    def fits(cls, model: Model) -> bool:
        return super().fits(model) and isinstance(model, LM)

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
            raise InputError(f"handle_long_generation={handle_long_generation!r} must be None or 'hole'")
        tensors = wants_ids(return_tensors, return_text, return_full_text)
        end_strings = stop if stop is not None else stop_sequence
        options = generation | ({} if end_strings is None else {"stop_strings": end_strings})
        cut = truncates(truncation) or handle_long_generation is not None
        full_text = return_full_text is None or return_full_text
        new = generation.get("max_new_tokens") or (
            1 if "max_length" in generation else DEFAULT_GENERATION["max_new_tokens"]
        )

        def predict_batch(batch: list[Any]) -> list[Any]:
            prompts = [
                truncate_prompt(
                    self.model, self.prompt_ids(one, prefix or "", continue_final_message), cut, new
                )
                for one in batch
            ]
            rows = self.generate_texts(prompts, options, DEFAULT_GENERATION, batch_size)
            if tensors:
                return [
                    [{"generated_token_ids": [*ids, *g.ids]} for g in row]
                    for ids, row in zip(prompts, rows, strict=True)
                ]
            return [
                [
                    {
                        "generated_text": self.format_output(
                            one, g.text, full_text, clean_up_tokenization_spaces
                        )
                    }
                    for g in row
                ]
                for one, row in zip(batch, rows, strict=True)
            ]

        one = isinstance(text_inputs, str) or is_chat(text_inputs)
        return predict_batch([text_inputs])[0] if one else map_inputs(text_inputs, predict_batch, batch_size)

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
