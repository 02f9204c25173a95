"""A task written with beams: one search gives the text and the tree of everything that was weighed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from heedful.classroom.figures.beams import Tree, tree_data
from heedful.classroom.figures.beams import trees as trees_of
from heedful.classroom.studio import snippets
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.task_runner import (
    cut_prompt,
    form_inputs,
    is_generating,
    open_pipeline,
    pipeline_options,
)
from heedful.classroom.studio.workers import Ticket
from heedful.core.errors import InputError
from heedful.decode.detokenizer import decode_after
from heedful.decode.fast import choose_stepper
from heedful.decode.request import eos_ids
from heedful.decode.stepper import Stepper
from heedful.models.base import Model, Seq2Seq
from heedful.tasks.generation import (
    GENERATION_BATCH_SIZE,
    GenerationPlan,
    MinLengthStepper,
    merge_options,
    plan_generation,
)
from heedful.tasks.pipeline import TASKS

MOST = 16  # beams, and texts whose tree is shown
USUAL = {"max_new_tokens": 128}


class SearchListener(MinLengthStepper):
    """It stops where it is as soon as nobody waits for the text any more."""

    def __init__(self, inner: Stepper, ends: Sequence[int], min_interval: int, ticket: Ticket) -> None:
        super().__init__(inner, ends, min_interval)
        self.ticket = ticket

    def step(self, tokens: Tensor) -> Tensor:
        self.ticket.check()
        return super().step(tokens)


def search_beams(
    loaded_model: LoadedModel,
    task: str,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    ticket: Ticket,
) -> dict[str, Any]:
    """The text that was found and one tree for each part of it: a translation goes sentence by sentence."""
    if not is_generating(task):
        known = ", ".join(filter(is_generating, TASKS))
        raise InputError(f"{task} searches for no text", hint=f"choose one of {known}")
    began, pipe, given = time.perf_counter(), open_pipeline(loaded_model, task), form_inputs(task, inputs)
    options = {k: v for k, v in pipeline_options(task, parameters).items() if k != "truncation"}
    how = plan_search(task, pipe.generator, options, parameters.get("temperature"))
    parts = [(*cut_prompt(pipe.generator, whole), gap) for whole, gap in pipe.prompt_parts(*given)]
    prompts, notes = [ids for ids, *_ in parts], [note for _, cut, _ in parts for note in cut]
    if len(prompts) > MOST:
        notes.append(f"{len(prompts)} sentences were searched; the trees of the first {MOST} are shown")
    some = [prompts[i : i + GENERATION_BATCH_SIZE] for i in range(0, len(prompts), GENERATION_BATCH_SIZE)]
    found = [tree for batch in some for tree in search_trees(pipe.generator, batch, how, ticket)]
    best, ends = [tree.ids(tree.found[0]) for tree in found], eos_ids(pipe.generator, how.rules.get("eos"))
    kept = [ids[:-1] if ids[-1] in ends else ids for ids in best]
    texts = [decode_after(pipe.generator, *row) for row in zip(prompts, kept, strict=True)]
    texts = texts if task == "text-generation" else [text.strip() for text in texts]
    shown = zip(prompts[:MOST], found, strict=False)
    call = ", ".join([*map(repr, given), *(f"{k}={v!r}" for k, v in options.items())])
    lines = f"nlp = heedful.pipeline({task!r}, model=model)\nprint(nlp({call}))"
    trees = [
        tree_data(pipe.generator, tree) | {"python": search_snippet(loaded_model, ids, how)}
        for ids, tree in shown
    ]
    return {
        "text": "".join(text + gap for text, (*_, gap) in zip(texts, parts, strict=True)),
        "finish": "end" if best[-1][-1] in ends else "length", "tokens": sum(map(len, best)),
        "seconds": round(time.perf_counter() - began, 3), "warnings": notes,
        "python": snippets.script(loaded_model.entry, lines),
        "trees": trees,
    }  # fmt: skip


def plan_search(
    task: str, model: Model, options: Mapping[str, Any], temperature: float | None
) -> GenerationPlan:
    """Return the settings of a search, or raise InputError for those that draw or keep one text only."""
    if temperature:
        raise InputError(
            f"beams search for the likeliest text, a temperature of {temperature} draws",
            hint="set it to 0, or beams to 1",
        )
    plan = plan_generation(merge_options(task, model, options, USUAL))
    if not 2 <= plan.rules.get("beams", 1) <= MOST:
        raise InputError(f"a search keeps 2 to {MOST} texts", hint="give beams")
    return plan


def search_trees(
    model: Model, prompts: list[list[int]], settings: GenerationPlan, ticket: Ticket
) -> list[Tree]:
    """The trees of some prompts, side by side; so many tokens at most and at least as the pipeline takes."""
    ticket.check()
    most, least = settings.token_range(
        1 if isinstance(model, Seq2Seq) else len(prompts[0])
    )  # a decoder reads one
    rules = {k: v for k, v in settings.rules.items() if k != "n"} | {"max_tokens": most}
    inner = choose_stepper(model, rules["beams"] * len(prompts), most)
    ends = sorted(eos_ids(model, rules.get("eos")))
    return trees_of(SearchListener(inner, ends, max(least, 0), ticket), prompts, **rules)


def search_snippet(loaded_model: LoadedModel, ids: list[int], settings: GenerationPlan) -> str:
    """The lines that draw one tree."""
    rules = {k: v for k, v in settings.rules.items() if k != "n"} | {"max_tokens": settings.max_tokens}
    call = f"heedful.view.beams(model, {ids!r}, {', '.join(f'{k}={v!r}' for k, v in rules.items())})"
    return snippets.script(loaded_model.entry, f"{call}.save('beams.html')", "import heedful")
