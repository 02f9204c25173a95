"""`heed embed`, `similar`, `index`, `search` and `rerank`: sentences as vectors, and those nearest to one."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from heedful.cli.models import few_threads
from heedful.cli.tasks import TextOptions, TopK
from heedful.cli.terminal import (
    Json,
    TableColumns,
    TextColumn,
    Texts,
    align_columns,
    as_json,
    print_warnings,
    read_numbered,
    read_texts,
    text_or_file,
)
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError
from heedful.core.files import open_atomically
from heedful.core.progress import print_above, show_progress

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
        raise InputError(f"{out} does not end in {' or '.join(FORMATS)}", hint="use one of these endings")
    from heedful.tasks.pipelines.encoders import sentence_vectors

    with print_warnings(), show_progress("embedding"), few_threads(texts):
        name, pipe = common.open("sentence-similarity")
        vectors = sentence_vectors(pipe, texts)
    if out is not None:
        save_vectors(out, texts, vectors)
        written = {"path": str(out), "texts": len(texts), "size": vectors.shape[1]}
        about = {"task": "sentence-embedding", "model": name}
        return as_json(about | written) if common.json else print(out)
    rows = [[{"vector": vector.tolist()}] for vector in vectors]
    first_six = lambda _, row: " ".join(f"{x:.4f}" for x in row[0]["vector"][:6])
    draw = lambda _, row: f"{vectors.shape[1]} numbers: {first_six(_, row)} …"
    return common.write("sentence-embedding", name, texts, rows, draw)


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


def index_command(
    files: Annotated[
        list[Path] | None, Argument("Tables, or text files with one text per line.", metavar="FILE")
    ] = None,
    out: Annotated[Path, Option("Write the index to this folder.")] = Path("index"),
    column: TextColumn = None,
    encoding: Annotated[str, Option("Read the files in this encoding: utf-8, cp1252, utf-16 …")] = "utf-8",
    id_column: Annotated[
        str | None,
        Option("Take ids from this column; by default texts are numbered.", ("--id",), metavar="COLUMN"),
    ] = None,
    model: Annotated[str | None, Option("Embed with this model.", ("--model", "-m"))] = None,
    update: Annotated[bool, Option("Add to the index, and replace texts that have the same id.")] = False,
    delete: Annotated[
        list[str] | None, Option("Delete the text with this id; repeat it for several.", metavar="ID")
    ] = None,
    exact: Annotated[
        bool, Option("Compare the query with every text, and build no graph for large indexes.")
    ] = False,
    json: Json = False,
) -> None:
    """Index files to search them by meaning. `heed search` can filter by the other columns of a table.

    Examples:
      heed index listings.csv --text description --id number --out listings
      heed search listings "a quiet room near the station" --where city=Seattle
      heed index new.csv --text description --id number --out listings --update
      heed index --out listings --delete 17
    """
    from heedful.tasks.search import DEFAULT_MODEL, MANIFEST, Search

    exists = (out / MANIFEST).is_file()
    if exists and not update and not delete:
        raise InputError(
            f"{out} is an index already", hint="add to it with --update, or choose another --out"
        )
    if not exists and (update or delete):
        raise InputError(f"{out} is not an index", hint="leave out --update and --delete to make one")
    if not files and not delete:
        raise InputError("no files to index", hint="name at least one")
    rows = [row for path in files or () for row in read_search_rows(path, column, id_column, encoding)]
    texts, columns = [text for text, _, _ in rows], [others for _, _, others in rows]
    ids = None if id_column is None else [id for _, id, _ in rows]
    with print_warnings(), show_progress("embedding"):
        if exists:
            search = Search.load(out, model)
            search.delete(delete or ())
            if rows:
                search.add(texts, ids, columns)
        else:
            approximate = False if exact else None
            search = Search(texts, model or DEFAULT_MODEL, ids=ids, columns=columns, approximate=approximate)
        if search.uses_graph:
            search.build_graph()
    search.save(out)
    facts = {"path": str(out), "texts": len(search), "model": str(search.model_source)}
    as_json({"task": "index", **facts}) if json else print(out)


def read_search_rows(
    path: Path, column: str | None, id_column: str | None, encoding: str
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the text, the id and the other columns of every row of a table, or of every line of a text."""
    from heedful.core.files import read_lines
    from heedful.data.examples.tagging import conll
    from heedful.data.input_files import cell_text, read_input_file
    from heedful.data.readers import column_hint
    from heedful.tasks.examples import infer_columns, input_roles

    numbered = column is not None and column.isdigit()
    source = read_input_file(str(path), encoding=encoding, header=not numbered, kinds=("table", "text"))
    for note in source.notes:
        print_above(f"note: {note}")
    if source.kind != "table":
        if column is not None or id_column is not None:
            raise InputError(f"{path} has no columns", hint="--text and --id name columns of a table")
        lines = read_lines(source.path, source.encoding)
        if source.kind == "conll":
            lines = (" ".join(one.words) for one in conll(source.path, encoding=source.encoding))
        filled = ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())
        return [(text, "", {"file": path.name, "line": number}) for number, text in filled]
    if id_column is not None and id_column not in source.all_columns:
        hint = column_hint(id_column, source.all_columns)
        raise InputError(f"{path} has no column {id_column!r} for --id", hint=hint)
    text = infer_columns(source, "similar", input_roles("similar"), {"--text": column})["text"]
    rows = []
    for row in source.rows:
        others = {name: value for name, value in row.values.items() if name not in (text, id_column)}
        cell, id = cell_text(row.get(text)), cell_text(row.get(id_column)) if id_column else ""
        if id_column and not id.strip():
            raise InputError(f"{path}, {row.where}: the id is empty", hint="every text needs its own")
        if cell.strip():
            rows.append((cell, id, others))
    if skipped := len(source.rows) - len(rows):
        print_above(f"note: {skipped:,} row{'s' * (skipped != 1)} of {path} without a text: left out")
    return rows


def search_command(
    index: Annotated[Path, Argument("A folder that `heed index` wrote.")],
    query: Annotated[str, Argument("What is looked for, in words.")],
    top_k: TopK = 5,
    where: Annotated[
        list[str] | None,
        Option(
            "Look only at texts whose COLUMN has this value; repeat it for several.", metavar="COLUMN=VALUE"
        ),
    ] = None,
    model: Annotated[str | None, Option("Embed the query with this model.", ("--model", "-m"))] = None,
    json: Json = False,
) -> None:
    """List the texts of an index that are nearest in meaning.

    Several --where for one column find texts with any of the values; for several columns all must hold.

    Examples:
      heed search listings "a quiet room near the station"
      heed search listings "a quiet room" --where city=Seattle --where city=Tacoma --top-k 3 --json
    """
    from heedful.tasks.search import Search

    filters: dict[str, list[str]] = {}
    for condition in where or ():
        name, equals, value = condition.partition("=")
        if not name or not equals:
            raise InputError(f"--where {condition} has no column", hint="write it as COLUMN=VALUE")
        filters.setdefault(name, []).append(value)
    with print_warnings():
        search = Search.load(index, model)
        results = search.find(query, top_k, filters)
    if json:
        as_json({"task": "search", "model": str(search.model_source), "query": query, "results": results})
    elif results:
        print(align_columns([(f"{row['score']:.4f}", row["id"], row["text"]) for row in results]))


def rerank_command(
    query: Annotated[str, Argument("The question, or what is looked for.")],
    common: TextOptions,
    text: Candidates = None,
    path: CandidateFile = None,
    top_k: TopK = 5,
) -> None:
    """List the texts that answer a query, the best first, by a cross-encoder that reads both together.

    No cross-encoder is bundled. `heed finetune` makes one from a table of queries, texts and relevances.

    Examples:
      heed rerank "how tall is Everest" passages.txt --model ./my-cross-encoder
      heed rerank "how tall is Everest" "It is 8,849 m high." "It lies in Asia." -m ./my-cross-encoder --json
    """
    sentences = numbered_sentences(path, text, common.columns("rerank"))
    list_best(common, "rerank", query, sentences, top_k)


def list_best(common: TextOptions, task: str, query: str, lines: list[tuple[int, str]], top_k: int) -> None:
    """Score texts, given with their lines, for a query with a pipeline, and list the best."""
    query, texts = text_or_file(query), [text for _, text in lines]
    with print_warnings(), show_progress("comparing"), few_threads(texts):
        name, pipe = common.open(task)
        # One vector of the query serves all texts; a cross-encoder reads it again next to each.
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
    if path is None and not arguments:
        raise InputError("there is nothing to compare with", hint="give sentences, or a file with --in")
    numbered = read_numbered(arguments if path is None else [path], columns)
    return [(number, text) for number, text in numbered if isinstance(text, str)]


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
