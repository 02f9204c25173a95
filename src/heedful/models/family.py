"""What every system is: a frozen Config, and a Family that says how it is built and named."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, dataclass_transform

from heedful.core.errors import ConfigError, nearest
from heedful.nn.attention.multi_head import head_size
from heedful.weights.names import OWN_NAMES, Row

if TYPE_CHECKING:
    from heedful.models.base import Model
    from heedful.weights.formats.gguf import GGUFFile


class Tokenizer(Protocol):
    """What a model needs of a tokenizer: text to ids and back. `heedful.text` has the real one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def derived(rule: Callable[[Any], Any], minimum: int = 1) -> Any:
    """A config field that, left None, follows from the others; a whole number is at least `minimum`."""
    return field(default=None, metadata={"derive": rule, "least": minimum})


def from_zero(default: int) -> Any:
    """A whole number that may be 0, where 0 stands for "none"; others count something and begin at 1."""
    return field(default=default, metadata={"least": 0})


MAX_WHOLE, MAX_NUMBER, MAX_LAYERS = 2**28, 1e18, 10_000  # no model has a size, a number or a depth over these


def is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value is what an annotation says. A whole number may stand for a fraction, True for none.

    Annotations are read as they are written: to evaluate those of all configs would double the import.
    """
    if " | " in kind:
        return any(is_of_kind(value, one) for one in kind.split(" | "))
    if kind == "None":
        return value is None
    if kind.startswith("tuple["):
        inner = kind.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, tuple | list) and all(is_of_kind(one, inner) for one in value)
    if kind == "float":
        return is_of_kind(value, "int") or (isinstance(value, float) and math.isfinite(value))
    names = [c.__name__ for c in type(value).__mro__]
    return kind in names and (kind == "bool" or not isinstance(value, bool))


KIND_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "True or False", "str": "a name in quotes",
    "tuple[int, ...]": "a list of whole numbers", "tuple[str, ...]": "a list of names", "dict": "a table",
}  # fmt: skip


def check_value(name: str, value: Any, kind: str, minimum: int = 1, maximum: int = MAX_WHOLE) -> None:
    """Raise ConfigError for a value that is not of the kind an annotation says, or out of bounds.

    A whole number lies between `minimum` and `maximum`, any other number between 0 and MAX_NUMBER.
    """
    if not is_of_kind(value, kind):
        expected = " or ".join(KIND_WORDS.get(one, one) for one in kind.split(" | "))
        raise ConfigError(f"must be {expected}", argument=name, value=value)
    for number in value if isinstance(value, tuple | list) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if "float" in kind:
            if number < 0:
                raise ConfigError(f"`{name}={number}` must not be below 0")
            if number > MAX_NUMBER:
                raise ConfigError(f"`{name}={number!s:.40}` must be at most {MAX_NUMBER:g}")
        elif number > maximum:
            raise ConfigError(f"`{name}={number!s:.40}` must be at most {maximum:,}")
        elif number < minimum and number is value:
            raise ConfigError(f"`{name}={number!s:.40}` must be at least {minimum}")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(derived, from_zero))
class Fields:
    """Makes a frozen dataclass, whose fields have names, of every class derived from it."""

    def __init_subclass__(cls, **defaults: Any) -> None:
        """Take the keywords of a class as new defaults of fields that it inherits.

        class GPT3Config(GPT2Config, dim=12288, layers=96, heads=96, context=2048):
            window: int = 256  # of every other layer
        """
        super().__init_subclass__()
        inherited: dict[str, Any] = {f.name: f.type for f in fields(cls)} if is_dataclass(cls) else {}
        if unknown := defaults.keys() - inherited.keys():
            raise TypeError(f"{cls.__name__} inherits no field {min(unknown)!r}")
        cls.__annotations__ = {name: inherited[name] for name in defaults} | inspect.get_annotations(cls)
        for name, default in defaults.items():
            setattr(cls, name, default)
        dataclass(frozen=True, kw_only=True)(cls)
        # Whoever writes @dataclass in front of such a class may: all that it looks at is as it was.
        for name in ("__setattr__", "__delattr__"):
            delattr(cls, name)
        for f in fields(cls):  # type: ignore[arg-type]
            if f.metadata and f.name in cls.__annotations__:
                setattr(cls, f.name, f)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")


class Config(Fields):
    """The fields that families share. One left None is derived; heads divide dim without head_dim."""

    vocab: int
    dim: int
    layers: int
    head: str = "lm"
    labels: int = 2  # of a classifying head
    classifier_pooling: str = ""  # of its sentence vector: mean, first, last, max; "": the family's head
    maker: ClassVar[str] = ""  # the family whose row made this class of `sizes`

    def __post_init__(self) -> None:
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        object.__setattr__(self, "given", given)
        for f in fields(self):
            if f.name in given or "derive" not in f.metadata:
                self.check_field(f.name, getattr(self, f.name))
        for f in fields(self):
            if "derive" in f.metadata and f.name not in given:
                object.__setattr__(self, f.name, f.metadata["derive"](self))
        for name in ("heads", "decoder_heads", "window_heads"):
            if name in self.field_names() and "head_dim" not in self.field_names():
                head_size(self.dim, getattr(self, name))
        self.check()

    @classmethod
    def check_field(cls, name: str, value: Any, label: str | None = None) -> None:
        """Raise ConfigError for a value that the field `name` cannot have; errors call it `label`."""
        kind, least = next((str(f.type), f.metadata.get("least", 1)) for f in fields(cls) if f.name == name)
        most = MAX_LAYERS if name.endswith("layers") else MAX_WHOLE
        check_value(label or name, value, kind, least, most)
        if name == "dropout" and value >= 1:
            raise ConfigError(
                f"`{label or name}={value}` would set everything to 0", hint="it is a share: below 1"
            )

    def check(self) -> None:
        """Raise ConfigError for values that do not go together."""

    @classmethod
    def field_names(cls) -> list[str]:
        """The names of all fields."""
        return [f.name for f in fields(cls)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a config whose class stands in no module by the family that made the class."""
        maker = vars(type(self)).get("maker")
        return (restore_config, (maker, vars(self))) if maker else super().__reduce_ex__(protocol)

    @classmethod
    def strict(cls, **values: Any) -> Config:
        """A config from keywords; an unknown one is an error that names the nearest."""
        field_names = cls.field_names()
        for name in values:
            if name not in field_names:
                instead = nearest(name, field_names) or "it has " + ", ".join(field_names)
                raise ConfigError(f"{cls.__name__} has no field {name!r}", hint=instead)
        return cls(**values)

    def change(self, **values: Any) -> Config:
        """This config with other values; what was derived is derived again."""
        given: set[str] = self.__dict__["given"]
        names = [f.name for f in fields(self) if f.name in given or "derive" not in f.metadata]
        return self.strict(**{name: getattr(self, name) for name in names} | values)


def restore_config(family: str, values: dict[str, Any]) -> Config:
    """A config of a registered family from its fields, those that were derived included."""
    from heedful.models import all_families

    config = object.__new__(all_families()[family].config)
    config.__dict__.update(values)
    return config


class PlainConfig(Config, vocab=50257, dim=768, layers=12):
    """The fields of a stack of attention and feed-forward parts, with the values of GPT-2."""

    heads: int = 12
    hidden: int = derived(lambda c: 4 * c.dim)
    act: str = "gelu"
    norm_eps: float = 1e-5
    dropout: float = 0.1
    tied: bool = True


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
    objective: str = "next_token"
    heads: Mapping[str, str] = field(default_factory=dict)  # kind of head → published class
    prefix: str = ""  # what published checkpoints with a head put before the names of the backbone
    model_types: Sequence[str] = ()  # published `model_type`s; empty: heedful-<name>
    # Published key → the values that we can build.
    require: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Published key → what a file without it means, where our field begins with another value.
    absent: Mapping[str, Any] = field(default_factory=dict)
    usual: Callable[[Any], dict[str, Any]] | None = None  # published keys of a model that came with none
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # further fields from a published config
    reads: Mapping[str, str] = field(default_factory=dict)  # keys that `read` needs → their kinds
    write: Callable[[Any], dict[str, Any]] | None = None  # and back
    merges: Sequence[str] = ()  # tables within a published config: what `write` does not say of them stays
    infer: Callable[[set[str], Any], dict[str, Any]] | None = None  # further fields from names in the file
    copies: Mapping[str, str] = field(default_factory=dict)  # published tensors that only repeat another
    drop: Sequence[str] | Callable[[Any], Sequence[str]] = ()  # patterns of buffers that were never needed
    gguf: str = ""  # the architecture's name in GGUF files; the first family of that name reads them
    gguf_when: str = ""  # a number that files of this family state, and others of its architecture do not
    gguf_names: Sequence[Row] | Callable[[Any], Sequence[Row]] = ()  # as `names`
    gguf_head: str = "lm"  # of the model that such a file holds; none: the encoder alone
    gguf_write: Callable[[Any], dict[str, Any]] | None = None  # metadata next to those of `gguf_keys`
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    # Field → the name of a tensor, the field's value in a file with that tensor, and in one without.
    gguf_tensors: Mapping[str, tuple[str, Any, Any]] = field(default_factory=dict)
    gguf_read: Callable[[GGUFFile], dict[str, Any]] | None = None  # further fields from such a file
    paper: str = ""

    def rows(self, config: Config) -> Sequence[Row]:
        """The table of names for a model of this config."""
        rows = self.names(config) if callable(self.names) else self.names
        return [*rows, HEAD_NAMES]

    def gguf_rows(self, config: Config) -> Sequence[Row]:
        """The table of names in GGUF files."""
        return self.gguf_names(config) if callable(self.gguf_names) else self.gguf_names

    def __reduce__(self) -> Any:
        """Pickle a registered family by its name, so that the functions in its row need none."""
        from heedful import models

        if models.find_family(self.name) is self:
            return models.find_family, (self.name,)
        return Family, tuple(getattr(self, f.name) for f in fields(self))


def published_heads(stem: str, *without: str, words: str = "lm") -> dict[str, str]:
    """The published classes of a family whose names begin with `stem`; an encoder's words are "mlm"."""
    ends = {
        words: {"lm": "ForCausalLM", "mlm": "ForMaskedLM"}[words], "classify": "ForSequenceClassification",
        "tag": "ForTokenClassification", "span": "ForQuestionAnswering", "none": "Model",
    }  # fmt: skip
    return {kind: stem + end for kind, end in ends.items() if kind not in without}


COMMON_KEYS = {
    "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
    "num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim",
    "intermediate_size": "hidden", "max_position_embeddings": "context", "type_vocab_size": "types",
    "rms_norm_eps": "norm_eps", "attention_dropout": "dropout", "tie_word_embeddings": "tied",
    "hidden_act": "act", "attention_bias": "bias", "mlp_bias": "ffn_bias", "sliding_window": "window",
}  # fmt: skip
GGUF_KEYS = {
    "embedding_length": "dim", "block_count": "layers", "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads", "feed_forward_length": "hidden", "context_length": "context",
    "rope.dimension_count": "rope_dim", "rope.freq_base": "rope_base",
    "attention.layer_norm_epsilon": "norm_eps", "attention.layer_norm_rms_epsilon": "norm_eps",
    "use_parallel_residual": "parallel", "vocab_size": "vocab", "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "window", "attention.clamp_kqv": "clip", "attn_logit_softcapping": "softcap",
    "final_logit_softcapping": "logit_softcap", "rope.freq_base_swa": "local_rope_base",
    "expert_count": "experts", "expert_used_count": "active", "expert_feed_forward_length": "expert_hidden",
    "expert_shared_feed_forward_length": "shared_hidden", "embedding_scale": "embed_scale",
    "attention.scale": "score_scale", "residual_scale": "residual_scale", "logit_scale": "logit_scale",
}  # fmt: skip


def published_keys(config: type[Config], *without: str, **own: str) -> dict[str, str]:
    """The published keys of a config's fields: a family's own, else the words that most families use.

    Fields in `without` have none: `read` makes them of other keys, or no published config states them.
    """
    fields = {*config.field_names()} - {*without, *own.values()}
    return {theirs: ours for theirs, ours in COMMON_KEYS.items() if ours in fields} | own


def gguf_keys(architecture: str, config: type[Config], *without: str) -> dict[str, str]:
    """The numbers that a GGUF file states, by the fields of `config` that they are, but for some fields."""
    fields = set(config.field_names()) - set(without)
    return {f"{architecture}.{theirs}": ours for theirs, ours in GGUF_KEYS.items() if ours in fields}


def check_layers(c: Any, *lists: str) -> None:
    """Raise ConfigError for a field that lists a layer which the model does not have."""
    for name in lists:
        wrong = [i for i in getattr(c, name) if not 0 <= i < c.layers]
        if wrong:
            raise ConfigError(f"{name} has {wrong[0]}", hint=f"layers are 0 … {c.layers - 1}")


class TinyConfig(Config):
    """The sizes that most families are tried out in."""

    heads: int
    context: int


TINY = TinyConfig(vocab=128, dim=32, layers=2, heads=4, context=64)
ROOT = Family("", TinyConfig, lambda c: c, [], COMMON_KEYS, {}, TINY)  # the parent of families without one


def declare(
    name: str, config: type[Config], build: Callable[[Any], Model], *,
    names: Sequence[Row] | Callable[[Any], Sequence[Row]] | None = None, **more: Any,
) -> Family:  # fmt: skip
    """A family without a parent; `more` are keywords of `descend` and fields of `Family`.

    One without `names` was never published elsewhere: its weights and fields keep the names they have here.
    """
    if names is None:
        more = {"keys": same_keys(config), "model_types": ()} | more
    return descend(ROOT, name, config, build=build, names=OWN_NAMES if names is None else names, **more)


def same_names(*names: str) -> list[tuple[str, str]]:
    """Rows for tensors whose published names are ours."""
    return [(name, name) for name in names]


def same_keys(config: type[Config]) -> dict[str, str]:
    """The keys of a config.json that no other program writes: the names of the fields."""
    return {name: name for name in config.field_names() if name not in Config.field_names()[3:]}


HEAD_NAMES: Row = ("head.{linear,label,tag,span}",) * 2  # of a head that no published class has


def inherit_names(
    parent: Family, own_names: Sequence[Row] | Callable[[Any], Sequence[Row]], prefix: str, config: Config
) -> list[Row]:
    """Rows of a family's own, then those of its parent, in which `prefix` stands for the parent's."""
    own = own_names(config) if callable(own_names) else own_names
    inherited = parent.names(config) if callable(parent.names) else parent.names
    renamed = lambda theirs: re.sub(rf"^{parent.prefix}\.", f"{prefix}.", theirs)
    return [*own, *((renamed(theirs), *rest) for theirs, *rest in inherited)]


def descend(
    parent: Family, name: str, config: type[Config] | None = None, *,
    presets: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, Any] | None = None,
    tiny: Mapping[str, Any] | None = None, keys: Mapping[str, str] | None = None,
    without: Iterable[str] = (), heads: Mapping[str, str] | Iterable[str] | None = None, gguf: str = "",
    own_names: Sequence[Row] | Callable[[Any], Sequence[Row]] = (), **changes: Any,
) -> Family:  # fmt: skip
    """A family that differs from its parent by what is given here.

    Without `config` it has the parent's; `sizes` are other defaults of its fields. `presets` and `tiny` are
    values of them; the other values of `tiny` are the parent's. `keys` are published keys with another
    meaning than in the parent, and fields in `without` have none. Fields that the parent's config lacks have
    the usual keys. `own_names` stand before the parent's rows of names, which the family has under its own
    `prefix`. `heads` without published classes may be a list of their
    kinds. `absent` and the fields of GGUF are never the parent's, but for the names in its files if it has a
    `gguf`: they depend on the published class and on what llama.cpp knows under that name.
    """
    config = config or parent.config
    if sizes is not None:
        title = "".join(word.capitalize() for word in name.split("-"))
        about = {"maker": name, "__module__": config.__module__}
        config = cast(type[Config], type(f"{title}Config", (config,), about, **sizes))
    field_names, own, small = config.field_names(), keys or {}, parent.tiny
    without = {*without, *own.values()}
    inherited = {k: v for k, v in parent.keys.items() if v in field_names and v not in without}
    chosen = {f.name: vars(small)[f.name] for f in fields(small) if f.name in vars(small)["given"]}
    own_sizes = {f.name: chosen[f.name] for f in fields(small) if chosen.get(f.name, f.default) != f.default}
    made: dict[str, Any] = {
        "name": name, "config": config, "model_types": (name.replace("-", "_"),), "gguf": gguf,
        "presets": {preset: config(**values) for preset, values in presets.items()},
        "tiny": config(**{n: v for n, v in own_sizes.items() if n in field_names} | dict(tiny or {})),
        "keys": {**inherited, **published_keys(config, *parent.config.field_names(), *without), **own},
        "gguf_keys": gguf_keys(gguf, config) if gguf else {}, "gguf_tensors": {}, "gguf_when": "",
        "gguf_write": None, "gguf_read": None, "absent": {},
    }  # fmt: skip
    prefix = changes.get("prefix", parent.prefix)
    if "names" not in changes and (own_names or prefix != parent.prefix):
        made["names"] = partial(inherit_names, parent, own_names, prefix)
    if not gguf:
        made |= {"gguf_names": (), "gguf_head": "lm"}
    if heads is not None:
        named = isinstance(heads, Mapping)
        made["heads"] = heads if named else {kind: f"heedful-{name}-{kind}" for kind in heads}
    return replace(parent, **made | changes)


def no_token_ids(c: Config) -> dict[str, Any]:
    """Ids that a published class would otherwise set to those of its vocabulary."""
    return dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
