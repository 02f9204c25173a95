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
    """What a model card is made from."""

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


def card(about: Card) -> str:
    """The whole text."""
    return f"---\n{head(about)}---\n\n{body(about)}"


def numbers(scores: dict[str, Any]) -> dict[str, float]:
    """The scores that are one number, without counts of what was scored."""
    return {name: float(v) for name, v in scores.items() if isinstance(v, int | float) and name not in COUNTS}


def head(about: Card) -> str:
    """license, base_model, pipeline_tag, metrics, model-index."""
    import yaml

    found = numbers(about.scores)
    results = [
        {"type": METRICS.get(name, name), "name": name, "value": round(value, 4)}
        for name, value in found.items()
    ]
    data = {"name": about.validation, "type": about.data}
    result = {"task": {"type": about.task}, "dataset": data, "metrics": results}
    said = {
        "license": "unknown",
        "library_name": "heedful",
        "base_model": about.base,
        "pipeline_tag": about.task,
        "metrics": list(dict.fromkeys(METRICS.get(name, name) for name in found if name != "loss")),
        "model-index": [{"name": about.title, "results": [result]}],
    }  # fmt: skip
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)


def body(about: Card) -> str:
    """How to use it, what it was trained on, what it scores."""
    rows = "\n".join(f"| {name} | {shown(value)} |" for name, value in about.scores.items())
    settings = ", ".join(f"{name} {value}" for name, value in about.settings.items())
    labels = f"\n## Labels\n\n{', '.join(f'`{name}`' for name in about.labels)}\n" if about.labels else ""
    return f"""# {about.title}

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


def shown(value: Any) -> str:
    """A score as people read it."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " – ".join(f"{v:.4f}" for v in value)
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"`{value}`"
        if isinstance(value, str)
        else json.dumps(value)
    )
