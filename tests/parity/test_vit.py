"""ViT and DeiT beside `transformers`: logits, hidden states and patterns of random images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError, InputError
from heedful.interp.gradients import gradient_by_distance
from heedful.interp.inputs import reading
from heedful.interp.observe.attention import head_scores
from heedful.models import MEDIA_FAMILIES
from heedful.nn.init import initialise
from heedful.weights.loading import assemble
from tests.parity.harness import load_and_save, open_there
from tests.parity.test_vision import ENCODER
from tests.refusal import refused

transformers = pytest.importorskip("transformers")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit-classify": ("ViTForImageClassification", {"num_labels": 5}),
    "vit-wide": (
        "ViTForImageClassification",
        {"image_size": [8, 32], "num_channels": 1, "qkv_bias": False, "hidden_act": "relu", "num_labels": 3},
    ),
    "vit-pooled": ("ViTModel", {"layer_norm_eps": 1e-6}),
    "deit-classify": ("DeiTForImageClassification", {"num_labels": 5}),
    "deit-pooled": ("DeiTModel", {"hidden_act": "gelu_new", "image_size": [16, 24]}),
}


TINY: dict[str, Any] = dict(height=8, patch=4, dim=24, heads=3, layers=1)


@pytest.fixture(scope="module", params=CASES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    architecture, values = CASES[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture[:4].removesuffix('F').removesuffix('M')}Config")
    model = getattr(transformers, architecture)(config(**ENCODER | values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    folder = tmp_path_factory.mktemp("published")
    model.save_pretrained(folder)
    return model, folder


def pixels(model: Any) -> torch.Tensor:
    c = model.config
    return torch.randn(2, c.channels, c.height, c.width, generator=torch.Generator().manual_seed(3))


def answer(model: Any, images: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model.encode(images) if model.config.head == "none" else model(images)
    return found


@torch.no_grad()
def test_answers_and_patterns_equal_the_published_implementation(published: tuple[Any, Path]) -> None:
    reference, folder = published
    model = heedful.load(folder)
    reference.set_attn_implementation("eager")
    expected, watch = reference(pixels(model), output_attentions=True), heedful.Watch("*.pattern")
    assert (answer(model, pixels(model)) - expected[0]).abs().max() <= 1e-4
    model.encode(pixels(model), watch=watch)
    for layer, attention in enumerate(expected.attentions):
        assert (watch[f"blocks.{layer}.attn.pattern"] - attention).abs().max() <= 1e-5


@torch.no_grad()
def test_load_then_save_gives_back_every_tensor_and_opens_there(
    published: tuple[Any, Path], tmp_path: Path
) -> None:
    reference, folder = published
    model = load_and_save(folder, tmp_path)
    again = open_there(type(reference).__name__, tmp_path)
    assert (again(pixels(model))[0] - reference(pixels(model))[0]).abs().max() <= 1e-5
    beside = {key: getattr(again.config, key) for key in ("architectures", "_name_or_path")}
    assert again.config.to_dict() == reference.config.to_dict() | beside


@torch.no_grad()
def test_what_is_built_here_opens_there(published: tuple[Any, Path], tmp_path: Path) -> None:
    reference, folder = published
    loaded = heedful.load(folder)
    model = assemble(loaded.family, loaded.config).eval()
    initialise(model)
    heedful.save(model, tmp_path)
    there = open_there(type(reference).__name__, tmp_path)
    assert (answer(model, pixels(model)) - there(pixels(model))[0]).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_a_batch_of_images_is_its_rows_and_can_be_learnt(family: str) -> None:
    model = assemble(MEDIA_FAMILIES[family], MEDIA_FAMILIES[family].tiny)
    initialise(model)
    images = pixels(model)
    rows = torch.cat([model(images[i : i + 1]) for i in (0, 1)])
    assert (model(images) - rows).abs().max() <= 1e-5
    optimiser, labels = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.tensor([1, 4])
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())


@torch.no_grad()
def test_watching_changes_nothing_and_every_name_has_a_shape() -> None:
    model = heedful.build("vit", height=8, width=16, patch=4, dim=24, heads=3, layers=2, labels=5).eval()
    images, watch = pixels(model), heedful.Watch("*")
    assert (model(images, watch=watch) - model(images)).abs().max() <= 1e-5
    shapes = model.names()
    assert set(shapes) == set(watch)
    assert shapes["blocks.1.attn.pattern"] == ("B", 3, 9, 9)  # eight patches and the class token
    assert shapes["head.logits"] == ("B", 5)


def test_attention_to_an_image_is_drawn_and_its_heads_are_scored() -> None:
    model = heedful.build("vit", height=8, width=16, patch=4, dim=24, heads=3, layers=2, labels=5)
    image = pixels(model)[:1]
    assert heedful.view.attention(model, image).kind
    scores = head_scores(model, image)
    assert len(scores) == 6
    assert all(score.induction is None and score.entropy > 0 for score in scores)
    with refused(InputError, "random tokens", hint="image"):
        gradient_by_distance(model)
    assert len(gradient_by_distance(model, reading(model, image)).norms) == 9


def test_what_cannot_be_read_is_refused() -> None:
    model = heedful.build("vit", **TINY)
    with refused(InputError, "this model reads images", hint="image_processor"):
        model(torch.zeros(1, 4, dtype=torch.long))
    with refused(InputError, "no padding"):
        model(pixels(model), valid=torch.ones(2, 5, dtype=torch.bool))
    with refused(InputError, "no task", hint="model(pixels)"):
        heedful.pipeline(model=heedful.build("vit", **TINY, head="none"))
    for wrong in ({"vocab": 9}, {"first": 3}, {"heads": 5}):
        with pytest.raises(ConfigError):
            heedful.build("vit", layers=1, **wrong)


def test_published_sizes_have_the_parameters_that_are_said_of_them() -> None:
    # With the classifier of ImageNet's thousand classes. The first two are in the tables of torchvision.
    # The third follows from the first by its longer table of positions.
    for name, size in (
        ("vit-base-patch16-224", 86_567_656), ("vit-large-patch16-224", 304_326_632),
        ("vit-base-patch16-384", 86_859_496),
    ):  # fmt: skip
        with torch.device("meta"):
            model = heedful.build(name, device="meta")
        assert sum(p.numel() for p in model.parameters()) == size
