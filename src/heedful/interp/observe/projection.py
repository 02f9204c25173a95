"""Vectors on a map of two or three dimensions.

Principal components are exact: the directions along which the vectors differ most, with the share of the
variance that each axis holds. t-SNE and UMAP keep neighbours together and little else: how far groups are
apart on their maps, and how large they are, says nothing. Never read neighbours off a map when you have the
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from heedful.core.errors import InputError
from heedful.core.lazy import import_optional

NAMES = {"pca": "principal component", "tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True)
class Projection:
    """Where vectors stand on a map: points (N, dims), and what its axes are called.

    `share` is each axis' part of the variance, of PCA.
    """

    points: np.ndarray
    axes: list[str]
    note: str
    share: list[float] = field(default_factory=list)


def project(
    vectors: np.ndarray, method: str = "pca", dims: int = 2, *, perplexity: float = 30.0, seed: int = 0
) -> Projection:
    """Return vectors (N, D) as points of a map.

    `perplexity` is about how many neighbours count for t-SNE and UMAP, which begin at random, as `seed` says.
    """
    if method not in NAMES:
        raise InputError(f"`method={method!r}` is unknown", hint=f"choose {', '.join(NAMES)}")
    rows = np.asarray(vectors, dtype=np.float64)
    if method == "pca":
        points, share = pca(rows, dims)
        note = f"both axes hold {100 * sum(share[:2]):.1f} % of the variance"
        axes = [
            f"{NAMES[method]} {i + 1} ({100 * part:.1f} % of the variance)" for i, part in enumerate(share)
        ]
        return Projection(points, axes, note, share)
    if len(rows) < 4:
        raise InputError(f"{NAMES[method]} needs at least 4 vectors", hint=f"there are {len(rows)}: take pca")
    if perplexity <= 0:
        raise InputError(f"`perplexity={perplexity}` must be above 0", hint="5 to 50 is usual")
    near = min(perplexity, (len(rows) - 1) / 3)
    if method == "tsne":  # van der Maaten and Hinton 2008, from the principal components on
        rows = np.pad(rows, ((0, 0), (0, max(0, dims - rows.shape[1]))))  # it begins with as many dimensions
        TSNE = import_optional("sklearn.manifold", "t-SNE", "use PCA").TSNE
        made = TSNE(n_components=dims, perplexity=near, init="pca", random_state=seed)
    else:  # McInnes et al. 2018; umap-learn is large and never installed unasked
        UMAP = import_optional("umap", "UMAP", "use PCA").UMAP
        made = UMAP(n_components=dims, n_neighbors=max(2, round(near)), random_state=seed)
    points = np.asarray(made.fit_transform(rows), dtype=np.float64)
    note = f"{near:g} neighbours count; how far groups are apart, and how large they are, says little"
    return Projection(points, [f"{NAMES[method]} {i + 1}" for i in range(dims)], note)


def pca(rows: np.ndarray, dims: int) -> tuple[np.ndarray, list[float]]:
    """Return coordinates along the directions of largest variance, and each one's share of it, by SVD."""
    centred = rows - rows.mean(0)
    if len(centred) < 2:
        return np.zeros((len(centred), dims)), [0.0] * dims
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    # A direction has two signs: take that of its greatest entry.
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    points = (left * sizes * signs)[:, :dims]
    share = (sizes[:dims] ** 2 / (float((sizes**2).sum()) or 1.0)).tolist()
    missing = max(0, dims - points.shape[1])
    return np.pad(points, ((0, 0), (0, missing))), share + [0.0] * missing


def methods() -> list[str]:
    """Return the methods whose packages are installed."""
    installed = {"pca": True, "tsne": find_spec("sklearn") is not None, "umap": find_spec("umap") is not None}
    return [name for name, there in installed.items() if there]
