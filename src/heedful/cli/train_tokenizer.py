"""`heed tokenizer train`: train a tokenizer on text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import Json, as_json, print_pairs
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, context_settings=SETTINGS, help="Train a tokenizer on text.")


@app.callback()
def tokenizer() -> None:
    """Train a tokenizer on text."""


@app.command("train")
def train_tokenizer_command(
    files: Annotated[
        list[str], typer.Argument(help="Text files or folders; .gz, .xz and .bz2 are decompressed.")
    ],
    folder: Annotated[Path, typer.Option("--folder", "-o", help="The folder to write.")] = Path("tokenizer"),
    kind: Annotated[str, typer.Option(help="bpe, wordpiece, unigram, word or char.")] = "bpe",
    vocab: Annotated[int, typer.Option(min=1, help="The largest size of the vocabulary.")] = 8000,
    special: Annotated[
        str | None, typer.Option(help="Special tokens, as bos,eos,pad; by default those usual for the kind.")
    ] = None,
    sentinels: Annotated[
        int, typer.Option(min=0, help="Number of T5's sentinels <extra_id_0> …, for span corruption.")
    ] = 0,
    lower: Annotated[bool, typer.Option("--lower", help="Lowercase the text.")] = False,
    encoding: Annotated[str, typer.Option(help="Encoding of the files.")] = "utf-8",
    json: Json = False,
) -> None:
    """Train a tokenizer. The last line printed is its folder, for `heed train --set tokenizer.kind=FOLDER`.

    Examples:

      heed tokenizer train corpus.txt --vocab 8000 -o my-tokenizer

      heed tokenizer train corpus/ --kind unigram --sentinels 100
    """
    from heedful.text import save_tokenizer
    from heedful.text.tokenizer_training import train_tokenizer

    if (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} holds a tokenizer already", hint="name another --folder")
    roles = None if special is None else [role.strip() for role in special.split(",") if role.strip()]
    with show_progress("training the tokenizer"):
        trained = train_tokenizer(
            kind, files, vocab, special=roles, sentinels=sentinels, lower=lower, encoding=encoding
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(trained, folder)
    if json:
        return as_json(
            {"kind": kind, "tokens": len(trained), "special": trained.roles, "folder": str(folder)}
        )
    roles_shown = "  ".join(f"{role} {token}" for role, token in trained.roles.items())
    print_pairs("tokenizer", kind, {"tokens": f"{len(trained):,}", "special": roles_shown})
    print(folder)
