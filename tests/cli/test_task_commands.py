"""The commands of tasks: texts from arguments and pipes, results on stdout, an object a text with --json."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli import load_command, main
from heedful.cli.models import names_model, read_card, read_known
from heedful.cli.tasks import format_answers
from heedful.cli.terminal import align_columns, mark_spans, text_or_file
from heedful.models.base import Model
from heedful.weights.hub import bundled_models, resolve
from tests.decode.toy import letters
from tests.properties.tiny import tiny

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PLAIN = ("the", "cat", "sat", "on", "mat", "dog", "ada", "lives", "in", "paris", ".", "?")
WORDS = SPECIAL + PLAIN
TASKS = (
    "classify", "tag", "answer", "translate", "summarize", "fill", "embed", "similar", "rerank", "complete",
)  # fmt: skip


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Exit code, stdout and stderr of a command; `piped` is what stdin has."""
    monkeypatch.delenv("HEED_DEBUG", raising=False)
    monkeypatch.delenv("HEED_DEVICE", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, piped: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


def saved(folder: Path, model: Model, **published: Any) -> Path:
    heedful.save(model, folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config = json.loads((folder / "config.json").read_text()) | published
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def bert(**changes: Any) -> Model:
    sizes = {"vocab": len(WORDS), "dim": 16, "layers": 1, "heads": 2, "context": 32}
    return heedful.build("bert", seed=0, **(sizes | changes))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of every kind of head."""
    root = tmp_path_factory.mktemp("models")
    moods, tags = {0: "BAD", 1: "GOOD"}, {0: "O", 1: "B-PER", 2: "I-PER"}
    return {
        "classify": saved(root / "classify", bert(head="classify", labels=2), id2label=moods),
        "tag": saved(root / "tag", bert(head="tag", labels=3), id2label=tags),
        "answer": saved(root / "answer", bert(head="span")),
        "fill": saved(root / "fill", bert(head="mlm")),
        "embed": saved(root / "embed", bert(head="none")),
        "translate": scribe(root / "translate", "transformer"),
        "complete": scribe(root / "complete", "llama", context=256),
    }


def scribe(folder: Path, family: str, **changes: Any) -> Path:
    """A model that writes bytes, nonsense for certain."""
    model = tiny(family, vocab=260, **changes)
    model.tokenizer = letters()
    return heedful.save(model, folder)


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_help_has_examples_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom heedful.cli import main\n"
        f"for name in {(*TASKS, 'verify', 'ls', 'generate', 'chat', 'serve')}:\n"
        "    try: main([name, '--help'])\n    except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert all(out.count(f"heed {name}") >= 2 for name in TASKS)


def test_a_text_is_classified(heed: Any, models: dict[str, Path]) -> None:
    code, out, err = heed("classify", "the cat sat .", "-m", models["classify"], "--top-k", 2)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert {row[1] for row in rows} == {"GOOD", "BAD"}
    assert float(rows[0][0]) >= float(rows[1][0])
    assert sum(float(row[0]) for row in rows) == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize(("bias", "hold"), [((3.0, -3.0, 2.0), ["A", "C"]), ((-3.0, -3.0, -3.0), [])])
def test_of_several_labels_all_that_hold_are_shown(
    bias: tuple[float, ...], hold: list[str], heed: Any, tmp_path: Path
) -> None:
    model = bert(head="classify", labels=3)
    [*model.head.parameters()][-1].data = torch.tensor(bias)
    names = {0: "A", 1: "B", 2: "C"}
    folder = saved(tmp_path / "m", model, id2label=names, problem_type="multi_label_classification")
    found = json.loads(heed("classify", "the cat sat .", "-m", folder, "--json")[1])["results"]
    assert [row["label"] for row in found] == hold
    printed = heed("classify", "the cat sat .", "-m", folder)[1].splitlines()
    assert [line.split()[-1] for line in printed] == (hold or ["more"])  # no label has ½ or more
    best = json.loads(heed("classify", "the cat sat .", "-m", folder, "--json", "--top-k", 1)[1])["results"]
    assert len(best) == 1


def test_one_text_as_json_is_one_object(heed: Any, models: dict[str, Path]) -> None:
    code, out, _ = heed("classify", "the cat sat .", "--model", models["classify"], "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == ["schema", "task", "model", "text", "results"]
    assert (found["schema"], found["task"]) == ("heed/1", "text-classification")
    assert found["text"] == "the cat sat ."
    assert set(found["results"][0]) == {"label", "score"}
    assert len(found["results"]) == 1


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_lines_of_a_pipe_are_texts_and_json_lines(
    heed: Any, models: dict[str, Path], dash: list[str]
) -> None:
    piped = "\ufeffthe cat\n\n  the dog \r\n"
    code, out, _ = heed("classify", *dash, "-m", models["classify"], "--json", piped=piped)
    assert code == 0
    assert [row["text"] for row in objects(out)] == ["the cat", "the dog"]


def test_several_texts_stand_above_their_results(heed: Any, models: dict[str, Path]) -> None:
    out = heed("classify", "[b]the :cat:", "the dog", "-m", models["classify"])[1].splitlines()
    assert (out[0], out[2], out[3]) == ("[b]the :cat:", "", "the dog")  # nothing is read into a text
    assert len(out) == 5


def test_labels_of_your_own_are_chosen_by_a_sentence_encoder(heed: Any, models: dict[str, Path]) -> None:
    given = ("the cat sat", "--labels", "cat, dog,mat", "-m", models["embed"], "--top-k", 3, "--json")
    found = json.loads(heed("classify", *given)[1])
    assert found["task"] == "zero-shot-classification"
    assert {row["label"] for row in found["results"]} == {"cat", "dog", "mat"}
    assert heed("classify", "the cat", "--several")[0] == 3


class Terminal(io.StringIO):
    """A terminal at which nothing was typed."""

    def isatty(self) -> bool:
        return True


def test_no_text_is_one_line_and_code_3(
    heed: Any, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for piped in ("", "\n \n"):
        code, out, err = heed("classify", "-m", models["classify"], piped=piped)
        assert (code, out) == (3, "")
        assert err.startswith("error: a text is empty\nhint: ")
    monkeypatch.setattr("io.StringIO", Terminal)
    assert "no text was given" in heed("classify", "-m", models["classify"])[2]


MISSING = {
    "classify": ["missing.txt"], "tag": ["missing.md"], "translate": ["./letters/missing"],
    "summarize": ["missing.txt"], "fill": ["missing.csv"], "embed": ["notes/missing.txt"],
    "similar": ["the cat", "missing.txt"], "complete": ["missing.TXT"],
    "answer": ["the cat ?", "--context", "missing.txt"], "generate": [".", "missing.txt"],
    "chat": ["--system", "missing.txt"], "tokenize": ["all-minilm-l6-v2", "missing.txt"],
}  # fmt: skip


@pytest.mark.parametrize("command", MISSING)
def test_a_file_that_is_not_there_is_no_text(command: str, heed: Any) -> None:
    code, out, err = heed(command, *MISSING[command])
    assert (code, out) == (3, "")
    error, hint = err.splitlines()
    assert error == f"error: file not found: {MISSING[command][-1]}"
    assert "pipe" in hint


def test_a_file_that_is_not_there_is_no_question_and_no_query(heed: Any) -> None:
    assert "file not found: missing.txt" in heed("generate", "missing.txt")[2]
    assert "file not found: missing.txt" in heed("answer", "missing.txt", "Who ?")[2]
    assert "file not found: missing.txt" in heed("answer", "Who ?", "missing.txt")[2]
    assert "file not found: missing.txt" in heed("answer", "missing.txt", piped="Who ?")[2]
    assert "file not found: missing.txt" in heed("answer", "missing.txt", "--context", "a cat")[2]
    assert "file not found: missing.txt" in heed("similar", "missing.txt", "a cat", "a dog")[2]


def test_the_nearest_name_is_told(heed: Any) -> None:
    Path("minutes.txt").write_text("the cat sat .")
    assert "did you mean 'minutes.txt'?" in heed("summarize", "minute.txt")[2]
    Path("notes").mkdir()
    assert "notes/ is a folder" in heed("summarize", "notes/")[2]


def test_a_file_that_is_there_is_read(heed: Any, models: dict[str, Path]) -> None:
    Path("s.txt").write_text("the cat\n\nthe dog\n")
    found = objects(heed("classify", "s.txt", "ada", "-m", models["classify"], "--json")[1])
    assert [row["text"] for row in found] == ["the cat", "the dog", "ada"]
    found = objects(heed("summarize", "s.txt", "-m", models["translate"], "--max-tokens", 2, "--json")[1])
    assert [row["text"] for row in found] == ["the cat\n\nthe dog"]
    ask = ("answer", "the cat ?", "-m", models["answer"], "--json")
    by_name, by_option = (heed(*ask, name, "s.txt")[1] for name in ("--context", "--file"))
    assert json.loads(by_name)["results"] == json.loads(by_option)["results"]
    found = objects(heed("similar", "the dog", "s.txt", "-m", models["embed"], "--json")[1])
    assert (found[0]["results"][0]["text"], found[0]["results"][0]["line"]) == ("the dog", 3)


def test_an_option_for_a_file_takes_any_name(heed: Any, models: dict[str, Path]) -> None:
    """Also one with a space or without a suffix, which as an argument would be a text."""
    for name in ("my notes.txt", "notes"):
        Path(name).write_text("the cat\n\nthe dog\n")
        ask = ("summarize", "--file", name, "-m", models["translate"], "--max-tokens", 2, "--json")
        assert json.loads(heed(*ask)[1])["text"] == "the cat\n\nthe dog"
        found = json.loads(heed("similar", "the dog", "--in", name, "-m", models["embed"], "--json")[1])
        assert (found["results"][0]["text"], found["results"][0]["line"]) == ("the dog", 3)
        index = ("index", name, "--out", f"{name}-index", "-m", models["embed"], "--json")
        assert json.loads(heed(*index)[1])["texts"] == 2


def test_a_file_without_text_is_named(heed: Any, models: dict[str, Path]) -> None:
    Path("empty.txt").write_text("\n \n")
    for line in (("classify", "the cat", "empty.txt"), ("similar", "the cat", "--in", "empty.txt")):
        assert heed(*line)[2] == "error: empty.txt has no text\nhint: put one on each line\n"


def test_a_model_in_this_folder_is_exported_under_its_name(
    heed: Any, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(models["complete"], "writer"))
    assert heed("export", ".")[1] == "writer-f16.gguf\n"


@pytest.mark.parametrize(
    "text", ["Where is it.", "e.g.", "https://a.b/c", "</s>", "see notes.txt", "3.14", "U.S.A"]
)
def test_a_text_is_no_file(text: str) -> None:
    assert text_or_file(text) == text


def test_a_model_that_does_not_fit_is_named(heed: Any, models: dict[str, Path]) -> None:
    code, out, err = heed("tag", "the cat", "-m", models["classify"])
    assert (code, out) == (3, "")
    assert "'classify' head" in err
    found = json.loads(heed("fill", "the [MASK]", "-m", "nowhere", "--json")[1])
    assert found["error"]["code"] == "not_found"


def test_what_is_cut_off_is_told_on_stderr_alone(heed: Any, models: dict[str, Path]) -> None:
    code, out, err = heed("classify", "the cat " * 40, "-m", models["classify"], "--json")
    assert code == 0
    assert len(objects(out)) == 1
    assert err.startswith("warning: cut off: 50 of 80 tokens")
    assert len(err.splitlines()) == 1


def test_names_are_marked_where_they_stand(heed: Any, models: dict[str, Path]) -> None:
    text = "Ada lives in Paris ."
    found = json.loads(heed("tag", text, "-m", models["tag"], "--aggregation", "none", "--json")[1])
    for row in found["results"]:
        assert text[row["start"] : row["end"]].lower() == row["word"]
    code, out, _ = heed("tag", text, "-m", models["tag"])
    assert code == 0
    head = out.splitlines()[0]
    assert head.replace("⟦", "").replace("⟧PER", "") == text
    assert heed("tag", text, "-m", models["tag"], "--aggregation", "sum")[0] == 3


@pytest.mark.parametrize("aggregation", ["none", "first"])
def test_names_are_printed_as_the_text_has_them(heed: Any, models: dict[str, Path], aggregation: str) -> None:
    text = "ADA Lives in Paris ."
    out = heed("tag", text, "-m", models["tag"], "--aggregation", aggregation)[1].splitlines()[1:]
    assert out
    for _, _, span, *words in map(str.split, out):
        start, end = map(int, span.split("–"))
        assert " ".join(words) == text[start:end]


def test_marks_enclose_spans_and_leave_out_what_overlaps() -> None:
    assert (
        mark_spans("Ada met\nBob.", [(8, 11, "PER"), (0, 3, "PER"), (1, 5, "X")]) == "⟦Ada⟧PER met ⟦Bob⟧PER."
    )
    assert align_columns([("1", "ab", "x y"), ("22", "漢", "z")]) == "1   ab  x y\n22  漢  z"


def test_an_answer_stands_in_its_text(heed: Any, models: dict[str, Path], tmp_path: Path) -> None:
    text = "the cat sat on the mat . ada lives in paris ."
    ask = ("answer", "the cat sat ?", "-m", models["answer"])
    found = json.loads(heed(*ask, "--context", text, "--top-k", 2, "--json")[1])
    assert found["task"] == "question-answering"
    assert len(found["results"]) == 2
    best = found["results"][0]
    assert text[best["start"] : best["end"]] == best["answer"]
    (tmp_path / "t.txt").write_text(text)
    for given, piped in (("--context", text), ""), (("--file", "t.txt"), ""), ((), text):
        code, out, _ = heed(*ask, *given, piped=piped)
        assert (code, out.splitlines()[0]) == (0, best["answer"])
        assert f"⟦{best['answer']}⟧" in out
    assert heed(*ask, "--context", "a", "--file", "t.txt")[0] == 3
    assert heed(*ask, "--file", "none.txt")[0] == 3


def test_a_text_and_a_question_are_told_apart_by_their_place(heed: Any, models: dict[str, Path]) -> None:
    text = "the cat sat on the mat . ada lives in paris ."
    Path("t.txt").write_text(text)
    ask, by_option = ("answer", "-m", models["answer"], "--json"), ("the cat ?", "--context", text)
    expected = json.loads(heed(*ask, *by_option)[1])
    for given in (("t.txt", "the cat ?"), ("the cat ?", "t.txt"), (text, "the cat ?")):
        assert json.loads(heed(*ask, *given)[1]) == expected
    two = objects(heed(*ask, "t.txt", piped="the cat ?\nthe dog ?\n")[1])
    assert [row["text"] for row in two] == ["the cat ?", "the dog ?"]
    assert two[0] == expected
    assert heed(*ask, "who", "is", "ada")[0] == 2
    assert heed(*ask, "t.txt", piped="\n")[0] == 3


@pytest.mark.parametrize("word", ["prose", "PROSE", "gpt2", "tiny.gguf", "owner/name", ".", "./runs/none"])
def test_an_argument_written_like_a_model_is_one(word: str) -> None:
    assert names_model(word)


@pytest.mark.parametrize("word", ["Hello", "Once upon", "./a b", "notes/a.txt", "a.md", "here/text", ""])
def test_any_other_argument_is_a_text(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("here/text").write_text("a file without a suffix")
    assert not names_model(word)


@pytest.fixture
def default_models(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    known = read_known() | {"models": {"text-generation": str(models["complete"]), "conversational": "."}}
    monkeypatch.setattr("heedful.cli.models.read_known", lambda: known)
    return models


def test_generate_takes_a_model_of_its_own_and_says_which(heed: Any, default_models: dict[str, Path]) -> None:
    few, model = ("--max-tokens", 3), default_models["complete"]
    code, out, err = heed("generate", "Once upon a time", *few)
    assert (code, err) == (0, f"model: {model} (heed ls lists others)\n")
    assert heed("generate", *few, piped="Once upon a time\n")[1] == out
    assert heed("generate", "-", *few, piped="Once upon a time\n")[1] == out
    for given in ((model, "Once upon a time"), (model,), (model, "-")):
        assert heed("generate", *given, *few, piped="Once upon a time") == (0, out, "")
    Path("start.txt").write_text("Once upon a time\n")
    assert heed("generate", "start.txt", *few)[1] == out
    assert heed("generate", "Once upon", "a time")[0] == 3


def test_chat_takes_a_model_of_its_own_and_says_which(heed: Any, default_models: dict[str, Path]) -> None:
    assert heed("chat")[2].startswith("model: . (heed ls lists others)\nerror: ")


def test_the_models_of_tasks_are_those_that_the_pipelines_take() -> None:
    from heedful.tasks.registry import find_task

    assert all(find_task(task).model == model for task, model in read_known()["models"].items())


def test_an_answer_is_found_in_a_folder(
    heed: Any, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.tasks.search.DEFAULT_MODEL", str(models["embed"]))
    Path("notes").mkdir()
    Path("notes/pets.md").write_text("the cat sat on the mat .\n\n\nthe dog lives in paris .\n")
    Path("notes/other.txt").write_text("ada lives in paris .\n")
    ask = ("answer", "the cat sat ?", "--folder", "notes", "-m", models["answer"])
    code, out, _ = heed(*ask, "--top-k", 2, "--json")
    assert code == 0
    for row in json.loads(out)["results"]:
        text = (Path("notes") / row["file"]).read_text()
        assert text[row["start"] : row["end"]] == (row["answer"] or row["passage"])
    code, out, _ = heed(*ask)
    assert code == 0
    assert ".md" in out or ".txt" in out
    assert heed("answer", "the cat ?", "--folder", "nowhere", "-m", models["answer"])[0] == 3


def test_an_answer_is_shown_in_what_stands_around_it() -> None:
    row = {"answer": "Paris", "score": 0.5, "start": 100, "end": 105, "file": "a.txt"}
    passage = "x " * 40 + "in Paris, " + "y " * 40
    drawn = format_answers([row | {"passage": passage, "at": passage.index("Paris")}])
    first, _, below = drawn.splitlines()
    assert first == "Paris"
    assert below.startswith("0.5000  100–105  a.txt  …")
    assert "in ⟦Paris⟧, y" in below
    assert below.endswith("…")
    nothing = format_answers([row | {"answer": "", "passage": "Paris.", "at": 0}])
    assert nothing.splitlines()[0] == "(no answer)"
    assert "⟦" not in nothing


def test_masks_are_filled_each_with_its_words(heed: Any, models: dict[str, Path]) -> None:
    code, out, _ = heed("fill", "the [MASK] sat .", "-m", models["fill"], "--top-k", 3)
    assert code == 0
    assert len(out.splitlines()) == 3
    out = heed("fill", "the [MASK] sat .", "-m", models["fill"], "--targets", "cat, dog")[1]
    assert {line.split()[1] for line in out.splitlines()} == {"cat", "dog"}
    assert "the cat sat." in out
    out = heed("fill", "the [MASK] sat on the [MASK] .", "-m", models["fill"], "--top-k", 1)[1]
    assert [line for line in out.splitlines() if line.startswith("mask")] == ["mask 1", "mask 2"]
    assert heed("fill", "the cat sat .", "-m", models["fill"])[0] == 3


def test_vectors_are_printed_or_written(heed: Any, models: dict[str, Path]) -> None:
    from safetensors import safe_open

    given = ("embed", "the cat", "the dog", "-m", models["embed"])
    rows = objects(heed(*given, "--json")[1])
    vectors = [row["results"][0]["vector"] for row in rows]
    assert [len(v) for v in vectors] == [16, 16]
    assert heed(*given, "--out", "v.csv")[:2] == (0, "v.csv\n")
    read = list(csv.reader(Path("v.csv").read_text().splitlines()))
    assert [row[0] for row in read] == ["text", "the cat", "the dog"]
    assert [float(x) for x in read[1][1:]] == pytest.approx(vectors[0], rel=1e-8)
    told = json.loads(heed(*given, "--out", "v.safetensors", "--json")[1])
    assert (told["texts"], told["size"]) == (2, 16)
    with safe_open("v.safetensors", "pt") as file:
        assert file.get_tensor("vectors").tolist() == vectors
        assert json.loads(file.metadata()["texts"]) == ["the cat", "the dog"]
    assert heed(*given, "--out", "v.doc")[0] == 3
    assert heed(*given)[1].splitlines()[1].startswith("16 numbers: ")


def test_the_nearest_sentences_come_first_with_their_lines(heed: Any, models: dict[str, Path]) -> None:
    Path("s.txt").write_text("the dog lives in paris\n\nthe cat sat\nada\n")
    ask = ("similar", "the cat sat", "-m", models["embed"])
    found = json.loads(heed(*ask, "--in", "s.txt", "--top-k", 2, "--json")[1])["results"]
    assert len(found) == 2
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)
    assert (found[0]["text"], found[0]["line"]) == ("the cat sat", 3)
    assert heed(*ask, "ada", "the cat sat")[1].splitlines()[0] == "1.0000  2  the cat sat"
    assert heed(*ask, "--in", "-", piped="ada\nthe cat sat\n")[1].splitlines()[0] == "1.0000  2  the cat sat"
    assert heed(*ask)[0] == heed(*ask, "a", "--in", "s.txt")[0] == heed(*ask, "--in", "none.txt")[0] == 3


def test_a_line_in_is_a_line_out(heed: Any, models: dict[str, Path]) -> None:
    ask = ("translate", "-m", models["translate"], "--beams", 1, "--max-tokens", 3)
    found = objects(heed(*ask, "--json", piped="one\ntwo\n")[1])
    assert [row["text"] for row in found] == ["one", "two"]
    assert found[0]["task"] == "translation_en_to_de"
    code, out, err = heed(*ask, piped="one\ntwo\n")
    assert (code, err) == (0, "")
    assert out == "".join(f"{row['results'][0]['translation_text']}\n" for row in found)
    assert heed("translate", "one", "--to", "xx")[0] == 3


def test_a_document_is_one_text_whatever_its_lines(heed: Any, models: dict[str, Path]) -> None:
    ask = ("summarize", "-m", models["translate"], "--max-tokens", 2, "--json")
    piped = "Tom: hello\nAnn: hi\n"
    assert [row["text"] for row in objects(heed(*ask, piped=piped)[1])] == [piped.strip()]
    assert len(objects(heed(*ask, "--lines", piped=piped)[1])) == 2
    Path("chat.txt").write_text(piped)
    found = objects(heed(*ask, "--file", "chat.txt")[1])
    assert list(found[0]["results"][0]) == ["summary_text"]
    assert heed(*ask, "a text", "--file", "chat.txt")[0] == 3


def test_a_text_is_gone_on_with_as_often_as_asked(heed: Any, models: dict[str, Path]) -> None:
    ask = ("complete", "once", "-m", models["complete"], "--max-tokens", 5)
    found = json.loads(heed(*ask, "--n", 3, "--temperature", 1, "--seed", 0, "--json")[1])["results"]
    assert len({row["generated_text"] for row in found}) == 3
    assert all(row["generated_text"].startswith("once") for row in found)
    again = json.loads(heed(*ask, "--n", 3, "--temperature", 1, "--seed", 0, "--json")[1])["results"]
    assert again == found
    code, out, _ = heed(*ask)
    assert code == 0
    assert out.startswith("once")


def test_a_card_says_what_a_model_is_for(heed: Any, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text(
        "---\npipeline_tag: text-classification\nlicense: mit\ndata_license: [cc-by-4.0, mit]\n"
        "base_model: all-minilm-l6-v2\nmetric: toy accuracy\nscore: 91.25\n---\n# mine\n"
    )
    row = next(r for r in json.loads(heed("ls", "--json")[1])["models"] if r["from"] == "./models")
    assert (row["for"], row["base"]) == ("text-classification", "all-minilm-l6-v2")
    assert (row["license"], row["data_license"]) == ("mit", "cc-by-4.0, mit")
    assert row["score"] == "toy accuracy 91.25"
    assert row["bytes"] == sum(p.stat().st_size for p in folder.iterdir())
    out = heed("ls")[1]
    assert "toy accuracy 91.25" in out
    assert "cc-by-4.0, mit" in out


def test_a_card_of_the_hub_has_its_score_in_a_model_index(tmp_path: Path) -> None:
    index = [{"results": [{"dataset": {"name": "SST-2"}, "metrics": [{"type": "accuracy", "value": 0.915}]}]}]
    (tmp_path / "README.md").write_text("---\nmodel-index: " + json.dumps(index) + "\n---\n")
    assert read_card(tmp_path)["score"] == "accuracy 0.915 (SST-2)"


@pytest.mark.parametrize(
    "text", ["", "# no head", "---\n: [\n---\n", "---\nmodel-index: 3\n---\n", "---\n- a\n---"]
)
def test_a_card_that_says_nothing_is_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    assert set(read_card(tmp_path).values()) == {None}


def test_the_commands_in_the_docs_exist_with_their_options() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("heed ")]
    assert {line.split()[1] for line in lines} == {*TASKS, "verify", "index", "search"}
    for line in lines:
        _, name, *words = shlex.split(line, comments=True)
        known = {option for parameter in load_command(name).params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_a_folder_that_is_called_as_a_model_does_not_take_its_place(
    heed: Any, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentiment").mkdir()
    (tmp_path / "sentiment" / "notes.txt").write_text("mine")
    assert resolve("sentiment").is_absolute()
    shutil.copytree(models["classify"], tmp_path / "sentiment", dirs_exist_ok=True)
    assert resolve("sentiment") == Path("sentiment")  # a model of one's own, by its name
    opened: list[Any] = []
    kept = heedful.load(models["classify"])
    module = importlib.import_module("heedful.tasks.registry")
    monkeypatch.setattr(module, "load", lambda where, **_: opened.append(where) or kept)
    heed("classify", "the cat")
    assert opened == [bundled_models()["sentiment"]]  # but never in the place of the task's own


TABLE = "id,text,label\n0,the cat sat,GOOD\n1,the dog sat,BAD\n"


@pytest.mark.parametrize("command", ["classify", "tag", "embed"])
def test_a_table_is_read_by_its_column_of_texts(
    heed: Any, models: dict[str, Path], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(TABLE)
    code, out, err = heed(command, file, "--model", models[command], "--json")
    assert code == 0, err
    assert [one["text"] for one in objects(out)] == ["the cat sat", "the dog sat"]
    assert "'text'" in err  # which column it was


def test_texts_to_compare_come_from_the_column_of_a_table(
    heed: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(TABLE.replace(",", "\t"))
    code, out, err = heed("similar", "cat", file, "--model", models["embed"], "--json")
    assert code == 0, err
    found = objects(out)[0]["results"]
    assert {(row["line"], row["text"]) for row in found} == {(2, "the cat sat"), (3, "the dog sat")}


def test_the_column_of_a_table_can_be_named(heed: Any, models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": "the cat", "b": "the dog"}\n')
    code, _, err = heed("classify", file, "--model", models["classify"])
    assert code == 3
    assert "'a', 'b'" in err
    assert "--text" in err
    code, out, _ = heed("classify", file, "--text", "b", "--model", models["classify"], "--json")
    assert code == 0
    assert objects(out)[0]["text"] == "the dog"


def test_a_first_line_that_may_be_a_text_is_not_taken_for_a_header(
    heed: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("the cat sat\nthe dog sat\n")
    code, _, err = heed("classify", file, "--model", models["classify"])
    assert code == 3
    assert "--text 0" in err
    code, out, _ = heed("classify", file, "--text", "0", "--model", models["classify"], "--json")
    assert [one["text"] for one in objects(out)] == ["the cat sat", "the dog sat"]


def test_a_column_is_named_only_where_there_is_a_table(heed: Any, models: dict[str, Path]) -> None:
    code, _, err = heed("classify", "the cat", "--text", "b", "--model", models["classify"])
    assert code == 3
    assert "--text b" in err
    assert "table" in err


def test_a_spreadsheet_is_not_a_text(heed: Any, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "rows.xls").write_bytes(b"PK\x03\x04")
    code, out, err = heed("classify", "rows.xls", "--model", models["classify"])
    assert (code, out) == (3, "")
    assert ".csv" in err


def test_sentences_of_words_and_tags_are_read_without_the_tags(
    heed: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "names.conll"
    file.write_text("ada B-PER\nlives O\n\nthe O\ncat O\n")
    _, out, _ = heed("tag", file, "--model", models["tag"], "--json")
    assert [one["text"] for one in objects(out)] == ["ada lives", "the cat"]


def test_a_model_of_pairs_reads_both_columns_of_a_table(
    heed: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    learnt = {
        "task": "text-classification", "command": "classify",
        "inputs": [{"role": "text", "column": "one"}, {"role": "pair", "column": "other"}],
    }  # fmt: skip
    moods = {0: "BAD", 1: "GOOD"}
    folder = saved(
        tmp_path / "pairs", bert(head="classify", labels=2), id2label=moods, task_specification=learnt
    )
    file = tmp_path / "rows.csv"
    file.write_text("text,one,other\nno,the cat,the dog\n")
    code, out, err = heed("classify", file, "--model", folder, "--json")
    assert code == 0, err
    found = objects(out)[0]
    assert (found["text"], found["text_pair"]) == ("the cat", "the dog")
    file.write_text("text\nthe cat\n")
    code, _, err = heed("classify", file, "--model", folder)
    assert code == 3
    assert "'one' and 'other'" in err


def test_files_are_indexed_searched_updated_and_deleted_from(heed: Any, tmp_path: Path) -> None:
    (tmp_path / "rooms.csv").write_text(
        "number,description,city\n1,A hotel in Seattle,Seattle\n"
        "2,A recipe for bread,\n3,Motel by the sea,Tacoma\n"
    )
    (tmp_path / "more.jsonl").write_text('{"number": 3, "description": "A castle", "city": "Ulm"}\n')
    given = ("--text", "description", "--id", "number", "--out", "rooms")
    code, out, err = heed("index", "rooms.csv", *given)
    assert (code, out.strip()) == (0, "rooms"), err
    code, out, _ = heed("search", "rooms", "Seattle motel", "--json")
    best = json.loads(out)["results"][0]
    assert (best["id"], best["city"], best["text"]) == ("1", "Seattle", "A hotel in Seattle")
    found = json.loads(heed("search", "rooms", "motel", "--where", "city=Tacoma", "--json")[1])["results"]
    assert [row["id"] for row in found] == ["3"]
    assert "is an index already" in heed("index", "rooms.csv", *given)[2]
    assert heed("index", "more.jsonl", *given, "--update", "--delete", "2")[0] == 0
    lines = heed("search", "rooms", "an old building", "--top-k", 9)[1].splitlines()
    assert sorted(line.split()[1] for line in lines) == ["1", "3"]
    assert "A castle" in lines[0]


def test_files_in_another_encoding_are_indexed(heed: Any, tmp_path: Path) -> None:
    (tmp_path / "rooms.csv").write_bytes("description\nZimmer in Köln\n".encode("cp1252"))
    (tmp_path / "lines.txt").write_bytes("\nHütte\n".encode("cp1252"))
    assert heed("index", "rooms.csv", "--out", "rooms")[0] == 3
    code, _, err = heed("index", "rooms.csv", "--encoding", "cp1252", "--out", "rooms")
    assert code == 0, err
    assert heed("index", "lines.txt", "--encoding", "cp1252", "--out", "rooms", "--update")[0] == 0
    found = json.loads(heed("search", "rooms", "Zimmer", "--json")[1])["results"]
    assert {row["text"]: row.get("line") for row in found} == {"Zimmer in Köln": None, "Hütte": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("index", "--out", "x"), "no files to index"),
        (
            ("index", "t.csv", "--out", "x", "--id", "nummer"),
            "no column 'nummer' for --id; did you mean 'number'",
        ),
        (("index", "t.csv", "--out", "x", "--update"), "x is not an index"),
        (("index", "lines.txt", "--out", "x", "--id", "number"), "has no columns"),
        (("search", "x", "query"), "x has no search.json"),
        (("search", "x", "query", "--where", "city"), "write it as COLUMN=VALUE"),
    ],
)
def test_an_index_that_cannot_be_made_or_searched_is_one_line(
    heed: Any, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "t.csv").write_text("text,number\na,1\n")
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    code, _, err = heed(*arguments)
    assert code == 3
    assert says in err.replace("\nhint: ", "; ")
