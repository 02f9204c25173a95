"""`heed generate` and `heed chat`: continue a text, or a conversation, with a model."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.commands import command_words
from heedful.cli.models import (
    Device,
    Dtype,
    Processes,
    check_gpus,
    default_model,
    load_stepper,
    names_model,
    split_processes,
)
from heedful.cli.terminal import Json, as_json, read_stdin, text_or_file
from heedful.core.checks import Argument, Only, Option
from heedful.core.errors import InputError
from heedful.core.files import write_text
from heedful.core.processes import launch
from heedful.core.progress import show_progress
from heedful.decode.settings import NUMERIC_FIELDS, GenerationSettings

if TYPE_CHECKING:
    from heedful.decode.rows import Piece

SAMPLING = Only(("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition", "stop", "seed"))


def generate_command(
    context: typer.Context,
    settings: Annotated[GenerationSettings, Only((*SAMPLING, "beams", "n", "regex"))],
    model: Annotated[
        str | None, Argument("A name of heed ls, a folder, a run, a .gguf file or a hub id.", metavar="MODEL")
    ] = None,
    prompt: Annotated[
        str | None, Argument("The text to continue, or its file; - or a pipe reads stdin.", metavar="TEXT")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    nproc: Processes = 1,
    verbose: Annotated[bool, Option("Print speed and seed on stderr.", ("--verbose", "-v"))] = False,
    json: Json = False,
) -> None:
    """Continue a text, greedily unless a sampling option is given.

    A single argument is the text, unless it is written like a model: a name of heed ls, a folder, a .gguf
    file or owner/name.

    Examples:
      heed generate "Once upon a time"
      heed generate prose "Once upon a time" --temperature 0.8 --seed 0
      echo "The capital of France is" | heed generate ./my-model - --max-tokens 8
      heed generate ./large-model "Once upon a time" --nproc 4 --device cuda
    """
    if prompt is None and model is not None and not names_model(model):
        model, prompt = None, model
    if prompt is None or prompt == "-":
        example = f"write it after the command: heed generate {model or ''}".rstrip() + ' "Once upon a time"'
        text = read_stdin(wait=prompt == "-", hint=example).removesuffix("\n")
    else:
        text = text_or_file(prompt)
    model = default_model("text-generation") if model is None else model
    seed = secrets.randbits(31) if settings.seed is None else settings.seed  # can be printed and used again
    if nproc > 1 and "RANK" not in os.environ:
        check_gpus(nproc, device)
        words = command_words(context, leave_out=("model", "prompt", "seed"))
        words = ["generate", "--seed", str(seed), *words, model, "-"]
        raise typer.Exit(launch(nproc, words, text=text, alike=True))
    settings = replace(settings, seed=seed)
    with split_processes(nproc, device) as mesh:
        rows = max(settings.samples, settings.beams or 1)
        stepper = load_stepper(model, device, dtype, rows, settings.max_tokens, mesh)
        print_generated(stepper, text, settings, {"model": model, "seed": seed}, json, verbose)


def print_generated(
    stepper: Any, text: str, settings: GenerationSettings, about: dict[str, Any], json: bool, verbose: bool
) -> None:
    """Generate and print; with `verbose`, also print the speed on stderr."""
    start = time.perf_counter()
    if settings.beams is not None or settings.n is not None or json:
        first, count = 0.0, print_whole(stepper, text, settings, about, json)
    else:
        first, count = print_stream(stepper, text, settings)
    if verbose:
        # without its own first token, the time includes reading the prompt
        rate = (count - (first > 0)) / max(time.perf_counter() - start - first, 1e-9)
        first_token = f"first_s={first:.2f} " if first else ""
        print(
            f"tokens={count} {first_token}tokens_per_second={rate:.1f} seed={about['seed']}", file=sys.stderr
        )


def print_whole(
    stepper: Any, text: str, settings: GenerationSettings, about: dict[str, Any], json: bool
) -> int:
    """Generate whole texts, then print them; return how many tokens they have."""
    from heedful.decode.loop import generate

    with show_progress("generating"):
        generated = generate(stepper, text, details=True, **vars(settings))
    texts = generated if isinstance(generated, list) else [generated]
    if json:
        rows = [{"text": g.text, "finish": g.finish, "score": g.score, "tokens": len(g.ids)} for g in texts]
        as_json({"model": about["model"], "prompt": text, "seed": about["seed"], "texts": rows})
    for number, g in enumerate(() if json else texts, 1):
        print(f"--- {number}\n{g.text}" if len(texts) > 1 else g.text)
    if full := [len(g.ids) for g in texts if g.finish == "context"]:
        print_context_note(stepper.model, max(full), settings.max_tokens)
    return sum(len(g.ids) for g in texts)


def print_pieces(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Print the pieces of a text as they come, and yield them; progress is shown until there is one."""
    with show_progress("reading the prompt"):
        first = list(itertools.islice(pieces, 1))
    for piece in itertools.chain(first, pieces):
        print(piece.text, end="", flush=True)
        yield piece


def print_stream(stepper: Any, text: str, settings: GenerationSettings) -> tuple[float, int]:
    """Print a text while it is generated; return the seconds to its first token, and the number of tokens."""
    from heedful.decode.loop import stream

    start, first, count, finish = time.perf_counter(), 0.0, 0, None
    for piece in print_pieces(stream(stepper, text, **vars(settings))):
        first, count = first or time.perf_counter() - start, count + 1
        finish = piece.finish
    print()
    if finish == "context":
        print_context_note(stepper.model, count, settings.max_tokens)
    return first, count


def print_context_note(model: Any, count: int, max_tokens: int) -> None:
    """Tell on stderr that a text ended early because the model's context is full."""
    from heedful.decode.request import context_length

    print(
        f"note: the text ends after {count} of {max_tokens} tokens, because the model's context of "
        f"{context_length(model)} tokens is full. Shorten the prompt, or name a model with a longer context.",
        file=sys.stderr,
    )


# `heed chat`: chat with a model in the terminal.


HELP = """/system TEXT   set the system message           /set NAME VALUE   temperature, max_tokens, seed …
/clear         start a new conversation         /save FILE        save the conversation as JSON
/help          show this help                   /exit             leave (also Ctrl-D)
\"\"\"            begins and ends a text of several lines; Ctrl-C stops an answer"""


CHAT_SETTINGS = GenerationSettings(max_tokens=512, temperature=0.7, top_p=0.95)


def chat_command(
    model: Annotated[
        str | None, Argument("A name of heed ls, a folder, a .gguf file or a hub id.", metavar="MODEL")
    ] = None,
    settings: Annotated[GenerationSettings, SAMPLING] = CHAT_SETTINGS,
    system: Annotated[str | None, Option("Begin with this system message, or the text of this file.")] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Chat with a model that has a chat template.

    Examples:
      heed chat
      heed chat ./my-model --system "Answer in one sentence."
      echo "What is the capital of France?" | heed chat --temperature 0
    """
    system = None if system is None else text_or_file(system)
    model = default_model("conversational") if model is None else model
    stepper = load_stepper(model, device, dtype, tokens=10 * settings.max_tokens)  # a few answers
    tokenizer = stepper.model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        raise InputError(f"{model} has no chat template", hint="use heed generate, or a chat model")
    session = ChatSession(stepper, settings, system)
    if sys.stdin.isatty():
        print("/help lists the commands", file=sys.stderr)
    while (message := read_message()) is not None:
        if message.startswith("/"):
            if not session.command(message):
                break
        elif message.strip():
            try:
                session.reply(message)
            except InputError as error:
                if not sys.stdin.isatty():
                    raise
                print(f"error: {error}", file=sys.stderr)  # the conversation is not lost


def read_message() -> str | None:
    """Read one message: a line, or several between triple quotes. Return None at the end of the input."""
    try:
        line = input("> " if sys.stdin.isatty() else "")
        if not line.startswith('"""'):
            return line
        lines = [line.removeprefix('"""')]
        while not lines[-1].endswith('"""') or (len(lines) == 1 and lines[0] == ""):
            lines.append(input("… " if sys.stdin.isatty() else ""))
        return "\n".join(lines).removesuffix('"""').strip("\n")
    except EOFError:
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return None


class ChatSession:
    """The messages so far, the model that answers them and its sampling options."""

    def __init__(self, stepper: Any, settings: GenerationSettings, system: str | None) -> None:
        self.stepper, self.settings = stepper, settings
        self.messages: list[dict[str, str]] = (
            [] if system is None else [{"role": "system", "content": system}]
        )

    def reply(self, message: str) -> None:
        """Print the model's answer to a message while it is generated; Ctrl-C ends it early.

        An error leaves the messages as they were.
        """
        from heedful.decode.loop import stream

        question = {"role": "user", "content": message}
        tokenizer = self.stepper.model.tokenizer
        prompt = tokenizer.encode(tokenizer.chat([*self.messages, question]), special=False)
        answer = stream(self.stepper, prompt, **vars(self.settings))
        words, finish = [], None
        try:
            for piece in print_pieces(answer):
                words.append(piece.text)
                finish = piece.finish
        except KeyboardInterrupt:
            print(" …", end="")
        print()
        if finish == "context":
            print(
                "note: the conversation fills the model's context. /clear begins a new one.", file=sys.stderr
            )
        self.messages += [question, {"role": "assistant", "content": "".join(words)}]

    def command(self, line: str) -> bool:
        """Run a slash command; return False to leave."""
        name, _, rest = line[1:].partition(" ")
        if name in ("exit", "quit", "bye"):
            return False
        if name == "clear":
            self.messages = [m for m in self.messages if m["role"] == "system"]
        elif name == "system":
            others = [m for m in self.messages if m["role"] != "system"]
            self.messages = [{"role": "system", "content": rest}, *others] if rest else others
        elif name == "set":
            self.set(*rest.split(None, 1))
        elif name == "save" and rest:
            self.save(Path(rest))
        else:
            print(HELP, file=sys.stderr)
        return True

    def save(self, path: Path) -> None:
        """Save the conversation as JSON, or print why that failed."""
        try:
            path.parent.stat()  # a mistyped folder is not made
            write_text(path, json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n")
            print(f"saved {len(self.messages)} messages in {path}", file=sys.stderr)
        except OSError as error:
            print(f"error: could not write {path}: {error.strerror}", file=sys.stderr)

    def set(self, name: str = "", value: str = "") -> None:
        """Change one option, or print which ones there are."""
        kinds = {field: int if int in kinds else float for field, kinds, _ in NUMERIC_FIELDS}
        names = [field for field in SAMPLING if field in kinds]
        try:
            number: Any = kinds[name](value) if name in names else None
        except ValueError:
            number = None
        if number is None:
            print(f"set one of {', '.join(names)} to a number; got {name} {value}".rstrip(), file=sys.stderr)
            return
        try:
            self.settings = replace(self.settings, **{name: number})
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
