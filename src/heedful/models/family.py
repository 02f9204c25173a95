"""What every system is: a frozen Config, and a Family that says how it is built and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from heedful.errors import ConfigError, nearest
from heedful.weights.names import Row

if TYPE_CHECKING:
    from heedful.models.base import Model


class Tokenizer(Protocol):
    """What a model needs of a tokenizer: text to ids and back. `heedful.text` has the real one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def derived(rule: Callable[[Any], Any]) -> Any:
    """A config field that, left None, follows from the others."""
    return field(default=None, metadata={"derive": rule})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields every family shares. A field left None is derived."""

    vocab: int
    dim: int
    layers: int
    head: str = "lm"
    labels: int = 2  # of a classifying head

    def __post_init__(self) -> None:
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        object.__setattr__(self, "given", given)
        for f in fields(self):
            if "derive" in f.metadata and f.name not in given:
                object.__setattr__(self, f.name, f.metadata["derive"](self))
        for name in ("vocab", "dim", "layers", "labels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        self.check()

    def check(self) -> None:
        """Raise ConfigError for values that do not go together."""

    @classmethod
    def known(cls) -> list[str]:
        """The names of all fields."""
        return [f.name for f in fields(cls)]

    @classmethod
    def strict(cls, **values: Any) -> Config:
        """A config from keywords; an unknown one is an error that names the nearest."""
        known = cls.known()
        for name in values:
            if name not in known:
                instead = nearest(name, known) or "it has " + ", ".join(known)
                raise ConfigError(f"{cls.__name__} has no field {name!r}; {instead}")
        return cls(**values)

    def change(self, **values: Any) -> Config:
        """This config with other values; what was derived is derived again."""
        given: set[str] = self.__dict__["given"]
        return self.strict(**{name: getattr(self, name) for name in given} | values)


@dataclass(frozen=True)
class Family:
    """One system: how it is configured, built, named in published checkpoints, and which sizes are known."""

    name: str
    config: type[Config]
    build: Callable[[Any], Model]
    names: Sequence[Row] | Callable[[Any], Sequence[Row]]  # a function where the table depends on the config
    keys: Mapping[str, str]  # published config key → our field
    presets: Mapping[str, Config]
    tiny: Config  # the smallest sensible one, for tests and demonstrations
    objective: str
    heads: Mapping[str, str] = field(default_factory=dict)  # kind of head → published class
    prefix: str = ""  # what published checkpoints with a head put before the names of the backbone
    model_types: Sequence[str] = ()  # published `model_type`s; empty: heedful-<name>
    require: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # published key → values we can build
    fixed: Mapping[str, Any] = field(default_factory=dict)  # published keys that are always written so
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # further fields from a published config
    write: Callable[[Any], dict[str, Any]] | None = None  # and back
    infer: Callable[[set[str], Any], dict[str, Any]] | None = (
        None  # further fields from the names in the file
    )
    copies: Mapping[str, str] = field(default_factory=dict)  # published tensors that only repeat another
    drop: (
        Sequence[str] | Callable[[Any], Sequence[str]]
    ) = ()  # published buffers that were never needed, as patterns
    gguf: str = ""  # the architecture's name in GGUF files
    gguf_names: Callable[[Any], Sequence[Row]] | None = None
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    paper: str = ""

    def rows(self, config: Config) -> Sequence[Row]:
        """The table of names for a model of this config."""
        return self.names(config) if callable(self.names) else self.names

    def dropped(self, config: Config) -> Sequence[str]:
        """Patterns of published tensors that a model of this config leaves out."""
        return self.drop(config) if callable(self.drop) else self.drop
