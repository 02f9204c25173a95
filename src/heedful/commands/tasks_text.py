"""What the commands of tasks share: where texts come from, and how results are written."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from heedful.commands.arguments import file_text
from heedful.commands.output import as_json, console
from heedful.errors import InputError

Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT…", help="Texts; - or a pipe reads them, one a line.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A folder, a bundled or installed model, a hub id; the task's own."),
]
Device = Annotated[str, typer.Option(envvar="HEED_DEVICE", help="cpu, or cuda for a GPU.")]

Row = dict[str, Any]


def texts(given: Sequence[str] | None) -> list[str]:
    """The texts of the command line; of stdin, and of a file that is named, the lines that are not empty."""
    if given and list(given) != ["-"]:
        read = [(argument, file_text(argument)) for argument in given]
        return filled([t for argument, text in read for t in ([argument] if text is None else split(text))])
    return filled(split(stdin(bool(given))))


def split(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def document(given: Sequence[str] | None, lines: bool) -> list[str]:
    """The same where a text may have many lines: stdin or a file is one, unless `lines` says otherwise."""
    if lines:
        return texts(given)
    if given and list(given) != ["-"]:
        return filled([one_text(argument) for argument in given])
    return filled([stdin(bool(given)).strip()])


def one_text(argument: str) -> str:
    """A text as given, or that of the file it names."""
    text = file_text(argument)
    return argument if text is None else text.strip()


def stdin(asked: bool) -> str:
    """What is piped in; nobody is left waiting at a terminal who did not ask for it with "-"."""
    if waiting() and not asked:
        raise InputError("there is no text", hint="write it after the command, or pipe it in")
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"stdin is no {error.encoding} text (byte {error.start})", hint="convert it first"
        ) from None


def waiting() -> bool:
    """Whether stdin is a terminal."""
    return sys.stdin.isatty()


def filled(found: list[str]) -> list[str]:
    """The texts themselves, of which there must be some, and something in each."""
    if not found or not all(text.strip() for text in found):
        raise InputError("a text is empty", hint="give one that has words, as an argument or through a pipe")
    return found


@contextmanager
def telling() -> Iterator[None]:
    """Warnings as one line each on stderr, without the place in the code they come from."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in seen:
        print(f"warning: {warning.message}", file=sys.stderr)


def made(task: str, model: str | None, device: str, **defaults: Any) -> tuple[str, Any]:
    """The name of the model that does a task, and the pipeline itself."""
    from heedful.tasks.pipeline import find_task, pipeline
    from heedful.train.checkpoint import of_run

    chosen = None if model is None else of_run(model)
    return model or find_task(task).model, pipeline(task, chosen, device=device, **defaults)


def write(
    said: Row,
    found: Iterable[tuple[str, list[Row]]],
    json: bool,
    draw: Callable[[str, list[Row]], str],
) -> None:
    """Every text's results: an object a line, or as `draw` has them; of several texts each above its own."""
    rows = list(found)
    if json:
        for text, results in rows:
            as_json(said | {"text": text, "results": results})
        return
    for number, (text, results) in enumerate(rows):
        if len(rows) > 1:
            show(("\n" if number else "") + text, "dim")
        show(draw(text, results))


def show(text: str, style: str = "") -> None:
    """One piece of a result as it is; on a terminal, what stands between the marks of `marked` is bold."""
    from rich.text import Text

    drawn = Text(text, style)
    drawn.highlight_regex(r"⟦[^⟧]*⟧", "bold green")
    console().print(drawn, soft_wrap=True)


def marked(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """The text on one line with its spans between brackets, what they are after them: ⟦Ada⟧PER wrote."""
    out, at = [], 0
    for start, end, label in sorted(spans):
        if start < at:
            continue
        out += [text[at:start], "⟦", text[start:end], "⟧", label]
        at = end
    return " ".join("".join([*out, text[at:]]).split())


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines: every column as wide as its widest cell, the last as it is."""
    from rich.cells import cell_len

    wide = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    pad = lambda cell, width: cell + " " * (width - cell_len(cell))
    return "\n".join(
        "  ".join([*(pad(c, w) for c, w in zip(row[:-1], wide, strict=False)), row[-1]]) for row in rows
    )


def labelled(text: str, results: list[Row]) -> str:
    """Labels and scores, a line each."""
    return columns([(f"{row['score']:.4f}", row["label"]) for row in results])
