"""Sentences found by meaning: every one as a vector, and the nearest to a question by cosine.

    found = Search(["A hotel in Seattle", "A recipe for bread"]).find("Seattle motel", top_k=1)
    found[0]["text"], found[0]["score"], found[0]["index"]

`save` keeps texts and vectors in a folder, `Search.load` brings them back without reading the texts again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.models.base import Model
from heedful.tasks.model_cache import open_model
from heedful.tasks.model_inputs import warn_truncated
from heedful.tasks.tokenized import tokenize
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
