"""Score what a model generates for every text of a file against the expected text.

A table's columns are found as `heed finetune` finds them. An encoder-decoder reads the text and searches with
four beams; a decoder is request for a summary, in the way it was trained or as a conversation, and takes the
likeliest token each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heedful.data.tables import parallel_documents, table_delimiter
from heedful.data.tokenization import find_template
from heedful.decode.loop import generate
from heedful.decode.request import context_length, encode_prompt
from heedful.errors import ConfigError, InputError
from heedful.files import expand_paths
from heedful.models.base import LM, Model, Seq2Seq
from heedful.runs.finetune.column_roles import ROLES, infer_columns
from heedful.runs.finetune.generation_tasks import BLANK, summary_prompt, truncate_text
from heedful.runs.finetune.input_files import InputFile, inspect, select_rows
from heedful.runs.prepare import can_generate
from heedful.runs.progress import make_reporter
from heedful.runs.requests import EvaluationRequest
from heedful.tasks.text2text import task_prefix

PIPELINES = {"translate": "translation", "summarize": "summarization"}
Pair = tuple[str, str]
Score = Callable[[list[str], list[str]], dict[str, Any]]


def generation_scores(model: Model, request: EvaluationRequest, task: str, score: Score) -> dict[str, Any]:
    """Return the score of what a model generates, which columns were read, and the first row."""
    options = dict(request.options)
    pairs, facts = read_pairs(request, task, options)
    pairs = pairs[: None if request.limit is None else request.limit * request.batch]
    max_tokens = request.length or 128
    sources = encode_sources(model, task, [text for text, _ in pairs], max_tokens)
    beams = {"beams": 4} if isinstance(model, Seq2Seq) else {}
    guesses: list[str] = []
    bar = make_reporter(len(sources), request.quiet)
    for at in range(0, len(sources), request.batch):
        some = sources[at : at + request.batch]
        found = generate(model, some, **{"max_tokens": max_tokens, **beams, **options})
        guesses += [model.tokenizer.decode(ids).strip() for ids in found]
        bar.step({"step": len(guesses), "steps": len(sources)})
    bar.close()
    first = {"text": pairs[0][0], "expected": pairs[0][1], "written": guesses[0]}
    return score([truth for _, truth in pairs], guesses) | {"rows": len(pairs), **facts, "first": first}


def read_pairs(
    request: EvaluationRequest, task: str, options: dict[str, Any]
) -> tuple[list[Pair], dict[str, Any]]:
    """Return pairs of text and expected text; take the options that name columns and encoding."""
    given = columns_given(options)
    encoding = options.pop("encoding", "utf-8")
    if len(request.files) == 2:
        if any(given.values()):
            raise ConfigError("two files of lines have no columns", hint="leave --text and --label out")
        sides = parallel_documents(list(request.files), None, encoding)
        texts, truths = (["".join(document).strip() for document in side] for side in sides)
        both = list(zip(texts, truths, strict=True))
        kept = [pair for pair in both if all(pair)]
        if not kept:
            raise InputError(f"{request.files[0]} and {request.files[1]} have no line where both hold text")
        return kept, {"left_out": len(both) - len(kept)} if len(kept) < len(both) else {}
    if len(request.files) > 2:
        raise InputError(
            f"{task} reads one table or two files of lines", hint=f"got {len(request.files)} files"
        )
    source, columns = open_table(request.files[0], task, given, encoding)
    found = select_rows(source, columns)
    facts: dict[str, Any] = {"columns": list(columns.values())}
    if found.notes:
        facts["left_out"] = list(found.notes)
    return [(text.strip(), truth.strip()) for text, truth in found.cells], facts


def columns_given(options: dict[str, Any]) -> dict[str, str | None]:
    """Take the columns that options name: text and label, or both in columns=[…]."""
    both = options.pop("columns", None)
    names = both.split(",") if isinstance(both, str) else [] if both is None else list(both)
    if both is not None and len(names) != 2:
        raise ConfigError(f"columns={both!r} must be two: the text, and what is expected of it")
    text, label = [str(name).strip() for name in names] or (None, None)
    return {"--text": options.pop("text", text), "--label": options.pop("label", label)}


def open_table(
    path: str, task: str, given: dict[str, str | None], encoding: str
) -> tuple[InputFile, dict[str, str]]:
    """Return a table and its columns. Two columns without a known name are text and truth, with no header."""
    given = {flag: None if name is None else str(name) for flag, name in given.items()}
    named = [name for name in given.values() if name is not None]
    kind = check_table(path, task)
    if named and all(name.isdigit() for name in named) and kind != "json":
        source = inspect(path, encoding=encoding, header=False)
        return source, infer_columns(source, task, given)
    source = inspect(path, encoding=encoding)
    usual = {name for _, names in ROLES[task].values() for name in names}
    if not named and kind != "json" and not usual & {name.lower() for name in source.columns}:
        bare = inspect(path, encoding=encoding, header=False)
        if len(bare.columns) == 2:
            return bare, dict(zip(ROLES[task], bare.columns, strict=True))
    return source, infer_columns(source, task, given)


def check_table(path: str, task: str) -> str:
    """Return the delimiter of a table, or "json"; raise InputError for another file."""
    try:
        return table_delimiter(expand_paths(path)[0])
    except InputError:
        raise InputError(
            (
                f"{task} needs texts and what is expected of them: one .csv, .tsv or .jsonl file with "
                "both, or two files of as many lines"
            ),
            hint=f"got {path} alone",
        ) from None


def encode_sources(model: Model, task: str, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the prompt of every text. A long one loses its end; what stands around it stays."""
    tokenizer = model.tokenizer
    if not can_generate(model) or (isinstance(model, LM) and task == "translate"):
        kinds = "an encoder-decoder" + ("" if task == "translate" else " or a decoder")
        this = f"this one is a {model.family.name} with a {model.config.head!r} head"
        raise InputError(f"{task} needs a model that writes, {kinds}", hint=f"{this}")
    context = context_length(model, source=True)
    if isinstance(model, Seq2Seq):
        lead = task_prefix(model, PIPELINES[task])
        whole = lambda text: encode_prompt(model, lead + text)
        room = None if context is None else context - len(whole("a"))
    else:
        asks = str(model.hf_config.get("task_prompt") or summary_prompt(model))
        before = list(find_template(tokenizer).before)
        whole = lambda text: before + tokenizer.encode(asks.replace(BLANK, text), special=False)
        room = None if context is None else context - max_tokens - len(whole(""))
    if room is not None and room < 1:
        raise InputError(
            f"--length {max_tokens} leaves no room for a text in a context of {context}", hint="lower it"
        )
    return [whole(text if room is None else truncate_text(text, room, model)) for text in texts]
