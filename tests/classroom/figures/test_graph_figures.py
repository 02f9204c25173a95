"""A graph of attributions and attention flow as figures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from heedful.classroom import figures as view
from heedful.classroom.figures.kinds import layer_rows
from heedful.core.errors import InputError
from heedful.interp.intervene.patching import attribution_graph
from heedful.interp.observe.attention import attention_flow
from tests.interp.intervene.test_activation_patching import answers, two
from tests.properties.tiny import tiny

IDS = [5, 9, 2, 7, 11]


@pytest.mark.parametrize(("family", "senders"), [("gpt2", None), ("llama", "heads"), ("palm", None)])
def test_a_graph_is_drawn_with_every_node_and_edge(family: str, senders: str | None, tmp_path: Path) -> None:
    model = tiny(family)
    given = two(model)
    graph = attribution_graph(model, *given, *answers(model, *given), edges=6, senders=senders)
    figure = view.attribution_graph(graph)
    root = ET.parse(figure.save(tmp_path / "x.svg")).getroot()
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(graph.nodes) <= texts
    assert figure.data["edges"] == [list(edge) for edge in graph.edges]
    assert len(figure.to_csv().splitlines()) == 1 + 2 * len(graph.edges)
    untitled = replace(figure, title="")  # the page has the title above the drawing
    assert figure.to_dict()["drawn"] == {theme: untitled.to_svg(theme) for theme in ("light", "dark")}
    for kind in ("html", "json", "png"):
        assert figure.save(tmp_path / f"x.{kind}").stat().st_size > 1000


def test_the_rows_of_a_graph_are_parts_from_the_embedding_up() -> None:
    nodes = ["embed", "blocks.0.attn head 1", "blocks.0.attn head 3", "blocks.2.ffn", "logits"]
    assert layer_rows(nodes) == [["embed"], nodes[1:3], ["blocks.2.ffn"], ["logits"]]


def test_attention_flow_is_drawn_beside_rollout() -> None:
    model = tiny("gpt2")
    figure = view.attention_flow(model, IDS, position=3)
    flow, rollout = figure.data["panels"]
    assert flow["values"][:, 0].tolist() == pytest.approx(attention_flow(model, IDS, position=3).tolist())
    assert rollout["values"].sum() == pytest.approx(1.0)
    assert len(figure.to_csv().splitlines()) == 11


def test_what_is_no_graph_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="give what"):
        view.attribution_graph("blocks.0.attn")  # type: ignore[arg-type]
