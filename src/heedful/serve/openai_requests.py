"""What a request may hold. Every field is asked for by name, type and range; null is as good as absent.

A field that nobody asks for is ignored and logged: clients send what other servers know. One that is known
and would change the answer, but is not supported, is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heedful.core.checks import check_choice, check_integer, check_number
from heedful.decode.settings import GenerationSettings
from heedful.serve.openai_errors import OpenAIError, invalid, unsupported_parameter

STOPS = 4  # stop strings, as OpenAI allows
MAX_INPUTS = 2048  # texts of one request, as OpenAI allows for embeddings
MAX_CONSTRAINT_CHARACTERS = 50_000  # of a schema, regular expression or choices: more takes seconds
MAX_TOP_LOGPROBS = 20  # most likely tokens next to each
# Known elsewhere, not built here → what may be said all the same, because it asks for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "modalities": (["text"],), "audio": (), "prediction": (),
    "web_search_options": (), "store": (False,), "suffix": ("",), "best_of": (1,),
    "use_beam_search": (False,), "prompt_logprobs": (), "truncate_prompt_tokens": (),
    "guided_grammar": (), "continue_final_message": (False,),
}  # fmt: skip
# OpenAI's or vLLM's name of a number → the setting that it is.
OPENAI_NAMES = {
    "temperature": "temperature", "top_p": "top_p", "min_p": "min_p", "presence_penalty": "presence",
    "frequency_penalty": "frequency", "repetition_penalty": "repetition",
}  # fmt: skip
# Where OpenAI allows less than the setting does, or where numbers would overflow.
NARROWER_RANGES = {
    "temperature": (0, 2), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
}  # fmt: skip
# Known, and of no effect on what is written.
NO_EFFECT = {
    "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
}  # fmt: skip


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body."""
    try:
        value = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
        raise invalid(None, f"the body is not JSON: {why}") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body must be a JSON object; got {kind(value)}")
    return value


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python's parser takes."""
    raise ValueError(f"{name} is not a number of JSON")


def kind(value: Any) -> str:
    """Return the type of a value in JSON's words."""
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


class RequestFields:
    """The fields of a request; `unread` names those that nobody asked for."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = {name: value for name, value in body.items() if value is not None}
        self.read_names: set[str] = set()

    def check_unread(self) -> None:
        """Refuse what nobody has read although it would change the answer elsewhere."""
        for name, harmless in UNSUPPORTED.items():
            value = self.body.get(name)  # False is not 0 here: a value and its type are compared
            read = name not in self.body or name in self.read_names
            if not read and (type(value), value) not in [(type(one), one) for one in harmless]:
                raise unsupported_parameter(name, f"{name} is not supported here; leave it out")

    @property
    def unread(self) -> list[str]:
        return sorted(self.body.keys() - self.read_names - UNSUPPORTED.keys() - NO_EFFECT)

    def get(self, name: str) -> Any:
        self.read_names.add(name)
        return self.body.get(name)

    def require(self, name: str) -> Any:
        """Return the value of a field that must be there."""
        value = self.get(name)
        if value is None:
            raise OpenAIError(400, "missing_required_parameter", f"{name} is missing", param=name)
        return value

    def entries(self, name: str) -> list[Any]:
        """Return the entries of a field that must be there: those of a list, or its only value."""
        value = self.require(name)
        entries = value if isinstance(value, list) else [value]
        if not 1 <= len(entries) <= MAX_INPUTS:
            raise invalid(name, f"{name} has {len(entries)} entries; send 1 to {MAX_INPUTS}")
        return entries

    def texts(self, name: str, max_characters: int) -> list[str]:
        """Return one or several texts, none of them empty."""
        texts = self.entries(name)
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise invalid(name, f"{name} must be a text that is not empty, or several; got {text!r:.60}")
            check_characters(name, text, max_characters)
        return texts

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self.get(name)
        if not isinstance(value, str) or not value:
            got = "nothing" if value is None else "an empty one" if value == "" else kind(value)
            raise invalid(name, f"{name} must be a string; got {got}")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.get(name)
        return choices[0] if value is None else check_choice(name, value, choices)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(name, f"{name} must be true or false; got {kind(value)}")
        return value

    def number(self, name: str, low: float | None = None, high: float | None = None) -> float | None:
        value = self.get(name)
        return None if value is None else check_number(name, value, low, high)

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        value = self.get(name)
        return None if value is None else check_integer(name, value, low, high)

    def stops(self) -> list[str]:
        value = self.get("stop")
        texts = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(s, str) and s for s in texts):
            raise invalid(
                "stop", f"stop must be a string or a list of strings, none of them empty; got {value!r:.60}"
            )
        if len(texts) > STOPS:
            raise invalid("stop", f"stop has {len(texts)} strings; {STOPS} are the most")
        return texts

    def bias(self) -> dict[int, float] | None:
        value = self.get("logit_bias")
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid("logit_bias", f"logit_bias must map ids of tokens to numbers; got {kind(value)}")
        bias = {}
        for token, number in value.items():
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise invalid("logit_bias", f"logit_bias names {token!r:.40}, which is not the id of a token")
            bias[int(token)] = check_number("logit_bias", number, -100, 100)
        return bias


@dataclass(frozen=True)
class CompletionRequest:
    """The fields that completions and conversations share: how to write, and how to send it."""

    settings: GenerationSettings  # but for max_tokens and logprobs
    max_tokens: int | None
    logprobs: int | None  # None: not asked for
    stream: bool
    usage: bool  # a last event with the counts


def read_sampling(
    fields: RequestFields, max_texts: int, *, max_tokens: int | None, logprobs: int | None
) -> CompletionRequest:
    """Return the settings under heedful's names. The temperature is 1 by default, as OpenAI's is."""
    numbers = {
        setting: fields.number(name, *NARROWER_RANGES.get(name, ())) for name, setting in OPENAI_NAMES.items()
    }
    if numbers["temperature"] is None:
        numbers["temperature"] = 1.0
    if numbers["top_p"] == 0:
        numbers["top_p"] = 1e-9  # OpenAI's 0 keeps the most likely token
    top_k, n = fields.integer("top_k", -1), fields.integer("n", 1, max_texts) or 1
    if n > 1 and numbers["temperature"] == 0:
        raise invalid("n", f"n={n} with temperature=0 gives the same text {n} times; raise the temperature")
    settings = GenerationSettings(
        **numbers,  # type: ignore[arg-type]
        n=n,
        top_k=top_k if top_k is not None and top_k > 0 else None,  # vLLM's 0 and -1 keep every token
        bias=fields.bias(),
        stop=fields.stops(),
        seed=fields.integer("seed", -(2**63), 2**64 - 1),
        **read_constraint(fields),
    )
    stream = fields.boolean("stream")
    how = fields.get("stream_options")
    if how is not None and (not isinstance(how, dict) or not stream):
        raise invalid("stream_options", "stream_options must be an object, and goes with stream=true only")
    usage = RequestFields(how or {}).boolean("include_usage")
    return CompletionRequest(settings, max_tokens, logprobs, stream, usage)


ANY_OBJECT = {"type": "object"}  # what response_format json_object asks for
# vLLM's word for a form, as guided_json or inside structured_outputs → the setting, and what it takes.
GUIDED: dict[str, tuple[str, tuple[type, ...], str]] = {
    "json": ("schema", (dict, str), "a JSON schema"),
    "choice": ("choices", (list,), "a list of texts, none of them empty"),
    "regex": ("regex", (str,), "a string"),
}


def read_constraint(fields: RequestFields) -> dict[str, Any]:
    """Return the form that a text must have as a setting of heedful.stream; OpenAI's or vLLM's names."""
    forms: list[tuple[str, dict[str, Any]]] = []
    if (value := fields.get("response_format")) is not None:
        forms.append(("response_format", parse_response_format(value)))
    for word in GUIDED:
        if (value := fields.get(f"guided_{word}")) is not None:
            forms.append((f"guided_{word}", parse_guided(f"guided_{word}", word, value)))
    name = "structured_outputs"
    if (structured := fields.get(name)) is not None:
        if not isinstance(structured, dict):
            raise invalid(name, f"{name} must be an object; got {kind(structured)}")
        given = {word: value for word, value in structured.items() if value is not None}
        if unknown := given.keys() - GUIDED.keys():
            message = f"{name} knows json, regex and choice; got {min(unknown)!r:.40}"
            raise unsupported_parameter(name, message)
        forms += [(name, parse_guided(name, word, value)) for word, value in given.items()]
    forms = [(name, setting) for name, setting in forms if setting]
    if len(forms) > 1:
        names = " and ".join(dict.fromkeys(name for name, _ in forms))
        raise invalid(forms[0][0], f"{names} exclude each other; send one of them")
    for name, setting in forms:
        if (size := len(json.dumps(setting))) > MAX_CONSTRAINT_CHARACTERS:
            message = f"{name} has {size} characters; {MAX_CONSTRAINT_CHARACTERS} are the most; shorten it"
            raise invalid(name, message)
    return forms[0][1] if forms else {}


def parse_response_format(value: Any) -> dict[str, Any]:
    """{"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": …}}"""
    name, kinds = "response_format", ("text", "json_object", "json_schema")
    if not isinstance(value, dict) or value.get("type") not in kinds:
        message = f"{name} must be an object whose type is one of {', '.join(kinds)}; got {value!r:.60}"
        raise invalid(name, message)
    if value["type"] == "text":
        return {}
    if value["type"] == "json_object":
        return {"schema": ANY_OBJECT}
    inner = value.get("json_schema")
    schema = inner.get("schema", ANY_OBJECT) if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise invalid(name, f"{name}.json_schema must be an object with a schema; got {inner!r:.60}")
    return {"schema": schema}


def parse_guided(name: str, word: str, value: Any) -> dict[str, Any]:
    """Return one of vLLM's forms as the setting that it is."""
    setting, types, meaning = GUIDED[word]
    texts = value if isinstance(value, list) else []
    if not isinstance(value, types) or value in ("", []) or not all(isinstance(t, str) and t for t in texts):
        raise invalid(name, f"{name} must have {meaning} as {word}; got {value!r:.60}")
    return {setting: value}


def read_token_ids(name: str, value: Any) -> list[int]:
    """Return one list of ids; raise if it is none."""
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < 2**31 for i in value):
        raise invalid(name, f"{name} must be a string, strings, ids or lists of ids; got {value!r:.60}")
    return value


def read_inputs(fields: RequestFields, name: str, max_inputs: int) -> list[str | list[int]]:
    """Return texts or lists of ids, one or several; never none, and never some of each."""
    value = fields.require(name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise invalid(name, f"{name} must be a string, strings, ids or lists of ids; got {value!r:.60}")
    if type(value[0]) is int:
        return [read_token_ids(name, value)]
    if len(value) > max_inputs:
        raise invalid(name, f"{name} has {len(value)} entries; {max_inputs} are the most")
    if all(isinstance(v, str) for v in value):
        return list(value)
    return [read_token_ids(name, v) for v in value]


def check_characters(name: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise invalid(name, f"{name} has {len(text)} characters; {limit} are the most; send it in parts")


def read_messages(fields: RequestFields) -> list[dict[str, str]]:
    """A conversation: roles and texts."""
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise invalid("messages", f"messages must be a list of messages, at least one; got {value!r:.60}")
    return [_message(i, message) for i, message in enumerate(value)]


def _message(i: int, message: Any) -> dict[str, str]:
    where = f"messages[{i}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("messages", f"{where} must be an object with role and content; got {message!r:.60}")
    role = message["role"]
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise unsupported_parameter("messages", f"{where} is about tools, which are not supported here")
    if role not in ("system", "developer", "user", "assistant"):
        raise invalid("messages", f"{where} has the role {role!r:.40}; there are system, user and assistant")
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        other = [part.get("type") for part in content if part.get("type") not in ("text", "input_text")]
        if other:
            raise unsupported_parameter(
                "messages", f"{where} has a part of type {other[0]!r:.40}; only text is read here"
            )
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(t, str) for t in texts) else None
    if not isinstance(content, str):
        raise invalid("messages", f"{where} needs a text as its content; got {kind(message.get('content'))}")
    return {"role": "system" if role == "developer" else role, "content": content}
