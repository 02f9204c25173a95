"""One training run from text to vectors: prepared, streamed, saved half-way, taken up again."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import ConfigError, CorruptFile, InputError, NotFound
from heedful.locks import FileLock
from heedful.word2vec import files
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.encoding import Encoded, encode
from heedful.word2vec.huffman import Paths, huffman
from heedful.word2vec.settings import Settings
from heedful.word2vec.training import Cursor, Progress, Tables, new_tables, padded, run
from heedful.word2vec.vocabulary import Vocabulary, build_vocabulary

KIND = "heedful-word2vec"


@dataclass
class Session:
    """Vocabulary, tables and cursor of a run; its encoded text lies in a folder that goes with it."""

    corpus: Corpus
    settings: Settings
    vocabulary: Vocabulary
    tables: Tables
    cursor: Cursor
    digest: str = ""  # of the encoded text the cursor belongs to

    @classmethod
    def new(cls, corpus: Corpus, settings: Settings, **counting: Any) -> Session:
        """Count the words and set up fresh tables."""
        vocabulary = build_vocabulary(corpus, settings.min_count, settings.max_vocab, **counting)
        paths = huffman(vocabulary.counts) if settings.hierarchical else None
        return cls(corpus, settings, vocabulary, new_tables(vocabulary, settings, paths), Cursor())

    @classmethod
    def resume(cls, corpus: Corpus, path: Path, settings: Settings | None = None) -> Session:
        """Take up the run in `path` where it stands; `settings`, if given, must be those it began with."""
        if not path.exists():
            raise NotFound(f"no checkpoint {path} to resume from; start without resume")
        tensors, meta = files.read(path)
        state = read_state(path, meta, "cursor")
        files.need(path, tensors, "input", "output", "words", "counts", "losses", "examples")
        words = files.bytes_to_words(tensors["words"])
        files.check_shapes(path, tensors, len(words))
        began = Settings.from_dict(state["settings"])
        for name, value in (settings or began).to_dict().items():
            if value != began.to_dict()[name]:
                raise ConfigError(
                    f"{path} began with {name}={began.to_dict()[name]} and cannot go on with {value}; "
                    "give the same settings or start anew"
                )
        vocabulary = Vocabulary(words, tensors["counts"], state["total"])
        cursor = Cursor(losses=tensors["losses"], examples=tensors["examples"], **state["cursor"])
        return cls(corpus, began, vocabulary, tables_of(path, tensors), cursor, state["digest"])

    def encoded(self) -> Encoded:
        """Write the text as numbers; a resumed run must find the text it began with."""
        folder = tempfile.mkdtemp(prefix="heed-word2vec-")
        self.clean = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        encoded = encode(self.corpus, self.vocabulary, Path(folder) / "ids.int32")
        if self.digest and encoded.digest != self.digest:
            raise InputError(
                "the corpus is not the one this checkpoint began with (its words differ); "
                "give the same text, or start anew"
            )
        self.digest = encoded.digest
        return encoded

    def steps(
        self,
        threads: int | None = None,
        checkpoint: Path | None = None,
        every: float = 300.0,
        interval: float = 0.5,
        device: str = "cpu",
    ) -> Iterator[Progress]:
        """Train; save to `checkpoint` every so many seconds, after each epoch, and when left early."""
        threads = threads if threads is not None else os.cpu_count() or 1
        if threads < 1:
            raise ConfigError(
                f"threads={threads} is below 1; give 1 for the bit-exact mode, or the number of cores"
            )
        with file_lock(checkpoint) if checkpoint is not None else nullcontext():
            yield from self._steps(threads, checkpoint, every, interval, device)

    def _steps(
        self, threads: int, checkpoint: Path | None, every: float, interval: float, device: str
    ) -> Iterator[Progress]:
        encoded = self.encoded()
        if not encoded.paired:
            raise InputError(
                "no line of the text has two known words side by side, so there is nothing to learn from; "
                "write a sentence or paragraph a line, or lower min_count"
            )
        stream = self._stream(encoded, threads, interval, device)
        saved = time.monotonic()
        try:
            for progress in stream:
                if progress.finished:
                    self._check(progress)
                if checkpoint is not None and (progress.finished or time.monotonic() - saved >= every):
                    self.save(checkpoint)
                    saved = time.monotonic()
                yield progress
        except (KeyboardInterrupt, GeneratorExit):
            if checkpoint is not None:
                self.save(checkpoint)
            raise
        finally:
            self.clean()

    def _check(self, progress: Progress) -> None:
        """Check that vectors are still numbers, and after the last epoch that something was learnt."""
        if math.isfinite(progress.loss):
            return
        if np.isfinite(self.tables.input).all() and np.isfinite(self.tables.output).all():
            # Subsampling dropped all pairs of this epoch; another one draws anew.
            if progress.epoch + 1 == self.settings.epochs and not np.isfinite(self.cursor.history).any():
                used = self.settings.threshold(len(self.vocabulary))
                raise InputError(
                    f"subsample={used:g} thinned this small text out until no two words stood side by side "
                    f"in any of {self.settings.epochs} epochs; give subsample=0 to keep all, or leave it out"
                )
            return
        raise ConfigError(
            f"training diverged in epoch {progress.epoch + 1}: rate={self.settings.first_rate} is too large "
            f"for window={self.settings.window} and negatives={self.settings.negatives}; lower it"
        )

    def _stream(self, encoded: Encoded, threads: int, interval: float, device: str) -> Iterator[Progress]:
        if device == "cpu":
            return run(self.tables, self.vocabulary, self.settings, encoded, self.cursor, threads, interval)
        from heedful.word2vec.gpu import run as run_on_device

        return run_on_device(self.tables, self.vocabulary, self.settings, encoded, self.cursor, device)

    def save(self, path: Path) -> None:
        """Everything a resumed run needs; there is no random state beside the cursor, see encoding.py."""
        cursor = {"epoch": self.cursor.epoch, "job": self.cursor.job, "history": self.cursor.history}
        state = {
            "settings": self.settings.to_dict(),
            "total": self.vocabulary.total,
            "digest": self.digest,
            "cursor": cursor,
            "history": self.cursor.history,
        }
        tensors = all_tensors(self.vocabulary.words, self.vocabulary.counts, self.tables, self.settings.dim)
        tensors |= {"losses": self.cursor.losses, "examples": self.cursor.examples}
        files.write(path, tensors, {"format": KIND, "state": json.dumps(state)})


def file_lock(path: Path) -> FileLock:
    """Return the lock of a file that a run is to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(
        path.with_name(path.name + ".lock"), str(path), "wait for it to end, or name another file"
    )


def all_tensors(words: list[str], counts: np.ndarray, tables: Tables, dim: int) -> dict[str, np.ndarray]:
    """Both tables without their padding, the words, and the tree if there is one."""
    tensors = {
        "input": tables.input[:, :dim],
        "output": tables.output[:, :dim],
        "words": files.words_to_bytes(words),
        "counts": counts,
    }
    if tables.paths is not None:
        tensors |= {f"paths.{name}": value for name, value in asdict(tables.paths).items()}
    return tensors


def tables_of(path: Path, tensors: dict[str, np.ndarray]) -> Tables:
    """Both tables, padded as the kernel wants them."""
    return Tables(pad(tensors["input"]), pad(tensors["output"]), paths_of(path, tensors))


def paths_of(path: Path, tensors: dict[str, np.ndarray]) -> Paths | None:
    """The tree of hierarchical softmax, if the file has one."""
    names = [f"paths.{name}" for name in ("first", "nodes", "turns")]
    if not any(name in tensors for name in names):
        return None
    files.need(path, tensors, *names)
    return Paths(*(np.array(tensors[name]) for name in names))


def pad(table: np.ndarray, rows: int | None = None) -> np.ndarray:
    """A copy with rows padded with zeros to whole vectors, and zero rows added up to `rows`."""
    wide = np.zeros((rows if rows is not None else len(table), padded(table.shape[1])), dtype=np.float32)
    wide[: len(table), : table.shape[1]] = table
    return wide


def read_state(path: Path, meta: dict[str, str], needed: str) -> dict[str, Any]:
    """The JSON this package wrote into a safetensors file; an error that says what the file is not."""
    if meta.get("format") != KIND:
        raise CorruptFile(
            f"{path} was not written by heed word2vec; load tables of other models with Word2Vec.from_table"
        )
    try:
        state: dict[str, Any] = json.loads(meta["state"])
        settings, history = state["settings"], state.get("history", [])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        settings, history = False, []
    sound = isinstance(settings, dict | None) and isinstance(history, list)
    if not sound or not all(isinstance(loss, int | float) for loss in history):
        raise CorruptFile(f"{path} has lost its settings", hint="copy or save it again")
    if needed not in state:
        raise CorruptFile(f"{path} holds finished vectors, not a checkpoint; go on from it with update()")
    return state
