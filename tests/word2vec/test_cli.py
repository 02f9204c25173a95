"""The command line: results on stdout, the rest on stderr, errors in one line with their exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.training import plot_command
from heedful.cli.word2vec import word2vec_command as app
from heedful.core.errors import HeedfulError
from heedful.word2vec import Word2Vec

RUN = CliRunner()
FAST = ["--dim", "8", "--min-count", "1", "--epochs", "2", "--threads", "1"]


@pytest.fixture
def trained(tmp_path: Path, text: Path) -> Path:
    result = RUN.invoke(app, ["train", str(text), "-o", str(tmp_path / "v.safetensors"), *FAST])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(tmp_path / "v.safetensors")
    assert "epoch=2/2" in result.stderr
    return tmp_path / "v.safetensors"


def test_train_then_ask(trained: Path):
    assert len(RUN.invoke(app, ["neighbours", str(trained), "king", "-n", "3"]).stdout.splitlines()) == 3
    result = RUN.invoke(app, ["analogy", str(trained), "king", "queen", "ship", "--json"])
    found = json.loads(result.stdout)
    assert found["schema"] == "heed/1"
    assert found["excluded"] == ["king", "queen", "ship"]
    value = float(RUN.invoke(app, ["similarity", str(trained), "king", "queen"]).stdout)
    assert value == pytest.approx(Word2Vec.load(trained).similarity("king", "queen"), abs=1e-4)
    odd = RUN.invoke(app, ["odd", str(trained), "king", "queen", "ship"]).stdout.strip()
    assert odd in {"king", "queen", "ship"}


def test_a_map_of_words_is_drawn(trained: Path, tmp_path: Path):
    drawn = [RUN.invoke(plot_command, ["words", str(trained), *words, "-o", str(tmp_path / "map.csv")])
             for words in ((), ("king", "queen", "ship"))]  # fmt: skip
    assert [result.stdout.strip() for result in drawn] == [str(tmp_path / "map.csv")] * 2
    assert "ship" in (tmp_path / "map.csv").read_text()


def test_train_reports_json(tmp_path, text):
    result = RUN.invoke(app, ["train", str(text), "-o", str(tmp_path / "v.bin"), *FAST, "--json"])
    found = json.loads(result.stdout)
    assert len(found["loss"]) == 2
    assert found["words"] == 30


def test_convert_and_eval(tmp_path, trained):
    assert RUN.invoke(app, ["convert", str(trained), str(tmp_path / "v.txt")]).exit_code == 0
    (tmp_path / "questions.txt").write_text(": x\nking queen ship sea\n")
    (tmp_path / "pairs.tsv").write_text("king queen 9\nking ship 1\n")
    plain = RUN.invoke(app, ["eval", str(tmp_path / "v.txt"), str(tmp_path / "questions.txt")])
    assert "total" in plain.stdout
    found = json.loads(RUN.invoke(app, ["eval", str(trained), str(tmp_path / "pairs.tsv"), "--json"]).stdout)
    assert found["similarities"][0]["asked"] == 2


def test_phrases_writes_text(tmp_path):
    (tmp_path / "t.txt").write_text("".join(f"in new york {i} {i + 1} {i + 2}\n" for i in range(50)))
    given = ["phrases", str(tmp_path / "t.txt"), "-o", str(tmp_path / "p.txt"), "--threshold", "2"]
    result = RUN.invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "in_new york" in (tmp_path / "p.txt").read_text()


def test_checkpoint_and_resume(tmp_path, text):
    run = str(tmp_path / "run.safetensors")
    arguments = ["train", str(text), "-o", str(tmp_path / "v.bin"), *FAST, "--checkpoint", run]
    assert RUN.invoke(app, arguments).exit_code == 0
    first = (tmp_path / "v.bin").read_bytes()
    assert RUN.invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert (tmp_path / "v.bin").read_bytes() == first


def test_the_worked_step_prints():
    assert "wampimuk" in RUN.invoke(app, ["step"]).stdout
    assert json.loads(RUN.invoke(app, ["step", "--json"]).stdout)["centre"] == "wampimuk"


def test_errors_are_raised_as_ours(tmp_path, text):
    result = RUN.invoke(app, ["train", str(tmp_path / "none.txt")])
    assert isinstance(result.exception, HeedfulError)
    result = RUN.invoke(app, ["train", str(text), "-o", "v.xyz"])
    assert "cannot tell the format" in str(result.exception)


def test_help_imports_neither_torch_nor_numba_nor_numpy():
    code = (
        "import sys; sys.argv = ['heed', 'word2vec', 'train', '--help']\nfrom heedful.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numba', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--noise-exponent" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_an_error_is_a_line_with_a_hint_and_the_exit_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "heedful.cli", "word2vec", "train", str(tmp_path / "none.txt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    message, hint = done.stderr.strip().splitlines()
    assert message.startswith("error: no file or folder")
    assert hint.startswith("hint: ")
