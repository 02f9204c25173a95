"""Every task through heedful.pipeline: the fields of a form as a pipeline takes them, whole or streamed."""

from __future__ import annotations

import base64
import binascii
import inspect
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from heedful.classroom import figures as view
from heedful.classroom.figures.token_labels import visible_token
from heedful.classroom.figures.value_figures import Tree, beam_trees, tree_data
from heedful.classroom.studio import snippets
from heedful.classroom.studio.jobs import Report
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.tokens import tidy
from heedful.core.errors import InputError
from heedful.core.images import draw_for_model, draw_text, open_image
from heedful.decode.loop import stream
from heedful.decode.request import context_length, eos_ids
from heedful.decode.rows import decode_after
from heedful.interp.observe.word_vectors import find_word
from heedful.models.base import Model, Seq2Seq
from heedful.tasks.generation import (
    GENERATION_BATCH_SIZE,
    GeneratingTask,
    limit_lengths,
    merge_options,
    plan_generation,
)
from heedful.tasks.registry import TASKS, pipeline
from heedful.word2vec import Word2Vec

IMAGE_TASKS = ("image-to-text", "image-classification")
LISTENING = threading.Lock()  # for warnings
VECTOR_FIELDS = {"neighbours": ("word",), "analogy": ("a", "b", "c")}  # of word vectors
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")  # settings by which tokens are drawn
# What the page calls a setting of generation → what a pipeline calls it.
SETTING_NAMES = {"max_tokens": "max_new_tokens", "beams": "num_beams", "n": "num_return_sequences"}


def is_generating(task: str) -> bool:
    """Return whether a task writes text."""
    return task in TASKS and issubclass(TASKS[task].load(), GeneratingTask)


def form_inputs(task: str, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of the pipeline; texts are made fit to be written in UTF-8."""
    if task not in TASKS and task not in VECTOR_FIELDS:
        tasks = ", ".join([*TASKS, *VECTOR_FIELDS])
        raise InputError(f"no task is called {task[:60]!r}", hint=f"there are {tasks}")
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
    """Return settings under the pipeline's names."""
    kind = TASKS[task].load()
    given = {k: v for k, v in parameters.items() if v is not None}
    # What is too long is cut and reported; where it can be cut.
    cut = {"truncation": True} if "truncation" in inspect.signature(kind.predict).parameters else {}
    if not is_generating(task):
        return {**kind.form_options, **given, **cut}
    sampling = sampling_settings(given)
    others = {SETTING_NAMES.get(k, k): v for k, v in given.items() if k not in SAMPLING}
    return others | sampling | {"do_sample": "temperature" in sampling} | cut


def sampling_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens are drawn; without a temperature the most likely one is taken."""
    names = SAMPLING if parameters.get("temperature") else ("seed",)
    return {name: parameters[name] for name in names if parameters.get(name) is not None}


def run_task(
    loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result, the warnings on the way, and the Python that gives it."""
    given = form_inputs(task, inputs)
    if task in IMAGE_TASKS:
        return read_image(loaded_model, task, inputs)
    if isinstance(loaded_model.model, Word2Vec):
        return _with_vectors(loaded_model, task, given, parameters)
    if task in VECTOR_FIELDS:
        raise InputError(
            f"{task} is asked of word vectors", hint=f"of {loaded_model.id} ask it on the page of embeddings"
        )
    options, pipe = pipeline_options(task, parameters), open_pipeline(loaded_model, task)
    called = ", ".join([*map(repr, given), *(f"{k}={v!r}" for k, v in options.items())])
    lines = f"nlp = heedful.pipeline({task!r}, model=model)\nprint(nlp({called}))"
    result, notes = call_pipeline(pipe, *given, **options)
    if task == "conversational":
        result = result[-1]
    return {"result": result, "warnings": notes, "python": snippets.script(loaded_model.entry, lines)}


def call_pipeline(pipe: Any, *arguments: Any, **options: Any) -> tuple[Any, list[str]]:
    """Return the result of a pipeline and its warnings."""
    # Python keeps one list of filters for all threads: who listens for warnings does so alone.
    with LISTENING, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = pipe(*arguments, **options)
    return result, [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def open_pipeline(loaded_model: LoadedModel, task: str) -> Any:
    """Return the pipeline, made once for each task."""
    return loaded_model.once(f"pipe {task}", lambda: pipeline(task, model=loaded_model.sequence))


def _with_vectors(
    loaded_model: LoadedModel, task: str, inputs: list[Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    vectors, count = loaded_model.vectors, int(parameters.get("count") or 10)
    if task not in VECTOR_FIELDS:
        can = "it has neighbours and analogy"
        raise InputError(f"{loaded_model.id} is a table of word vectors and cannot do {task}", hint=can)
    words = [find_word(vectors, str(w)) for w in inputs]
    if task == "neighbours":
        call, ranked = f"vectors.neighbours({words[0]!r}, {count})", vectors.neighbours(words[0], count)
    else:
        call = f"vectors.analogy({words[0]!r}, {words[1]!r}, {words[2]!r}, {count})"
        ranked = vectors.analogy(words[0], words[1], words[2], count)
    result = [{"text": w, "shown": visible_token(w), "score": s} for w, s in ranked]
    return {
        "result": result, "warnings": [], "python": snippets.script(loaded_model.entry, f"print({call})")
    }  # fmt: skip


def generate_text(
    loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any],
    report: Report,
) -> dict[str, Any]:  # fmt: skip
    """Generate token by token in the thread that owns the model and report each; return the last event."""
    if not is_generating(task):
        raise InputError(f"{task} generates no text to stream", hint="leave stream out")
    pipe, given = open_pipeline(loaded_model, task), form_inputs(task, inputs)
    settings = sampling_settings(parameters)
    most = int(parameters.get("max_tokens") or 128)
    notes: list[str] = []
    text, count, finish = "", 0, "end"
    prompts = pipe.prompt_parts(*given)
    for ids, gap in prompts:
        ids, cut = cut_prompt(loaded_model.sequence, ids)
        notes += cut
        for piece in stream(pipe.generator, ids, max_tokens=most, **settings):
            count, finish, text = count + 1, piece.finish or finish, text + piece.text
            report({"event": "token", "text": piece.text, "token": piece.token, "logprob": piece.logprob})
        if gap:
            text += gap
            report({"event": "token", "text": gap, "token": None, "logprob": None})
    options = "".join(f", {k}={v!r}" for k, v in settings.items())
    call = f"heedful.stream(model, {prompts[0][0]!r}, max_tokens={most}{options})"
    lines = f"for piece in {call}:\n    print(piece.text, end='', flush=True)"
    return {
        "event": "done", "text": text, "finish": finish, "tokens": count, "warnings": notes,
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
        shorter, side = [*ids[: reach - 1], ids[-1]], "last"
    else:
        shorter, side = ids[-max(1, reach - max(1, min(64, reach // 4))) :], "first"
    length = f"the text has {len(ids):,} tokens and this model reads {reach:,}"
    return shorter, [f"{length}: the {side} {len(ids) - len(shorter):,} were cut"]


# Reading an image for the page Play: one that a visitor drew or opened, or a text that is drawn as one.


def read_image(loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's text or labels for an image, and the figure of where it looked."""
    model, pipe = loaded_model.sequence, open_pipeline(loaded_model, task)
    image, code, notes = input_image(model, inputs)
    result, heard = call_pipeline(pipe, image)
    figure = view.image_attention(model, image, name=loaded_model.id)
    imports = snippets.import_lines(draw_text) if "draw_text" in code else ""
    lines = f"image = {code}\nprint(heedful.pipeline({task!r}, model=model)(image))"
    saved = f"image = {code}\nheedful.view.image_attention(model, image).save('image_attention.html')"
    drawn = figure.to_dict() | {"python": snippets.script(loaded_model.entry, saved, imports)}
    return {
        "result": result, "figure": drawn, "warnings": notes + heard,
        "python": snippets.script(loaded_model.entry, lines, imports),
    }  # fmt: skip


def input_image(model: Model, inputs: Mapping[str, Any]) -> tuple[Any, str, list[str]]:
    """Return a Pillow image of what was given, the Python that names it, and notes on it.

    `image` is a file in base64, as a data address (data:image/png;base64,…); else `text` is drawn.
    """
    size, given = model.image_processor, inputs.get("image")
    if given:
        head, comma, body = given.partition(",") if isinstance(given, str) else ("", "", "")
        if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
            raise InputError("an image is given as data:image/png;base64,…", hint="open the file in the page")
        try:
            content = base64.b64decode(body, validate=True)
        except binascii.Error:
            raise InputError("the image's base64 is broken", hint="open the file in the page") from None
        return open_image(content), "'image.png'  # the file of your image", []
    text = tidy(str(inputs["text"]))[0]
    image, notes = draw_for_model(text, size, model.tokenizer)
    return image, f"draw_text({text!r}, {size.height}, {size.width})", notes


# A task written with beams: one search gives the text and the tree of everything that was weighed.


MAX_BEAMS = 16  # beams, and texts whose tree is shown
DEFAULT_OPTIONS = {"max_new_tokens": 128}


def search_beams(
    loaded_model: LoadedModel, task: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The text that was found and one tree for each part of it: a translation goes sentence by sentence."""
    if not is_generating(task):
        tasks = ", ".join(filter(is_generating, TASKS))
        raise InputError(f"{task} does not search for texts", hint=f"choose one of {tasks}")
    began, pipe, given = time.perf_counter(), open_pipeline(loaded_model, task), form_inputs(task, inputs)
    options = {k: v for k, v in pipeline_options(task, parameters).items() if k != "truncation"}
    how = plan_search(task, pipe.generator, options, parameters.get("temperature"))
    parts = [(*cut_prompt(pipe.generator, whole), gap) for whole, gap in pipe.prompt_parts(*given)]
    prompts, notes = [ids for ids, *_ in parts], [note for _, cut, _ in parts for note in cut]
    if len(prompts) > MAX_BEAMS:
        notes.append(f"{len(prompts)} sentences were searched; the trees of the first {MAX_BEAMS} are shown")
    some = [prompts[i : i + GENERATION_BATCH_SIZE] for i in range(0, len(prompts), GENERATION_BATCH_SIZE)]
    searched = [tree for batch in some for tree in search_trees(pipe.generator, batch, how)]
    best = [tree.ids(tree.found[0]) for tree in searched]
    settings = plan_generation(how)
    ends = eos_ids(pipe.generator, settings.eos)
    written = [ids[:-1] if ids[-1] in ends else ids for ids in best]
    texts = [decode_after(pipe.generator, *row) for row in zip(prompts, written, strict=True)]
    texts = texts if task == "text-generation" else [text.strip() for text in texts]
    call = ", ".join([*map(repr, given), *(f"{k}={v!r}" for k, v in options.items())])
    lines = f"nlp = heedful.pipeline({task!r}, model=model)\nprint(nlp({call}))"
    most = how.get("max_new_tokens", how.get("max_length", 128))
    chosen = replace(settings, max_tokens=most, n=None)
    names = [f.name for f in fields(chosen) if getattr(chosen, f.name) != f.default]
    arguments = ", ".join(f"{n}={getattr(chosen, n)!r}" for n in names if n != "temperature")  # 0 in a search
    trees = []
    for ids, tree in zip(prompts[:MAX_BEAMS], searched, strict=False):
        draw = f"heedful.view.beams(model, {ids!r}, {arguments}).save('beams.html')"
        python = snippets.script(loaded_model.entry, draw)
        trees.append(tree_data(pipe.generator, tree) | {"python": python})
    return {
        "text": "".join(text + gap for text, (*_, gap) in zip(texts, parts, strict=True)),
        "finish": "end" if best[-1][-1] in ends else "length", "tokens": sum(map(len, best)),
        "seconds": round(time.perf_counter() - began, 3), "warnings": notes,
        "python": snippets.script(loaded_model.entry, lines),
        "trees": trees,
    }  # fmt: skip


def plan_search(
    task: str, model: Model, options: Mapping[str, Any], temperature: float | None
) -> dict[str, Any]:
    """Return the options of a search, or raise InputError for those that draw or keep one text only."""
    if temperature:
        raise InputError(
            f"beams search for the most likely text, and temperature {temperature} samples",
            hint="set it to 0, or beams to 1",
        )
    merged = merge_options(task, model, options, DEFAULT_OPTIONS)
    if not 2 <= (plan_generation(merged).beams or 1) <= MAX_BEAMS:
        raise InputError(f"the number of beams must be from 2 to {MAX_BEAMS}", hint="give beams")
    return merged


def search_trees(model: Model, prompts: list[list[int]], options: Mapping[str, Any]) -> list[Tree]:
    """Return the trees of some prompts, side by side; with the limits on tokens that the pipeline takes."""
    read = 1 if isinstance(model, Seq2Seq) else len(prompts[0])  # a decoder with a source reads one
    settings = replace(plan_generation(options), n=None)
    by, settings = limit_lengths(model, settings, options, len(prompts), read)
    return beam_trees(by, prompts, **vars(settings))
