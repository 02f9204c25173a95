"""Files as people have them: what heed finetune makes of them, and the one line where it cannot."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.tasks.finetune.data import SplitExamples, read_and_split
from heedful.tasks.finetune.request import FinetuneRequest
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


ROWS = [(s, s.split()[1]) for s in toy.SENTENCES]


def refused(heed: Heed, *arguments: object) -> str:
    """The one line of an error, after which nothing is left behind."""
    before = sorted(p.name for p in Path.cwd().iterdir())
    code, out, err = heed("finetune", *arguments, "--out", "made", "-q")
    assert code == 3, err
    assert out == ""
    assert sorted(p.name for p in Path.cwd().iterdir() if p.name != ".heed-cache") == before
    lines = err.strip().splitlines()
    assert len([line for line in lines if not line.startswith("hint:")]) == 1
    return " ".join(lines)


def test_a_byte_order_mark_quotes_and_empty_rows_are_no_trouble(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    odd = [('he said "hm",\nand left', "sees"), ("", ""), ("  ", " "), ("🙂 שלום عالم 👩‍👩‍👧", "likes")]
    file = toy.table(tmp_path / "odd.csv", ("text", "label"), [*odd, *ROWS], head="\ufeff")
    code, out, _ = heed("finetune", bases["encoder"], file, "--epochs", 1, "--json", "-q")
    told = json.loads(out)
    assert code == 0
    assert told["data"]["columns"] == ["text", "label"]
    assert told["data"]["rows"] == len(ROWS) + 2
    assert told["data"]["labels"]["likes"] == 13


def test_emoji_and_text_from_right_to_left_can_be_labels(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.table(
        tmp_path / "l.csv", ("text", "label"), [(s, "👍🏽" if "sea" in s else "לא") for s, _ in ROWS]
    )
    code, _, _ = heed("finetune", bases["encoder"], file, "--out", "made", "--epochs", 1, "-q")
    assert code == 0
    assert set(heedful.load("made").hf_config["id2label"].values()) == {"👍🏽", "לא"}
    assert "`👍🏽`" in Path("made/README.md").read_text(encoding="utf-8")


def test_a_row_whose_label_is_missing_is_named(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [*ROWS[:5], ("bob sleeps", ""), *ROWS[5:], ("", "sees")]
    file = toy.table(tmp_path / "gaps.csv", ("text", "label"), rows)
    code, _, err = heed("finetune", bases["encoder"], file, "--epochs", 1)
    assert code == 0
    assert "note: 1 row without a label is left out: line 7" in err
    assert "note: 1 row without a text is left out: line 39" in err


def test_a_field_that_is_missing_or_null_is_a_missing_label(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"text": s, "label": v} for s, v in ROWS] + [{"text": "x"}, {"text": "y", "label": None}]
    code, out, _ = heed(
        "finetune", bases["encoder"], toy.lines(tmp_path / "g.jsonl", rows), "--epochs", 1, "--json", "-q"
    )
    assert code == 0
    assert json.loads(out)["data"]["left_out"] == ["2 rows without a label are left out: line 37, line 38"]


def test_ten_megabytes_in_one_row_are_cut_quickly_and_reported(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [("ann sees the sea, again and again. " * 300_000, "sees"), *ROWS]
    file = toy.table(tmp_path / "long.csv", ("text", "label"), rows)
    assert file.stat().st_size > 10_000_000
    began = time.process_time()
    code, _, err = heed("finetune", bases["encoder"], file, "--epochs", 1, "--seed", 1)
    assert code == 0
    assert time.process_time() - began < 6
    assert (
        "1 of 37 texts is longer than 64 tokens and cut there (the longest has 10,500,000 characters)" in err
    )


def test_semicolons_and_columns_without_names_are_read(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "s.csv"
    file.write_text("text;label\n" + "\n".join(f"{s};{v}" for s, v in ROWS))
    assert heed("finetune", bases["encoder"], file, "--epochs", 1, "-q")[0] == 0
    bare = tmp_path / "bare.tsv"
    bare.write_text("\n".join(f"{v}\t{s}" for s, v in ROWS))
    numbers = ("--text", 1, "--label", 0, "--task", "classify")
    code, out, _ = heed("finetune", bases["encoder"], bare, *numbers, "--epochs", 1, "--json", "-q")
    assert code == 0
    assert json.loads(out)["data"]["rows"] == len(ROWS)


def test_another_encoding_is_read_if_it_is_named(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "latin.csv"
    file.write_bytes(("text,label\n" + "\n".join(f"{s} né,{v}" for s, v in ROWS)).encode("cp1252"))
    assert "line 2: byte 0xe9 is not valid utf-8" in refused(heed, bases["encoder"], file)
    assert "--encoding klingon is unknown" in refused(heed, bases["encoder"], file, "--encoding", "klingon")
    assert heed("finetune", bases["encoder"], file, "--encoding", "cp1252", "--epochs", 1, "-q")[0] == 0


def test_one_class_is_nothing_to_learn(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.table(tmp_path / "one.csv", ("text", "label"), [(s, "good") for s, _ in ROWS])
    assert "every row has the label 'good': there is nothing to distinguish" in refused(
        heed, bases["encoder"], file
    )


def test_labels_that_are_all_different_are_no_classes(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.table(tmp_path / "ids.csv", ("text", "label"), [(s, i) for i, (s, _) in enumerate(ROWS)])
    assert "different labels in" in refused(heed, bases["encoder"], file)


def test_an_unknown_column_is_answered_with_the_nearest(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.table(tmp_path / "c.csv", ("sentence", "category"), ROWS)
    told = refused(
        heed, bases["encoder"], file, "--text", "sentense", "--label", "category", "--task", "classify"
    )
    assert "no column 'sentense' for --text" in told
    assert "did you mean 'sentence'?" in told


def test_columns_that_tell_nothing_are_listed(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.table(tmp_path / "c.csv", ("alpha", "beta", "gamma"), [(s, v, 1) for s, v in ROWS])
    told = refused(heed, bases["encoder"], file)
    assert "'alpha', 'beta', 'gamma'" in told
    assert "give --task" in told
    assert "which column" in refused(heed, bases["encoder"], file, "--task", "classify")


def test_a_file_that_is_not_there_is_not_guessed_at(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    toy.classes(tmp_path / "verbs.csv")
    assert "did you mean 'verbs.csv'?" in refused(heed, bases["encoder"], "verb.csv")
    assert "no file or folder" in refused(heed, bases["encoder"], "verbs.csv", "--valid", "nowhere.csv")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("empty.csv", "", "empty.csv is empty"),
        ("head.csv", "text,label\n", "no rows"),
        ("empty.conll", "\n\n", "it has no sentence"),
        ("blank.txt", " \n \n", "white space only"),
        ("two.csv", "text,label\na,x\nb,y\n", "2 examples are too few"),
        ("gaps.csv", "text,label\na,\nb,\nc,\n", "none of its 3 rows can be used"),
        ("wide.csv", "text,label\na,x,z\n", "line 2: 3 columns instead of 2"),
        ("torn.jsonl", '{"text": "a", "label": "x"\n', "line 1: this is not JSON"),
        ("odd.json", '{"text": "a"}', "is not a SQuAD file"),
        ("sheet.xls", "PK", "cannot tell what"),
    ],
)
def test_a_file_with_nothing_to_learn_is_one_clear_line(
    name: str, text: str, said: str, heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert said in refused(heed, bases["encoder"], name)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_damaged_compressed_file_is_one_clear_line(
    suffix: str, heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / f"rows.csv.{suffix}").write_text("text,label\nno such format,1\n")
    message = refused(heed, bases["encoder"], f"rows.csv.{suffix}")
    assert "is damaged, or not the kind of file that its name says" in message


def test_a_label_that_only_validation_has_is_named(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    train = toy.classes(tmp_path / "train.csv")
    valid = toy.table(tmp_path / "valid.csv", ("text", "label"), [*ROWS[:3], ("x", "seees")])
    told = refused(heed, bases["encoder"], train, "--valid", valid)
    assert "validation, line 5: label 'seees' does not occur in training" in told
    assert "did you mean 'sees'" in told


def test_labels_that_only_training_has_are_no_trouble(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    train = toy.classes(tmp_path / "train.csv")
    valid = toy.table(tmp_path / "valid.csv", ("text", "label"), [r for r in ROWS if r[1] != "sees"])
    code, out, _ = heed("finetune", bases["encoder"], train, "--valid", valid, "--epochs", 1, "--json", "-q")
    assert code == 0
    assert json.loads(out)["valid_rows"] == 24


def test_two_rows_train_if_others_validate(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    train = toy.table(tmp_path / "train.csv", ("text", "label"), [ROWS[0], ROWS[5]])
    valid = toy.table(tmp_path / "valid.csv", ("text", "label"), [ROWS[1], ROWS[6]])
    assert heed("finetune", bases["encoder"], train, "--valid", valid, "--epochs", 1, "-q")[0] == 0


def test_a_model_that_cannot_do_the_task_is_refused(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    pairs = toy.table(tmp_path / "p.csv", ("en", "de"), [(s, toy.german(s)) for s in toy.SENTENCES])
    assert "translate needs a model that writes" in refused(heed, bases["encoder"], pairs)
    assert "has no 'span' head" in refused(heed, bases["both"], toy.asked(tmp_path / "q.json"))
    assert "no model is called 'all-minlm-l6-v2'" in refused(
        heed, "all-minlm-l6-v2", toy.classes(tmp_path / "c.csv")
    )
    assert "has no weights to start from" in refused(
        heed, "bert-base-uncased", toy.classes(tmp_path / "c.csv")
    )


def test_a_task_that_the_file_is_not_for_is_refused(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.tagged(tmp_path / "n.conll")
    assert "it is for --task tag" in refused(heed, bases["encoder"], file, "--task", "classify")
    assert "did you mean 'classify'" in refused(heed, bases["encoder"], file, "--task", "classfy")


def test_a_folder_that_is_there_is_never_written_over(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").write_text("mine")
    code, _, err = heed("finetune", bases["encoder"], toy.classes(tmp_path / "v.csv"), "--out", "kept", "-q")
    assert code == 3
    assert "already exists" in err
    for _ in range(2):
        heed("finetune", bases["encoder"], "v.csv", "--epochs", 1, "-q")
    assert Path("v-encoder").is_dir()
    assert Path("v-encoder-2").is_dir()


def test_two_columns_of_one_name_are_never_chosen_between(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    twice = toy.table(tmp_path / "t.csv", ("text", "text", "label"), [(s, "x", v) for s, v in ROWS])
    assert "several columns called 'text'" in refused(heed, bases["encoder"], twice)
    unused = toy.table(tmp_path / "u.csv", ("text", "label", "", ""), [(s, v, "", "") for s, v in ROWS])
    assert heed("finetune", bases["encoder"], unused, "--epochs", 1, "-q")[0] == 0


def test_an_object_is_no_label(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.lines(tmp_path / "m.jsonl", [{"text": s, "labels": {v: "x"}} for s, v in ROWS])
    assert "line 1: 'labels' is {'sees': 'x'}" in refused(heed, bases["encoder"], file)


def test_json_with_an_object_a_line_may_be_called_json(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = toy.lines(tmp_path / "l.json", [{"text": s, "label": v} for s, v in ROWS])
    code, out, _ = heed("finetune", bases["encoder"], file, "--epochs", 1, "--json", "-q")
    assert code == 0
    assert json.loads(out)["data"]["rows"] == len(ROWS)
    (tmp_path / "s.json").write_text('["a", "b"]')
    assert "row 1: a row is an object" in refused(heed, bases["encoder"], "s.json")


def test_utf16_is_known_by_its_mark_and_commas_by_the_first_line(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    text = "text,label\n" + "\n".join(f"{s} né,{v}" for s, v in ROWS)
    (tmp_path / "u.csv").write_text(text, encoding="utf-16")
    (tmp_path / "c.tsv").write_text(text, encoding="utf-8")
    for name in ("u.csv", "c.tsv"):
        code, out, _ = heed("finetune", bases["encoder"], name, "--epochs", 1, "--json", "-q")
        assert code == 0
        assert json.loads(out)["data"]["columns"] == ["text", "label"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_second_text_in_one_of_two_files_is_said(
    swapped: bool, heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    files = [
        toy.classes(tmp_path / "one.csv"),
        toy.table(tmp_path / "two.csv", ("premise", "hypothesis", "label"), [(s, s, v) for s, v in ROWS]),
    ]
    train, valid = reversed(files) if swapped else files
    assert "one has a text more" in refused(heed, bases["encoder"], train, "--valid", valid)


def test_columns_that_were_named_are_not_asked_for_again(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "n.csv").write_text("\n".join(f"{s},{v}" for s, v in ROWS))
    assert "count the columns: --text 0 and --label 1" in refused(heed, bases["encoder"], "n.csv")
    (tmp_path / "n.csv").write_text("\n".join(f"{s},{v} and more words {s}" for s, v in ROWS))
    told = refused(heed, bases["encoder"], "n.csv", "--text", 0, "--label", 1)
    assert "give --task (" in told
    assert "--label" not in told


def test_a_column_that_a_file_cannot_have_is_refused(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    for file in (toy.tagged(tmp_path / "n.conll"), toy.asked(tmp_path / "q.json")):
        assert "has no such column" in refused(heed, bases["encoder"], file, "--pair", 1)


def test_words_without_tags_are_not_their_own_tags(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "w.conll").write_text("\n\n".join(s.replace(" ", "\n") for s in toy.SENTENCES))
    assert "the tag of every word is the word itself" in refused(heed, bases["encoder"], "w.conll")


@pytest.mark.parametrize(
    "answers",
    [
        lambda name: {"text": [name], "answer_start": [0]},
        lambda name: {"text": [name]},
        lambda name: {"text": name, "answer_start": 0},
        lambda name: {"text": [name], "answer_start": [None]},
        lambda name: [{"text": name, "answer_start": 0}],
    ],
)
def test_answers_in_a_table_have_many_forms(
    answers: Callable[[str], object], heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"context": s, "question": "who ?", "answers": answers(s.split()[0])} for s in toy.SENTENCES]
    rows[0]["question"] = None
    file = toy.lines(tmp_path / "q.jsonl", rows)
    code, out, _ = heed("finetune", bases["encoder"], file, "--epochs", 1, "--json", "-q")
    found = json.loads(out)["data"]
    assert code == 0
    assert "unanswerable" not in found
    assert "articles" not in found  # a table has texts
    assert "contexts" in split_of(bases["encoder"], file).split_method
    assert found["left_out"] == ["1 row without a question is left out: line 1"]


def test_a_question_or_a_place_of_the_wrong_kind_is_no_fault_of_ours(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    whole = json.loads(toy.asked(tmp_path / "q.json").read_text())
    first = whole["data"][0]["paragraphs"][0]["qas"][0]
    first["question"] = None
    (tmp_path / "null.json").write_text(json.dumps(whole))
    code, out, _ = heed("finetune", bases["encoder"], "null.json", "--epochs", 1, "--json", "-q")
    assert code == 0
    assert json.loads(out)["data"]["left_out"] == [f"1 row without a question is left out: {first['id']}"]
    first["answers"][0]["answer_start"] = "here"
    (tmp_path / "word.json").write_text(json.dumps(whole))
    assert "is not a SQuAD file" in refused(heed, bases["encoder"], "word.json")


def test_a_text_that_is_there_twice_is_never_held_out_and_learnt(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES]
    file = toy.table(tmp_path / "twice.csv", ("text", "label"), [*rows, *rows[: len(rows) // 2]])
    request = FinetuneRequest(str(bases["encoder"]), str(file))
    split = read_and_split(request, print)
    assert not {row[0] for row in split.train.items} & {row[0] for row in split.valid.items}
    left = len(split.examples) - len(split.train) - len(split.valid)
    assert left > 0
    assert f"{left} more that repeat" in split.split_method
    assert len({row[0] for row in split.valid.items}) == len(split.valid) == 6  # two of each label
    all_twice = toy.table(tmp_path / "all.csv", ("text", "label"), [rows[0], rows[-1]] * 20)
    found = read_and_split(FinetuneRequest(str(bases["encoder"]), str(all_twice)), print)
    assert "of them repeat a training text: the score says little of others" in found.split_method
    given = FinetuneRequest(str(bases["encoder"]), str(file), valid=str(file))
    assert "of them are in the training file too" in read_and_split(given, print).split_method


def split_of(base: Path, file: Path) -> SplitExamples:
    return read_and_split(FinetuneRequest(str(base), str(file)), print)


def test_a_text_that_differs_only_by_case_or_space_is_not_held_out_either(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES]
    alike = [(f" {s.title()}  ", label) for s, label in rows[: len(rows) // 2]]
    file = toy.table(tmp_path / "twice.csv", ("text", "label"), [*rows, *alike])
    split = split_of(bases["encoder"], file)
    texts = lambda part: {" ".join(row[0].lower().split()) for row in part.items}
    assert not texts(split.train) & texts(split.valid)


def test_digits_are_a_text_and_not_a_number(bases: dict[str, Path], tmp_path: Path) -> None:
    # "0011" and "11" are two texts, and so are long ones that differ in their last digit only.
    rows = [
        ("0" * zeros + "1" * ones, "few" if zeros < 4 else "many") for zeros in range(8) for ones in (1, 30)
    ]
    split = split_of(bases["encoder"], toy.table(tmp_path / "bits.csv", ("text", "label"), rows))
    assert "repeat" not in split.split_method
    assert len(split.train) + len(split.valid) == len(rows)


def test_a_sentence_or_a_source_that_is_there_twice_is_not_held_out_either(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    # The second is on another line, and may have another answer.
    toy.tagged(tmp_path / "once.conll")
    twice = tmp_path / "twice.conll"
    twice.write_text("\n\n".join([(tmp_path / "once.conll").read_text()] * 2))
    found = split_of(bases["encoder"], twice)
    once = lambda part: {one.words for one in part.items}
    assert not once(found.train) & once(found.valid)
    rows = [(s, toy.german(s)) for s in toy.SENTENCES]
    others = [(s, "etwas anderes") for s in toy.SENTENCES[:18]]
    found = split_of(bases["both"], toy.table(tmp_path / "t.csv", ("en", "de"), [*rows, *others]))
    assert not {row[0] for row in found.train.items} & {row[0] for row in found.valid.items}


def test_questions_of_one_text_stay_together_in_a_single_article(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    qas = lambda i, s: [
        {"id": f"{i}{q}", "question": q, "answers": [{"text": s.split()[0], "answer_start": 0}]}
        for q in ("who ?", "what does")
    ]
    paragraphs = [{"context": s, "qas": qas(i, s)} for i, s in enumerate(toy.SENTENCES)]
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    found = split_of(bases["encoder"], file)
    assert not {one.context for one in found.train.items} & {one.context for one in found.valid.items}
    assert f"of {len(toy.SENTENCES)} contexts" in found.split_method
    whole = json.loads(file.read_text())
    whole["data"].append({"title": "another", "paragraphs": whole["data"][0]["paragraphs"][:17]})
    whole["data"][0]["paragraphs"] = whole["data"][0]["paragraphs"][17:]
    file.write_text(json.dumps(whole))  # either of the two articles would be half of the questions
    found = split_of(bases["encoder"], file)
    assert len(found.valid) < len(found.train) / 2
    assert "contexts" in found.split_method


def test_numbers_and_spreadsheets_are_told_what_to_do(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, i / 7) for i, s in enumerate(toy.SENTENCES)]
    said = refused(heed, bases["encoder"], toy.table(tmp_path / "n.csv", ("text", "label"), rows))
    assert "--order numbers" in said
    (tmp_path / "rows.xls").write_bytes(b"PK")
    assert "save it as .csv" in refused(heed, bases["encoder"], tmp_path / "rows.xls")
    classes = toy.classes(tmp_path / "c.csv")
    code, _, err = heed("finetune", bases["encoder"], classes, "--epochs", 0, "--out", "made", "-q")
    assert (code, "trains nothing" in err) == (3, True)


def test_a_document_is_told_how_to_become_text(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "report.docx"
    file.write_bytes(b"PK")
    code, _, err = heed("finetune", bases["encoder"], file)
    assert code == 3
    assert ".txt" in err
    assert "did you mean" not in err


def test_an_ending_with_a_slip_is_answered_with_the_nearest(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    _, _, err = heed("finetune", bases["encoder"], toy.classes(tmp_path / "rows.cvs"))
    assert "did you mean '.csv'" in err


@pytest.mark.parametrize(
    ("task", "name"), [("tag", "test.annotated"), ("tag", "words.txt"), ("classify", "rows.data")]
)
def test_a_named_task_decides_what_a_file_is_whose_name_does_not(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, task: str, name: str
) -> None:
    from heedful.data.input_files import read_input_file
    from heedful.tasks.registry import trainable_tasks

    file = tmp_path / name
    if task == "tag":
        file.write_text("anna NOUN\nsees VERB\n\nbert NOUN\nlikes VERB\n")
    else:
        toy.classes(file)
    kind = trainable_tasks()[task]
    examples = kind.read_examples(read_input_file(str(file), kinds=kind.file_kinds), {})
    assert len(examples) == (2 if task == "tag" else len(toy.SENTENCES))


def alpaca(path: Path, context: str = "input") -> Path:
    rows = [(f"name the verb {i}", "" if i % 2 else s, s.split()[1]) for i, s in enumerate(toy.SENTENCES)]
    return toy.table(path, ("instruction", context, "output"), rows)


@pytest.mark.parametrize("context", ["input", "context"])
def test_the_input_of_an_instruction_is_part_of_its_prompt(tmp_path: Path, context: str) -> None:
    from heedful.data.input_files import read_input_file
    from heedful.tasks.pipelines.text_generation import TextGeneration

    source = read_input_file(str(alpaca(tmp_path / "alpaca.csv", context)))
    examples = TextGeneration.read_examples(source, {})
    assert examples.columns == {"prompt": "instruction", "input": context, "completion": "output"}
    assert examples.items[0] == (f"name the verb 0\n\n{toy.SENTENCES[0]}", toy.SENTENCES[0].split()[1])
    assert examples.items[1][0] == "name the verb 1"


def test_every_column_that_is_not_used_is_named(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    rows = [(i, s, "x", s.split()[1]) for i, s in enumerate(toy.SENTENCES)]
    file = toy.table(tmp_path / "rows.csv", ("id", "text", "remark", "label"), rows)
    code, out, err = heed("finetune", bases["encoder"], file, "--epochs", 1, "--json")
    assert code == 0
    assert "not used: 'id', 'remark'" in err
    assert json.loads(out)["data"]["unused_columns"] == ["id", "remark"]
    _, out, _ = heed("eval", "rows-encoder", file, "--json")
    assert json.loads(out)["unused_columns"] == ["id", "remark"]


def test_an_object_of_which_a_field_is_read_is_used(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"id": i, "mail": {"body": s}, "kind": s.split()[1]} for i, s in enumerate(toy.SENTENCES)]
    file = tmp_path / "nested.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ("--text", "mail.body", "--label", "kind", "--epochs", 1, "-q")
    code, out, err = heed("finetune", bases["encoder"], file, *call, "--json")
    assert code == 0, err
    assert json.loads(out)["data"]["unused_columns"] == ["id"]


def test_what_an_evaluation_leaves_out_is_a_note_and_no_cell(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES]
    file = toy.table(tmp_path / "rows.csv", ("text", "label"), rows)
    assert heed("finetune", bases["encoder"], file, "--epochs", 1, "-q", "--out", "made")[0] == 0
    toy.table(
        file, ("id", "text", "label"), [*((i, *row) for i, row in enumerate(rows)), (0, "ann sees", "")]
    )
    code, out, err = heed("eval", "made", file)
    assert code == 0
    assert "left_out" not in out
    assert "unused_columns" not in out
    assert "columns that are not used: 'id'" in err
    assert f"note: 1 row without a label is left out: line {len(rows) + 2}" in err


def test_a_table_without_the_columns_of_training_is_told_which_they_were(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES]
    file = toy.table(tmp_path / "rows.csv", ("mail body", "label"), rows)
    code, _, err = heed("finetune", bases["encoder"], file, "--epochs", 1, "-q", "--out", "made")
    assert code == 0, err
    other = toy.table(tmp_path / "other.csv", ("first", "second"), rows)
    for call in (("predict", "made", other, "--out", "out.csv"), ("eval", "made", other)):
        code, _, err = heed(*call)
        assert code == 3
        assert "'mail body'" in err
        assert "label=" not in err


def test_every_kind_of_table_and_a_dotted_field_teach_the_same(tmp_path: Path) -> None:
    pyarrow, openpyxl = pytest.importorskip("pyarrow"), pytest.importorskip("openpyxl")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"user": {"message": s}, "kind": "ab"[i % 2]} for i, s in enumerate(toy.SENTENCES)]
    flat = [{"message": row["user"]["message"], "kind": row["kind"]} for row in rows]  # type: ignore[index]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.txt").write_text(
        "".join("\t".join(r) + "\n" for r in [("message", "kind"), *(tuple(r.values()) for r in flat)])
    )
    book = openpyxl.Workbook()
    for row in [("message", "kind"), *(tuple(row.values()) for row in flat)]:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    read = []
    columns = {"jsonl": "user.message", "parquet": "user.message", "txt": "message", "xlsx": "message"}
    for name, text in columns.items():
        request = FinetuneRequest(
            "unused", str(tmp_path / f"t.{name}"), task="classify", text=text, label="kind"
        )
        read.append(read_and_split(request, print).train.items)
    assert read[0] == read[1] == read[2] == read[3] != []


def test_a_single_row_is_called_a_row(tmp_path: Path) -> None:
    file = toy.table(tmp_path / "few.csv", ("text", "number"), [("a b", 1), ("c d", 2), ("e f", 3)])
    asked = FinetuneRequest("x", str(file), task="regress", text="text", label="number")
    assert read_and_split(asked, print).split_method.startswith("1 row held out")
