"""The Python behind a number: the call that computed it, in lines that run as they stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import heedful
from heedful.classroom import figures as view
from heedful.classroom.studio.model_registry import Entry
from heedful.core.images import draw_text
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import Input, reading
from heedful.interp.intervene.ablation import ablate, head_effects, without
from heedful.interp.observe.attention import attention, head_scores, rollout
from heedful.interp.observe.lens import logit_lens, neighbours, surprisal
from heedful.interp.observe.recurrent_states import states

if TYPE_CHECKING:
    from heedful.classroom.studio.traces import Trace

# What each view calls, and what it shows of the result.
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "attention": (attention, "[{name!r}].values[{head}]"),
    "words": (view.attention, ".to_csv()"),
    "heads": (head_scores, ""),
    "rollout": (rollout, ""),
    "effects": (head_effects, ""),
    "states": (states, ""),
    "lens": (logit_lens, ".top(5)"),
    "surprisal": (surprisal, ""),
    "neighbours": (neighbours, ""),
    "reach": (gradient_by_distance, ".relative"),
    "attribution": (attribution, ""),
    "steps": (heedful.explain, ""),
    "ablate": (ablate, ".change"),
}
# What each view prints of the pass itself: `logits`, and what was watched under a name.
PASSES = {
    "tensor": "print(watch[{name!r}])",
    "output": "print(logits)",
    "next_token": "best = logits[0, {position}].float().softmax(-1).topk(10)\n"
    "print(list(zip(model.tokenizer.tokens(best.indices.tolist()), best.values.tolist())))",
}
VIEWS = (*CALLS, *PASSES)


class Code(str):
    """A piece of Python that stands in a snippet as it is, and not as a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def script(entry: Entry, lines: str, imports: str = "") -> str:
    """Return lines behind those that load the model as `model`, or word vectors as `vectors`."""
    load = f"model = heedful.load({entry.name!r})"
    if entry.vectors:
        load = f"vectors = heedful.Word2Vec.load({str(entry.path)!r})"
    elif entry.needs_merge:
        load = f"model = heedful.merge(heedful.load({entry.name!r}))"
    return "\n".join(["import heedful", *imports.splitlines(), "", load, lines])


def import_lines(*objects: Any) -> str:
    """Return the lines that import functions and classes from where they are defined."""
    return "".join(f"from {one.__module__} import {one.__name__}\n" for one in objects)


def call_text(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """Return the line that imports a function, and its call; options that are None are left out."""
    written = [repr(a) for a in arguments] + [f"{k}={v!r}" for k, v in options.items() if v is not None]
    name = function.__name__
    if getattr(heedful, name, None) is function:
        imports, name = "", f"heedful.{name}"
    elif getattr(view, name, None) is function:
        imports, name = "", f"heedful.view.{name}"
    else:
        imports = import_lines(function)
    return imports, f"{name}({', '.join(written)})"


def of_model(entry: Entry, function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the lines that print `function(model, …)`."""
    imports, call = call_text(function, Code("model"), *arguments, **options)
    return script(entry, f"print({call})", imports)


def of_trace(trace: Trace, view_name: str, **options: Any) -> str:
    """Return the lines of a view of what a trace read; a function takes those options that it knows."""
    if trace.edit.any_off and view_name in ("attention", "words"):
        name = str(options.get("name") or options.get("layer")).removesuffix(".pattern") + ".pattern"
        return of_pass(trace, "tensor", name=name)
    if view_name in PASSES:
        return of_pass(trace, view_name, **options)
    function, suffix = CALLS[view_name]
    return of_call(trace, function, suffix.format(**{"name": "", "head": 0} | options), **options)


def of_call(trace: Trace, function: Callable[..., Any], suffix: str = "", **options: Any) -> str:
    """Return the lines that call `function(model, text, …)` on what a trace read, and print what is shown."""
    parameters = inspect.signature(function).parameters
    given, first, needs = input_code(trace)
    if options.pop("mean", None):
        options["mean"], more = mean_code(trace)
        needs += more
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        keywords = options
    else:
        keywords = {name: value for name, value in options.items() if name in parameters}
    arguments = given if "target" in parameters else given[:1] if {"text", "image"} & set(parameters) else []
    subject = Code("vectors" if trace.entry.vectors else "model")
    imports, call = call_text(function, subject, *arguments, **keywords)
    return script(trace.entry, f"{first}seen = {call}\nprint(seen{suffix})", needs + imports)


def of_pass(
    trace: Trace, view_name: str = "output", lines: str = "", imports: str = "", **options: Any
) -> str:
    """Return the lines that run the model as the trace did, which gives `logits`, and then other lines."""
    given, first, needs = input_code(trace)
    edit, names = trace.edit, [options["name"]] if view_name == "tensor" else []
    needs += import_lines(reading)
    watch = f"watch = heedful.Watch({', '.join(map(repr, names))})\n" if names else ""
    if edit.any_off:
        switched: dict[str, Any] = {"heads": edit.heads, "layers": edit.layers}
        if edit.mean:
            switched["mean"], more = mean_code(trace)
            needs += more
        _, call = call_text(without, Code("model"), **switched)
        watch = f"watch = {call}\n" + (f"watch.names = {tuple(names)!r}\n" if names else "")
        needs += import_lines(without)
    run = f"logits = reading(model, {', '.join(map(repr, given))}).run(model{', watch' if watch else ''})\n"
    last = lines or PASSES[view_name].format(**{"position": -1, "name": ""} | options)
    return script(trace.entry, first + watch + run + last, needs + imports)


def input_code(trace: Trace) -> tuple[list[Any], str, str]:
    """Return what a trace read as arguments, the lines before, and imports; ids if the text would not do."""
    text: Any = trace.text
    first = needs = ""
    if trace.given.ids.is_floating_point():  # an image, which the text was drawn as
        height, width = trace.given.ids.shape[2:]
        text, needs = Code(f"draw_text({text!r}, {height}, {width})"), import_lines(draw_text)
    elif text is None:
        text = trace.given.ids[0].tolist()
        if trace.given.types is not None:  # ids alone do not say which of two texts a token is of
            types = trace.given.types.tolist()
            first = f"given = Input(torch.tensor([{text}]), (), types=torch.tensor({types}))\n"
            text, needs = Code("given"), "import torch\n" + import_lines(Input)
    target = trace.given.target
    return [text] if target is None else [text, target[0].tolist()], first, needs


def mean_code(trace: Trace) -> tuple[Any, str]:
    """Return what takes the place of what is off, a reference or what was read, and what it must import."""
    if trace.edit.reference:
        return trace.edit.reference, ""
    given, _, _ = input_code(trace)
    if len(given) == 1:
        return given[0], ""
    return Code(f"reading(model, {given[0]!r}, {given[1]!r})"), import_lines(reading)
