"""Figures of what happens inside a model: in a notebook, or saved as HTML, SVG, PNG, CSV or JSON.

    view.model(model, "The cat sat")                one text on its way through a model: every stage, one head
    view.attention(model, "The cat sat")            one head as a heat map; in HTML all heads, lines, text
    view.heads(model, "The cat sat")                every head as a small picture, with its scores
    view.image_attention(model, "number.png")       where in an image each written token was looked for
    view.steps(model, "The cat sat", topic="block") the worked arithmetic
    view.next_token(model, "The cat", top_p=0.9)    logits → temperature → top-k → top-p → the token drawn
    view.beams(model, "The cat", beams=4)           beam search as a tree, with every text that was weighed
    view.positions(model)                           how the model knows where a token stands
    view.embeddings(model, count=500)               a map of the token vectors, neighbours in the full space
    view.surprisal(model, "The cat sat")            how surprised the model is by each token
    view.head_catalogue(model, texts)               what heads look at, over many texts
    view.find_heads(model, text, "it", "cat")       which heads look from one token at another
    view.patching(activation_patching(model, …))    which values carry an answer, by layer, position and head
    view.logit_attribution(logit_attribution(…))    what every part, head and token adds to a logit
    view.features(model, dictionary, texts)         features of a sparse dictionary, tokens in context
    view.feature(model, dictionary, texts, 17)      one of them: tokens, density, logits, nearest features
    view.probes(linear_probes(model, sentences))    what linear probes tell, layer by layer
    view.steering(model, "I", name, vector, 4)      what a steered value makes more or less likely
    view.attribution_graph(attribution_graph(…))    the strongest edges between parts, drawn
    view.attention_flow(model, "The cat sat")       what can flow through attention, next to rollout
    view.tuned_lens(model, "The cat sat", lens)     what each layer would predict, by a trained lens
    view.training("runs/gpt2")                      the curves of a run
    view.attention(tokens=[…], pattern=weights)     any weights you have
    view.matrix(values), view.lines(values)         any numbers you have

Each gives a `Figure`, a value: `.data` has the numbers, `.save("x.html")` writes it.
"""

from __future__ import annotations

from collections.abc import Callable

from heedful.classroom.arithmetic.from_model import explainable_topics
from heedful.classroom.figures.attention_figures import attention, heads, image_attention
from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.interp_figures import (
    attention_flow,
    attribution_graph,
    feature,
    features,
    find_heads,
    head_catalogue,
    logit_attribution,
    patching,
    positions,
    probes,
    steering,
    tuned_lens,
)
from heedful.classroom.figures.model_picture import model
from heedful.classroom.figures.value_figures import (
    beams,
    embeddings,
    lines,
    matrix,
    next_token,
    steps,
    surprisal,
    training,
)
from heedful.interp.observe.mixing import position_parts
from heedful.interp.observe.prediction import is_causal, predicts
from heedful.models.base import Model

__all__ = [
    "Figure", "attention", "attention_flow", "attribution_graph", "beams", "embeddings", "feature",
    "features", "find_heads", "head_catalogue", "heads", "image_attention", "lines", "logit_attribution",
    "matrix", "model", "next_token", "patching", "positions", "probes", "steering", "steps", "surprisal",
    "training", "tuned_lens",
]  # fmt: skip


def hides_tokens(model: Model) -> bool:
    """Return whether a model predicts words, and an encoder among them has a token that masks one."""
    masks = model.tokenizer is not None and model.tokenizer.mask is not None
    return predicts(model) == "words" and (is_causal(model) or masks)


# What the studio's page of figures offers, in this order, and of which models each figure can be drawn. What
# takes a `text` is given that of the page.
FIGURES: dict[Callable[..., Figure], Callable[[Model], bool]] = {
    image_attention: lambda model: model.image_processor is not None,
    attention: lambda model: True,
    heads: lambda model: True,
    next_token: lambda model: predicts(model) == "words",
    surprisal: hides_tokens,
    steps: lambda model: "attention" in explainable_topics(model),
    beams: lambda model: predicts(model) == "words" and is_causal(model),
    positions: lambda model: bool(position_parts(model)),
    embeddings: lambda model: "tokens" in model.tables,
    model: lambda model: True,
}
