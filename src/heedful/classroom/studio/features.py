"""The features of a sparse dictionary on the page of figures, and the texts in which they are looked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heedful.classroom.arithmetic.explain import sentences
from heedful.classroom.studio import snippets
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.core.errors import InputError
from heedful.core.files import missing_file
from heedful.decode.request import context_length
from heedful.interp.activations import Activations
from heedful.interp.learn.dictionary import Dictionary, dictionary_activations, load_dictionary

LONGEST = 128  # tokens of each text that are read
MAX_VALUES = 2**26  # features of tokens that are kept, four bytes each


@dataclass(frozen=True)
class FeatureSource:
    """A dictionary by its path, and a file with one text per line; without one, the example sentences."""

    path: Path
    texts: Path | None = None

    @cached_property
    def dictionary(self) -> Dictionary:
        return load_dictionary(self.path)

    @cached_property
    def lines(self) -> list[str]:
        """The texts that features are looked for in."""
        if self.texts is None:
            return [row["text"] for row in sentences().values()]
        if not self.texts.is_file():
            raise missing_file(self.texts)
        lines = self.texts.read_text(encoding="utf-8", errors="replace").splitlines()
        if not any(map(str.strip, lines)):
            raise InputError(f"{self.texts} has no text", hint="write one text per line")
        return [line for line in lines if line.strip()]

    def fits(self, loaded_model: LoadedModel) -> bool:
        """Return whether a model has the values that the dictionary reads, in their width."""
        if loaded_model.entry.vectors or loaded_model.sequence.tokenizer is None:
            return False
        names = loaded_model.once("names", loaded_model.sequence.names)
        config = self.dictionary.config
        if not all(source in names for source in config.sources):
            return False
        # A value of heads has one vector per token: those of all heads, joined.
        widths = [math.prod(n for n in names[source] if isinstance(n, int)) for source in config.sources]
        return sum(widths) == config.inputs

    def limits(self, loaded_model: LoadedModel) -> tuple[int, int]:
        """Return how many texts are read, and how many tokens of each."""
        length = min(LONGEST, context_length(loaded_model.sequence, source=True) or LONGEST)
        return max(1, MAX_VALUES // (self.dictionary.config.width * length)), length

    def activations(self, loaded_model: LoadedModel) -> Activations:
        """Return the features of every token of the texts, computed once."""

        def compute() -> Activations:
            model, (count, length) = loaded_model.sequence, self.limits(loaded_model)
            texts = [model.tokenizer.encode(line)[:length] for line in self.lines[:count]]
            return dictionary_activations(model, self.dictionary, texts)

        return loaded_model.once("features", compute)

    def script(self, loaded_model: LoadedModel, lines: str) -> str:
        """Return lines behind those that load the model as `model`, its `dictionary` and the `texts`."""
        count, length = self.limits(loaded_model)
        imports = "from pathlib import Path\n" + snippets.import_lines(load_dictionary)
        source = f"Path({str(self.texts)!r}).read_text(encoding='utf-8').splitlines()"
        if self.texts is None:
            imports = snippets.import_lines(load_dictionary, sentences)
            source = "[sentence['text'] for sentence in sentences().values()]"
        read = f"lines = [line for line in {source} if line.strip()][:{count}]\n"
        read += f"texts = [model.tokenizer.encode(line)[:{length}] for line in lines]\n"
        read += f"dictionary = load_dictionary({str(self.path)!r})\n"
        return snippets.script(loaded_model.entry, read + lines, imports)
