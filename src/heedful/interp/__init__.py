"""Look inside a model: what it attends to, what each layer predicts, which parts carry an answer.

    observe/     attention, logit_attribution, lens (logit_lens, tuned_lens, surprisal), states, prediction, …
    intervene/   switch parts off (ablation), patch values and trace paths (patching), steer (steering)
    learn/       linear_probes (probes), train_dictionary (dictionary), catalogue_heads (head_catalogue)
    gradients, measurements     attribution by gradients; speed, loss and the shuffle test
    inputs, activations         text → what a model reads; activations of many texts

The functions work on the parts of a model and never ask which model it is. The public ones are loaded when
first used (PEP 562): `from heedful.interp import activation_patching, logit_lens, steer`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_NAMES = {
    "activations": ("collect_activations", "mean_loss"),
    "observe.attention": ("attention", "attention_flow", "head_scores", "rollout"),
    "intervene.ablation": ("ablate", "head_effects", "prune", "without"),
    "learn.dictionary": (
        "ablate_features", "feature_examples", "load_dictionary", "replace_value", "score_dictionary",
        "set_feature", "train_dictionary",
    ),
    "gradients": ("attribution", "gradient_by_distance"),
    "learn.head_catalogue": ("catalogue_heads", "find_heads", "read_parsed", "syntax_heads"),
    "observe.lens": (
        "load_tuned_lens", "logit_lens", "neighbours", "surprisal", "train_tuned_lens", "tuned_lens",
    ),
    "measurements": ("shuffle_test",),
    "observe.logit_attribution": ("logit_attribution",),
    "intervene.patching": (
        "activation_patching", "attribution_graph", "attribution_patching", "carry", "causal_trace",
        "edge_attribution", "patch", "path_patching",
    ),
    "learn.probes": ("linear_probes",),
    "observe.show": ("model_tree",),
    "intervene.steering": ("continuations", "steer", "steering_vector"),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from heedful.interp.activations import collect_activations as collect_activations
    from heedful.interp.activations import mean_loss as mean_loss
    from heedful.interp.gradients import attribution as attribution
    from heedful.interp.gradients import gradient_by_distance as gradient_by_distance
    from heedful.interp.intervene.ablation import ablate as ablate
    from heedful.interp.intervene.ablation import head_effects as head_effects
    from heedful.interp.intervene.ablation import prune as prune
    from heedful.interp.intervene.ablation import without as without
    from heedful.interp.intervene.patching import activation_patching as activation_patching
    from heedful.interp.intervene.patching import attribution_graph as attribution_graph
    from heedful.interp.intervene.patching import attribution_patching as attribution_patching
    from heedful.interp.intervene.patching import carry as carry
    from heedful.interp.intervene.patching import causal_trace as causal_trace
    from heedful.interp.intervene.patching import edge_attribution as edge_attribution
    from heedful.interp.intervene.patching import patch as patch
    from heedful.interp.intervene.patching import path_patching as path_patching
    from heedful.interp.intervene.steering import continuations as continuations
    from heedful.interp.intervene.steering import steer as steer
    from heedful.interp.intervene.steering import steering_vector as steering_vector
    from heedful.interp.learn.dictionary import ablate_features as ablate_features
    from heedful.interp.learn.dictionary import feature_examples as feature_examples
    from heedful.interp.learn.dictionary import load_dictionary as load_dictionary
    from heedful.interp.learn.dictionary import replace_value as replace_value
    from heedful.interp.learn.dictionary import score_dictionary as score_dictionary
    from heedful.interp.learn.dictionary import set_feature as set_feature
    from heedful.interp.learn.dictionary import train_dictionary as train_dictionary
    from heedful.interp.learn.head_catalogue import catalogue_heads as catalogue_heads
    from heedful.interp.learn.head_catalogue import find_heads as find_heads
    from heedful.interp.learn.head_catalogue import read_parsed as read_parsed
    from heedful.interp.learn.head_catalogue import syntax_heads as syntax_heads
    from heedful.interp.learn.probes import linear_probes as linear_probes
    from heedful.interp.measurements import shuffle_test as shuffle_test
    from heedful.interp.observe.attention import attention as attention
    from heedful.interp.observe.attention import attention_flow as attention_flow
    from heedful.interp.observe.attention import head_scores as head_scores
    from heedful.interp.observe.attention import rollout as rollout
    from heedful.interp.observe.lens import load_tuned_lens as load_tuned_lens
    from heedful.interp.observe.lens import logit_lens as logit_lens
    from heedful.interp.observe.lens import neighbours as neighbours
    from heedful.interp.observe.lens import surprisal as surprisal
    from heedful.interp.observe.lens import train_tuned_lens as train_tuned_lens
    from heedful.interp.observe.lens import tuned_lens as tuned_lens
    from heedful.interp.observe.logit_attribution import logit_attribution as logit_attribution
    from heedful.interp.observe.show import model_tree as model_tree


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"heedful.interp has no public name {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"heedful.interp.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
