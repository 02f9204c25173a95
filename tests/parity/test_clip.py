"""CLIP and its two encoders beside `transformers`: vectors, logits and patterns of texts and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError
from heedful.models.base import DualEncoder
from heedful.nn.init import initialise
from heedful.weights.loading import assemble
from tests.parity.harness import load_and_save, open_there
from tests.refusal import refused

transformers = pytest.importorskip("transformers")

START, END = 97, 98
TEXT = {
    "vocab_size": 99, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 3, "max_position_embeddings": 16, "projection_dim": 20,
    "bos_token_id": START, "eos_token_id": END,
}  # fmt: skip
IMAGE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 8, "projection_dim": 20,
}  # fmt: skip
EARLY = {"eos_token_id": 2, "bos_token_id": 0}  # in the first files; the text ends at its highest id
GRAY = {"patch_size": 4, "num_channels": 1, "hidden_act": "gelu"}
# The class, the values of the text encoder, those of the image encoder.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "text": ("CLIPTextModelWithProjection", {}, {}),
    "text-early": ("CLIPTextModelWithProjection", {**EARLY, "projection_dim": 17}, {}),
    "text-bare": ("CLIPTextModel", {"hidden_act": "gelu", "layer_norm_eps": 1e-3}, {}),
    "image": ("CLIPVisionModelWithProjection", {}, {}),
    "image-gray": ("CLIPVisionModelWithProjection", {}, GRAY),
    "image-bare": ("CLIPVisionModel", {}, {"layer_norm_eps": 1e-3}),
    "clip": ("CLIPModel", {}, {}),
    "clip-early": ("CLIPModel", EARLY, {}),
    "clip-gray": ("CLIPModel", {"hidden_act": "gelu"}, GRAY),
}


@pytest.fixture(scope="module", params=CASES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    architecture, text, image = CASES[request.param]
    configs = {"Text": TEXT | text, "Vision": IMAGE | image}
    kind = next((kind for kind in configs if kind in architecture), "")
    if kind:
        config = getattr(transformers, f"CLIP{kind}Config")(**configs[kind])
    else:
        parts = {"text_config": configs["Text"], "vision_config": configs["Vision"]}
        config = transformers.CLIPConfig(**parts, projection_dim=20)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("published")
    model.save_pretrained(folder)
    return model, folder


def texts() -> tuple[Tensor, Tensor]:
    """Three texts with their ends, padded on the right with the end token, as CLIP's tokenizer does."""
    rows = [[START, 5, 61, 8, 30, END], [START, 7, END], [START, 44, 3, END]]
    tokens = torch.tensor([row + [END] * (6 - len(row)) for row in rows])
    return tokens, torch.tensor([[i < len(row) for i in range(6)] for row in rows])


def images(model: Any) -> Tensor:
    embed = model.image.embed if isinstance(model, DualEncoder) else model.embed
    return torch.randn(2, embed.channels, *embed.image, generator=torch.Generator().manual_seed(3))


def ours(model: Any, **more: Any) -> Tensor:
    """Return what a model gives for the texts, the images, or both: a vector or a logit each."""
    tokens, valid = texts()
    if isinstance(model, DualEncoder):
        return model(tokens, images(model), valid=valid, **more)
    inputs = {"tokens": tokens, "valid": valid} if model.tables["tokens"].vocab else {"tokens": images(model)}
    return (model.encode if model.config.head == "none" else model)(**inputs, **more)


def theirs(reference: Any, model: Any, **more: Any) -> Any:
    """Return their answer to the same."""
    tokens, valid = texts()
    read: dict[str, Any] = {"input_ids": tokens, "attention_mask": valid.long()}
    read = read if model.tables["tokens"].vocab else {}
    if model.image_processor is not None:
        read["pixel_values"] = images(model)
    return reference(**read, **more)


def vectors(answer: Any) -> Tensor:
    """Return what `ours` gives, of their answer."""
    names = ("logits_per_image", "text_embeds", "image_embeds", "last_hidden_state")
    return next(answer[name] for name in names if name in answer)


def difference(model: Any, a: Tensor, b: Tensor) -> float:
    """Return the largest difference, where no text is padding."""
    if model.config.head == "none" and model.tables["tokens"].vocab:
        a, b = (x[texts()[1]] for x in (a, b))
    return float((a - b).abs().max())


@torch.no_grad()
def test_answers_and_patterns_equal_the_published_implementation(published: tuple[Any, Path]) -> None:
    reference, folder = published
    model, watch = heedful.load(folder), heedful.Watch("*.pattern")
    answer = theirs(reference, model, output_attentions=True)
    assert difference(model, ours(model), vectors(answer)) <= 1e-4
    ours(model, watch=watch)
    parts = (
        {"text.": answer.text_model_output, "image.": answer.vision_model_output}
        if "logits_per_image" in answer
        else {"": answer}
    )
    for prefix, part in parts.items():
        for layer, attention in enumerate(part.attentions):
            both = torch.stack((watch[f"{prefix}blocks.{layer}.attn.pattern"], attention))
            a, b = both[:, texts()[1][:, None].expand(both.shape[1:4])] if len(attention) == 3 else both
            assert (a - b).abs().max() <= 1e-5  # of padding theirs has rows that nobody reads


@torch.no_grad()
def test_load_then_save_gives_back_every_tensor_and_opens_there(
    published: tuple[Any, Path], tmp_path: Path
) -> None:
    reference, folder = published
    model = load_and_save(folder, tmp_path)
    again = open_there(type(reference).__name__, tmp_path)
    assert difference(model, vectors(theirs(again, model)), vectors(theirs(reference, model))) <= 1e-5
    beside = {key: getattr(again.config, key) for key in ("architectures", "_name_or_path")}
    first = open_there(type(reference).__name__, folder)
    assert again.config.to_dict() == first.config.to_dict() | beside


@torch.no_grad()
def test_what_is_built_here_opens_there(published: tuple[Any, Path], tmp_path: Path) -> None:
    reference, folder = published
    loaded = heedful.load(folder)
    model = assemble(loaded.family, loaded.config).eval()
    initialise(model)
    heedful.save(model, tmp_path)
    there = open_there(type(reference).__name__, tmp_path)
    assert difference(model, ours(model), vectors(theirs(there, model))) <= 1e-4
    assert heedful.load(tmp_path).config == model.config
    assert heedful.load(tmp_path).image_processor == model.image_processor


TINY: dict[str, Any] = dict(
    vocab=99, dim=24, heads=3, layers=2, context=16, project_dim=20, height=8, width=16, patch=4,
    image_dim=24, image_layers=2, image_heads=3, seed=0,
)  # fmt: skip


@torch.no_grad()
def test_watching_changes_nothing_and_the_names_of_both_encoders_are_apart() -> None:
    model = heedful.build("clip", **TINY).eval()
    watch, image = heedful.Watch("*"), heedful.Watch("image.blocks.1.attn.pattern")
    assert (ours(model, watch=watch) - ours(model)).abs().max() <= 1e-5
    shapes = model.names()
    assert set(shapes) == set(watch)
    assert shapes["image.blocks.1.attn.pattern"] == ("B", 3, 9, 9)  # eight patches and the class token
    assert shapes["text.blocks.0.attn.pattern"] == ("B", 3, "T", "T")
    assert shapes["head.logits"] == ("B", "B")
    ours(model, watch=image)
    assert torch.equal(image["image.blocks.1.attn.pattern"], watch["image.blocks.1.attn.pattern"])
    off = heedful.Watch(edit={"text.blocks.0.attn.output": torch.zeros_like})
    assert (ours(model, watch=off) - ours(model)).abs().max() > 1e-4


@torch.no_grad()
def test_each_encoder_is_a_model_of_its_own(tmp_path: Path) -> None:
    model = heedful.build("clip", **TINY).eval()
    tokens, valid = texts()
    for part in (model.text, model.image):
        again = heedful.load(heedful.save(part, tmp_path / part.family.name))
        assert again.config == part.config
        inputs = {"tokens": tokens, "valid": valid} if part is model.text else {"tokens": images(model)}
        assert torch.equal(again(**inputs), part(**inputs))
    assert heedful.view.attention(model.image, images(model)[:1]).data["patterns"]
    assert heedful.view.attention(model.text, tokens[:1]).data["patterns"]


def test_padding_and_what_follows_the_end_change_no_text() -> None:
    model = heedful.build("clip-text-model", vocab=99, dim=24, heads=3, layers=2, context=16, seed=0).eval()
    row = torch.tensor([[START, 5, 61, END]])
    alone = model(row)
    more = torch.cat((row, torch.tensor([[END, 7]])), 1)
    assert torch.allclose(model(more), alone, atol=1e-6)
    valid = torch.tensor([[False, True, True, True, True]])
    assert torch.allclose(model(torch.cat((row[:, :1], row), 1), valid=valid), alone, atol=1e-6)


def test_pairs_can_be_learnt() -> None:
    model = heedful.build("clip", **TINY)
    tokens, valid = texts()
    pixels = torch.randn(3, 3, 8, 16, generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(80):
        logits = model(tokens, pixels, valid=valid)
        loss = sum(torch.nn.functional.cross_entropy(each, torch.arange(3)) for each in (logits, logits.T))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_published_sizes_have_the_parameters_that_are_said_of_them() -> None:
    # By the list of KerasHub's presets, and by the models' records of the benchmark MTEB.
    for name, size in (
        ("clip-vit-base-patch32", 151_277_313), ("clip-vit-base-patch16", 149_620_737),
        ("clip-vit-large-patch14", 427_616_513), ("clip-vit-large-patch14-336", 427_944_193),
    ):  # fmt: skip
        assert heedful.count(name).parameters == size


def test_a_config_of_an_early_file_is_read(tmp_path: Path) -> None:
    heedful.save(heedful.build("clip", **TINY | {"width": 8}), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    early = config | {
        "text_config_dict": config["text_config"], "vision_config_dict": config["vision_config"],
        "text_config": {}, "vision_config": {},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(early))
    assert heedful.load(tmp_path).config.image_dim == 24
    (tmp_path / "config.json").write_text(json.dumps(config | {"text_config": {"hidden_size": "wide"}}))
    with refused(ConfigError, "text_config hidden_size"):
        heedful.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("clip", {"head": "none"}), ("clip", {"patch": 5}), ("clip-vision-model", {"first": 2}),
     ("clip-vision-model", {"bias": False}), ("clip-text-model", {"heads": 5})],
)  # fmt: skip
def test_values_that_do_not_go_together_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        heedful.build(name, **wrong)
