"""Every task through heedful.pipeline: the fields of a form as a pipeline takes them, whole or streamed."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from heedful.classroom.studio import snippets, vector_space
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.tokens import tidy
from heedful.classroom.studio.workers import Ticket
from heedful.core.errors import InputError
from heedful.decode.loop import Piece, stream
from heedful.decode.request import context_length
from heedful.models.base import Model, Seq2Seq
from heedful.tasks.generation import GeneratingTask
from heedful.tasks.pipeline import TASKS, pipeline
from heedful.word2vec import Word2Vec

VECTOR_FIELDS = {"neighbours": ("word",), "analogy": ("a", "b", "c")}  # of word vectors
# What the page calls a setting of generation → what a pipeline calls it.
SETTING_NAMES = {"max_tokens": "max_new_tokens", "beams": "num_beams", "n": "num_return_sequences"}


def is_generating(task: str) -> bool:
    """Return whether a task writes text."""
    return task in TASKS and issubclass(TASKS[task].load(), GeneratingTask)


def form_inputs(task: str, inputs: Mapping[str, Any]) -> list[Any]:
    """Return what the pipeline is called with; texts are made fit to be written in UTF-8."""
    if task not in TASKS and task not in VECTOR_FIELDS:
        known = ", ".join([*TASKS, *VECTOR_FIELDS])
        raise InputError(f"no task is called {task[:60]!r}", hint=f"there are {known}")
    fields = VECTOR_FIELDS[task] if task in VECTOR_FIELDS else TASKS[task].load().fields
    if fields == ("image",) and not inputs.get("image"):
        fields = ("text",)  # which is drawn as an image
    empty = lambda value: not (value.strip() if isinstance(value, str) else value)
    if missing := [name for name in fields if empty(inputs.get(name))]:
        raise InputError(f"{task} needs {' and '.join(missing)}", hint="nothing was given")
    return [_clean(inputs[name]) for name in fields]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return tidy(value)[0]
    if isinstance(value, list):
        return [_clean(v) for v in value]
    return {k: _clean(v) for k, v in value.items()} if isinstance(value, dict) else value


def pipeline_options(task: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the pipeline's names; without a temperature the likeliest token is taken."""
    kind = TASKS[task].load()
    given = {k: v for k, v in parameters.items() if v is not None}
    # What is too long is cut and reported; where it can be cut.
    cut = {"truncation": True} if "truncation" in inspect.signature(kind.predict).parameters else {}
    if not is_generating(task):
        return {**kind.form_options, **given, **cut}
    temperature = float(given.pop("temperature", 0) or 0)
    if not temperature:
        given = {k: v for k, v in given.items() if k not in ("top_k", "top_p", "min_p")}
    sampling = {"do_sample": temperature > 0} | ({"temperature": temperature} if temperature > 0 else {})
    return {SETTING_NAMES.get(k, k): v for k, v in given.items()} | sampling | cut


def run_task(
    loaded_model: LoadedModel,
    task: str,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    lock: threading.Lock,
) -> tuple[Any, list[str], str]:
    """Return the result, the warnings on the way, and the Python that gives it."""
    given = form_inputs(task, inputs)
    if isinstance(loaded_model.model, Word2Vec):
        return _with_vectors(loaded_model, task, given, parameters)
    if task in VECTOR_FIELDS:
        raise InputError(
            f"{task} is asked of word vectors", hint=f"of {loaded_model.id} ask it on the page of embeddings"
        )
    options, pipe = pipeline_options(task, parameters), open_pipeline(loaded_model, task)
    called = ", ".join([*map(repr, given), *(f"{k}={v!r}" for k, v in options.items())])
    lines = f"nlp = heedful.pipeline({task!r}, model=model)\nprint(nlp({called}))"
    # Python keeps one list of filters for all threads: who listens for warnings does so alone.
    with lock, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = pipe(*given, **options)
    told = [str(w.message) for w in said if issubclass(w.category, UserWarning)]
    if task == "conversational":
        result = result[-1]
    return result, told, snippets.script(loaded_model.entry, lines)


def open_pipeline(loaded_model: LoadedModel, task: str) -> Any:
    """Return the pipeline, made once for each task."""
    key = f"pipe {task}"
    if key not in loaded_model.memo:  # already in the model's thread
        loaded_model.memo[key] = pipeline(task, model=loaded_model.sequence)
    return loaded_model.memo[key]


def _with_vectors(
    loaded_model: LoadedModel, task: str, inputs: list[Any], parameters: Mapping[str, Any]
) -> tuple[Any, list[str], str]:
    vectors, count = loaded_model.vectors, int(parameters.get("count") or 10)
    if task not in VECTOR_FIELDS:
        can = "it has neighbours and analogy"
        raise InputError(f"{loaded_model.id} is a table of word vectors and cannot do {task}", hint=can)
    words = [vector_space.find_token(vectors, str(w)) for w in inputs]
    if task == "neighbours":
        call, found = f"vectors.neighbours({words[0]!r}, {count})", vectors.neighbours(words[0], count)
    else:
        call = f"vectors.analogy({words[0]!r}, {words[1]!r}, {words[2]!r}, {count})"
        found = vectors.analogy(words[0], words[1], words[2], count)
    return (
        vector_space.rank_tokens(loaded_model, found),
        [],
        snippets.script(loaded_model.entry, f"print({call})"),
    )


def generate_text(
    loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any],
    ticket: Ticket,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Generate token by token in the thread that owns the model and report each; return the last event."""
    if not is_generating(task):
        raise InputError(f"{task} writes nothing that could be streamed", hint="leave stream out")
    pipe, given = open_pipeline(loaded_model, task), form_inputs(task, inputs)
    settings = {
        k: parameters.get(k) for k in ("temperature", "top_k", "top_p", "min_p", "seed", "repetition")
    }
    if not settings["temperature"]:
        settings = {"seed": settings["seed"]}
    most = int(parameters.get("max_tokens") or 128)
    said: list[str] = []
    text, count, finish = "", 0, "end"
    prompts = pipe.prompt_parts(*given)
    for ids, gap in prompts:
        ids, cut = cut_prompt(loaded_model.sequence, ids)
        said += cut
        for piece in stream(
            pipe.generator, ids, max_tokens=most, **{k: v for k, v in settings.items() if v is not None}
        ):
            ticket.check()
            count, finish, text = count + 1, piece.finish or finish, text + piece.text
            report(_token(piece))
        if gap:
            text += gap
            report({"event": "token", "text": gap, "token": None, "logprob": None})
    options = ", ".join(f"{k}={v!r}" for k, v in settings.items() if v is not None)
    call = f"heedful.stream(model, {prompts[0][0]!r}, max_tokens={most}{', ' + options if options else ''})"
    lines = f"for piece in {call}:\n    print(piece.text, end='', flush=True)"
    return {
        "event": "done", "text": text, "finish": finish, "tokens": count, "warnings": said,
        "python": snippets.script(loaded_model.entry, lines),
    }  # fmt: skip


def cut_prompt(model: Model, ids: list[int]) -> tuple[list[int], list[str]]:
    """Return as much of a prompt as the model reads, and a line that says what was cut.

    Of a source the beginning and its end token stay; of what is gone on with the end, and room to write.
    """
    reach = context_length(model, source=True)
    if reach is None or len(ids) <= reach - (not isinstance(model, Seq2Seq)):
        return ids, []
    if isinstance(model, Seq2Seq):
        kept, side = [*ids[: reach - 1], ids[-1]], "last"
    else:
        kept, side = ids[-max(1, reach - max(1, min(64, reach // 4))) :], "first"
    told = f"the text has {len(ids):,} tokens and this model reads {reach:,}"
    return kept, [f"{told}: the {side} {len(ids) - len(kept):,} were cut"]


def _token(piece: Piece) -> dict[str, Any]:
    return {"event": "token", "text": piece.text, "token": piece.token, "logprob": piece.logprob}
