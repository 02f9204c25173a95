"""`heed`: one table of commands. A command's module is imported when it is called, so that help is instant.

Only results go to stdout. An error is one line and its hints on stderr, and an exit code:
0 done · 1 failed · 2 wrong usage · 3 bad name, input or file · 4 out of memory · 5 diverged ·
130 interrupted · 143 training ended by SIGTERM.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from heedful.cli.commands import SETTINGS, CommandGroup, shell_words
from heedful.core.errors import HeedfulError, is_out_of_memory
from heedful.core.lazy import missing_package

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Command:
    """One row of the table: the module, one sentence of help, and the heading that help lists it under."""

    module: str  # of heedful.cli: it defines NAME_command: a function, or a group of commands
    help: str
    panel: str


COMMANDS = {
    "show": Command("models", "Show a model's parts, shapes and equations.", "Models"),
    "count": Command("models", "Count a model's parameters, FLOPs and memory.", "Models"),
    "ls": Command("models", "List all presets, and the trained models on this machine.", "Models"),
    "train": Command("training", "Train a model from scratch on files.", "Training"),
    "finetune": Command("finetune", "Fine-tune a trained model on a file.", "Training"),
    "eval": Command("finetune", "Measure a model on files.", "Training"),
    "predict": Command("finetune", "Predict every row of a table.", "Tasks"),
    "verify": Command("training", "Measure a published result again.", "Training"),
    "plot": Command("training", "Plot training curves, races, or a map of words.", "Training"),
    "race": Command("training", "Compare RNNs, Transformers and others of one size.", "Training"),
    "scale": Command("training", "Fit a scaling law and predict the loss of larger models.", "Training"),
    "tokenizer": Command("training", "Train a tokenizer on text.", "Training"),
    "recipes": Command("training", "List the training recipes.", "Training"),
    "recipe": Command("training", "Copy a recipe to a file, to change it.", "Training"),
    "generate": Command("generate", "Continue a text.", "Generation"),
    "chat": Command("generate", "Chat with a model.", "Generation"),
    "serve": Command("servers", "Serve models over HTTP for OpenAI's clients.", "Generation"),
    "bench": Command("tools", "Measure the speed of a model on this machine.", "Generation"),
    "check": Command("tools", "Check that alone, batched, padded and cached decoding agree.", "Generation"),
    "quantize": Command("tools", "Quantize a model to 8 or 4 bits.", "Generation"),
    "export": Command("tools", "Write a model as GGUF, ONNX or a Hugging Face folder.", "Generation"),
    "tokenize": Command("tools", "Show how a model tokenizes a text.", "Text"),
    "word2vec": Command("word2vec", "Train, query, score and convert word vectors.", "Text"),
    "classify": Command("tasks", "Classify texts, also by your own labels.", "Tasks"),
    "tag": Command("tasks", "Find names of people, places and organisations.", "Tasks"),
    "answer": Command("tasks", "Answer a question from a text.", "Tasks"),
    "translate": Command("tasks", "Translate English to German or French.", "Tasks"),
    "summarize": Command("tasks", "Summarize a text.", "Tasks"),
    "read": Command("tasks", "Read the text in images.", "Tasks"),
    "fill": Command("tasks", "Fill in masked words.", "Tasks"),
    "embed": Command("similar", "Turn sentences into vectors.", "Tasks"),
    "similar": Command("similar", "Find the sentences nearest in meaning.", "Tasks"),
    "index": Command("similar", "Index files, to search them by meaning.", "Tasks"),
    "search": Command("similar", "Search an index by meaning.", "Tasks"),
    "rerank": Command("similar", "List the texts that answer a query, the best first.", "Tasks"),
    "complete": Command("tasks", "Continue texts, a line or a file at a time.", "Tasks"),
    "studio": Command("servers", "Look inside a model in the browser.", "Inspection"),
    "explain": Command("teach", "Work out a model's arithmetic step by step.", "Inspection"),
    "exercise": Command("teach", "Write exercises for a student: numbers, or code.", "Teaching"),
    "grade": Command("teach", "Mark a filled sheet, or a file of code.", "Teaching"),
    "course": Command("teach", "Write the chapters of the course as notebooks.", "Teaching"),
    "env": Command("tools", "Show this machine and its packages, for bug reports.", "Help"),
    "version": Command("tools", "Show heedful's version.", "Help"),
}  # fmt: skip

EXAMPLES = """Build, train, run and look inside every model of the Transformer family.

Examples:
  heed studio
  heed classify "Cats are fickle creatures"
  heed generate "Once upon a time"
  heed ls
"""

USAGE_ERROR: Any = typer.BadParameter.__base__  # the base of every error in a command line
NO_ARGUMENTS: Any = tuple(c for c in USAGE_ERROR.__subclasses__() if c.__name__ == "NoArgsIsHelpError")


class LazyGroup(TyperGroup):
    """A group that lists its commands from the table and imports one when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # on a terminal the cursor stands behind ^C, or behind a text
            print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


def load_command(name: str) -> Any:
    """Import the command of a row of the table."""
    module = importlib.import_module(f"heedful.cli.{COMMANDS[name].module}")
    command = getattr(module, f"{name}_command")
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    group = CommandGroup()
    group.add(name)(command)
    return typer.main.get_command(group).commands[name]  # type: ignore[attr-defined]


app = typer.Typer(
    cls=LazyGroup,
    help=EXAMPLES,
    no_args_is_help=True,
    context_settings=SETTINGS,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    no_color: bool = typer.Option(False, "--no-color", help="Print without colours, as NO_COLOR=1 does."),
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import a module or a file of model families."),
    ] = None,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if modules:  # models/plugins.py imports them, in every process of this run
        os.environ["HEED_IMPORT"] = os.pathsep.join(modules)


for _name, _row in COMMANDS.items():  # help lists these; LazyGroup puts the real command in their place
    app.command(_name, help=_row.help, rich_help_panel=_row.panel)(lambda: None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `heed`."""
    gc.set_threshold(100_000, 50, 50)  # torch's import makes a million objects that stay: seldom look through
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words  # a program reads stdout: an error is printed there too
    try:
        code = typer.main.get_command(app).main(args=words, prog_name="heed", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except NO_ARGUMENTS as shown:
        shown.show()  # the help of a group
        sys.exit(shown.exit_code)
    except Exception as error:
        if os.environ.get("HEED_DEBUG") == "1":
            raise
        sys.exit(report_error(error, words, as_json=as_json))


def report_error(error: Exception, arguments: Sequence[str], *, as_json: bool) -> int:
    """Print what went wrong and what to do about it; return the exit code."""
    name = type(error).__name__
    code = 1
    if isinstance(error, USAGE_ERROR):
        hint = f"{error.ctx.command_path} --help" if error.ctx is not None else "heed --help"
        name, message, code = "UsageError", error.format_message().rstrip("."), error.exit_code
    elif isinstance(error, HeedfulError):
        typed = next((word for word in arguments if word in COMMANDS), "version")
        command = load_command(typed)
        for word in arguments:
            command = getattr(command, "commands", {}).get(word, command)
        message, hint = shell_words(error, command, typed)
        name, code = getattr(error, "code", name), error.exit_code
    elif is_out_of_memory(error):
        message, hint, code = "out of memory", "use a smaller batch, a shorter text or a smaller model", 4
    elif isinstance(error, OSError) and error.errno in DISK_FULL:  # a write that fails names no file
        message = f"could not write {error.filename or 'a file'}: {error.strerror}"
        hint = "free some disk space"
    elif isinstance(error, OSError) and error.filename is not None:
        message, hint = f"{error.filename}: {error.strerror}", "check the path and its permissions"
        code = 3
    elif isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] != "heedful":
        missing = missing_package(error.name, "this command")
        name, message, hint = type(missing).__name__, missing.message, missing.hint or ""
    else:
        message = f"{name}: {' '.join(str(error).split())[:300]}"
        hint = "this is a bug in heedful: please report it"
    if as_json:
        word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        body = {"code": word, "message": message, "hint": hint or None}
        print(json.dumps({"schema": "heed/1", "error": body}, ensure_ascii=False))
        return code
    lines = [f"error: {message}"] + [f"hint: {hint}"] * bool(hint)
    if code == 1 and not isinstance(error, HeedfulError | ModuleNotFoundError):
        lines.append("hint: HEED_DEBUG=1 shows the traceback")
    print("\n".join(lines), file=sys.stderr)
    return code
