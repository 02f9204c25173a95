"""Training as a user writes it."""

from __future__ import annotations

from pathlib import Path

import torch

import heedful
from tests.train import toys


def test_from_a_text_file_to_a_model_that_goes_on(tmp_path: Path, files: dict[str, Path]) -> None:
    tokenizer = heedful.train_tokenizer("bpe", [files["text"]], vocab=300)
    batches = heedful.data.text(files["text"], tokenizer, length=16, batch=4, seed=0)
    model = heedful.build("llama", layers=1, dim=32, heads=2, vocab=len(tokenizer), context=32, seed=0)
    model.tokenizer = tokenizer
    for steps in (3, 5):
        config = heedful.TrainConfig(
            steps=steps, lr=3e-3, schedule="constant", folder=tmp_path / "a", resume=True
        )
        seen = list(heedful.fit(model, "next_token", batches, config))
    assert [step.number for step in seen] == [4, 5]
    assert all(step.tokens_per_second > 0 and step.loss > 0 and step.lr == 3e-3 for step in seen)
    loaded = heedful.load(tmp_path / "a" / "checkpoints" / "step-000005")
    assert loaded.tokenizer.encode("ann sees") == tokenizer.encode("ann sees")
    heedful.lora(model, rank=8)
    heedful.merge(model)


def test_bfloat16_products_leave_the_weights_in_float32(files: dict[str, Path]) -> None:
    model = toys.tiny("gpt2")
    config = heedful.TrainConfig(steps=20, lr=1e-2, dtype="bfloat16", schedule="constant")
    losses = [
        step.loss for step in heedful.fit(model, "next_token", toys.batches_of("next_token", files), config)
    ]
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_terms_of_an_objective_are_shown_apart(files: dict[str, Path]) -> None:
    model = toys.model_of("masked_and_next")
    config = heedful.TrainConfig(steps=1, accumulate=2)
    (step,) = heedful.fit(model, "masked_and_next", toys.batches_of("masked_and_next", files), config)
    assert step.terms.keys() == {"masked", "next"}
    assert abs(sum(step.terms.values()) - step.loss) < 1e-4
