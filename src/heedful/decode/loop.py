"""stream and generate: one loop over a stepper for every model that writes.

    for piece in stream(model, "Once upon a time", max_tokens=64): print(piece.text, end="")
    generate(model, ["one", "two"], temperature=0.8, top_p=0.95, seed=0)        two texts
    generate(model, source, beams=5, length_penalty=1.0, n=3)                   the three best

A model writes one token at a time: it reads the prompt once, a token is chosen from the logits, the model
reads that token, and so on. It keeps what it computed for earlier positions (the state; for attention the
keys and values), so a step costs one token and not the whole text. The settings are those of
`decode/settings.py`. A row's text depends on its prompt, the seed and its place in the batch, never on its
neighbours. On a GPU the next steps are launched before the host reads the tokens, so that the device never
waits for Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from heedful.core.checks import takes_options_of
from heedful.core.errors import InputError
from heedful.core.progress import report_progress
from heedful.decode.engines.fallback import FastStepper
from heedful.decode.fast import choose_stepper
from heedful.decode.request import Prompt, Prompts, Request, encode_prompts, make_request
from heedful.decode.rows import GeneratedRow, Generation, Piece, TokenChooser
from heedful.decode.search import search
from heedful.decode.settings import GenerationSettings, read_settings
from heedful.decode.speculative import speculate
from heedful.decode.stepper import MAX_BURST, EagerStepper, Stepper, stepper_for
from heedful.models.base import Model

# Of steps that are taken before the host looks: on a GPU, and on a CPU, where a step ends when a text does.
BURST_SECONDS, CPU_BURST_SECONDS = 0.016, 0.05


def prepare(
    model: Model | Stepper, prompt: Prompt, settings: GenerationSettings, *, fast: bool, scored: bool = True
) -> tuple[Stepper, Prompts, Request]:
    """Check prompts and settings, and choose the stepper: the eager one if somebody watches the passes."""
    eager = stepper_for(model)
    prompts = encode_prompts(eager.model, prompt)
    request = make_request(eager.model, settings, scored=scored)
    if settings.watch is not None:
        return EagerStepper(eager.model, watch=settings.watch), prompts, request
    if not fast:
        return eager, prompts, request
    rows = len(prompts.ids) * max(settings.samples, settings.beams or 1)
    return choose_stepper(model, rows, settings.max_tokens), prompts, request


@takes_options_of(GenerationSettings)
def stream(model: Model | Stepper, prompt: Prompt, *, fast: bool = True, **settings: Any) -> Iterator[Piece]:
    """Generate a text and yield it token by token.

    >>> import heedful
    >>> model = heedful.load("prose")
    >>> pieces = list(heedful.stream(model, "It was a dark night", max_tokens=3))
    >>> len(pieces), "".join(piece.text for piece in pieces) == heedful.generate(
    ...     model, "It was a dark night", max_tokens=3)
    (3, True)

    A piece has `text`, `token` and `logprob`. `row` and `sample` tell several prompts and samples apart.

    Args:
        model: A model, or a stepper such as `heedful.fast(model)`.
        prompt: A text, a list of texts, token ids, or lists of ids. For an encoder-decoder it is the source.
        fast: Use the fast engine where it pays. False always uses the model's own steps.
        settings: The options below. A `watch` sees the pass over the prompt and every step.
    """
    chosen = read_settings(settings)
    if chosen.searches:
        raise InputError("a search has no text before its end", hint="call heedful.generate")
    return decode_tokens(*prepare(model, prompt, chosen, fast=fast))


@takes_options_of(GenerationSettings)
def generate(
    model: Model | Stepper, prompt: Prompt, *, details: bool = False, fast: bool = True, **settings: Any
) -> Any:
    """Generate a text and return it when it is finished.

    >>> import heedful
    >>> model = heedful.load("prose")
    >>> text = heedful.generate(model, "It was a dark night", max_tokens=8)     # greedy by default
    >>> texts = heedful.generate(model, "It was a dark night", max_tokens=8, temperature=0.8, n=2, seed=0)
    >>> len(texts)
    2
    >>> heedful.generate(model, "It was", max_tokens=8, beams=2, details=True).finish
    'length'

    The result has the form of the prompt: a text for a text, ids for ids, a list for a list. With `n` it is
    a list for each prompt. A text ends before `max_tokens` when the model's context is full. `details=True`
    tells you so: its `finish` is then "context". `heed generate` prints a note.

    Args:
        model: A model, or a stepper such as `heedful.fast(model)`.
        prompt: A text, a list of texts, token ids, or lists of ids. For an encoder-decoder it is the source,
            and for a vision model an image.
        details: Return a `Generation`, which also has the ids, the log-probabilities and why the text ended.
        fast: Use the fast engine where it pays. False always uses the model's own steps.
        settings: The options below. `beams` searches for the most probable text, and `contrastive` for one
            that does not repeat itself. A `watch` sees every pass.
    """
    chosen = read_settings(settings)
    stepper, prompts, request = prepare(model, prompt, chosen, fast=fast, scored=details)
    if chosen.searches:
        texts = search(stepper, prompts, request)
    else:
        pieces: list[list[list[Piece]]] = [[[] for _ in range(chosen.samples)] for _ in prompts.ids]
        for piece in decode_tokens(stepper, prompts, request):
            pieces[piece.row][piece.sample].append(piece)
        texts = [[Generation.join(sample, request.eos) for sample in row] for row in pieces]
    form: Callable[[Generation], Any] = lambda g: g if details else g.text if prompts.text else g.ids
    several = [[form(g) for g in row] if chosen.n is not None else form(row[0]) for row in texts]
    return several[0] if prompts.single else several


def decode_tokens(stepper: Stepper, prompts: Prompts, request: Request) -> Iterator[Piece]:
    """Choose a token for every row, yield it, step; rows that are done leave the batch.

    If nobody needs more than tokens, a fast stepper takes several steps at once, as many as take
    BURST_SECONDS. On a GPU the next ones are launched before the host reads the tokens of the last. What a
    row wrote after its end is dropped; no row that goes on is stepped beyond its limit.
    """
    model, samples = stepper.model, request.settings.samples
    rows = [
        GeneratedRow(model, request, ids, i, s) for i, ids in enumerate(prompts.ids) for s in range(samples)
    ]
    if request.settings.draft is not None or request.settings.lookup is not None:
        yield from (piece for row in rows for piece in speculate(stepper, row))
        return
    length = max(len(row.before) for row in rows) + max(row.limit for row in rows)
    logits = prompts.prefill(stepper, samples, length)
    on_gpu, choose = logits.device.type == "cuda", TokenChooser(model, request, rows)
    # A constraint, and a rule that may leave no token, are followed on the host, which must have read.
    ahead = 2 if on_gpu and request.guide is None and not request.settings.forbids else 1
    burst_seconds = BURST_SECONDS if on_gpu else CPU_BURST_SECONDS
    bursts = stepper if isinstance(stepper, FastStepper) and request.needs_only_logits else None
    chosen, size, steps, began = choose(logits), 1, 1, time.perf_counter()
    launched = [(copy_to_host(chosen), rows)]  # what is not read yet, of the `steps` tokens of each row
    while True:
        tokens = chosen[0][:, -1]
        more = min(size, min(row.limit for row in rows if row.finish is None) - steps)
        if more > 0 and len(launched) < ahead:  # twice, if a row left that kept others from going on
            chosen = choose(stepper.step(tokens)) if bursts is None else choose.ahead(bursts, tokens, more)
            steps += chosen[0].shape[1]
            launched.append((copy_to_host(chosen), rows))
            if len(launched) < ahead:
                continue
        read, its_rows = launched.pop(0)
        columns = read()
        count = len(columns[0][0])
        for t in range(count):
            for b, row in enumerate(its_rows):
                if row.finish is None:
                    yield row.take(*(column[b][t] for column in columns))
        report_progress("tokens", len(rows[0].ids), rows[0].limit)
        alive = [i for i, row in enumerate(rows) if row.finish is None]
        if not alive:
            return
        if len(alive) < len(rows) and not stepper.fixed_batch:
            rows, index = [rows[i] for i in alive], torch.tensor(alive, device=tokens.device)
            stepper.reorder(index)
            choose.keep(rows, index)
            chosen = (chosen[0][index],)
        now = time.perf_counter()
        seconds, began = (now - began) / count, now
        if bursts is not None and steps > 1:  # else there was no step yet
            size = max(1, min(MAX_BURST, int(burst_seconds / max(seconds, 1e-6))))


def copy_to_host(tensors: tuple[Tensor, ...]) -> Callable[[], list[list[Any]]]:
    """Start copying to the host and return a call that waits for the copy, not for later launches."""
    if tensors[0].device.type != "cuda":
        return lambda: [t.tolist() for t in tensors]
    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    copies = [p.copy_(t, non_blocking=True) for p, t in zip(pinned, tensors, strict=True)]
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> list[list[Any]]:
        copied.synchronize()
        return [c.tolist() for c in copies]

    return wait
