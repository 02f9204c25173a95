"""The Python behind a figure: lines that run as they stand and give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heedful.studio.model_registry import Entry

if TYPE_CHECKING:
    from heedful.studio.traces import Trace

# What each view adds: its imports, and its last lines. {given} is text and target, {options} what was chosen.
VIEWS: dict[str, tuple[str, str]] = {
    "attention": (
        "from heedful.inspect.attention import attention",
        "seen = attention(model, {given})\nprint(seen[{name!r}].values[{head}])  # (queries, keys)",
    ),
    "words": (
        "import heedful.view",
        "print(heedful.view.attention(model, {given}, {options}).to_csv())",
    ),
    "heads": (
        "from heedful.inspect.attention import head_scores",
        "for score in head_scores(model, {given}):\n    print(score)",
    ),
    "rollout": (
        "from heedful.inspect.attention import rollout",
        "print(rollout(model, {given}, side={side!r}))",
    ),
    "effects": (
        "from heedful.inspect.effects import head_effects",
        "print(head_effects(model, {given}{mean}))",
    ),
    "tensor": (
        "from heedful.inspect.inputs import reading",
        "watch = heedful.Watch({name!r})\nreading(model, {given}).run(model, watch)\nprint(watch[{name!r}])",
    ),
    "states": (
        "from heedful.inspect.inputs import reading",
        'watch = heedful.Watch("*")\nreading(model, {given}).run(model, watch)\n'
        "for name in watch:\n    print(name, tuple(watch[name].shape))",
    ),
    "lens": (
        "from heedful.inspect.lens import logit_lens",
        "lens = logit_lens(model, {given})\nfor layer, top in zip(lens.layers, lens.top(5)):\n"
        "    print(layer, top[-1])",
    ),
    "surprisal": ("from heedful.inspect.lens import surprisal", "print(surprisal(model, {given}))"),
    "neighbours": (
        "from heedful.inspect.lens import neighbours",
        "print(neighbours(model, {given}, name={name!r}, count={count}))",
    ),
    "reach": (
        "from heedful.inspect.gradients import gradient_by_distance",
        "print(gradient_by_distance(model, {text}).relative)",
    ),
    "attribution": (
        "from heedful.inspect.gradients import attribution",
        "print(attribution(model, {given}, answer={answer!r}, position={position}, method={method!r}))",
    ),
    "steps": ("", "print(heedful.explain(model, {given}, {options}))"),
    "next_token": (
        "from heedful.inspect.inputs import reading",
        "logits = reading(model, {given}).run(model)[0, {position}]\n"
        "best = logits.float().softmax(-1).topk(10)\n"
        "print(list(zip(model.tokenizer.tokens(best.indices.tolist()), best.values.tolist())))",
    ),
    "output": (
        "from heedful.inspect.inputs import reading",
        "print(reading(model, {given}).run(model))",
    ),
    "ablate": (
        "from heedful.inspect.change import ablate",
        "changed = ablate(model, {given}, {options}{mean})\nprint(changed.change)  # nats, at each position",
    ),
}  # fmt: skip


def loading(entry: Entry) -> str:
    """The line that gives `model`, or `vectors`."""
    if entry.vectors:
        return f"vectors = heedful.Word2Vec.load({str(entry.path)!r})"
    loaded_model = f"heedful.load({entry.name!r})"
    return f"model = heedful.merge({loaded_model})" if entry.adapted else f"model = {loaded_model}"


def script(entry: Entry, lines: str, imports: str = "") -> str:
    head = ["import heedful"] + ([imports] if imports else [])
    return "\n".join([*head, "", loading(entry), lines])


def of_trace(trace: Trace, view: str, **options: Any) -> str:
    """A view of what a trace read; ids stand in place of the text where the text alone would not do."""
    text, first, needs = repr(trace.text), "", ""
    if trace.text is None:
        text = repr(trace.given.ids[0].tolist())
        if trace.given.types is not None:  # ids alone do not say which of two texts a token is of
            types = trace.given.types.tolist()
            first, needs = f"given = Input(torch.tensor([{text}]), (), types=torch.tensor({types}))\n", _TYPED
            text = "given"
    given = text if trace.given.target is None else f"{text}, {trace.given.target[0].tolist()!r}"
    if trace.edits.any and view == "words":
        view, options = "attention", {"name": options["layer"], "head": options["head"]}
    if trace.edits.any and view in ("attention", "tensor", "next_token", "output"):
        return script(trace.entry, first + _edit_lines(trace, view, (given, text), options), needs + _EDITED)
    imports, lines = VIEWS[view]
    spread = ", ".join(f"{k}={v!r}" for k, v in options.items() if v is not None and k != "mean")
    defaults: Mapping[str, Any] = {"name": "", "head": 0, "side": "", "count": 5, "position": -1}
    values = dict(defaults) | {"answer": None, "method": "integrated"} | options
    values["mean"] = _mean(trace, text) if options.get("mean") else ""
    needs += "from heedful.inspect.inputs import reading\n" * values["mean"].startswith(", mean=reading")
    lines = first + lines.format(given=given, text=text, options=spread, **values)
    return script(trace.entry, lines, needs + imports)


def edits_of(trace: Trace) -> dict[str, Any]:
    """What was switched off, as keywords."""
    edits = trace.edits
    return {"heads": dict(edits.heads), "layers": list(edits.layers), "mean": edits.mean is not None}


def _mean(trace: Trace, text: str) -> str:
    """The keyword that puts a mean in the place of what is off: over a reference, or over what was read."""
    if trace.edits.reference is not None:
        return f", mean={trace.edits.reference!r}"
    target = trace.given.target
    return f", mean={text}" if target is None else f", mean=reading(model, {text}, {target[0].tolist()!r})"


_TYPED = "import torch\nfrom heedful.inspect.inputs import Input\n"
_EDITED = "from heedful.inspect.change import without\nfrom heedful.inspect.inputs import reading"


def _edit_lines(trace: Trace, view: str, read: tuple[str, str], options: Mapping[str, Any]) -> str:
    given, text = read
    heads, layers = dict(trace.edits.heads), list(trace.edits.layers)
    usual = _mean(trace, text) if trace.edits.mean is not None else ""
    watch = f"watch = without(model, heads={heads!r}, layers={layers!r}{usual})"
    run = f"logits = reading(model, {given}).run(model, watch)"
    if view in ("next_token", "output"):
        return f"{watch}\n{run}\nprint(logits[0, {options.get('position', -1)}])"
    name = str(options.get("name", "")).removesuffix(".pattern") + ".pattern" * (view == "attention")
    return f"{watch}\nwatch.names = ({name!r},)\n{run}\nprint(watch[{name!r}])"
