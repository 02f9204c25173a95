"""How many functions of heedful lie between what a user writes and the work itself.

    python benchmarks/walks.py                                the version that is installed
    PYTHONPATH=../before/src python benchmarks/walks.py       another one

A walk is one request of a user. Its work is the function named beside it: the first embedding of tokens, the
process that runs a submission, and so on. `hops` are the functions of heedful on the stack when that begins,
`modules` the files they stand in. Where a request changes threads, the deepest stack of the thread that took
the request is added. `entered` counts the different functions of heedful that ran before the work began.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROWS = [{"text": f"{a} {b}", "label": c} for a in ("the film", "this book", "her song", "a meal", "that day")
        for b, c in (("is a joy", "good"), ("was too slow", "bad"), ("made me laugh", "good"),
                     ("left us cold", "bad"), ("is the best", "good"), ("is the worst", "bad"))]  # fmt: skip


def is_function_of_heedful(code: CodeType) -> bool:
    """Bodies of classes and modules, lambdas and comprehensions are no hops."""
    return bool(code.co_flags & CO_OPTIMIZED) and code.co_name[0] != "<" and "/heedful/" in code.co_filename


class Walk:
    """Watches every call until the work begins: a function of that name in a file that ends so."""

    def __init__(self, work: str) -> None:
        self.file, self.function = work.split(":")
        self.begun = False
        self.hops = 0
        self.stack: list[CodeType] = []
        self.deepest: dict[int, list[CodeType]] = {}
        self.entered: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.begun:
            return
        code = frame.f_code
        here = is_function_of_heedful(code)
        is_work = code.co_name == self.function and code.co_filename.endswith(self.file)
        if not here and not is_work:
            return
        stack = []
        above: FrameType | None = frame
        while above is not None:
            if is_function_of_heedful(above.f_code):
                stack.append(above.f_code)
            above = above.f_back
        if here:
            self.entered.add(code)
        thread = threading.get_ident()
        if len(stack) > len(self.deepest.get(thread, [])):
            self.deepest[thread] = stack
        if is_work:
            self.begun = True
            self.stack = stack

    def watch(self, request: Callable[[], object]) -> dict[str, int]:
        threading.setprofile(self)
        sys.setprofile(self)
        silence = io.StringIO()
        try:
            with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
                request()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if not self.begun:
            raise RuntimeError(f"{self.file}:{self.function} was never reached\n{silence.getvalue()[-600:]}")
        others = [s for s in self.deepest.values() if not set(s) & set(self.stack)]
        return {
            "hops": len(self.stack) + sum(map(len, others)),
            "modules": len({code.co_filename for s in [self.stack, *others] for code in s}),
            "entered": len(self.entered),
        }


def heed(*words: str) -> Callable[[], object]:
    def run() -> object:
        from heedful.cli import main

        sys.argv = ["heed", *words]
        return main()

    return run


def find(name: str, *places: str) -> Any:
    for place in places:
        with contextlib.suppress(ImportError):
            return getattr(importlib.import_module(place), name)
    raise RuntimeError(f"{name} is in none of {places}")


def walks(folder: Path) -> dict[str, tuple[str, Callable[[], object]]]:
    import torch

    import heedful

    embedding = "torch/nn/functional.py:embedding"
    model = heedful.load("prose")
    recogniser = heedful.pipeline("ner")
    table = folder / "notes.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = folder / "words.txt"
    words.write_text("one two three four five six seven\n" * 400)
    solution = folder / "solution.py"
    solution.write_text("def softmax(scores):\n    return scores\n")

    def complete() -> object:
        from fastapi.testclient import TestClient

        from heedful.serve.openai_app import create_openai_app
        from heedful.serve.openai_server import make_served_model

        app = create_openai_app([make_served_model("prose", model)])
        app = app[0] if isinstance(app, tuple) else app
        with TestClient(app, base_url="http://127.0.0.1") as client:
            return client.post(
                "/v1/completions", json={"model": "prose", "prompt": "Once", "max_tokens": 2}
            ).json()

    def first_picture() -> object:
        from fastapi.testclient import TestClient

        create = find("create_studio_app", "heedful.classroom.studio.studio_app", "heedful.studio.studio_app")
        with TestClient(create(["prose"], models_folder=folder), base_url="http://127.0.0.1") as client:
            return client.get("/api/picture?model=prose")

    vectors = ("word2vec", "train", str(words), "--output", f"{folder}/vectors.txt")
    race = ("race", "--quick", "--systems", "rnn", "--parts", "loss", "--steps", "1", "-o", f"{folder}/race")
    tune = ("finetune", "sentiment", str(table), "--lora", "--epochs", "1", "-o", f"{folder}/tuned")
    return {
        "load": (".py:fill_model", lambda: heedful.load("prose")),
        "model(ids)": (embedding, lambda: model(torch.tensor([[1, 2, 3]]))),
        'pipeline("ner")(text)': (embedding, lambda: recogniser("Ada lives in London.")),
        "generate": (embedding, lambda: heedful.generate(model, "Once", max_tokens=2)),
        "heed explain": ("topics.py:softmax_lines", heed("explain", "cat-sat")),
        "heed serve": (embedding, complete),
        "heed word2vec train": ("trainer.py:train_jobs", heed(*vectors)),
        "heed exercise": ("topics.py:softmax_lines", heed("exercise", "cat-sat", "--seed", "ada")),
        "heed race": ("fit.py:fit", heed(*race)),
        "heed finetune": ("fit.py:fit", heed(*tune)),
        "the studio's first picture": (embedding, first_picture),
        "heed grade": ("subprocess.py:__init__", heed("grade", str(solution))),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for title, (work, request) in walks(Path(name)).items():
            counts = Walk(work).watch(request)
            print(f"{title:28} {work:34}", *(f"{key} {count:4}" for key, count in counts.items()), flush=True)


if __name__ == "__main__":
    main()
