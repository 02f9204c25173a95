"""Conversations as text: the Jinja templates that chat models are published with.

A template sees what `transformers` gives it, so that it writes the same text: `messages`, `tools` and
`documents` (None where there are none), `add_generation_prompt` and the special tokens by role.
"""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from heedful.core.errors import InputError
from heedful.text.template_sandbox import LimitedSandbox


class GenerationTag(Extension):
    """{% generation %} … {% endgeneration %}, which marks what the assistant writes, is its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own name and type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """Return a chat template compiled. It comes with a model from anywhere, so its sandbox has limits."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = write_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(source)


def render_chat(template: str, **values: Any) -> str:
    """Return the text that a chat template makes of `messages` and what else it reads."""
    try:
        compiled = compile_template(template)
        assert isinstance(compiled.environment, LimitedSandbox)
        return compiled.environment.render_limited(compiled, {"tools": None, "documents": None} | values)
    except Exception as error:  # a template is a program: whatever it stumbles over is its own
        raise InputError(f"the chat template cannot render these messages: {error}") from None


def write_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Return a value as JSON, as published templates expect it: without Jinja's escapes for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)
