"""Bad input to `heed train`: one clear line, a hint, and exit code 3."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.finetune.conftest import Heed

TEXT = "the cat sat on the mat. " * 200
SMALL = (
    "--set", "model.dim=16", "--set", "model.layers=1", "--set", "model.heads=2", "--length", 16,
    "--batch", 2, "--steps", 2, "--folder", "r", "-q",
)  # fmt: skip
GPT = ("train", "shakespeare-char-cpu")
TABLE = "text\tlabel\n" + "".join(f"a text of number {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(20))
CLASSIFY = ("train", "bert", "t.tsv", "--set", "objective=classify", "--set", "tokenizer.vocab=200", *SMALL)


def refused(heed: Heed, *arguments: object) -> str:
    """What is said of a bad input: one line and hints, nothing on stdout, exit 3."""
    code, out, err = heed(*arguments)
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert all(line.startswith("hint: ") for line in err.splitlines()[1:])
    return err


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "x.txt").write_text(TEXT)
    return tmp_path / "x.txt"


def test_a_file_that_is_not_there(heed: Heed, text: Path) -> None:
    assert "no file or folder y.txt\nhint: did you mean 'x.txt'?" in refused(heed, *GPT, "y.txt", *SMALL)


def test_no_data_at_all(heed: Heed) -> None:
    assert "no data was given" in refused(heed, *GPT, *SMALL)


def test_an_empty_file(heed: Heed, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    assert "x.txt" in (said := refused(heed, *GPT, "x.txt", *SMALL))
    assert "empty" in said or "no text" in said


def test_a_wrong_encoding_names_the_line(heed: Heed, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"one\ntwo\nthr\xe9\xe8\nfour\n" * 40)
    said = refused(heed, *GPT, "x.txt", *SMALL)
    assert "x.txt" in said
    assert "3" in said
    assert heed(*GPT, "x.txt", *SMALL, "--set", "data.encoding=latin-1")[0] == 0


def test_a_column_that_does_not_exist(heed: Heed, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(TABLE)
    said = refused(heed, *CLASSIFY, "--set", "data.text=txt")
    assert "t.tsv has no column 'txt'\nhint: did you mean 'text'?" in said


def test_a_label_that_training_did_not_have(heed: Heed, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(TABLE)
    (tmp_path / "v.tsv").write_text("text\tlabel\na text\tugly\n")
    said = refused(heed, *CLASSIFY, "--valid", "v.tsv")
    assert "v.tsv, line 2: label 'ugly' was not seen in training" in said


def test_rows_longer_than_the_context(heed: Heed, text: Path, tmp_path: Path) -> None:
    said = refused(heed, *GPT, "x.txt", *SMALL, "--length", 257)
    assert "data.length = 257 is longer than the context of 256" in said
    assert "--set model.context=257" in said
    (tmp_path / "t.tsv").write_text(TABLE.replace("a text of", "a text of very many words " * 9))
    assert "are longer than 16 tokens" in refused(heed, *CLASSIFY)  # never cut silently
    code, _, err = heed(*[a for a in CLASSIFY if a != "-q"], "--set", "data.truncate=true")
    assert code == 0
    assert "note: 20 of 20 texts were cut to 16 tokens" in err


def test_a_vocabulary_of_another_model(heed: Heed, text: Path) -> None:
    heed(*GPT, "x.txt", *SMALL, "--set", "model.context=64")
    heed("tokenizer", "train", "x.txt", "--vocab", 300, "-o", "other")
    said = refused(heed, *GPT, "x.txt", *SMALL, "--resume", "--set", "tokenizer.kind=other")
    assert "r was trained with tokenizer.kind = 'char' and would be resumed with 'other'" in said
    said = refused(heed, *GPT, "x.txt", *SMALL, "--folder", "s", "--set", "model.vocab=3")
    assert "the tokenizer has 12 tokens, model.vocab has 3" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.dim=32", "r was trained with model.dim = 16 and would be resumed with 32"),
        ("train.lr=0.5", "was trained with --lr 0.003 and would be resumed with 0.5"),
        ("data.batch=4", "r was trained with data.batch = 2 and would be resumed with 4"),
        ("train.seed=1", "was trained with --seed 0 and would be resumed with 1"),
    ],
)
def test_going_on_with_another_setting_names_it(change: str, message: str, heed: Heed, text: Path) -> None:
    assert heed(*GPT, "x.txt", *SMALL)[0] == 0
    before = (text.parent / "r" / "config.yaml").read_text()
    assert message in refused(heed, *GPT, "x.txt", *SMALL, "--resume", "--set", change)
    assert (text.parent / "r" / "config.yaml").read_text() == before


def test_going_on_with_other_data(heed: Heed, text: Path, tmp_path: Path) -> None:
    assert heed(*GPT, "x.txt", *SMALL)[0] == 0
    before = (tmp_path / "r" / "config.yaml").read_text()
    (tmp_path / "y.txt").write_text(TEXT.replace("cat", "tac"))
    assert "was trained on other data" in refused(heed, *GPT, "y.txt", *SMALL, "--resume")
    assert (tmp_path / "r" / "config.yaml").read_text() == before


def test_a_run_cannot_go_where_a_file_is(heed: Heed, text: Path) -> None:
    assert "x.txt cannot be created" in refused(heed, *GPT, "x.txt", *SMALL, "--folder", "x.txt")


def test_a_folder_that_holds_a_run(heed: Heed, text: Path) -> None:
    assert heed(*GPT, "x.txt", *SMALL)[0] == 0
    assert "r holds a run already\nhint: --resume continues it" in refused(heed, *GPT, "x.txt", *SMALL)


def test_a_model_that_cannot_be(heed: Heed, text: Path) -> None:
    assert "heads=3 does not divide dim=16" in refused(heed, *GPT, "x.txt", *SMALL, "--set", "model.heads=3")
    assert "has no field 'haeds'" in refused(heed, *GPT, "x.txt", *SMALL, "--set", "model.haeds=2")
    assert "data.lenght is not a setting" in refused(heed, *GPT, "x.txt", *SMALL, "--set", "data.lenght=2")
    assert "--device gpu is unknown" in refused(heed, *GPT, "x.txt", *SMALL, "--device", "gpu")
    assert "needs a teacher" in refused(heed, "train", "distil", "x.txt", *SMALL)


def test_a_corpus_of_two_sides_must_pair_up(heed: Heed, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n")
    assert "a has 2 lines and b has 1" in refused(heed, "train", "transformer-multi30k", "a", "b", *SMALL)


@pytest.mark.slow
def test_a_full_disk_keeps_what_was_saved(text: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk]).returncode
    ):
        pytest.skip("needs the right to mount a small disk")
    try:
        sizes = (
            "--set",
            "model.dim=64",
            "--set",
            "model.layers=1",
            "--set",
            "model.heads=2",
            "--length",
            "16",
        )
        often = (
            "--set",
            "train.save_every=1",
            "--set",
            "data.holdout=0",
            "--set",
            "train.keep=3",
            "--steps",
            "40",
        )
        command = [
            sys.executable,
            "-m",
            "heedful.cli",
            *GPT,
            str(text),
            *sizes,
            *often,
            "--folder",
            str(disk / "r"),
            "-q",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert "no space left on the disk" in done.stderr
        assert "the last good checkpoint is" in done.stderr
        import heedful

        assert heedful.load(max((disk / "r" / "checkpoints").glob("step-*[0-9]"))) is not None
    finally:
        subprocess.run(["umount", disk], check=True)
