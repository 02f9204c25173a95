"""Settings: who wins, where a value came from, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from heedful.core.errors import ConfigError, NotFound
from heedful.train.recipes.recipes import (
    ResolvedSettings,
    Setting,
    flatten,
    load_recipes,
    parse_assignment,
    parse_value,
    recipe_values,
    resolve_settings,
    settings_yaml,
)
from heedful.weights.loading import build
from tests.tasks.finetune.conftest import Heed


def test_flags_win_over_the_environment_a_file_and_the_recipe(
    heed: Heed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: gpt2\ntrain:\n  lr: 0.5\n  steps: 70\n  clip: 2.0\n")
    monkeypatch.setenv("HEED_LR", "0.25")
    monkeypatch.setenv("HEED_STEPS", "80")
    code, out, _ = heed("train", path, "x.txt", "--print-config", "--steps", 90, "--set", "model.dim=64")
    assert code == 0
    said = {
        line.split()[0]: line.rstrip().split(maxsplit=2)[1:] for line in out.splitlines()[1:] if line.split()
    }
    assert said["train.steps"] == ["90", "--steps"]
    assert said["train.lr"] == ["0.25", "HEED_LR"]
    assert said["train.clip"] == ["2.0", f"{path}:5"]
    assert said["model.dim"] == ["64", "--set"]
    assert said["model.layers"] == ["6", "recipe gpt2"]
    assert said["train.eps"] == ["1e-08", "default"]


@pytest.mark.parametrize("name", load_recipes())
def test_a_recipe_survives_yaml_and_its_model_can_be_built(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(settings_yaml(ResolvedSettings(name, load_recipes()[name])))
    again = resolve_settings(str(path))
    assert again.name == name
    assert recipe_values(again.recipe) == recipe_values(load_recipes()[name])
    model = build(load_recipes()[name].family, device="meta", vocab=1000, **load_recipes()[name].model)
    reach = getattr(model.config, "context", None)
    assert reach is None or load_recipes()[name].data["length"] <= reach


def test_the_two_models_of_wikitext_are_of_equal_size() -> None:
    sizes = []
    for name in ("lstm-wikitext2", "transformer-wikitext2"):
        recipe = load_recipes()[name]
        model = build(recipe.family, device="meta", vocab=recipe.tokenizer.vocab, **recipe.model)
        sizes.append(sum(p.numel() for p in model.parameters()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_recipe_cp_writes_what_train_reads(heed: Heed, tmp_path: Path) -> None:
    assert heed("recipe", "cp", "t5", "mine.yaml")[:2] == (0, "mine.yaml\n")
    assert yaml.safe_load(Path("mine.yaml").read_text())["objective"] == "spans"
    assert heed("recipe", "cp", "t5", "mine.yaml")[0] == 3
    assert "did you mean 'gpt2'" in heed("recipe", "cp", "gtp2")[2]


def test_recipes_are_listed(heed: Heed) -> None:
    code, out, _ = heed("recipes")
    assert code == 0
    assert all(name in out for name in load_recipes())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("12", 12),
        ("true", True),
        ("null", None),
        ("[0.9, 0.99]", [0.9, 0.99]),
        ("adamw", "adamw"),
    ],
)
def test_values_on_the_command_line_have_types(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.stesp=3", "unknown setting 'train.stesp'; did you mean 'train.steps'"),
        ("train.steps=many", "train.steps = 'many' must be a whole number"),
        ("train.optimiser=adm", "optimiser='adm' is unknown; did you mean 'adamw'"),
        ("data.holdout=2", "data.holdout=2.0 must be at least 0 and below 1"),
        ("parallel=both", "parallel='both' is unknown"),
        ("evaluate.every=0", "evaluate.every=0 must be at least 1"),
        ("evaluate.log=0", "evaluate.log=0 must be at least 1"),
        ("evaluate.batches=-1", "evaluate.batches=-1 must be at least 1"),
        ("data.length=0", "data.length=0 must be at least 1"),
        ("train.betas=[0.9]", "must be two numbers"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        resolve_settings("gpt2", [parse_assignment(setting)])


def test_errors_in_a_file_name_its_line(tmp_path: Path, heed: Heed) -> None:
    path = tmp_path / "gpt.yaml"
    path.write_text("recipe: gpt2\nmodel:\n  dim: 64\n  heads: 5\n")
    (tmp_path / "x.txt").write_text("some text to read " * 50)
    code, _, err = heed("train", path, "x.txt", "--set", "tokenizer.kind=char")
    assert code == 3
    assert err.startswith(f"error: {path}:4: heads=5")
    path.write_text("family: gpt2\ntrain:\n  lr: [\n")
    assert heed("train", path, "x.txt")[2].startswith(f"error: {path}:4: not valid YAML")
    path.write_text("family: gpt2\ntrian:\n  lr: 1\n")
    assert f"{path}:3: unknown setting 'trian.lr'" in heed("train", path, "x.txt")[2]


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'shakespeare-char'"):
        resolve_settings("shakspeare-char")


def test_a_family_or_a_preset_is_a_recipe_too() -> None:
    assert resolve_settings("mistral").recipe.model["dim"] == 32
    assert resolve_settings("gpt2-medium").recipe.family == "gpt2-medium"


def test_a_short_run_gets_a_short_warmup_unless_it_was_set() -> None:
    assert (
        resolve_settings("shakespeare-char", [Setting("train.steps", 20, "--steps")]).recipe.train.warmup == 2
    )
    with pytest.raises(ConfigError, match="warmup=50 is longer"):
        resolve_settings(
            "shakespeare-char", [parse_assignment("train.steps=20"), parse_assignment("train.warmup=50")]
        )


@pytest.mark.parametrize("name", load_recipes())
def test_a_copied_recipe_can_be_made_short(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(settings_yaml(ResolvedSettings(name, load_recipes()[name])))
    assert resolve_settings(str(path), [Setting("train.steps", 6, "--steps")]).recipe.train.warmup <= 1
    assert resolve_settings(str(path), [Setting("train.steps", 6, "HEED_STEPS")]).recipe.train.steps == 6


def test_a_file_that_contradicts_itself_is_told_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: gpt2\ntrain:\n  steps: 6\n  warmup: 50\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:4: warmup=50 is longer"):
        resolve_settings(str(path))
    path.write_text("recipe: gpt2\ntrain:\n  steps: 6\n")
    assert resolve_settings(str(path)).recipe.train.warmup == 1


def test_a_decay_is_shortened_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: gpt2\ntrain:\n  schedule: wsd\n  decay: 500\n")
    assert resolve_settings(str(path), [Setting("train.steps", 20, "--steps")]).recipe.train.decay == 2


def test_paths_of_nested_values() -> None:
    assert flatten({"a": {"b": 1}, "c": 2}) == {"a.b": 1, "c": 2}


def test_files_in_a_settings_file_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: gpt2\nfiles: corpus.txt\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:2: files = 'corpus.txt' must be a list"):
        resolve_settings(str(path))
    (tmp_path / "corpus.txt").write_text("some text")
    path.write_text("recipe: gpt2\nfiles: [corpus.txt]\n")
    assert resolve_settings(str(path)).files == (str(tmp_path / "corpus.txt"),)
