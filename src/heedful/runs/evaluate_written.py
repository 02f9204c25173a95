"""What a model writes for every text of a file, scored against what is written there.

A table's columns are found as `heed finetune` finds them. An encoder-decoder reads the text and searches with
four beams; a decoder is asked for a summary, in the way it was trained or as a conversation, and takes the
likeliest token each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heedful.data.tables import table_delimiter, parallel_documents
from heedful.data.tokenization import find_template
from heedful.decode.loop import generate
from heedful.decode.request import context_length, encode_prompt
from heedful.errors import ConfigError, InputError
from heedful.files import expand_paths
from heedful.models.base import LM, Model, Seq2Seq
from heedful.runs.evaluate import Asked
from heedful.runs.finetune.guessing import ROLES, columns_of
from heedful.runs.finetune.inspecting import Source, inspect, sift
from heedful.runs.finetune.written import BLANK, prefix, request, within
from heedful.runs.prepare import writes
from heedful.runs.progress import progress

PIPELINES = {"translate": "translation", "summarize": "summarization"}
Pair = tuple[str, str]
Score = Callable[[list[str], list[str]], dict[str, Any]]


def written_scores(model: Model, asked: Asked, task: str, score: Score) -> dict[str, Any]:
    """The score of what a model writes, what it read as text and as truth, and the first row for the eye."""
    options = dict(asked.options)
    pairs, facts = pairs_of(asked, task, options)
    pairs = pairs[: None if asked.limit is None else asked.limit * asked.batch]
    most = asked.length or 128
    sources = prompts(model, task, [text for text, _ in pairs], most)
    beams = {"beams": 4} if isinstance(model, Seq2Seq) else {}
    guesses: list[str] = []
    bar = progress(len(sources), asked.quiet)
    for at in range(0, len(sources), asked.batch):
        some = sources[at : at + asked.batch]
        found = generate(model, some, **{"max_tokens": most, **beams, **options})
        guesses += [model.tokenizer.decode(ids).strip() for ids in found]
        bar.step({"step": len(guesses), "steps": len(sources)})
    bar.close()
    first = {"text": pairs[0][0], "expected": pairs[0][1], "written": guesses[0]}
    return score([truth for _, truth in pairs], guesses) | {"rows": len(pairs), **facts, "first": first}


def pairs_of(asked: Asked, task: str, options: dict[str, Any]) -> tuple[list[Pair], dict[str, Any]]:
    """The texts with what is expected of them; takes the options that say where they stand."""
    given = columns_given(options)
    encoding = options.pop("encoding", "utf-8")
    if len(asked.files) == 2:
        if any(given.values()):
            raise ConfigError("two files of lines have no columns; leave --text and --label out")
        sides = parallel_documents(list(asked.files), None, encoding)
        texts, truths = (["".join(document).strip() for document in side] for side in sides)
        both = list(zip(texts, truths, strict=True))
        kept = [pair for pair in both if all(pair)]
        if not kept:
            raise InputError(f"{asked.files[0]} and {asked.files[1]} have no line where both hold text")
        return kept, {"left_out": len(both) - len(kept)} if len(kept) < len(both) else {}
    if len(asked.files) > 2:
        raise InputError(f"{task} reads one table or two files of lines; got {len(asked.files)} files")
    source, columns = table_of(asked.files[0], task, given, encoding)
    found = sift(source, columns)
    facts: dict[str, Any] = {"columns": list(columns.values())}
    if found.notes:
        facts["left_out"] = list(found.notes)
    return [(text.strip(), truth.strip()) for text, truth in found.cells], facts


def columns_given(options: dict[str, Any]) -> dict[str, str | None]:
    """The columns that somebody named: text and label, or both in columns=[…]."""
    both = options.pop("columns", None)
    names = both.split(",") if isinstance(both, str) else [] if both is None else list(both)
    if both is not None and len(names) != 2:
        raise ConfigError(f"columns={both!r} must be two: the text, and what is expected of it")
    text, label = [str(name).strip() for name in names] or (None, None)
    return {"--text": options.pop("text", text), "--label": options.pop("label", label)}


def table_of(
    path: str, task: str, given: dict[str, str | None], encoding: str
) -> tuple[Source, dict[str, str]]:
    """A table and its columns. Two columns without a known name are text and truth, with no head."""
    given = {flag: None if name is None else str(name) for flag, name in given.items()}
    named = [name for name in given.values() if name is not None]
    kind = kind_or_way_out(path, task)
    if named and all(name.isdigit() for name in named) and kind != "json":
        source = inspect(path, encoding=encoding, header=False)
        return source, columns_of(source, task, given)
    source = inspect(path, encoding=encoding)
    usual = {name for _, names in ROLES[task].values() for name in names}
    if not named and kind != "json" and not usual & {name.lower() for name in source.columns}:
        bare = inspect(path, encoding=encoding, header=False)
        if len(bare.columns) == 2:
            return bare, dict(zip(ROLES[task], bare.columns, strict=True))
    return source, columns_of(source, task, given)


def kind_or_way_out(path: str, task: str) -> str:
    """The delimiter of a table, or "json"; one line for a file that is none."""
    try:
        return table_delimiter(expand_paths(path)[0])
    except InputError:
        raise InputError(
            f"{task} needs texts and what is expected of them: one .csv, .tsv or .jsonl file with both, "
            f"or two files of as many lines; got {path} alone"
        ) from None


def prompts(model: Model, task: str, texts: Sequence[str], most: int) -> list[list[int]]:
    """What the model reads of every text. A long one loses its end; what stands around it stays."""
    tokenizer = model.tokenizer
    if not writes(model) or (isinstance(model, LM) and task == "translate"):
        kinds = "an encoder-decoder" + ("" if task == "translate" else " or a decoder")
        this = f"this one is a {model.family.name} with a {model.config.head!r} head"
        raise InputError(f"{task} needs a model that writes, {kinds}; {this}")
    reach = context_length(model, source=True)
    if isinstance(model, Seq2Seq):
        lead = prefix(model, PIPELINES[task])
        whole = lambda text: encode_prompt(model, lead + text)
        room = None if reach is None else reach - len(whole("a"))
    else:
        asks = str(model.hf_config.get("task_prompt") or request(model))
        before = list(find_template(tokenizer).before)
        whole = lambda text: before + tokenizer.encode(asks.replace(BLANK, text), special=False)
        room = None if reach is None else reach - most - len(whole(""))
    if room is not None and room < 1:
        raise InputError(f"--length {most} leaves no room for a text in a context of {reach}; lower it")
    return [whole(text if room is None else within(text, room, model)) for text in texts]
