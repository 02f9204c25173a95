"""docs/course-map.md: every command of the table runs and prints something."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from heedful.cli import main
from heedful.weights.hub import BASES, installed_models

PAGE = Path(__file__).parents[1] / "docs" / "course-map.md"
ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.MULTILINE)
TABLES = PAGE.read_text(encoding="utf-8").split("\n## ", 2)[2]  # below the plan of the weeks
ROWS = [row for row in ROW.findall(TABLES) if row[0] not in ("subject", "---")]
QUICK = (
    "explain",
    "show",
    "count",
    "ls",
    "course",
    "word2vec",
    "race",
    "scale",
    "classify",
    "recipes",
    "tokenizer",
)  # the others: slow
SHOWS = {  # the lesson of a row, as a command that holds these words prints it with the included models
    "cooking dinner": "kitchen",
    "sat on the [MASK]": "table",
    "similar motel": "1  hotel",
    "neighbours words queen": "king",
    "neighbours words france": "italy",
    "neighbours words banking": "finance",
    'answer "Who gave Harry': "Fred and George\n",
    "Text: Fred and George": " Fred and George",
    "Madrid is in": " Spain",
    "summarize": "Tom will bring the cake.",
    "Where did she go?": "the library\n",
    "--topic block": "the whole block for “fox”",
    "count gpt2`": "without embeddings",
}
COMMANDS = sorted({command for _, shown in ROWS for command in re.findall(r"`(heed [^`]+)`", shown)})


@pytest.mark.skipif(installed_models().keys() != BASES.keys(), reason="the bases are not installed")
@pytest.mark.parametrize(
    "command",
    [c if c.split()[1] in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in COMMANDS],
)
def test_a_command_of_the_map_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--no-start"] if words[0] == "course" else words)
    assert ended.value.code in (0, None)
    printed = capsys.readouterr().out
    assert printed.strip()
    if words[0] in ("fill", "word2vec"):
        printed = printed.splitlines()[0]  # the best answer comes first
    assert [lesson for part, lesson in SHOWS.items() if part in f"{command}`" and lesson not in printed] == []


def test_every_lesson_is_on_the_map() -> None:
    assert [part for part in SHOWS if sum(part in f"{command}`" for command in COMMANDS) != 1] == []


def test_no_row_is_shown_by_a_page_of_help() -> None:
    assert [command for command in COMMANDS if "--help" in command] == []


def test_every_row_says_where_it_is_shown() -> None:
    assert len(ROWS) >= 250
    assert [row for row in ROWS if "`heed" not in row[1] and ".md#" not in row[1]] == []
    assert len({subject for subject, _ in ROWS}) == len(ROWS)


def test_every_page_that_a_row_names_has_that_heading() -> None:
    anchors = {}
    for page in PAGE.parent.glob("*.md"):
        heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        anchors[page.name] = {
            re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-") for head in heads
        }
    named = re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert [link for link in named if link[1] not in anchors[link[0]]] == []
