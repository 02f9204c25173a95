"""What a fine-tuned model learnt: its task, its inputs, its labels and its score, kept in config.json.

A head does not tell whether it learnt from one text or from a pair of texts, and it answers either without
a complaint. Its folder therefore says what it learnt from, in the section `task_specification`. Pipelines,
`heed eval` and the commands of tasks read that section, and refuse an input that the model never learnt.
A model without the section, such as a published one, takes what its head takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.core.errors import ConfigError, InputError
from heedful.models.hf_config import read_config
from heedful.weights.hub import resolve

if TYPE_CHECKING:
    from heedful.models.base import Model
    from heedful.tasks.examples import ColumnFlags, Role
    from heedful.tasks.task import TrainableTask

KEY = "task_specification"  # of config.json
TARGET_FLAG = "--label"  # names the column with the answer; the columns of other flags are inputs


@dataclass(frozen=True)
class TaskSpecification:
    """The contract of a fine-tuned model: what it takes, what it answers, and how well."""

    task: str  # the name of the pipeline, "text-classification"
    command: str  # the name in `heed finetune` and `heed eval`, "classify"
    inputs: Mapping[str, str]  # role → the column it learnt from, in the order in which the model reads them
    target: str | None = None  # the column with the answers
    labels: tuple[str, ...] = ()
    separator: str | None = None  # between several labels in one cell
    merge_labels: bool = False  # whether labels that differ by case or white space were made one
    max_length: int | None = None  # tokens of a text in training; longer ones were cut there
    metric: str | None = None
    score: float | None = None
    score_interval: tuple[float, ...] | None = None  # where 95 % of such scores lie
    validation: str | None = None  # what the score was measured on
    data_sha256: str | None = None  # of the file it learnt from

    @classmethod
    def of_training(
        cls, task: TrainableTask, columns: Mapping[str, str], labels: Sequence[str], max_length: int
    ) -> TaskSpecification:
        """Return what a model learns: a task, from the columns of these roles."""
        required = {name: name for name, role in task.roles.items() if not role.optional}
        roles = dict(columns) or required
        inputs = {name: column for name, column in roles.items() if task.roles[name].flag != TARGET_FLAG}
        target = next((column for name, column in roles.items() if name not in inputs), None)
        length = max_length if task.has_length else None
        return cls(
            task.task, task.command, inputs, target, tuple(labels), max_length=length, metric=task.metric
        )

    @classmethod
    def of(cls, model: Model, command: str | None = None) -> TaskSpecification | None:
        """Return the specification of a loaded model; None: it has none, or not one of this command."""
        learnt = cls.parse(model.hf_config)
        return learnt if learnt is None or command in (None, learnt.command) else None

    @classmethod
    def of_folder(cls, name: str | Path) -> TaskSpecification | None:
        """Return the specification of a saved model without loading its weights; None: it has none."""
        folder = resolve(name)
        return cls.parse(read_config(folder)) if (folder / "config.json").is_file() else None

    @classmethod
    def parse(cls, hf_config: Mapping[str, Any]) -> TaskSpecification | None:
        """Return the specification in a config.json; None: it has none."""
        section = hf_config.get(KEY)
        if section is None:
            return None
        try:
            values = {f.name: section[f.name] for f in fields(cls) if f.name in section}
            values["inputs"] = {str(one["role"]): str(one["column"]) for one in section["inputs"]}
            values |= {name: tuple(values[name]) for name in ("labels", "score_interval") if name in values}
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"config.json: {KEY} is damaged ({type(error).__name__}: {error})",
                hint="fine-tune the model again, or delete that section",
            ) from None

    def write(self, model: Model) -> None:
        """Put the specification into a model's config, with which it is saved."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        # config.json has its keys in alphabetical order, and the order of inputs matters.
        inputs = [{"role": role, "column": column} for role, column in self.inputs.items()]
        model.hf_config = model.hf_config | {KEY: values | {"inputs": inputs}}

    @property
    def described_inputs(self) -> str:
        """The inputs in words: "a pair of texts (the columns 'premise' and 'hypothesis')"."""
        return describe_inputs(list(self.inputs.values()))

    def check_input(self, count: int, number: int) -> None:
        """Raise InputError for an input of `count` texts, given with its number, if it learnt another."""
        if count == len(self.inputs):
            return
        what = f"this model learnt from {self.described_inputs}, and input {number} is"
        if count == 1:
            columns = quote_names(self.inputs.values())
            table = f"a .csv, .tsv or .jsonl file with the columns {columns}"
            raise InputError(f"{what} one text", hint=f'give {{"text": …, "text_pair": …}}, or {table}')
        raise InputError(f"{what} a pair of texts", hint="give one text")

    def check_columns(self, path: str, columns: Mapping[str, str], roles: Mapping[str, Role]) -> None:
        """Raise InputError for the columns of a file, by their roles, if the model learnt from others."""
        inputs = {role: name for role, name in columns.items() if roles[role].flag != TARGET_FLAG}
        needed = lambda names: {role for role in names if not (role in roles and roles[role].may_be_empty)}
        if not inputs or needed(inputs) == needed(self.inputs):
            return
        read = f"{path} is read as {describe_inputs(list(inputs.values()))}"
        missing = [roles[role].flag for role in self.inputs if role not in inputs]
        hint = (
            f"name the other column with `{missing[0][2:]}=`"
            if missing
            else "name the one column with `text=`"
        )
        raise InputError(f"{read}, and this model learnt from {self.described_inputs}", hint=hint)

    def complete_flags(
        self, flags: ColumnFlags, columns: Sequence[str], roles: Mapping[str, Role]
    ) -> dict[str, str | None]:
        """Return the flags that name columns; one not given names what was learnt from, if that is there."""
        learnt = {roles[role].flag: name for role, name in self.inputs.items() if role in roles}
        if self.target is not None and any(role.flag == TARGET_FLAG for role in roles.values()):
            learnt[TARGET_FLAG] = self.target
        there = {
            flag: name
            for flag, name in learnt.items()
            if name in columns or ("," in name and {part.strip() for part in name.split(",")} <= {*columns})
        }
        return dict(flags) | {flag: name for flag, name in there.items() if flags.get(flag) is None}


def describe_inputs(columns: Sequence[str]) -> str:
    """Describe in words the input of a model from these columns."""
    if len(columns) == 1:
        return f"one text (the column {columns[0]!r})"
    return f"a pair of texts (the columns {quote_names(columns)})"


def quote_names(names: Any) -> str:
    """'premise' and 'hypothesis'"""
    *first, last = map(repr, names)
    return f"{', '.join(first)} and {last}" if first else last
