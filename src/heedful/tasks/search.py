"""Sentences found by meaning: every one as a vector, and the nearest to a question by cosine.

    found = Search(["A hotel in Seattle", "A recipe for bread"]).find("Seattle motel", top_k=1)
    found[0]["text"], found[0]["score"], found[0]["index"]

`save` keeps texts and vectors in a folder, `Search.load` brings them back without reading the texts again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.models.base import Model
from heedful.tasks.model_inputs import tokenize, warn_truncated
from heedful.tasks.registry import pipeline
from heedful.tasks.task import Task, open_model
from heedful.text import Tokenizer
from heedful.weights.pooling import embed

DEFAULT_MODEL = "all-minilm-l6-v2"
VECTORS_FILE, TEXTS_FILE = "vectors.safetensors", "search.json"


def read_sentences(source: str | Path | Iterable[str]) -> list[str]:
    """Return the sentences themselves, or the lines of a file that are not empty."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise NotFound(
                f"{str(source)[:80]!r} is no file", hint="give a file of one sentence a line, or a list"
            )
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from None
        found = [line.strip() for line in lines if line.strip()]
    elif isinstance(source, Iterable):
        found = list(source)
    else:
        raise InputError(f"sentences are a list of texts or a file of them; got {source!r:.60}")
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"sentence {i} is a {type(text).__name__}", hint="a sentence is a text")
    if not found:
        raise InputError("there are no sentences to search in", hint="give at least one")
    return found


class Search:
    """Sentences, and their vectors (N, D) of length 1; the row of `vectors` is the index of the sentence."""

    def __init__(
        self,
        sentences: str | Path | Iterable[str],
        model: str | Path | Model = DEFAULT_MODEL,
        *,
        batch_size: int = 32,
        vectors: Tensor | None = None,
    ) -> None:
        self.model_source = model
        self.texts, self.batch_size = read_sentences(sentences), check_integer("batch_size", batch_size)
        self.vectors = self.embed_texts(self.texts) if vectors is None else vectors
        if len(self.vectors) != len(self.texts):
            raise InputError(f"{len(self.vectors)} vectors do not belong to {len(self.texts)} sentences")

    @cached_property
    def model(self) -> Model:
        """The model that turns a sentence into a vector; loaded when first needed."""
        return open_model(self.model_source)

    def __len__(self) -> int:
        return len(self.texts)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return vectors of length 1, for cosines; warn of what the encoder does not read."""
        length = None if self.model.pooling is None else self.model.pooling.length
        if length is not None and isinstance(self.model.tokenizer, Tokenizer):
            # A character is at most four bytes, and so many tokens.
            long = {i: text for i, text in enumerate(texts) if len(text) > length // 4}
            warn_truncated(
                {i: tokenize(self.model.tokenizer, text).truncate(length) for i, text in long.items()}
            )
        return F.normalize(embed(self.model, texts, batch=self.batch_size), dim=-1)

    def add(self, sentences: str | Path | Iterable[str]) -> None:
        """Append sentences."""
        more = read_sentences(sentences)
        self.vectors = torch.cat((self.vectors, self.embed_texts(more)))
        self.texts += more

    def find(self, query: str | Sequence[str], top_k: int = 5) -> Any:
        """Return the nearest sentences, the best first: [{"text", "score", "index"}]; for a list a list."""
        check_integer("top_k", top_k)
        queries = [query] if isinstance(query, str) else list(query) if isinstance(query, Iterable) else []
        if not queries or not all(isinstance(q, str) and q.strip() for q in queries):
            raise InputError(f"the query must be a text that is not empty; got {query!r:.60}")
        best = (self.embed_texts(queries) @ self.vectors.T).topk(min(top_k, len(self)), dim=1)
        found = [
            [{"text": self.texts[i], "score": s, "index": i} for s, i in zip(scores, rows, strict=True)]
            for scores, rows in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        return found[0] if isinstance(query, str) else found

    def save(self, folder: str | Path) -> Path:
        """Write texts and vectors; a model given as an object must be given again when loading."""
        from heedful.weights.formats.tensor_files import save_tensors

        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file", hint="name a folder to save in")
        folder.mkdir(parents=True, exist_ok=True)
        name = None if isinstance(self.model_source, Model) else str(self.model_source)
        content = {"model": name, "texts": self.texts}
        (folder / TEXTS_FILE).write_text(
            json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
        save_tensors({"vectors": self.vectors.contiguous()}, folder / VECTORS_FILE)
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: str | Path | Model | None = None) -> Search:
        """Read what `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        for name in (TEXTS_FILE, VECTORS_FILE):
            if not (folder / name).is_file():
                raise NotFound(f"{folder} has no {name}", hint="was it written by Search.save?")
        try:
            content = json.loads((folder / TEXTS_FILE).read_text(encoding="utf-8"))
            texts, named = content["texts"], content["model"]
            vectors = load_file(folder / VECTORS_FILE)["vectors"]
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CorruptFile(
                f"{folder} does not hold what Search.save wrote ({error})", hint="save again"
            ) from None
        source = model if model is not None else named
        if source is None:
            raise InputError(f"{folder} was made by a model without a name", hint="pass model=")
        return cls(texts, source, vectors=vectors)


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


def read_passages(
    folder: str | Path, size: int, overlap: int, kinds: Sequence[str] = TEXT_SUFFIXES
) -> list[Passage]:
    """Return the passages of all texts in a folder and below, or of one file."""
    root = Path(folder)
    if not root.exists():
        raise NotFound(f"{folder} is no folder of texts", hint="check the path")
    check_integer("size", size)
    if not 0 <= overlap <= size // 2:
        raise InputError(f"overlap={overlap} must be from 0 to half of size={size}")
    below = sorted(p for p in root.rglob("*") if p.suffix.lower() in kinds and p.is_file())
    files = [root] if root.is_file() else below
    found = []
    for path in files:
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        # Some files of a folder are not what they say: a stray byte must not hide all others.
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
        found += [Passage(name, a, b, text[a:b]) for a, b in split_passages(text, size, overlap)]
    if not found:
        raise InputError(
            f"{folder} holds no text ({', '.join(kinds)})", hint="put some in, or name another folder"
        )
    return found


class OpenDomain:
    """A folder of texts that answers questions. `reader` is a question-answering pipeline or its model.

    An answer whose score is below `min_score` is no answer: "known" is False, and "answer" is empty.
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

        So many `passages` are read; the options are those of question-answering. Where no passage answers,
        one row says so: its score is how sure that is, its passage the nearest one.
        """
        check_integer("top_k", top_k)
        if not isinstance(question, str):
            raise InputError(f"the question must be a text; got {question!r:.60}")
        near = self.search.find(question, check_integer("passages", passages))
        questions = [{"question": question, "context": row["text"]} for row in near]
        options = {"handle_impossible_answer": True} | options
        read = self.reader(iter(questions), **options, top_k=max(top_k, 2))
        rows = [
            self._row(self.passages[row["index"]], row["score"], found)
            for row, answers in zip(near, read, strict=True)
            for found in takewhile(lambda row: row["answer"], answers)  # likelier than that there is none
        ]
        kept = sorted((r for r in rows if r["score"] >= self.min_score), key=lambda r: -r["score"])
        best = kept[:top_k] or [self._no_answer_row(near[0], rows)]
        return best[0] if top_k == 1 else best

    def _row(self, passage: Passage, similarity: float, answer: dict[str, Any]) -> dict[str, Any]:
        place = {"start": passage.start + answer["start"], "end": passage.start + answer["end"]}
        row = {"answer": answer["answer"], "score": answer["score"] * max(similarity, 0.0), "known": True}
        return row | {"file": passage.file, **place, "passage": passage.text, "similarity": similarity}

    def _no_answer_row(self, nearest: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        passage = self.passages[nearest["index"]]
        sure = 1.0 - max((row["score"] for row in rows), default=0.0)
        row = {"answer": "", "score": sure, "known": False, "file": passage.file}
        place = {"start": passage.start, "end": passage.end}
        return row | place | {"passage": passage.text, "similarity": nearest["score"]}
