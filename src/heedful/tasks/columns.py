"""Which task a file is for, and which of its columns plays which role; where unclear, an error asks.

Each task names its `roles`. What columns are usually called stands here, because several tasks share it, and
so does the table of columns that together tell a task: there one task is preferred to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heedful.core.errors import ConfigError, InputError, nearest
from heedful.data.input_files import InputFile
from heedful.data.tables import column_hint

if TYPE_CHECKING:
    from heedful.tasks.task import TrainableTask

# What columns are usually called, by the role they play.
TEXT = ("text", "sentence", "content", "review", "tweet", "comment", "message", "body", "utterance", "query",
        "question", "phrase", "input", "title", "headline", "document", "article")  # fmt: skip
LABEL = ("label", "labels", "class", "category", "sentiment", "intent", "topic", "polarity", "target",
         "stars", "rating", "emotion", "tag", "gold_label", "output", "y")  # fmt: skip
FIRST = ("sentence1", "sentence_1", "text1", "text_a", "sentence_a", "premise", "question1", "#1 string",
         "anchor")  # fmt: skip
SECOND = ("sentence2", "sentence_2", "text2", "text_b", "sentence_b", "hypothesis", "question2", "#2 string",
          "positive")  # fmt: skip
SCORE = ("score", "similarity", "similarity_score", "relatedness", "relatedness_score", "label")
SOURCE = ("source", "src", "en", "english", "input", "text")
TARGET = ("target", "tgt", "trg", "translation", "de", "fr", "es", "it", "nl", "pt", "german", "french",
          "output")  # fmt: skip
LONG = ("document", "article", "dialogue", "dialog", "text", "body", "source", "content")
SUMMARY = ("summary", "highlights", "abstract", "tldr", "summaries", "target", "title", "headline")
PROMPT = ("prompt", "instruction", "input", "question", "text")
COMPLETION = ("completion", "response", "output", "answer")
WORDS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "pos_tags", "ner")
CONTEXT = ("context", "passage", "paragraph")
QUESTION = ("question", "query")
ANSWER = ("answers", "answer")
QUERY = ("query", "question")
DOCUMENT = ("document", "passage", "doc", "text", "context", "paragraph", "sentence", "answer")
RELEVANCE = ("relevance", "relevant", "label", "score", "rating", "grade")
MESSAGES = ("messages", "conversations", "conversation", "chat")
IMAGE = ("image", "image_path", "picture", "file_name", "filename", "path", "file")
CAPTION = ("text", "caption", "transcription", "words", "target", "label")
LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "pt", "pl", "ru", "zh", "ja", "cs", "sv", "da", "tr", "ar",
             "hi")  # fmt: skip

# Columns that together tell a task, the most telling first.
TASK_COLUMNS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("chat", (MESSAGES[:2],)),
    ("answer", (CONTEXT, QUESTION, ANSWER)),
    ("rerank", (QUERY, DOCUMENT[:4], RELEVANCE[:2])),
    ("tag", (WORDS, TAGS)),
    ("similarity", (FIRST, SECOND, SCORE[:-1])),
    ("classify", (FIRST, SECOND, LABEL)),
    ("similarity", (FIRST, SECOND)),
    ("translate", (("en",), LANGUAGES[1:])),
    ("translate", (("source", "src"), ("target", "tgt", "trg", "translation"))),
    ("summarize", (LONG, SUMMARY[:5])),
    ("complete", (("prompt", "instruction"), COMPLETION)),
    ("read", (IMAGE[:3], CAPTION)),
)
KIND_NAMES = {"conll": "words with tags", "squad": "questions in SQuAD's form", "text": "plain text"}
FLAGS_BY_KIND = {"table": ("--text", "--label", "--pair"), "conll": ("--text", "--label")}
COUNT_HINT = "; if the first line has no names, count the columns: --text 0 --label 1"

ColumnFlags = Mapping[str, str | None]  # the flag → the column it names
Tasks = Mapping[str, "type[TrainableTask]"]  # by the names of `heed finetune`


@dataclass(frozen=True)
class Role:
    """What a column is for: the flag that names it, and what it is usually called."""

    flag: str
    names: tuple[str, ...]
    optional: bool = False
    beside: tuple[str, ...] = ()  # found by its name only where the first role's column is one of these
    may_be_empty: bool = False  # in some rows


# What the command of a task reads from a table, where nothing is learnt and there are no answers.
INPUT_ROLES: dict[str, dict[str, Role]] = {
    "classify": {
        "text": Role("--text", (*TEXT, *FIRST)),
        "pair": Role("--pair", SECOND, optional=True, beside=FIRST),
    },
    "tag": {"words": Role("--text", (*TEXT, *WORDS))},
    "translate": {"text": Role("--text", (*SOURCE, *TEXT))},
    "summarize": {"text": Role("--text", (*LONG, *TEXT))},
    "complete": {
        "prompt": Role("--text", (*PROMPT, *TEXT)),
        # Alpaca's and Dolly's names for the text that an instruction is about
        "input": Role(
            "--pair", ("input", "context"), optional=True, beside=("instruction",), may_be_empty=True
        ),
    },
    "rerank": {"document": Role("--text", (*DOCUMENT, *TEXT))},
    **{name: {"text": Role("--text", (*TEXT, *DOCUMENT, *FIRST))} for name in ("embed", "similar", "fill")},
}


def infer_file_task(
    source: InputFile, tasks: Tasks, task_name: str | None, column_flags: ColumnFlags | None = None
) -> str:
    """Return the named task if the file fits it; else the one that its columns tell.

    `column_flags` are the columns that were named, which need not be asked for.
    """
    fitting = [name for name, task in tasks.items() if source.kind in task.file_kinds]
    if task_name is not None:
        if task_name not in tasks:
            raise ConfigError(
                f"--task {task_name}: {nearest(task_name, tasks) or 'one of ' + ', '.join(tasks)}"
            )
        if task_name not in fitting:
            holds = f"{source.path} holds {KIND_NAMES[source.kind]}"
            table = " (a table is called .csv, .tsv or .jsonl)" if source.kind == "text" else ""
            raise InputError(
                f"{holds}, which --task {task_name} cannot learn from",
                hint=f"it is for --task {fitting[0]}{table}",
            )
        return task_name
    if source.kind != "table":
        return fitting[0]
    has = {name.lower() for name in source.columns}
    for task, columns in TASK_COLUMNS:
        if all(has & set(names) for names in columns):
            return task
    if has & set(TEXT) and (len(has) == 1 or has & set(LABEL)):
        return "complete" if len(has) == 1 else "classify"
    if "," in ((column_flags or {}).get("--label") or "") and has & set(TEXT):
        return "classify"  # of several labels, a column each
    what = f"what is to be learnt from {source.path}? It has the columns {list_columns(source)}"
    missing = [flag for flag in ("--text", "--label") if not (column_flags or {}).get(flag)]
    say = " and ".join([f"say --task ({', '.join(tasks)})", *missing])
    raise InputError(what, hint=f"{say}{COUNT_HINT if missing else ''}")


def check_flags(source: InputFile, column_flags: ColumnFlags) -> None:
    """Raise ConfigError for a named column that this kind of file does not have."""
    for flag, name in column_flags.items():
        if name is not None and flag not in FLAGS_BY_KIND.get(source.kind, ()):
            what = f"{flag} {name}: {source.path} holds {KIND_NAMES[source.kind]} and has no such column"
            raise ConfigError(what, hint="leave it out")


def list_columns(source: InputFile) -> str:
    """Return the columns of a file as text, for a message."""
    return ", ".join(repr(name) for name in source.columns[:12]) + (" …" if len(source.columns) > 12 else "")


def list_unused(source: InputFile, columns: Mapping[str, str]) -> list[str]:
    """Return the columns of a file that play no role; one role may have several, as a,b,c."""
    used = {part.strip() for name in columns.values() for part in (name, *name.split(","))}
    return [name for name in source.columns if name not in used]


def infer_columns(
    source: InputFile, task: str, roles: Mapping[str, Role], column_flags: ColumnFlags
) -> dict[str, str]:
    """Map roles to columns: by --text, --label and --pair, else by usual names, else the only one left."""
    found: dict[str, str] = {}
    by_flag = {role.flag: name for name, role in roles.items()}
    for flag, column in column_flags.items():
        if column is not None and flag not in by_flag:
            raise ConfigError(f"{flag} {column}: --task {task} has no use for it")
        if column is not None and column not in source.columns:
            hint = column_hint(column, source.columns)
            raise InputError(f"{source.path} has no column {column!r} for {flag}", hint=hint)
        if column is not None:
            found[by_flag[flag]] = column
    for name, role in roles.items():
        if name not in found and not role.beside:
            found |= _find_by_name(source, name, role, found)
    missing = [name for name, role in roles.items() if not role.optional and name not in found]
    left = [column for column in source.columns if column not in found.values()]
    if len(missing) == len(left) == 1:
        found[missing[0]] = left[0]
    elif missing:
        which = f"which column of {source.path} is the {missing[0]}? It has {list_columns(source)}"
        raise InputError(which, hint=f"say {roles[missing[0]].flag} NAME{COUNT_HINT}")
    first = next(iter(roles))
    for name, role in roles.items():
        by_name = column_flags.get(roles[first].flag) is None
        if name not in found and by_name and found[first].lower() in role.beside:
            found |= _find_by_name(source, name, role, found)
    if twice := next((column for column in found.values() if column in source.repeated), None):
        raise InputError(f"{source.path} has several columns called {twice!r}", hint="rename all but one")
    return {name: found[name] for name in roles if name in found}


def _find_by_name(source: InputFile, name: str, role: Role, columns: Mapping[str, str]) -> dict[str, str]:
    """Return {name: column} for the first of the role's usual names that a free column has, or nothing."""
    free: Sequence[str] = [column for column in source.columns if column not in columns.values()]
    match = next((column for usual in role.names for column in free if column.lower() == usual), None)
    return {} if match is None else {name: match}
