"""Sheets in every format: written, filled, read back and marked; what is no sheet is one clear line."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heedful.classroom.arithmetic.render import formula_mathml
from heedful.classroom.exercises.number_exercises import EXERCISES, new_problem
from heedful.classroom.exercises.number_grading import grade_answers, run_quiz
from heedful.classroom.exercises.sheets import (
    FORMATS,
    READ,
    SUFFIXES,
    key_text,
    read_sheet,
)
from heedful.cli import main
from heedful.core.errors import InputError, NotFound

NAMES = list(EXERCISES)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_STATE", str(tmp_path / "state"))


def heed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        main([str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize("name", NAMES)
def test_a_key_read_back_as_a_sheet_gets_full_marks(name: str, suffix: str, tmp_path: Path) -> None:
    problem = new_problem(name, "Zoë, 7")
    path = tmp_path / f"sheet{suffix}"
    path.write_text(FORMATS[SUFFIXES[suffix]](problem, True), encoding="utf-8")
    again, answers = read_sheet(path)
    assert again.values == problem.values
    assert grade_answers(again, answers).points == len(problem.questions)


@pytest.mark.parametrize("suffix", READ)
def test_an_empty_sheet_is_one_clear_line(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"sheet{suffix}"
    path.write_text(FORMATS[SUFFIXES[suffix]](new_problem("dragons", "a"), False), encoding="utf-8")
    with pytest.raises(InputError, match="has no answers yet"):
        read_sheet(path)


def test_rows_that_belong_to_words_stand_behind_them() -> None:
    problem = new_problem("cat-sat", "alice")
    for form in ("text", "html", "latex", "csv", "yaml"):
        sheet = FORMATS[form](problem, False)
        for letter in "QKV":
            first = problem.values[letter][0]
            assert f"The [{first[0]} {first[1]}]   cat [" in sheet, form


def fill(sheet: str) -> str:
    """The text sheet of cat-sat as a student fills it, with one number wrong."""
    answers = iter(key_text(q) for q in new_problem("cat-sat", "alice").questions)
    out = re.sub(r"^(\d+) =$", lambda found: f"{found[1]} = {next(answers)}", sheet, flags=re.MULTILINE)
    return re.sub(r"^1 = \d", "1 = 7", out, flags=re.MULTILINE)


def test_a_sheet_goes_from_command_to_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "alice.txt"
    code, out, _ = heed(capsys, "exercise", "cat-sat", "--seed", "alice", "--out", path)
    assert (code, out.strip()) == (0, str(path))
    code, _, err = heed(capsys, "exercise", "cat-sat", "--seed", "alice", "--out", path)
    assert code
    assert "already exists" in err
    path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
    code, out, _ = heed(capsys, "grade", path)
    assert code == 1
    assert "went wrong first" in out
    assert "4.667 of 5 points; step 1, scores of" in " ".join(out.split())
    code, out, _ = heed(capsys, "grade", path, "--json")
    found = json.loads(out)
    assert (found["first_error"], found["points"], found["total"]) == (1, 4.6667, 5)


def test_a_right_sheet_leaves_with_0_and_is_kept_as_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key.yaml"
    heed(capsys, "exercise", "temperature", "--seed", "7", "--key", "--out", path)
    assert heed(capsys, "grade", path)[0] == 0
    code, out, _ = heed(capsys, "exercise", "--list", "--json")
    assert code == 0
    states = {row["name"]: row["state"] for row in json.loads(out)["exercises"]}
    assert states["temperature"] == "done"
    assert states["motel"] == "next"
    assert "1 of 28 done; next: motel" in heed(capsys, "exercise", "--list")[1]


@pytest.mark.parametrize(
    "words", [("explain", "--list"), ("explain", "cat-sat"), ("exercise", "--list"), ("exercise", "cat-sat")]
)
def test_examples_and_exercises_are_printed_without_torch(words: tuple[str, ...]) -> None:
    code = f"import sys\nfrom heedful.cli import main\ntry:\n    main({list(words)})\n"
    code += "except SystemExit: sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "sat" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exercise", "cat-sit"), "did you mean 'cat-sat'"),
        (("exercise", "cat-sat", "dragons"), "is a second exercise"),
        (("exercise", "cat-sat", "--seed", ""), "not a student's name"),
        (("exercise", "cat-sat", "--digits", "0"), "choose 1"),
        (("exercise", "cat-sat", "--format", "word"), "choose one of text, yaml"),
        (("exercise", "cat-sat", "--out", "sheet.doc"), "has no ending that says its format"),
        (("exercise", "cat-sat", "--hint"), "type ?"),
        (("grade", "missing.yaml"), "missing.yaml"),
        (("grade", "sheet.pdf"), "sheet.pdf"),
    ],
)
def test_wrong_words_are_one_clear_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = heed(capsys, *words)
    assert code not in (0, 1)
    assert said in err
    assert "Traceback" not in err
    assert not out


FAULTS = {
    "no.yaml": ("hello", "is not a sheet"),
    "broken.yaml": ("exercise: [", "cannot be read"),
    "broken.json": ("{", "cannot be read"),
    "unnamed.yaml": ("seed: a\nanswers: {1: 2}", "does not say its exercise"),
    "unseeded.txt": ("exercise: cat-sat\n1 = 2", "does not say its seed"),
    "unknown.csv": ("exercise,cats\nseed,a\n1,q,2", "no exercise 'cats'"),
    "beyond.txt": ("exercise: cat-sat\nseed: a\n9 = 1", "has an answer to '9'"),
    "listed.json": ('{"exercise": "cat-sat", "seed": "a", "answers": [1]}', "answers need the number"),
    "digits.txt": ("exercise: cat-sat\nseed: a\ndigits: many\n1 = 1", "not a whole number"),
    "empty.txt": ("", "does not say its exercise"),
    "laughs.yaml": ("a: &a [1, 2]\nb: [*a, *a]", "YAML alias"),
    "deep.json": ("[" * 100_000, "cannot be read"),
    "sheet.pdf": ("%PDF", "is not a filled sheet"),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_file_that_is_no_sheet_is_named(name: str, tmp_path: Path) -> None:
    text, said = FAULTS[name]
    (tmp_path / name).write_text(text)
    with pytest.raises((InputError, NotFound), match=re.escape(said)):
        read_sheet(tmp_path / name)


def test_a_file_in_another_encoding_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("exercise: cät".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read_sheet(tmp_path / "latin.txt")
    (tmp_path / "long.txt").write_text("x" * 1_000_001)
    with pytest.raises(InputError, match="too large"):
        read_sheet(tmp_path / "long.txt")
    with pytest.raises(InputError, match="not a filled sheet"):
        read_sheet(tmp_path)


def test_a_spreadsheet_may_save_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text("exercise;motel\nseed;a\ndigits;4\nnumber;question;answer\n1;dot;0\n")
    assert read_sheet(path)[1] == {1: "0"}


class Tags(html.parser.HTMLParser):
    """Every element opened, and those left open."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "input":
            self.inputs.append(str(dict(attrs)["name"]))
        self.scripts += tag == "script"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_a_field_for_each_question_and_no_key(name: str) -> None:
    problem = new_problem(name, "</script><b>")
    page, key = (FORMATS["html"](problem, with_key) for with_key in (False, True))
    for text in (page, key):
        assert "</script><b>" not in text
        assert "http" not in text.replace("http-equiv", "")
    tags = Tags()
    tags.feed(page)
    assert tags.inputs == [str(q.number) for q in problem.questions]
    assert tags.scripts == 2
    long = [
        key_text(q)
        for q in problem.questions
        if len(key_text(q)) > 5 and key_text(q) not in str(problem.given_values)
    ]
    for answer in long:
        assert answer in key
        assert f"<code>{answer}</code>" not in page


@pytest.mark.parametrize("name", NAMES)
def test_latex_is_balanced_and_has_no_bare_unicode_sign(name: str) -> None:
    for with_key in (False, True):
        source = FORMATS["latex"](new_problem(name, "a_b & 50%"), with_key)
        plain = source.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")
        assert source.count(r"\begin{") == source.count(r"\end{")
        assert r"a\_b \& 50\%" in source
        strange = {c for c in source if ord(c) > 0x17F} - set("“”’…")
        assert not strange, strange
        assert source.replace(r"\$", "").count("$") % 2 == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX is installed")
@pytest.mark.parametrize("name", NAMES)
def test_latex_compiles(name: str, tmp_path: Path) -> None:
    for with_key in (False, True):
        (tmp_path / "sheet.tex").write_text(
            FORMATS["latex"](new_problem(name, "Zoë, 50%"), with_key), encoding="utf-8"
        )
        words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "sheet.tex"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-600:]
        assert (tmp_path / "sheet.pdf").stat().st_size > 1000


@pytest.mark.parametrize("name", NAMES)
def test_every_formula_of_a_page_is_well_formed_mathml_with_all_its_signs(name: str) -> None:
    for question in new_problem(name, "ada").questions:
        formula = question.line.formula
        math = ElementTree.fromstring(formula_mathml(formula).replace("&nbsp;", ""))
        said = "".join(math.itertext())
        plain = re.sub(r'[\s"_{}]', "", formula.replace("log₂", "log2").replace("²", "2").replace("ᵀ", "⊤"))
        roots = re.sub(r"√\(([^()]*)\)", r"\1", plain).replace("√", "")
        assert re.sub(r"\s", "", said) == roots


def test_indices_stand_below_powers_above_and_roots_around() -> None:
    assert formula_mathml("h_{t−1}") == (
        "<math><mrow><msub><mi>h</mi><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow></msub></mrow></math>"
    )
    assert "<msup><mi>σ</mi><mn>2</mn></msup>" in formula_mathml("√(σ² + ε)")
    assert formula_mathml("√d_k").count("<msqrt><msub>") == 1
    left, right = (f'<mo stretchy="false">{sign}</mo>' for sign in "()")
    assert formula_mathml("(a") == (
        f"<math><mrow><mrow>{left}<mrow><mi>a</mi></mrow>{right}</mrow></mrow></math>"
    )
    assert "&lt;" in formula_mathml("a < b")


def test_the_page_saves_answers_that_can_be_graded(tmp_path: Path) -> None:
    from tests.classroom.browser.chromium import chromium

    problem = new_problem("cat-sat", "Zoë 7")
    tab = chromium().new_page(accept_downloads=True)
    tab.set_content(FORMATS["html"](problem, False))
    for question in problem.questions:
        tab.fill(f"input[name='{question.number}']", key_text(question))
    with tab.expect_download() as saved:
        tab.click("text=Save my answers")
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    tab.close()
    assert path.suffix == ".json"
    assert grade_answers(*read_sheet(path)).points == 5


@pytest.mark.parametrize("width", [700, 1100])
def test_no_formula_of_a_page_stands_over_the_next_column(width: int) -> None:
    from tests.classroom.browser.chromium import chromium

    tab = chromium().new_page(viewport={"width": width, "height": 900})
    for key in (False, True):
        tab.set_content(FORMATS["html"](new_problem("norm-gradient", "ada"), key))
        right = "el => [el.getBoundingClientRect().right, el.closest('td').getBoundingClientRect().right]"
        boxes = [one.evaluate(right) for one in tab.query_selector_all("td math")]
        assert len(boxes) == 8
        assert [box for box in boxes if box[0] > box[1]] == []
        heights = [one.bounding_box()["height"] for one in tab.query_selector_all("thead th")]
        assert max(heights) < 50, "no word of the head is broken"
    tab.close()


def asking(*lines: str) -> tuple[list[str], Iterator[str]]:
    said: list[str] = []
    return said, iter(lines)


def test_the_quiz_gives_hints_a_second_try_and_marks() -> None:
    problem = new_problem("cross-entropy-gradient", "bob")
    right = [key_text(q) for q in problem.questions]
    said, lines = asking("?", "?", right[0], "9", right[1], "", right[3])
    grade, hints = run_quiz(problem, lambda prompt: next(lines, None), said.append)
    assert hints == 2
    assert [row.verdict for row in grade.questions] == ["right", "right", "missing", "right"]
    assert any("try again" in line for line in said)
    said, lines = asking(right[0], "q")
    grade, _ = run_quiz(problem, lambda prompt: next(lines, None), said.append)
    assert grade.points == 1
    said, lines = asking("8", "9")
    run_quiz(problem, lambda prompt: next(lines, None), said.append)
    assert any(f"it is {right[0]}" in line for line in said)


def test_code_and_python_files_go_to_their_own_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = heed(capsys, "exercise", "code", "--list", "--json")
    assert code == 0
    assert "attention" in {row["name"] for row in json.loads(out)["exercises"]}
    path = tmp_path / "solution.py"
    assert heed(capsys, "exercise", "code", "softmax", "--out", path)[0] == 0
    assert "def softmax" in path.read_text()
