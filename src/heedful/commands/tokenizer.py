"""`heed tokenizer train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.output import Json, as_json, console, table
from heedful.errors import InputError

SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, context_settings=SETTINGS, help="Learn a vocabulary from text.")


@app.callback()
def tokenizer() -> None:
    """Learn a vocabulary from text."""


@app.command()
def train(
    files: Annotated[list[str], typer.Argument(help="Text files or folders; .gz, .xz and .bz2 are opened.")],
    folder: Annotated[Path, typer.Option("--folder", "-o", help="Where it goes.")] = Path("tokenizer"),
    kind: Annotated[str, typer.Option(help="bpe, wordpiece, unigram, word or char.")] = "bpe",
    vocab: Annotated[int, typer.Option(min=1, help="At most so many tokens.")] = 8000,
    special: Annotated[
        str | None, typer.Option(help="Roles, as bos,eos,pad; what the kind usually has.")
    ] = None,
    sentinels: Annotated[int, typer.Option(min=0, help="T5's <extra_id_0> … for span corruption.")] = 0,
    lower: Annotated[bool, typer.Option("--lower", help="All in lower case.")] = False,
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    json: Json = False,
) -> None:
    """Learn a tokenizer; the last line is its folder, which --set tokenizer.kind=FOLDER takes.

    Examples:

      heed tokenizer train corpus.txt --vocab 8000 -o my-tokenizer

      heed tokenizer train corpus/ --kind unigram --sentinels 100
    """
    from heedful.text import save_tokenizer
    from heedful.text.tokenizer_training import train_tokenizer

    if (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} holds a tokenizer already", hint="name another --folder")
    roles = None if special is None else [role.strip() for role in special.split(",") if role.strip()]
    made = train_tokenizer(
        kind, files, vocab, special=roles, sentinels=sentinels, lower=lower, encoding=encoding
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(made, folder)
    if json:
        return as_json({"kind": kind, "tokens": len(made), "special": made.roles, "folder": str(folder)})
    rows = table("tokenizer", kind)
    rows.add_row("tokens", f"{len(made):,}")
    rows.add_row(
        "special", "  ".join(f"{role} {token}" for role, token in made.roles.items()).replace("[", "\\[")
    )
    console().print(rows)
    print(folder)
