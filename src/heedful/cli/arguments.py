"""Texts that a command reads: its arguments, files that they name, and stdin.

A file that does not exist is an error; its name is never taken for a text.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from heedful.cli.model_info import read_known
from heedful.core.checks import Argument, Only, Option, annotated_option, check_choice, find_options
from heedful.core.errors import ConfigError, HeedfulError, InputError, NotFound
from heedful.core.files import missing_file, read_blocks, stem_path
from heedful.core.processes import is_first
from heedful.core.progress import print_above, show_progress

Texts = Annotated[
    list[str] | None,
    Argument(
        "Texts, files with one text per line, or tables (.csv, .tsv, .jsonl); - or a pipe reads stdin.",
        metavar="TEXT",
    ),
]
TextColumn = Annotated[
    str | None,
    Option(
        "Read the text from this column of a table, given by name or number.", ("--text",), metavar="COLUMN"
    ),
]

# Suffixes of text files; a word with another suffix is a path only if it has a slash.
TABLES, SENTENCES = (
    (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".xlsx"),
    (".conll", ".conllu", ".iob", ".iob2", ".bio"),
)
NO_TEXT = (
    ".xls", ".ods", ".feather", ".arrow", ".numbers", ".pdf", ".doc", ".docx", ".odt",
    ".rtf", ".pptx", ".epub",
)  # fmt: skip
SUFFIXES = (
    *TABLES, *SENTENCES, *NO_TEXT, ".txt", ".md", ".rst", ".html", ".htm", ".xml", ".yaml", ".yml", ".log",
    ".tex", ".srt", ".vtt", ".eml", ".gz", ".bz2", ".xz",
)  # fmt: skip

Input = str | dict[str, str]  # a text, or a pair {"text": …, "text_pair": …}


@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table a command reads: named ones, else those learnt from, else usual ones."""

    command: str
    text: str | None = None
    pair: str | None = None
    model: str | None = None  # a name or folder

    def read(self, path: Path) -> list[tuple[int, Input]]:
        """Return the texts of a table, each with its line."""
        from heedful.data.input_files import cell_text, parse_rows, read_input_file
        from heedful.tasks.examples import INPUT_ROLES, infer_input_columns
        from heedful.tasks.pipelines.text_generation import TextGeneration
        from heedful.tasks.task import TrainableTask
        from heedful.tasks.task_specification import TaskSpecification
        from heedful.train.checkpoint import of_run

        flags = {"--text": self.text, "--pair": self.pair}
        named = [name for name in flags.values() if name is not None]
        source = read_input_file(str(path), header=not named or not all(name.isdigit() for name in named))
        if source.kind != "table":
            wrong = "one JSON object" if source.kind == "squad" else "text without columns"
            raise InputError(f"{path} is {wrong} and no table", hint="name a .jsonl, .csv or .tsv file")
        learnt = None if self.model is None else TaskSpecification.of_folder(of_run(self.model))
        if learnt is not None and learnt.command != self.command:
            learnt = None
        columns = infer_input_columns(source, self.command, INPUT_ROLES[self.command], flags, learnt)
        print_above(f"{path}: {', '.join(f'{role} = {name!r}' for role, name in columns.items())}")
        cells = lambda row: {role: cell_text(row.get(name)) for role, name in columns.items()}
        # the text that an instruction is about is part of its prompt
        parse = (TextGeneration if "input" in columns else TrainableTask).parse_cells
        located = ((row.where, cells(row)) for row in source.rows)
        rows = parse_rows(path, located, parse, "name another column")
        for note in rows.notes:
            print_above(f"note: {note}")
        lines = [int(where.rpartition(" ")[2]) for where in rows.locations]
        texts = [
            dict(zip(("text", "text_pair"), row, strict=True)) if "pair" in columns else row[0]
            for row in rows.items
        ]
        return list(zip(lines, texts, strict=True))

    def check_unused(self) -> None:
        """Raise InputError if a column was named and there is no table that could have it."""
        for flag, name in (("--text", self.text), ("--pair", self.pair)):
            if name is not None:
                what = f"{flag} {name} names a column of a table, and no table was given"
                raise InputError(what, hint="give a .csv, .tsv or .jsonl file")


def read_numbered(argument: str, columns: TableColumns) -> list[tuple[int, Input]] | None:
    """Return the texts of the file that an argument names, with their lines; None if it is a text itself."""
    if not looks_like_path(argument):
        return None
    path = find_file(argument)
    suffix = stem_path(path).suffix.lower()
    if looks_like_table(argument, columns):
        return columns.read(path)
    if suffix in SENTENCES:
        from heedful.data.examples.tagging import conll

        return list(enumerate((" ".join(sentence.words) for sentence in conll(path)), 1))
    lines = enumerate(read_file(path).split("\n"), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def read_inputs(arguments: Sequence[str] | None, columns: TableColumns) -> list[Input]:
    """Return the inputs of the command line: texts, lines of files and of stdin, rows of tables."""
    if not any(looks_like_table(argument, columns) for argument in arguments or ()):
        columns.check_unused()
    if not arguments or list(arguments) == ["-"]:
        return [*check_texts(nonempty_lines(read_stdin(wait=bool(arguments))))]
    inputs: list[Input] = []
    for argument in arguments:
        numbered = read_numbered(argument, columns)
        inputs += [argument] if numbered is None else [one for _, one in numbered]
    check_texts([one for one in inputs if isinstance(one, str)] or [str(one) for one in inputs])
    return inputs


def read_texts(arguments: Sequence[str] | None, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file and stdin have one text in each line that is not empty."""
    return [one for one in read_inputs(arguments, columns) if isinstance(one, str)]


def read_documents(arguments: Sequence[str] | None, per_line: bool, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file or stdin is one, or one `per_line`; a table has many."""
    if per_line or any(looks_like_table(argument, columns) for argument in arguments or ()):
        return read_texts(arguments, columns)
    columns.check_unused()
    if arguments and list(arguments) != ["-"]:
        return check_texts([text_or_file(argument) for argument in arguments])
    return check_texts([read_stdin(wait=bool(arguments)).strip()])


def nonempty_lines(text: str) -> list[str]:
    """Return the lines of a text that are not empty."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def text_or_file(argument: str) -> str:
    """Return an argument as it is, or the text of the file that it names."""
    text = file_text(argument)
    return argument if text is None else text.strip()


def read_stdin(wait: bool, hint: str = "write it after the command, or pipe it in") -> str:
    """Return the text that is piped in; a terminal is waited for only if `wait`, which "-" asks for."""
    if sys.stdin.isatty() and not wait:
        raise InputError("there is no text", hint=hint)
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"stdin is no {error.encoding} text (byte {error.start})", hint="convert it to UTF-8 first"
        ) from None


def check_texts(texts: list[str]) -> list[str]:
    """Return the texts; raise InputError if there are none or one is empty."""
    if not texts or not all(text.strip() for text in texts):
        raise InputError("a text is empty", hint="give one that has words, as an argument or through a pipe")
    return texts


def file_text(argument: str) -> str | None:
    """Return the text of the file that an argument names; None if the argument is a text itself."""
    return read_file(find_file(argument)) if looks_like_path(argument) else None


def find_file(argument: str) -> Path:
    """Return the file that an argument names; raise an error if it does not exist, or holds no text."""
    path = Path(argument).expanduser()
    if path.is_dir():
        raise InputError(f"{argument} is a folder", hint="name a file in it")
    if not path.is_file():
        hint = f"{missing_file(path).hint} (a text that looks like a path goes in by a pipe)"
        raise NotFound(f"there is no file {argument}", hint=hint)
    if stem_path(path).suffix.lower() in NO_TEXT:
        hint = "save it as plain text (.txt), or a table as .csv or .jsonl"
        raise InputError(f"{argument} is no text file", hint=hint)
    return path


def looks_like_table(argument: str, columns: TableColumns) -> bool:
    """Return whether an argument is written like the path of a table; a .txt is one if a column is named."""
    suffix, named = stem_path(Path(argument)).suffix.lower(), columns.text or columns.pair
    return looks_like_path(argument) and (suffix in TABLES or (suffix == ".txt" and bool(named)))


def looks_like_path(argument: str) -> bool:
    """Return whether a word is written like a path: no spaces, and a slash or the suffix of a text file."""
    if any(c.isspace() or c in "<>" for c in argument) or "://" in argument:
        return False
    return "/" in argument or Path(argument).suffix.lower() in SUFFIXES


def read_file(path: Path) -> str:
    """Return a whole file as text."""
    if not path.is_file():
        raise missing_file(path)
    with show_progress(f"reading {path}"):
        return "".join(read_blocks(path))


# Models that a command names, and the one it takes if none is named.
#
# `heed generate` takes a model, a text, or both. Of two arguments the first is the model. A single one is a
# model if it is written like one, else it is the text:
#
#     a name of `heed ls`       smollm2-135m-instruct, gpt2
#     a folder, or a .gguf      ./my-model, runs/gpt, tiny.gguf
#     a hub id                  owner/name: a slash, no spaces, and neither the suffix nor the place of a
#     file
#
# A text that is written like a model goes in by a pipe.


Model = Annotated[str, Argument("A folder, a run, a .gguf file, an installed model or a hub id.")]
Device = Annotated[str, Option("Compute on this device: auto, cpu, cuda, cuda:1 …", variable="HEED_DEVICE")]
Dtype = Annotated[
    str | None, Option("Compute in float32, bfloat16 or float16 instead of the file's own type.")
]

Processes = Annotated[
    int, Option("Split the model over N processes on this machine, one per GPU.", ("--nproc",), minimum=1)
]

MAX_CHARACTERS_OF_ONE_THREAD = 2000


def names_model(word: str) -> bool:
    """Return whether an argument is written like a model, by the rule above."""
    from heedful.weights.hub import BASES, bundled_models

    if not word or any(c.isspace() for c in word) or "://" in word:
        return False
    listing = read_known()
    presets = {row[key] for row in listing["presets"] for key in ("name", "family")}
    path = Path(word).expanduser()
    if word.lower() in {*BASES, *bundled_models(), *presets} or path.is_dir() or path.suffix == ".gguf":
        return True
    return "/" in word and path.suffix.lower() not in SUFFIXES and not path.is_file()


def default_model(task: str) -> str:
    """Return the model that a task takes if none is named, "" if it has none; print its name on stderr."""
    name: str = read_known()["models"].get(task, "")
    if name:
        print_above(f"model: {name} (heed ls lists others)")
    return name


@contextmanager
def few_threads(texts: Sequence[str]) -> Iterator[None]:
    """Compute in one thread where the texts are short: to wake others would take longer than they save."""
    from heedful.core.devices import one_thread

    with one_thread() if sum(map(len, texts)) <= MAX_CHARACTERS_OF_ONE_THREAD else nullcontext():
        yield


def check_gpus(count: int, device: str) -> None:
    """Raise ConfigError for more processes on GPUs than this machine has GPUs."""
    from heedful.core.devices import resolve_device

    if resolve_device(device).type == "cuda":
        import torch

        if count > (gpus := torch.cuda.device_count()):
            raise ConfigError(
                f"--nproc {count}: this machine has {gpus} GPUs", hint="use one process per GPU"
            )


@contextmanager
def split_processes(nproc: int, device: str) -> Iterator[Any]:
    """Join the processes that this one was launched with; yield their DeviceMesh, or None if it is alone.

    All of them run the same command. An error that all of them meet is printed by the first.
    """
    if nproc == 1:
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh

    from heedful.core.devices import resolve_device
    from heedful.train.distributed import processes

    kind = resolve_device(device).type
    with processes(gpu=kind == "cuda"):
        try:
            yield init_device_mesh(kind, (nproc,))
        except HeedfulError as error:
            if is_first():
                raise
            raise typer.Exit(error.exit_code) from None


def load_model(name: str, device: str, dtype: str | None, mesh: Any = None) -> Any:
    """Load a model by any of its names, onto a device and in a precision, and split it over a mesh."""
    with show_progress(f"loading {name}"):
        import torch

        from heedful.core.devices import resolve_device
        from heedful.train.checkpoint import of_run
        from heedful.weights.loading import load

        if dtype is not None:
            check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
        wanted = None if dtype is None else getattr(torch, dtype)
        return load(of_run(name), device=resolve_device(device), dtype=wanted, mesh=mesh)


def load_stepper(
    name: str, device: str, dtype: str | None, rows: int = 1, tokens: int | None = None, mesh: Any = None
) -> Any:
    """Load a model and return the stepper that pays for this many rows and tokens, or its fastest."""
    model = load_model(name, device, dtype, mesh)
    with show_progress(f"preparing {name}"):
        from heedful.decode.fast import choose_stepper, fast

        return fast(model) if tokens is None else choose_stepper(model, rows, tokens)


# Commands of Typer from plain functions: a parameter with an `Option` (core/checks.py) becomes an option, and
# a parameter that is a dataclass becomes the options of its fields.


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}  # of every command
KEYWORD = inspect.Parameter.KEYWORD_ONLY


class CommandGroup(typer.Typer):
    """A group of commands, such as `heed tokenizer train`."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(
            no_args_is_help=True, context_settings=SETTINGS, help=keep_examples(help), add_completion=False,
            rich_markup_mode=None, pretty_exceptions_enable=False,
        )  # fmt: skip
        self.callback()(lambda: None)  # without a callback, a group of one command would be that command

    def add(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return the decorator that adds a function as the command of this name."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            help = keep_examples(function.__doc__)
            self.command(name, context_settings=SETTINGS, help=help)(as_typer_command(function))
            return function

        return decorate


def keep_examples(help: str | None) -> str | None:
    """Mark the lines below "Examples:" so that help shows each on a line of its own (click's \\b)."""
    return help and inspect.cleandoc(help).replace("Examples:\n", "Examples:\n\n\b\n")


def as_typer_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with Typer's options in place of ours; it fills the dataclasses and calls this one.

    The default of a parameter that is a dataclass has the command's own defaults. An annotation with a table
    {name: (type, Option)} becomes these options; the function gets a mapping of those that were given.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    made: dict[str, tuple[list[str], Callable[..., Any]]] = {}  # by parameter: its options, and its type
    for parameter in inspect.signature(function).parameters.values():
        hint, own = hints[parameter.name], parameter.default
        table = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, dict)), None)
        if table is not None:
            options = [typer_parameter(name, kind, option, None) for name, (kind, option) in table.items()]
            given = lambda **values: {name: value for name, value in values.items() if value is not None}
            made[parameter.name] = [one.name for one in options], given
        elif is_dataclass(kind := getattr(hint, "__origin__", hint)) and isinstance(kind, type):
            defaults = {f.name: f.default for f in fields(kind)}
            only = next(
                (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Only)), defaults
            )
            defaults = defaults if own is parameter.empty else {name: getattr(own, name) for name in defaults}
            options = [
                typer_parameter(*row, defaults[row[0]]) for row in find_options(kind) if row[0] in only
            ]
            made[parameter.name] = [one.name for one in options], kind
        elif (option := annotated_option(hint)) is not None:
            options = [typer_parameter(parameter.name, hint.__origin__, option, own)]
        else:
            options = [parameter.replace(annotation=hint, kind=KEYWORD)]
        parameters += options

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        for name, (names, make) in made.items():
            values[name] = make(**{one: values.pop(one) for one in names})
        return function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def typer_parameter(name: str, hint: Any, option: Option, default: Any) -> inspect.Parameter:
    """Return the parameter that Typer makes into this option, or into an argument if it has no default."""
    kind = list[str] if get_origin(hint) is Sequence else hint
    more: dict[str, Any] = {"help": option.help, "metavar": option.metavar, "envvar": option.variable}
    more |= {"min": option.minimum, "max": option.maximum}
    default = inspect.Parameter.empty if default is MISSING else default
    by_place = isinstance(option, Argument) or (default is inspect.Parameter.empty and not option.flags)
    shown = typer.Argument(**more) if by_place else typer.Option(*option.flags, **more)
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, shown])


def command_words(context: typer.Context, leave_out: Container[str] = ()) -> list[str]:
    """Return the words of the command line behind a context, without some options: to run it once more."""
    options, arguments = list[str](), list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in leave_out or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name or ""]
        values = [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
        if parameter.param_type_name == "argument":
            arguments += values
        elif isinstance(value, bool):
            options.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            options += [word for v in values for word in (parameter.opts[0], v)]
    return [*options, "--", *arguments]
