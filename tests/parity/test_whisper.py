"""Whisper beside `transformers`: features of sound, logits, patterns, what is written, and the way back."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import InputError, NotFound
from heedful.core.sound import SoundProcessor, mel_filters
from heedful.models import MEDIA_FAMILIES
from heedful.weights.loading import assemble
from tests.parity.harness import load_and_save, open_there
from tests.refusal import refused

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 99, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "num_mel_bins": 8,
    "max_source_positions": 12, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "begin_suppress_tokens": None,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "uneven": {
        "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 6,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 56,
    },
    "relu-and-more-bands": {"activation_function": "relu", "num_mel_bins": 16, "max_source_positions": 9},
}  # fmt: skip
RULES = {
    "lang_to_id": {"<|en|>": 50, "<|de|>": 51}, "task_to_id": {"transcribe": 60, "translate": 61},
    "no_timestamps_token_id": 70,
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**SIZES, **CASES[request.param]}, attn_implementation="eager")
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    return model, folder


def inputs(model: Any) -> tuple[Tensor, Tensor]:
    draw, c = torch.Generator().manual_seed(3), model.config
    return torch.randn(2, c.bands, 2 * c.source_context, generator=draw), torch.randint(
        3, c.vocab, (2, 7), generator=draw
    )


@torch.no_grad()
def test_logits_and_patterns_equal_the_published_implementation(published: tuple[Any, Path]) -> None:
    reference, model = published[0], heedful.load(published[1])
    bands, target = inputs(model)
    expected = reference(bands, decoder_input_ids=target, output_attentions=True)
    assert (model(bands, target) - expected.logits).abs().max() <= 1e-4
    watch = heedful.Watch("*.pattern")
    model(bands, target, watch=watch)
    names = {"encoder.*.attn": "encoder_attentions", "decoder.*.attn": "decoder_attentions"}
    for name, key in (names | {"decoder.*.cross": "cross_attentions"}).items():
        for layer, attention in enumerate(expected[key]):
            assert (watch[f"{name.replace('*', str(layer))}.pattern"] - attention).abs().max() <= 1e-5, name


def test_what_is_written_equals_transformers(published: tuple[Any, Path]) -> None:
    reference, model = published[0], heedful.load(published[1])
    bands, _ = inputs(model)
    for prompt in ((), (50, 60, 70)):
        model.prompt = prompt
        start = torch.tensor([[1, *prompt]] * 2)
        generate = transformers.generation.GenerationMixin.generate
        expected = generate(reference, bands, decoder_input_ids=start, max_new_tokens=9, do_sample=False)
        for row, wanted in zip(bands, expected[:, start.shape[1] :].tolist(), strict=True):
            written = heedful.generate(model, row[None], max_tokens=9, temperature=0)
            assert written == wanted[: len(written)]
            assert len(written) == 9 or 2 in wanted


def test_load_then_save_gives_back_every_tensor_and_opens_there(
    published: tuple[Any, Path], tmp_path: Path
) -> None:
    reference, folder = published
    model = load_and_save(folder, tmp_path)
    again = open_there(type(reference).__name__, tmp_path)
    bands, target = inputs(model)
    with torch.no_grad():
        difference = again(bands, decoder_input_ids=target).logits
        assert (difference - reference(bands, decoder_input_ids=target).logits).abs().max() <= 1e-5


def sound(seconds: float) -> np.ndarray:
    """Two tones and noise."""
    t = np.arange(int(16000 * seconds)) / 16000
    noise = np.random.default_rng(0).standard_normal(len(t)) * 0.02
    return (0.3 * np.sin(2 * np.pi * 440 * t) + 0.1 * np.sin(2 * np.pi * 3000 * t) + noise).astype(np.float32)


@pytest.mark.parametrize(("bands", "seconds"), [(80, 1.3), (128, 2.0), (80, 31.0)])
def test_features_equal_those_of_transformers(bands: int, seconds: float) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    expected = extractor(sound(seconds), sampling_rate=16000, return_tensors="pt").input_features
    assert (SoundProcessor(bands)(sound(seconds)) - expected).abs().max() <= 1e-5
    assert np.abs(mel_filters(bands).numpy().T - extractor.mel_filters).max() <= 1e-7


def write_wav(path: Path, samples: np.ndarray, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype(np.int16).tobytes())
    return path


def test_a_wav_file_is_its_samples_and_another_rate_is_refused(tmp_path: Path) -> None:
    processor, samples = SoundProcessor(8, 40), sound(0.3)
    from_file = processor(write_wav(tmp_path / "a.wav", samples))
    assert (from_file - processor(samples)).abs().max() <= 1e-2
    with refused(InputError, "8,000", hint="ffmpeg"):
        processor(write_wav(tmp_path / "b.wav", samples, 8000))
    (tmp_path / "c.wav").write_text("no sound")
    with refused(InputError, "c.wav", hint="ffmpeg"):
        processor(tmp_path / "c.wav")
    with refused(NotFound, "d.wav"):
        processor(tmp_path / "d.wav")


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    family = MEDIA_FAMILIES["whisper"]
    built = assemble(family, family.tiny).eval()
    built.generation = RULES
    return built


def test_the_prompt_names_language_and_task(model: Any) -> None:
    model.instruct("de", "translate")
    assert model.prompt == (51, 61, 70)
    with refused(NotFound, "'fr'"):
        model.instruct("fr")
    model.generation = {"no_timestamps_token_id": 70}  # of a model for English alone
    model.instruct()
    assert model.prompt == (70,)


def test_a_pipeline_transcribes_a_long_sound_piece_by_piece(model: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog on the log")
    model.tokenizer = heedful.train_tokenizer("wordpiece", [tmp_path / "a.txt"], 80)
    pipe = heedful.pipeline("automatic-speech-recognition", model=model)
    samples = sound(0.5)  # the model reads 0.24 seconds at once
    pieces = pipe([samples[:3840], samples[3840:7680], samples[7680:]], max_new_tokens=4)
    assert model.prompt == (50, 60, 70)
    whole = pipe(samples, max_new_tokens=4)
    assert whole["text"] == " ".join(piece["text"] for piece in pieces)
    assert pipe(str(write_wav(tmp_path / "a.wav", samples)), max_new_tokens=4, language="de").keys() == {
        "text"
    }
    assert model.prompt == (51, 60, 70)


def test_ids_are_refused_with_what_is_read(model: Any) -> None:
    with refused(InputError, "sounds", hint="sound_processor"):
        model(torch.tensor([[1, 2]]), torch.tensor([[1]]))


@pytest.mark.parametrize(
    ("name", "stored"),
    [("tiny", 37_760_640), ("large-v3", 1_543_490_560), ("large-v3-turbo", 808_878_080)],
)
def test_parameters_and_sines_are_as_many_as_published_files_hold(name: str, stored: int) -> None:
    counted, c = heedful.count(f"whisper-{name}"), MEDIA_FAMILIES["whisper"].presets[f"whisper-{name}"]
    assert counted.parameters + c.source_context * c.dim == stored  # type: ignore[attr-defined]
