"""Tasks by the names people know: `pipeline`, and what goes beyond it, loaded when first used (PEP 562)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_WHERE = {
    "BatchPredictor": "on_ray",
    "Conversation": "pipelines.conversational",
    "FewShot": "likelihood",
    "OpenDomain": "search",
    "Pipeline": "task",
    "Search": "search",
    "TASKS": "registry",
    "Task": "task",
    "Truncated": "model_inputs",
    "few_shot": "likelihood",
    "forget_models": "task",
    "infill": "likelihood",
    "log_probability": "likelihood",
    "pipeline": "registry",
    "predict_on_ray": "on_ray",
    "rank": "likelihood",
}

if TYPE_CHECKING:
    from heedful.tasks.likelihood import FewShot as FewShot
    from heedful.tasks.likelihood import few_shot as few_shot
    from heedful.tasks.likelihood import infill as infill
    from heedful.tasks.likelihood import log_probability as log_probability
    from heedful.tasks.likelihood import rank as rank
    from heedful.tasks.model_inputs import Truncated as Truncated
    from heedful.tasks.on_ray import BatchPredictor as BatchPredictor
    from heedful.tasks.on_ray import predict_on_ray as predict_on_ray
    from heedful.tasks.pipelines.conversational import Conversation as Conversation
    from heedful.tasks.registry import TASKS as TASKS
    from heedful.tasks.registry import pipeline as pipeline
    from heedful.tasks.search import OpenDomain as OpenDomain
    from heedful.tasks.search import Search as Search
    from heedful.tasks.task import Pipeline as Pipeline
    from heedful.tasks.task import Task as Task
    from heedful.tasks.task import forget_models as forget_models


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"heedful.tasks has no public name {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
