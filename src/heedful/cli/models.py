"""`heed show`, `count` and `ls`: models without their weights; and the models that every command names."""

from __future__ import annotations

import importlib.metadata
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.terminal import SUFFIXES, Json, as_json, console, format_size, print_listing, print_table
from heedful.core.checks import Argument, Option, check_choice
from heedful.core.errors import ConfigError, HeedfulError
from heedful.core.processes import is_first
from heedful.core.progress import print_above, show_progress

if TYPE_CHECKING:
    from rich.text import Text

    from heedful.interp.observe.show import TreeNode
    from heedful.models.base import Model
    from heedful.models.counting import Count
    from heedful.models.family import Family


def show_command(
    model: Annotated[str, Argument("A preset (gpt2), a family, a folder or a .gguf file.")],
    names: Annotated[bool, Option("List the values that a Watch can see, with shapes, instead.")] = False,
    json: Json = False,
) -> None:
    """Show the tree of a model: its parts, their shapes, parameters and equations.

    Layers that are alike are drawn once.

    Examples:
      heed show gpt2
      heed show gpt2 --names
      heed show ./my-model --json
    """
    with show_progress(f"assembling {model}"):
        from heedful.interp.observe.show import model_tree, node_to_dict
        from heedful.weights.loading import skeleton

        outline = skeleton(model)
    if names and json:
        return as_json({name: list(shape) for name, shape in outline.names().items()})
    if names:
        return _print_names(outline)
    root = model_tree(outline)
    root.name = model
    if json:
        values = {f.name: getattr(outline.config, f.name) for f in fields(outline.config)}
        plain = {k: v if isinstance(v, int | float | str | None) else str(v) for k, v in values.items()}
        row = {"model": model, "family": outline.family.name, "config": plain}
        return as_json(row | {"tree": node_to_dict(root)})
    from rich.text import Text

    shown = ("layers", "dim", "heads", "kv_heads", "hidden", "context", "vocab", "head")
    sizes = {name: value for name in shown if (value := getattr(outline.config, name, None)) is not None}
    listed = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in sizes.items())
    paper = f"  ·  {outline.family.paper}" if outline.family.paper else ""
    about = f"{root.parameters:,} parameters  ·  {listed}\n"
    out = console()
    out.print(Text.assemble((model, "bold"), f"{paper}\n", (about, "dim")))
    for line in _tree_lines(root, "", "", set(), out.width):
        out.print(line, overflow="fold", no_wrap=False)


def _print_names(model: Model) -> None:
    """Print the names that a Watch takes: B is the batch, T the length, S that of a source."""
    from rich.text import Text

    from heedful.interp.observe.show import value_rows

    out, rows = console(), value_rows(model)
    shapes = [f"({', '.join(map(str, row.shape))})" for row in rows]
    wide, high = max(len(row.name) for row in rows), max(map(len, shapes))
    for row, shape in zip(rows, shapes, strict=True):
        line = Text.assemble((f"{row.name:{wide}}  ", "bold cyan"), (f"{shape:{high}}  ", "green"))
        out.print(line.append(row.meaning, "dim"), overflow="fold", no_wrap=True)


def _tree_lines(node: TreeNode, first: str, indent: str, kinds_shown: set[str], width: int) -> list[Text]:
    """Return the lines of a node and everything below it.

    `first` and `indent` are the branches before its first and its other lines. The equation of a kind in
    `kinds_shown` is not repeated.
    """
    from rich.text import Text

    count = f"{node.parameters:,}" + (f" × {node.times}" if node.times > 1 else "")
    note = f"= {node.tied}" if node.tied else count if node.parameters else ""
    settings = "  ".join(f"{k} {v:,}" for k, v in node.settings.items())
    line = Text.assemble(
        (first, "dim"), (node.name, "bold cyan"), "  ", (node.kind, "" if node.equation else "dim"),
        (f"  {node.shape}" if node.shape else "", "green"), (f"  {settings}" if settings else "", "dim"),
    )  # fmt: skip
    gap = max(2, min(width, 100) - line.cell_len - len(note))
    out = [line.append(" " * gap + note, "yellow") if note else line]
    below = indent + ("│   " if node.children else "    ")
    if node.equation and node.kind not in kinds_shown:
        kinds_shown.add(node.kind)
        for piece in textwrap.wrap(node.equation, max(20, min(width, 110) - len(below))):
            out.append(Text.assemble((below, "dim"), (piece, "italic magenta")))
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1
        branch, trunk = ("└── ", "    ") if last else ("├── ", "│   ")
        out += _tree_lines(child, indent + branch, indent + trunk, kinds_shown, width)
    return out


# `heed count`: the parameters, FLOPs and memory of a model.


def count_command(
    model: Annotated[str, Argument("A preset (gpt3), a family, a folder or a .gguf file.")],
    batch: Annotated[int, Option("Count a batch of N texts.", minimum=1)] = 1,
    length: Annotated[
        int | None, Option("Count texts of N tokens; by default the model's context.", minimum=1)
    ] = None,
    json: Json = False,
) -> None:
    """Count the parameters, FLOPs and memory of a model without building it.

    Examples:
      heed count gpt3
      heed count llama-7b --batch 8 --length 2048 --json
    """
    with show_progress(f"counting {model}"):
        from heedful.models.counting import count, describe
        from heedful.weights.loading import skeleton

        result = count(skeleton(model), batch, length)
    if json:
        return as_json(describe(result) | {"name": model})
    _print_count(model, result)


def _print_count(name: str, result: Count) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble((name, "bold"), f"  ·  {result.parameters:,} parameters\n"))
    share = lambda size: f"{size / result.parameters:.2%}"
    parts = [(part, f"{size:,}", share(size)) for part, size in result.components.items()]
    print_table(("part", "parameters", "share"), parts, right=("parameters", "share"))
    if result.heads:
        out.print()
        heads = [(kind, f"{size:,}") for kind, size in result.heads.items()]
        print_table(("task head", "adds"), heads, right=("adds",))
    texts = f"{result.batch} × {result.length:,} tokens"
    kv, source = result.kv_bytes_per_token, result.memory_bytes_per_token
    bytes, flops = (lambda size: format_size(size, "B")), (lambda size: format_size(size, "FLOP"))
    active = [("active per token", f"{result.active:,}", "parameters that a token passes through")]
    one, tokens = f"to compute one of {result.length:,} tokens", f"keys, values and states of {texts}"
    costs = active * (result.active != result.parameters) + [
        ("weights", bytes(result.weight_bytes), "stored in bfloat16"),
        ("forward, per token", flops(result.flops_per_token), one),
        ("forward", flops(result.flops), f"to compute {texts}"),
        ("memory, per token", bytes(kv), "keys and values that are kept"),
        ("memory, per source token", bytes(source), "keys and values of the source that are kept"),
        ("state", bytes(result.state_bytes), "of fixed size, however long the text is"),
        ("memory", bytes(result.cache_bytes), tokens),
    ]
    costs = [row for row in costs if row[1] != bytes(0)]
    out.print()
    print_table(("cost", "value", "meaning"), costs, right=("value",))
    # the true number of parameters, and those that papers and textbooks print
    by_matrices = (
        f"The sum of {result.matrices:,} matrices, as textbooks count: one per head, shared ones counted "
        "twice, without biases, norms and positions."
    )
    no_tables = "The size in scaling laws: without the embedding tables and the output matrix."
    accounts = [
        ("all", f"{result.parameters:,}", "Every trained number. A shared one counts once."),
        ("without embeddings", f"{result.without_embeddings:,}", no_tables),
        ("by matrices", f"{result.notes:,}", by_matrices),
    ]
    out.print()
    print_table(("counted", "parameters", "meaning"), accounts, right=("parameters",))


# `heed ls`: all presets, and the trained models on this machine.


# Columns that a narrow terminal leaves out, the first ones first.
PRESET_DROPS = ("paper", "parameters", "")
TRAINED_DROPS = ("from", "data licence", "base", "score", "size")


def ls_command(json: Json = False) -> None:
    """List presets by family, and the trained models on this machine: bundled, installed, and in ./models.

    The task, base model, data licence and score of a trained model are read from its card, README.md.
    Names are never cut: a narrow terminal gets fewer columns, --json has them all.

    Examples:
      heed ls
      heed ls --json
    """
    presets, models = read_known()["presets"], find_trained_models()
    if json:
        return as_json({"presets": presets, "models": models})
    out, family, preset_rows = console(), "", []
    for row in presets:  # the first preset of a family names it and its paper
        first, family, size = row["family"] != family, row["family"], row["parameters"]
        cells = {"family": family if first else "", "preset": row["name"], "parameters": f"{size:,}"}
        preset_rows.append(cells | {"": format_size(size), "paper": row["paper"] if first else ""})
    print_listing(out, preset_rows, right=("parameters", ""), min_widths={"paper": 20}, optional=PRESET_DROPS)
    out.print()
    columns = {"trained model": "name", "for": "for", "size": "size", "base": "base",
               "data licence": "data_license", "score": "score", "from": "from"}  # fmt: skip
    sized = [row | {"size": format_size(row["bytes"], "B")} for row in models]
    model_rows = [{column: str(row[name] or "–") for column, name in columns.items()} for row in sized]
    print_listing(
        out, model_rows, right=("size",), optional=TRAINED_DROPS,
        min_widths={"data licence": 14, "score": 20},
    )  # fmt: skip
    return None


def find_trained_models() -> list[dict[str, Any]]:
    """Return the trained models on this machine: the path of each, and what its card says."""
    from heedful.weights.hub import bundled_models, installed_models

    root = Path("models")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    folders = [p for p in folders if (p / "config.json").is_file() or p.suffix == ".gguf"]
    trained = [("heedful", name, path) for name, path in bundled_models().items()]
    trained += [("package", name, path) for name, path in installed_models().items()]
    trained += [("./models", path.name, path) for path in folders]
    # of the tasks that a model does, the first one that the table names
    default_tasks = {model: task for task, model in reversed(read_known()["models"].items())}
    return [
        {"name": name, "path": str(path), "from": source}
        | {"bytes": sum(p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file())}
        | read_card(path, default_tasks.get(name) if source != "./models" else None)
        for source, name, path in trained
    ]


def read_card(path: Path, default_task: str | None = None) -> dict[str, Any]:
    """Return what a model's card says in its YAML head; None where it says nothing."""
    head = _head(path / "README.md") if path.is_dir() else {}
    values = {name: head.get(name) for name in ("base_model", "license", "data_license")}
    joined = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in values.items()}
    about = {"for": head.get("pipeline_tag") or default_task, "what": head.get("what")}
    return about | {"base": joined.pop("base_model")} | joined | {"score": _score(head)}


def _head(path: Path) -> Mapping[str, Any]:
    """Return the YAML between two lines of --- at the top of a card; {} if there is none or it is broken."""
    import yaml

    text = path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else ""
    parts = text.split("\n---", 1)
    if not text.startswith("---\n") or len(parts) < 2:
        return {}
    try:
        head = yaml.safe_load(parts[0].removeprefix("---\n"))
    except yaml.YAMLError:
        return {}
    return head if isinstance(head, Mapping) else {}


def _score(head: Mapping[str, Any]) -> str | None:
    """Return the score of our cards, "SST-2 dev accuracy 91.2", or a model-index's first, "F1 91 (SST-2)"."""
    if "score" in head:
        return " ".join([*str(head.get("metric") or "").split(), _short(head["score"])])
    try:
        result = head["model-index"][0]["results"][0]
        metric, data = result["metrics"][0], result.get("dataset") or {}
        where = f" ({data['name']})" if data.get("name") else ""
        return f"{metric.get('name') or metric['type']} {_short(metric['value'])}{where}"
    except (TypeError, KeyError, IndexError, AttributeError):
        return None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


# Models that a command names, and the one it takes if none is named.
#
# `heed generate` takes a model, a text, or both. Of two arguments the first is the model. A single one is a
# model if it is written like one, else it is the text:
#
#     a name of `heed ls`       smollm2-135m-instruct, gpt2
#     a folder, or a .gguf      ./my-model, runs/gpt, tiny.gguf
#     a hub id                  owner/name: a slash, no spaces, and neither the suffix nor the place of a
#     file
#
# A text that is written like a model goes in by a pipe.


ModelArgument = Annotated[str, Argument("A folder, a run, a .gguf file, an installed model or a hub id.")]
Device = Annotated[str, Option("Compute on this device: auto, cpu, cuda, cuda:1 …", variable="HEED_DEVICE")]
Dtype = Annotated[
    str | None, Option("Compute in float32, bfloat16 or float16 instead of the file's own type.")
]

Processes = Annotated[
    int, Option("Split the model over N processes on this machine, one per GPU.", ("--nproc",), minimum=1)
]

MAX_CHARACTERS_OF_ONE_THREAD = 2000


def names_model(word: str) -> bool:
    """Return whether an argument is written like a model, by the rule above."""
    from heedful.weights.hub import BASES, bundled_models

    if not word or any(c.isspace() for c in word) or "://" in word:
        return False
    listing = read_known()
    presets = {row[key] for row in listing["presets"] for key in ("name", "family")}
    path = Path(word).expanduser()
    if word.lower() in {*BASES, *bundled_models(), *presets} or path.is_dir() or path.suffix == ".gguf":
        return True
    return "/" in word and path.suffix.lower() not in SUFFIXES and not path.is_file()


def default_model(task: str) -> str:
    """Return the model that a task takes if none is named, "" if it has none; print its name on stderr."""
    name: str = read_known()["models"].get(task, "")
    if name:
        print_above(f"model: {name} (heed ls lists others)")
    return name


@contextmanager
def few_threads(texts: Sequence[str]) -> Iterator[None]:
    """Compute in one thread where the texts are short: to wake others would take longer than they save."""
    from heedful.core.devices import one_thread

    with one_thread() if sum(map(len, texts)) <= MAX_CHARACTERS_OF_ONE_THREAD else nullcontext():
        yield


def check_gpus(count: int, device: str) -> None:
    """Raise ConfigError for more processes on GPUs than this machine has GPUs."""
    from heedful.core.devices import resolve_device

    if resolve_device(device).type == "cuda":
        import torch

        if count > (gpus := torch.cuda.device_count()):
            raise ConfigError(
                f"--nproc {count}: this machine has {gpus} GPUs", hint="use one process per GPU"
            )


@contextmanager
def split_processes(nproc: int, device: str) -> Iterator[Any]:
    """Join the processes that this one was launched with; yield their DeviceMesh, or None if it is alone.

    All of them run the same command. An error that all of them meet is printed by the first.
    """
    if nproc == 1:
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh

    from heedful.core.devices import resolve_device
    from heedful.train.distributed import processes

    kind = resolve_device(device).type
    with processes(gpu=kind == "cuda"):
        try:
            yield init_device_mesh(kind, (nproc,))
        except HeedfulError as error:
            if is_first():
                raise
            raise typer.Exit(error.exit_code) from None


def load_model(name: str, device: str, dtype: str | None, mesh: Any = None) -> Any:
    """Load a model by any of its names, onto a device and in a precision, and split it over a mesh."""
    with show_progress(f"loading {name}"):
        import torch

        from heedful.core.devices import resolve_device
        from heedful.train.checkpoint import of_run
        from heedful.weights.loading import load

        if dtype is not None:
            check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
        wanted = None if dtype is None else getattr(torch, dtype)
        return load(of_run(name), device=resolve_device(device), dtype=wanted, mesh=mesh)


def load_stepper(
    name: str, device: str, dtype: str | None, rows: int = 1, tokens: int | None = None, mesh: Any = None
) -> Any:
    """Load a model and return the stepper that pays for this many rows and tokens, or its fastest."""
    model = load_model(name, device, dtype, mesh)
    with show_progress(f"preparing {name}"):
        from heedful.decode.fast import choose_stepper, fast

        return fast(model) if tokens is None else choose_stepper(model, rows, tokens)


# Every preset and the model of every task, written down: `heed ls` and help need not import torch.
#
# `python -m heedful.cli.models` writes the list anew; a test says when that is due.


FILE = Path(__file__).with_name("known_models.json")


def read_known() -> dict[str, Any]:
    """Return {"presets": [{"name", "family", "parameters", "paper"}], "models": {task: model}}.

    The model of a task is the one that is taken if none is named.
    """
    listing: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    if os.environ.get("HEED_IMPORT") or importlib.metadata.entry_points(group="heedful.families"):
        from heedful.models import BUILT_IN, all_families

        outside = [family for name, family in all_families().items() if name not in BUILT_IN]
        listing["presets"] += [row for family in outside for row in describe_presets(family)]
    return listing


def count_known() -> dict[str, Any]:
    """Return the same of our own families, counted from the registry of models and the table of tasks."""
    from heedful.models import FAMILIES, MEDIA_FAMILIES
    from heedful.tasks.registry import task_names

    presets = [row for f in (*FAMILIES.values(), *MEDIA_FAMILIES.values()) for row in describe_presets(f)]
    return {"presets": presets, "models": dict(task_names())}


def describe_presets(family: Family) -> list[dict[str, Any]]:
    """Return a row for each preset of a family; a family of others without any is listed by its own name."""
    from heedful.models import BUILT_IN
    from heedful.models.counting import backbone_parameters

    default = {} if family.name in BUILT_IN else {family.name: family.config.strict()}
    row = lambda name, size: {"name": name, "family": family.name, "parameters": size, "paper": family.paper}
    presets = family.presets or default
    return [row(name, backbone_parameters(family, config)) for name, config in presets.items()]


if __name__ == "__main__":
    FILE.write_text(json.dumps(count_known(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
