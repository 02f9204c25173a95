"""Which models there are: those given, bundled ones, installed ones, folders, checkpoints of runs.

A model is read from disk when it is first asked for and owned by one thread. The few used last stay.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from heedful.classroom.studio.jobs import Ticket, Worker
from heedful.core.errors import HeedfulError, InputError, NotFound, find_named
from heedful.models.base import Model
from heedful.weights.adapters import adapter_base, has_adapter, merge
from heedful.word2vec import Word2Vec

T = TypeVar("T")
KEPT = 4  # models in memory
VECTORS = (".vec", ".glove", ".bin", ".bin.gz", ".safetensors")  # in a folder; a file may be a .txt as well


class ModelNotFound(NotFound):
    """A model that is not in the registry."""


@dataclass(frozen=True)
class Entry:
    """A model that may be loaded. `name` is what heedful.load takes, or Word2Vec.load for vectors."""

    id: str
    source: str  # given, bundled, package, folder, run
    name: str
    path: Path
    vectors: bool = False
    run: str | None = None

    @property
    def needs_merge(self) -> bool:
        """Whether an adapter lies next to the weights; it is merged when loaded. (`load` itself merges one
        that names the model it stands on.)
        """
        return has_adapter(self.path) and adapter_base(self.path) is None


def entry_at(id: str, source: str, name: str, path: Path, run: str | None = None) -> Entry:
    """An entry for what lies at a path: a model, or a file of word vectors."""
    file = vectors_in(path)
    if file is not None:
        return Entry(id, source, str(file), file, True, run)
    return Entry(id, source, name, path, False, run)


def vectors_in(path: Path) -> Path | None:
    """The file of word vectors that a path names: itself, or the only one in a folder without a config."""
    if path.is_file():
        return path if path.name.endswith((*VECTORS, ".txt")) else None
    if not path.is_dir() or (path / "config.json").is_file() or has_adapter(path):
        return None
    files = [p for p in sorted(path.iterdir()) if p.name.endswith(VECTORS)]
    return files[0] if len(files) == 1 else None


def is_model(path: Path) -> bool:
    if path.suffix in (".gguf", ".vec", ".glove"):
        return path.is_file()
    made = (path / "config.json").is_file() or has_adapter(path) or vectors_in(path) is not None
    return path.is_dir() and made


@dataclass
class LoadedModel:
    """A loaded model, the thread that owns it, and what was worked out about it once."""

    entry: Entry
    model: Model | Word2Vec
    worker: Worker
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def sequence(self) -> Model:
        """The model, if it reads sequences."""
        if isinstance(self.model, Model):
            return self.model
        raise InputError(
            f"{self.id} is a table of word vectors and reads no sequence", hint="choose a model that does"
        )

    @property
    def vectors(self) -> Word2Vec:
        if isinstance(self.model, Word2Vec):
            return self.model
        raise InputError(f"{self.id} is not a table of word vectors", hint="choose one that is")

    def run(self, function: Callable[[], T], ticket: Ticket | None = None) -> T:
        """In the thread that owns the model."""
        return self.worker.run(function, ticket)

    def once(self, key: str, function: Callable[[], T]) -> T:
        """Work it out in the model's thread the first time; what is remembered waits for no thread."""

        def compute() -> None:
            if key not in self.memo:  # another request may have been before this one in the line
                self.memo[key] = function()

        if key not in self.memo:
            self.run(compute)
        value: T = self.memo[key]
        return value


class ModelRegistry:
    """The catalogue and what is loaded of it. Folders are looked at again each time: models appear and go."""

    def __init__(self, names: Sequence[str], models: Path, runs: Callable[[], dict[str, Path]]) -> None:
        self.given, self.models, self.runs = tuple(names), models, runs
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, LoadedModel] = OrderedDict()
        self._reader = Worker("reader")

    def entries(self) -> dict[str, Entry]:
        """Every model by its id; of equal names the first wins and the others get a number."""
        entries: dict[str, Entry] = {}
        for entry in self._all():
            id, number = entry.id, 2
            while id in entries and entries[id].path.resolve() != entry.path.resolve():
                id, number = f"{entry.id}-{number}", number + 1
            if id not in entries:
                entries[id] = replace(entry, id=id)
        return entries

    def _all(self) -> Iterator[Entry]:
        from heedful.weights.hub import bundled_models, installed_models, resolve

        for name in self.given:
            path = Path(name).expanduser()
            where = path if path.exists() else resolve(name)
            shown = path.absolute().name if path.exists() else name
            yield entry_at(shown.removesuffix(".gguf"), "given", name, where)
        for name, path in bundled_models().items():
            yield entry_at(name, "bundled", name, path)
        for name, path in installed_models().items():
            yield entry_at(name, "package", name, path)
        if self.models.is_dir():
            for path in sorted(self.models.iterdir()):
                if is_model(path):
                    yield entry_at(path.name.removesuffix(".gguf"), "folder", str(path), path)
        for run, folder in self.runs().items():
            for path in sorted((folder / "checkpoints").glob("step-*")):
                step = path.name.removeprefix("step-")
                if step.isdigit() and is_model(path):
                    yield entry_at(f"{run}@{int(step)}", "run", str(path), path, run)

    def entry(self, id: str) -> Entry:
        return find_named(self.entries(), id, f"no model {id[:80]!r} here", ModelNotFound)

    def get(self, id: str) -> LoadedModel:
        """A model, loaded if need be; a folder that has changed is loaded again."""
        entry = self.entry(id)
        with self._lock:
            loaded_model = self._loaded.get(id)
            if loaded_model is not None and loaded_model.entry.path == entry.path:
                self._loaded.move_to_end(id)
                return loaded_model
        return self._reader.run(lambda: self._load(entry))

    def _load(self, entry: Entry) -> LoadedModel:
        with self._lock:  # two pages may have asked for the same
            if entry.id in self._loaded and self._loaded[entry.id].entry.path == entry.path:
                return self._loaded[entry.id]
        from heedful.weights.loading import load

        try:
            model = Word2Vec.load(entry.path) if entry.vectors else load(entry.name)
            if isinstance(model, Model) and entry.needs_merge:
                merge(model)  # plain matrices, so that heads can be taken apart
        except HeedfulError:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{entry.id} cannot be read: {error}", hint="is the folder complete?") from None
        loaded_model = LoadedModel(entry, model, Worker(entry.id))
        with self._lock:
            self._loaded[entry.id] = loaded_model
            while len(self._loaded) > KEPT:
                self._loaded.popitem(last=False)  # its thread ends when nobody holds it any more
        return loaded_model

    @property
    def in_memory(self) -> dict[str, LoadedModel]:
        """The models in memory by their ids, those used last behind the others."""
        with self._lock:
            return dict(self._loaded)

    def close(self) -> None:
        for loaded_model in self._loaded.values():
            loaded_model.worker.close()
        self._reader.close()
