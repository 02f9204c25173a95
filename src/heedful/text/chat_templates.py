"""Conversations as text: the Jinja templates that chat models are published with.

A template sees what `transformers` gives it, so that it writes the same text: `messages`, `tools` and
`documents` (None where there are none), `add_generation_prompt` and the special tokens by role.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from heedful.core.errors import InputError


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
    # Published templates expect JSON without Jinja's escapes for web pages, and letters as they are.
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **layout: json.dumps(
        value, ensure_ascii=ensure_ascii, **layout
    )
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


# Jinja with limits on time and memory, because templates come with models from anywhere.
#
# Jinja's sandbox keeps a template away from the machine, but not from its memory or its time: two nested
# loops never end, and `'x' * 10**10` fills the memory. Here every rendering has a budget of characters. All
# that a template builds or writes is paid from it before it is built, and each iteration and each call has
# a price, so that the same template always ends at the same place. A limit on the thread's computing time
# covers the rest. It is looked at between operations, so a single comparison of lists that share each other
# many times over is the one thing that can still take long.


MAX_WORK = 20_000_000  # characters that a template may build and write,
WORK_PER_CHARACTER = 20  # and this many more for each character of the messages
STEP_WORK, CALL_WORK = 20, 100  # the prices of an iteration, an operation or a filter, and of a call
MAX_SECONDS = 5.0
# Filters and methods of strings whose result can be longer than what they are given.
GROWING = {
    "center", "ljust", "rjust", "zfill", "expandtabs", "replace", "join", "format", "format_map", "translate",
    "indent", "wordwrap", "tojson", "string", "pprint", "sum", "xmlattr", "urlize", "split", "rsplit",
    "splitlines",
}  # fmt: skip


class Budget:
    """What one rendering may still build, and until when."""

    def __init__(self) -> None:
        self.left, self.deadline = MAX_WORK, time.thread_time() + MAX_SECONDS

    def spend(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0 or time.thread_time() > self.deadline:
            raise jinja2.TemplateRuntimeError("it needs more time or memory than a template may take")


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")


def text_size(value: Any) -> int:
    """Return about how many characters a value has as text; looking into a list also costs something."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if isinstance(value, Mapping):
        return text_size(list(value.items()))
    if isinstance(value, list | tuple | set | frozenset):
        BUDGET.get().spend(STEP_WORK // 2 + len(value))
        return 2 + sum(2 + text_size(one) for one in value)
    return STEP_WORK


def growth(name: str, value: Any, arguments: list[Any]) -> int:
    """Return a bound for the size of what a filter or a method makes of a value and its other arguments."""
    numbers = [abs(one) for one in arguments if isinstance(one, int)]
    if name not in GROWING:
        return 0 if name in ("default", "d") else max(numbers, default=0)
    if name.startswith("format") and isinstance(value, str):  # the width of a field stands in the text
        numbers += [int(digits) for digits in re.findall(r"\d{1,18}", value)]
    sizes = [text_size(one) for one in arguments if not isinstance(one, int)]
    return (text_size(value) + 1) * (max([*numbers, *sizes], default=0) + 1)


def limit_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that pays for its result before it makes it."""
    skipped = int(hasattr(function, "jinja_pass_arg"))  # Jinja's context or environment comes first

    @functools.wraps(function)
    def pay_and_call(*args: Any, **named: Any) -> Any:
        rest = list(args)
        if name in GROWING and isinstance(rest[skipped], Iterator):
            rest[skipped] = list(rest[skipped])  # to be measured, and then read again
        work = growth(name, rest[skipped], [*rest[skipped + 1 :], *named.values()])
        BUDGET.get().spend(STEP_WORK + work)
        return function(*rest, **named)

    return pay_and_call


class PriceTags(NodeTransformer):
    """Makes each iteration pay for itself and the text it writes, and `a ~ b` for its result."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        price = nodes.Const(STEP_WORK + written, lineno=node.lineno)
        paid = nodes.Filter(price, "_spend", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(paid, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_concat", [], [], None, None, lineno=node.lineno)


@jinja2.pass_context  # so that Jinja calls it while it renders, never while it compiles
def finalize(context: Context, value: Any) -> Any:
    BUDGET.get().spend(STEP_WORK + text_size(value))
    return value


def concatenate(parts: list[Any]) -> str:
    BUDGET.get().spend(STEP_WORK + sum(map(text_size, parts)))
    return "".join(map(str, parts))


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in which `render_limited` bounds what a template builds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=finalize, optimized=False)
        del self.globals["lipsum"]  # texts of any length, of no use in a conversation

    def render_limited(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        """Return what a template makes of the values; too costly a template is a TemplateRuntimeError."""
        budget = Budget()
        token = BUDGET.set(budget)
        try:
            budget.left += WORK_PER_CHARACTER * text_size(values)
            return template.render(values)
        finally:
            BUDGET.reset(token)

    def from_string(self, *args: Any, **options: Any) -> jinja2.Template:
        limited = {name: limit_filter(name, function) for name, function in self.filters.items()}
        spend = lambda work: BUDGET.get().spend(work)
        self.filters = limited | {"_spend": spend, "_concat": concatenate}
        return super().from_string(*args, **options)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = PriceTags().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
        receiver, work = getattr(method, "__self__", None), 0
        if isinstance(receiver, str):
            name = getattr(method, "__name__", "")
            if name == "join" and args and isinstance(args[0], Iterator):
                args = (list(args[0]), *args[1:])
            others = [receiver, *args, *named.values()]
            largest = others.pop(1 if name == "join" and args else 0)  # " ".join(parts) grows with the parts
            work = growth(name, largest, others)
        BUDGET.get().spend(CALL_WORK + work)
        return super().call(context, function, *args, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        work = 0
        if operator == "%" and isinstance(left, str):
            work = growth("format", left, list(right) if isinstance(right, tuple) else [right])
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            work = len(left) + len(right)
        elif operator == "*":
            sized, count = (left, right) if isinstance(left, Sized) else (right, left)
            if isinstance(count, int):
                work = len(sized) * count if isinstance(sized, Sized) else text_size(sized) * text_size(count)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            work = (left.bit_length() * right // 3) ** 2  # digits are multiplied with digits
        BUDGET.get().spend(STEP_WORK + max(0, work))
        return super().call_binop(context, operator, left, right)
