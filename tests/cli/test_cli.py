"""`heed`: results on stdout, errors as one line and hints, exit codes, instant help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.cli import COMMANDS, main
from heedful.cli.models import count_known, read_known
from heedful.interp.observe.show import label
from heedful.models import presets
from heedful.weights.hub import at_hand


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("HEED_DEBUG", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "how", "are", "you", "?"]
    model = heedful.build("gpt2", dim=16, layers=3, heads=2, vocab=9, context=8)
    folder = heedful.save(model, tmp_path / "tiny")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom heedful.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert all(f" {name} " in out for name in COMMANDS)


def test_help_imports_little() -> None:
    code = (
        "import contextlib, sys\nfrom heedful.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\nprint(len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr) < 400  # 315 when this was written; torch alone brings over a thousand


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, heed: Any) -> None:
    code, out, err = heed(name, "--help")
    assert (code, err) == (0, "")
    assert f"heed {name}" in out


def test_show_draws_the_tree_with_shapes_counts_and_equations(heed: Any) -> None:
    code, out, _ = heed("show", "gpt2")
    assert code == 0
    assert "124,439,808 parameters" in out
    assert "0 … 11  Block" in out
    assert "7,087,872 × 12" in out
    assert "768 → 3,072" in out
    assert "softmax(q_h k_hᵀ / √K) v_h" in out
    assert "= embed.token" in out  # the output matrix is the table


def test_layers_that_take_turns_are_drawn_as_two(heed: Any) -> None:
    _, out, _ = heed("show", "gpt3")
    assert "0, 2 … 94  Block" in out
    assert "1, 3 … 95  Block" in out
    assert "window 256" in out


@pytest.mark.parametrize(
    ("numbers", "drawn"),
    [([0], "0"), ([0, 1], "0, 1"), ([0, 1, 2], "0 … 2"), ([1, 3, 5], "1, 3 … 5"), ([0, 1, 5], "0, 1, 5")],
)
def test_like_layers_have_one_label(numbers: list[int], drawn: str) -> None:
    assert label(numbers) == drawn


def total(node: dict[str, Any]) -> int:
    """The parameters of a tree's leaves."""
    below = node.get("children", [])
    return sum(total(child) * child["times"] for child in below) if below else int(node["parameters"])


def test_show_as_json_has_every_parameter(heed: Any) -> None:
    code, out, _ = heed("show", "bert-base-uncased", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "heed/1"
    assert found["config"]["dim"] == 768
    assert found["tree"]["parameters"] == sum(
        p.numel() for p in heedful.build("bert-base-uncased", device="meta").parameters()
    )


def test_show_lists_the_values_that_can_be_watched_before_anything_is_computed(heed: Any) -> None:
    code, out, _ = heed("show", "gpt2", "--names")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("blocks.*.attn.pattern"))
    assert "(B, 12, T, T)" in line
    _, out, _ = heed("show", "gpt2", "--names", "--json")
    assert json.loads(out)["blocks.11.ffn.hidden"] == ["B", "T", 3072]


def test_show_reads_a_folder(heed: Any, model_folder: Path) -> None:
    code, out, _ = heed("show", str(model_folder))
    assert code == 0
    assert "0 … 2  Block" in out


def test_count_prints_both_accountings(heed: Any) -> None:
    code, out, _ = heed("count", "gpt3")
    assert code == 0
    assert "174,604,259,328" in out
    assert "175,181,291,520" in out
    assert "27,938 matrices" in out


def test_count_as_json_has_numbers(heed: Any, model_folder: Path) -> None:
    found = json.loads(heed("count", "gpt2", "--batch", "2", "--length", "10", "--json")[1])
    assert found["parameters"] == 124_439_808
    assert (found["batch"], found["length"]) == (2, 10)
    assert found["flops"] == 20 * found["flops_per_token"]
    assert json.loads(heed("count", str(model_folder), "--json")[1])["length"] == 8


def test_ls_lists_every_preset_and_the_folders_here(
    heed: Any, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model_folder.parent / "models").mkdir()
    model_folder.rename(model_folder.parent / "models" / "tiny")
    monkeypatch.chdir(model_folder.parent)
    code, out, _ = heed("ls", "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["name"] for row in found["presets"]] == list(presets())
    sizes = {row["name"]: row["parameters"] for row in found["presets"]}
    assert sizes["bert-base-uncased"] == heedful.count("bert-base-uncased").parameters
    here = [row for row in found["models"] if row["from"] == "./models"]
    assert [(row["name"], row["path"]) for row in here] == [("tiny", "models/tiny")]


def test_listing_models_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom heedful.cli import main\n"
        "for how in ([], ['--json']):\n"
        "    try: main(['ls', *how])\n    except SystemExit as end: assert not end.code\n"
        "print([m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_what_ls_lists_is_what_the_registry_has() -> None:
    """If not: python -m heedful.cli.models"""
    assert read_known() == count_known()


@pytest.mark.parametrize("width", [160, 100, 80, 60, 30])
def test_names_are_never_cut_however_narrow_the_terminal_is(
    width: int, heed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.cli.terminal.PIPED_WIDTH", width)
    out = heed("ls")[1]
    words = set(out.split())
    assert {*presets(), *at_hand(), "question-answering", "text-generation"} <= words
    assert "…" not in out
    if width >= 60:
        assert max(map(len, out.splitlines())) <= width


@pytest.mark.parametrize("command", [["recipes"], ["explain", "--list"]])
def test_names_of_other_lists_are_never_cut(
    command: list[str], heed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = heed(*command)[1]
    monkeypatch.setattr("heedful.cli.terminal.PIPED_WIDTH", 80)
    narrow = heed(*command)[1]
    first = lambda out: {line.split()[0] for line in out.splitlines() if line[:1].strip()}
    assert first(narrow) == first(wide)


def test_tokenize_shows_ids_pieces_and_characters(heed: Any, model_folder: Path) -> None:
    code, out, _ = heed("tokenize", str(model_folder), "How are you?", "--json")
    assert code == 0
    tokens = json.loads(out)["tokens"]
    assert [t["token"] for t in tokens] == ["[CLS]", "how", "are", "you", "?", "[SEP]"]
    assert tokens[1] == {"id": 5, "token": "how", "start": 0, "end": 3}
    _, table, _ = heed("tokenize", str(model_folder), "[x]")  # no markup is read into the text
    assert "[UNK]" in table


def test_env_and_version_say_where_we_are(heed: Any) -> None:
    assert heed("version")[1] == f"heedful {heedful.__version__}\n"
    assert json.loads(heed("env", "--json")[1])["packages"]["torch"]


def test_an_error_is_one_line_and_a_hint_and_code_3(heed: Any) -> None:
    code, out, err = heed("show", "gpt-tini")
    assert (code, out) == (3, "")
    error, hint = err.splitlines()
    assert error == "error: no model is called 'gpt-tini'"
    assert hint.startswith("hint: did you mean 'gpt-neo'")
    assert "'gpt'" in hint


def test_an_error_as_json_is_an_object_on_stdout(heed: Any) -> None:
    code, out, err = heed("count", "gpt-tini", "--json")
    assert (code, err) == (3, "")
    error = json.loads(out)["error"]
    assert error["code"] == "not_found"
    assert "gpt-tini" in error["message"]
    assert error["hint"]


def test_wrong_usage_is_one_line_and_a_hint(heed: Any) -> None:
    code, out, err = heed("fill", "x", "--top-k", "0")
    assert (code, out) == (2, "")
    error, hint = err.splitlines()
    assert error.startswith("error: Invalid value for '--top-k'")
    assert hint == "hint: heed fill --help"


def test_a_group_without_a_command_shows_its_help(heed: Any) -> None:
    code, out, err = heed("word2vec")
    assert code == 2
    assert "neighbours" in out + err
    assert "error" not in err.lower().replace("─ error", "")


def test_wrong_usage_is_code_2(heed: Any) -> None:
    assert heed("shwo")[0] == 2
    assert "show" in heed("shwo")[2]
    assert heed("count", "gpt2", "--batch", "0")[0] == 2


def test_a_fault_of_ours_says_how_to_see_more(heed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("a wire is loose")

    monkeypatch.setattr("heedful.weights.loading.skeleton", broken)
    code, out, err = heed("show", "gpt2")
    assert (code, out) == (1, "")
    assert err.startswith("error: RuntimeError: a wire is loose")
    assert "HEED_DEBUG=1" in err
    monkeypatch.setenv("HEED_DEBUG", "1")
    with pytest.raises(RuntimeError, match="a wire is loose"):
        main(["show", "gpt2"])


def test_out_of_memory_is_code_4(heed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str) -> None:
        raise MemoryError

    monkeypatch.setattr("heedful.weights.loading.skeleton", full)
    code, _, err = heed("show", "gpt2")
    assert code == 4
    assert "out of memory" in err


def test_no_colour_where_nobody_asked_for_it(heed: Any) -> None:
    assert "\x1b" not in heed("show", "gpt2")[1]
    assert "\x1b" not in heed("--no-color", "env")[1]


def test_a_trained_model_by_its_name_is_no_misspelt_exercise(heed: Any) -> None:
    code, _, said = heed("explain", "sentiment")
    assert code == 3
    assert "sentiment is a model" in said
    assert 'heed explain sentiment "…"' in said


def test_a_text_is_refused_beside_an_exercise(heed: Any) -> None:
    code, _, said = heed("explain", "cat-sat", "How are you?")
    assert code == 3
    assert "cat-sat is an exercise with its own numbers" in said
    assert "leave the text out" in said


@pytest.mark.parametrize("option", ["topic", "part", "head", "token", "target", "temperature"])
def test_what_asks_a_model_is_refused_beside_an_exercise(option: str, heed: Any) -> None:
    code, out, said = heed("explain", "cat-sat", f"--{option}", "1")
    assert (code, out) == (3, "")
    assert f"--{option} is for a model, and cat-sat is an exercise" in said


@pytest.mark.parametrize("command", ["show", "count"])
def test_word_vectors_are_told_apart_from_a_model(command: str, heed: Any) -> None:
    code, _, said = heed(command, "words")
    assert code == 3
    assert "words are word vectors, no model" in said


@pytest.mark.parametrize("wrong", [("finetune",), ("ls", "--jsn"), ("fill", "x", "--top-k", "many")])
def test_wrong_usage_as_json_is_an_object_too(heed: Any, wrong: tuple[str, ...]) -> None:
    code, out, err = heed(*wrong, "--json")
    assert (code, err) == (2, "")
    error = json.loads(out)["error"]
    assert error["code"] == "usage_error"
    assert error["hint"] == f"heed {wrong[0]} --help"
