"""What the two scripts that teach SmolLM2 to summarise have in common: learning by epochs, and writing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

import heedful
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.tokenization import find_template
from heedful.models.base import Model
from heedful.tasks.examples import Examples
from heedful.tasks.pipelines.text2text import Summarization
from heedful.tasks.registry import bind_task


def summariser(model: Model) -> Summarization:
    """The task bound to a model, with the prompt that it learns by."""
    task = bind_task(Summarization, Summarization.attach_head(model, Examples([], []), 0)[0])
    assert isinstance(task, Summarization)
    return task


def learnt(
    task: Summarization, train: Batches, held: Batches, config: heedful.TrainConfig, until: float,
    checks: int | None = None,
) -> float:  # fmt: skip
    """The adapter of the epoch with the lowest loss on held-back texts is put in place; that loss.

    `until`, a time of perf_counter, ends it early; `checks` is how many held-back batches are looked at.
    """
    model, best, kept, began = task.model, float("inf"), dict[str, torch.Tensor](), time.perf_counter()
    for step in heedful.fit(model, task.objective, train, config):
        now, where = time.perf_counter(), f"step {step.number} of {config.steps}"
        last = step.number == config.steps or now > until
        if step.number % 20 == 0:
            print(f"{where} loss {step.loss:.3f} {now - began:.0f} s", flush=True)
        if step.number % len(train) == 0 or last:
            loss = step.evaluate(held, checks)["loss"]
            print(f"{where} held back {loss:.4f}", flush=True)
            if loss < best:
                best = loss
                kept = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        if last:
            break
    model.load_state_dict(kept, strict=False)
    return best


def written(
    task: Summarization, texts: Sequence[str], how: BatchOptions, rows: int, **rules: Any
) -> list[str]:
    """A summary for each, `rows` at once, alike lengths together; `rules` are `generate`'s."""
    model, tokenizer = task.model, task.tokenizer
    before = list(find_template(tokenizer).before)
    prompts = task.decoder_prompts(texts, [""] * len(texts), how)
    asked = [before + tokenizer.encode(text, special=False) for text in prompts]
    order, out = sorted(range(len(asked)), key=lambda i: len(asked[i])), [""] * len(asked)
    for at in range(0, len(order), rows):
        some = order[at : at + rows]
        for i, ids in zip(some, heedful.generate(model, [asked[i] for i in some], **rules), strict=True):
            out[i] = tokenizer.decode(ids).strip()
        print(f"{at + len(some)} of {len(order)} summaries", flush=True)
    return out
