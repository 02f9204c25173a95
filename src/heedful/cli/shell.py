"""Errors in the words of the command line: top_k=0 in Python is --top-k 0 in a command.

An argument of Python becomes the option of the same name, if the command has one. Where it is no option but a
setting of `heed train` or `heed eval`, a hint shows it as --set. An error about one value says which argument
it is in fields; in other text arguments are written name=value, or name= (core/errors.py).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from heedful.core.errors import HeedfulError

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

# Hints in place of those that name an argument which the shell cannot give.
INSTEAD = {
    "delimiter": "name it .csv, .tsv or .jsonl",
    "encoding": "convert the file to UTF-8: iconv -f latin1 -t utf-8 FILE",
    "sentinels": "--set tokenizer.sentinels=100 puts some into a vocabulary that is learnt",
    "truncation": "shorten the text",
}


def shell_words(error: HeedfulError, command: Any, path: str) -> tuple[str, str]:
    """Return the message and the hint of an error in the words of the command of this `path` ("train")."""
    options: dict[str, Any] = {}
    for parameter in command.params:
        options |= {o[2:].replace("-", "_"): parameter for o in parameter.opts if o.startswith("--")}
    message, hint = (" ".join((text or "").split()) for text in (error.message, error.hint))
    as_option = partial(option_words, options)
    if error.argument is not None and (option := as_option(error.argument, f"{error.value!s:.80}")):
        message = f"{option} {error.problem}"
    hint = replace_arguments(hint, lambda *one: as_option(*one) or setting_words(path, *one))
    left = [argument[1] for argument in ARGUMENT.finditer(hint) if argument[1] in INSTEAD]
    return replace_arguments(message, as_option), INSTEAD[left[0]] if left else hint


def replace_arguments(text: str, rewrite: Any) -> str:
    """Replace each name=value of a text by what `rewrite` returns for both; None leaves it."""
    return ARGUMENT.sub(lambda argument: rewrite(argument[1], argument[2].strip("'\"")) or argument[0], text)


def option_words(options: Mapping[str, Any], name: str, value: str) -> str | None:
    """Return `--top-k 0` for top_k=0 if there is such an option; a flag has no value."""
    parameter = options.get(ALIASES.get(name, name))
    if parameter is None:
        return None
    flag = next(option for option in parameter.opts if option.startswith("--"))
    return flag if getattr(parameter, "is_flag", False) or value in ("", "…") else f"{flag} {value}"


def setting_words(path: str, name: str, value: str) -> str | None:
    """Return `--set train.clip=1` for what is no option of `heed train`; `heed eval` sets what tasks take."""
    if path not in ("train", "eval") or name in ("delimiter", "sentinels"):  # no value of these can be typed
        return None
    from heedful import data
    from heedful.train.recipes.prepare import TASK_BUILDERS

    keywords = lambda function: {
        n for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    of_data = set[str]().union(*map(keywords, [*data.FROM_TEXT.values(), *TASK_BUILDERS.values()]))
    if path == "eval":
        from heedful.tasks.registry import trainable_tasks

        predicts = [inspect.signature(task.predict).parameters for task in trainable_tasks().values()]
        section = "" if name in of_data or any(name in options for options in predicts) else None
    else:
        from heedful.models import FAMILIES
        from heedful.train.config import TrainConfig

        of_models = set[str]().union(*(family.config.field_names() for family in FAMILIES.values()))
        names = {"train.": {f.name for f in fields(TrainConfig)}, "data.": of_data, "model.": of_models}
        section = next((one for one, members in names.items() if name in members), None)
    typed = {"True": "true", "False": "false", "None": "null", "": "…"}.get(value, value)
    return None if section is None else f"--set {section}{name}={typed}"
