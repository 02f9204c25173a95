"""Commands that train bundled models run to their end on toy data: files, card and row of the ledger."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import heedful

pytestmark = pytest.mark.slow  # whole scripts, which no user of the library runs
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # bundle/ is not installed

LINES = [
    f"The {animal} sat on the {place} and looked at Tom {number} times."
    for number, animal in enumerate(("cat", "dog", "king", "queen", "man", "woman"))
    for place in ("mat", "chair", "bed", "hotel")
]


def put(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data in the layout of HEED_DATA, and a base in that of HEED_BASES."""
    folder, bases = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("bases")
    for part in ("train", "valid"):
        path = folder / f"lm/eltec-eng/{part}.jsonl.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(path, "wt", encoding="utf-8") as out:
            out.write("".join(json.dumps({"text": " ".join(LINES * 12)}) + "\n" for _ in range(3)))
    for part in ("train", "valid"):
        put(folder / f"lm/wikitext-2/{part}.txt.gz", [" = A title = ", *[f" {' '.join(LINES[:6])} "] * 20])
    asked = {"id": "1", "question": "Who sat?", "answers": [{"text": "The cat", "answer_start": 0}]}
    article = {"title": "x", "paragraphs": [{"context": " ".join(LINES[:5]), "qas": [asked]}]}
    for name in ("dev-v1.1", "train_subset"):
        put(folder / f"qa/squad/{name}.json.gz", [json.dumps({"data": [article] * 44})])
    put(folder / "qa/qamr/wiki-sentences.tsv.gz", ["a\tThe cat sat -LRB- here -RRB- , alone ."])
    for part in ("dev", "test"):
        rows = ["a\t1\t9\t0\t1\tWho sat?\t0 1\t7:0 1\t8:1", "a\t1\t9\t1\t1\tWhere?\t4\t7:5\t8:6"]
        put(folder / f"qa/qamr/{part}.tsv.gz", rows)
    for code, other in (("de", "Katze {f}"), ("fr", "chat {m}, matou")):
        put(folder / f"translation/wiktionary/en-{code}.tsv.gz", [f"cat\tn\ta small pet animal\t{other}"])
    put(folder / "tagging/ud_english_ewt/train.conllu.gz", [f"# text = {line}" for line in LINES])
    for code in ("deu", "fra"):
        rows = [f"{line} {k}\t{line.upper()} {k}" for line in LINES for k in range(20)]
        put(folder / f"translation/tatoeba/{code}-eng.tsv.gz", rows)
    put(folder / "classification/clinc150/train.tsv.gz", ["text\tintent", *(f"{line}\tx" for line in LINES)])
    put(folder / "classification/banking77/train.csv.gz", ["text,category", *(f"{line},x" for line in LINES)])
    put(folder / "wordvec/EN-MEN-TR-3k.tsv.gz", ["cat dog 40", "king queen 45", "mat man 3", "bed chair 30"])
    put(
        folder / "wordvec/questions-words.txt.gz", [": family", "man king woman queen", "man xyz woman queen"]
    )
    names = ["Anna\tB-PER", "sees\tO", "Rome\tB-LOC", ".\tO", ""]
    put(folder / "ner/wikiann-en/train.conll.gz", ["In\tO", "it\tO", "is\tO", *names] * 300)
    put(folder / "ner/wnut17/train.conll.gz", ["Anna\tB-person", "left\tO", "\t"] * 300)
    for part in ("dev", "test"):
        rows = [f"{k}\t{line.replace(chr(9), chr(9))}\t-\t-" for k, line in enumerate(names[:4], 1)]
        put(folder / f"ner/uner-ewt/{part}.iob2.gz", [*["# text = x", *rows, ""] * 300])
    text = folder / "text.txt"
    text.write_text("\n".join([*LINES, "Anna sees Rome in it is left ."]))
    bert = heedful.build("bert", vocab=300, dim=16, layers=2, heads=2, context=320, head="none", seed=0)
    bert.tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=300, lower=True)
    heedful.save(bert, bases / "all-minilm-l6-v2")
    return folder, bases


# The command, and the name of what it writes.
RUNS = {
    "words": (["words", "--epochs", "1"], "words"),
    "lstm": (["prose", "lstm", "--steps", "2", "--batch", "2", "--held", "800"], "prose-lstm"),
    "mamba": (["prose", "mamba", "--steps", "2", "--batch", "2", "--held", "800"], "prose-mamba"),
    "large": (
        ["translators", "translate-en-fr", "--large", "--steps", "2", "--vocab", "300", "--test", "3"],
        "translate-en-fr",
    ),
    "modern": (
        ["masked", "--modern", "--steps", "6", "--batch", "4", "--books", "3", "--checks", "1"],
        "masked",
    ),
    "digits": (["digits", "--steps", "2", "--texts", "40", "--held", "3", "--batch", "4"], "digits"),
    "induction": (["induction", "--steps", "2", "--batch", "2"], "induction"),
    "entities": (["adapters", "entities", "--steps", "2", "--rank", "2"], "entities"),
    "answers": (["adapters", "answers", "--mixed", "--steps", "2", "--rank", "2"], "answers"),
}  # fmt: skip


@pytest.fixture
def train(
    toy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:  # fmt: skip
    """Run a command of bundle/ on the toy data with toy sizes, and return the card of what it writes."""
    monkeypatch.setenv("HEED_DATA", str(toy[0]))
    monkeypatch.setenv("HEED_BASES", str(toy[1]))
    for part in ("prose", "words", "translators", "names", "plans", "adapters", "digits", "induction"):
        monkeypatch.setattr(importlib.import_module(f"bundle.{part}"), "SCRATCH", tmp_path)
    prose, translators = (importlib.import_module(f"bundle.{part}") for part in ("prose", "translators"))
    monkeypatch.setattr(prose, "BEGINNINGS", ("It was",))
    small = {"lstm": {"dim": 16, "layers": 1, "tied": True}, "mamba": {"dim": 16, "layers": 1, "state": 4}}
    for kind, sizes in small.items():
        monkeypatch.setitem(prose.KINDS, kind, replace(prose.KINDS[kind], sizes=sizes))
    whole = {"dim": 16, "layers": 1, "heads": 2, "hidden": 32, "dropout": 0.1}
    monkeypatch.setitem(translators.LARGE, "model", whole)

    def run(module: str, words: list[str], name: str, out: str = "out") -> str:
        script = importlib.import_module(f"bundle.{module}")
        monkeypatch.setattr(sys, "argv", [module, *words, "--out", str(tmp_path / out), "--device", "cpu"])
        script.main()
        assert "figure" in json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        return (tmp_path / out / name / "README.md").read_text(encoding="utf-8")

    return run


@pytest.mark.parametrize("run", RUNS)
def test_the_command_trains_saves_and_writes_a_card(
    run: str, tmp_path: Path, train: Callable[..., str]
) -> None:
    (module, *words), name = RUNS[run]
    card = train(module, words, name)
    assert f"python -m bundle.{module}" in card
    assert all(word in card for word in ("--large", "--modern", "--mixed") if word in words)
    assert (tmp_path / "out/results" / f"{name}.json").is_file()
    if name not in ("words", "masked", "entities", "answers"):  # those stand on a base that is a toy here
        heedful.load(tmp_path / "out" / name)


def test_a_translator_goes_on_from_a_saved_one_and_names_both_commands(
    tmp_path: Path, train: Callable[..., str]
) -> None:
    (module, *words), name = RUNS["large"]
    train(module, words, name, "begun")
    start = ["--start", str(tmp_path / "begun" / name), "--lr", "1e-9"]
    card = train(module, [*words, *start], name)
    assert (
        "- begun by: `HEED_DATA=FOLDER python -m bundle.translators translate-en-fr --large --steps" in card
    )
    assert "--start begun/translate-en-fr" in card.split("- command: ")[1]
    (row,) = json.loads((tmp_path / f"out/results/{name}.json").read_text(encoding="utf-8"))
    first, second = row["check"]["steps"]
    assert first[-2:] == ["--out", "{work}/begun"]
    assert second[second.index("--start") + 1] == "{work}/begun/translate-en-fr"
    # A step that small moves nothing: the same whole numbers come back, and with them the same sentences.
    before, after = (heedful.load(tmp_path / part / name) for part in ("begun", "out"))
    for (key, old), new in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
        assert (old.float() - new.float()).abs().max() <= (1 if old.dtype == torch.int8 else 1e-4), key
    assert before.tokenizer.encode("The cat sat.") == after.tokenizer.encode("The cat sat.")
    card = train(module, [*words, "--start", str(tmp_path / "out" / name), "--lr", "1e-9"], name, "third")
    assert len(re.findall("bundle.translators", card.split("- command: ")[0])) == 2
    (row,) = json.loads((tmp_path / f"third/results/{name}.json").read_text(encoding="utf-8"))
    outs = [step[step.index("--out") + 1] for step in row["check"]["steps"]]
    assert outs == ["{work}/begun/begun", "{work}/begun", "{work}"]
    starts = [step[step.index("--start") + 1] for step in row["check"]["steps"][1:]]
    assert starts == [f"{out}/{name}" for out in outs[:-1]]


def test_an_adapter_for_words_is_cut_from_one_for_both(tmp_path: Path, train: Callable[..., str]) -> None:
    (module, *words), name = RUNS["modern"]
    train(module, words, name, "begun")
    card = train(
        "fill_mask", ["--start", str(tmp_path / "begun" / name), "--rank", "16", "--checks", "1"],
        "fill-mask",
    )  # fmt: skip
    assert "- begun by: `HEED_DATA=FOLDER python -m bundle.masked --modern" in card
    held = [load_file(tmp_path / part / "adapter.safetensors") for part in ("begun/masked", "out/fill-mask")]
    assert not [key for key in held[1] if "next" in key]
    for key in (key.removesuffix(".up") for key in held[1] if key.endswith(".up")):
        whole, part = (tensors[f"{key}.up"].float() @ tensors[f"{key}.down"].float() for tensors in held)
        torch.testing.assert_close(part, whole, atol=2e-3, rtol=2e-2)


def test_qamr_gives_whole_sentences_and_answers_that_two_people_agree_on(toy: tuple[Path, Path]) -> None:
    contexts = importlib.import_module("bundle.contexts")
    found = contexts.short_questions(toy[0])
    assert [(one.question, one.context, one.answers) for one in found] == [
        ("Who sat?", "The cat sat (here), alone.", (("The cat", 0),))
    ] * 2


def test_the_dictionary_knows_genders_and_leaves_out_what_the_models_are_judged_by(
    toy: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dictionary = importlib.import_module("bundle.dictionary")
    assert dictionary.pairs(toy[0], "de", {"cat"}) == [("cat", "Katze"), ("the cat", "die Katze")]
    found = dictionary.pairs(toy[0], "fr", {"cat"})
    assert found == [("cat", "chat"), ("the cat", "le chat"), ("cat", "matou")]
    assert dictionary.pairs(toy[0], "fr", {"dog"}) == []
    assert dictionary.meanings(toy[0]) == ["A cat is a small pet animal."]
    monkeypatch.setattr(dictionary, "everyday_texts", lambda: {"Cat!"})
    assert dictionary.pairs(toy[0], "de", {"cat"}) == []
