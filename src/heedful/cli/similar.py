"""`heed embed`, `similar` and `rerank`: sentences as vectors, those nearest to one, those that answer it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from heedful.cli.arguments import (
    TableColumns,
    Texts,
    few_threads,
    find_file,
    looks_like_path,
    looks_like_table,
    read_numbered,
    read_stdin,
    read_texts,
    text_or_file,
)
from heedful.cli.output import Row, align_columns, as_json, print_warnings
from heedful.cli.tasks import TextOptions, TopK
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError
from heedful.core.files import open_atomically
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = (".safetensors", ".csv")


def embed_command(
    common: TextOptions,
    text: Texts = None,
    out: Annotated[Path | None, Option("Write all vectors to this .safetensors or .csv file.")] = None,
) -> None:
    """Turn sentences into vectors that lie close together if the sentences mean the same.

    Examples:
      heed embed "A hotel in Seattle" --json
      heed embed --out vectors.safetensors < sentences.txt
    """
    texts = read_texts(text, common.columns("embed"))
    if out is not None and out.suffix not in FORMATS:
        raise InputError(f"{out} has no suffix of {' or '.join(FORMATS)}", hint="name a file that has")
    from heedful.tasks.pipelines.feature_extraction import sentence_vectors

    with print_warnings(), show_progress("embedding"), few_threads(texts):
        name, pipe = common.open("sentence-similarity")
        vectors = sentence_vectors(pipe, texts)
    if out is not None:
        save_vectors(out, texts, vectors)
        written = {"task": "sentence-embedding", "model": name} | {
            "path": str(out),
            "texts": len(texts),
            "size": vectors.shape[1],
        }
        return as_json(written) if common.json else print(out)
    rows = [[{"vector": vector.tolist()}] for vector in vectors]
    return common.write("sentence-embedding", name, texts, rows, _format_vector)


def _format_vector(text: str, results: list[Row]) -> str:
    vector = results[0]["vector"]
    return f"{len(vector)} numbers: " + " ".join(f"{x:.4f}" for x in vector[:6]) + " …"


Candidates = Annotated[
    list[str] | None, Argument("Texts to compare, a file with one per line, or a table.", metavar="TEXT")
]
CandidateFile = Annotated[
    Path | None, Option("Read the texts from this file, one per line, or a table; - is stdin.", ("--in",))
]


def similar_command(
    query: Annotated[str, Argument("The sentence that others are compared with.")],
    common: TextOptions,
    text: Candidates = None,
    path: CandidateFile = None,
    top_k: TopK = 5,
) -> None:
    """List the sentences nearest in meaning, by the cosine of their vectors.

    Examples:
      heed similar "Seattle motel" "A hotel in Seattle" "A recipe for bread"
      heed similar "Seattle motel" --in listings.txt --top-k 3
      cat listings.txt | heed similar "Seattle motel" --in - --json
    """
    sentences = numbered_sentences(path, text, common.columns("similar"))
    list_best(common, "sentence-similarity", query, sentences, top_k)


def rerank_command(
    query: Annotated[str, Argument("The question, or what is looked for.")],
    common: TextOptions,
    text: Candidates = None,
    path: CandidateFile = None,
    top_k: TopK = 5,
) -> None:
    """List the texts that answer a query, the best first, by a cross-encoder that reads both together.

    No cross-encoder comes along: `heed finetune` makes one of a table of queries, texts and relevances.

    Examples:
      heed rerank "how tall is Everest" passages.txt --model ./my-cross-encoder
      heed rerank "how tall is Everest" "It is 8,849 m high." "It lies in Asia." -m ./my-cross-encoder --json
    """
    sentences = numbered_sentences(path, text, common.columns("rerank"))
    list_best(common, "rerank", query, sentences, top_k)


def list_best(common: TextOptions, task: str, query: str, lines: list[tuple[int, str]], top_k: int) -> None:
    """Score texts, given with their lines, beside a query by a pipeline, and list the best."""
    query, texts = text_or_file(query), [text for _, text in lines]
    with print_warnings(), show_progress("comparing"), few_threads(texts):
        name, pipe = common.open(task)
        # One vector of the query serves all texts; a cross-encoder reads it anew beside each.
        scores = pipe(query if task == "sentence-similarity" else [query] * len(texts), texts)
    rows = [{"text": t, "score": s, "line": line} for (line, t), s in zip(lines, scores, strict=True)]
    best = sorted(rows, key=lambda row: -row["score"])[:top_k]
    draw = lambda _, rows: align_columns([(f"{r['score']:.4f}", f"{r['line']}", r["text"]) for r in rows])
    common.write(task, name, [query], [best], draw)


def numbered_sentences(
    path: Path | None, arguments: Sequence[str] | None, columns: TableColumns
) -> list[tuple[int, str]]:
    """Return the sentences to compare with, each with its line, or its place among the arguments."""
    if path is not None and arguments:
        raise InputError("texts and --in were given", hint="give one of them")
    if path is None:
        if not arguments:
            raise InputError("there is nothing to compare with", hint="give sentences, or a file with --in")
        if len(arguments) > 1 or not looks_like_path(arguments[0]):
            return list(enumerate(read_texts(arguments, columns), 1))
        path = find_file(arguments[0])
    if not looks_like_table(str(path), columns):
        columns.check_unused()
    if str(path) == "-":
        lines = enumerate(read_stdin(wait=True).split("\n"), 1)
        sentences = [(number, line.strip()) for number, line in lines if line.strip()]
    else:
        numbered = read_numbered(str(path.absolute()), columns) or []
        sentences = [(number, text) for number, text in numbered if isinstance(text, str)]
    if not sentences:
        raise InputError(f"{path} has no sentences", hint="put one on each line")
    return sentences


def save_vectors(path: Path, texts: Sequence[str], vectors: Tensor) -> None:
    """Write vectors (N, D) with their texts: a tensor "vectors" with the texts as metadata, or a table."""
    if path.suffix == ".csv":
        with open_atomically(path, "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", *range(vectors.shape[1])])
            # nine digits give a float32 back to the bit
            table.writerows(
                [text, *(f"{x:.9g}" for x in row)] for text, row in zip(texts, vectors.tolist(), strict=True)
            )
        return
    import json

    from safetensors.torch import save

    metadata = {"texts": json.dumps(list(texts), ensure_ascii=False)}
    with open_atomically(path) as file:
        file.write(save({"vectors": vectors.contiguous()}, metadata=metadata))
