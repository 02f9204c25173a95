"""Word2Vec: train, use, save, load. Numba and torch are imported by the calls that train, not here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import ConfigError, InputError, NotFound, nearest
from heedful.weights.bases import bundled_vectors
from heedful.word2vec import files, formats
from heedful.word2vec.corpus import Corpus, Source
from heedful.word2vec.huffman import Paths, graft
from heedful.word2vec.phrases import Phrases, find_phrases
from heedful.word2vec.session import KIND, Session, all_tensors, pad, paths_of, read_state
from heedful.word2vec.settings import Settings
from heedful.word2vec.training import Cursor, Progress, Tables, fill_new_rows
from heedful.word2vec.vocabulary import Vocabulary, check_size, count_words

Word = str | int


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
    """Words and their vectors.

    `input` (V, D) is v, what is used as *the* vectors; `output` is u, the other vector of each word, or of
    each inner node of the tree (hierarchical softmax), or None for vectors from elsewhere. `history` is the
    mean loss of each epoch.
    """

    def __init__(
        self,
        words: Sequence[str],
        input: np.ndarray,
        output: np.ndarray | None = None,
        counts: np.ndarray | None = None,
        settings: Settings | None = None,
        paths: Paths | None = None,
        history: Sequence[float] = (),
    ) -> None:
        if len(words) != len(input):
            raise InputError(f"{len(words):,} words for {len(input):,} vectors; give one word per row")
        self.words, self.input, self.output = list(words), input, output
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise InputError("a word occurs twice among the words; give each row its own name")
        self.counts, self.settings, self.paths, self.history = counts, settings, paths, list(history)
        self._norms: np.ndarray | None = None

    @classmethod
    def train(
        cls,
        corpus: Source,
        dim: int = 100,
        window: int = 5,
        mode: str = "skipgram",
        loss: str = "negative",
        negatives: int = 5,
        min_count: int = 5,
        subsample: float | None = None,
        epochs: int = 5,
        threads: int | None = None,
        seed: int = 0,
        *,
        lowercase: bool = False,
        encoding: str = "utf-8",
        phrases: int = 0,
        device: str = "cpu",
        checkpoint: str | Path | None = None,
        resume: bool = False,
        report: Callable[[Progress], None] | None = None,
        **more: Any,
    ) -> Word2Vec:
        """Train on text; `more`: max_vocab, noise_exponent, dynamic, cbow, rate, min_rate (see Settings).

        `phrases` passes of joining bigrams come first. threads=1 is bit-exact; None takes all cores.
        """
        given = {"dim": dim, "window": window, "mode": mode, "loss": loss, "negatives": negatives}
        given |= {"min_count": min_count, "subsample": subsample, "epochs": epochs, "seed": seed}
        settings = Settings.from_dict(given | more)
        text = Corpus(corpus, lowercase, encoding)
        if phrases < 0:
            raise ConfigError(f"phrases={phrases} passes cannot be made; 0 joins nothing")
        for _ in range(phrases):
            text = Corpus(corpus, lowercase, encoding, (*text.phrases, find_phrases(text)))
        path = Path(checkpoint) if checkpoint is not None else None
        if resume and path is None:
            raise ConfigError("resume=True needs checkpoint=, the file to go on from")
        session = Session.resume(text, path, settings) if resume and path else Session.new(text, settings)
        for progress in session.steps(threads, path, device=device):
            if report is not None:
                report(progress)
        return cls.from_session(session)

    @classmethod
    def from_session(cls, session: Session) -> Word2Vec:
        """The vectors as the run has them now, sharing its memory."""
        tables, dim = session.tables, session.settings.dim
        return cls(
            session.vocabulary.words,
            tables.input[:, :dim],
            tables.output[:, :dim],
            session.vocabulary.counts,
            session.settings,
            tables.paths,
            session.cursor.history,
        )

    @classmethod
    def from_table(cls, table: Any, words: Sequence[str] | None = None) -> Word2Vec:
        """Any model's embedding table (array or tensor, V × D) through the same object; without words, by
        index.
        """
        try:
            listed = isinstance(table, np.ndarray | Sequence)
            array = np.asarray(table) if listed else table.detach().float().cpu().numpy()
            sound = bool(np.isfinite(array).all())
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"{type(table).__name__} is no table of numbers; give an array or a tensor (of a layer, its "
                ".weight)"
            ) from None
        if not sound:
            raise InputError("the table holds NaN or infinity; was its model trained to the end?")
        if array.ndim != 2:
            raise InputError(
                f"an embedding table has two dimensions, this has shape {array.shape}; give (words, size)"
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
        """The row of a word, or a row number checked."""
        if isinstance(word, int | np.integer):
            if not -len(self) <= word < len(self):
                raise NotFound(f"no row {word}: there are {len(self):,}, from 0")
            return int(word) % len(self)
        if not isinstance(word, str):
            raise InputError(f"a word is a string or the number of a row; got {type(word).__name__}")
        if word not in self.index:
            raise NotFound(
                f"the word {word!r} is not among the {len(self):,} known; "
                f"{nearest(word, self.words[:50_000]) or 'it was too rare, or in another case'}"
            )
        return self.index[word]

    @property
    def norms(self) -> np.ndarray:
        if self._norms is None:
            self._norms = np.maximum(np.linalg.norm(self.input, axis=1), np.float32(1e-12))
        return self._norms

    def unit(self, word: Word) -> np.ndarray:
        row = self.row(word)
        return self.input[row] / self.norms[row]

    def cosines(self, vector: np.ndarray, first: int | None = None) -> np.ndarray:
        """cos(v_w, vector) of every word, or of the `first` most frequent."""
        if vector.shape != (self.dim,):
            raise InputError(f"a vector here has {self.dim} numbers; got an array of shape {vector.shape}")
        if first is not None and first < 1:
            raise InputError(f"first={first} lets no word answer; give 1 or more")
        size = max(float(np.linalg.norm(vector)), 1e-12)
        return (self.input[:first] @ (vector / size).astype(np.float32)) / self.norms[:first]

    # ---- using

    def similarity(self, a: Word, b: Word) -> float:
        """cos(a, b)."""
        return float(self.unit(a) @ self.unit(b))

    def neighbours(self, word: Word | np.ndarray, count: int = 10, first: int | None = None) -> Ranking:
        """The nearest by cosine; the word itself does not answer."""
        if isinstance(word, np.ndarray):
            return self._ranked(self.cosines(word, first), count, [])
        return self._ranked(self.cosines(self[word], first), count, [self.row(word)])

    def analogy(
        self, a: Word, b: Word, c: Word, count: int = 10, method: str = "add", first: int | None = None
    ) -> Ranking:
        """a is to b as c is to …; a, b and c do not answer (they would mostly win: Linzen 2016).

        add: cos(x, b - a + c) on unit vectors (3CosAdd, Mikolov et al. 2013c).
        mul: cos(x, b) cos(x, c) / (cos(x, a) + ε), cosines moved to [0, 1] (3CosMul, Levy & Goldberg 2014).
        """
        rows = [self.row(word) for word in (a, b, c)]
        if method == "add":
            scores = self.cosines(self.unit(b) - self.unit(a) + self.unit(c), first)
        elif method == "mul":
            near_a, near_b, near_c = ((1 + self.cosines(self[row], first)) / 2 for row in rows)
            scores = near_b * near_c / (near_a + 1e-3)
        else:
            raise ConfigError(f"method={method!r} is not 'add' (3CosAdd) or 'mul' (3CosMul)")
        return self._ranked(scores, count, rows)

    def _ranked(self, scores: np.ndarray, count: int, excluded: list[int]) -> Ranking:
        scores, barred = scores.copy(), {row for row in excluded if row < len(scores)}
        scores[list(barred)] = -np.inf
        count = min(count, len(scores) - len(barred))
        names = list(dict.fromkeys(self.words[row] for row in excluded))
        if count < 1:
            return Ranking([], names)
        best = np.argpartition(-scores, count - 1)[:count]
        best = best[np.lexsort((best, -scores[best]))]
        return Ranking([(self.words[i], float(scores[i])) for i in best], names)

    def odd_one_out(self, words: Sequence[Word]) -> str:
        """The word farthest from the mean direction of all."""
        if len(words) < 3:
            raise InputError(f"{len(words)} words have no odd one; give three or more")
        units = np.stack([self.unit(word) for word in words])
        return self.words[self.row(words[int((units @ units.mean(axis=0)).argmin())])]

    def sentence(self, words: str | Sequence[str], smoothing: float = 1e-3) -> np.ndarray:
        """Σ a/(a + p(w)) v_w / n over the known words (Arora et al. 2017); a plain mean where no counts are
        known.
        """
        tokens = words.split() if isinstance(words, str) else words
        rows = [self.index[word] for word in tokens if word in self.index]
        if not rows:
            raise InputError(
                f"no word of {' '.join(tokens)[:60]!r} is known; check the case, or lower min_count"
            )
        weight = np.ones(len(rows), dtype=np.float32)
        if self.counts is not None and smoothing > 0:
            weight = (smoothing / (smoothing + self.counts[rows] / self.counts.sum())).astype(np.float32)
        return (weight[:, None] * self.input[rows]).mean(axis=0)

    # ---- going on

    def update(
        self,
        corpus: Source,
        epochs: int = 5,
        threads: int | None = None,
        min_count: int | None = None,
        lowercase: bool = False,
        phrases: Sequence[Phrases] = (),
        device: str = "cpu",
        report: Callable[[Progress], None] | None = None,
        **more: Any,
    ) -> Word2Vec:
        """Go on training on new text; its new words (min_count times and more) get rows of their own.

        Returns new vectors; these stay as they are. Old words keep their rows, and hierarchical softmax its
        tree.
        """
        if self.settings is None or self.output is None or self.counts is None:
            raise InputError(
                "these vectors have no output table or counts, so training cannot go on; "
                "load the .safetensors that training saved"
            )
        settings = Settings.from_dict(self.settings.to_dict() | {"epochs": epochs} | more)
        if settings.dim != self.dim or settings.loss != self.settings.loss:
            raise ConfigError(
                f"dim={self.dim} and loss={self.settings.loss} are built into the tables; leave them"
            )
        text = Corpus(corpus, lowercase, phrases=tuple(phrases))
        counts, total = count_words(text)
        check_size(len(counts), total, 1)
        least = settings.min_count if min_count is None else min_count
        fresh = sorted(
            (word for word, n in counts.items() if n >= least and word not in self.index),
            key=lambda word: (-counts[word], word),
        )
        old = [n + counts[word] for word, n in zip(self.words, self.counts.tolist())]
        vocabulary = Vocabulary(self.words + fresh, np.array(old + [counts[word] for word in fresh]), total)
        tables = self._grown(vocabulary, settings)
        session = Session(text, settings, vocabulary, tables, Cursor())
        for progress in session.steps(threads, device=device):
            if report is not None:
                report(progress)
        return Word2Vec.from_session(session)

    def _grown(self, vocabulary: Vocabulary, settings: Settings) -> Tables:
        assert self.output is not None
        paths = graft(self.paths, vocabulary.counts[len(self) :]) if self.paths is not None else None
        rows = paths.inner if paths is not None else len(vocabulary)
        tables = Tables(pad(self.input, len(vocabulary)), pad(self.output, rows), paths)
        fill_new_rows(tables, len(self), settings)
        return tables

    # ---- files

    def save(self, path: str | Path, format: str | None = None) -> None:
        """By the ending: .safetensors (everything), .bin, .txt or .vec (word2vec), .glove; the last four keep
        `input` only.
        """
        path = Path(path)
        form = format or formats.guess(path)
        if form not in formats.FORMATS:
            raise ConfigError(f"format={form!r} is not one of {', '.join(formats.FORMATS)}")
        if form != "safetensors":
            formats.write_vectors(path, self.words, self.input, form)
            return
        settings = self.settings.to_dict() if self.settings is not None else None
        tensors = {"input": self.input, "words": files.words_to_bytes(self.words)}
        if self.output is not None and self.counts is not None:
            tensors = all_tensors(
                self.words, self.counts, Tables(self.input, self.output, self.paths), self.dim
            )
        elif self.counts is not None:
            tensors["counts"] = self.counts
        state = json.dumps({"settings": settings, "history": self.history})
        files.write(path, tensors, {"format": KIND, "state": state})

    @classmethod
    def load(
        cls, path: str | Path, format: str | None = None, limit: int | None = None, mmap: bool = False
    ) -> Word2Vec:
        """Read any of the formats, told apart by content; `mmap` leaves a .safetensors table on disk.

        "words" are the vectors that come with heedful.
        """
        path = bundled_vectors().get(str(path), Path(path))
        if not path.is_file():
            what = f"{path} is a folder" if path.is_dir() else f"no file {path}"
            raise NotFound(f"{what}; give the path of a file of word vectors")
        if limit is not None and limit < 1:
            raise ConfigError(f"limit={limit} would read no word; give 1 or more")
        if (format or path.suffix.lstrip(".")) != "safetensors":
            if mmap:
                raise ConfigError(
                    f"{path} mixes words and numbers and cannot be mapped; convert it once: "
                    f"heed word2vec convert {path} {path.with_suffix('.safetensors')}"
                )
            return cls(*formats.read_vectors(path, format, limit))
        tensors, meta = files.read(path, mmap)
        state = read_state(path, meta, "settings")
        files.need(path, tensors, "input", "words")
        words = files.bytes_to_words(tensors["words"])
        files.check_shapes(path, tensors, len(words))
        if not mmap:
            formats.check(path, words, tensors["input"])
        loaded = cls(
            words,
            tensors["input"],
            tensors.get("output"),
            tensors.get("counts"),
            Settings.from_dict(state["settings"]) if state["settings"] else None,
            paths_of(path, tensors),
            state.get("history", ()),
        )
        return loaded if limit is None else cls(words[:limit], loaded.input[:limit])
