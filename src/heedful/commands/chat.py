"""`heed chat`: a conversation with a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.commands.generate import Device, Dtype, Model, load_stepper

HELP = """/system TEXT   what the model is told first     /set NAME VALUE   temperature, max_tokens, seed …
/clear         forget the conversation          /save FILE        the conversation as JSON
/help          this                             /exit             leave (also Ctrl-D)
\"\"\"            begins and ends a text of several lines; Ctrl-C stops an answer"""


def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is the likeliest token each time.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest that hold this mass.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(help="At most so many per answer.")] = 512,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Talk with a model that has a chat template.

    Examples:

      heed chat smollm2-135m-instruct

      echo "What is the capital of France?" | heed chat smollm2-135m-instruct --temperature 0
    """
    from heedful.errors import InputError

    stepper = load_stepper(model, device, dtype, tokens=10 * max_tokens)  # a few answers
    tokenizer = stepper.model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        raise InputError(
            f"{model} has no chat template", hint="use heed generate, or a model made for conversation"
        )
    settings: dict[str, Any] = {
        "temperature": temperature, "top_p": None if temperature == 0 else top_p,
        "max_tokens": max_tokens, "seed": seed,
    }  # fmt: skip
    talk = Talk(stepper, settings, system)
    if sys.stdin.isatty():
        print("/help lists the commands", file=sys.stderr)
    while (said := read()) is not None:
        if said.startswith("/"):
            if not talk.command(said):
                break
        elif said.strip():
            try:
                talk.answer(said)
            except InputError as error:
                if not sys.stdin.isatty():
                    raise
                print(f"error: {error}", file=sys.stderr)  # the conversation is not lost


def read() -> str | None:
    """One message: a line, or several between triple quotes; None at the end of the input."""
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


class Talk:
    """The messages so far, and what answers them."""

    def __init__(self, stepper: Any, settings: dict[str, Any], system: str | None) -> None:
        self.stepper, self.settings = stepper, settings
        self.messages: list[dict[str, str]] = (
            [] if system is None else [{"role": "system", "content": system}]
        )

    def answer(self, said: str) -> None:
        """Say something and print what comes back, as it comes; Ctrl-C keeps what there is.

        What cannot be answered was not said: an error leaves the messages as they were.
        """
        from heedful.decode.loop import stream

        asked = {"role": "user", "content": said}
        tokenizer = self.stepper.model.tokenizer
        prompt = tokenizer.encode(tokenizer.chat([*self.messages, asked]), special=False)
        rules = {name: value for name, value in self.settings.items() if value is not None}
        answer = stream(self.stepper, prompt, **rules)
        words = []
        try:
            for piece in answer:
                words.append(piece.text)
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            print(" …", end="")
        print()
        self.messages += [asked, {"role": "assistant", "content": "".join(words)}]

    def command(self, line: str) -> bool:
        """Do what a slash command says; False to leave."""
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
        """Write the conversation as JSON; a place that cannot be written is said."""
        try:
            path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2), encoding="utf-8")
            print(f"saved {len(self.messages)} messages in {path}", file=sys.stderr)
        except OSError as error:
            print(f"error: could not write {path}: {error.strerror}", file=sys.stderr)

    def set(self, name: str = "", value: str = "") -> None:
        """Change one setting; an unknown one or no number is said."""
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
