"""The student's process: values travel as data, and what goes beyond the limits is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.exercises.sandbox import INHERITED_VARIABLES, Sandbox, SandboxLimits, SolutionError

SOURCE = """
import os, socket, subprocess, sys
def echo(value): return value
def kinds(*values): return [type(v).__name__ for v in values]
def ask(function): return function([1, 2]) + function([3])
def write(path): open(path, "w").write("x")
def remove(path): os.remove(path)
def connect(port): socket.create_connection(("127.0.0.1", port), timeout=1)
def spawn(): subprocess.run(["true"])
def kill(): os.kill(os.getppid(), 15)
def variables(): return dict(os.environ)
def catch(path):
    try:
        open(path, "w")
    except Exception:
        return "caught"
def path(): return sys.path
"""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(SOURCE, limits=SandboxLimits(seconds=20)) as found:
        yield found


def test_values_come_back_as_they_went(sandbox: Sandbox) -> None:
    plain = {("a", "b"): [1, 2.5, None, True, "ü"], "inf": float("inf")}
    assert sandbox.call("echo", plain) == plain
    tensor = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(sandbox.call("echo", tensor), tensor)
    array = np.arange(6).reshape(2, 3)
    assert np.array_equal(sandbox.call("echo", array), array)
    assert sandbox.call("kinds", tensor, (1,), [1], 2) == ["Tensor", "tuple", "list", "int"]


def test_a_function_that_is_handed_over_is_called_here(sandbox: Sandbox) -> None:
    asked = []
    assert sandbox.call("ask", lambda ids: asked.append(ids) or len(ids)) == 3
    assert asked == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("write", "tried to write"),
        ("remove", "tried to change a file"),
        ("connect", "tried to use the network"),
        ("spawn", "tried to start a program"),
        ("kill", "tried to send a signal"),
    ],
)
def test_what_no_exercise_needs_is_refused(sandbox: Sandbox, tmp_path: Path, name: str, words: str) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    arguments = {"write": [str(kept)], "remove": [str(kept)], "connect": [9]}.get(name, [])
    with pytest.raises(SolutionError, match=words):
        sandbox.call(name, *arguments)
    assert kept.read_text() == "mine"


def test_a_refusal_is_told_even_if_the_solution_hides_it(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.call("catch", str(tmp_path / "hidden.txt")) == "caught"
    assert any("hidden.txt" in action for action in sandbox.refused_actions)


def test_files_in_its_own_folder_are_its_own(sandbox: Sandbox) -> None:
    sandbox.call("write", "here.txt")


def test_no_variable_of_the_user_and_no_path_of_the_folder_is_seen(sandbox: Sandbox) -> None:
    found = sandbox.call("variables")
    own = {"HOME", "TMPDIR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_CTYPE", *INHERITED_VARIABLES}
    assert {name for name in found if not name.startswith("KMP")} <= own  # OpenMP leaves marks of its own
    assert found["HOME"] != os.environ.get("HOME")
    assert os.getcwd() not in sandbox.call("path")


def test_the_temporary_folder_is_gone_afterwards() -> None:
    with Sandbox("def f(): return 1") as sandbox:
        assert sandbox.folder is not None
        folder, process = Path(sandbox.folder.name), sandbox.process
        assert sandbox.call("f") == 1
        assert folder.is_dir()
    assert not folder.exists()
    assert process is not None
    assert process.poll() is not None


def test_a_process_that_was_ended_is_started_again_for_the_next_call() -> None:
    source = "import os\ndef end(): os._exit(3)\ndef f(): return 'there'\n"
    with Sandbox(source) as sandbox:
        with pytest.raises(SolutionError, match="exit code 3"):
            sandbox.call("end")
        assert sandbox.call("f") == "there"
