"""Vectors on a map: PCA, which is exact; t-SNE and UMAP, which keep neighbours together and little else."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.core.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from heedful.word2vec import Word2Vec

NAMES = {"pca": "principal component", "tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True)
class Projection:
    """Where vectors stand on a map: points (N, dims). `share` is each axis' part of the variance, of PCA."""

    method: str
    points: np.ndarray
    share: list[float]
    note: str = ""

    def axis(self, i: int) -> str:
        """What an axis is called."""
        name = f"{NAMES[self.method]} {i + 1}"
        return f"{name} ({100 * self.share[i]:.1f} % of the variance)" if self.share else name


def project(
    vectors: np.ndarray, method: str = "pca", dims: int = 2, *, perplexity: float = 30.0, seed: int = 0
) -> Projection:
    """Vectors (N, D) as points. `perplexity` is about how many neighbours count, of t-SNE and UMAP; these two
    begin at random, as `seed` says.
    """
    if method not in NAMES:
        raise InputError(f"method={method!r} is unknown", hint=f"choose {', '.join(NAMES)}")
    rows = np.asarray(vectors, dtype=np.float64)
    if method == "pca":
        points, share = pca(rows, dims)
        said = f"both axes hold {100 * sum(share[:2]):.1f} % of the variance"
        return Projection(method, points, share, said)
    if len(rows) < 4:
        raise InputError(f"{NAMES[method]} needs at least 4 vectors", hint=f"there are {len(rows)}: take pca")
    if perplexity <= 0:
        raise InputError(f"perplexity={perplexity} must be above 0", hint="5 to 50 is usual")
    near = min(perplexity, (len(rows) - 1) / 3)
    points = {"tsne": tsne, "umap": umap}[method](rows, dims, near, seed)
    said = f"{near:g} neighbours count; how far groups are apart, and how large they are, says little"
    return Projection(method, points, [], said)


def unit_rows(table: Word2Vec, words: Sequence[str] | int) -> np.ndarray:
    """Return the vectors of some words, or of the first so many, each made one long: (N, D) in float64."""
    rows = list(range(min(words, len(table)))) if isinstance(words, int) else [table.row(w) for w in words]
    vectors = np.asarray(table.input[rows], dtype=np.float64)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def pca(rows: np.ndarray, dims: int) -> tuple[np.ndarray, list[float]]:
    """Coordinates along the directions of largest variance, and each one's share of it; exact, by SVD."""
    centred = rows - rows.mean(0)
    if len(centred) < 2:
        return np.zeros((len(centred), dims)), [0.0] * dims
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    # A direction has two signs: take that of its greatest entry.
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    found = (left * sizes * signs)[:, :dims]
    share = (sizes[:dims] ** 2 / (float((sizes**2).sum()) or 1.0)).tolist()
    missing = max(0, dims - found.shape[1])
    return np.pad(found, ((0, 0), (0, missing))), share + [0.0] * missing


def tsne(rows: np.ndarray, dims: int, neighbours: float, seed: int) -> np.ndarray:
    """van der Maaten and Hinton 2008, from the principal components on; by scikit-learn."""
    TSNE = package("sklearn.manifold", "scikit-learn", "t-SNE").TSNE
    start = np.pad(rows, ((0, 0), (0, max(0, dims - rows.shape[1]))))  # it begins with as many dimensions
    made = TSNE(n_components=dims, perplexity=neighbours, init="pca", random_state=seed)
    return np.asarray(made.fit_transform(start), dtype=np.float64)


def umap(rows: np.ndarray, dims: int, neighbours: float, seed: int) -> np.ndarray:
    """McInnes et al. 2018; by umap-learn, which is large and never installed unasked."""
    UMAP = package("umap", "umap-learn", "UMAP").UMAP
    made = UMAP(n_components=dims, n_neighbors=max(2, round(neighbours)), random_state=seed)
    return np.asarray(made.fit_transform(rows), dtype=np.float64)


def package(module: str, name: str, purpose: str) -> Any:
    """A package that is not a part of heedful's own; one line where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackage(
            f"{purpose} needs the package {name}: pip install {name}", hint="PCA needs none"
        ) from None


def methods() -> list[str]:
    """Those that can be used here."""
    found = {"pca": True, "tsne": find_spec("sklearn") is not None, "umap": find_spec("umap") is not None}
    return [name for name, there in found.items() if there]
