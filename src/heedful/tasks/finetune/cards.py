"""Model cards: README.md beside a checkpoint, with the YAML head that the hub reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

# What the hub calls our scores.
METRICS = {
    "macro_f1": "f1",
    "bleu": "sacrebleu",
    "rougeL": "rouge",
    "rouge1": "rouge",
    "rouge2": "rouge",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
COUNTS = ("rows", "questions", "sentences")


@dataclass(frozen=True)
class Card:
    """The contents of a model card."""

    title: str
    base: str
    task: str  # the pipeline's name
    use: str  # the line of Python that uses it
    command: str
    data: str  # the file's name
    sha256: str
    train_rows: int
    validation: str  # the data that were scored
    measured: str  # how, as a sentence
    trained: str  # by how many steps, or otherwise
    scores: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)


def card_head(about: Card) -> str:
    """Return the YAML head: license, base_model, pipeline_tag, metrics, model-index."""
    import yaml

    single = {n: v for n, v in about.scores.items() if isinstance(v, int | float) and n not in COUNTS}
    results = [
        {"type": METRICS.get(name, name), "name": name, "value": round(float(value), 4)}
        for name, value in single.items()
    ]
    data = {"name": about.validation, "type": about.data}
    result = {"task": {"type": about.task}, "dataset": data, "metrics": results}
    values = {
        "license": "unknown",
        "library_name": "heedful",
        "base_model": about.base,
        "pipeline_tag": about.task,
        "metrics": list(dict.fromkeys(METRICS.get(name, name) for name in single if name != "loss")),
        "model-index": [{"name": about.title, "results": [result]}],
    }  # fmt: skip
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def card_text(about: Card) -> str:
    """Return the whole card: the head, how to use the model, what it scores, how it was trained."""
    rows = "\n".join(f"| {name} | {format_score(value)} |" for name, value in about.scores.items())
    settings = ", ".join(f"{name} {value}" for name, value in about.settings.items())
    labels = f"\n## Labels\n\n{', '.join(f'`{name}`' for name in about.labels)}\n" if about.labels else ""
    return f"""---
{card_head(about)}---

# {about.title}

`{about.base}`, fine-tuned for {about.task} with heedful.

```python
import heedful

pipe = {about.use}
```

## Scores

{about.measured}

| score | value |
| --- | --- |
{rows}
{labels}
## Training

- data: `{about.data}`, {about.train_rows:,} examples to learn from; sha256 of the file `{about.sha256}`
- {about.trained}; {settings}
- licence: not stated. It follows from those of the base model and of the data.

```
{about.command}
```
"""


def format_score(value: Any) -> str:
    """Return a score as people read it."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " – ".join(f"{v:.4f}" for v in value)
    if isinstance(value, str):
        return f"`{value}`"
    return f"{value:,}" if isinstance(value, int) else json.dumps(value)
