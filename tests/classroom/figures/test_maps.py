"""Maps of vectors: PCA by its definition; t-SNE and UMAP by their packages, or a line that says which."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from heedful.classroom import figures as view
from heedful.core.errors import InputError, MissingPackage
from heedful.interp.observe.projection import methods, project

NAMES = [f"w{i}" for i in range(24)]


def groups() -> np.ndarray:
    """Three groups of eight vectors, far apart in twenty dimensions."""
    draw = np.random.default_rng(0)
    middle = np.repeat(draw.normal(size=(3, 20)) * 8, 8, 0)
    return middle + draw.normal(size=(24, 20))


def test_pca_is_the_projection_of_largest_variance() -> None:
    rows = groups()
    found = project(rows, dims=3)
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    np.testing.assert_allclose(found.points.var(0, ddof=1), values[:3])
    np.testing.assert_allclose(found.share, values[:3] / values.sum())
    assert "% of the variance" in found.axes[0]


def test_tsne_keeps_neighbours_together_and_repeats_itself() -> None:
    pytest.importorskip("sklearn")
    rows = groups()
    found, again = (project(rows, "tsne", perplexity=5, seed=3) for _ in range(2))
    np.testing.assert_array_equal(found.points, again.points)
    far = np.linalg.norm(found.points[:, None] - found.points[None], axis=-1) + np.eye(24) * 1e9
    assert all(near // 8 == i // 8 for i, near in enumerate(far.argmin(1)))
    assert found.share == []
    assert found.axes[1] == "t-SNE 2"


def test_a_figure_by_tsne_says_so_and_has_the_neighbours_of_the_full_space() -> None:
    pytest.importorskip("sklearn")
    figure = view.embeddings(groups(), names=NAMES, method="tsne", perplexity=5, neighbours=3)
    plain = view.embeddings(groups(), names=NAMES, neighbours=3)
    np.testing.assert_array_equal(figure.data["near"], plain.data["near"])
    assert "says little" in figure.note
    assert "method='tsne'" in figure.python
    assert "t-SNE 1" in figure.to_svg()


@pytest.mark.parametrize(
    ("method", "module", "package"),
    [("tsne", "sklearn.manifold", r'"heedful\[space\]"'), ("umap", "umap", "umap-learn")],
)
def test_a_missing_package_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, method: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=f"pip install {package}") as fault:
        project(groups(), method)
    assert "\n" not in str(fault.value)


def test_what_cannot_be_mapped_is_named() -> None:
    with pytest.raises(InputError, match="choose pca, tsne, umap"):
        project(groups(), "isomap")
    with pytest.raises(InputError, match="at least 4 vectors"):
        project(groups()[:3], "tsne")
    with pytest.raises(InputError, match="perplexity=0 must be above 0"):
        project(groups(), "tsne", perplexity=0)
    assert methods()[0] == "pca"
