"""Infer the task of a file and the roles of its columns; where they are not obvious, ask in an error."""

from __future__ import annotations

from heedful.errors import ConfigError, InputError, nearest
from heedful.runs.finetune.input_files import InputFile, select_columns

# What columns are usually called, by the part they play.
TEXT = ("text", "sentence", "content", "review", "tweet", "comment", "message", "body", "utterance", "query",
        "question", "phrase", "input", "title", "headline", "document", "article")  # fmt: skip
LABEL = ("label", "labels", "class", "category", "sentiment", "intent", "topic", "polarity", "target",
         "stars", "rating", "emotion", "tag", "gold_label", "output", "y")  # fmt: skip
FIRST = (
    "sentence1",
    "sentence_1",
    "text1",
    "text_a",
    "sentence_a",
    "premise",
    "question1",
    "#1 string",
    "anchor",
)
SECOND = (
    "sentence2",
    "sentence_2",
    "text2",
    "text_b",
    "sentence_b",
    "hypothesis",
    "question2",
    "#2 string",
    "positive",
)
SCORE = ("score", "similarity", "similarity_score", "relatedness", "relatedness_score", "label")
SOURCE = ("source", "src", "en", "english", "input", "text")
TARGET = (
    "target",
    "tgt",
    "trg",
    "translation",
    "de",
    "fr",
    "es",
    "it",
    "nl",
    "pt",
    "german",
    "french",
    "output",
)
LONG = ("document", "article", "dialogue", "dialog", "text", "body", "source", "content")
SUMMARY = ("summary", "highlights", "abstract", "tldr", "summaries", "target", "title", "headline")
PROMPT = ("prompt", "instruction", "input", "question", "text")
COMPLETION = ("completion", "response", "output", "answer")
WORDS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "pos_tags", "ner")
CONTEXT = ("context", "passage", "paragraph")
QUESTION = ("question", "query")
ANSWER = ("answers", "answer")

# The columns of a task that come from a table: role → the flag that names it, and its usual names.
ROLES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "classify": {"text": ("--text", (*TEXT, *FIRST)), "label": ("--label", LABEL)},
    "similarity": {"text": ("--text", FIRST), "pair": ("--pair", SECOND), "score": ("--label", SCORE)},
    "tag": {"words": ("--text", WORDS), "tags": ("--label", TAGS)},
    "answer": {
        "context": ("--text", CONTEXT), "question": ("--pair", QUESTION), "answer": ("--label", ANSWER),
    },
    "translate": {"text": ("--text", SOURCE), "translation": ("--label", TARGET)},
    "summarize": {"text": ("--text", LONG), "summary": ("--label", SUMMARY)},
    "complete": {"prompt": ("--text", PROMPT), "completion": ("--label", COMPLETION)},
}  # fmt: skip
KIND_NAMES = {"conll": "words with tags", "squad": "questions in SQuAD's form", "text": "plain text"}
COUNT_HINT = "; if the first line has no names, count the columns: --text 0 --label 1"
TASKS_BY_KIND = {"conll": ("tag",), "squad": ("answer",), "text": ("complete",), "table": tuple(ROLES)}


def infer_file_task(
    source: InputFile, requested: str | None, column_flags: dict[str, str | None] | None = None
) -> str:
    """Return the requested task if the file fits it; else the one that its columns tell.

    `column_flags` are the columns that were named, which need not be asked for.
    """
    if requested is not None:
        if requested not in ROLES:
            raise ConfigError(
                f"--task {requested}: {nearest(requested, ROLES) or 'one of ' + ', '.join(ROLES)}"
            )
        if requested not in TASKS_BY_KIND[source.kind]:
            fits = TASKS_BY_KIND[source.kind][0]
            what = (
                f"{source.path} holds {KIND_NAMES[source.kind]}, which --task {requested} cannot learn from"
            )
            table = " (a table is called .csv, .tsv or .jsonl)" if source.kind == "text" else ""
            raise InputError(what, hint=f"it is for --task {fits}{table}")
        return requested
    if source.kind != "table":
        return TASKS_BY_KIND[source.kind][0]
    has = {name.lower() for name in source.columns}
    for task, must in TASK_COLUMNS:
        if all(has & set(names) for names in must):
            return task
    if has & set(TEXT) and len(has) == 1:
        return "complete"
    if has & set(TEXT) and has & set(LABEL):
        return "classify"
    what = f"what is to be learnt from {source.path}? It has the columns {list_columns(source)}"
    missing = [flag for flag in ("--text", "--label") if not (column_flags or {}).get(flag)]
    say = " and ".join([f"say --task ({', '.join(ROLES)})", *missing])
    raise InputError(what, hint=f"{say}{(COUNT_HINT if missing else '')}")


def check_flags(source: InputFile, column_flags: dict[str, str | None]) -> None:
    """Raise ConfigError for a named column that this kind of file does not have."""
    useful = {"table": ("--text", "--label", "--pair"), "conll": ("--text", "--label")}.get(source.kind, ())
    for flag, name in column_flags.items():
        if name is not None and flag not in useful:
            what = f"{flag} {name}: {source.path} holds {KIND_NAMES[source.kind]} and has no such column"
            raise ConfigError(what, hint="leave it out")


# Columns that together tell a task, the most telling first.
LANGUAGES = (
    "en",
    "de",
    "fr",
    "es",
    "it",
    "nl",
    "pt",
    "pl",
    "ru",
    "zh",
    "ja",
    "cs",
    "sv",
    "da",
    "tr",
    "ar",
    "hi",
)
TASK_COLUMNS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("answer", (CONTEXT, QUESTION, ANSWER)),
    ("tag", (WORDS, TAGS)),
    ("similarity", (FIRST, SECOND, SCORE[:-1])),
    ("classify", (FIRST, SECOND, LABEL)),
    ("similarity", (FIRST, SECOND)),
    ("translate", (("en",), LANGUAGES[1:])),
    ("translate", (("source", "src"), ("target", "tgt", "trg", "translation"))),
    ("summarize", (LONG, SUMMARY[:5])),
    ("complete", (("prompt", "instruction"), COMPLETION)),
)


def list_columns(source: InputFile) -> str:
    """Return the columns of a file as text, for a message."""
    return ", ".join(repr(name) for name in source.columns[:12]) + (" …" if len(source.columns) > 12 else "")


def infer_columns(
    source: InputFile, task: str, column_flags: dict[str, str | None], optional: tuple[str, ...] = ()
) -> dict[str, str]:
    """Map roles to columns: by --text, --label and --pair, else by usual names, else the only one left."""
    roles = ROLES[task]
    flags = {flag: role for role, (flag, _) in roles.items()}
    found: dict[str, str] = {}
    for flag, name in column_flags.items():
        if name is not None and flag in flags:
            found[flags[flag]] = select_columns(source, name, flag)
        elif name is not None and flag == "--pair" and task == "classify":
            found["pair"] = select_columns(source, name, flag)
        elif name is not None:
            raise ConfigError(f"{flag} {name}: --task {task} has no use for it")
    for role, (_, usual_names) in roles.items():
        if role not in found:
            names = [c for c in source.columns if c not in found.values()]
            match = next((c for u in usual_names for c in names if c.lower() == u), None)
            if match is not None:
                found[role] = match
    missing = [role for role in roles if role not in found and role not in optional]
    left = [c for c in source.columns if c not in found.values()]
    if len(missing) == 1 and len(left) == 1 and len(found) == len(roles) - 1:
        found[missing[0]] = left[0]
    elif missing:
        role = missing[0]
        which = f"which column of {source.path} is the {role}? It has {list_columns(source)}"
        raise InputError(which, hint=f"say {roles[role][0]} NAME{COUNT_HINT}")
    if task == "classify" and column_flags.get("--text") is None and "pair" not in found:
        second = next((c for c in source.columns if c.lower() in SECOND and c not in found.values()), None)
        if found["text"].lower() in FIRST and second is not None:
            found["pair"] = second
    if twice := next((name for name in found.values() if name in source.repeated), None):
        raise InputError(f"{source.path} has several columns called {twice!r}", hint="rename all but one")
    order = [*roles, "pair"]
    return {role: found[role] for role in order if role in found}
