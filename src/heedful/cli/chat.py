"""`heed chat`: chat with a model in the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.generate import after_prompt
from heedful.cli.model_arguments import Device, Dtype, default_model, load_stepper
from heedful.cli.options import options_from
from heedful.cli.text_arguments import text_or_file
from heedful.core.errors import InputError
from heedful.core.files import write_text
from heedful.decode.generation_options import SamplingOptions

HELP = """/system TEXT   set the system message           /set NAME VALUE   temperature, max_tokens, seed …
/clear         start a new conversation         /save FILE        save the conversation as JSON
/help          show this help                   /exit             leave (also Ctrl-D)
\"\"\"            begins and ends a text of several lines; Ctrl-C stops an answer"""


@options_from(SamplingOptions, max_tokens=512, temperature=0.7, top_p=0.95)
def chat_command(
    options: SamplingOptions,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A name of heed ls, a folder, a .gguf file or a hub id."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message, or its file.")] = None,
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
    stepper = load_stepper(model, device, dtype, tokens=10 * options.max_tokens)  # a few answers
    tokenizer = stepper.model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        raise InputError(
            f"{model} has no chat template", hint="use heed generate, or a model made for conversation"
        )
    settings = options.settings()
    if options.temperature == 0:
        settings.pop("top_p", None)
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

    def __init__(self, stepper: Any, settings: dict[str, Any], system: str | None) -> None:
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
        options = {name: value for name, value in self.settings.items() if value is not None}
        answer = stream(self.stepper, prompt, **options)
        words, finish = [], None
        try:
            for piece in after_prompt(answer):
                words.append(piece.text)
                finish = piece.finish
                print(piece.text, end="", flush=True)
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
        known = {
            "temperature": float,
            "top_p": float,
            "top_k": int,
            "min_p": float,
            "max_tokens": int,
            "seed": int,
        }
        try:
            self.settings[name] = known[name](value)
        except (KeyError, ValueError):
            print(f"set one of {', '.join(known)} to a number; got {name} {value}".rstrip(), file=sys.stderr)
