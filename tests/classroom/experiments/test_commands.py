"""`heed race` and `heed scale`, very small: they keep what they measured, and the claims have their signs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.classroom.experiments import scale_sweep, translation_race
from heedful.classroom.experiments import system_race as race_settings
from heedful.classroom.experiments.gradient_flow import exploding_rates, fit_rate, loss_gradient_by_distance
from heedful.classroom.experiments.layer_times import measure_layer_times
from heedful.classroom.experiments.measurement_store import finish_experiment, run_workers
from heedful.classroom.experiments.report import Report, Section
from heedful.classroom.experiments.scale_sweep import QUICK_SCALE, ScaleSweep
from heedful.classroom.experiments.system_race import QUICK, Race, TaskSettings
from heedful.classroom.experiments.systems import SYSTEMS, build_system, size_system
from heedful.classroom.experiments.translation_data import join_pairs, prepare_pairs, read_pairs, split_pairs
from heedful.classroom.experiments.translation_race import QUICK_TRANSLATION, TranslationRace
from heedful.classroom.figures import panels
from heedful.cli import main
from heedful.core.errors import ConfigError, HeedfulError, InputError
from heedful.train.recipes.train import TrainingInterrupted

CPU = torch.device("cpu")
TINY_RACE = replace(
    QUICK, systems=("rnn", "gpt2"), parameters=8000, layers=1, length=32, batch=4, steps=4, evaluations=2,
    layer_lengths=(64, 128, 256), layer_dims=(16, 32, 64), layer_length=32, contexts=(8, 16),
    gradient_rows=4, fit_points=3,
    tasks=TaskSettings(("gpt2",), ("copy",), (0, 1), parameters=6000, length=20, steps=2, batch=8, rows=32),
)  # fmt: skip
TINY_SCALE = replace(
    QUICK_SCALE, dims=(8, 12, 16), tokens=(256, 512, 1024), held_out=((24, 4096),), length=16, batch=8,
    evaluation_batches=2,
)  # fmt: skip
TINY_TRANSLATION = replace(
    QUICK_TRANSLATION, pairs=200, test_rows=3, parameters=12_000, batch=8, steps=3, buckets=(8, 20, 30, 80)
)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog lay on the rug. " * 200, encoding="utf-8")
    return str(path)


def test_a_race_measures_everything_once_and_reports_it(tmp_path: Path, text: str) -> None:
    lines: list[str] = []
    race = Race(tmp_path / "race", [text], TINY_RACE, CPU, lines.append)
    page = finish_experiment(race, tmp_path / "race", "heed race --quick text.txt")
    assert len(lines) == race.total
    written = page.read_text(encoding="utf-8")
    for title in ("Time of one layer", "How far back the loss reaches", "Copy: accuracy by distance"):
        assert title in written
    assert "<script" not in written
    assert "http://" not in written.replace("http://www.w3.org/2000/svg", "")
    folder = page.parent
    assert (folder / "report.md").read_text(encoding="utf-8").count("![") == len(
        list((folder / "figures").iterdir())
    )
    rows = (folder / "report.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "section,panel,row,column,value"
    assert any(row.startswith("layers,exponents,RNN,of the length n,") for row in rows)
    assert json.loads((folder / "report.json").read_text())["sections"][0]["figure"]["kind"] == "report"

    again: list[str] = []
    finish_experiment(Race(folder, [text], TINY_RACE, CPU, again.append), folder, "heed race")
    assert again == []


def test_a_section_of_a_race_is_plotted(tmp_path: Path, heed: Any) -> None:
    drawn = panels.lines("loss", np.array([[3.0, 2.0]]), ["RNN"], [1, 2], axes=("loss", "tokens"))
    Report("Race", "heed race", {}, [Section("loss", "Loss", [], [drawn])]).save(tmp_path)
    code, out, _ = heed("plot", "race", tmp_path, "-o", tmp_path / "loss.csv")
    assert (code, out.strip()) == (0, str(tmp_path / "loss.csv"))
    assert "RNN" in (tmp_path / "loss.csv").read_text()
    code, _, err = heed("plot", "race", tmp_path, "--section", "los")
    assert code == 3
    assert "--section los is unknown" in err
    assert "did you mean 'loss'?" in err


def test_an_interrupted_race_keeps_what_it_measured(tmp_path: Path, text: str) -> None:
    def interrupt(line: str) -> None:
        if "layer" in line:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted, match="what was measured") as error:
        finish_experiment(
            Race(tmp_path / "r", [text], TINY_RACE, CPU, interrupt), tmp_path / "r", "heed race"
        )
    assert error.value.exit_code == 130
    assert "The systems" in (tmp_path / "r/report.html").read_text(encoding="utf-8")


def test_the_command_prints_the_page_and_refuses_an_unknown_system(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(race_settings, "QUICK", TINY_RACE)
    with pytest.raises(SystemExit) as done:
        main(["race", "--quick", "-q", "--systems", "rnn", text])
    assert done.value.code == 0
    assert capsys.readouterr().out.splitlines() == ["runs/race/report.html"]
    assert f"heed race --quick --systems rnn {text}" in Path("runs/race/report.md").read_text()
    with pytest.raises(SystemExit) as done:
        main(["race", "--quick", "--systems", "rnn,lstn", text])
    assert done.value.code == 3
    assert "no system is called 'lstn'" in capsys.readouterr().err


@pytest.mark.slow  # two races; the next test starts processes and finds the one that failed
def test_systems_are_measured_in_processes_of_their_own_and_reported_together(
    tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["race", "--quick", "--systems", "rnn,lstm", "--parts", "generation", "--jobs", "2"]
    with pytest.raises(SystemExit) as done:
        main([*words, "-o", str(tmp_path / "r"), text])
    assert done.value.code == 0
    told = capfd.readouterr().err.splitlines()
    assert sum("generation" in line for line in told) == 2  # each once, by its own process
    written = (tmp_path / "r/report.md").read_text(encoding="utf-8")
    assert "One more token" in written
    assert "Time of one layer" not in written
    assert "| RNN |" in written
    assert "| LSTM |" in written


def test_a_worker_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeedfulError, match="broken: not all measurements were finished"):
        run_workers({"broken": ["version", "--no-such-option"], "fine": ["version"]}, 2)


def test_parts_of_a_race_of_translators_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["race", "--quick", "--translation", "--parts", "loss", text])
    assert done.value.code != 0
    assert "--parts is for a race of language models" in capsys.readouterr().err


def test_an_unknown_part_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["race", "--quick", "--parts", "layers,task", text])
    assert done.value.code != 0
    assert "task" in capsys.readouterr().err


def test_each_system_learns_a_task_from_the_start_that_did_better_in_the_pilot(
    tmp_path: Path, text: str
) -> None:
    tasks = replace(TINY_RACE.tasks, table_stds=(0.02, 0.3), seeds=(0,))
    lines: list[str] = []
    race = Race(tmp_path / "r", [text], replace(TINY_RACE, parts=("tasks",), tasks=tasks), CPU, lines.append)
    race.measure()
    assert len(lines) == race.total
    (pilot,), (task,) = race.store.values("pilot").values(), race.store.values("task").values()
    assert pilot["table_std"] == (0.02, 0.3)[pilot["shares"].index(max(pilot["shares"]))]
    assert task["table_std"] == pilot["table_std"]


@pytest.mark.slow
def test_an_rnn_cannot_copy_and_an_lstm_can(tmp_path: Path, text: str) -> None:
    tasks = replace(QUICK.tasks, systems=("rnn", "lstm"), names=("copy",), seeds=(0,))
    race = Race(
        tmp_path / "r", [text], replace(QUICK, systems=("rnn", "lstm"), parts=("tasks",), tasks=tasks), CPU
    )
    race.measure()
    found = {name: v["right"][-1] / v["count"][-1] for name, v in race.store.values("task").items()}
    assert found["copy-rnn-0"] < 0.3 < 0.8 < found["copy-lstm-0"]


@pytest.mark.slow
def test_with_the_length_of_the_source_plain_seq2seq_falls_more_than_rnnsearch(tmp_path: Path) -> None:
    settings = replace(QUICK_TRANSLATION, systems=("seq2seq", "rnnsearch"))
    race = TranslationRace(tmp_path / "t", [], settings, CPU)
    race.measure()
    kept = {name: v["bleu"][2] / v["bleu"][0] for name, v in race.store.values("bleu").items()}
    assert kept["rnnsearch"] > kept["seq2seq"]


def test_a_sweep_predicts_before_it_trains_the_held_out_runs(tmp_path: Path, text: str) -> None:
    lines: list[str] = []

    def note(line: str) -> None:
        if "d24" in line:
            assert (tmp_path / "s/predictions.json").is_file()
            assert not (tmp_path / "s/held-out").exists()
        lines.append(line)

    sweep = ScaleSweep(tmp_path / "s", [text], TINY_SCALE, CPU, note, budget=1e9)
    page = finish_experiment(sweep, tmp_path / "s", "heed scale")
    assert len(lines) == 9 + 1 + 1
    assert sum(1 for _ in (tmp_path / "s/points").iterdir()) == 9
    assert json.loads((tmp_path / "s/predictions.json").read_text())["held_out_trained_already"] is False
    assert "What the small runs predicted" in page.read_text(encoding="utf-8")
    assert "1.00e+09 FLOPs" in page.read_text(encoding="utf-8")

    before = (tmp_path / "s/predictions.json").read_bytes()
    again: list[str] = []
    finish_experiment(ScaleSweep(tmp_path / "s", [text], TINY_SCALE, CPU, again.append), tmp_path / "s", "")
    assert again == ["fitting the loss surface"]
    assert (tmp_path / "s/predictions.json").read_bytes() == before


def test_a_held_out_run_near_the_sweep_is_refused(tmp_path: Path, text: str) -> None:
    near = replace(TINY_SCALE, held_out=((16, 2048),))
    with pytest.raises(ConfigError, match="the compute of the sweep's largest"):
        ScaleSweep(tmp_path / "s", [text], near, CPU)


def test_the_scale_command_prints_its_page(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale_sweep, "QUICK_SCALE", replace(TINY_SCALE, dims=(8, 12)))
    with pytest.raises(SystemExit) as done:
        main(["scale", "--quick", "-q", "--json", "--budget", "1e9", "-o", str(tmp_path / "s"), text])
    told = json.loads(capsys.readouterr().out)
    assert done.value.code == 0
    assert Path(told["report"]).is_file()
    assert told["predictions"][0]["compute_factor"] >= 4
    assert "heed scale --quick --budget 1e+09 " in (tmp_path / "s/report.md").read_text(encoding="utf-8")


def test_translators_are_compared_on_joined_pairs(tmp_path: Path) -> None:
    race = TranslationRace(tmp_path / "t", [], TINY_TRANSLATION, CPU)
    page = finish_experiment(race, tmp_path / "t", "heed race --translation --quick").read_text(
        encoding="utf-8"
    )
    for title in ("BLEU by the length of the source", "Alignments side by side", "Additive scores next to"):
        assert title in page
    found = race.store.values("alignment")
    assert found["seq2seq"] is None
    for name in ("rnnsearch", "luong", "transformer"):
        pattern = torch.tensor(found[name]["pattern"])
        assert pattern.shape == (len(found[name]["target"]), len(found[name]["source"]))
        assert torch.allclose(pattern.sum(-1), torch.ones(len(pattern)), atol=1e-4)
    assert all(len(v["bleu"]) == len(race.data.test) for v in race.store.values("bleu").values())


def test_no_source_is_trained_on_and_tested_on() -> None:
    pairs = [(f"s{i % 50}", f"t{i}") for i in range(120)]  # several translations of a source
    train, unseen = split_pairs(pairs, 0)
    sources = [source for source, _ in unseen]
    assert not {source for source, _ in train} & set(sources)
    assert len(sources) == len(set(sources)) == 5
    assert len(train) + sum(source in sources for source, _ in pairs) == len(pairs)
    assert [p for p in pairs if p in train] != train  # a file sorted by length would be split by length


def test_joined_pairs_are_consecutive_and_training_pairs_short(tmp_path: Path) -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(40)]
    for i, (source, target) in enumerate(join_pairs(pairs, 6, 0)):
        words = source.split()
        assert words == [f"s{k}" for k in range(i, i + len(words))]
        assert target == source.replace("s", "t")
        assert len(words) <= 6
    found = prepare_pairs(
        [], count=400, max_joined=6, test_joined=8, train_words=12, buckets=(12, 40), test_rows=9, seed=0
    )
    assert max(len(s.split()) for s, _ in found.train) <= 12
    assert all(12 < len(s.split()) <= 40 for s, _ in found.test[40])
    table = tmp_path / "pairs.tsv"
    table.write_text("a\tb\nno tab here\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2: 1 column instead of 2"):
        read_pairs([str(table)])


def test_the_translation_command_takes_a_file_of_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translation_race, "QUICK_TRANSLATION", TINY_TRANSLATION)
    pairs = "".join(f"one {w} two {v}\teins {w} zwei {v}\n" for w in "abcdefghij" for v in "klmnopqrst")
    Path("pairs.tsv").write_text(pairs, encoding="utf-8")
    with pytest.raises(SystemExit) as done:
        main(["race", "--translation", "--quick", "-q", "--systems", "rnnsearch", "pairs.tsv"])
    assert done.value.code == 0
    assert capsys.readouterr().out == "runs/translation-race/report.html\n"


@pytest.mark.slow  # a time, which a busy machine may miss
def test_time_grows_faster_with_the_length_in_attention_than_in_a_recurrence() -> None:
    lengths = (2048, 4096, 8192)  # processor time of one thread: other work on the machine does not count
    exponent = {
        name: measure_layer_times(SYSTEMS[name], lengths, (16, 32, 64), dim=16, length=64, fit_points=3)
        for name in ("gpt2", "lstm", "linear")
    }
    slopes = {name: found.length_exponent.slope for name, found in exponent.items()}
    assert slopes["gpt2"] > 1.5 > max(slopes["lstm"], slopes["linear"])


def gradient_rate(name: str) -> float:
    """The rate of a small model with weights as large as those of a trained one."""
    competitor = size_system(SYSTEMS[name], 20_000, vocab=32, layers=1, context=48)
    model = build_system(competitor, vocab=32)
    tokens = torch.randint(0, 32, (16, 48), generator=torch.Generator().manual_seed(0))
    if name == "rnn":  # a trained one's spectral radius is far from an orthogonal matrix's
        with torch.no_grad():
            model.blocks[0].get_parameter("h.weight").mul_(0.9)
    return fit_rate(loss_gradient_by_distance(model, tokens, tokens.roll(-1, 1))).slope


def test_gradients_vanish_fastest_in_an_rnn_and_not_in_a_transformer() -> None:
    rnn, lstm, transformer = (gradient_rate(name) for name in ("rnn", "lstm", "gpt2"))
    assert rnn < lstm < -0.01
    assert abs(transformer) < 0.02


def test_an_rnn_vanishes_below_a_gain_of_one_and_explodes_above() -> None:
    found = exploding_rates((0.5, 2.0))
    assert found[0]["rate"]["slope"] == pytest.approx(-0.693, abs=0.03)  # ln ½: tanh is nearly linear here
    assert found[1]["rate"]["low"] > 0.05


def test_a_loss_reaches_no_input_behind_it() -> None:
    competitor = size_system(SYSTEMS["llama"], 20_000, vocab=32, layers=1, context=16)
    model = build_system(competitor, vocab=32)
    tokens = torch.randint(0, 32, (4, 16))
    found = loss_gradient_by_distance(model, tokens, tokens)
    assert len(found.norms) == 16
    assert min(found.norms) > 0
