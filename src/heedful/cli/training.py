"""`heed train`, `recipes`, `recipe cp`, `tokenizer train` and `plot training`: from a recipe to curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.commands import CommandGroup, command_words
from heedful.cli.models import check_gpus
from heedful.cli.output import (
    Json,
    Quiet,
    as_json,
    format_metric,
    format_size,
    print_pairs,
    print_table,
)
from heedful.core.checks import Argument, Option, check_choice
from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound, nearest
from heedful.core.processes import is_first, launch
from heedful.core.progress import show_progress
from heedful.train.recipes.recipes import setting_options

if TYPE_CHECKING:
    from heedful.train.recipes.recipes import ResolvedSettings, Setting
    from heedful.train.recipes.train import TrainingResult


# Each setting with an `Option` has a flag and a variable: --lr and HEED_LR change train.lr.
PATHS = {name: path for path, name, _, _ in setting_options()}
CONFIG = "config.yaml"  # the settings in the folder of a run
FLAGS = {name: (hint | None, option) for _, name, hint, option in setting_options()}


def train_command(
    context: typer.Context,
    recipe: Annotated[
        str, Argument("A recipe (heed recipes), a .yaml file, a preset, a family, or a run to resume.")
    ],
    flags: Annotated[Mapping[str, Any], FLAGS],
    files: Annotated[list[str] | None, Argument("Files or folders to train on.", metavar="DATA")] = None,
    valid: Annotated[
        list[str] | None, Option("Validate on this file; by default a part is held out.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "Change settings by their paths, as model.layers=4,train.clip=1.", ("--set",), metavar="A.B=C"
        ),
    ] = None,
    folder: Annotated[
        Path | None, Option("Write the run to this folder. [default: runs/RECIPE]", ("--folder", "-o"))
    ] = None,
    resume: Annotated[
        bool,
        Option("Continue the run in the folder; more --steps or --minutes extend it."),
    ] = False,
    nproc: Annotated[int, Option("Train in N processes on this machine, one per GPU.", minimum=1)] = 1,
    tensorboard: Annotated[bool, Option("Write TensorBoard event files next to metrics.jsonl.")] = False,
    dry_run: Annotated[bool, Option("Measure one batch: sizes, memory, time. Write nothing.")] = False,
    print_config: Annotated[bool, Option("Print all settings and where each came from.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model. The last line printed is the path of its checkpoint, which `heedful.load` opens.

    Examples:
      heed train shakespeare-char-cpu input.txt
      heed train gpt2 corpus.txt --valid held-out.txt --steps 2000 --set model.layers=4
      heed train transformer-multi30k train.de train.en --nproc 2
      heed train gpt2 corpus.txt --nproc 8 --set parallel=fsdp,tensor=4
      heed train gpt2 corpus.txt --minutes 30
      heed train runs/gpt2 --resume --minutes 60
    """
    with show_progress("starting", quiet=quiet):
        from heedful.train.recipes.recipes import resolve_settings

    changes = [*flag_settings(context, flags), *other_settings(settings or [], files or [], valid or [])]
    if (Path(recipe) / CONFIG).is_file():
        folder, recipe = folder or Path(recipe), str(Path(recipe) / CONFIG)
    resolved = resolve_settings(recipe, changes)
    folder = folder or Path("runs") / resolved.name
    if resume and (folder / CONFIG).is_file() and not recipe.endswith((".yaml", ".yml")):
        # The settings of the run itself: flags that it was started with need not be repeated.
        name, resolved = resolved.name, resolve_settings(str(folder / CONFIG), changes)
        if name != resolved.name:
            raise ConfigError(
                f"{folder} holds a run of {resolved.name!r} and not of {name!r}",
                hint="name that one, or another --folder",
            )
    if print_config:
        return print_settings(resolved, json)
    if dry_run:
        from heedful.train.recipes.train import rehearse

        return print_rehearsal(rehearse(resolved), json)
    if nproc > 1:
        check_gpus(nproc, resolved.recipe.device)
        if nproc % resolved.recipe.tensor:
            raise ConfigError(
                f"`tensor={resolved.recipe.tensor}` does not divide --nproc {nproc}",
                hint=f"use --nproc {resolved.recipe.tensor} or a multiple of it",
            )
        raise typer.Exit(launch(nproc, ["train", *command_words(context, leave_out=("nproc",))]))
    from heedful.train.distributed import OtherProcessFailed
    from heedful.train.fit import DivergedError
    from heedful.train.recipes.train import TrainingInterrupted, run_training

    try:
        result = run_training(resolved, folder, resume=resume, quiet=quiet, tensorboard=tensorboard)
    except (TrainingInterrupted, DivergedError, OtherProcessFailed) as error:
        if is_first():  # all processes meet these, and the first one prints them
            raise
        raise typer.Exit(error.exit_code) from None
    if is_first():
        print_result(resolved, result, json)


def flag_settings(context: typer.Context, flags: Mapping[str, Any]) -> list[Setting]:
    """Return the settings that variables of the environment and flags give, those of the flags last."""
    from heedful.train.recipes.recipes import Setting

    environment, line = [], []
    for name, value in flags.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "ENVIRONMENT":
            environment.append(Setting(PATHS[name], value, f"HEED_{name.upper()}"))
        else:
            line.append(Setting(PATHS[name], value, f"--{name}"))
    return environment + line


def other_settings(settings: Sequence[str], files: list[str], valid: list[str]) -> list[Setting]:
    """Return the settings of --set, of the files to train on and of those to validate on."""
    from heedful.train.recipes.recipes import Setting, parse_assignment

    assignments = [parse_assignment(one) for text in settings for one in re.split(r",(?=[a-z_.]+=)", text)]
    for one in assignments:
        if one.path in ("train.folder", "train.resume"):
            raise ConfigError(f"--set cannot change {one.path}", hint="use --folder and --resume")
    data = {"files": files, "valid": valid}
    return assignments + [Setting(name, value, "command line") for name, value in data.items() if value]


def print_settings(settings: ResolvedSettings, json: bool) -> None:
    """Print every setting and where it came from."""
    from heedful.train.recipes.recipes import recipe_values

    values = recipe_values(settings.recipe) | {
        k: list(getattr(settings, k)) for k in ("files", "valid") if getattr(settings, k)
    }
    origin = lambda path: settings.origins.get(path, "default")
    if json:
        listed = {path: {"value": value, "from": origin(path)} for path, value in values.items()}
        return as_json({"name": settings.name, "settings": listed})
    rows = [(path, str(value), origin(path)) for path, value in values.items()]
    print_table(("setting", "value", "from"), rows, unbroken=("setting",))


def print_rehearsal(figures: dict[str, Any], json: bool) -> None:
    """Print the figures of a dry run."""
    if json:
        return as_json(figures)
    rows = {
        name.removesuffix("_bytes").replace("_", " "): format_size(value, "B")
        if name.endswith("_bytes") else format_metric(value) if isinstance(value, int) else str(value)
        for name, value in figures.items()
    }  # fmt: skip
    print_pairs("what", "value", rows)


def print_result(settings: ResolvedSettings, result: TrainingResult, json: bool) -> None:
    """Print the summary of a run, and the checkpoint's path as the last line."""
    if json:
        return as_json({
            "name": settings.name, "parameters": result.parameters, "steps": result.steps,
            "tokens": result.tokens, "seconds": round(result.seconds, 2), "train_loss": result.loss,
            "best_step": result.best_step, **{f"eval_{n}": v for n, v in result.scores.items()},
            "stopped_early": result.stopped, "checkpoint": str(result.checkpoint),
        })  # fmt: skip
    best = lambda name: f"  (step {result.best_step})" if name == "loss" else ""
    print_pairs("run", settings.name, {
        "parameters": f"{result.parameters:,}",
        "steps": f"{result.steps:,}" + (" (stopped early)" if result.stopped else ""),
        "tokens read": f"{result.tokens:,}", "seconds": f"{result.seconds:.1f}",
        "train loss": f"{result.loss:.4f}",
        **{f"eval {name}": f"{value:.4f}{best(name)}" for name, value in result.scores.items()},
    })  # fmt: skip
    print(result.checkpoint)


# `heed recipes` lists the training recipes; `heed recipe cp` copies one.


def recipes_command(json: Json = False) -> None:
    """List the training recipes and what each is for.

    Examples:
      heed recipes
      heed recipe cp gpt2 mine.yaml
    """
    from heedful.train.recipes.recipes import load_recipes

    recipes = load_recipes().items()
    if json:
        rows = [{"name": n, "family": r.family, "objective": r.objective, "what": r.what} for n, r in recipes]
        return as_json({"recipes": rows})
    columns = ("recipe", "family", "objective", "steps", "what for")
    cells = [(name, r.family, r.objective, f"{r.train.steps:,}", r.what) for name, r in recipes]
    print_table(columns, cells, right=("steps",), unbroken=("recipe", "family"))


recipe_command = CommandGroup("Copy a recipe to a file, to change it.")


@recipe_command.add("cp")
def copy_recipe(
    name: Annotated[str, Argument("The name of a recipe.")],
    path: Annotated[Path | None, Argument("The file to write. [default: NAME.yaml]")] = None,
) -> None:
    """Write a recipe to a YAML file, for `heed train FILE.yaml DATA`.

    Examples:
      heed recipe cp gpt2 mine.yaml
    """
    from heedful.train.recipes.recipes import ResolvedSettings, load_recipes, settings_yaml

    recipes = load_recipes()
    if name not in recipes:
        raise NotFound(
            f"no recipe is called {name!r}", hint=nearest(name, recipes) or "list them with: heed recipes"
        )
    path = path or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(f"{path} exists already", hint="choose another name")
    settings = ResolvedSettings(name, recipes[name])
    path.write_text(f"# {recipes[name].what}\n{settings_yaml(settings)}", encoding="utf-8")  # makes no folder
    print(path)


# `heed tokenizer train`: train a tokenizer on text.


tokenizer_command = CommandGroup("Train a tokenizer on text.")


@tokenizer_command.add("train")
def train_tokenizer(
    files: Annotated[list[str], Argument("Text files or folders; .gz, .xz and .bz2 are decompressed.")],
    folder: Annotated[Path, Option("Write the tokenizer to this folder.", ("--folder", "-o"))] = Path(
        "tokenizer"
    ),
    kind: Annotated[str, Option("Train a bpe, wordpiece, unigram, word or char tokenizer.")] = "bpe",
    vocab: Annotated[int, Option("Limit the vocabulary to N tokens.", minimum=1)] = 8000,
    special: Annotated[
        str | None, Option("Add these special tokens, as bos,eos,pad; by default those usual for the kind.")
    ] = None,
    sentinels: Annotated[
        int, Option("Add N of T5's sentinels <extra_id_0> …, for span corruption.", minimum=0)
    ] = 0,
    lower: Annotated[bool, Option("Lowercase the text.")] = False,
    encoding: Annotated[str, Option("Read the files in this encoding.")] = "utf-8",
    json: Json = False,
) -> None:
    """Train a tokenizer. The last line printed is its folder, for `heed train --set tokenizer.kind=FOLDER`.

    Examples:
      heed tokenizer train corpus.txt --vocab 8000 -o my-tokenizer
      heed tokenizer train corpus/ --kind unigram --sentinels 100
    """
    from heedful.text import save_tokenizer, tokenizer_training

    if (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} holds a tokenizer already", hint="name another --folder")
    roles = None if special is None else [role.strip() for role in special.split(",") if role.strip()]
    with show_progress("training the tokenizer"):
        trained = tokenizer_training.train_tokenizer(
            kind, files, vocab, special=roles, sentinels=sentinels, lower=lower, encoding=encoding
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(trained, folder)
    if json:
        return as_json(
            {"kind": kind, "tokens": len(trained), "special": trained.roles, "folder": str(folder)}
        )
    roles_shown = "  ".join(f"{role} {token}" for role, token in trained.roles.items())
    print_pairs("tokenizer", kind, {"tokens": f"{len(trained):,}", "special": roles_shown})
    print(folder)


# `heed plot training`: training curves in the terminal, or as a picture or table.


plot_command = CommandGroup("Plot training curves, the results of a race, or a map of words.")


@plot_command.add("training")
def plot_training(
    run: Annotated[list[Path], Argument("Run folders, drawn together.")],
    output: Annotated[
        Path | None,
        Option(
            "Write a .svg, .png, .pdf, .html or .csv file instead of drawing in the terminal.",
            ("--output", "-o"),
        ),
    ] = None,
    metric: Annotated[str, Option("Plot loss, learning_rate, grad_norm, perplexity …")] = "loss",
) -> None:
    """Plot the training and validation curves of runs.

    Examples:
      heed plot training runs/gpt2
      heed plot training runs/a runs/b -o curves.svg
    """
    with show_progress("reading the runs"):
        from heedful.classroom import figures as view
        from heedful.train.recipes.folder import draw_curves, read_curves

        figure = view.training(run, metric)
    print(draw_curves(read_curves(run, metric), metric) if output is None else figure.save(output))


@plot_command.add("race")
def plot_race(
    folder: Annotated[Path, Argument("A folder that `heed race` or `heed scale` wrote.")],
    section: Annotated[
        str, Option("Plot this section of the report: sizes, loss, layers, generation, positions …")
    ] = "loss",
    output: Annotated[
        Path, Option("Write this .svg, .png, .pdf, .html or .csv file.", ("--output", "-o"))
    ] = Path("race.svg"),
) -> None:
    """Plot one section of the report of a race or of a scaling law.

    Examples:
      heed plot race runs/race -o loss.svg
      heed plot race runs/race --section generation -o generation.csv
    """
    with show_progress("drawing"):
        import json

        from heedful.classroom.figures.figure import Figure, unpack

        if not (folder / "report.json").is_file():
            raise NotFound(f"{folder} has no report.json", hint="name a folder that heed race wrote")
        as_array = lambda one: unpack(one) if {"dtype", "shape", "data"} <= one.keys() else one
        try:
            text = (folder / "report.json").read_text(encoding="utf-8")
            report = json.loads(text, object_hook=as_array)
            sections = {one["name"]: one["figure"]["data"]["panels"] for one in report["sections"]}
            about, title = report["about"], report["title"]
        except (ValueError, KeyError, TypeError):
            raise CorruptFile(f"{folder / 'report.json'} is damaged", hint="run the race again") from None
        panels = sections[check_choice("section", section, sections)]
        path = Figure("report", title, about, {"panels": panels}).save(output)
    print(path)


@plot_command.add("words")
def plot_words(
    vectors: Annotated[Path, Argument("A file of word vectors, as `heed word2vec train` writes it.")],
    words: Annotated[list[str] | None, Argument("Words to draw; by default the most frequent ones.")] = None,
    output: Annotated[
        Path, Option("Write this .svg, .png, .pdf, .html or .csv file.", ("--output", "-o"))
    ] = Path("words.svg"),
    count: Annotated[int, Option("Draw the N most frequent words if none is named.", minimum=2)] = 100,
) -> None:
    """Plot a map of word vectors by their first two principal components.

    Examples:
      heed plot words vectors.safetensors king queen man woman -o words.svg
    """
    with show_progress("drawing"):
        from heedful.classroom import figures as view
        from heedful.word2vec import Word2Vec

        figure = view.embeddings(Word2Vec.load(vectors), words=words or None, count=count)
        path = figure.save(output)
    print(path)
