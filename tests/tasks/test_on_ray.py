"""Batches as Ray Data hands them to workers, and a local cluster of two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.core.errors import InputError, MissingPackage
from heedful.tasks import prediction
from heedful.tasks.prediction import BatchPredictor, predict_on_ray
from tests.tasks.conftest import Tiny

TEXTS = ["Ada Lovelace lived in London.", "Dragons breathe fire.", "he didn't", "Ada"]


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    heedful.save(tiny("classify", ["bad", "good"]), tmp_path / "model")
    return tmp_path / "model"


def test_a_batch_gets_the_columns_of_predict(folder: Path) -> None:
    batch = {"text": np.array(TEXTS, dtype=object), "number": np.arange(4)}
    found = BatchPredictor(folder)(batch)
    expected = heedful.predict(folder, [{"text": t, "number": i} for i, t in enumerate(TEXTS)])
    assert [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)] == expected
    assert list(found) == ["text", "number", "label", "score"]
    vectors = BatchPredictor(folder, task="embed")({"text": TEXTS})["vector"]
    assert len(vectors) == 4


def test_bad_options_and_a_missing_library_are_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="lenght"):
        BatchPredictor(folder, lenght=5)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"heedful\[ray\]"):
        predict_on_ray(folder, tmp_path / "a.csv", tmp_path / "out")


def test_heed_predict_hands_workers_and_options_to_ray(heed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        prediction, "predict_on_ray", lambda *a, **options: calls.append((a, options)) or a[2]
    )
    code, out, err = heed("predict", "m", "a.csv", "b.csv", "--out", "rows", "--workers", 3, "--text", "note")
    assert (code, out.strip()) == (0, "rows"), err
    options = {"workers": 3, "text": "note", "batch": 32, "device": "auto"}
    assert calls == [(("m", ["a.csv", "b.csv"], "rows"), options)]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # ray's own
def test_two_workers_of_a_local_cluster_predict_what_one_process_does(folder: Path, tmp_path: Path) -> None:
    ray, parquet = pytest.importorskip("ray"), pytest.importorskip("pyarrow.parquet")
    files = []
    for n in range(4):
        files.append(tmp_path / f"{n}.csv")
        files[-1].write_text("text,row\n" + "".join(f"{t} {n},{n * 10 + i}\n" for i, t in enumerate(TEXTS)))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        out = predict_on_ray(folder, files, tmp_path / "out", workers=2)
    finally:
        ray.shutdown()
    rows: list[Any] = parquet.read_table(out).to_pylist()
    expected = heedful.predict(folder, files)
    assert [row["row"] for row in rows] == [row["row"] for row in expected]
    assert [(row["label"], pytest.approx(row["score"], abs=1e-5)) for row in rows] == [
        (row["label"], row["score"]) for row in expected
    ]
