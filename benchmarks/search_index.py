"""Nearest vectors: exact search and three index libraries, by build time, recall@10 and queries per second.

    pip install usearch faiss-cpu hnswlib
    python benchmarks/search_index.py --count 100000
    python benchmarks/search_index.py --count 1000000 --queries 200 --libraries "usearch bf16,heedful"

The vectors lie around 1,000 centers in a space of 48 dimensions, which is embedded in 384 with some noise, so
that near and far differ about as they do for sentences. All graphs have 16 links for each vector (M), 128
candidates when they are built and 64 when they are searched. A query is one vector at a time, on one thread.
Times are processor time, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from heedful.tasks.search import Search

LINKS, BUILD_CANDIDATES, SEARCH_CANDIDATES, TOP = 16, 128, 64, 10


def make_vectors(count: int, dim: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(0)
    centers, basis = draw.normal(size=(1000, 48)), draw.normal(size=(48, dim))
    draw = np.random.default_rng(seed)
    points = np.empty((count, dim), np.float32)
    for start in range(0, count, 50_000):
        size = min(50_000, count - start)
        inner = centers[draw.integers(0, 1000, size)] + 0.7 * draw.normal(size=(size, 48))
        points[start : start + size] = inner @ basis + 0.5 * draw.normal(size=(size, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def nearest_rows(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the rows of the vectors with the highest products, for each query."""
    scores = np.concatenate([vectors[i : i + 50_000] @ queries.T for i in range(0, len(vectors), 50_000)])
    return np.argpartition(-scores.T, TOP, axis=1)[:, :TOP]


def build_exact(vectors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def search(query: np.ndarray) -> np.ndarray:
        scores = vectors @ query
        best = np.argpartition(-scores, TOP)[:TOP]
        return best[np.argsort(-scores[best])]

    return search


def build_usearch(vectors: np.ndarray, dtype: str = "f32") -> Callable[[np.ndarray], np.ndarray]:
    from usearch.index import Index

    index = Index(
        ndim=vectors.shape[1], metric="ip", dtype=dtype, connectivity=LINKS,
        expansion_add=BUILD_CANDIDATES, expansion_search=SEARCH_CANDIDATES,
    )  # fmt: skip
    index.add(np.arange(len(vectors)), vectors)
    return lambda query: index.search(query, TOP, threads=1).keys


def build_faiss(vectors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    import faiss

    index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_CANDIDATES, SEARCH_CANDIDATES
    index.add(vectors)
    faiss.omp_set_num_threads(1)
    return lambda query: index.search(query[None], TOP)[1][0]


def build_hnswlib(vectors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), ef_construction=BUILD_CANDIDATES, M=LINKS)
    index.add_items(vectors, np.arange(len(vectors)))
    index.set_ef(SEARCH_CANDIDATES)
    return lambda query: index.knn_query(query, TOP, num_threads=1)[0][0]


def build_search(vectors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    search = Search(list(map(str, range(len(vectors)))), vectors=torch.from_numpy(vectors), approximate=True)
    search.build_graph()
    return lambda query: np.array(
        [i for i, _ in search._find_by_graph(torch.from_numpy(query)[None], TOP)[0]]
    )


BUILDERS = {
    "exact": build_exact, "usearch": build_usearch, "usearch bf16": lambda v: build_usearch(v, "bf16"),
    "heedful": build_search,
    "faiss": build_faiss, "hnswlib": build_hnswlib,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--libraries", default=",".join(BUILDERS))
    options = parser.parse_args()
    vectors, queries = (
        make_vectors(options.count, options.dim, 1),
        make_vectors(options.queries, options.dim, 2),
    )
    truth = [set(row.tolist()) for row in nearest_rows(vectors, queries)]
    for name in options.libraries.split(","):
        begun, wall = time.process_time(), time.perf_counter()
        search = BUILDERS[name](vectors)
        built, wall = time.process_time() - begun, time.perf_counter() - wall
        begun = time.process_time()
        found = [set(map(int, search(query))) for query in queries]
        seconds = time.process_time() - begun
        recall = np.mean([len(a & b) / TOP for a, b in zip(found, truth, strict=True)])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        row = {
            "library": name, "count": options.count, "build_cpu_s": round(built, 1),
            "build_s": round(wall, 1),
            "recall": round(float(recall), 4), "queries_per_cpu_s": round(options.queries / seconds),
            "peak_mb": round(peak),
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
