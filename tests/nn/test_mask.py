"""Which keys each query may look at, written out."""

from __future__ import annotations

import pytest
import torch

from heedful.nn.context import Mask


def drawn(mask: Mask, queries: int = 5, keys: int = 5) -> list[str]:
    """Return the mask's matrix for the newest queries, one line for each: x where the query may look."""
    k_pos = torch.arange(keys)[None]
    matrix = mask.dense(k_pos[:, keys - queries :], k_pos)
    return ["".join("x" if keep else "." for keep in row) for row in matrix[0, 0].tolist()]


def test_a_causal_query_sees_itself_and_what_came_before() -> None:
    assert drawn(Mask(causal=True)) == ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]
    assert drawn(Mask(causal=True), queries=2) == ["xxxx.", "xxxxx"]


@pytest.mark.parametrize(
    ("window", "causal", "rows"),
    [
        (1, True, ["x....", ".x...", "..x..", "...x.", "....x"]),
        (3, True, ["x....", "xx...", "xxx..", ".xxx.", "..xxx"]),
        (2, False, ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
    ],
)
def test_a_window_counts_the_query_itself(window: int, causal: bool, rows: list[str]) -> None:
    assert drawn(Mask(causal, window)) == rows


def test_a_document_ends_where_the_next_begins() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    mask = Mask(causal=True, q_documents=documents, k_documents=documents)
    assert drawn(mask) == ["x....", "xx...", "..x..", "..xx.", "..xxx"]


def test_padding_is_seen_by_nobody() -> None:
    assert drawn(Mask(valid=torch.tensor([[False, True, True, True, False]]))) == [".xxx."] * 5
