"""Recipes for training runs. `heed recipes` lists them, `heed recipe cp` copies one.

A recipe is small enough for one machine; the sizes of the papers are presets of the families (`heed ls`).
`resolve_settings` combines a recipe with a YAML file, the environment and flags, in this order, and remembers
where each value came from. A setting has a path: train.lr, model.dim, data.length, tokenizer.vocab, device …
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
        object.__setattr__(self, "data", asdict(DataSettings()) | dict(self.data))
        check_choice("parallel", self.parallel, ("ddp", "fsdp"), ConfigError)
        check_integer("tensor", self.tensor, 1, error=ConfigError)


# The classes that check a setting, by the first part of its path: train.lr is TrainConfig.lr.
SECTIONS: dict[str, type] = {
    "tokenizer": TokenizerOptions, "data": DataSettings, "train": TrainConfig, "evaluate": Evaluation,
}  # fmt: skip


def setting_options() -> Iterator[tuple[str, str, Any, Option]]:
    """Yield the path, the name, the type and the option of every setting that has a flag."""
    for section, kind in {"": Recipe, **SECTIONS}.items():
        for name, hint, option in find_options(kind):
            yield f"{section}.{name}".lstrip("."), name, hint, option


CHARS = TokenizerOptions("char", 256)
WORDPIECES = TokenizerOptions("wordpiece", 8000)
ROBERTA = TokenizerOptions("bpe", 8000, ("cls", "pad", "sep", "mask"))
PAIRS = TokenizerOptions("bpe", 8000, ("bos", "eos", "pad"))
WIKITEXT = TokenizerOptions("word", 33278)  # every word of the training text, <unk> and <eos>

SMALL = dict(dim=256, layers=6, heads=8)
READER = dict(SMALL, context=128)
LM = dict(length=256, batch=32)
TRANSLATION = dict(length=128, batch=128, max_tokens=4096, truncate=True)


def train_config(count: int, lr: float, **more: Any) -> TrainConfig:
    """Return a training config with a short warm-up."""
    return TrainConfig(**{"steps": count, "lr": lr, "warmup": min(200, count // 10), **more})


def decoder_recipe(
    family: str, purpose: str, lr: float = 1e-3, sizes: Mapping[str, Any] = SMALL, **model: Any
) -> Recipe:
    """Return the recipe of a small language model over subwords."""
    return Recipe(family, purpose, model={**sizes, **model}, data=LM, train=train_config(5000, lr))


def encoder_recipe(
    family: str, purpose: str, tokenizer: TokenizerOptions = WORDPIECES, **changes: Any
) -> Recipe:
    """Return the recipe of a small encoder with a masked-language-model objective."""
    defaults: dict[str, Any] = dict(
        objective="masked", data=dict(length=128, batch=64), train=train_config(5000, 5e-4)
    )
    return Recipe(family, purpose, tokenizer=tokenizer, **defaults | changes)


def translator_recipe(family: str, purpose: str, lr: float, count: int = 6000, **model: Any) -> Recipe:
    """Return the recipe of a translation model with one vocabulary for both languages."""
    train = train_config(count, lr, warmup=400)
    evaluate = Evaluation(every=500, patience=5)
    return Recipe(family, purpose, "translate", PAIRS, model, TRANSLATION, train, evaluate)


def wikitext_recipe(family: str, purpose: str, lr: float, model: dict[str, Any], **train: Any) -> Recipe:
    """Return a word-level WikiText-2 recipe: one stream, <eos> at each line's end, as in 2017's tables."""
    data = dict(length=128, batch=64, apart=False, line_end="<eos>", holdout=0.0)
    evaluate = Evaluation(every=500, sample=0)
    schedule = train_config(8000, lr, **train)
    return Recipe(family, purpose, "next_token", WIKITEXT, model, data, schedule, evaluate)


RECURRENT = dict(dim=512, table_dim=256)
NANO: dict[str, Any] = dict(weight_decay=0.1, betas=(0.9, 0.99), warmup=100)
EXPERTS = dict(
    dim=256, layers=6, heads=8, rank=64, q_rank=96, head_dim=32, rope_dim=16, value_dim=32, hidden=704,
    dense=1, experts=8, active=2, shared=1, expert_hidden=256, groups=2, groups_kept=1, route_scale=1.0,
    context=256, tied=True,
)  # fmt: skip
LINEAR = dict(dim=256, layers=6)

RECIPES: dict[str, Recipe] = {
    "char-rnn": Recipe(
        "rnn", "a recurrent network that writes character by character", tokenizer=CHARS,
        model=dict(dim=256, layers=1, dropout=0.0), data=dict(length=64, batch=32),
        train=train_config(3000, 2e-3),
    ),
    "lstm-wikitext2": wikitext_recipe(
        "lstm", "an LSTM language model on WikiText-2, by words", 2e-3,
        dict(dim=650, layers=2, dropout=0.5, tied=True), weight_decay=0.01, dtype="float32",
    ),
    "transformer-wikitext2": wikitext_recipe(
        "gpt2", "a Transformer as large as that LSTM, on the same text", 1e-3,
        dict(dim=512, layers=4, heads=8, hidden=1664, context=128, dropout=0.4),
        weight_decay=0.1, dtype="bfloat16",
    ),
    "seq2seq": translator_recipe(
        "seq2seq", "an LSTM reads a sentence, another writes its translation", 1e-3,
        layers=2, dropout=0.2, **RECURRENT,
    ),
    "rnnsearch": translator_recipe(
        "rnnsearch", "the first attention: translation that looks back at the source", 1e-3,
        dropout=0.2, **RECURRENT,
    ),
    "luong": translator_recipe(
        "luong", "attention by a product, at the current step", 1e-3, layers=2, **RECURRENT
    ),
    "transformer-multi30k": translator_recipe(
        "transformer", "the Transformer with its paper's recipe, on Multi30k", 1e-3,
        dim=256, layers=3, heads=8, dropout=0.2,
    ),
    "bert": encoder_recipe(
        "bert", "masked words and next sentences (one sentence a line, blank lines between documents)",
        objective="masked_and_next", model=dict(READER, head="pretrain"),
    ),
    "roberta": encoder_recipe("roberta", "masked words alone, new ones every epoch", ROBERTA, model=READER),
    "electra": encoder_recipe(
        "electra", "tell replaced words from true ones", objective="replaced",
        model=dict(READER, table_dim=128),
    ),
    "deberta": encoder_recipe("deberta", "content and distance attend apart", model=READER),
    "bilstm": encoder_recipe(
        "bilstm", "masked words by LSTMs in both directions: a baseline for BERT",
        model=dict(dim=256, layers=3),
    ),
    "cnn": encoder_recipe(
        "cnn", "masked words by convolutions: a baseline for BERT", model=dict(dim=256, layers=6)
    ),
    "distil": encoder_recipe(
        "distilbert", "half the layers, taught by a trained BERT: --set teacher=FOLDER",
        objective="distil", model=dict(READER, layers=3),
    ),
    "gpt": decoder_recipe("gpt", "the first GPT, small: norms after each part", 5e-4, context=256),
    "gpt2": decoder_recipe("gpt2", "GPT-2, small", context=256),
    "gpt3-small-banded": decoder_recipe(
        "gpt3", "GPT-3's alternation of full and banded attention, small", context=256, window=64
    ),
    "llama-small": decoder_recipe(
        "llama", "rotary positions, gated MLPs, grouped heads, small", kv_heads=4, context=256, tied=True
    ),
    "palm-small": decoder_recipe("palm", "attention and MLP side by side, one key head, small", context=256),
    "bloom-small": decoder_recipe(
        "bloom", "distances as a penalty on the scores (ALiBi), small", context=256
    ),
    "deepseek-small": decoder_recipe("deepseek-v2", "latent attention and experts, small", sizes=EXPERTS),
    "t5": Recipe(
        "t5", "write the spans that were cut out", "spans", TokenizerOptions("unigram", 8000, sentinels=100),
        dict(dim=256, layers=4, heads=8), LM, train_config(5000, 1e-3),
    ),
    "bart": Recipe(
        "bart", "write the text again from its noised form", "denoise", ROBERTA,
        dict(dim=256, layers=3, heads=8, context=256), LM, train_config(5000, 5e-4),
    ),
    "s4": decoder_recipe("s4", "a long convolution instead of attention", sizes=LINEAR),
    "mamba": decoder_recipe("mamba", "a state space that chooses what to remember", sizes=LINEAR),
    "linear": decoder_recipe("linear", "attention without a softmax: a state of fixed size"),
    "gla": decoder_recipe("gla", "linear attention that forgets by gates", heads=4),
    "based": decoder_recipe(
        "based", "linear attention by a Taylor series, with small windows", window=64, key_dim=16
    ),
    "shakespeare-char": Recipe(
        "gpt2", "Shakespeare by character on a GPU, in seconds", tokenizer=CHARS,
        model=dict(dim=384, layers=6, heads=6, context=256, dropout=0.2), data=dict(length=256, batch=64),
        train=TrainConfig(steps=1500, lr=1.5e-3, dtype="bfloat16", **NANO),
        evaluate=Evaluation(every=250, log=50),
    ),
    "shakespeare-char-cpu": Recipe(
        "gpt2", "Shakespeare by character on a laptop, in minutes", tokenizer=CHARS,
        model=dict(dim=128, layers=4, heads=4, context=256, dropout=0.0), data=dict(length=256, batch=4),
        train=TrainConfig(steps=2000, lr=3e-3, **NANO), evaluate=Evaluation(every=250),
    ),
}  # fmt: skip


OPEN_SECTIONS = ("model", "data")  # their names are checked by the family and by the builder of the data
FILE_LINE = re.compile(r"\.ya?ml:\d+$")  # the origin of a value that a file set
# By objective, for a family that has no recipe of its own.
TOKENIZERS = {
    "masked": "wordpiece", "masked_and_next": "wordpiece", "replaced": "wordpiece", "spans": "unigram",
    "permuted": "unigram",
}  # fmt: skip
SPECIAL_TOKENS = {"translate": ("bos", "eos", "pad"), "denoise": ("cls", "pad", "sep", "mask")}
RUN_FIELDS = ("folder", "resume", "extended")  # of TrainConfig: which run this is, not what it does


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
    fit_length(values, origins)
    try:
        files, valid = (tuple(values.get(k) or ()) for k in ("files", "valid"))
        return ResolvedSettings(name, build_recipe(values), files, valid, origins)
    except ConfigError as error:
        raise with_file_line(error, origins) from None


def fit_length(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Let the later of `steps` and `minutes` count; shorten a warm-up or decay that steps set later cut off.

    Defaults come before recipes, files, the environment and flags. Setting both to a conflict is an error.
    """

    def rank(name: str) -> int:
        origin = origins.get(f"train.{name}", "default")
        return 0 if origin.startswith(("recipe", "default")) else 1 if FILE_LINE.search(origin) else 2

    train = values["train"]
    if train.get("minutes") is not None and rank("steps") >= rank("minutes"):
        if rank("steps") == rank("minutes") > 0:
            raise ConfigError("steps and minutes both say how long to train", hint="give one of them")
        train["minutes"] = None
    steps: Any = train.get("steps") if train.get("minutes") is None else None
    for name in ("warmup", "decay"):
        value = train.get(name)
        fits = not (isinstance(steps, int) and isinstance(value, int) and value > steps > 0)
        if not fits and rank(name) < rank("steps"):
            train[name], origins[f"train.{name}"] = max(1, steps // 10), "a tenth of train.steps"


def with_file_line(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """Return the error with the line of the YAML file that set the value it names, if one did."""
    matches: list[tuple[int, str]] = []
    for path, origin in origins.items():
        named = re.search(rf"\b{re.escape(path.rpartition('.')[2])}\b ?=|{re.escape(path)}", str(error))
        if named and FILE_LINE.search(origin):
            matches.append((named.start(), origin))
    if not matches:
        return error
    return type(error)(f"{min(matches)[1]}: {error.message}", error.hint)


def family_recipe(name: str) -> Recipe:
    """Return a recipe for a family in its smallest size, or for a preset in its published one.

    A name that is both (gpt3) means the family, because its published size fits no single machine.
    """
    from heedful.models import MEDIA_FAMILIES, all_families, find_config, presets

    sizes_of, families = presets(), all_families()
    if name in MEDIA_FAMILIES or (name in sizes_of and sizes_of[name][0].name in MEDIA_FAMILIES):
        raise NotFound(
            f"{name} reads images, and training from scratch here reads text",
            hint="teach a trained one: heed finetune digits TABLE; from nothing, in Python: data.image_text",
        )
    if name in sizes_of and name not in families:
        family = sizes_of[name][0]
        return Recipe(name, f"{name} in its published size", family.objective)
    if name not in families:
        hint = nearest(name, [*RECIPES, *sizes_of, *families]) or "list recipes with: heed recipes"
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
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def set_value(values: dict[str, Any], one: Setting) -> None:
    """Set one value by its path; raise ConfigError for an unknown path."""
    section, _, name = one.path.partition(".")
    top = [f.name for f in dataclasses.fields(Recipe) if f.name not in (*SECTIONS, *OPEN_SECTIONS)]
    names = [*top, "files", "valid"]
    for prefix, kind in SECTIONS.items():
        names += [f"{prefix}.{f.name}" for f in dataclasses.fields(kind) if f.name not in RUN_FIELDS]
    if one.path not in names and not (section in OPEN_SECTIONS and name):
        sections = ", ".join(dict.fromkeys([*SECTIONS, *OPEN_SECTIONS]))
        hint = nearest(one.path, [*names, *flatten(values)]) or f"sections are {sections}"
        raise ConfigError(f"{one.origin}: unknown setting {one.path!r}", hint=hint)
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


def read_settings_file(path: Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return a YAML file's name, values and their lines; `recipe: NAME` in it starts from that recipe."""
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
    start = loaded.pop("recipe", None)
    if start is not None and start not in RECIPES:
        raise NotFound(f"{lines['recipe']}: no recipe is called {start!r}", hint=nearest(str(start), RECIPES))
    if start is None and not isinstance(loaded.get("family"), str):
        raise ConfigError(f"{path} names neither a family nor a recipe", hint="write family: gpt2")
    values = recipe_values(RECIPES[start] if start is not None else Recipe(loaded["family"], ""))
    for key, value in flatten(loaded).items():
        if key != "name":
            set_value(values, Setting(key, value, lines.get(key, str(path))))
    # A path that is not found from here is looked for next to the file.
    beside = lambda text: str(path.parent / text)
    replace_paths(
        values, lambda text: text if Path(text).exists() or not Path(beside(text)).exists() else beside(text)
    )
    return str(loaded.get("name", start or path.stem)), values, lines


def replace_paths(values: dict[str, Any], change: Callable[[str], str]) -> None:
    """Change every setting that may name a file or a folder, in place."""
    for name in ("files", "valid"):
        if name in values:
            values[name] = [change(text) for text in values[name] or ()]
    for place, name in ((values, "start"), (values, "teacher"), (values["tokenizer"], "kind")):
        if isinstance(place.get(name), str):
            place[name] = change(place[name])


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
    replace_paths(values, absolute_path)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def absolute_path(text: str) -> str:
    """Return the absolute path of what exists; any other text as it is."""
    return str(Path(text).absolute()) if Path(text).exists() else text


def check_same_settings(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first setting of a run that resuming it would change; `fit` checks train.*"""
    free = ("name", "what", "device", "parallel", "tensor", "evaluate.", "train.", "files", "valid")
    before, after = flatten(old), flatten(new)
    place = lambda value: absolute_path(value) if isinstance(value, str) else value
    for path in sorted(set(before) | set(after)):
        if not path.startswith(free) and place(before.get(path)) != place(after.get(path)):
            raise ConfigError(
                f"{folder} was trained with {path} = {before.get(path)!r} and would be resumed with "
                f"{after.get(path)!r}",
                hint="set it back, or use a new --folder",
            )
