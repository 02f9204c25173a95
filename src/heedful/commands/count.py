"""`heed count`: what a model costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.output import Json, as_json, console, short, table

if TYPE_CHECKING:
    from heedful.models.counting import Count


def count(
    model: Annotated[str, typer.Argument(help="A preset (gpt3), a family, a folder, a .gguf file.")],
    batch: Annotated[int, typer.Option(min=1, help="How many texts at once.")] = 1,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens in each; the context by default.")] = None,
    json: Json = False,
) -> None:
    """Parameters, FLOPs and memory of a model, counted without making it.

    Examples:

      heed count gpt3

      heed count llama-7b --batch 8 --length 2048 --json
    """
    from heedful.loading import skeleton
    from heedful.models.counting import count as counted
    from heedful.models.counting import describe

    found = counted(skeleton(model), batch, length)
    if json:
        return as_json(describe(found) | {"name": model})
    _print(model, found)


def _print(name: str, found: Count) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble((name, "bold"), f"  ·  {found.parameters:,} parameters"))
    parts = table("part", "parameters", "share", right=("parameters", "share"))
    for part, size in found.components.items():
        parts.add_row(part, f"{size:,}", f"{size / found.parameters:.2%}")
    out.print()
    out.print(parts)
    if found.heads:
        heads = table("task head", "adds", right=("adds",))
        for kind, size in found.heads.items():
            heads.add_row(kind, f"{size:,}")
        out.print()
        out.print(heads)
    out.print()
    out.print(_costs(found))
    out.print()
    out.print(_accounts(found))


def _costs(found: Count) -> object:
    texts = f"{found.batch} × {found.length:,} tokens"
    costs = table("cost", "value", "", right=("value",))
    if found.active != found.parameters:
        costs.add_row("active per token", f"{found.active:,}", "parameters that one token meets")
    costs.add_row("weights", short(found.weight_bytes, "B"), "in bfloat16")
    costs.add_row("forward, per token", short(found.flops_per_token, "FLOP"), f"at length {found.length:,}")
    costs.add_row("forward", short(found.flops, "FLOP"), texts)
    if found.kv_bytes_per_token:
        costs.add_row("memory, per token", short(found.kv_bytes_per_token, "B"), "what attention remembers")
    if found.memory_bytes_per_token:
        size = short(found.memory_bytes_per_token, "B")
        costs.add_row("memory, per source token", size, "what cross-attention remembers")
    if found.state_bytes:
        costs.add_row("state", short(found.state_bytes, "B"), "however long the text is")
    if found.cache_bytes:
        costs.add_row("memory", short(found.cache_bytes, "B"), texts)
    return costs


def _accounts(found: Count) -> object:
    """The true number beside the one that textbooks print."""
    accounts = table("accounting", "parameters", "", right=("parameters",))
    accounts.add_row("true", f"{found.parameters:,}", "every number that was trained, a shared one once")
    accounts.add_row(
        "by matrices", f"{found.notes:,}",
        f"in {found.matrices:,} matrices: each head's apart, tied ones twice; no biases, norms, positions",
    )  # fmt: skip
    return accounts
