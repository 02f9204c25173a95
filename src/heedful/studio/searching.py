"""The search behind a task that writes with beams: the tree of each text, searched as the pipeline does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from heedful.decode.fast import stepper_where_it_pays
from heedful.decode.request import endings
from heedful.decode.stepper import Stepper
from heedful.errors import InputError
from heedful.models.base import Model, Seq2Seq
from heedful.studio import snippets
from heedful.studio.playing import WRITING, fields_of, fitting, options_of, pipe_of, prompts_of
from heedful.studio.shelf import Held
from heedful.studio.work import Ticket
from heedful.tasks.generation import NotBefore, Plan, chosen, plan
from heedful.view.beams import entries, tree

MOST = 16  # beams, and texts that have a tree


def trees(
    held: Held, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any], ticket: Ticket
) -> dict[str, Any]:
    """One tree for each text that is written: a translation goes sentence by sentence."""
    if task not in WRITING:
        raise InputError(f"{task} searches for no text; choose one of {', '.join(WRITING)}")
    pipe, given = pipe_of(held, task), fields_of(task, inputs)
    options = {k: v for k, v in options_of(task, parameters).items() if k != "truncation"}
    how = plan(chosen(task, pipe.speaker, options, {}))
    if not 2 <= how.rules.get("beams", 1) <= MOST:
        raise InputError(f"a search keeps 2 to {MOST} texts, and draws none: give beams, no temperature")
    out, said = [], list[str]()
    prompts = prompts_of(pipe, task, given)[:MOST]
    for ids, _ in prompts:
        ticket.check()
        ids, told = fitting(pipe.speaker, ids)
        said += told
        out.append(entries(pipe.speaker, searched(pipe.speaker, ids, how)))
    rules = {k: v for k, v in how.rules.items() if k not in ("n", "beams")}
    more = "".join(f", {k}={v!r}" for k, v in (rules | {"max_tokens": how.most}).items())
    call = f"heedful.view.beams(model, {prompts[0][0]!r}, beams={how.rules['beams']}{more})"
    python = snippets.script(held.entry, f"{call}.save('beams.html')", "import heedful.view")
    return {"trees": out, "warnings": said, "python": python}


def searched(model: Model, ids: list[int], how: Plan) -> Any:
    """As tasks/generation.py has it written: so many tokens at most and at least."""
    most, least = how.lengths(1 if isinstance(model, Seq2Seq) else len(ids))
    rules = {k: v for k, v in how.rules.items() if k != "n"} | {"max_tokens": most}
    by: Model | Stepper = model
    if least > 0:
        inner = stepper_where_it_pays(model, rules["beams"], most)
        by = cast(Stepper, NotBefore(inner, sorted(endings(model, rules.get("eos"))), least))
    return tree(by, ids, **rules)
