"""Nearest vectors: exact search and three index libraries, by build time, recall@10 and queries per second.

    pip install usearch faiss-cpu hnswlib
    python benchmarks/search_index.py --count 100000
    python benchmarks/search_index.py --count 100000,1000000 --queries 200 --libraries "usearch bf16,heedful"

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
from functools import partial

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


Add = Callable[[int, np.ndarray], object]  # takes the number of the first new vector, and the new vectors
Find = Callable[[np.ndarray], np.ndarray]  # a query → the numbers of its nearest vectors


def open_exact(dim: int, most: int) -> tuple[Add, Find]:
    parts: list[np.ndarray] = []

    def find(query: np.ndarray) -> np.ndarray:
        scores = np.concatenate([part @ query for part in parts])
        best = np.argpartition(-scores, TOP)[:TOP]
        return best[np.argsort(-scores[best])]

    return lambda first, vectors: parts.append(vectors), find


def open_usearch(dim: int, most: int, dtype: str = "f32") -> tuple[Add, Find]:
    from usearch.index import Index

    index = Index(
        ndim=dim, metric="ip", dtype=dtype, connectivity=LINKS, expansion_add=BUILD_CANDIDATES,
        expansion_search=SEARCH_CANDIDATES,
    )  # fmt: skip
    add = lambda first, vectors: index.add(np.arange(first, first + len(vectors)), vectors)
    return add, lambda query: index.search(query, TOP, threads=1).keys


def open_faiss(dim: int, most: int) -> tuple[Add, Find]:
    import faiss

    index = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_CANDIDATES, SEARCH_CANDIDATES
    return lambda first, vectors: index.add(vectors), lambda query: index.search(query[None], TOP)[1][0]


def open_hnswlib(dim: int, most: int) -> tuple[Add, Find]:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=dim)
    index.init_index(max_elements=most, ef_construction=BUILD_CANDIDATES, M=LINKS)
    index.set_ef(SEARCH_CANDIDATES)
    add = lambda first, vectors: index.add_items(vectors, np.arange(first, first + len(vectors)))
    return add, lambda query: index.knn_query(query, TOP, num_threads=1)[0][0]


def open_search(dim: int, most: int) -> tuple[Add, Find, Find]:
    """Return also a search by the library alone in the same graph."""
    opened: list[Search] = []

    def add(first: int, vectors: np.ndarray) -> None:
        texts, rows = [str(first + i) for i in range(len(vectors))], torch.from_numpy(vectors)
        if opened:
            opened[0].add(texts, vectors=rows)
        else:
            opened.append(Search(texts, vectors=rows, approximate=True))
            opened[0].build_graph()

    find = lambda query: np.array(
        [i for i, _ in opened[0]._find_by_graph(torch.from_numpy(query)[None], TOP)[0]]
    )
    return add, find, lambda query: opened[0]._graph.search(query, TOP, threads=1).keys


LIBRARIES = {
    "exact": open_exact, "usearch": open_usearch, "usearch bf16": partial(open_usearch, dtype="bf16"),
    "heedful": open_search, "faiss": open_faiss, "hnswlib": open_hnswlib,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", default="100000", help="how many vectors; several, as 100000,1000000")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    options = parser.parse_args()
    counts = sorted(map(int, options.count.split(",")))
    vectors = make_vectors(counts[-1], options.dim, 1)
    queries = make_vectors(options.queries, options.dim, 2)
    truth = {count: [set(row.tolist()) for row in nearest_rows(vectors[:count], queries)] for count in counts}
    for name in options.libraries.split(","):
        add, *searches = LIBRARIES[name](options.dim, counts[-1])
        done, built, wall = 0, 0.0, 0.0
        for count in counts:  # the index grows from one count to the next, and times add up
            begun, clock = time.process_time(), time.perf_counter()
            add(done, vectors[done:count])
            done, built, wall = count, built + time.process_time() - begun, wall + time.perf_counter() - clock
            for find, label in zip(searches, (name, f"{name}: usearch alone"), strict=False):
                begun = time.process_time()
                found = [set(map(int, find(query))) for query in queries]
                seconds = time.process_time() - begun
                recall = np.mean([len(a & b) / TOP for a, b in zip(found, truth[count], strict=True)])
                row = {
                    "library": label, "count": count, "build_cpu_s": round(built, 1),
                    "build_s": round(wall, 1), "recall": round(float(recall), 4),
                    "queries_per_cpu_s": round(options.queries / seconds),
                    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                }  # fmt: skip
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
