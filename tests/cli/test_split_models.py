"""`heed generate --nproc` and `heed serve --nproc`: one text and one server by several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import heedful
from tests.decode.toy import letters
from tests.properties.tiny import tiny

PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny LLaMA that writes bytes."""
    model = tiny("llama", vocab=260)
    model.tokenizer = letters()
    return heedful.save(model, tmp_path_factory.mktemp("talker") / "model")


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "heedful.cli", *map(str, words)]
    here = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=here)


@pytest.mark.slow
def test_two_processes_generate_the_text_of_one(talker: Path) -> None:
    words = ("--max-tokens", 8, "--temperature", 1, "--seed", 3, "--json")
    both = [start("generate", talker, "-", *words, *more) for more in ((), ("--nproc", 2))]
    printed = [json.loads(process.communicate("abc", timeout=120)[0]) for process in both]
    assert printed[0]["texts"][0]["text"] == printed[1]["texts"][0]["text"]
    assert printed[0]["seed"] == printed[1]["seed"]


@pytest.mark.slow
def test_heads_that_do_not_divide_are_reported_once(talker: Path) -> None:
    process = start("generate", talker, "abc", "--nproc", 3)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (3, "")
    assert error.splitlines()[0].startswith("error: 3 processes cannot share the 4 heads with 2 of keys")
    assert len(error.splitlines()) == 2


@pytest.mark.slow
def test_two_processes_serve_and_end_together(talker: Path) -> None:
    process = start("serve", talker, "--nproc", 2, "--port", 0)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    body = {"model": talker.name, "prompt": "abc", "max_tokens": 8, "temperature": 0}
    head = {"content-type": "application/json"}

    def ask(path: str, **more: object) -> dict[str, object]:
        request = urllib.request.Request(f"{address}/{path}", json.dumps(body | more).encode(), head)
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        found: dict[str, object] = json.loads(answer.read())
        return found

    model = heedful.load(talker)
    for _ in range(2):
        choices = ask("completions")["choices"]
        assert choices[0]["text"] == heedful.generate(model, "abc", max_tokens=8)  # type: ignore[index]
    assert "error" in ask("completions", echo=True, logprobs=1)
    assert "error" in ask("embeddings", input="abc")
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
