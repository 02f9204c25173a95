"""The tuned lens begins as the logit lens and comes nearer to the model's own prediction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.interp.learn.dictionary import save_module
from heedful.interp.observe.lens import (
    FORMAT,
    TunedLens,
    lens_divergence,
    load_tuned_lens,
    logit_lens,
    train_tuned_lens,
    tuned_lens,
)
from tests.properties.tiny import DECODERS, SEQ2SEQS, by_kinds, tiny

TEXTS = torch.randint(5, 30, (12, 10), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("family", by_kinds([*DECODERS, *SEQ2SEQS]))
def test_an_untrained_lens_is_the_logit_lens(family: str) -> None:
    model, theirs = tiny(family), logit_lens(tiny(family), TEXTS[0])
    if len(theirs.layers) == 1:
        with pytest.raises(InputError, match="as wide as its last"):
            train_tuned_lens(model, TEXTS[:1], steps=0)
        return
    mine = tuned_lens(model, TEXTS[0], train_tuned_lens(model, TEXTS[:1], steps=0))
    assert mine.layers == theirs.layers
    torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "mamba", "t5"])
def test_training_brings_every_layer_nearer_to_the_last(family: str) -> None:
    model = tiny(family, layers=3) if family != "t5" else tiny(family)
    before = {name: p.clone() for name, p in model.named_parameters()}
    lens = train_tuned_lens(model, TEXTS, steps=25, learning_rate=1e-2)
    gap = lambda found: lens_divergence(found).mean(1)[:-1]
    assert bool((gap(tuned_lens(model, TEXTS[0], lens)) < gap(logit_lens(model, TEXTS[0]))).all())
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_a_lens_comes_back_from_its_file_and_only_fits_its_model(tmp_path: Path) -> None:
    model = tiny("gpt2")
    lens = train_tuned_lens(model, TEXTS, steps=2)
    again = load_tuned_lens(lens.save(tmp_path / "lens.safetensors"))
    assert torch.equal(tuned_lens(model, TEXTS[0], again).logits, tuned_lens(model, TEXTS[0], lens).logits)
    with pytest.raises(InputError, match="trained on"):
        tuned_lens(tiny("gpt2", layers=3), TEXTS[0], lens)
    with pytest.raises(NotFound):
        load_tuned_lens(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptFile):
        load_tuned_lens(tmp_path / "bad.safetensors")


def test_an_encoder_has_no_tuned_lens() -> None:
    with pytest.raises(InputError, match="next token"):
        train_tuned_lens(tiny("bert"), TEXTS)


def test_a_lens_whose_parts_do_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    lens = TunedLens(["blocks.0.output"], 4)
    for settings in ({"names": ["a", "b"], "dim": 4}, {"names": ["a"], "width": 4}, []):
        save_module(lens, tmp_path / "odd.safetensors", FORMAT, settings)
        with pytest.raises(CorruptFile) as caught:
            load_tuned_lens(tmp_path / "odd.safetensors")
        assert "TunedLens.save" in str(caught.value.hint)
