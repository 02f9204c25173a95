"""Every task through heedful.pipeline: what a page sends as a pipeline takes it, whole or token by token."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from heedful.decode.loop import Piece, stream
from heedful.decode.request import context_length
from heedful.errors import InputError
from heedful.models.base import Model, Seq2Seq
from heedful.studio import snippets, vector_space
from heedful.studio.model_registry import LoadedModel
from heedful.studio.tokens import tidy
from heedful.studio.workers import Ticket
from heedful.word2vec import Word2Vec

WRITING = ("text-generation", "conversational", "translation", "summarization", "text2text-generation")
# A task → the fields it reads, in the order the pipeline takes them.
FIELDS: dict[str, tuple[str, ...]] = {
    "text-classification": ("text",), "token-classification": ("text",), "fill-mask": ("text",),
    "question-answering": ("question", "context"), "next-sentence": ("first", "second"),
    "sentence-similarity": ("source", "sentences"), "zero-shot-classification": ("text", "labels"),
    "feature-extraction": ("text",), "text-generation": ("text",), "conversational": ("messages",),
    "translation": ("text",), "summarization": ("text",), "text2text-generation": ("text",),
    "neighbours": ("word",), "analogy": ("a", "b", "c"),
}  # fmt: skip
# What the page calls a setting of writing → what a pipeline calls it.
SETTINGS = {"max_tokens": "max_new_tokens", "beams": "num_beams", "n": "num_return_sequences"}
USUAL = {"token-classification": {"aggregation_strategy": "simple"}}
CUTS = (
    "text-classification",
    "fill-mask",
    "next-sentence",
    "zero-shot-classification",
    "token-classification",
)


def fields_of(task: str, inputs: Mapping[str, Any]) -> list[Any]:
    """What the pipeline is called with; texts are made fit to be written in UTF-8."""
    if task not in FIELDS:
        raise InputError(f"no task is called {task[:60]!r}", hint=f"there are {', '.join(FIELDS)}")
    missing = [name for name in FIELDS[task] if _blank(inputs.get(name))]
    if missing:
        raise InputError(f"{task} needs {' and '.join(missing)}", hint="nothing was given")
    return [_clean(inputs[name]) for name in FIELDS[task]]


def _blank(value: Any) -> bool:
    return not (value.strip() if isinstance(value, str) else value)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return tidy(value)[0]
    if isinstance(value, list):
        return [_clean(v) for v in value]
    return {k: _clean(v) for k, v in value.items()} if isinstance(value, dict) else value


def options_of(task: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the pipeline's names; without a temperature the likeliest token is taken."""
    given = {k: v for k, v in parameters.items() if v is not None}
    if task not in WRITING:
        found = USUAL.get(task, {}) | given
        return found | {"truncation": True} if task in CUTS else found
    warm = float(given.pop("temperature", 0) or 0)
    drawn = {"do_sample": warm > 0} | ({"temperature": warm} if warm > 0 else {})
    if not warm:
        given = {k: v for k, v in given.items() if k not in ("top_k", "top_p", "min_p")}
    cut = {} if task == "conversational" else {"truncation": True}
    return {SETTINGS.get(k, k): v for k, v in given.items()} | drawn | cut


def run_task(
    loaded_model: LoadedModel,
    task: str,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    lock: threading.Lock,
) -> tuple[Any, list[str], str]:
    """The result, what was said on the way, and the Python."""
    given = fields_of(task, inputs)
    if isinstance(loaded_model.model, Word2Vec):
        return _with_vectors(loaded_model, task, given, parameters)
    options = options_of(task, parameters)
    if task in ("neighbours", "analogy"):
        raise InputError(
            f"{task} is asked of word vectors", hint=f"of {loaded_model.id} ask it on the page of embeddings"
        )
    pipe = pipe_of(loaded_model, task)
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


def pipe_of(loaded_model: LoadedModel, task: str) -> Any:
    """The pipeline, made once for each task."""
    from heedful.tasks.pipeline import pipeline

    key = f"pipe {task}"
    if key not in loaded_model.memo:  # already in the model's thread
        loaded_model.memo[key] = pipeline(task, model=loaded_model.sequence)
    return loaded_model.memo[key]


def _with_vectors(
    loaded_model: LoadedModel, task: str, inputs: list[Any], parameters: Mapping[str, Any]
) -> tuple[Any, list[str], str]:
    vectors, count = loaded_model.vectors, int(parameters.get("count") or 10)
    if task not in ("neighbours", "analogy"):
        can = "it has neighbours and analogy"
        raise InputError(f"{loaded_model.id} is a table of word vectors and cannot do {task}", hint=can)
    words = [vector_space.find_token(loaded_model, vectors, str(w)) for w in inputs]
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


def prompts_of(pipe: Any, task: str, inputs: list[Any]) -> list[tuple[list[int], str]]:
    """What is read, as ids, and what stands behind it; a translation goes sentence by sentence."""
    if task == "conversational":
        return [(pipe.chat_ids(inputs[0]), "")]
    if task == "text-generation":
        return [(pipe.prompt_ids(inputs[0], "", None), "")]
    if task == "translation":
        from heedful.tasks.text2text import split_into_sentences

        before = pipe.direction(None, None)
        return [(pipe.source_ids(before + text), gap) for text, gap in split_into_sentences(inputs[0])]
    return [(pipe.prompt(inputs[0], None), "")]


def generate_text(
    loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any],
    ticket: Ticket,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Token by token, in the thread that owns the model; `tell` is called with each. What `done` says."""
    if task not in WRITING:
        raise InputError(f"{task} writes nothing that could be streamed", hint="leave stream out")
    pipe, given = pipe_of(loaded_model, task), fields_of(task, inputs)
    settings = {
        k: parameters.get(k) for k in ("temperature", "top_k", "top_p", "min_p", "seed", "repetition")
    }
    if not settings["temperature"]:
        settings = {"seed": settings["seed"]}
    most = int(parameters.get("max_tokens") or 128)
    said: list[str] = []
    text, count, finish = "", 0, "end"
    prompts = prompts_of(pipe, task, given)
    for ids, gap in prompts:
        ids, cut = fitting_options(loaded_model.sequence, ids)
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


def fitting_options(model: Model, ids: list[int]) -> tuple[list[int], list[str]]:
    """As much of a prompt as the model reads, and a line that says what was cut.

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
