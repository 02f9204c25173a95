"""Word2Vec: train, use, save, load. Numba and torch are imported by the calls that train, not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import ConfigError, InputError, NotFound, nearest
from heedful.core.files import missing_file
from heedful.weights.hub import bundled_vectors
from heedful.word2vec.corpus import Corpus, Phrases, TextSource, join_phrases
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.trainer import ProgressReport, Tables, Trainer
from heedful.word2vec.vector_files import (
    FORMATS,
    check_vectors,
    format_of,
    pack_tables,
    read_tensor_file,
    read_vector_file,
    unpack_tree,
    unpack_words,
    write_tensor_file,
    write_vectors,
)
from heedful.word2vec.word_counts import (
    HuffmanTree,
    WordCounts,
    check_vocabulary_size,
    count_words,
    extend_tree,
    sort_by_count,
)

Word = str | int
ANALOGY_METHODS = ("add", "mul")  # 3CosAdd, 3CosMul


class Ranking(list[tuple[str, float]]):
    """[(word, score), …] from the best; `excluded` names the words that were not allowed to answer."""

    def __init__(self, pairs: Iterable[tuple[str, float]], excluded: Sequence[str] = ()) -> None:
        super().__init__(pairs)
        self.excluded = tuple(excluded)

    def __str__(self) -> str:
        rows = [f"{score:8.4f}  {word}" for word, score in self]
        note = [f"          (not among the answers: {', '.join(self.excluded)})"] if self.excluded else []
        return "\n".join(rows + note)


class Word2Vec:
    """Hold words and their vectors: train them, ask them questions, load and save them.

    >>> import heedful
    >>> text = [line.split() for line in ["the cat sat on the mat", "the dog lay on the rug"] * 50]
    >>> vectors = heedful.Word2Vec.train(text, dim=8, min_count=1, epochs=2, threads=1, seed=0)
    >>> vectors["cat"].shape
    (8,)
    >>> len(vectors.neighbours("cat", 3))
    3

    `input` (V, D) has the vectors v that are used everywhere. `output` has the second vector u of each word,
    or of each inner node of the Huffman tree. It is None for vectors from another program. `history` has the
    mean loss of each epoch.
    """

    def __init__(
        self, words: Sequence[str], input: np.ndarray, output: np.ndarray | None = None,
        counts: np.ndarray | None = None, settings: Settings | None = None, tree: HuffmanTree | None = None,
        history: Sequence[float] = (),
    ) -> None:  # fmt: skip
        if len(words) != len(input):
            raise InputError(f"{len(words):,} words for {len(input):,} vectors", hint="give one word per row")
        self.words, self.input, self.output = list(words), input, output
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise InputError("a word occurs twice among the words", hint="give each row its own name")
        self.counts, self.settings, self.tree, self.history = counts, settings, tree, list(history)
        self._norms: np.ndarray | None = None

    @classmethod
    def train(
        cls, corpus: TextSource, dim: int = 100, window: int = 5, mode: str = "skipgram",
        loss: str = "negative", negatives: int = 5, min_count: int = 5, subsample: float | None = None,
        epochs: int = 5, threads: int | None = None, seed: int = 0, *, lowercase: bool = False,
        encoding: str = "utf-8", phrases: int = 0, split_punctuation: bool = True, device: str = "cpu",
        checkpoint: str | Path | None = None, resume: bool = False,
        report: Callable[[ProgressReport], None] | None = None, **more: Any,
    ) -> Word2Vec:  # fmt: skip
        """Train on text; `more`: max_vocab, noise_exponent, dynamic, cbow, rate, min_rate (see Settings).

        `phrases` passes of joining bigrams come first. threads=1 is bit-exact; None takes all cores.
        Punctuation in files is split from words unless `split_punctuation` is False.
        """
        chosen = {"dim": dim, "window": window, "mode": mode, "loss": loss, "negatives": negatives}
        chosen |= {"min_count": min_count, "subsample": subsample, "epochs": epochs, "seed": seed}
        settings = Settings.from_dict(chosen | more)
        text = join_phrases(Corpus(corpus, lowercase, encoding, split_punctuation=split_punctuation), phrases)
        path = Path(checkpoint) if checkpoint is not None else None
        trainer = Trainer.begin(text, settings, path, resume)
        for progress in trainer.run(threads, path, device):
            if report is not None:
                report(progress)
        return cls.from_trainer(trainer)

    @classmethod
    def from_trainer(cls, trainer: Trainer) -> Word2Vec:
        """Return the vectors as the run has them now, sharing its memory."""
        tables, counts, history = trainer.tables, trainer.counts, trainer.state.history
        return cls(
            counts.words, tables.input, tables.output, counts.counts, trainer.settings, tables.tree, history
        )

    @classmethod
    def from_table(cls, table: Any, words: Sequence[str] | None = None) -> Word2Vec:
        """Wrap any model's embedding table (array or tensor, V × D); without words, by row number."""
        try:
            in_numpy = isinstance(table, np.ndarray | Sequence)
            array = np.asarray(table) if in_numpy else table.detach().float().cpu().numpy()
            finite = bool(np.isfinite(array).all())
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"{type(table).__name__} is not a table of numbers",
                hint="give an array or a tensor (of a layer, its .weight)",
            ) from None
        if not finite:
            raise InputError(
                "the table holds NaN or infinity", hint="check that its model was trained to the end"
            )
        if array.ndim != 2:
            raise InputError(
                f"an embedding table has two dimensions, this has shape {array.shape}",
                hint="give (words, size)",
            )
        return cls(words if words is not None else [str(i) for i in range(len(array))], array)

    # ---- looking up

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Word2Vec({len(self):,} words of {self.dim} dimensions)"

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: Word) -> np.ndarray:
        return self.input[self.row(word)]

    @property
    def dim(self) -> int:
        return int(self.input.shape[1])

    def row(self, word: Word) -> int:
        """Return the row of a word, or a row number after checking it."""
        if isinstance(word, int | np.integer):
            if not -len(self) <= word < len(self):
                raise NotFound(f"no row {word}: there are {len(self):,}, from 0")
            return int(word) % len(self)
        if not isinstance(word, str):
            raise InputError(f"a word is a string or the number of a row, not {type(word).__name__}")
        if word not in self.index:
            hint = nearest(word, self.words[:50_000]) or "it was too rare, or in another case"
            raise NotFound(f"the word {word!r} is not among the {len(self):,} known", hint=hint)
        return self.index[word]

    @property
    def norms(self) -> np.ndarray:
        if self._norms is None:
            self._norms = np.maximum(np.linalg.norm(self.input, axis=1), np.float32(1e-12))
        return self._norms

    def unit(self, word: Word) -> np.ndarray:
        """Return the vector of a word, scaled to length 1."""
        row = self.row(word)
        return self.input[row] / self.norms[row]

    def cosines(self, vector: np.ndarray, first: int | None = None) -> np.ndarray:
        """cos(v_w, vector) of every word, or of the `first` most frequent."""
        if vector.shape != (self.dim,):
            raise InputError(f"a vector here has {self.dim} numbers, not the shape {vector.shape}")
        if first is not None:
            check_integer("first", first)
        size = max(float(np.linalg.norm(vector)), 1e-12)
        return (self.input[:first] @ (vector / size).astype(np.float32)) / self.norms[:first]

    # ---- using

    def similarity(self, a: Word, b: Word) -> float:
        """cos(a, b)."""
        return float(self.unit(a) @ self.unit(b))

    def neighbours(self, word: Word | np.ndarray, count: int = 10, first: int | None = None) -> Ranking:
        """Return the nearest words by cosine; the word itself does not answer."""
        if isinstance(word, np.ndarray):
            return self._rank(self.cosines(word, first), count, [])
        return self._rank(self.cosines(self[word], first), count, [self.row(word)])

    def analogy(
        self, a: Word, b: Word, c: Word, count: int = 10, method: str = "add", first: int | None = None
    ) -> Ranking:
        """a is to b as c is to …; a, b and c do not answer (they would mostly win: Linzen 2016).

        add: cos(x, b - a + c) on unit vectors (3CosAdd, Mikolov et al. 2013c).
        mul: cos(x, b) cos(x, c) / (cos(x, a) + ε), cosines moved to [0, 1] (3CosMul, Levy & Goldberg 2014).
        """
        check_choice("method", method, ANALOGY_METHODS, ConfigError)
        rows = [self.row(word) for word in (a, b, c)]
        if method == "add":
            scores = self.cosines(self.unit(b) - self.unit(a) + self.unit(c), first)
        else:
            near_a, near_b, near_c = ((1 + self.cosines(self[row], first)) / 2 for row in rows)
            scores = near_b * near_c / (near_a + 1e-3)
        return self._rank(scores, count, rows)

    def _rank(self, scores: np.ndarray, count: int, barred_rows: list[int]) -> Ranking:
        scores, barred = scores.copy(), {row for row in barred_rows if row < len(scores)}
        scores[list(barred)] = -np.inf
        count = min(count, len(scores) - len(barred))
        names = list(dict.fromkeys(self.words[row] for row in barred_rows))
        if count < 1:
            return Ranking([], names)
        best = np.argpartition(-scores, count - 1)[:count]
        best = best[np.lexsort((best, -scores[best]))]
        return Ranking([(self.words[i], float(scores[i])) for i in best], names)

    def odd_one_out(self, words: Sequence[Word]) -> str:
        """Return the word farthest from the mean direction of all."""
        if len(words) < 3:
            raise InputError(
                f"{len(words)} words are too few to find the odd one out", hint="give three or more"
            )
        units = np.stack([self.unit(word) for word in words])
        return self.words[self.row(words[int((units @ units.mean(axis=0)).argmin())])]

    def sentence(self, words: str | Sequence[str], smoothing: float = 1e-3) -> np.ndarray:
        """Σ a/(a + p(w)) v_w / n over the known words (Arora et al. 2017); a plain mean without counts."""
        tokens = words.split() if isinstance(words, str) else words
        rows = [self.index[word] for word in tokens if word in self.index]
        if not rows:
            raise InputError(
                f"no word of {' '.join(tokens)[:60]!r} is known", hint="check the case, or lower min_count"
            )
        weight = np.ones(len(rows), dtype=np.float32)
        if self.counts is not None and smoothing > 0:
            weight = (smoothing / (smoothing + self.counts[rows] / self.counts.sum())).astype(np.float32)
        return (weight[:, None] * self.input[rows]).mean(axis=0)

    # ---- training on

    def update(
        self, corpus: TextSource, epochs: int = 5, threads: int | None = None, min_count: int | None = None,
        lowercase: bool = False, phrases: Sequence[Phrases] = (), device: str = "cpu",
        report: Callable[[ProgressReport], None] | None = None, **more: Any,
    ) -> Word2Vec:  # fmt: skip
        """Continue training on new text; its new words (min_count times or more) get new rows.

        Returns new vectors; these stay as they are. Old words keep their rows, and hierarchical softmax its
        tree.
        """
        if self.settings is None or self.output is None or self.counts is None:
            raise InputError(
                "these vectors have no output table or counts, so training cannot continue",
                hint="load the .safetensors that training saved",
            )
        settings = Settings.from_dict(self.settings.to_dict() | {"epochs": epochs} | more)
        if settings.dim != self.dim or settings.loss != self.settings.loss:
            raise ConfigError(
                f"`dim={self.dim}` and `loss={self.settings.loss}` are built into the tables",
                hint="leave them out",
            )
        text = Corpus(corpus, lowercase, phrases=tuple(phrases))
        counts, total = count_words(text)
        check_vocabulary_size(len(counts), total, 1)
        new = sort_by_count(counts, settings.min_count if min_count is None else min_count)
        words = self.words + [word for word in new if word not in self.index]
        numbers = [counts[word] for word in words]
        numbers[: len(self)] = self.counts + numbers[: len(self)]
        vocabulary = WordCounts(words, np.array(numbers), total)
        tree = extend_tree(self.tree, vocabulary.counts[len(self) :]) if self.tree else None
        tables = Tables(self.input, self.output).extend(len(words), settings, tree)
        trainer = Trainer(text, settings, vocabulary, tables)
        for progress in trainer.run(threads, device=device):
            if report is not None:
                report(progress)
        return Word2Vec.from_trainer(trainer)

    # ---- files

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Save as .safetensors (everything), or `input` alone as .bin, .txt or .vec (word2vec) or .glove."""
        path = Path(path)
        format = check_choice("format", format or format_of(path), FORMATS, ConfigError)
        if format != "safetensors":
            return write_vectors(path, self.words, self.input, format)
        complete = self.output is not None and self.counts is not None
        tables = (self.output, self.counts, self.tree) if complete else (None, self.counts, None)
        settings = self.settings.to_dict() if self.settings is not None else None
        tensors = pack_tables(self.words, self.input, *tables)
        return write_tensor_file(path, tensors, {"settings": settings, "history": self.history})

    @classmethod
    def load(
        cls, path: str | Path, format: str | None = None, limit: int | None = None, mmap: bool = False
    ) -> Word2Vec:
        """Read any of the formats, told apart by content; `mmap` leaves a .safetensors table on disk.

        "words" are the vectors that come with heedful.
        """
        path = bundled_vectors().get(str(path), Path(path))
        if path.is_dir():
            raise NotFound(f"{path} is a folder", hint="give the path of a file of word vectors")
        if not path.is_file():
            raise missing_file(path)
        if limit is not None:
            check_integer("limit", limit, error=ConfigError)
        if (format or path.suffix.lstrip(".")) != "safetensors":
            if mmap:
                raise ConfigError(
                    f"{path} mixes words and numbers, so it cannot be memory-mapped",
                    hint=f"convert it once: heed word2vec convert {path} {path.with_suffix('.safetensors')}",
                )
            words, table = read_vector_file(path, format, limit)
            check_vectors(path, words, table)
            return cls(words, table)
        tensors, state = read_tensor_file(path, mmap)
        words, table = unpack_words(path, tensors), tensors["input"]
        if not mmap:
            check_vectors(path, words, table)
        if limit is not None:
            return cls(words[:limit], table[:limit])
        settings = Settings.from_dict(state["settings"]) if state["settings"] else None
        others = (tensors.get("output"), tensors.get("counts"), settings, unpack_tree(path, tensors))
        return cls(words, table, *others, state.get("history", ()))
