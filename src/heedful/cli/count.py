"""`heed count`: the parameters, FLOPs and memory of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.output import Json, as_json, console, format_size, make_table
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from heedful.models.counting import Count


def count_command(
    model: Annotated[str, typer.Argument(help="A preset (gpt3), a family, a folder or a .gguf file.")],
    batch: Annotated[int, typer.Option(min=1, help="Number of texts in a batch.")] = 1,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in each text; the model's context by default.")
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
    out.print(Text.assemble((name, "bold"), f"  ·  {result.parameters:,} parameters"))
    parts = make_table("part", "parameters", "share", right=("parameters", "share"))
    for part, size in result.components.items():
        parts.add_row(part, f"{size:,}", f"{size / result.parameters:.2%}")
    out.print()
    out.print(parts)
    if result.heads:
        heads = make_table("task head", "adds", right=("adds",))
        for kind, size in result.heads.items():
            heads.add_row(kind, f"{size:,}")
        out.print()
        out.print(heads)
    out.print()
    out.print(_costs(result))
    out.print()
    out.print(_accounts(result))


def _costs(result: Count) -> object:
    texts = f"{result.batch} × {result.length:,} tokens"
    costs = make_table("cost", "value", "", right=("value",))
    if result.active != result.parameters:
        costs.add_row("active per token", f"{result.active:,}", "parameters that one token meets")
    costs.add_row("weights", format_size(result.weight_bytes, "B"), "in bfloat16")
    costs.add_row(
        "forward, per token", format_size(result.flops_per_token, "FLOP"), f"at length {result.length:,}"
    )
    costs.add_row("forward", format_size(result.flops, "FLOP"), texts)
    if result.kv_bytes_per_token:
        costs.add_row(
            "memory, per token", format_size(result.kv_bytes_per_token, "B"), "what attention remembers"
        )
    if result.memory_bytes_per_token:
        size = format_size(result.memory_bytes_per_token, "B")
        costs.add_row("memory, per source token", size, "what cross-attention remembers")
    if result.state_bytes:
        costs.add_row("state", format_size(result.state_bytes, "B"), "however long the text is")
    if result.cache_bytes:
        costs.add_row("memory", format_size(result.cache_bytes, "B"), texts)
    return costs


def _accounts(result: Count) -> object:
    """Return the true number of parameters beside the one that textbooks print."""
    accounts = make_table("accounting", "parameters", "", right=("parameters",))
    accounts.add_row("true", f"{result.parameters:,}", "every number that was trained, a shared one once")
    accounts.add_row(
        "without embeddings", f"{result.without_embeddings:,}",
        "the size that scaling laws speak of: no embedding tables, no output matrix",
    )  # fmt: skip
    accounts.add_row(
        "by matrices", f"{result.notes:,}",
        f"in {result.matrices:,} matrices: each head's apart, tied ones twice; no biases, norms, positions",
    )  # fmt: skip
    return accounts
