"""`heed`: one table of commands. A command's module is imported when it is called, so that help is instant.

Results go to stdout and nothing else does. An error is one line and its hints on stderr, and an exit code:
0 done · 1 failed · 2 wrong usage · 3 bad name, input or file · 4 out of memory · 5 diverged ·
130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from heedful.errors import HeedfulError, is_out_of_memory

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Command:
    """One row of the table: where it is, what it does, under which heading help lists it."""

    where: str  # module:function, or module:app for a group of its own
    help: str
    panel: str


COMMANDS = {
    "show": Command("heedful.commands.show:show", "A model's tree: parts, shapes, equations.", "Models"),
    "count": Command("heedful.commands.count:count", "Parameters, FLOPs and memory of a model.", "Models"),
    "ls": Command("heedful.commands.ls:ls", "Every known model, and those on this machine.", "Models"),
    "train": Command("heedful.commands.train:train", "Train a model from files.", "Training"),
    "eval": Command("heedful.commands.evaluate:evaluate", "Measure a model on files.", "Training"),
    "plot": Command("heedful.commands.plot:app", "Draw how a model was trained.", "Training"),
    "tokenizer": Command("heedful.commands.tokenizer:app", "Learn a vocabulary from text.", "Training"),
    "recipes": Command("heedful.commands.recipes:recipes", "Every recipe, and what it is for.", "Training"),
    "recipe": Command("heedful.commands.recipes:app", "Copy a recipe, to change it.", "Training"),
    "generate": Command("heedful.commands.generate:generate", "Go on with a text.", "Writing"),
    "chat": Command("heedful.commands.chat:chat", "Talk with a model.", "Writing"),
    "serve": Command("heedful.commands.serve:serve", "Answer OpenAI's clients over HTTP.", "Writing"),
    "bench": Command("heedful.commands.bench:bench", "How fast a model reads and writes here.", "Writing"),
    "check": Command("heedful.commands.check:check", "The same text in every mode?", "Writing"),
    "quantize": Command("heedful.commands.check:quantize", "Weights in 8 or 4 bits.", "Writing"),
    "tokenize": Command("heedful.commands.tokenize:tokenize", "How a model cuts a text into tokens.", "Text"),
    "word2vec": Command("heedful.commands.word2vec:app", "Word vectors: train, ask, score, convert.", "Text"),
    "finetune": Command(
        "heedful.commands.finetune:finetune", "A trained model, taught your own file.", "Training"
    ),
    "verify": Command("heedful.commands.verify:verify", "Measure a row of the ledger again.", "Training"),
    "classify": Command("heedful.commands.tasks:classify", "Which class, feeling or intent.", "Tasks"),
    "tag": Command("heedful.commands.tasks:tag", "Names of people, places and things.", "Tasks"),
    "answer": Command("heedful.commands.tasks:answer", "The answer to a question in a text.", "Tasks"),
    "translate": Command("heedful.commands.tasks:translate", "English into German or French.", "Tasks"),
    "summarize": Command("heedful.commands.tasks:summarize", "A text in a sentence or two.", "Tasks"),
    "fill": Command("heedful.commands.tasks:fill", "The word behind [MASK].", "Tasks"),
    "embed": Command("heedful.commands.tasks:embed", "Sentences as vectors.", "Tasks"),
    "similar": Command("heedful.commands.tasks:similar", "The sentences nearest to one.", "Tasks"),
    "complete": Command("heedful.commands.tasks:complete", "How a text may go on.", "Tasks"),
    "studio": Command(
        "heedful.commands.studio:studio", "The page: every number of a model.", "Looking inside"
    ),
    "explain": Command(
        "heedful.commands.explain:explain", "The arithmetic, number by number.", "Looking inside"
    ),
    "env": Command("heedful.commands.env:env", "This machine and its packages, for bug reports.", "Help"),
    "version": Command("heedful.commands.env:version", "The version of heedful.", "Help"),
}

EXAMPLES = """The Transformer family made real: every model shown, counted, loaded, looked into.

Examples:

  heed show gpt2

  heed count gpt3

  heed ls
"""

USAGE: Any = typer.BadParameter.__base__  # of all that is wrong with a command line
SETTINGS = {"help_option_names": ["-h", "--help"]}


class Lazy(TyperGroup):
    """A group that lists its commands from the table and imports one when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The real command behind a row of the table."""
    module, attribute = COMMANDS[name].where.split(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, context_settings=SETTINGS)(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Lazy,
    help=EXAMPLES,
    no_args_is_help=True,
    context_settings=SETTINGS,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(no_color: bool = typer.Option(False, "--no-color", help="No colours, as NO_COLOR=1.")) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"


def _stub() -> Callable[[], None]:
    def nothing() -> None:
        """Stands in the list; the table has the real one."""

    return nothing


for _name, _row in COMMANDS.items():
    app.command(_name, help=_row.help, rich_help_panel=_row.panel)(_stub())


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `heed`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    programs = "--json" in given  # which read stdout, also what is wrong
    try:
        code = typer.main.get_command(app).main(args=given, prog_name="heed", standalone_mode=not programs)
        sys.exit(code if isinstance(code, int) else 0)
    except Exception as error:
        if os.environ.get("HEED_DEBUG") == "1":
            raise
        sys.exit(report(error, given, as_json=programs))


def report(error: Exception, arguments: Sequence[str], *, as_json: bool) -> int:
    """Say what went wrong and what to do; the exit code it stands for."""
    name = type(error).__name__
    code = 1
    if isinstance(error, USAGE):
        hint = f"{error.ctx.command_path} --help" if error.ctx is not None else "heed --help"
        name, message, code = "UsageError", error.format_message().rstrip("."), error.exit_code
    elif isinstance(error, HeedfulError):
        message, hint = message_and_hint(error, arguments)
        code = error.exit_code
    elif is_out_of_memory(error):
        message, hint, code = "out of memory", "take a smaller batch, a shorter text or a smaller model", 4
    elif isinstance(error, OSError) and error.errno in DISK_FULL:  # a write that fails names no file
        message = f"could not write {error.filename or 'a file'}: {error.strerror}"
        hint = "make room on the disk"
    elif isinstance(error, OSError) and error.filename is not None:
        message, hint = f"{error.filename}: {error.strerror}", "check the path, and whether it may be written"
        code = 3
    else:
        message = f"{name}: {' '.join(str(error).split())[:300]}"
        hint = "this is a fault of heedful's: please report it"
    if as_json:
        word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        told = {"code": word, "message": message, "hint": hint or None}
        print(json.dumps({"schema": "heed/1", "error": told}, ensure_ascii=False))
        return code
    lines = [f"error: {message}"] + [f"hint: {hint}"] * bool(hint)
    if code == 1 and not isinstance(error, HeedfulError):
        lines.append("hint: HEED_DEBUG=1 shows the traceback")
    print("\n".join(lines), file=sys.stderr)
    return code


def message_and_hint(error: HeedfulError, arguments: Sequence[str]) -> tuple[str, str]:
    """Return the message and the hint of an error in the words of the command that was typed."""
    message, hint = (" ".join((text or "").split()) for text in (error.message, error.shell or error.hint))
    name = next((word for word in arguments if word in COMMANDS), None)
    if name is None:
        return message, hint
    from heedful.commands.shell import shell_words

    command = load(name)
    for word in arguments[arguments.index(name) + 1 :]:
        command = getattr(command, "commands", {}).get(word, command)
    return shell_words(message, hint, command, name)


if __name__ == "__main__":
    main()
