"""Commands that train bundled models run to their end on toy data: files, card and row of the ledger."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import heedful

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow  # whole scripts, which no user of the library runs
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


def test_what_the_models_are_judged_by_is_not_trained_on() -> None:
    from bundle import contexts, everyday_texts

    judged = everyday_texts()
    assert {"My name is Sarah and I live in London.", "The cat sat on the mat."} <= judged
    assert not {one.context for one in contexts.questions(300)} & judged


def test_pictures_to_measure_by_are_not_those_to_learn_from() -> None:
    pytest.importorskip("PIL", reason="drawing needs Pillow")
    pytest.importorskip("sklearn", reason="the handwriting is scikit-learn's")
    from bundle.digits import Handwriting

    held, learnt = (Handwriting.load(held=which) for which in (True, False))
    as_sets = lambda ink: {one.tobytes() for some in ink.by_digit for one in some}
    assert len(as_sets(held) & as_sets(learnt)) <= 2  # of 1,797 small images some are twice in the file
    assert sum(map(len, held.by_digit)) == 359
