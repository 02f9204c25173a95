"""The scripts that fill the ledger, run for a few steps on made-up data."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import heedful
from heedful.classroom.experiments import ledger
from heedful.classroom.experiments.verify import command_line, read_check

pytestmark = pytest.mark.slow  # whole scripts, which no user of the library runs
ROOT = Path(__file__).parents[2]
WORDS = ("the film", "a story", "this cast", "that scene", "our hero", "some music")
Run = Callable[..., dict[str, Any]]


def put(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


def sentences(count: int, first: int = 0) -> list[tuple[str, str]]:
    """A label and a sentence that tells it."""
    some = range(first, first + count)
    return [(str(i % 2), f"{WORDS[i % 6]} number {i} is {'good' if i % 2 else 'bad'} .") for i in some]


def tables(folder: Path) -> None:
    table = lambda head, rows: [head, *("\t".join(row) for row in rows)]
    sst2 = folder / "classification/sst2"
    put(sst2 / "train_sentences.tsv.gz", table("label\tsentence", sentences(60)))
    put(sst2 / "train.tsv.gz", table("label\tsentence", [*sentences(60), ("1", "good ."), ("0", "bad .")]))
    put(sst2 / "dev.tsv.gz", table("label\tcontent", sentences(12, 60)))
    for part, first in (("train", 0), ("val", 30), ("test", 40)):
        rows = [(text, f"intent{label}") for label, text in sentences(12, first)]
        put(folder / f"classification/clinc150/{part}.tsv.gz", table("text\tintent", rows))
        pairs = [(label, text, text) for label, text in sentences(12, first)]
        put(folder / f"pairs/mrpc/{part}.tsv.gz", table("label\tsentence1\tsentence2", pairs))
    for part in ("train", "dev"):
        pairs = [(("entailment", "not_entailment")[int(label)], t, t) for label, t in sentences(12)]
        put(folder / f"pairs/rte/{part}.tsv.gz", table("label\tsentence1\tsentence2", pairs))
    words = [
        line
        for _ in range(12)
        for line in ("Anna NNP I-NP I-PER", "sees VBZ I-VP O", "Rome NNP I-NP I-LOC", "")
    ]
    for part in ("train", "testa", "testb"):
        put(folder / f"ner/conll2003/{part}.conll.gz", words)


def squad(folder: Path) -> None:
    def article(i: int) -> dict[str, Any]:
        answer = {"text": f"number {i}", "answer_start": 12}
        asked = {"id": str(i), "question": "which hero ?", "answers": [answer]}
        return {"title": str(i), "paragraphs": [{"context": f"our hero is number {i} .", "qas": [asked]}]}

    for name, count in (("dev-v1.1", 44), ("train_subset", 6)):
        put(folder / f"qa/squad/{name}.json.gz", [json.dumps({"data": [article(i) for i in range(count)]})])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data in the layout of HEED_DATA, and bases in that of HEED_BASES."""
    folder, bases = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("bases")
    tables(folder)
    squad(folder)
    for part, count in (("train", 24), ("val", 4), ("test_2016_flickr", 6)):
        for side, end in (("en", "here."), ("de", "hier.")):
            rows = [f"{WORDS[i % 6]} {side} {i}, {end}" for i in range(count)]
            put(folder / f"translation/multi30k/{part}.{side}.gz", rows)
    for part in ("train", "validation", "test"):
        rows = [f'{i},"Anna: hello {i}\nBen: {WORDS[i % 6]}",Anna greets Ben' for i in range(6)]
        put(folder / f"summarisation/samsum/{part}.csv.gz", ["id,dialogue,summary", *rows])
    text = folder / "text.txt"
    text.write_text("\n".join(s for _, s in sentences(72)) + "\nAnna sees Rome greets Ben hello which hero ?")
    bert = heedful.build("bert", vocab=400, dim=16, layers=2, heads=2, context=320, head="none", seed=0)
    bert.tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=400, lower=True)
    heedful.save(bert, bases / "all-minilm-l6-v2")
    llama = heedful.build("llama", vocab=320, dim=16, layers=1, heads=2, seed=0)
    llama.tokenizer = heedful.train_tokenizer("bpe", [text], vocab=320)
    heedful.save(llama, bases / "smollm2-135m-instruct")
    return folder, bases


@pytest.fixture
def run(
    made: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Call a script as one would; the last object that it prints."""
    monkeypatch.setenv("HEED_DATA", str(made[0]))
    monkeypatch.setenv("HEED_BASES", str(made[1]))
    for name in ("finetuned", "bundle.plans"):
        monkeypatch.setattr(load(name), "SCRATCH", tmp_path)

    def called(script: str, *words: str) -> dict[str, Any]:
        places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"), "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", [script, *words, *places])
        load(script).main()
        printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        return dict(json.loads(printed[-1]))

    return called


def load(name: str) -> ModuleType:
    for folder in (ROOT, ROOT / "benchmarks"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def accepted(row: dict[str, Any]) -> None:
    """A row that the ledger takes and `heed verify` can run again."""
    check = read_check(row, "row")
    for step in check.steps:
        assert command_line(step, {"{data}": "", "{work}": "w"}, ROOT)
    assert check.figure in row["figure"]
    assert set(ledger.KEYS) <= set(row)


@pytest.mark.parametrize("system", ["transformer", "rnnsearch", "seq2seq"])
def test_a_translator_is_trained_chosen_and_tested(
    system: str, run: Run, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("multi30k")
    small = script.SYSTEMS[system].sizes | {"dim": 32}
    monkeypatch.setitem(script.SYSTEMS, system, replace(script.SYSTEMS[system], sizes=small))
    told = run("multi30k", system, "--seeds", "0", "--steps", "3", "--vocab", "300")
    assert set(told["figure"]) == {"bleu", "sacrebleu", "signature"}
    assert "case:lc" in told["figure"]["signature"]
    assert not (tmp_path / "results").exists()  # a trial leaves the ledger alone
    accepted(script.row(system, told["figure"], (0,), made[0]))


@pytest.mark.parametrize("name", ["sst2", "conll2003", "squad", "clinc150", "mrpc", "rte"])
def test_a_task_is_fine_tuned_and_tested(name: str, run: Run, made: tuple[Path, Path]) -> None:
    told = run("finetuned", name, "--seeds", "0", "1", "--steps", "2")
    script = load("finetuned")
    settings, figure = script.TASKS[name], told["figure"]
    assert len(figure["seeds"]) == 2
    given = script.argparse.Namespace(data=made[0], changes={})
    accepted(script.row(name, settings, script.find_plan(settings.plan, made[0]), figure, (0, 1), given))


@pytest.mark.parametrize("family", ["bilstm", "cnn", "bert"])
def test_a_model_from_random_weights_is_trained_and_tested(
    family: str, run: Run, tmp_path: Path, made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("from_scratch")
    kind = script.KINDS[family]
    monkeypatch.setitem(script.KINDS, family, replace(kind, config=kind.config | {"dim": 16}))
    figure = run("from_scratch", family, "--seeds", "0", "1", "--steps", "2")["figure"]
    assert 0 <= figure["accuracy"] <= 100
    model = heedful.load(
        tmp_path / f"work/scratch-{family}-0"
    )  # a plain table: nothing of its spelling is left
    assert model.tables["tokens"].table.shape == (len(model.tokenizer), 16)
    given = script.argparse.Namespace(data=made[0], changes={})
    plan, row = load("finetuned").find_plan("sentiment", made[0]), load("finetuned").row
    accepted(row(f"scratch-{family}", script.SETTINGS, plan, figure, (0, 1), given))


def test_held_back_sentences_share_no_phrase_of_their_own_with_training(made: tuple[Path, Path]) -> None:
    script = load("finetuned")
    train, held = (path.read_text().splitlines()[1:] for path in script.split_sst2(made[0], fold=0))
    assert held
    assert not {line.split("\t")[1] for line in train} & {line.split("\t")[1] for line in held}
    assert any(line.endswith("good .") for line in train)  # what other sentences say too stays


def test_a_student_is_taught_and_measured_beside_its_teacher(run: Run, made: tuple[Path, Path]) -> None:
    figure = run("distillation", "--steps", "2", "--sentences", "3")["figure"]
    assert figure["parameters"] < 100
    assert figure["speed"] > 0
    script = load("distillation")
    accepted(script.row(figure, script.argparse.Namespace(data=made[0], seed=0)))


def test_summaries_are_learnt_written_and_scored(run: Run, made: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("--steps", "2", "--batch", "2", "--rank", "2", "--beams", "2", "--most", "4")
    figure = run("summaries", "samsum", *words)["figure"]
    assert {"rouge1", "rouge2", "rougeL", "lead3"} <= set(figure)
    config = json.loads((tmp_path / "work/samsum/config.json").read_text())
    assert "{text}" in config["task_prompt"]
    script = load("summaries")
    accepted(script.row("samsum", figure, script.argparse.Namespace(data=made[0], rank=2, seed=0)))


def test_words_are_predicted_by_both_recipes_of_wikitext(run: Run, made: tuple[Path, Path]) -> None:
    for part in ("train", "valid", "test"):
        put(made[0] / f"lm/wikitext-2/{part}.txt.gz", [text for _, text in sentences(400)])
    small = ("--set", "model.dim=16", "--set", "data.batch=2", "--set", "train.graph=false")
    for name, more in (("lstm", ()), ("transformer", ("--set", "model.heads=2", "--set", "model.hidden=32"))):
        told = run(
            "wikitext2", "--recipes", f"{name}-wikitext2", "--steps", "2", "--limit", "300", *small, *more
        )
        assert told["figure"]["test"] > 1
        given = load("wikitext2").argparse.Namespace(steps=2, set=[], seed=0)
        accepted(load("wikitext2").row(f"{name}-wikitext2", told, {"a": made[0] / "text.txt"}, given))


def test_a_language_model_is_found_among_the_bases_and_scored(run: Run, made: tuple[Path, Path]) -> None:
    put(made[0] / "eval/lambada/test.jsonl.gz", [json.dumps({"text": text}) for _, text in sentences(4)])
    figure = run("lm_tasks", "lambada", "--json")["figure"]
    assert set(figure) == {"accuracy", "perplexity"}


def test_every_stage_calls_a_script_with_what_it_knows(tmp_path: Path) -> None:
    driver = load("all_gpu")
    places = dict.fromkeys(("work", "results", "figures", "models"), tmp_path)
    given = driver.argparse.Namespace(**places, extra=[], device=None)
    session = driver.Session([], given, {})
    session.plain |= {name for name, stage in driver.STAGES.items() if stage.recorded}
    shared = {
        "from_scratch.py": "benchmarks/finetuned.py",
        "-m": "bundle/timed.py",
    }  # where options stand too
    for name, stage in driver.STAGES.items():
        assert set(stage.after) <= set(driver.STAGES)
        first, second, *_ = (*stage.words, "")
        own = f"{second.replace('.', '/')}.py" if first == "-m" else f"benchmarks/{first}"
        files = [own, *filter(None, [shared.get(first)])]
        script = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        said = [word for word in session.command(name, 100.0) if word.startswith("--")]
        assert all(f'"{word.replace("--no-", "--")}"' in script for word in said)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("adapters", ["sentiment", "--steps", "2"]),
        ("masked", ["--books", "2"]),
        ("summaries", ["--limit", "2"]),
    ],
)
def test_a_trial_does_not_write_over_the_model_that_comes_along(
    module: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEED_DATA", "nowhere")
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit):
        load(f"bundle.{module}").main()
    assert "is a trial: say where it goes with --out" in capsys.readouterr().err
