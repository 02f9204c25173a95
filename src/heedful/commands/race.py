"""`heed race`: RNNs, Transformers and what came after, side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.output import Json, as_json

if TYPE_CHECKING:
    from heedful.experiments.system_race import Race
    from heedful.experiments.translation_race import TranslationRace


def race_command(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]…", help="Texts to train on; by default one that comes along."),
    ] = None,
    translation: Annotated[
        bool, typer.Option("--translation", help="Compare translators instead, on a file of pairs.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small models and few steps: minutes on two cores.")
    ] = False,
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
    device: Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda, cuda:1 …")] = "auto",
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where all goes. [default: runs/race]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
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
    from heedful.devices import resolve_device
    from heedful.experiments.experiment import finish_experiment

    chosen = tuple(systems.split(",")) if systems is not None else None
    chosen_parts = tuple(parts.split(",")) if parts is not None else None
    where = folder or Path("runs") / ("translation-race" if translation else "race")
    report = progress_lines(quiet)
    if not quick and resolve_device(device).type == "cpu":
        report("note: without --quick this takes hours on a CPU; Ctrl-C keeps what was measured")
    race: Race | TranslationRace
    if translation:
        from heedful.experiments.translation_race import TranslationRace, translation_settings

        race = TranslationRace(
            where, files or [], translation_settings(quick, chosen, steps), resolve_device(device), report
        )
    else:
        from heedful.experiments.race_settings import race_settings
        from heedful.experiments.system_race import Race

        race = Race(
            where,
            files or [],
            race_settings(quick, chosen, chosen_parts, steps),
            resolve_device(device),
            report,
        )

    def measure_beside() -> None:
        from heedful.commands.options import command_words
        from heedful.experiments.worker_processes import run_workers

        words = command_words(context, leave_out=("folder", "systems", "jobs", "json"))
        named = race.settings.systems if jobs > 1 else ()
        run_workers({n: ["race", "-o", str(where), "--systems", n, *words] for n in named}, jobs)

    page = finish_experiment(race, where, shown_command(context), measure_beside)
    if json:
        return as_json({"report": str(page), "folder": str(where)})
    print(page)


def progress_lines(quiet: bool) -> Callable[[str], None]:
    """Return what shows a line of progress on stderr, or nothing if the command is to be quiet."""
    return (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))


def shown_command(context: typer.Context) -> str:
    """Return the command line that was typed, for a report."""
    from heedful.commands.options import command_words

    words = [word for word in command_words(context, leave_out=("folder", "quiet", "json")) if word != "--"]
    words = [f"{float(word):g}" if re.fullmatch(r"\d+\.0", word) else word for word in words]  # 1e+12
    return " ".join(["heed", context.info_name or "", *words])
