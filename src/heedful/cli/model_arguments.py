"""Models that a command names, and the one it takes if none is named.

`heed generate` takes a model, a text, or both. Of two arguments the first is the model. A single one is a
model if it is written like one, else it is the text:

    a name of `heed ls`       smollm2-135m-instruct, gpt2
    a folder, or a .gguf      ./my-model, runs/gpt, tiny.gguf
    a hub id                  owner/name: a slash, no spaces, and neither the suffix nor the place of a file

A text that is written like a model goes in by a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.known_models import read_known
from heedful.cli.text_arguments import SUFFIXES
from heedful.core.errors import InputError
from heedful.core.progress import print_above, show_progress

Model = Annotated[str, typer.Argument(help="A folder, a run, a .gguf file, an installed model or a hub id.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the file's own by default.")]

MAX_CHARACTERS_OF_ONE_THREAD = 2000


def names_model(word: str) -> bool:
    """Return whether an argument is written like a model, by the rule above."""
    from heedful.weights.hub import BASES, bundled_models

    if not word or any(c.isspace() for c in word) or "://" in word:
        return False
    known = read_known()
    presets = {row[key] for row in known["presets"] for key in ("name", "family")}
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


def load_model(name: str, device: str, dtype: str | None) -> Any:
    """Load a model by any of its names, onto a device and in a precision."""
    with show_progress(f"loading {name}"):
        import torch

        from heedful.core.devices import resolve_device
        from heedful.train.checkpoint import of_run
        from heedful.weights.loading import load

        known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if dtype is not None and dtype not in known:
            raise InputError(f"dtype={dtype!r} is unknown", hint=f"choose {', '.join(known)}")
        wanted = None if dtype is None else known[dtype]
        return load(of_run(name), device=resolve_device(device), dtype=wanted)


def load_stepper(name: str, device: str, dtype: str | None, rows: int = 1, tokens: int | None = None) -> Any:
    """Load a model and return the stepper that pays for this many rows and tokens, or its fastest."""
    model = load_model(name, device, dtype)
    with show_progress(f"preparing {name}"):
        from heedful.decode.fast import choose_stepper, fast

        return fast(model) if tokens is None else choose_stepper(model, rows, tokens, exact=False)
