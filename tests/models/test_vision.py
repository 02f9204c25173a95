"""What must hold of a model that reads images: training, saving, watching, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.core.errors import ConfigError, InputError, NotFound
from heedful.interp.gradients import gradient_by_distance
from heedful.interp.inputs import reading
from heedful.models import MEDIA_FAMILIES, by_model_type, find_config
from heedful.models.base import Seq2Seq
from heedful.nn.context import Watch
from tests.image_toy import images, reader
from tests.refusal import refused

TINY = MEDIA_FAMILIES["vision-encoder-decoder"].tiny
DECODERS = ("trocr", "gpt2")


def tiny(decoder: str, seed: int = 0) -> Seq2Seq:
    sizes = {name: getattr(TINY, name) for name in TINY.__dict__["given"]} | {
        "decoder": decoder,
        "dropout": 0.0,
    }
    model = heedful.build("vision-encoder-decoder", seed=seed, **sizes)
    assert isinstance(model, Seq2Seq)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def pixels(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_a_batch_is_its_rows_and_the_future_stays_unseen(decoder: str) -> None:
    model, source = tiny(decoder), pixels()
    target = torch.randint(5, 128, (2, 9))
    whole = model(source, target)
    assert (
        whole - torch.cat([model(source[i : i + 1], target[i : i + 1]) for i in (0, 1)])
    ).abs().max() <= 1e-5
    target[:, 6:] = 7
    assert torch.equal(model(source, target)[:, :6], whole[:, :6])
    assert (model(source.flip(-1), target)[:, :6] - whole[:, :6]).abs().max() > 1e-3


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_image_batch_can_be_overfitted(decoder: str) -> None:
    model, source, target = tiny(decoder).train(), pixels(4), torch.randint(5, 128, (4, 6))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_saving_and_loading_keeps_every_value(decoder: str, tmp_path: Path) -> None:
    model, source, target = tiny(decoder), pixels(), torch.randint(5, 128, (2, 4))
    again = heedful.load(heedful.save(model, tmp_path))
    assert again.config == model.config
    assert again.image_processor == model.image_processor
    assert torch.equal(again(source, target), model(source, target))


@torch.no_grad()
def test_watching_changes_nothing_and_every_name_has_a_shape() -> None:
    model, source, target = tiny("trocr"), pixels(), torch.randint(5, 128, (2, 4))
    watch = Watch("*")
    assert (model(source, target, watch=watch) - model(source, target)).abs().max() <= 1e-5
    shapes = model.names()
    assert set(shapes) == set(watch)
    assert shapes["decoder.1.cross.pattern"] == ("B", 4, "T", 9)  # eight patches and the class token
    assert shapes["encoder.0.attn.pattern"] == ("B", 3, 9, 9)


def test_beams_and_samples_start_from_the_same_image(tmp_path: Path) -> None:
    model = reader(tmp_path)
    image = torch.randn(1, 1, 16, 32)
    assert len(heedful.generate(model, image[0], beams=3, n=3, max_tokens=5)) == 3
    drawn = heedful.generate(model, image, n=2, temperature=1.0, seed=0, max_tokens=5)
    assert len(drawn) == 1
    assert len(drawn[0]) == 2
    assert isinstance(heedful.generate(model, image[0], max_tokens=3), str)


def test_words_for_an_image_are_refused(tmp_path: Path) -> None:
    model = reader(tmp_path)
    with refused(InputError, "this model reads images", hint="image_processor"):
        model(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))
    with refused(InputError, "needs a target"):
        model(torch.zeros(1, 1, 16, 32))
    with refused(InputError, "no padding"):
        model.encode(torch.zeros(1, 1, 16, 32), valid=torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("part", "kind"), [("encoder", "swin"), ("decoder", "bert"), ("encoder", None), ("decoder", "trocr-2")]
)
def test_parts_that_are_not_built_here_are_named(part: str, kind: str | None, tmp_path: Path) -> None:
    heedful.save(tiny("trocr"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config[part]["model_type"] = kind
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused(ConfigError, f'{part} with "model_type": {kind!r}', hint="built here"):
        heedful.load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"decoder": "bert"}, {"first": 3}, {"patch": 5}, {"encoder_heads": 5}, {"memory_dim": 7},
     {"decoder": "gpt2", "embed_norm": True}, {"norm_eps": 1e-3}],
)  # fmt: skip
def test_values_that_do_not_go_together_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MEDIA_FAMILIES["vision-encoder-decoder"].build(TINY.change(**wrong))


def test_published_sizes_have_the_parameters_that_are_said_of_them() -> None:
    # 333 M and 239 M by the model pages of TrOCR and of the captions; the pooler is in both files.
    assert heedful.count("trocr-base-printed").parameters == pytest.approx(333.9e6, rel=0.005)
    assert heedful.count("vit-gpt2-image-captioning").parameters == pytest.approx(239.2e6, rel=0.005)


def test_matrices_are_counted_once() -> None:
    found = heedful.count(TINY)
    patches, matrices = 24 * 3 * 16, found.matrices
    assert found.components["embed.token"] == patches + 24
    model = tiny("trocr")
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    per_head = 2 * (3 * 3 - 3) + 4 * (3 * 4 - 3)  # a query, key and value matrix for every head
    assert matrices == len(linear) + 1 + per_head  # and the one table of text


def test_a_server_of_texts_refuses_it(tmp_path: Path) -> None:
    served_model = pytest.importorskip("heedful.serve.openai_server")
    with refused(InputError, "digits reads images", hint="heed read"):
        served_model.make_served_model("digits", reader(tmp_path))


@torch.no_grad()
def test_a_quantised_reader_reads_the_same(tmp_path: Path) -> None:
    model = reader(tmp_path)
    image = torch.randn(1, 1, 16, 32, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[model.start_token, 5, 6]])
    heedful.save(heedful.quantize(model, "int8"), tmp_path / "small", quantized=True)
    again = heedful.load(tmp_path / "small")
    assert (again(image, target) - model(image, target)).abs().max() <= 0.05 * model(
        image, target
    ).abs().max()


@pytest.mark.parametrize("name", ["vision-encoder-decoder", "trocr-base-printed"])
def test_training_on_text_refuses_it(name: str) -> None:
    from heedful.train.recipes.recipes import family_recipe

    with refused(NotFound, name, "models of images or sound", hint="image_text"):
        family_recipe(name)


def test_it_is_found_by_its_names() -> None:
    assert by_model_type("vision-encoder-decoder").name == "vision-encoder-decoder"
    assert find_config("trocr-base-printed")[1].dim == 1024


def test_the_gradient_reaches_every_vector_of_an_image(tmp_path: Path) -> None:
    model = reader(tmp_path)
    found = gradient_by_distance(model, reading(model, images(tmp_path)[0]))
    assert len(found.norms) == model.embed.count
    assert all(norm > 0 for norm in found.norms)
