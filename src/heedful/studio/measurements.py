"""Two models measured on the spot: how sure they are by place, and how fast they read and write."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from heedful.data.tokenization import find_template
from heedful.decode.loop import stream
from heedful.decode.request import context_length
from heedful.errors import InputError
from heedful.inspect.inputs import Input, names_of, reading
from heedful.inspect.lens import loss_by_position
from heedful.models.base import LM, Model, Seq2Seq
from heedful.studio import snippets, tokens
from heedful.studio.capabilities import probe
from heedful.studio.model_registry import LoadedModel
from heedful.studio.workers import Ticket

READ, HIDDEN = 2048, 96  # tokens whose loss is taken; of an encoder, which hides each in turn
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
WRITE = 8  # tokens written to time one
PATIENCE = 1.5  # seconds for one point; longer inputs are then left out


def windows(model: Model, text: str, length: int) -> list[Input]:
    """A text in pieces of so many tokens, each between the special tokens its model knows; a rest is left out
    unless it is all there is.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so no text can be cut for it", hint="choose another")
    around, hides = find_template(tokenizer), isinstance(model, LM) and not model.causal
    ids = tokenizer.encode(tokens.tidy(text)[0], special=False)[: HIDDEN if hides else READ]
    if len(ids) < 2:
        raise InputError("the text is too short", hint="give at least two tokens")
    reach = context_length(model) or READ
    room = max(1, min(length, reach - len(around.before) - len(around.after)))
    cut = [ids[i : i + room] for i in range(0, len(ids), room)]
    whole = [c for c in cut if len(c) == room] or cut
    rows = [[*around.before, *c, *(around.after if hides else ())] for c in whole]
    return [Input(torch.tensor([row], device=model.device), names_of(model, row)) for row in rows]


def losses(loaded_model: LoadedModel, text: str, target: str | None, length: int) -> dict[str, Any]:
    """Mean −log p by place, in nats, over the windows of a text; of an encoder-decoder over its target."""
    model = loaded_model.sequence
    if not isinstance(model, Seq2Seq):
        cut = windows(model, text, length)
        said = repr([i.ids[0].tolist() for i in cut])
    elif target:
        cut = [reading(model, text, target)]
        said = f"[reading(model, {text!r}, {target!r})]"
    else:
        raise InputError("an encoder-decoder is sure of a target", hint="give one")
    found = loss_by_position(model, cut)
    places = [t for t, v in enumerate(found.loss) if v is not None]
    imports = "from heedful.inspect.inputs import reading\nfrom heedful.inspect.lens import loss_by_position"
    return {
        "model": loaded_model.id, "position": places, "loss": [found.loss[t] for t in places],
        "count": [found.count[t] for t in places], "windows": len(cut), "length": cut[0].read.shape[1],
        "hidden": isinstance(model, LM) and not model.causal,
        "python": snippets.script(loaded_model.entry, f"print(loss_by_position(model, {said}))", imports),
    }  # fmt: skip


def best_of(function: Callable[[], None], ticket: Ticket, times: int = 3) -> float:
    """The least of a few times, in seconds: what else the machine does only ever adds."""
    spent = []
    for _ in range(times):
        ticket.check()
        began = time.perf_counter()
        function()
        spent.append(time.perf_counter() - began)
        if sum(spent) > PATIENCE:
            break
    return min(spent)


def lengths_of(model: Model) -> list[int]:
    """The lengths that a model reads and still has room to write behind."""
    reach = context_length(model, source=True)
    room = LENGTHS[-1] if reach is None else reach - (0 if isinstance(model, Seq2Seq) else WRITE + 1)
    return [n for n in LENGTHS if n <= room] or [max(1, room)]


@torch.no_grad()
def speeds(loaded_model: LoadedModel, ticket: Ticket) -> dict[str, Any]:
    """Tokens a second by length: read at once, and written one by one behind so many."""
    model = loaded_model.sequence
    few = probe(model)
    few.run(model)  # the first pass of a model is slower than all others
    read: list[tuple[int, float]] = []
    wrote: list[tuple[int, float]] = []
    for n in lengths_of(model):
        row = few.ids[0, :1].repeat(n)
        given = Input(row[None], ("",) * n, few.target, few.target_tokens)
        spent = best_of(lambda given=given: given.run(model), ticket)  # type: ignore[misc]
        read.append((n, n / spent))
        if spent > PATIENCE:
            break
        if isinstance(model, Seq2Seq) or (isinstance(model, LM) and model.causal):
            ticket.check()
            wrote.append((n, WRITE / min(writing(model, row.tolist()) for _ in range(4))))
    curve = lambda rows: {"length": [n for n, _ in rows], "rate": [rate for _, rate in rows]}
    return {
        "model": loaded_model.id, "read": curve(read), "write": curve(wrote) if wrote else None,
        "threads": torch.get_num_threads(), "device": str(model.device),
        "python": _python(loaded_model, read),
    }  # fmt: skip


def writing(model: Model, ids: list[int]) -> float:
    """Seconds for WRITE tokens behind these; the first, for which all of them are read, is not counted."""
    pieces = stream(model, ids, max_tokens=WRITE + 1, eos=())
    next(pieces)
    began = time.perf_counter()
    for _ in pieces:
        pass
    return time.perf_counter() - began


def _python(loaded_model: LoadedModel, reading: Sequence[tuple[int, float]]) -> str:
    call = "model(ids, ids[:, :2])" if isinstance(loaded_model.model, Seq2Seq) else "model(ids)"
    lines = [
        f"for length in {[n for n, _ in reading]!r}:", "    ids = torch.zeros(1, length, dtype=torch.long)",
        "    began = time.perf_counter()", "    with torch.no_grad():", f"        {call}",
        "    print(length, length / (time.perf_counter() - began), 'tokens a second')",
    ]  # fmt: skip
    return snippets.script(loaded_model.entry, "\n".join(lines), "import time\nimport torch")
