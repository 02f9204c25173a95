"""Errors of commands speak the shell: options and settings, never arguments and calls of Python."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.cli import load_command, main
from heedful.cli.commands import shell_words
from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import HeedfulError

PYTHON = re.compile(r"(?<![\w.-])(?<!--set )[a-z_]+=(?![\d.]+ does)|\b\w+\(|\b(True|False|None)\b|Word2Vec\.")

# What imports packages that may be missing, each time anew in a test that hides one.
IMPORTERS = ("heedful.serve.", "heedful.classroom.studio.", "heedful.train.recipes.", "pydantic", "fastapi")


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in ("HEED_DEBUG", "HEED_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("some text\n" * 50)
    Path("utf16.txt").write_bytes("text".encode("utf-16"))
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    Path("table.dat").write_text("a,b\n1,2\n")

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(line))
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("generate gpt2 x", "heed train gpt2 FILE… trains it"),
        ("classify x -m mistral", "heed train mistral FILE…"),
        ("show words", "heed word2vec neighbours words WORD"),
        ("translate x --to xx", "give --model"),
        ("translate x --to fr -m translate-en-de", "give --model"),
        ("generate prose x --dtype float8", "--dtype float8 is unknown"),
        ("generate prose x --n 3 --temperature 0", "--n 3 with --temperature 0"),
        ("complete x -m prose --top-p 3", "--top-p 3.0"),
        ("complete x -m masked", "needs a decoder"),
        ("classify x --labels a --template none -m sentiment", "needs a classifier of entailment"),
        ("tag x --aggregation sum", "--aggregation sum is unknown"),
        ("classify utf16.txt", "iconv"),
        ("summarize latin.txt", "iconv"),
        ("train gpt2 utf16.txt", "--set data.encoding=utf-16"),
        ("train gpt2 latin.txt", "--set data.encoding=…"),
        ("train transformer t.txt", "name it .csv, .tsv or .jsonl"),
        ("train t5 t.txt --set tokenizer.sentinels=0", "--set tokenizer.sentinels=100"),
        ("train gpt2 t.txt --set start=gpt2", "heed train gpt2"),
        ("tokenizer train latin.txt", "--encoding"),
        ("tokenizer train t.txt --vocab 3", "--vocab 3 is too small"),
        ("explain prose 'a cat' --topic nothing", "--topic nothing"),
        ("quantize prose q", "quantised already, to int8"),
        ("word2vec train t.txt -o out.foo", "name it .safetensors"),
        ("word2vec train t.txt --dim 0", "--dim 0 must be at least 1"),
        ("word2vec train t.txt --min-count 99", "a lower --min-count"),
        ("generate masked x", "heed ls"),
        ("eval prose t.txt --set banana=3", "perplexity has no option 'banana'"),
        ("eval prose latin.txt", "name its encoding with --encoding"),
        ("classify x --labels ,", "--labels names no label"),
        ("fill [MASK] --targets ,", "--targets names no word"),
        ("fill x", "has no [MASK]"),
        ("finetune words t.txt", "heed word2vec neighbours words WORD"),
    ],
)  # fmt: skip
def test_what_to_do_is_said_in_the_words_of_the_shell(line: str, said: str, heed: Any) -> None:
    code, out, err = heed(line)
    assert (code, out) == (3, "")
    assert said in err
    assert not PYTHON.search(err), err


def test_perplexity_reads_the_encoding_that_is_named(heed: Any) -> None:
    assert heed("eval prose latin.txt --encoding latin-1 --json")[0] == 0


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("--top-p 3", "less than or equal to 1"),
        ("--top-k 0", "greater than or equal to 1"),
        ("--max-tokens 0", "greater than or equal to 1"),
    ],
)
def test_a_number_outside_its_range_is_wrong_usage(words: str, allowed: str, heed: Any) -> None:
    code, out, err = heed(f"generate prose x {words}")
    assert (code, out) == (2, "")
    assert words.split()[0] in err
    assert allowed in err


@pytest.mark.parametrize(
    ("command", "python", "shell"),
    [
        ("classify", "`hypothesis_template='no {place'` is bad", "--template no {place is bad"),
        ("complete", "`max_new_tokens=0` allows no output", "--max-tokens 0 allows no output"),
        ("answer", "give `handle_impossible_answer=True`", "give --or-nothing"),
        ("train", "`resume=True` goes on", "--resume goes on"),
        ("train", "use `graph=False`", "use --set train.graph=false"),
        ("train", "say `shared=False`", "say --set model.shared=false"),
        ("train", "an unmarked clip=1 stays", "an unmarked clip=1 stays"),
        ("train", "name a trained model: --set teacher=FOLDER", "name a trained model: --set teacher=FOLDER"),
        ("eval", "pass `truncate=True`", "pass --set truncate=true"),
        ("eval", "pass `truncation=True`", "pass --set truncation=true"),
        ("fill", "pass `truncation=True` to cut", "shorten the text"),
    ],
)
def test_an_argument_becomes_an_option_a_setting_or_another_way(
    command: str, python: str, shell: str
) -> None:
    assert shell_words(HeedfulError("", python), load_command(command), command)[1] == shell


def test_a_message_keeps_the_values_of_a_config() -> None:
    said = "heads=5 does not divide dim=64"
    assert shell_words(HeedfulError(said), load_command("train"), "train")[0] == said


@pytest.mark.parametrize(
    ("command", "check", "python", "shell"),
    [
        (
            "generate",
            lambda: check_integer("top_k", 0),
            "top_k=0 must be at least 1",
            "--top-k 0 must be at least 1",
        ),
        (
            "classify",
            lambda: check_integer("top_k", "two words"),
            "top_k='two words' must be a whole number",
            "--top-k two words must be a whole number",
        ),
        (
            "tag",
            lambda: check_choice("aggregation_strategy", "sum", ["max"]),
            "aggregation_strategy='sum' is unknown",
            "--aggregation sum is unknown",
        ),
        (
            "classify",
            lambda: check_integer("rows", 0),
            "rows=0 must be at least 1",
            "rows=0 must be at least 1",
        ),
    ],
)
def test_a_wrong_value_is_named_as_its_reader_gave_it(
    command: str, check: Callable[[], Any], python: str, shell: str
) -> None:
    with pytest.raises(HeedfulError) as caught:
        check()
    assert caught.value.message == python
    assert shell_words(caught.value, load_command(command), command)[0] == shell


@pytest.mark.parametrize(
    ("line", "module", "package"),
    [
        ("serve prose", "starlette.requests", '"heedful[serve]"'),
        ("studio --no-browser", "pydantic", '"heedful[studio]"'),
        ("generate prose x --regex [ab]+", "llguidance", '"heedful[constrain]"'),
        ("export prose out.gguf", "gguf", '"heedful[gguf]"'),
        ("train gpt2 t.txt", "yaml", "PyYAML"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    line: str, module: str, package: str, heed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(IMPORTERS)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = heed(line)
    assert (code, out) == (1, "")
    assert "needs the package " in err
    assert f"pip install {package}" in err
    assert "bug" not in err
