"""A look around in half a minute, on models that need no download.

python examples/tour.py
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import heedful
from heedful.core.errors import NotFound
from heedful.models.base import LM, Model

console = Console(width=100)
SHADES = "·░▒▓█"


def counting() -> None:
    """How large published models are, without making them."""
    table = Table(title="Counted, not loaded: heedful.count(name)", title_justify="left")
    for heading in ("model", "parameters", "active", "FLOPs per token", "memory per token"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name in ("bert-base-uncased", "gpt2", "t5-small", "mamba-130m", "llama-7b", "gpt3", "deepseek-v3"):
        c = heedful.count(name)
        table.add_row(
            name,
            f"{c.parameters:,}",
            f"{c.active:,}",
            f"{c.flops_per_token:.2e}",
            f"{c.kv_bytes_per_token:,} B",
        )
    console.print(table)


def answering(model: Model, question: str, limit: int = 24) -> None:
    """A published chat model, read from GGUF, one token at a time."""
    assert isinstance(model, LM)
    prompt = model.tokenizer.encode(
        model.tokenizer.chat([{"role": "user", "content": question}]), special=False
    )
    state = model.start(torch.tensor([prompt]), length=len(prompt) + limit)
    logits, words = state.logits, []  # (1, V)
    for _ in range(limit):
        token = int(logits.argmax())
        if token == model.tokenizer.eos:
            break
        words.append(token)
        with torch.no_grad():
            logits = model.step(torch.tensor([[token]]), state)[:, -1]
    console.print(f"[bold]you[/]    {question}\n[bold]model[/]  {model.tokenizer.decode(words)}\n")


def attending(model: Model, text: str, name: str = "blocks.8.attn.pattern") -> None:
    """One head's attention on a sentence: real numbers, shaded."""
    ids = model.tokenizer.encode(text)
    pieces = [model.tokenizer.decode([i]) for i in ids]
    watch = heedful.Watch(name)
    with torch.no_grad():
        model(torch.tensor([ids]), watch=watch)
    pattern = watch[name][0]
    sharpest = int((pattern[:, 1:, 1:].amax(-1)).mean(-1).argmax())
    console.print(f"{name}, head {sharpest}: each row is a word, darker is more attention", style="italic")
    for piece, row in zip(pieces, pattern[sharpest], strict=True):
        shades = "".join(2 * SHADES[min(len(SHADES) - 1, int(weight * 8))] for weight in row.tolist())
        console.print(f"{piece.strip():>12} {shades}")
    console.print()


def comparing(model: Model) -> None:
    """Sentence vectors: what is near what."""
    query, *others = ["Seattle motel", "Seattle hotel", "a hotel in Paris", "The cat sat on the mat"]
    vectors = heedful.embed(model, [query, *others])
    console.print(f"How near is [bold]{query}[/] to …   (all-MiniLM-L6-v2)")
    for other, near in zip(others, (vectors[1:] @ vectors[0]).tolist(), strict=True):
        console.print(f"  {near:6.3f}  {other}")
    console.print()


def main() -> None:
    counting()
    console.print()
    try:
        chat = heedful.load("smollm2-135m-instruct")
        answering(chat, "What is the capital of France?")
        attending(chat, "The cat sat on the mat because it was tired")
        comparing(heedful.load("all-minilm-l6-v2"))
    except NotFound as missing:
        console.print(f"[yellow]{missing}[/]")
    console.print(
        "Next: [bold]heed ls[/], [bold]heed show llama-7b[/], [bold]heed count gpt3[/], and README.md"
    )


if __name__ == "__main__":
    main()
