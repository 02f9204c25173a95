"""Grading: planted mistakes are named, right variants stay right, hostile files get one clear line each.

mistakes/ has students' files in which every function has the mistake that its comment names; variants/ has
right functions written in other ways. Neither uses anything of the library.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heedful.classroom.exercises.code_exercises import code_exercises, stub_file
from heedful.classroom.exercises.code_grading import ExerciseGrade, grade_solution, grade_source
from heedful.classroom.exercises.sandbox import SandboxLimits, SolutionError
from heedful.core.errors import InputError, NotFound
from tests.refusal import refused

HERE = Path(__file__).parent
MISTAKES = sorted((HERE / "mistakes").glob("*.py"))
VARIANTS = sorted((HERE / "variants").glob("*.py"))
PLANTED = re.compile(r"^def (\w+)\(.*# mistake: (.+)$", re.MULTILINE)


QUICK_VARIANTS = ("plain", "with_einsum")  # the others run under `make test-all`


def grade(source: str, *names: str, seconds: float = 10.0, inside: bool = False) -> dict[str, ExerciseGrade]:
    """The grades of a text of Python by the name of the function."""
    result = grade_source(source, names or None, inside=inside, limits=SandboxLimits(seconds=seconds))
    return {one.name: one for one in result.grades}


@pytest.mark.parametrize(
    ("paths", "least"),
    [
        pytest.param(MISTAKES[:1], 6, id="one file"),
        pytest.param(MISTAKES, 60, marks=pytest.mark.slow, id="all"),
    ],
)
def test_planted_mistakes_are_named(paths: list[Path], least: int) -> None:
    planted, named, missed = 0, 0, []
    for path in paths:
        expected = {name: set(words.split(", ")) for name, words in PLANTED.findall(path.read_text())}
        for one in grade_solution(path, list(expected), inside=False).grades:
            planted += 1
            assert one.verdict == "wrong", (path.name, one)
            if set(one.mistakes) == expected[one.name]:
                named += 1
            else:
                missed.append((path.name, one.name, expected[one.name], one.mistakes))
    print(f"{named} of {planted} planted mistakes were named; others: {missed}")
    assert planted >= least
    assert named >= 0.9 * planted, missed


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK_VARIANTS else pytest.mark.slow)
        for path in VARIANTS
    ],
)
def test_no_right_variant_is_marked_wrong(path: Path) -> None:
    result = grade_solution(path, inside=False)
    assert {one.name: one.message for one in result.grades if one.verdict not in ("right", "missing")} == {}
    assert result.right >= 7


def test_there_are_at_least_twenty_right_variants() -> None:
    found = [name for path in VARIANTS for name in re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)]
    assert len([name for name in found if name in code_exercises()]) >= 20


@pytest.mark.slow
def test_right_functions_stay_right_inside_their_models() -> None:
    result = grade_solution(HERE / "variants" / "plain.py")
    assert [one.verdict for one in result.grades] == ["right"] * 15
    assert all(one.inside is not None and one.inside.same for one in result.grades)


def test_a_wrong_function_shows_what_the_model_makes_of_it() -> None:
    source = (HERE / "mistakes" / "greta.py").read_text()
    found = grade(source, "bahdanau_score", inside=True)["bahdanau_score"]
    assert found.inside is not None
    assert not found.inside.same
    assert found.inside.ours != found.inside.yours


def test_a_function_that_is_right_on_the_inputs_alone_is_found_out_inside_the_model() -> None:
    source = (
        "import torch\ndef softmax(x, dim=-1):\n    return torch.softmax(x if x.dim() < 4 else 0 * x, dim)\n"
    )
    found = grade(source, "softmax", inside=True)["softmax"]
    assert found.verdict == "wrong"
    assert "but inside translate-en-de" in found.message
    assert found.notes == ("it calls a ready-made softmax: the exercise is to write it",)


@pytest.mark.slow
def test_a_right_function_that_is_slow_inside_a_model_stays_right() -> None:
    source = (HERE / "variants" / "plain.py").read_text()
    result = grade_source(source, ["softmax"], limits=SandboxLimits(inside_seconds=0.05))
    assert result.grades[0].verdict == "right"
    assert "too slow" in result.grades[0].message


HOSTILE = """
import os, sys, time
import torch

def softmax(x, dim=-1):
    while True:
        pass

def attention(q, k, v, mask=None):
    return torch.zeros(1 << 36)

def layer_norm(x, gamma, beta, eps=1e-5):
    while True:
        print("garbage" * 1000)

def positional_encoding(length, dim, base=10000.0):
    os.system("echo hello")

def lstm_step(x, h, c, W, U, b):
    sys.exit(0)

def bahdanau_score(query, memory, W, U, v):
    return query / nothing

def bpe_merge(words):
    return "low"

def beam_search(log_probs, end, width, max_length, penalty=1.0):
    os._exit(7)

def skipgram_step(V, U, centre, contexts, negatives, rate):
    pass

def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * (m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps) + weight_decay * p), m, v
"""


@pytest.mark.slow
def test_hostile_functions_get_one_clear_line_each_and_the_last_one_is_graded() -> None:
    found = grade(HOSTILE, seconds=3)
    expected = {
        "softmax": "did not finish within 3 seconds",
        "attention": "more than 1.0 GiB of memory",
        "layer_norm": "printed or wrote more than 1.0 MB",
        "positional_encoding": "tried to start a program",
        "lstm_step": "called exit in line 20",
        "bahdanau_score": "NameError: name 'nothing' is not defined in line 23",
        "bpe_merge": "it returns a text and should return 2 values",
        "beam_search": "ended the whole process with exit code 7",
        "skipgram_step": "it returns None (is a return missing?)",
    }
    for name, words in expected.items():
        assert found[name].verdict == "wrong"
        assert words in found[name].message, found[name]
        assert "\n" not in found[name].message
    assert found["adamw_step"].verdict == "right"


WRONG_TYPES = {
    "torch.zeros(3)": "has the shape (3,) and should have (5,)",
    "x.long()": "has the type int64 and should have float32",
    "x.half()": "has the type float16",
    "{'weights': x}": "is a dict and should be a tensor",
    "lambda: x": "is a function and should be a tensor",
    "torch.zeros(5, dtype=torch.complex64)": "tensor of complex64",
    "torch.zeros(30_000_000)": "bytes is larger than",
    "softmax0(x)": "NameError",
    "softmax(x, dim)": "RecursionError",
    "x.exp() / 3": "[0] is",
    "[[1.0], [2.0, 3.0]]": "is a list of 2 values and should be a tensor",
    "1 << 100": "a whole number of more than 64 bits",
}


@pytest.mark.parametrize(
    "body", [pytest.param(b, marks=() if b == "lambda: x" else pytest.mark.slow) for b in WRONG_TYPES]
)
def test_wrong_types_and_shapes_have_a_line_of_their_own(body: str) -> None:
    found = grade(f"import torch\ndef softmax(x, dim=-1):\n    return {body}\n", "softmax")["softmax"]
    assert found.verdict == "wrong"
    assert WRONG_TYPES[body] in found.message


def test_a_broken_function_does_not_hide_the_others() -> None:
    source = (
        (HERE / "variants" / "plain.py").read_text().replace("def attention(q, k", "def attention(q, k)) (")
    )
    found = grade(source, "softmax", "attention", "layer_norm")
    assert [found[name].verdict for name in found] == ["right", "wrong", "right"]
    line = source[: source.index("def attention")].count("\n") + 1
    assert f"no Python in line {line}" in found["attention"].message


def test_sources_that_break_the_parser_are_one_line() -> None:
    right = "import torch\ndef softmax(x, dim=-1):\n    return torch.softmax(x, dim)\n"
    deep = "def attention(q, k, v, mask=None):\n    return " + "-" * 100_000 + "q\n"
    found = grade(
        right + deep + "def layer_norm(x, gamma, beta, eps):\n    return \0\n", "softmax", "attention"
    )
    assert (found["softmax"].verdict, found["attention"].verdict) == ("right", "wrong")
    assert "no Python in line 4" in found["attention"].message


def test_a_function_that_is_imported_is_noted() -> None:
    found = grade("from torch import softmax\n", "softmax")["softmax"]
    assert (found.verdict, found.notes) == (
        "right",
        ("it calls a ready-made softmax: the exercise is to write it",),
    )


def test_a_file_that_stops_half_way_is_graded_up_to_there() -> None:
    source = (
        (HERE / "variants" / "plain.py").read_text().replace("def layer_norm", "exit(1)\n\n\ndef layer_norm")
    )
    result = grade_source(source, ["attention", "layer_norm"], inside=False)
    assert [one.verdict for one in result.grades] == ["right", "missing"]
    assert "the file called exit in line" in result.notes[0]


@pytest.mark.slow
def test_a_file_that_never_ends_is_one_error() -> None:
    with pytest.raises(SolutionError, match="the file did not finish within 1 seconds"):
        grade_source("while True:\n    pass\n", limits=SandboxLimits(seconds=1))


def test_messages_that_a_solution_forges_are_no_answer() -> None:
    forged = "import os\ndef softmax(x, dim=-1):\n    for f in range(3, 12):\n"
    forged += "        try:\n            os.write(f, b'x' * 64)\n"
    found = grade(forged + "        except OSError:\n            pass\n    return x\n", "softmax")["softmax"]
    assert "returned something that cannot be read" in found.message


@pytest.mark.slow
def test_a_right_function_may_print() -> None:
    source = (HERE / "variants" / "plain.py").read_text()
    talking = source.replace("    e = torch.exp(", "    print('x' * 400_000)\n    e = torch.exp(")
    result = grade_source(talking, ["softmax"], inside=False)  # seven inputs: 2.8 MB in all
    assert result.right == 1
    assert "it printed 'xxx" in result.notes[0]


def test_stubs_are_not_written_yet_and_an_empty_file_has_nothing() -> None:
    assert {one.verdict for one in grade(stub_file()).values()} == {"unfinished"}
    assert {one.verdict for one in grade("").values()} == {"missing"}


def test_files_that_are_no_solution_are_refused(tmp_path: Path) -> None:
    with refused(NotFound, "absent.py"):
        grade_solution(tmp_path / "absent.py")
    with refused(NotFound, "is a folder"):
        grade_solution(tmp_path)
    (tmp_path / "picture.py").write_bytes(b"\x89PNG\xff\xfe")
    with refused(InputError, "not text in UTF-8"):
        grade_solution(tmp_path / "picture.py")
    (tmp_path / "large.py").write_bytes(b"#" * (2 << 20))
    with refused(InputError, "2,097,152 bytes"):
        grade_solution(tmp_path / "large.py")
    with refused(NotFound, "'gru_step'", hint="lstm_step"):
        grade_source("", ["gru_step"])
