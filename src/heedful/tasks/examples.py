"""Examples: what a task learns from or is measured on, and how some are held out for validation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.core.errors import ConfigError, InputError, NotFound, count_of, nearest
from heedful.core.files import stem_path
from heedful.core.images import open_image
from heedful.core.progress import report_progress
from heedful.data.batches import seeded_generator
from heedful.data.examples.classification import LabelNames, is_numeric
from heedful.data.input_files import InputFile, cell_text
from heedful.data.readers import column_hint
from heedful.data.token_cache import RaggedArray, encode_texts
from heedful.models.base import Model
from heedful.text import Tokenizer

if TYPE_CHECKING:
    from heedful.tasks.label_kinds import LabelKind
    from heedful.tasks.task import TrainableTask
    from heedful.tasks.task_specification import TaskSpecification


MAX_WHOLE_NUMBERS = 20  # so many different whole numbers may be classes; more are numbers
MAX_LABEL_WORDS = 3  # a label has so many words or fewer, in the mean
VALIDATION_SHARE = 0.1  # of the examples, without --valid
MIN_VALIDATION_ROWS = 100  # of a small file a fifth, up to so many: fewer would tell little
MAX_VALIDATION_ROWS = 2000  # more would only take time
EMPTY_LABELS = frozenset({"", "n/a", "#n/a", "na", "nan", "null", "-", "--", "?"})  # folded; they look empty
SPLIT_SEED = 0x5EED  # tells the draw of held-out examples from that of batches
MAX_NAMED_ROWS = 3  # rows that a note names
MAX_CHARACTERS_PER_TOKEN = 64  # no text needs more characters than that for each token that is read


@dataclass(frozen=True)
class Examples:
    """The examples of one file, the line or row each stands on, and notes for the user."""

    items: Sequence[Any]
    locations: Sequence[str]
    columns: dict[str, str] = field(default_factory=dict)  # role → name
    notes: tuple[str, ...] = ()
    path: str = ""
    unused: tuple[str, ...] = ()  # columns that play no role
    label_kind: LabelKind | None = None  # of classification: how the labels are related

    def __len__(self) -> int:
        return len(self.items)

    def select(self, index: Sequence[int]) -> Examples:
        """Return the examples at these indices."""
        return replace(
            self, items=[self.items[i] for i in index], locations=[self.locations[i] for i in index], notes=()
        )

    def first(self, count: int | None) -> Examples:
        """Return the first `count` examples; None: all."""
        return self if count is None or count >= len(self) else self.select(range(count))

    def encode(self, tokenizer: Tokenizer, length: int, columns: int) -> RaggedArray:
        """Return the ids of the first cells of every example, of which a builder takes `length` tokens."""
        cells = (text for row in self.items for text in limit_characters(row[:columns], length))
        return encode_texts(cells, tokenizer, "the file")


class UnusableRow(Exception):
    """A row that cannot be used; the message is the reason: "without a label"."""


def parse_rows(
    path: Path, rows: Iterable[tuple[str, Any]], parse: Callable[[Any], Any], hint: str, unit: str = "rows"
) -> Examples:
    """Parse every row, given with its line; those for which `parse` raises UnusableRow are left out."""
    items, locations = [], []
    left_out: dict[str, list[str]] = {}
    for where, row in rows:
        try:
            items.append(parse(row))
            locations.append(where)
        except UnusableRow as error:
            left_out.setdefault(str(error), []).append(where)
    if not items:
        reason, lines = max(left_out.items(), key=lambda item: len(item[1]))
        none = f"{path}: none of its {count_of(sum(map(len, left_out.values())), unit)} can be used"
        raise InputError(f"{none}: {count_of(len(lines), unit, 'are')} {reason}", hint=hint)
    notes = []
    for reason, lines in left_out.items():  # 2 rows without a label are left out: line 7, line 19
        subject, verb = ("1 row", "is") if len(lines) == 1 else (f"{len(lines):,} rows", "are")
        more = f" and {len(lines) - MAX_NAMED_ROWS:,} more" if len(lines) > MAX_NAMED_ROWS else ""
        notes.append(f"{subject} {reason} {verb} left out: {', '.join(lines[:MAX_NAMED_ROWS])}{more}")
    return Examples(items, locations, notes=tuple(notes))


def parse_table(
    source: InputFile, columns: dict[str, str], parse: Callable[[Mapping[str, str]], tuple[Any, ...]]
) -> Examples:
    """Return the rows of a table as examples: `parse` gets the cells of a row by their roles."""
    cells = lambda row: {role: cell_text(row.get(name)) for role, name in columns.items()}
    hint = "read as " + ", ".join(f"{role} = {name!r}" for role, name in columns.items())
    parsed = parse_rows(source.path, ((row.where, cells(row)) for row in source.rows), parse, hint)
    return replace(parsed, columns=columns, path=str(source.path), notes=source.notes + parsed.notes)


def limit_characters(texts: Sequence[str], length: int) -> list[str]:
    """Return texts without what lies far beyond the tokens that are read: a row may hold megabytes."""
    limit = MAX_CHARACTERS_PER_TOKEN * length
    return [text if len(text) <= limit else text[:limit] for text in texts]


def count_values(values: Sequence[Hashable]) -> dict[str, int]:
    """Return how often each value occurs, the most frequent first."""
    return {str(name): n for name, n in Counter(values).most_common()}


def fold_text(text: str) -> str:
    """Return a text without what people vary by mistake: case and white space."""
    return " ".join(text.split()).casefold()


def fold_label(label: str) -> str:
    """Return a label without what people and programs vary by mistake: case, white space, 1 and 1.0."""
    folded = fold_text(label)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", folded) is None:
        return folded
    return str(Decimal(folded).normalize(Context(prec=len(folded))))  # every digit counts, however many


def check_known(noun: str, values: Iterable[tuple[str, str]], names: Collection[str]) -> None:
    """Raise InputError for a label of validation, given with its line, that is none of training's names."""
    for value, where in values:
        if value not in names:
            hint = nearest(value, names) or f"training has {', '.join(map(repr, list(names)[:12]))}"
            raise InputError(f"validation, {where}: {noun} {value!r} does not occur in training", hint=hint)


def check_same_columns(train: Examples, valid: Examples) -> None:
    """Raise InputError if training and validation do not have the same texts."""
    if train.columns.keys() != valid.columns.keys():
        read = [", ".join(map(repr, part.columns.values())) for part in (train, valid)]
        raise InputError(
            f"training has the columns {read[0]}, validation {read[1]}: one has a text more",
            hint="name the columns with `text=`, `pair=` and `label=`",
        )


def check_labels(model: Model, labels: Iterable[tuple[str, str]]) -> None:
    """Raise InputError for a label, given with its line, that the model's head does not have."""
    if not model.hf_config.get("id2label"):
        raise InputError("config.json has no id2label: the names of the classes are unknown")
    names = LabelNames(model.label_names)
    for label, where in labels:
        names.number(label, where)


def validation_count(count: int) -> int:
    """Return how many of the examples validate."""
    if count < 3:
        many = "1 example is" if count == 1 else f"{count} examples are"
        raise InputError(
            f"{many} too few to learn from and to hold some out", hint="give 3 or more, or `valid=FILE`"
        )
    tenth, fifth = round(count * VALIDATION_SHARE), round(count * 2 * VALIDATION_SHARE)
    return min(max(1, tenth, min(MIN_VALIDATION_ROWS, fifth)), MAX_VALIDATION_ROWS)


def move_to_training(train: Examples, valid: Examples, rows: Collection[int]) -> tuple[Examples, Examples]:
    """Return training examples with these rows of the validation examples, and validation without them."""
    moved = valid.select(sorted(rows))
    joined = replace(
        train, items=[*train.items, *moved.items], locations=[*train.locations, *moved.locations]
    )
    return joined, valid.select([i for i in range(len(valid)) if i not in rows])


def split_randomly(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return training and validation examples, drawn at random."""
    count = validation_count(len(examples))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(examples)).tolist()
    return examples.select(sorted(order[count:])), examples.select(sorted(order[:count]))


def split_learnable(
    examples: Examples, labels: Callable[[Any], Iterable[str]], seed: int, scarce: str
) -> tuple[Examples, Examples]:
    """Return training and validation examples, drawn at random; `labels` are the several of an example.

    Examples with a label that only they have train, or it could not be learnt. `scarce` says of an error what
    there is too little of.
    """
    train, valid = split_randomly(examples, seed)
    learnt = {label for one in train.items for label in labels(one)}
    rare = {i for i, one in enumerate(valid.items) if not set(labels(one)) <= learnt}
    if len(rare) == len(valid):
        raise InputError(f"the {scarce} differ too much", hint="give `valid=FILE`")
    return move_to_training(train, valid, rare)


def split_by_label(examples: Examples, labels: Sequence[Hashable], seed: int) -> tuple[Examples, Examples]:
    """Return training and validation examples, every label in proportion; one that occurs once trains."""
    count = validation_count(len(labels))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(labels)).tolist()
    total = Counter(labels)
    quota = {label: min(int(count * n / len(labels) + 0.5), n - 1) for label, n in total.items()}
    if not any(quota.values()):  # many rare labels: one each of the most frequent
        quota |= {label: 1 for label, n in total.most_common(count) if n > 1}
    valid_rows = set()
    for i in order:
        if quota[labels[i]] > 0:
            quota[labels[i]] -= 1
            valid_rows.add(i)
    if not valid_rows:
        raise InputError(
            "every class has only one row, so no row can be held out for validation",
            hint="give two rows of a class or more, or `valid=FILE`",
        )
    return examples.select(sorted(set(range(len(labels))) - valid_rows)), examples.select(sorted(valid_rows))


def split_by_group(examples: Examples, groups: Sequence[str], seed: int) -> tuple[Examples, Examples, int]:
    """Return training and validation examples and how many groups validate; none is torn apart."""
    names = list(dict.fromkeys(groups))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(names)).tolist()
    valid_groups: set[str] = set()
    size, counts, wanted = 0, count_values(groups), validation_count(len(examples))
    for i in order[:-1]:
        if size + counts[names[i]] > 2 * wanted:
            continue
        valid_groups.add(names[i])
        size += counts[names[i]]
        if size >= wanted:
            break
    valid_groups = valid_groups or {min(names, key=lambda name: counts[name])}
    parts: tuple[list[int], list[int]] = ([], [])
    for i, group in enumerate(groups):
        parts[group in valid_groups].append(i)
    return examples.select(parts[0]), examples.select(parts[1]), len(valid_groups)


# Which task a file is for, and which of its columns plays which role; where unclear, an error asks.
#
# The usual names of columns are here because several tasks share them. So is the table of columns that
# together tell the task, because its order says which task is preferred.


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
NUMBER = ("score", "rating", "stars", "value", "number", "price", "target", "label", "y")
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
    ("classify-images", (IMAGE[:5], LABEL[:4])),
    ("read", (IMAGE[:3], CAPTION)),
)
KIND_NAMES = {"conll": "words with tags", "squad": "questions in SQuAD's form", "text": "plain text"}
FLAGS_BY_KIND = {"table": ("--text", "--label", "--pair"), "conll": ("--text", "--label")}
LABEL_HINT = " and `label=1`"
COUNT_HINT = f"; if the first line has no names, count the columns: `text=0`{LABEL_HINT}"

ColumnFlags = Mapping[str, str | None]  # the flag → the column it names
Tasks = Mapping[str, "type[TrainableTask]"]  # by the names of `heed finetune`


@dataclass(frozen=True)
class Role:
    """The role of a column: the flag that names it, and what it is usually called."""

    flag: str
    names: tuple[str, ...]
    optional: bool = False
    beside: tuple[str, ...] = ()  # found by its name only where the first role's column is one of these
    may_be_empty: bool = False  # in some rows
    input_names: tuple[str, ...] = ()  # what it is called where nothing is learnt, if not that


# The columns of a table by the command of a task; those of --label have the answers.
ROLES: dict[str, dict[str, Role]] = {
    "classify": {
        "text": Role("--text", (*TEXT, *FIRST)),
        "pair": Role("--pair", SECOND, optional=True, beside=FIRST), "label": Role("--label", LABEL),
    },
    "regress": {
        "text": Role("--text", (*TEXT, *FIRST)),
        "pair": Role("--pair", SECOND, optional=True, beside=FIRST), "number": Role("--label", NUMBER),
    },
    "similarity": {
        "text": Role("--text", FIRST), "pair": Role("--pair", SECOND), "score": Role("--label", SCORE),
    },
    "rerank": {
        "query": Role("--text", QUERY), "document": Role("--pair", DOCUMENT),
        "relevance": Role("--label", RELEVANCE),
    },
    "tag": {"words": Role("--text", WORDS, input_names=(*TEXT, *WORDS)), "tags": Role("--label", TAGS)},
    "answer": {
        "context": Role("--text", CONTEXT), "question": Role("--pair", QUESTION),
        "answer": Role("--label", ANSWER),
    },
    "translate": {
        "text": Role("--text", SOURCE, input_names=(*SOURCE, *TEXT)), "translation": Role("--label", TARGET),
    },
    "summarize": {
        "text": Role("--text", LONG, input_names=(*LONG, *TEXT)), "summary": Role("--label", SUMMARY),
    },
    "complete": {
        "prompt": Role("--text", PROMPT, input_names=(*PROMPT, *TEXT)),
        # Alpaca's and Dolly's names for the text that an instruction is about
        "input": Role(
            "--pair", ("input", "context"), optional=True, beside=("instruction",), may_be_empty=True
        ),
        "completion": Role("--label", COMPLETION, optional=True),
    },
    "chat": {"messages": Role("--text", MESSAGES)},
    "read": {"image": Role("--text", IMAGE), "text": Role("--label", CAPTION)},
    "classify-images": {"image": Role("--text", IMAGE), "label": Role("--label", LABEL)},
}  # fmt: skip
RANKED_TEXTS = {"document": Role("--text", (*DOCUMENT, *TEXT))}  # of `heed rerank`: it is given the query


def input_roles(command: str) -> dict[str, Role]:
    """Return the roles of columns without those of answers, for `heed predict`."""
    roles = ROLES.get(command, {"text": Role("--text", (*TEXT, *DOCUMENT, *FIRST))})
    inputs = {name: role for name, role in roles.items() if role.flag != "--label"}
    return {name: replace(role, names=role.input_names or role.names) for name, role in inputs.items()}


def find_images(source: InputFile, examples: Examples) -> Examples:
    """Return examples whose first cell is an image: its path, with that of the table's folder, or itself.

    Images that cannot be read are left out.
    """
    column, folder = examples.columns["image"], source.folder
    in_memory = {row.where: image for row in source.rows if not isinstance(image := row.get(column), str)}

    def find(numbered: tuple[int, str, tuple[Any, ...]]) -> tuple[Any, ...]:
        number, where, (name, *others) = numbered
        report_progress("images", number, len(examples))
        image = in_memory.get(where, str(folder / name))
        try:
            open_image(image)
        except NotFound:
            raise InputError(
                f"{source.path}, {where}: image not found: {name!r:.200}",
                hint=f"paths are relative to the folder of the table, {folder}",
            ) from None
        except InputError:
            raise UnusableRow("with an image that cannot be read") from None
        return (image, *others)

    rows = enumerate(zip(examples.locations, examples.items, strict=True), 1)
    numbered = ((where, (number, where, row)) for number, (where, row) in rows)
    found = parse_rows(source.path, numbered, find, f"read as image = {column!r}")
    notes = (*examples.notes, *found.notes)
    return replace(examples, items=found.items, locations=found.locations, notes=notes)


def infer_file_task(
    source: InputFile, tasks: Tasks, task_name: str | None, column_flags: ColumnFlags | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> str:  # fmt: skip
    """Return the named task if the file fits it; else the one that its columns tell.

    `column_flags` are the columns that were named. If the task follows only from their contents,
    `report` gets a line about it.
    """
    fitting = [name for name, task in tasks.items() if source.kind in task.file_kinds]
    if source.is_image_folder and "label" not in source.columns:
        raise InputError(
            f"{source.path} has images and no subfolders, so their classes are unknown",
            hint="put the images of each class into a subfolder with its name, or give a table",
        )
    if source.is_image_folder and task_name in (None, "classify"):
        return "classify-images"
    if task_name is not None:
        if task_name not in tasks:
            raise ConfigError(
                f"`task={task_name}`: {nearest(task_name, tasks) or 'one of ' + ', '.join(tasks)}"
            )
        if task_name not in fitting:
            holds = f"{source.path} holds {KIND_NAMES[source.kind]}"
            table = " (a table is called .csv, .tsv or .jsonl)" if source.kind == "text" else ""
            raise InputError(
                f"{holds}, which `task={task_name}` cannot learn from",
                hint=f"it is for `task={fitting[0]}`{table}",
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
    if (guess := guess_task(source, column_flags or {})) is not None:
        report(f"assumed: --task {guess[0]}, because {guess[1]}; --task says otherwise")
        return guess[0]
    for flag, column in (column_flags or {}).items():
        if column is not None and "," not in column:
            check_column(source, flag, column)
    what = f"what is to be learnt from {source.path}? It has the columns {list_columns(source)}"
    missing = [f"`{flag[2:]}=`" for flag in ("--text", "--label") if not (column_flags or {}).get(flag)]
    say = " and ".join([f"give `task=` ({', '.join(tasks)})", *missing])
    raise InputError(what, hint=f"{say}{COUNT_HINT if missing else ''}")


def guess_task(source: InputFile, column_flags: ColumnFlags) -> tuple[str, str] | None:
    """Return the task that the contents of the named columns tell, and why; None: they leave a choice.

    With one of --text and --label named, the other is the only column that is left. A column that is called
    like labels names itself.
    """
    named = {flag: name for flag, name in column_flags.items() if name is not None}
    usual = [name for name in source.columns if name.lower() in LABEL]
    if not named and len(usual) == 1:
        named = {"--label": usual[0]}
    left = [name for name in source.columns if name not in named.values()]
    only = left[0] if len(left) == 1 and named else None
    text, label = named.get("--text", only), named.get("--label", only)
    if text not in source.all_columns or label not in source.all_columns:
        return None
    answers = [row.get(label) for row in source.rows]
    if any(isinstance(answer, list) for answer in answers):
        words = any(isinstance(row.get(text), list) for row in source.rows)
        return ("tag" if words else "classify"), f"the column {label!r} has lists"
    cells = [cell for cell in map(cell_text, answers) if cell.strip()]
    kinds = set(cells)
    if not cells:
        return None
    if all(map(is_numeric, cells)):
        whole = all(float(cell).is_integer() for cell in kinds)
        if not whole or len(kinds) > MAX_WHOLE_NUMBERS:
            numbers = f"the column {label!r} has {len(kinds):,} different numbers"
            return ("similarity" if "--pair" in named else "regress"), numbers
    word_count = lambda texts: sum(len(one.split()) for one in texts) / max(len(texts), 1)
    if 2 * len(kinds) <= len(cells) or word_count(cells) <= MAX_LABEL_WORDS:
        return "classify", f"the column {label!r} has {len(kinds):,} different labels in {len(cells):,} rows"
    texts = [cell_text(row.get(text)) for row in source.rows]
    if "--pair" not in named and 3 * word_count(cells) <= word_count(texts):
        return "summarize", f"the texts of {label!r} are much shorter than those of {text!r}"
    return None


def check_flags(source: InputFile, column_flags: ColumnFlags) -> None:
    """Raise ConfigError for a named column that this kind of file does not have."""
    for flag, name in column_flags.items():
        if name is not None and flag not in FLAGS_BY_KIND.get(source.kind, ()):
            what = (
                f"`{flag[2:]}={name}`: {source.path} holds {KIND_NAMES[source.kind]} and has no such column"
            )
            raise ConfigError(what, hint="leave it out")


def list_columns(source: InputFile) -> str:
    """Return the columns of a file as text, for a message."""
    return ", ".join(repr(name) for name in source.columns[:12]) + (" …" if len(source.columns) > 12 else "")


def list_unused(source: InputFile, columns: Mapping[str, str]) -> list[str]:
    """Return the columns of a file that play no role; one role may have several, as a,b,c."""
    used = {part.strip() for name in columns.values() for part in (name, *name.split(","))}
    used |= {name.partition(".")[0] for name in used & {*source.nested}}  # objects of which a field is read
    return [name for name in source.columns if name not in used]


def check_column(source: InputFile, flag: str, column: str) -> None:
    """Refuse a column that the file does not have."""
    if column not in source.all_columns:
        hint = column_hint(column, source.all_columns)
        raise InputError(f"{source.path} has no column {column!r} for `{flag[2:]}=`", hint=hint)


class UnclearColumn(InputError):
    """A file whose columns do not show which one plays a role."""


def infer_columns(
    source: InputFile, task: str, roles: Mapping[str, Role], column_flags: ColumnFlags
) -> dict[str, str]:
    """Map roles to columns: by --text, --label and --pair, else by usual names, else the only one left."""
    columns: dict[str, str] = {}
    by_flag = {role.flag: name for name, role in roles.items()}
    for flag, column in column_flags.items():
        if column is not None and flag not in by_flag:
            raise ConfigError(f"`{flag[2:]}={column}`: `task={task}` does not use it")
        if column is not None:
            check_column(source, flag, column)
            columns[by_flag[flag]] = column
    for name, role in roles.items():
        if name not in columns and not role.beside:
            columns |= _find_by_name(source, name, role, columns)
    missing = [name for name, role in roles.items() if not role.optional and name not in columns]
    left = [column for column in source.columns if column not in columns.values()]
    if len(missing) == len(left) == 1:
        columns[missing[0]] = left[0]
    elif missing:
        which = f"which column of {source.path} is the {missing[0]}? It has {list_columns(source)}"
        count = COUNT_HINT if "--label" in by_flag else COUNT_HINT.removesuffix(LABEL_HINT)
        raise UnclearColumn(which, hint=f"name it with `{roles[missing[0]].flag[2:]}=NAME`{count}")
    first = next(iter(roles))
    for name, role in roles.items():
        by_name = column_flags.get(roles[first].flag) is None
        if name not in columns and by_name and columns[first].lower() in role.beside:
            columns |= _find_by_name(source, name, role, columns)
    if twice := next((column for column in columns.values() if column in source.repeated), None):
        raise InputError(f"{source.path} has several columns called {twice!r}", hint="rename all but one")
    return {name: columns[name] for name in roles if name in columns}


def _find_by_name(source: InputFile, name: str, role: Role, columns: Mapping[str, str]) -> dict[str, str]:
    """Return {name: column} for the first of the role's usual names that a free column has, or nothing."""
    free: Sequence[str] = [column for column in source.columns if column not in columns.values()]
    match = next((column for usual in role.names for column in free if column.lower() == usual), None)
    return {} if match is None else {name: match}


def infer_input_columns(
    source: InputFile, command: str, roles: Mapping[str, Role], column_flags: ColumnFlags,
    learnt: TaskSpecification | None,
) -> dict[str, str]:  # fmt: skip
    """Map roles to columns without answers: named ones, those learnt from, or usual names.

    A second text is read only if its column is named, or if the model learnt from two.
    """
    paired = column_flags.get("--pair") is not None or (learnt is not None and len(learnt.inputs) > 1)
    roles = {name: role for name, role in roles.items() if name != "pair" or not role.optional or paired}
    flags = dict(column_flags)
    if learnt is not None:
        flags = learnt.complete_flags(column_flags, source.all_columns, roles)
    first = next(iter(roles))
    with learnt_columns_named(learnt):
        columns = infer_columns(source, command, roles, {f: n for f, n in flags.items() if n is not None})
        usual = columns[first].lower() in roles[first].names or flags.get(roles[first].flag) is not None
        if not usual and stem_path(source.path).suffix.lower() in (
            ".csv",
            ".tsv",
        ):  # perhaps it has no header
            which = f"which column of {source.path} is the {first}? It has {list_columns(source)}"
            raise UnclearColumn(which, hint=f"name it with `text=NAME`{COUNT_HINT.removesuffix(LABEL_HINT)}")
    if learnt is not None and command in ("classify", "regress"):  # the query of others is not a column
        learnt.check_columns(str(source.path), columns, roles)
    return columns


@contextmanager
def learnt_columns_named(learnt: TaskSpecification | None) -> Iterator[None]:
    """Add to an error about the columns of a file from which ones the model learnt."""
    try:
        yield
    except UnclearColumn as error:
        if learnt is None:
            raise
        columns = ", ".join(map(repr, [*learnt.inputs.values(), *filter(None, [learnt.target])]))
        hint = f"the model learnt from {columns}; name the column that is like the first with `text=NAME`"
        raise InputError(error.marked_message, hint=hint) from None
