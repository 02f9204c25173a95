"""`heed train`: from files to a trained model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heedful.commands.output import Json, as_json, console, short, table
from heedful.errors import ConfigError, HeedfulError

if TYPE_CHECKING:
    from heedful.runs.settings import Chosen, Given
    from heedful.runs.train import Result

# A flag → the setting it stands for. Each has an environment variable: HEED_STEPS, HEED_LR …
FLAGS = {
    "steps": "train.steps", "lr": "train.lr", "batch": "data.batch", "length": "data.length",
    "device": "device", "dtype": "train.dtype", "seed": "train.seed",
}  # fmt: skip


def train(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(help="A recipe (heed recipes), a .yaml file, a preset or a family.")
    ],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="DATA…", help="What to train on: files or folders.")
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option(help="Validate on this file; else on a part held out.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Any setting by its path.")
    ] = None,
    steps: Annotated[int | None, typer.Option(envvar="HEED_STEPS", help="How many steps.")] = None,
    lr: Annotated[float | None, typer.Option(envvar="HEED_LR", help="The highest learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(envvar="HEED_BATCH", help="Rows in a step.")] = None,
    length: Annotated[int | None, typer.Option(envvar="HEED_LENGTH", help="Tokens in a row.")] = None,
    device: Annotated[
        str | None, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda, cuda:1 …")
    ] = None,
    dtype: Annotated[str | None, typer.Option(envvar="HEED_DTYPE", help="float32 or bfloat16.")] = None,
    seed: Annotated[
        int | None, typer.Option(envvar="HEED_SEED", help="Of weights, batches and dropout.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where the run goes; runs/RECIPE.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine; one per GPU.")] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Event files beside metrics.jsonl.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="One batch: sizes, memory, time. Nothing is written.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="All settings and where each came from.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Train a model. The last line is the path of its checkpoint, which `heedful.load` opens.

    Examples:

      heed train shakespeare-char-cpu input.txt

      heed train gpt2 corpus.txt --valid held-out.txt --steps 2000 --set model.layers=4

      heed train transformer-multi30k train.de train.en --nproc 2

      heed train gpt2 corpus.txt --resume
    """
    from heedful.runs.settings import choose

    flags = {
        "steps": steps,
        "lr": lr,
        "batch": batch,
        "length": length,
        "device": device,
        "dtype": dtype,
        "seed": seed,
    }
    given = collected(context, flags, settings or [], files or [], valid or [])
    chosen = choose(recipe, given)
    where = folder or Path("runs") / chosen.name
    if print_config:
        return show_settings(chosen, json)
    if dry_run:
        from heedful.runs.rehearsal import rehearse

        return show_rehearsal(rehearse(chosen), json)
    if nproc > 1:
        switches = {"--resume": resume, "--tensorboard": tensorboard, "--quiet": quiet, "--json": json}
        spawn(
            nproc,
            chosen,
            [recipe, *(files or []), *rebuilt(flags, settings or [], valid or [], where, switches)],
        )
    from heedful.runs.train import train as run

    try:
        result = run(chosen, where, resume=resume, quiet=quiet, tensorboard=tensorboard)
    except HeedfulError as error:
        if not spokesman(error):
            raise typer.Exit(error.exit_code) from None
        raise
    if os.environ.get("RANK", "0") == "0":
        finished(chosen, result, json)


def spokesman(error: HeedfulError) -> bool:
    """Whether this process is to report an error: what all processes meet at once, the first one tells."""
    from heedful.runs.train import Interrupted
    from heedful.train.distributed import OtherProcessFailed
    from heedful.train.fit import DivergedError

    return os.environ.get("RANK", "0") == "0" or not isinstance(
        error, Interrupted | DivergedError | OtherProcessFailed
    )


def rebuilt(
    flags: dict[str, Any], settings: list[str], valid: list[str], folder: Path, switches: dict[str, bool]
) -> list[str]:
    """The command line again, for each of several processes."""
    line = [text for name, value in flags.items() if value is not None for text in (f"--{name}", str(value))]
    line += [text for value in settings for text in ("--set", value)]
    line += [text for value in valid for text in ("--valid", value)]
    return [*line, "--folder", str(folder), *(name for name, said in switches.items() if said)]


def spawn(count: int, chosen: Chosen, arguments: list[str]) -> NoReturn:
    """Hand over to several processes."""
    from heedful.devices import resolve_device
    from heedful.runs.launch import launch

    if resolve_device(chosen.recipe.device).type == "cuda":
        import torch

        if count > torch.cuda.device_count():
            raise ConfigError(
                f"--nproc {count}: this machine has {torch.cuda.device_count()} GPUs", hint="one each"
            )
    raise typer.Exit(launch(count, arguments))


def collected(
    context: typer.Context, flags: dict[str, Any], settings: list[str], files: list[str], valid: list[str]
) -> list[Given]:
    """What the environment and the command line say, the environment first."""
    from heedful.runs.settings import Given, assignment

    environment, line = [], []
    for name, value in flags.items():
        if value is None:
            continue
        source = context.get_parameter_source(name)
        if source is not None and source.name == "ENVIRONMENT":
            environment.append(Given(FLAGS[name], value, f"HEED_{name.upper()}"))
        else:
            line.append(Given(FLAGS[name], value, f"--{name}"))
    line += [assignment(text) for text in settings]
    line += [
        Given(name, value, "command line") for name, value in (("files", files), ("valid", valid)) if value
    ]
    for one in line:
        if one.path in ("train.folder", "train.resume"):
            raise ConfigError(f"{one.path} is said by --folder and --resume, not by --set")
    return environment + line


def show_settings(chosen: Chosen, json: bool) -> None:
    """Every setting, and where it came from."""
    from heedful.runs.settings import flat, plain

    values = flat(plain(chosen.recipe)) | {
        k: list(getattr(chosen, k)) for k in ("files", "valid") if getattr(chosen, k)
    }
    if json:
        listed = {k: {"value": v, "from": chosen.origins.get(k, "default")} for k, v in values.items()}
        return as_json({"name": chosen.name, "settings": listed})
    rows = table("setting", "value", "from", whole=("setting",))
    for path, value in values.items():
        rows.add_row(path, str(value).replace("[", "\\["), chosen.origins.get(path, "default"))
    console().print(rows)


def show_rehearsal(found: dict[str, Any], json: bool) -> None:
    """What a dry run found."""
    if json:
        return as_json(found)
    rows = table("what", "value")
    for name, value in found.items():
        unit = "B" if name.endswith("_bytes") else ""
        text = short(value, unit) if unit else f"{value:,}" if isinstance(value, int) else str(value)
        rows.add_row(name.removesuffix("_bytes").replace("_", " "), text)
    console().print(rows)


def finished(chosen: Chosen, result: Result, json: bool) -> None:
    """The summary, and the checkpoint's path as the last line."""
    values = {f"eval_{n}": v for n, v in result.valid.items()}
    if json:
        about = {
            "name": chosen.name,
            "parameters": result.parameters,
            "steps": result.steps,
            "tokens": result.tokens,
        }
        more = {"seconds": round(result.seconds, 2), "train_loss": result.loss, "best_step": result.best_step}
        return as_json(
            about | more | values | {"stopped_early": result.stopped, "checkpoint": str(result.checkpoint)}
        )
    rows = table("run", chosen.name)
    rows.add_row("parameters", f"{result.parameters:,}")
    rows.add_row("steps", f"{result.steps:,}" + (" (stopped early)" if result.stopped else ""))
    rows.add_row("tokens read", f"{result.tokens:,}")
    rows.add_row("seconds", f"{result.seconds:.1f}")
    rows.add_row("train loss", f"{result.loss:.4f}")
    for name, value in result.valid.items():
        rows.add_row(
            f"eval {name}", f"{value:.4f}" + (f"  (step {result.best_step})" if name == "loss" else "")
        )
    console().print(rows)
    print(result.checkpoint)
