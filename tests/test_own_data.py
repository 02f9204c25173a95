"""The nine jobs of docs/own-data.md, from a small file to an answer, by the commands that the page shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heedful.cli import main
from tests.test_readme import blocks, needs_bases

PAGE = (Path(__file__).parents[1] / "docs" / "own-data.md").read_text(encoding="utf-8")
JOBS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
WRONG = JOBS.pop("When the input is wrong")
KINDS = {
    "bill": ["please pay this invoice", "the invoice is late", "a bill for march", "pay the bill now"],
    "visit": ["may we come on monday", "our visit next week", "when can we visit", "a tour of the house"],
}
# What makes training short enough for a test; the page has the plain command.
SHORT = {
    "finetune": ["--epochs", "1", "--length", "16"],
    "train": ["--steps", "2", "--length", "16", "--batch", "2", "--device", "cpu"],
}


def notes(copies: int) -> list[tuple[str, str]]:
    return [(f"{text} {n}", kind) for n in range(copies) for kind, texts in KINDS.items() for text in texts]


def table(*rows: tuple[str, ...]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def write_files(folder: Path) -> None:
    """Write a small file for every name on the page."""
    texts = [(note,) for note, _ in notes(3)]
    sentence = "Ada B-PER\nLovelace I-PER\nmet O\nMr O\nBabbage B-PER\nin O\nLondon B-LOC\n. O\n\n"
    ends = zip(notes(2), reversed(notes(2)), strict=True)
    pairs = [(a, b, str(round(0.1 * (i % 10), 1))) for i, ((a, _), (b, _)) in enumerate(ends)]
    asked = [("user", "When do you open on day {}?"), ("assistant", "We open at {}.")]
    chats = [
        {"messages": [{"role": role, "content": text.format(n)} for role, text in asked]} for n in range(12)
    ]
    numbers = ["one", "two", "three", "four", "five", "six"]
    zahlen = ["eins", "zwei", "drei", "vier", "fünf", "sechs"]
    both = [f"{numbers[i]} {numbers[j]}\t{zahlen[i]} {zahlen[j]}\n" for i in range(6) for j in range(6)]
    files = {
        "mail.csv": table(("note", "kind"), *notes(9)),
        "mail-test.csv": table(("note", "kind"), *notes(2)),
        "inbox.csv": table(("note",), *texts),
        "notes.csv": table(("note",), *texts),
        "few.csv": table(("note", "kind"), *notes(2)),
        "names.conll": sentence * 12,
        "names-test.conll": sentence * 4,
        "letters.txt": "Ada met Mr Babbage.\nLondon is far.\n",
        "pairs.csv": table(("first", "second", "score"), *pairs),
        "pairs-test.csv": table(("first", "second", "score"), *pairs[:8]),
        "new-pairs.csv": table(("first", "second"), *(pair[:2] for pair in pairs[:4])),
        "chats.jsonl": "".join(json.dumps(chat) + "\n" for chat in chats),
        "novel.txt": "Once upon a time there was a cat who sat on a mat and slept all day.\n" * 60,
        "sentences.tsv": "".join(both),
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


def run_command(line: str) -> None:
    _, name, *words = shlex.split(line)
    if name == "serve":  # tests/serve asks servers; here the command only has to accept the folder
        return
    with pytest.raises(SystemExit) as stop:
        main([name, *words, *SHORT.get(name, [])])
    assert stop.value.code == 0, line


def job(name: str) -> Any:
    quick = {"Write your own training loop", "Search texts by meaning"}
    return pytest.param(name, marks=() if name in quick else pytest.mark.slow)


def test_the_page_has_nine_jobs_each_of_five_commands_or_fifteen_lines() -> None:
    assert len(JOBS) == 9
    for text in JOBS.values():
        assert all(len(block.code.splitlines()) <= 5 for block in blocks(text, "console"))
        assert all(
            len([s for s in block.code.splitlines() if s.strip()]) <= 15 for block in blocks(text, "python")
        )


@needs_bases
@pytest.mark.parametrize("name", [job(name) for name in JOBS])
def test_a_job_goes_from_a_file_to_an_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in blocks(JOBS[name], "console"):
        for line in block.code.splitlines():
            run_command(line)
    for block in blocks(JOBS[name], "python"):
        exec(compile(block.code, "own-data.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out


@needs_bases
@pytest.mark.parametrize(
    ("line", "message"),
    [row for row in re.findall(r"^\| `(heed .+?)` \| (.+?) \|", WRONG, re.MULTILINE)],
)
def test_bad_input_is_one_line_as_on_the_page(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(line)[1:])
    assert stop.value.code in (2, 3)
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message}"
