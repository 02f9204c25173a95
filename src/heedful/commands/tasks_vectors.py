"""Sentences and their vectors as files: what `heed embed` writes and `heed similar` reads."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.commands.arguments import file_text, looks_like_path, read_file
from heedful.commands.tasks_text import stdin, texts
from heedful.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = (".safetensors", ".csv")


def save(path: Path, texts: Sequence[str], vectors: Tensor) -> None:
    """Vectors (N, D) with their texts: a tensor "vectors" and the texts in its metadata, or a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", *range(vectors.shape[1])])
            # nine digits give a float32 back to the bit
            rows = (
                [text, *(f"{x:.9g}" for x in row)] for text, row in zip(texts, vectors.tolist(), strict=True)
            )
            table.writerows(rows)
        return
    import json

    from safetensors.torch import save_file

    said = {"texts": json.dumps(list(texts), ensure_ascii=False)}
    save_file({"vectors": vectors.contiguous()}, path, metadata=said)


def numbered(where: Path | None, given: Sequence[str] | None) -> list[tuple[int, str]]:
    """Sentences to compare with, each with the line it stands in, or its place among those given."""
    if where is None:
        if not given:
            raise InputError("there is nothing to compare with", hint="give sentences, or a file with --in")
        if len(given) > 1 or not looks_like_path(given[0]):
            return list(enumerate(texts(given), 1))
        file_text(given[0])  # says so if it is not there
        where = Path(given[0])
    text = stdin(asked=True) if str(where) == "-" else read_file(where)
    found = [(i, line.strip()) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not found:
        raise InputError(f"{where} has no sentences", hint="put one on each line")
    return found
