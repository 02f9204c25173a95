"""The student's process: values travel as data, and what goes beyond the limits is refused."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.classroom.exercises.code_grading import grade_source
from heedful.classroom.exercises.sandbox import (
    INHERITED_VARIABLES,
    NURSERY,
    SandboxLimits,
    run_submission,
)
from heedful.classroom.exercises.sandbox_protection import PROTECTIONS
from heedful.classroom.exercises.sandbox_runner import (
    MessageError,
    Other,
    copy_value,
    pack_record,
    read_records,
)
from heedful.core.errors import HeedfulError
from tests.classroom.exercises.escapes import ESCAPES, successful_escapes


def test_values_come_back_as_they_went() -> None:
    plain = {("a", "b"): [1, 2.5, None, True, "ü"], "inf": float("inf")}
    assert copy_value(plain) == plain
    tensor = torch.randn(2, 3, dtype=torch.float64)
    array = np.arange(6).reshape(2, 3)
    (found,) = read_records(io.BytesIO(pack_record({"tensor": tensor, "array": array, "other": len})))
    assert torch.equal(found["tensor"], tensor)
    assert np.array_equal(found["array"], array)
    assert isinstance(found["other"], Other)


def test_a_record_that_was_not_finished_is_left_out_and_other_bytes_are_an_error() -> None:
    whole = pack_record({"value": torch.ones(3)})
    assert len(list(read_records(io.BytesIO(whole + whole[:-1])))) == 1
    with pytest.raises(MessageError):
        list(read_records(io.BytesIO(whole + b"x" * 64)))


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux's")
def test_no_known_escape_gets_out_of_all_protections() -> None:
    assert successful_escapes(PROTECTIONS) == set()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux's")
def test_the_escapes_work_without_protection_and_the_page_says_what_each_one_holds() -> None:
    assert successful_escapes(()) == set(ESCAPES)
    page = (Path(__file__).parents[3] / "docs" / "exercises.md").read_text(encoding="utf-8")
    hook, seccomp, landlock = (successful_escapes((name,)) for name in ("hook", "seccomp", "landlock"))
    for name, words in ESCAPES.items():
        marks = ("gets out" if name in column else "held" for column in (hook, seccomp, landlock))
        assert f"| {words} | gets out | {' | '.join(marks)} | held |" in page


ACTIONS = """
import json, os, socket, subprocess, sys
def attempt(action):
    try:
        action()
    except Exception:
        pass
attempt(lambda: open({path!r}, "w"))
attempt(lambda: os.remove({path!r}))
attempt(lambda: socket.create_connection(("127.0.0.1", 9), timeout=1))
attempt(lambda: subprocess.run(["true"]))
attempt(lambda: os.kill(os.getppid(), 15))
open("here.txt", "w").write("its own folder")
print(json.dumps([sorted(os.environ), os.environ["HOME"], {cwd!r} in sys.path]))
"""


def test_what_no_exercise_needs_is_refused_and_reported_even_if_the_solution_hides_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    source = ACTIONS.replace("{path!r}", repr(str(kept))).replace("{cwd!r}", repr(os.getcwd()))
    result = run_submission(source, ["softmax"])
    assert result.load_error is None
    assert kept.read_text() == "mine"
    words = ("write", "change a file", "use the network", "start a program", "send a signal")
    for action, word in zip(result.refused_actions, words, strict=True):
        assert action.startswith(word)
    variables, home, has_folder = json.loads(result.prints)
    own = {"HOME", "TMPDIR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_CTYPE", *INHERITED_VARIABLES}
    assert {name for name in variables if not name.startswith(("KMP", "TORCH"))} <= own  # of libraries
    assert home != os.environ.get("HOME")
    assert not has_folder
    assert not Path(home).exists()  # any more


def test_the_active_protections_are_reported() -> None:
    result = grade_source("", ["softmax"], limits=SandboxLimits(protections=("hook",)))
    assert "Python's audit hook" in result.protections
    assert not any("seccomp" in name for name in result.protections)
    assert any("against accidents only" in note for note in result.notes)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process that ends with its parent is Linux's")
def test_a_submission_ends_with_the_nursery_and_the_next_one_has_a_new_nursery() -> None:
    NURSERY.start()
    source = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_submission, source, ["softmax"], limits=SandboxLimits(seconds=30))
        assert NURSERY.process is not None
        children = Path(f"/proc/{NURSERY.process.pid}/task/{NURSERY.process.pid}/children")
        while not (child := children.read_text().strip()):
            time.sleep(0.02)
        NURSERY.process.kill()
        with pytest.raises(HeedfulError):
            running.result()
    while Path(f"/proc/{child}").exists():
        time.sleep(0.02)
    (run,) = run_submission("def bpe_merge(words): return 'there'\n", ["bpe_merge"]).runs.values()
    assert run.outputs[0] == "there"


@pytest.mark.slow
def test_a_process_that_was_ended_is_started_again_for_the_next_function() -> None:
    source = "import os\ndef softmax(x, dim): os._exit(3)\ndef bpe_merge(words): return 'there'\n"
    runs = run_submission(source, ["softmax", "bpe_merge"]).runs
    assert "exit code 3" in str(runs["softmax"].outputs[0])
    assert runs["bpe_merge"].outputs[0] == "there"


def test_work_in_place_and_another_default_type_stay_the_students_own() -> None:
    source = "import torch\ntorch.set_default_dtype(torch.float64)\n"
    source += "def softmax(x, dim):\n    x -= x.amax(dim, True)\n"
    source += "    return x.exp_().div_(x.sum(dim, True))\n"
    grade = grade_source(source, ["softmax"]).grades[0]
    assert (grade.verdict, grade.inside and grade.inside.same) == ("right", True)


READY_MADE = {
    "s = torch.softmax\ndef softmax(x, dim): return s(x, dim)": "softmax",
    "def softmax(x, dim): return getattr(torch, 'soft' + 'max')(x, dim)": "softmax",
    "def softmax(x, dim): return x.softmax(dim)": "softmax",
    "def softmax(x, dim): return next(map(torch.log_softmax, [x], [dim])).exp()": "log_softmax",
    "def softmax(x, dim): return torch.nn.Softmax(dim)(x)": "softmax",
    "def softmax(x, dim): return torch.ops.aten.softmax.int(x, dim)": "softmax",
    "from heedful.nn.attention.attend import masked_softmax as softmax": "heedful.masked_softmax",
    "def layer_norm(x, gamma, *rest): return F.layer_norm(x, gamma.shape, gamma, *rest)": "layer_norm",
    "attention = F.scaled_dot_product_attention": "scaled_dot_product_attention",
    "def lstm_step(x, h, c, W, U, b): return torch.lstm_cell(x, (h, c), W, U, b, b)": "lstm_cell",
    "def adamw_step(p, *rest): return torch.optim.AdamW([p])": "AdamW",
}


@pytest.mark.parametrize(
    "source", [pytest.param(s, marks=() if i < 1 else pytest.mark.slow) for i, s in enumerate(READY_MADE)]
)
def test_a_ready_made_function_is_noticed_by_whatever_name_it_is_called(source: str) -> None:
    header = "import torch\nimport torch.nn.functional as F\n"
    (grade,) = [one for one in grade_source(header + source, inside=False).grades if one.verdict != "missing"]
    assert f"it calls a ready-made {READY_MADE[source]}: the exercise is to write it" in grade.notes
