"""Rewrite errors in the words of the command line: top_k=0 in Python is --top-k 0 in a command.

An argument of Python becomes the option of the same name, if the command has one; in a hint of `heed train`
or `heed eval` another one becomes a setting. An error whose hint has no such form has its own, `shell=`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

# Names of Python and transformers → names of the commands' options.
ALIASES = {
    "aggregation_strategy": "aggregation",
    "candidate_labels": "labels",
    "handle_impossible_answer": "or_nothing",
    "hypothesis_template": "template",
    "max_new_tokens": "max_tokens",
    "multi_label": "several",
    "num_beams": "beams",
    "num_return_sequences": "n",
}
ARGUMENT = re.compile(r"(?<![\w.\-/=])(?<!--set )([a-z][a-z_]*)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^\s,;:()]*)")
BARE_NAME = re.compile(r"(?<![\w.\-/=])([a-z]+(?:_[a-z]+)+)(?![\w=(.])")  # min_count, without a value
FLAG = "flag"

# Hints for arguments of Python that have no option in the command.
INSTEAD = {
    "delimiter": "name it .csv, .tsv or .jsonl",
    "encoding": "convert the file to UTF-8: iconv -f latin1 -t utf-8 FILE",
    "sentinels": "--set tokenizer.sentinels=100 puts some into a vocabulary that is learnt",
    "truncation": "shorten the text",
}
NO_SETTINGS = ("delimiter", "sentinels")  # a shell cannot give their values

Rewrite = Callable[[str, str], str | None]  # a name and its value → the words for them, or None to keep them


def shell_words(message: str, hint: str, command: Any, path: str) -> tuple[str, str]:
    """Return the message and the hint of an error in the words of the command of this `path` ("train")."""
    options = command_options(command)
    as_option = lambda name, value: _option(options, name, value)
    as_setting = lambda name, value: None if name in NO_SETTINGS else _setting(path, name, value)
    as_either = lambda name, value: as_option(name, value) or as_setting(name, value)
    hint = _replace(hint, as_either)
    left = [found[1] for found in ARGUMENT.finditer(hint) if found[1] in INSTEAD]
    return _replace(message, as_option), INSTEAD[left[0]] if left else hint


def command_options(command: Any) -> dict[str, tuple[str, str]]:
    """Return the options of a command by the names Python would give them: the option, and whether a flag."""
    found: dict[str, tuple[str, str]] = {}
    for parameter in command.params:
        kind = FLAG if getattr(parameter, "is_flag", False) else ""
        longs = [option for option in parameter.opts if option.startswith("--")]
        found |= {option[2:].replace("-", "_"): (longs[0], kind) for option in longs}
    return found


def _replace(text: str, rewrite: Rewrite) -> str:
    text = ARGUMENT.sub(lambda found: rewrite(found[1], found[2].strip("'\"")) or found[0], text)
    return BARE_NAME.sub(lambda found: rewrite(found[1], "") or found[0], text)


def _option(options: Mapping[str, tuple[str, str]], name: str, value: str) -> str | None:
    known = options.get(ALIASES.get(name, name))
    if known is None:
        return None
    option, kind = known
    return option if kind == FLAG or value in ("", "…") else f"{option} {value}"


def _setting(path: str, name: str, value: str) -> str | None:
    """Return `--set train.clip=1` for what is no option of `heed train`; `heed eval` sets what tasks take."""
    where = {"train": _train_section, "eval": _eval_section}.get(path)
    section = None if where is None else where(name)
    plain = {"True": "true", "False": "false", "None": "null", "": "…"}.get(value, value)
    return None if section is None else f"--set {section}{name}={plain}"


def _train_section(name: str) -> str | None:
    from heedful.models import FAMILIES
    from heedful.train.config import TrainConfig

    if name in {f.name for f in fields(TrainConfig)}:
        return "train."
    if name in _data_options():
        return "data."
    return "model." if any(name in family.config.known() for family in FAMILIES.values()) else None


def _eval_section(name: str) -> str | None:
    from heedful.tasks.pipeline import trainable_tasks

    predicts = [inspect.signature(task.predict).parameters for task in trainable_tasks().values()]
    return "" if name in _data_options() or any(name in options for options in predicts) else None


def _data_options() -> set[str]:
    from heedful import data
    from heedful.train.recipes.prepare import TASK_BUILDERS

    builders = [*data.FROM_TEXT.values(), *TASK_BUILDERS.values()]
    return {
        n
        for one in builders
        for n, p in inspect.signature(one).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
