"""A table learnt by spelling is a plain one in the end, and unseen words have learnt something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError
from heedful.models.base import Model
from heedful.train.spelling import grams, spell_embedding, spelling


@pytest.fixture
def model(tmp_path: Path) -> Model:
    text = tmp_path / "text.txt"
    text.write_text("funny funnier funniest dull duller dullest a film\n" * 20)
    made = heedful.build("bilstm", vocab=120, dim=8, layers=1, head="classify", labels=2, seed=0)
    made.tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=120, lower=True)
    return made


def test_grams_mark_the_ends_of_a_word() -> None:
    assert grams("cat") == ["<ca", "cat", "at>", "<cat", "cat>", "<cat>"]
    assert grams("##ing", [3]) == ["ing", "ng>"]
    assert grams("") == []


def test_every_row_of_the_spelling_is_a_mean() -> None:
    rows = spelling(["cat", "", "funny"], 50).to_dense()
    assert rows.sum(1).tolist() == pytest.approx([1.0, 0.0, 1.0])


def test_the_table_is_its_own_rows_and_the_mean_of_its_grams(model: Model) -> None:
    table = model.tables["tokens"].token
    own = table.weight.detach().clone()
    with spell_embedding(model, buckets=64, std=0.1):
        part = table.parametrizations.weight[0]
        shares, shared = part.shares.to_dense(), part.grams.detach().clone()
        assert table.weight.allclose(own + shares @ shared, atol=1e-6)
    assert isinstance(model.tables["tokens"].table, torch.nn.Parameter)
    assert table.weight.allclose(own + shares @ shared, atol=1e-6)
    roles = [model.tokenizer.backend.token_to_id(role) for role in model.tokenizer.roles.values()]
    assert table.weight[roles].equal(own[roles])


def test_what_one_word_learns_moves_those_spelt_alike_and_no_others(model: Model) -> None:
    table, number = model.tables["tokens"].token, model.tokenizer.backend.token_to_id
    with spell_embedding(model, buckets=100_003):
        before = table.weight.detach().clone()
        loss = table.weight[number("funniest")].sum()
        loss.backward()
        part = table.parametrizations.weight[0]
        with torch.no_grad():
            part.grams -= part.grams.grad
        moved = (table.weight.detach() - before).abs().sum(1)
    assert moved[number("funny")] > 0
    assert moved[number("film")] == 0


def test_the_trained_model_is_saved_and_loaded_like_any_other(model: Model, tmp_path: Path) -> None:
    tokens = torch.tensor([model.tokenizer.encode("a funny film")])
    with spell_embedding(model):
        while_it_lasts = model.eval()(tokens)
    heedful.save(model, tmp_path / "saved")
    again = heedful.load(tmp_path / "saved")
    assert again.eval()(tokens).allclose(while_it_lasts, atol=1e-6)


def test_a_tokenizer_of_another_model_is_refused(model: Model) -> None:
    small = heedful.build("bilstm", vocab=5, dim=8, layers=1, head="classify", labels=2, seed=0)
    small.tokenizer = model.tokenizer
    with pytest.raises(ConfigError, match="its own tokenizer"), spell_embedding(small):
        pass


def tied(model: Model) -> Model:
    made = heedful.build("gpt2", vocab=120, dim=8, layers=1, heads=2, context=8, seed=0)
    made.tokenizer = model.tokenizer
    return made


def voiceless(model: Model) -> Model:
    model.tokenizer = None
    return model


@pytest.mark.parametrize(
    ("made", "settings", "said"),
    [
        (tied, {}, "the head of this model shares its table"),
        (voiceless, {}, "no tokenizer"),
        (lambda model: model, {"buckets": 0}, "buckets=0"),
    ],
)
def test_a_table_that_cannot_be_learnt_so_is_refused(
    model: Model, made: Callable[[Model], Model], settings: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), spell_embedding(made(model), **settings):
        pass


def test_a_table_is_learnt_by_its_spelling_once(model: Model) -> None:
    with spell_embedding(model), pytest.raises(ConfigError, match="already"), spell_embedding(model):
        pass


def test_a_run_with_a_folder_is_refused_before_its_first_step(model: Model, tmp_path: Path) -> None:
    table = tmp_path / "rows.tsv"
    table.write_text("text\tlabel\n" + "a funny film\tgood\na dull film\tbad\n" * 4)
    batches = heedful.data.classify(table, model.tokenizer, batch=4, length=8)
    config = heedful.TrainConfig(steps=2, folder=tmp_path / "run")
    with spell_embedding(model), pytest.raises(ConfigError, match="folder=None"):
        next(heedful.fit(model, "classify", batches, config))
