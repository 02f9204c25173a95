"""attribution_graph, attention_flow: the way to an answer through the parts, and through attention alone."""

from __future__ import annotations

from heedful.classroom.figures.attention_figures import Text, check_pattern
from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import bars, table
from heedful.classroom.figures.token_labels import cut_label, readable, text_argument
from heedful.core.errors import InputError
from heedful.interp import attention as flows
from heedful.interp.attention import rollout
from heedful.interp.inputs import position_of
from heedful.interp.patching import AttributionGraph
from heedful.models.base import Model


def attribution_graph(graph: AttributionGraph) -> Figure:
    """The strongest edges between parts that lead to an answer, from the embedding up to the logits."""
    if not isinstance(graph, AttributionGraph):
        raise InputError("give what heedful.interp.patching.attribution_graph returned")
    rows, columns = [sender for sender, _, _ in graph.edges], ["receiver", "value"]
    cells: list[list[float | str]] = [[receiver, value] for _, receiver, value in graph.edges]
    data = {
        "panels": [table("edges", cells, rows, columns, axes=("sender", ""))],
        "nodes": list(graph.nodes), "edges": [list(edge) for edge in graph.edges],
    }  # fmt: skip
    found = graph.all_edges
    title = f"The {len(graph.edges)} strongest edges that lead to the answer"
    note = (
        f"A value is the share of the answer that an edge brings back, by {found.method}: d is "
        f"{found.corrupt:.3f} in the corrupt run (0) and {found.clean:.3f} in the clean one (1). "
        "Dashed edges take away."
    )
    about = {"edges": len(graph.edges), "method": found.method}
    return Figure("attribution_graph", title, about, data, note, "heedful.view.attribution_graph(graph)")


def attention_flow(
    model: Model, text: Text, target: Text = None, *, side: str = "", position: int | str = -1
) -> Figure:
    """How much can flow from each token to a position through the attention of all layers, beside rollout."""
    given = check_pattern(model, text, target)
    flowed = flows.attention_flow(model, given, side=side, position=position)
    names = given.names if len(given.names) == len(flowed) else given.tokens
    at = position_of(names, position)
    rolled = rollout(model, given, side=side)[at].cpu()
    tokens = [f"{i}: {name}" for i, name in enumerate(readable(model, names))]
    drawn = [
        bars("flow", flowed.numpy(), tokens, axes=("token", "the most that can flow")),
        bars("rollout", rolled.numpy(), tokens, axes=("token", "product of the layers")),
    ]
    said = cut_label(text if isinstance(text, str) else " ".join(readable(model, names)))
    title = f"Attention flow of {model.family.name} into “{tokens[at]}”"
    call = f"heedful.view.attention_flow(model, {text_argument(text)}, position={position!r})"
    about = {"model": model.family.name, "text": said, "position": at}
    note = "Attention alone: what values, matrices and feed-forward layers do is not in it."
    return Figure("attention_flow", title, about, {"panels": drawn}, note, call)
