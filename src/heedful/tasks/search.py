"""Sentences found by meaning: every one as a vector, and the nearest to a question by cosine.

    found = Search(["A hotel in Seattle", "A recipe for bread"]).find("Seattle motel", top_k=1)
    found[0]["text"], found[0]["score"], found[0]["index"]

A sentence may have an id, by which it is replaced or deleted, and other columns, by which `find` filters.
`save` keeps everything in a folder, and `Search.load` brings it back without reading the texts again.

The question is compared with every vector, which is exact. The time grows with their number, so a large
collection is searched by a graph if `usearch` is installed (HNSW, Malkov and Yashunin 2018). Each vector is
linked to some near ones and a few far ones. A search walks from vector to vector, always to those nearer to
the question, and sees only a few hundred of them. It may miss some of the nearest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import CorruptFile, InputError, NotFound, nearest
from heedful.core.files import make_folder_atomically, open_atomically, read_json, read_lines
from heedful.core.lazy import missing_package
from heedful.core.progress import report_progress
from heedful.models.base import Model
from heedful.tasks.model_inputs import tokenize, warn_truncated
from heedful.tasks.registry import pipeline
from heedful.tasks.task import Task, open_model
from heedful.text import Tokenizer
from heedful.weights.pooling import embed

DEFAULT_MODEL = "all-minilm-l6-v2"
MANIFEST, ROWS_FILE, VECTORS_FILE, GRAPH_FILE = (
    "search.json", "rows.jsonl", "vectors.safetensors", "graph.usearch",
)  # fmt: skip
MIN_APPROXIMATE = 50_000  # vectors; fewer are compared one by one within some milliseconds
CHUNK_TEXTS = 1024  # embedded between two reports of progress


def read_sentences(source: str | Path | Iterable[str]) -> list[str]:
    """Return the sentences themselves, or the lines of a file that are not empty."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise NotFound(
                f"{str(source)[:80]!r} is not a file", hint="give a file of one sentence a line, or a list"
            )
        sentences = [line.strip() for line in read_lines(path) if line.strip()]
    elif isinstance(source, Iterable):
        sentences = list(source)
    else:
        raise InputError(f"sentences are a list of texts or a file of them; got {source!r:.60}")
    for i, text in enumerate(sentences):
        if not isinstance(text, str):
            raise InputError(f"sentence {i} is a {type(text).__name__}", hint="a sentence is a text")
    if not sentences:
        raise InputError("no sentences to search in", hint="give at least one")
    return sentences


@dataclass
class SearchRow:
    """A sentence with its id, its other columns, and the number under which the graph has it."""

    key: int
    id: str
    text: str
    columns: dict[str, Any]


class Search:
    """Sentences, and their vectors (N, D) of length 1; the row of `vectors` is the index of the sentence.

    `ids` and `columns` (a dict for each sentence) are optional. `approximate` searches by a graph. None does
    so from MIN_APPROXIMATE sentences on if `usearch` is installed.
    """

    def __init__(
        self,
        sentences: str | Path | Iterable[str],
        model: str | Path | Model = DEFAULT_MODEL,
        *,
        ids: Iterable[Any] | None = None,
        columns: Iterable[Mapping[str, Any]] | None = None,
        batch_size: int = 32,
        vectors: Tensor | None = None,
        approximate: bool | None = None,
    ) -> None:
        self._start(model, batch_size, approximate)
        self.add(sentences, ids, columns, vectors=vectors)

    def _start(self, model: str | Path | Model, batch_size: int, approximate: bool | None) -> None:
        """Begin with no sentences."""
        self.model_source, self.approximate = model, approximate
        self.batch_size = check_integer("batch_size", batch_size)
        self.rows: list[SearchRow] = []
        self.vectors = torch.zeros(0, 0)
        self.next_key = 0
        self._graph: Any = None
        self._keys: NDArray[Any] | None = None  # of all rows, found when the graph is first searched
        if approximate and find_spec("usearch") is None:
            raise missing_package("usearch", "approximate search", "leave `approximate=True` out")

    @cached_property
    def model(self) -> Model:
        """The model that turns a sentence into a vector; loaded when first needed."""
        return open_model(self.model_source)

    @property
    def texts(self) -> list[str]:
        """The sentences in the order of their vectors."""
        return [row.text for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return vectors of length 1, for cosines; warn of what the encoder does not read."""
        length = None if self.model.pooling is None else self.model.pooling.length
        if length is not None and isinstance(self.model.tokenizer, Tokenizer):
            # A character is at most four bytes, and so many tokens.
            long = {i: text for i, text in enumerate(texts) if len(text) > length // 4}
            warn_truncated(
                {i: tokenize(self.model.tokenizer, text).truncate(length) for i, text in long.items()}
            )
        parts = []
        for start in range(0, len(texts), CHUNK_TEXTS):
            parts.append(embed(self.model, texts[start : start + CHUNK_TEXTS], batch=self.batch_size))
            report_progress("texts", min(start + CHUNK_TEXTS, len(texts)), len(texts))
        return F.normalize(torch.cat(parts), dim=-1)

    def add(
        self,
        sentences: str | Path | Iterable[str],
        ids: Iterable[Any] | None = None,
        columns: Iterable[Mapping[str, Any]] | None = None,
        *,
        vectors: Tensor | None = None,
    ) -> None:
        """Append sentences; one whose id is there already takes the place of the older one."""
        texts, first = read_sentences(sentences), self.next_key
        names = [str(first + i) for i in range(len(texts))] if ids is None else [str(one) for one in ids]
        fields = [{} for _ in texts] if columns is None else [dict(one) for one in columns]
        if not len(names) == len(fields) == len(texts):
            lengths = f"{len(names)} ids and {len(fields)} rows of columns"
            raise InputError(f"{lengths} do not belong to {len(texts)} sentences")
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise InputError(f"the id {twice!r} stands for two sentences", hint="ids must be different")
        vectors = self.embed_texts(texts) if vectors is None else vectors
        if len(vectors) != len(texts):
            raise InputError(f"{len(vectors)} vectors do not belong to {len(texts)} sentences")
        new = set(names)
        self._remove([i for i, row in enumerate(self.rows) if row.id in new])
        keys = range(first, first + len(texts))
        self.rows += [SearchRow(*row) for row in zip(keys, names, texts, fields, strict=True)]
        self.vectors = torch.cat((self.vectors, vectors)) if len(self.vectors) else vectors
        self.next_key, self._keys = self.next_key + len(texts), None
        if self._graph is not None:
            self._graph.add(list(keys), vectors.numpy())

    def delete(self, ids: Iterable[Any]) -> None:
        """Delete sentences by their ids; an id that is not there is an error, and nothing is deleted."""
        wanted = dict.fromkeys(str(one) for one in ids)
        index_of = {row.id: i for i, row in enumerate(self.rows)}
        if missing := next((id for id in wanted if id not in index_of), None):
            raise NotFound(f"no sentence has the id {missing!r}", hint=nearest(missing, index_of) or None)
        self._remove([index_of[id] for id in wanted])

    def _remove(self, indices: Sequence[int]) -> None:
        if not indices:
            return
        if self._graph is not None:
            self._graph.remove([self.rows[i].key for i in indices])
        stay = torch.ones(len(self), dtype=torch.bool)
        stay[list(indices)] = False
        self.vectors, self._keys = self.vectors[stay], None
        self.rows = [row for row, stays in zip(self.rows, stay.tolist(), strict=True) if stays]

    def find(self, query: str | Sequence[str], top_k: int = 5, where: Mapping[str, Any] | None = None) -> Any:
        """Return the nearest sentences, the best first: {"text", "score", "index", "id"}; lists for a list.

        `where={"language": "en", "year": [2020, 2021]}` looks only at sentences whose columns have these
        values, or one of several; they are compared as text. Other columns follow the four fields.
        """
        check_integer("top_k", top_k)
        queries = [query] if isinstance(query, str) else list(query) if isinstance(query, Iterable) else []
        if not queries or not all(isinstance(q, str) and q.strip() for q in queries):
            raise InputError(f"the query must be a text that is not empty; got {query!r:.60}")
        indices = None if not where else self.matching(where)
        vectors = self.embed_texts(queries)
        if indices is None and self.uses_graph:
            nearest_rows = self._find_by_graph(vectors, top_k)
        else:
            candidates = self.vectors if indices is None else self.vectors[indices]
            best = (vectors @ candidates.T).topk(min(top_k, len(candidates)), dim=1)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            place = lambda i: i if indices is None else indices[i]
            nearest_rows = [[(place(i), s) for i, s in zip(*pair, strict=True)] for pair in pairs]
        row = lambda i, score: {"text": self.rows[i].text, "score": score, "index": i, "id": self.rows[i].id}
        results = [[row(i, s) | self.rows[i].columns for i, s in pairs] for pairs in nearest_rows]
        return results[0] if isinstance(query, str) else results

    def matching(self, where: Mapping[str, Any]) -> list[int]:
        """Return the indices of the sentences whose columns have these values."""
        columns = dict.fromkeys(name for row in self.rows for name in row.columns)
        wanted = {}
        for name, value in where.items():
            if name != "id" and name not in columns:
                hint = nearest(name, columns) or f"it has {', '.join(map(repr, ['id', *columns]))}"
                raise InputError(f"no sentence has a column {name!r}", hint=hint)
            several = isinstance(value, Iterable) and not isinstance(value, str)
            wanted[name] = {str(one) for one in value} if several else {str(value)}
        values = lambda row: {"id": row.id} | row.columns
        return [
            i
            for i, row in enumerate(self.rows)
            if all(str(values(row).get(name)) in allowed for name, allowed in wanted.items())
        ]

    @property
    def uses_graph(self) -> bool:
        """Whether a search without a filter goes by the graph."""
        if self.approximate is not None:
            return self.approximate and len(self) > 0
        return len(self) >= MIN_APPROXIMATE and find_spec("usearch") is not None

    def build_graph(self) -> None:
        """Link all vectors, unless that was done; `find` and `save` then use the graph."""
        if self._graph is None:
            self._graph = new_graph(self.vectors.shape[1])
            self._graph.add([row.key for row in self.rows], self.vectors.numpy())

    def _find_by_graph(self, vectors: Tensor, top_k: int) -> list[list[tuple[int, float]]]:
        self.build_graph()
        if self._keys is None:  # rows stand in the order of their keys
            # In the type of usearch's keys; NumPy would turn all of them into floats for each query.
            self._keys = np.array([row.key for row in self.rows], np.uint64)
        compared = self.vectors.numpy()  # torch starts its threads for these few rows, which takes far longer
        results = []
        for vector in vectors.numpy():
            near = self._graph.search(vector, min(2 * top_k, len(self)), threads=1).keys
            indices = np.searchsorted(self._keys, near)
            scores = compared[indices] @ vector
            results.append([(int(indices[i]), float(scores[i])) for i in (-scores).argsort()[:top_k]])
        return results

    def save(self, folder: str | Path) -> Path:
        """Write everything, whole or not at all; a model that is an object must be given again to `load`."""
        from heedful.weights.formats.tensor_files import save_tensors

        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file", hint="name a folder to save in")
        if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
            raise InputError(f"{folder} has other files in it", hint="name a new folder, or an index")
        name = None if isinstance(self.model_source, Model) else str(self.model_source)
        manifest = {"model": name, "next_key": self.next_key, "approximate": self.approximate}
        with make_folder_atomically(folder) as partial:
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            with open_atomically(partial / ROWS_FILE, "w", encoding="utf-8", newline="\n") as file:
                for row in self.rows:
                    file.write(json.dumps(vars(row), ensure_ascii=False, default=str) + "\n")
            save_tensors({"vectors": self.vectors.contiguous()}, partial / VECTORS_FILE)
            if self._graph is not None:
                self._graph.save(str(partial / GRAPH_FILE))
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: str | Path | Model | None = None) -> Search:
        """Read what `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        for name in (MANIFEST, ROWS_FILE, VECTORS_FILE):
            if not (folder / name).is_file():
                raise NotFound(f"{folder} has no {name}", hint="was it written by Search.save or heed index?")
        search = cls.__new__(cls)
        try:
            manifest = read_json(folder / MANIFEST)
            source = manifest["model"] if model is None else model
            if source is None:
                raise InputError(f"{folder} was made by a model without a name", hint="pass `model=`")
            search._start(source, 32, manifest["approximate"])
            search.next_key = int(manifest["next_key"])
            search.rows = [SearchRow(**json.loads(line)) for line in read_lines(folder / ROWS_FILE)]
            search.vectors = load_file(folder / VECTORS_FILE)["vectors"]
            if len(search.vectors) != len(search.rows):
                raise ValueError(f"{len(search.rows)} rows and {len(search.vectors)} vectors")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            if isinstance(error, InputError):
                raise
            what = f"{folder} does not hold what Search.save wrote ({error})"
            raise CorruptFile(what, hint="save again") from None
        if (folder / GRAPH_FILE).is_file() and search.uses_graph:
            graph = new_graph(search.vectors.shape[1])
            graph.load(str(folder / GRAPH_FILE))
            search._graph = graph if len(graph) == len(search) else None  # else it is built again
        return search


def new_graph(size: int) -> Any:
    """Return an empty graph of usearch for vectors of this size."""
    from usearch.index import Index

    # Half the memory and twice the speed of float32; `find` compares what it finds in float32 again.
    return Index(
        ndim=size, metric="ip", dtype="bf16", connectivity=16, expansion_add=128, expansion_search=64
    )


# Answers from a folder of texts: find the passages that may hold one, then read them   (Chen et al. 2017)
#
#     found = OpenDomain("notes/").answer("Who invented the telephone?")
#     found["answer"], found["file"], found["start"], found["known"]
#
# A passage is a few paragraphs or a part of a long one. A score is p(span | passage) × cos(question,
# passage).


TEXT_SUFFIXES = (".txt", ".md", ".rst")


@dataclass(frozen=True)
class Passage:
    """A part of a file: characters start … end of its text."""

    file: str
    start: int
    end: int
    text: str


def split_passages(text: str, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield where passages begin and end: paragraphs joined up to `size` characters, long ones split."""
    begin: int | None = None
    last = 0
    for start, end in paragraphs(text):
        if begin is not None and end - begin > size:
            yield begin, last
            begin = None
        if end - start > size:
            yield from split_paragraph(text, start, end, size, overlap)
            continue
        begin, last = start if begin is None else begin, end
    if begin is not None:
        yield begin, last


def paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Yield where paragraphs begin and end; empty lines stand between them."""
    at = 0
    for gap in [*re.finditer(r"\n\s*\n", text), None]:
        end = len(text) if gap is None else gap.start()
        inner = text[at:end]
        if inner.strip():
            yield at + len(inner) - len(inner.lstrip()), at + len(inner.rstrip())
        at = len(text) if gap is None else gap.end()


def split_paragraph(text: str, start: int, end: int, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield parts of a long paragraph that share about `overlap` characters, cut between words."""
    while end - start > size:
        stop = start + size
        early = start + max(size // 2, overlap) + 1  # a part must be longer than what the next one repeats
        space = max(text.rfind(" ", early, stop), text.rfind("\n", early, stop))
        stop = space if space > 0 else stop
        yield start, stop
        back = text.find(" ", stop - overlap, stop)
        start = back + 1 if back >= 0 else stop - overlap
    yield start, end


def read_passages(folder: str | Path, size: int, overlap: int) -> list[Passage]:
    """Return the passages of all texts in a folder and below, or of one file."""
    root = Path(folder)
    if not root.exists():
        raise NotFound(f"{folder} is not a folder of texts", hint="check the path")
    check_integer("size", size)
    if not 0 <= overlap <= size // 2:
        raise InputError(f"`overlap={overlap}` must be from 0 to half of `size={size}`")
    below = sorted(p for p in root.rglob("*") if p.suffix.lower() in TEXT_SUFFIXES and p.is_file())
    files = [root] if root.is_file() else below
    passages = []
    for path in files:
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        # Some files of a folder are not what they say: a stray byte must not hide all others.
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
        passages += [Passage(name, a, b, text[a:b]) for a, b in split_passages(text, size, overlap)]
    if not passages:
        raise InputError(
            f"{folder} holds no text ({', '.join(TEXT_SUFFIXES)})", hint="put some in, or name another folder"
        )
    return passages


class OpenDomain:
    """A folder of texts that answers questions. `reader` is a question-answering pipeline or its model.

    An answer whose score is below `min_score` is not an answer: "known" is False, and "answer" is empty.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        reader: Task | Model | str | Path | None = None,
        model: str | Path | Model = DEFAULT_MODEL,
        size: int = 800,
        overlap: int = 150,
        min_score: float = 0.05,
    ) -> None:
        self.passages = read_passages(folder, size, overlap)
        self.search = Search([p.text for p in self.passages], model)
        self.reader = reader if isinstance(reader, Task) else pipeline("question-answering", reader)
        self.min_score = min_score

    def answer(self, question: str, *, passages: int = 5, top_k: int = 1, **options: Any) -> Any:
        """Return the best answer with its file, place and passage; with top_k above 1 a list, the best first.

        The model reads `passages` passages; the options are those of question-answering. Where no passage
        answers, one row reports this: its score is how sure that is, its passage the nearest one.
        """
        check_integer("top_k", top_k)
        if not isinstance(question, str):
            raise InputError(f"the question must be a text; got {question!r:.60}")
        near = self.search.find(question, check_integer("passages", passages))
        questions = [{"question": question, "context": row["text"]} for row in near]
        options = {"handle_impossible_answer": True} | options
        read = self.reader(iter(questions), **options, top_k=max(top_k, 2))
        rows = [
            self._row(self.passages[row["index"]], row["score"], answered)
            for row, answers in zip(near, read, strict=True)
            for answered in takewhile(lambda row: row["answer"], answers)  # likelier than that there is none
        ]
        confident = sorted((r for r in rows if r["score"] >= self.min_score), key=lambda r: -r["score"])
        best = confident[:top_k]
        if not best:
            sure = 1.0 - max((row["score"] for row in rows), default=0.0)
            passage = self.passages[near[0]["index"]]
            best = [
                {"answer": "", "score": sure, "known": False, "file": passage.file, "start": passage.start,
                 "end": passage.end, "passage": passage.text, "similarity": near[0]["score"]}
            ]  # fmt: skip
        return best[0] if top_k == 1 else best

    def _row(self, passage: Passage, similarity: float, answer: dict[str, Any]) -> dict[str, Any]:
        place = {"start": passage.start + answer["start"], "end": passage.start + answer["end"]}
        row = {"answer": answer["answer"], "score": answer["score"] * max(similarity, 0.0), "known": True}
        return row | {"file": passage.file, **place, "passage": passage.text, "similarity": similarity}
