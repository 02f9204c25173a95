"""Settings of a run: defaults < recipe < YAML file < environment < flags, and where each value came from.

A setting has a path: train.lr, model.dim, data.length, tokenizer.vocab, evaluate.every, device …
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from heedful.core.errors import ConfigError, NotFound, nearest
from heedful.train.config import TrainConfig
from heedful.train.recipes.recipes import RECIPES, SECTIONS, Recipe, TokenizerOptions

OPEN_SECTIONS = ("model", "data")  # their names are checked by the family and by the builder of the data
FILE_LINE = re.compile(r"\.ya?ml:\d+$")  # the origin of a value that a file set
# By objective, for a family that has no recipe of its own.
TOKENIZERS = {
    "masked": "wordpiece", "masked_and_next": "wordpiece", "replaced": "wordpiece", "spans": "unigram",
}  # fmt: skip
SPECIAL_TOKENS = {"translate": ("bos", "eos", "pad"), "denoise": ("cls", "pad", "sep", "mask")}
RUN_FIELDS = ("folder", "resume")  # of TrainConfig: which run this is, not what it does


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


def resolve_settings(source: str, changes: Sequence[Setting] = ()) -> ResolvedSettings:
    """Return the settings of a recipe, YAML file, preset or family with `changes`; the last change wins."""
    path = Path(source)
    origins: dict[str, str] = {}
    if source in RECIPES:
        name, values = source, recipe_values(RECIPES[source])
    elif path.suffix in (".yaml", ".yml"):
        name, values, origins = read_settings_file(path)
    else:
        name, values = source, recipe_values(family_recipe(source))
    base = flatten(recipe_values(Recipe(values["family"], "")))
    for key, value in flatten(values).items():
        origins.setdefault(key, f"recipe {name}" if base.get(key, ...) != value else "default")
    for one in changes:
        set_value(values, one)
        origins[one.path] = one.origin
    fit_warmup(values, origins)
    try:
        files, valid = (tuple(values.get(k) or ()) for k in ("files", "valid"))
        return ResolvedSettings(name, build_recipe(values), files, valid, origins)
    except ConfigError as error:
        raise with_file_line(error, origins) from None


def fit_warmup(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Shorten a warm-up or decay that is longer than the run, if the number of steps was set later.

    Defaults come before recipes, files, the environment and flags. Setting both to a conflict is an error.
    """

    def rank(name: str) -> int:
        origin = origins.get(f"train.{name}", "default")
        return 0 if origin.startswith(("recipe", "default")) else 1 if FILE_LINE.search(origin) else 2

    train = values["train"]
    steps = train.get("steps")
    for name in ("warmup", "decay"):
        value = train.get(name)
        fits = not (isinstance(steps, int) and isinstance(value, int) and value > steps > 0)
        if not fits and rank(name) < rank("steps"):
            train[name], origins[f"train.{name}"] = max(1, steps // 10), "a tenth of train.steps"


def with_file_line(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """Return the error with the line of the YAML file that set the value it names, if one did."""
    found: list[tuple[int, str]] = []
    for path, origin in origins.items():
        named = re.search(rf"\b{re.escape(path.rpartition('.')[2])}\b ?=|{re.escape(path)}", str(error))
        if named and FILE_LINE.search(origin):
            found.append((named.start(), origin))
    if not found:
        return error
    return type(error)(f"{min(found)[1]}: {error.message}", error.hint, shell=error.shell)


def family_recipe(name: str) -> Recipe:
    """Return a recipe for a family in its smallest size, or for a preset in its published one.

    A name that is both (gpt3) means the family, because its published size fits no single machine.
    """
    from heedful.models import FAMILIES, IMAGE_FAMILIES, find_config, presets

    known = presets()
    if name in IMAGE_FAMILIES or (name in known and known[name][0].name in IMAGE_FAMILIES):
        raise NotFound(
            f"{name} reads images, and training from scratch here reads text",
            hint="teach a trained one: heed finetune digits TABLE; from nothing, in Python: data.image_text",
        )
    if name in known and name not in FAMILIES:
        family = known[name][0]
        return Recipe(name, f"{name} in its published size", family.objective)
    if name not in FAMILIES:
        hint = nearest(name, [*RECIPES, *known, *FAMILIES]) or "list recipes with: heed recipes"
        raise NotFound(f"no recipe, preset or family is called {name!r}", hint=hint)
    family = FAMILIES[name]
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
    """Return a recipe as nested values for YAML."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(recipe):
        value = getattr(recipe, f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {n: v for n, v in dataclasses.asdict(value).items() if n not in RUN_FIELDS}
        values[f.name] = value
    plain: dict[str, Any] = to_yaml_values(values)
    return plain


def to_yaml_values(value: Any) -> Any:
    """Return a value with tuples as lists and paths as text, which YAML and JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): to_yaml_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_yaml_values(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their paths, as train.lr."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def set_value(values: dict[str, Any], one: Setting) -> None:
    """Set one value by its path; raise ConfigError for an unknown path."""
    section, _, name = one.path.partition(".")
    top = [f.name for f in dataclasses.fields(Recipe) if f.name not in (*SECTIONS, *OPEN_SECTIONS)]
    known = [*top, "files", "valid"]
    for prefix, kind in SECTIONS.items():
        known += [f"{prefix}.{f.name}" for f in dataclasses.fields(kind) if f.name not in RUN_FIELDS]
    if one.path not in known and not (section in OPEN_SECTIONS and name):
        sections = ", ".join(dict.fromkeys([*SECTIONS, *OPEN_SECTIONS]))
        hint = nearest(one.path, [*known, *flatten(values)]) or f"sections are {sections}"
        raise ConfigError(f"{one.origin}: there is no setting {one.path!r}", hint=hint)
    if name:
        values[section][name] = one.value
    else:
        values[section] = one.value


def build_recipe(values: Mapping[str, Any]) -> Recipe:
    """Build the recipe that nested values describe, converting each to its type."""
    given: dict[str, Any] = {}
    for name, hint in get_type_hints(Recipe).items():
        value = values.get(name)
        if name in (*SECTIONS, *OPEN_SECTIONS):
            kind = SECTIONS.get(name)
            hints = get_type_hints(kind) if kind is not None else {}
            fields = {n: convert_value(f"{name}.{n}", v, hints.get(n, Any)) for n, v in (value or {}).items()}
            if kind is not None:
                made = kind(**{n: v for n, v in fields.items() if n in hints})
            given[name] = fields if name in OPEN_SECTIONS else made
        else:
            given[name] = convert_value(name, value, hint)
    return Recipe(**given)


TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
    type(None): "null",
}


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
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def parse_assignment(text: str) -> Setting:
    """Parse `a.b=c` as a setting."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text} is no path=value", hint="write --set train.lr=1e-3")
    return Setting(path.strip(), parse_value(value.strip()), "--set")


def read_settings_file(path: Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return a YAML file's name, values and their lines; `recipe: NAME` in it starts from that recipe."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint=f"heed recipe cp NAME {path} writes one")
    try:
        text = path.read_text(encoding="utf-8")
        loaded, tree = yaml.safe_load(text), yaml.compose(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: no YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds no settings", hint=f"heed recipe cp NAME {path} writes some")
    lines = {key: f"{path}:{line}" for key, line in line_numbers(tree)}
    start = loaded.pop("recipe", None)
    if start is not None and start not in RECIPES:
        raise NotFound(f"{lines['recipe']}: no recipe is called {start!r}", hint=nearest(str(start), RECIPES))
    if start is None and not isinstance(loaded.get("family"), str):
        raise ConfigError(f"{path} names neither a family nor a recipe", hint="write family: gpt2")
    values = recipe_values(RECIPES[start] if start is not None else Recipe(loaded["family"], ""))
    for key, value in flatten(loaded).items():
        if key != "name":
            set_value(values, Setting(key, value, lines.get(key, str(path))))
    return str(loaded.get("name", start or path.stem)), values, lines


def line_numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path and the line number of every leaf of a YAML tree."""
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode):
            yield from line_numbers(value, f"{prefix}{key.value}.")
        else:
            yield prefix + key.value, key.start_mark.line + 1


def settings_yaml(settings: ResolvedSettings) -> str:
    """Return the settings as YAML, which `heed train` reads back."""
    values = {"name": settings.name} | recipe_values(settings.recipe)
    files = {k: list(v) for k, v in (("files", settings.files), ("valid", settings.valid)) if v}
    return yaml.safe_dump(values | files, sort_keys=False, allow_unicode=True, width=110)


def check_same_settings(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first setting of a run that resuming it would change; `fit` checks train.*"""
    free = ("name", "what", "device", "parallel", "evaluate.", "train.", "files", "valid")
    before, after = flatten(old), flatten(new)
    for path in sorted(set(before) | set(after)):
        if not path.startswith(free) and before.get(path) != after.get(path):
            raise ConfigError(
                f"{folder} was trained with {path} = {before.get(path)!r} and would be resumed with "
                f"{after.get(path)!r}",
                hint="set it back, or use a new --folder",
            )
