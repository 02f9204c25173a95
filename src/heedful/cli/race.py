"""`heed race`: RNNs, Transformers and what came after, side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.options import command_words
from heedful.cli.output import Json, Quiet, as_json
from heedful.core.errors import InputError

if TYPE_CHECKING:
    import torch

    from heedful.classroom.experiments.system_race import Race
    from heedful.classroom.experiments.translation_race import TranslationRace

# Options of `heed race` and `heed scale`.
TextFiles = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]…", help="Texts to train on; by default one that comes along."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Small models on little text: minutes on two cores.")]
Device = Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda, cuda:1 …")]


def race_command(
    context: typer.Context,
    files: TextFiles = None,
    translation: Annotated[
        bool, typer.Option("--translation", help="Compare translators instead, on a file of pairs.")
    ] = False,
    quick: Quick = False,
    systems: Annotated[
        str | None, typer.Option(help="Compare only these, with commas between: rnn,lstm,gpt2 …")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(help="Measure only these: layers,generation,loss,positions,gradients,tasks."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of each system, instead of the usual number.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Measure so many systems at once, each in a process of its own.")
    ] = 1,
    device: Device = "auto",
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where all goes. [default: runs/race]")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare systems of one size on one text; the last line printed is the path of the report.

    RNN, LSTM, GRU, Transformers with GPT-2's and LLaMA's blocks, linear attention, GLA, Based, S4 and Mamba:
    loss over tokens and seconds, time of a layer by length and width, time and memory of one more token, loss
    by position, how far gradients reach back, and accuracy by distance on copy, recall, induction and needle.
    Ctrl-C keeps what was measured, and the same command continues. Without --quick models are larger, for
    a GPU.

    Examples:

      heed race --quick

      heed race --quick --systems rnn,lstm,gpt2 novel.txt -o runs/novel-race

      heed race --translation pairs.tsv --device cuda
    """
    from heedful.classroom.experiments.measurement_store import finish_experiment

    where = folder or Path("runs") / ("translation-race" if translation else "race")
    names = {"systems": systems, "parts": parts}
    changes: dict[str, Any] = {n: tuple(v.split(",")) for n, v in names.items() if v is not None}
    changes |= {"steps": steps} if steps is not None else {}
    race = open_race(where, files or [], changes, translation, quick, *start_report(device, quick, quiet))
    words = command_words(context, leave_out=("folder", "systems", "jobs", "json"))
    named = race.settings.systems if jobs > 1 else ()
    beside = {name: ["race", "-o", str(where), "--systems", name, *words] for name in named}
    page = finish_experiment(race, where, shown_command(context), beside, jobs)
    if json:
        return as_json({"report": str(page), "folder": str(where)})
    print(page)


def open_race(
    folder: Path, files: list[str], changes: dict[str, Any], translation: bool, quick: bool,
    device: torch.device, report: Callable[[str], None],
) -> Race | TranslationRace:  # fmt: skip
    """Return the race of language models or of translators, with `changes` of its usual settings."""
    if translation:
        from heedful.classroom.experiments.translation_race import (
            FULL_TRANSLATION,
            QUICK_TRANSLATION,
            TranslationRace,
        )

        if "parts" in changes:
            raise InputError("--parts is of a race of language models", hint="leave it or --translation out")
        settings = replace(QUICK_TRANSLATION if quick else FULL_TRANSLATION, **changes)
        return TranslationRace(folder, files, settings, device, report)
    from heedful.classroom.experiments.system_race import FULL, QUICK, Race

    return Race(folder, files, replace(QUICK if quick else FULL, **changes), device, report)


def start_report(device: str, quick: bool, quiet: bool) -> tuple[torch.device, Callable[[str], None]]:
    """Return the device of a comparison and what shows a line of progress on stderr, or nothing if quiet."""
    from heedful.core.devices import resolve_device

    found = resolve_device(device)
    report = (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    if not quick and found.type == "cpu":
        report("note: without --quick this takes hours on a CPU; Ctrl-C keeps what was measured")
    return found, report


def shown_command(context: typer.Context) -> str:
    """Return the command line that was typed, for a report."""
    words = [word for word in command_words(context, leave_out=("folder", "quiet", "json")) if word != "--"]
    words = [f"{float(word):g}" if re.fullmatch(r"\d+\.0", word) else word for word in words]  # 1e+12
    return " ".join(["heed", context.info_name or "", *words])
