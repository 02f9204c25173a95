"""`heed train`, `recipes`, `recipe cp`, `tokenizer train` and `plot training`: from a recipe to curves."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.commands import CommandGroup, command_words
from heedful.cli.models import Device, check_gpus
from heedful.cli.terminal import Json, Quiet, as_json, format_metric, format_size, print_pairs, print_table
from heedful.core.checks import Argument, Option, check_choice
from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound, nearest
from heedful.core.processes import is_first, launch
from heedful.core.progress import show_progress
from heedful.train.recipes.recipes import setting_options

if TYPE_CHECKING:
    import torch

    from heedful.classroom.experiments.system_race import Race
    from heedful.classroom.experiments.translation_race import TranslationRace
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
        bool, Option("Continue the run in the folder; more --steps or --minutes extend it.")
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


FigureFile = Annotated[Path, Option("Write this .svg, .png, .pdf, .html or .csv file.", ("--output", "-o"))]

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
    output: FigureFile = Path("race.svg"),
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
    output: FigureFile = Path("words.svg"),
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


# `heed race`, `scale` and `verify`: comparisons, scaling laws, and published results measured again.


@dataclass(frozen=True)
class ExperimentOptions:
    """The options of `heed race` and `heed scale`."""

    files: Annotated[
        list[str] | None, Argument("Texts to train on; by default a bundled one.", metavar="FILE")
    ] = None
    quick: Annotated[bool, Option("Train small models on little text. This takes minutes on two cores.")] = (
        False
    )
    device: Device = "auto"
    folder: Annotated[
        Path | None,
        Option(
            "Write everything to this folder. [default: one in runs/ named after the command]",
            ("--folder", "-o"),
        ),
    ] = None
    quiet: Quiet = False
    json: Json = False

    def start(self) -> tuple[torch.device, Callable[[str], None]]:
        """Return the device, and what shows a line of progress on stderr, or nothing if quiet."""
        from heedful.core.devices import resolve_device

        device = resolve_device(self.device)
        report = (
            (lambda line: None) if self.quiet else (lambda line: print(line, file=sys.stderr, flush=True))
        )
        if not self.quick and device.type == "cpu":
            report("note: without --quick this takes hours on a CPU; Ctrl-C keeps what was measured")
        return device, report

    def print_report(self, page: Path, **more: Any) -> None:
        """Print the path of the report, or with --json also `more`."""
        as_json({"report": str(page), "folder": str(page.parent)} | more) if self.json else print(page)


def race_command(
    context: typer.Context,
    common: ExperimentOptions,
    translation: Annotated[bool, Option("Compare translators instead, on a file of sentence pairs.")] = False,
    systems: Annotated[str | None, Option("Compare only these systems, as rnn,lstm,gpt2.")] = None,
    parts: Annotated[
        str | None, Option("Measure only these: layers,generation,loss,positions,gradients,tasks.")
    ] = None,
    steps: Annotated[int | None, Option("Train each system for N steps.", minimum=1)] = None,
    jobs: Annotated[int, Option("Measure N systems at once, each in its own process.", minimum=1)] = 1,
) -> None:
    """Train systems of one size on one text and compare them. The last line printed is the report's path.

    The systems are RNN, LSTM, GRU, Transformers with GPT-2's and LLaMA's blocks, linear attention, GLA,
    Based, S4 and Mamba. The report shows the loss over tokens and over seconds, the time of a layer by length
    and width, and the time and memory of one more token. It also shows the loss by position, how far
    gradients reach back, and the accuracy by distance on four tasks: copy, recall, induction and needle.
    Ctrl-C keeps what was measured, and the same command continues. Without --quick the models are larger and
    need a GPU.

    Examples:
      heed race --quick
      heed race --quick --systems rnn,lstm,gpt2 novel.txt -o runs/novel-race
      heed race --translation pairs.tsv --device cuda
    """
    from heedful.classroom.experiments.measurement_store import finish_experiment

    where = common.folder or Path("runs") / ("translation-race" if translation else "race")
    names = {"systems": systems, "parts": parts}
    changes: dict[str, Any] = {n: tuple(v.split(",")) for n, v in names.items() if v is not None}
    changes |= {"steps": steps} if steps is not None else {}
    race = open_race(where, common, changes, translation)
    words = command_words(context, leave_out=("folder", "systems", "jobs", "json"))
    named = race.settings.systems if jobs > 1 else ()
    beside = {name: ["race", "-o", str(where), "--systems", name, *words] for name in named}
    common.print_report(finish_experiment(race, where, shown_command(context), beside, jobs))


def open_race(
    folder: Path, common: ExperimentOptions, changes: dict[str, Any], translation: bool
) -> Race | TranslationRace:
    """Return the race of language models or of translators, with `changes` of its usual settings."""
    files, quick = common.files or [], common.quick
    if translation:
        from heedful.classroom.experiments.translation_race import (
            FULL_TRANSLATION,
            QUICK_TRANSLATION,
            TranslationRace,
        )

        if "parts" in changes:
            raise InputError("--parts is for a race of language models", hint="leave it or --translation out")
        settings = replace(QUICK_TRANSLATION if quick else FULL_TRANSLATION, **changes)
        return TranslationRace(folder, files, settings, *common.start())
    from heedful.classroom.experiments.system_race import FULL, QUICK, Race

    return Race(folder, files, replace(QUICK if quick else FULL, **changes), *common.start())


def shown_command(context: typer.Context) -> str:
    """Return the command line that was typed, for a report."""
    words = [word for word in command_words(context, leave_out=("folder", "quiet", "json")) if word != "--"]
    words = [f"{float(word):g}" if re.fullmatch(r"\d+\.0", word) else word for word in words]  # 1e+12
    return " ".join(["heed", context.info_name or "", *words])


# `heed scale`: the loss by size, data and compute is fitted, and predicted for a larger model.


def scale_command(
    context: typer.Context,
    common: ExperimentOptions,
    budget: Annotated[
        float | None, Option("Also find the best size for this many FLOPs, such as 1e15.", minimum=1.0)
    ] = None,
) -> None:
    """Train models of several sizes on several amounts of text, fit the loss and predict larger models.

    The predictions are written down before the larger models are trained. Every point has a run folder of its
    own. The last line printed is the path of the report. Ctrl-C keeps every finished run, and the same
    command continues.

    Examples:
      heed scale --quick
      heed scale --quick novel.txt --budget 1e12 -o runs/novel-scale
      heed scale corpus.txt --device cuda
    """
    from heedful.classroom.experiments.measurement_store import finish_experiment
    from heedful.classroom.experiments.scale_sweep import FULL_SCALE, QUICK_SCALE, ScaleSweep

    folder, settings = common.folder or Path("runs/scale"), QUICK_SCALE if common.quick else FULL_SCALE
    sweep = ScaleSweep(folder, common.files or [], settings, *common.start(), budget)
    page = finish_experiment(sweep, folder, shown_command(context))
    common.print_report(page, predictions=sweep.predictions)


# `heed verify`: measure a published result again.


def verify_command(
    row: Annotated[str | None, Argument("The name of a result, as in --list and docs/results.md.")] = None,
    list_all: Annotated[
        bool, Option("List the results, and whether each can be run again.", ("--list",))
    ] = False,
    fail_under: Annotated[float | None, Option("Exit with 1 also if the new figure is below this.")] = None,
    results: Annotated[Path, Option("Read the results from this folder.")] = Path("results"),
    json: Json = False,
) -> None:
    """Measure a result again: exit with 0 if the figure is the same within its tolerance, else with 1.

    Data is read from the folder in HEED_DATA; if it or a GPU is missing, exit with 3.

    Examples:
      heed verify --list
      HEED_DATA=./data heed verify stsb
      heed verify sst2-bow --fail-under 80 --json
    """
    if not results.is_dir():
        raise NotFound(
            f"no folder {results}/ here", hint="go to a checkout of heedful, or name one with --results"
        )
    if list_all:
        return _print_results(results, json)
    if row is None:
        raise InputError("name a result", hint="heed verify --list names them all")
    from heedful.classroom.experiments.verify import verify_row

    with show_progress(f"measuring {row}"):
        result = verify_row(results, row)
    reached = fail_under is None or result.now >= fail_under
    if json:
        as_json(
            {
                "row": result.row, "claim": result.claim, "stored": result.stored, "now": result.now,
                "difference": result.now - result.stored, "tolerance": result.tolerance,
                "fail_under": fail_under, "same": result.same, "ok": result.same and reached,
                "seconds": round(result.seconds, 1),
            }
        )  # fmt: skip
    else:
        print(result.claim)
        print(f"stored {result.stored:g}   now {result.now:g}   may differ by {result.tolerance:g}")
        print("the same" if result.same else f"differs by {result.now - result.stored:+g}")
        if not reached:
            print(f"below {fail_under:g}, which --fail-under asks for")
    if not (result.same and reached):
        raise typer.Exit(1)


def _print_results(results: Path, json: bool) -> None:
    from heedful.classroom.experiments.ledger import format_figure, rows_by_name

    rows = rows_by_name(results)
    if json:
        return as_json(
            {
                "rows": [
                    {"row": name, "claim": r["claim"], "figure": r["figure"], "again": bool(r.get("check"))}
                    for name, r in rows.items()
                ]
            }
        )
    cut = lambda text: text if len(text) <= 40 else text[:39] + "…"
    cells = [
        (name, "✓" if r.get("check") else "–", r["claim"], cut(format_figure(r["figure"])))
        for name, r in rows.items()
    ]
    print_table(("row", "again", "claim", "figure"), cells, unbroken=("row",))
    return None
