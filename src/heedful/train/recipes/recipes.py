"""Recipes for training runs. `heed recipes` lists them, `heed recipe cp` copies one.

The recipes are in recipes.yaml; the sizes of the papers are presets of the families (`heed ls`). A setting
has a path: train.lr, model.dim, data.length, tokenizer.vocab, device … The settings of every source map paths
to values. `resolve_settings` combines a recipe with a YAML file, the environment and flags, in this order. It
also keeps where each value came from.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from heedful.core.checks import Option, check_choice, check_integer, find_options
from heedful.core.errors import ConfigError, NotFound, nearest
from heedful.train.config import TrainConfig


@dataclass(frozen=True)
class TokenizerOptions:
    """How a run's tokenizer is trained or found."""

    kind: str = "bpe"  # bpe, wordpiece, unigram, word, char: learnt from the data; or a tokenizer's folder
    vocab: int = 8000  # the most tokens it may have
    special: tuple[str, ...] | None = None  # roles: bos, eos, pad, mask …; None: those usual for the kind
    sentinels: int = 0  # T5's <extra_id_0> …
    lower: bool = False


@dataclass(frozen=True)
class DataSettings:
    """The settings that all kinds of data share; each builder has further ones."""

    length: Annotated[int, Option("Put N tokens into a row.", variable="HEED_LENGTH")] = 256
    batch: Annotated[int, Option("Take N rows per step.", variable="HEED_BATCH")] = 32
    holdout: float = 0.1  # the part that is kept for validation

    def __post_init__(self) -> None:
        for name in ("length", "batch"):
            check_integer(f"data.{name}", getattr(self, name), error=ConfigError)
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"data.holdout={self.holdout} must be at least 0 and below 1")


@dataclass(frozen=True)
class Evaluation:
    """How often a run is evaluated and logged."""

    every: int = 250  # steps; an evaluation also ends the run
    batches: int | None = None  # of the validation data; None: all, of held out data as many as steps
    patience: int | None = None  # evaluations without a better one before the run stops; None: never
    log: int = 10  # steps between lines of metrics.jsonl
    sample: int = 64  # tokens written after each evaluation, of models that write; 0: no samples and no BLEU

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("batches", 1), ("patience", 1), ("log", 1), ("sample", 0)):
            if (value := getattr(self, name)) is not None:
                check_integer(f"evaluate.{name}", value, least, error=ConfigError)


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on except the files it reads."""

    family: str  # a family or a preset
    what: str  # what it is for, in one line
    objective: str = "next_token"
    tokenizer: TokenizerOptions = TokenizerOptions()
    model: Mapping[str, Any] = field(default_factory=dict)  # fields of the family's config
    data: Mapping[str, Any] = field(default_factory=dict)  # DataSettings, and options of the builder
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: Evaluation = Evaluation()
    start: str | None = None  # a trained model to begin with, instead of random weights
    teacher: str | None = None  # a trained model to distil
    device: Annotated[
        str, Option("Compute on this device: auto, cpu, cuda, cuda:1 …", variable="HEED_DEVICE")
    ] = "auto"
    parallel: str = "ddp"  # how several processes share the work: ddp, or fsdp (weights are shared out too)
    tensor: int = 1  # so many processes compute one copy of the model together, each with slices of matrices

    def __post_init__(self) -> None:
        shared = asdict(DataSettings())
        DataSettings(**{name: self.data.get(name, value) for name, value in shared.items()})  # checks them
        object.__setattr__(self, "data", shared | dict(self.data))
        check_choice("parallel", self.parallel, ("ddp", "fsdp"), ConfigError)
        check_integer("tensor", self.tensor, 1, error=ConfigError)


# The classes that check a setting, by the first part of its path: train.lr is TrainConfig.lr.
SECTIONS: dict[str, type] = {
    "tokenizer": TokenizerOptions, "data": DataSettings, "train": TrainConfig, "evaluate": Evaluation,
}  # fmt: skip
OPEN_SECTIONS = ("model", "data")  # their names are checked by the family and by the builder of the data
RUN_FIELDS = ("folder", "resume", "extended")  # of TrainConfig: which run this is, not what it does
PATH_SETTINGS = ("files", "valid", "start", "teacher", "tokenizer.kind")  # those that may name files
FILE_LINE = re.compile(r"\.ya?ml:\d+$")  # the origin of a value that a file set
# By objective, for a family that has no recipe of its own.
TOKENIZERS = {
    "masked": "wordpiece", "masked_and_next": "wordpiece", "replaced": "wordpiece", "spans": "unigram",
    "permuted": "unigram",
}  # fmt: skip
SPECIAL_TOKENS = {"translate": ("bos", "eos", "pad"), "denoise": ("cls", "pad", "sep", "mask")}
TYPE_NAMES = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", tuple: "a list",
    type(None): "null",
}  # fmt: skip


def setting_options() -> Iterator[tuple[str, str, Any, Option]]:
    """Yield the path, the name, the type and the option of every setting that has a flag."""
    for section, kind in {"": Recipe, **SECTIONS}.items():
        for name, hint, option in find_options(kind):
            yield f"{section}.{name}".lstrip("."), name, hint, option


@dataclass(frozen=True)
class Setting:
    """One value and where it came from: "--lr", "HEED_LR", "gpt.yaml:7"."""

    path: str
    value: Any
    origin: str


@dataclass(frozen=True)
class ResolvedSettings:
    """The settings of a run, from all sources."""

    name: str
    recipe: Recipe
    files: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


@cache
def load_recipes() -> Mapping[str, Recipe]:
    """Return the recipes of recipes.yaml by their names."""
    import yaml  # in functions only: `heed train --help` needs none

    text = Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8")
    recipes = yaml.safe_load(text)["recipes"]
    return {name: build_recipe(flatten(values)) for name, values in recipes.items()}


def resolve_settings(source: str, changes: Sequence[Setting] = ()) -> ResolvedSettings:
    """Return the settings of a recipe, YAML file, preset or family with `changes`; the last change wins."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        name, start, lines = read_settings_file(path)
    else:
        name, start, lines = source, load_recipes().get(source) or family_recipe(source), []
    default = recipe_values(Recipe(start.family, ""))
    settings = {
        path: Setting(path, value, "default" if default.get(path, ...) == value else f"recipe {name}")
        for path, value in recipe_values(start).items()
    }
    for one in (*lines, *changes):
        section, _, field_name = one.path.partition(".")
        if one.path not in setting_types() and not (section in OPEN_SECTIONS and field_name):
            sections = ", ".join(dict.fromkeys([*SECTIONS, *OPEN_SECTIONS]))
            hint = nearest(one.path, [*setting_types(), *settings]) or f"sections are {sections}"
            raise ConfigError(f"{one.origin}: unknown setting {one.path!r}", hint=hint)
        settings[one.path] = one
    fit_length(settings)
    origins = {path: one.origin for path, one in settings.items()}
    try:
        values = {path: one.value for path, one in settings.items()}
        files, valid = (convert_value(k, values.pop(k, ()), setting_types()[k]) for k in ("files", "valid"))
        return ResolvedSettings(name, build_recipe(values), files or (), valid or (), origins)
    except ConfigError as error:
        raise with_file_line(error, origins) from None


def fit_length(settings: dict[str, Setting]) -> None:
    """Let the later of `steps` and `minutes` count; shorten a warm-up or decay that steps set later cut off.

    Defaults come before recipes, files, the environment and flags. Setting both to a conflict is an error.
    """

    def rank(name: str) -> int:
        origin = settings[f"train.{name}"].origin
        return 0 if origin.startswith(("recipe", "default")) else 1 if FILE_LINE.search(origin) else 2

    minutes: Any = settings["train.minutes"].value
    if minutes is not None and rank("steps") >= rank("minutes"):
        if rank("steps") == rank("minutes") > 0:
            raise ConfigError("steps and minutes both say how long to train", hint="give one of them")
        settings["train.minutes"] = replace(settings["train.minutes"], value=None)
        minutes = None
    steps: Any = settings["train.steps"].value if minutes is None else None
    for name in ("warmup", "decay"):
        value = settings[f"train.{name}"].value
        fits = not (isinstance(steps, int) and isinstance(value, int) and value > steps > 0)
        if not fits and rank(name) < rank("steps"):
            path = f"train.{name}"
            settings[path] = Setting(path, max(1, steps // 10), "a tenth of train.steps")


def with_file_line(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """Return the error with the line of the YAML file that set the value it names, if one did."""
    matches: list[tuple[int, str]] = []
    for path, origin in origins.items():
        named = re.search(rf"\b{re.escape(path.rpartition('.')[2])}\b ?=|{re.escape(path)}", str(error))
        if named and FILE_LINE.search(origin):
            matches.append((named.start(), origin))
    if not matches:
        return error
    return type(error)(f"{min(matches)[1]}: {error.marked_message}", error.marked_hint)


def family_recipe(name: str) -> Recipe:
    """Return a recipe for a family in its smallest size, or for a preset in its published one.

    A name that is both (gpt3) means the family, because its published size fits no single machine.
    """
    from heedful.models import MEDIA_FAMILIES, all_families, find_config, presets

    sizes_of, families = presets(), all_families()
    if name in MEDIA_FAMILIES or (name in sizes_of and sizes_of[name][0].name in MEDIA_FAMILIES):
        raise NotFound(
            f"{name} belongs to the models of images or sound, and heed train reads text",
            hint="fine-tune a trained one: heed finetune MODEL DATA; a new one in Python: data.image_text",
        )
    if name in sizes_of and name not in families:
        family = sizes_of[name][0]
        return Recipe(name, f"{name} in its published size", family.objective)
    if name not in families:
        hint = nearest(name, [*load_recipes(), *sizes_of, *families]) or "list recipes with: heed recipes"
        raise NotFound(f"no recipe, preset or family is called {name!r}", hint=hint)
    family = families[name]
    tiny_fields: set[str] = family.tiny.__dict__["given"]
    sizes = sorted(
        (tiny_fields | find_config(name)[1].__dict__["given"]) - {"vocab", "source_vocab", "labels"}
    )
    model = {n: getattr(family.tiny, n) if n in tiny_fields else None for n in sizes}  # None: derived anew
    context = int(model.get("context") or 64)
    kind = TOKENIZERS.get(family.objective, "bpe")
    sentinels = 100 if family.objective == "spans" else 0
    vocabulary = TokenizerOptions(kind, 2000, SPECIAL_TOKENS.get(family.objective), sentinels)
    data, train = {"length": context, "batch": 32}, TrainConfig(lr=1e-3, warmup=50)
    title = f"{name} in its smallest size"
    return Recipe(name, title, family.objective, vocabulary, model, data, train)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe by their paths, with the values that YAML and JSON can hold."""
    values = flatten(asdict(recipe))
    hidden = [f"train.{name}" for name in RUN_FIELDS]
    return {path: to_yaml_value(value) for path, value in values.items() if path not in hidden}


def to_yaml_value(value: Any) -> Any:
    """Return a value with tuples as lists and paths as text, which YAML and JSON can hold."""
    if isinstance(value, list | tuple):
        return [to_yaml_value(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their paths, as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of paths as a mapping of sections."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.partition(".")
        if name:
            nested.setdefault(section, {})[name] = value
        else:
            nested[section] = value
    return nested


@cache
def setting_types() -> Mapping[str, Any]:
    """Map the path of every setting to its type; open sections have further ones, of any type."""
    sections = {*SECTIONS, *OPEN_SECTIONS}
    types = {name: hint for name, hint in get_type_hints(Recipe).items() if name not in sections}
    types |= dict.fromkeys(("files", "valid"), tuple | None)
    for section, kind in SECTIONS.items():
        hints = get_type_hints(kind).items()
        types |= {f"{section}.{name}": hint for name, hint in hints if name not in RUN_FIELDS}
    return types


def build_recipe(values: Mapping[str, Any]) -> Recipe:
    """Build the recipe that the values of paths describe, converting each to its type."""
    fields = nest(
        {path: convert_value(path, v, setting_types().get(path, Any)) for path, v in values.items()}
    )
    closed = {name: kind for name, kind in SECTIONS.items() if name not in OPEN_SECTIONS and name in fields}
    return Recipe(**fields | {name: kind(**fields[name]) for name, kind in closed.items()})


def convert_value(path: str, value: Any, hint: Any) -> Any:
    """Return a value in the type of its setting; raise ConfigError if it does not fit."""
    if hint is Any:
        return value
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    plain_options = [get_origin(option) or option for option in options]
    for option in plain_options:
        if option is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if (
            isinstance(option, type)
            and isinstance(value, option)
            and not (isinstance(value, bool) and option is int)
        ):
            return value
    wanted = " or ".join(dict.fromkeys(TYPE_NAMES.get(o, "text") for o in plain_options))
    raise ConfigError(f"{path} = {value!r} must be {wanted}")


def parse_value(text: str) -> Any:
    """Return the value of `--set path=TEXT`: a number, true, false, null, a list, or text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    import yaml  # in functions only: `heed train --help` needs none

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def parse_assignment(text: str) -> Setting:
    """Parse `a.b=c` as a setting."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text} is not path=value", hint="write --set train.lr=1e-3")
    return Setting(path.strip(), parse_value(value.strip()), "--set")


def read_settings_file(path: Path) -> tuple[str, Recipe, list[Setting]]:
    """Return a YAML file's name, the recipe it starts from, and its settings with their lines.

    `recipe: NAME` in the file starts from that recipe. A path that is not found from here is looked for next
    to the file.
    """
    import yaml

    if not path.is_file():
        raise NotFound(f"file not found: {path}", hint=f"heed recipe cp NAME {path} writes one")
    try:
        text = path.read_text(encoding="utf-8")
        loaded, tree = yaml.safe_load(text), yaml.compose(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds no settings", hint=f"heed recipe cp NAME {path} writes some")
    lines = {key: f"{path}:{line}" for key, line in line_numbers(tree)}
    start, recipes = loaded.pop("recipe", None), load_recipes()
    if start is not None and start not in recipes:
        raise NotFound(f"{lines['recipe']}: no recipe is called {start!r}", hint=nearest(str(start), recipes))
    if start is None and not isinstance(loaded.get("family"), str):
        raise ConfigError(f"{path} names neither a family nor a recipe", hint="write family: gpt2")

    def find_file(text: str) -> str:
        beside = path.parent / text
        return str(beside) if beside.exists() and not Path(text).exists() else text

    name = str(loaded.pop("name", start or path.stem))
    settings = [
        Setting(key, change_paths(key, value, find_file), lines.get(key, str(path)))
        for key, value in flatten(loaded).items()
    ]
    return name, recipes[start] if start is not None else Recipe(loaded["family"], ""), settings


def change_paths(path: str, value: Any, change: Callable[[str], str]) -> Any:
    """Return the value of a setting, changed if it may name a file or several."""
    if path not in PATH_SETTINGS or not value:
        return value
    return change(value) if isinstance(value, str) else [change(text) for text in value]


def line_numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path and the line number of every leaf of a YAML tree."""
    for key, value in node.value:
        if value.id == "mapping":
            yield from line_numbers(value, f"{prefix}{key.value}.")
        else:
            yield prefix + key.value, key.start_mark.line + 1


def settings_yaml(settings: ResolvedSettings) -> str:
    """Return the settings as YAML, which `heed train` reads back from any folder: paths are absolute."""
    import yaml

    values = {"name": settings.name} | recipe_values(settings.recipe)
    values |= {k: list(v) for k, v in (("files", settings.files), ("valid", settings.valid)) if v}
    nested = nest({path: change_paths(path, value, absolute_path) for path, value in values.items()})
    return yaml.safe_dump(nested, sort_keys=False, allow_unicode=True, width=110)


def absolute_path(text: str) -> str:
    """Return the absolute path of what exists; any other text as it is."""
    return str(Path(text).absolute()) if Path(text).exists() else text


def check_same_settings(folder: Path, old: Recipe, new: Recipe) -> None:
    """Raise ConfigError for the first setting of a run that resuming it would change; `fit` checks train.*"""
    free = ("name", "what", "device", "parallel", "tensor", "evaluate.", "train.")
    before, after = recipe_values(old), recipe_values(new)
    place = lambda value: absolute_path(value) if isinstance(value, str) else value
    for path in sorted(set(before) | set(after)):
        if not path.startswith(free) and place(before.get(path)) != place(after.get(path)):
            raise ConfigError(
                f"{folder} was trained with {path} = {before.get(path)!r} and would be resumed with "
                f"{after.get(path)!r}",
                hint="set it back, or use a new --folder",
            )
