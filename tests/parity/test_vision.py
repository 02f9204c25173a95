"""Image to text beside `transformers`: VisionEncoderDecoderModel at tiny sizes, of several parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.nn.init import initialise
from heedful.weights.loading import assemble
from tests.parity import harness
from tests.parity.harness import load_and_save

transformers = pytest.importorskip("transformers")

ENCODER = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip
TROCR = {
    "vocab_size": 99, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "max_position_embeddings": 32, "cross_attention_hidden_size": 24,
}  # fmt: skip
GPT2 = {
    "vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32,
    "bos_token_id": 7, "eos_token_id": 2,
}  # fmt: skip
# The encoder's class and values, the decoder's class and values.
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "trocr-base": ("ViT", {"qkv_bias": False}, "TrOCR", {}),
    "trocr-small": (
        "DeiT", {}, "TrOCR",
        {"activation_function": "relu", "scale_embedding": True, "tie_word_embeddings": False},
    ),
    "trocr-large-printed": (
        "ViT", {"qkv_bias": False}, "TrOCR",
        {"activation_function": "relu", "scale_embedding": True, "use_learned_position_embeddings": False,
         "layernorm_embedding": False, "tie_word_embeddings": False},
    ),
    "trocr-projected": ("ViT", {}, "TrOCR", {"cross_attention_hidden_size": None}),
    "trocr-wide-image": ("ViT", {"image_size": [8, 32], "num_channels": 1}, "TrOCR", {}),
    "vit-gpt2": ("ViT", {}, "GPT2", {}),
    "deit-gpt2-projected": ("DeiT", {"hidden_act": "relu"}, "GPT2", {"n_embd": 32, "n_inner": 40}),
}  # fmt: skip


def publish(case: str, folder: Path) -> Any:
    """Save a random published model and return it."""
    encoder, encoder_values, decoder, decoder_values = CASES[case]
    torch.manual_seed(0)
    values = {"ViT": ENCODER, "DeiT": ENCODER, "TrOCR": TROCR, "GPT2": GPT2}
    configs = [
        getattr(transformers, f"{kind}Config")(**{**values[kind], **changes})
        for kind, changes in ((encoder, encoder_values), (decoder, decoder_values))
    ]
    configs[1].add_cross_attention = configs[1].is_decoder = True
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    model.generation_config.decoder_start_token_id = 7
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    return model


def open_there(folder: Path) -> Any:
    """Open a folder by `transformers`, every tensor in its place."""
    model = harness.open_there("VisionEncoderDecoderModel", folder)
    if not getattr(model.config.decoder, "use_learned_position_embeddings", True):
        sines = model.decoder.model.decoder.embed_positions  # from_pretrained leaves them without values
        sines.weights = sines.get_embedding(*sines.weights.shape, sines.padding_idx)
    return model


def random_inputs(model: heedful.Model, batch: int = 2, length: int = 9) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    c: Any = model.config
    pixels = torch.randn(batch, c.channels, c.height, c.width, generator=draw)
    return pixels, torch.randint(3, c.vocab, (batch, length), generator=draw)


@pytest.fixture(scope="module", params=CASES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("published")
    return publish(request.param, folder), folder


@torch.no_grad()
def test_logits_and_patterns_equal_the_published_implementation(published: tuple[Any, Path]) -> None:
    reference, folder = published
    model = heedful.load(folder)
    pixels, target = random_inputs(model)
    reference.set_attn_implementation("eager")
    expected = reference(pixels, decoder_input_ids=target, output_attentions=True)
    watch = heedful.Watch("*.pattern")
    assert (model(pixels, target) - expected.logits).abs().max() <= 1e-4
    model(pixels, target, watch=watch)
    names = {"encoder.*.attn": "encoder_attentions", "decoder.*.attn": "decoder_attentions"}
    for name, key in (names | {"decoder.*.cross": "cross_attentions"}).items():
        for layer, attention in enumerate(expected[key]):
            assert (watch[f"{name.replace('*', str(layer))}.pattern"] - attention).abs().max() <= 1e-5, name


@torch.no_grad()
def test_cached_steps_equal_one_pass(published: tuple[Any, Path]) -> None:
    model = heedful.load(published[1])
    pixels, target = random_inputs(model)
    target[:, 0] = model.start_token
    whole, state = model(pixels, target), model.start(pixels)
    assert (state.logits - whole[:, 0]).abs().max() <= 1e-4
    for t in range(1, target.shape[1]):
        assert (model.step(target[:, t : t + 1], state)[:, -1] - whole[:, t]).abs().max() <= 1e-4, t


def test_what_is_written_equals_generate_there(published: tuple[Any, Path]) -> None:
    reference, folder = published
    model = heedful.load(folder)
    assert model.start_token == 7
    pixels, _ = random_inputs(model, batch=3)
    there = reference.generate(pixels, max_new_tokens=12, do_sample=False, num_beams=1)
    for theirs, ours in zip(there.tolist(), heedful.generate(model, pixels, max_tokens=12), strict=True):
        written = theirs[1:]
        assert ours == (written[: written.index(2)] if 2 in written else written)


def test_load_then_save_gives_back_every_tensor_and_opens_there(
    published: tuple[Any, Path], tmp_path: Path
) -> None:
    reference, folder = published
    model = load_and_save(folder, tmp_path)
    pixels, target = random_inputs(model)
    again = open_there(tmp_path)
    with torch.no_grad():
        expected, got = (m(pixels, decoder_input_ids=target).logits for m in (reference, again))
    assert (got - expected).abs().max() <= 1e-5
    own = {"dtype", "n_inner"}  # which theirs leaves open
    for part in ("encoder", "decoder"):
        expected, got = (getattr(m.config, part).to_dict() for m in (reference, again))
        assert {k: v for k, v in got.items() if k not in own} == {
            k: v for k, v in expected.items() if k not in own
        }


def test_what_is_built_here_opens_there(published: tuple[Any, Path], tmp_path: Path) -> None:
    loaded = heedful.load(published[1])
    model = assemble(loaded.family, loaded.config).eval()
    initialise(model)
    heedful.save(model, tmp_path)
    there = open_there(tmp_path)
    pixels, target = random_inputs(model)
    with torch.no_grad():
        expected = there(pixels, decoder_input_ids=target).logits
        assert (model(pixels, target) - expected).abs().max() <= 1e-4
