"""Sound as models read it: the loudness of mel bands, in a frame for every hundredth of a second."""

from __future__ import annotations

import math
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError, NotFound
from heedful.core.files import read_json, write_json
from heedful.core.images import PREPROCESSOR

WINDOW, HOP, RATE = 400, 160, 16_000  # samples of a frame, from one to the next, and per second
SAMPLE_TYPES = {1: np.uint8, 2: np.int16, 4: np.int32}  # of WAV files, by their bytes


def read_wav(path: str | Path) -> Tensor:
    """Return the samples of a WAV file between −1 and 1, the mean of its channels."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise NotFound(f"file not found: {str(path)!r:.200}", hint="give the path of a .wav file")
    convert = f"convert it: ffmpeg -i INPUT -ar {RATE} -ac 1 -c:a pcm_s16le OUTPUT.wav"
    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            content = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{path} is not a WAV file that can be read ({error})", hint=convert) from None
    if rate != RATE or width not in SAMPLE_TYPES:
        raise InputError(f"{path} has {rate:,} samples per second of {8 * width} bits", hint=convert)
    samples = np.frombuffer(content, SAMPLE_TYPES[width]).reshape(-1, channels).astype(np.float32).mean(1)
    return torch.from_numpy((samples - 128 if width == 1 else samples) / 2 ** (8 * width - 1))


def mel_filters(bands: int) -> Tensor:
    """Triangles over the frequencies of a frame, (bands, WINDOW/2 + 1), each with the area 1   (Slaney 1998)

    Their edges are equally far apart in mel: f / 66.7 Hz up to 1000 Hz, logarithmic above.
    """
    top = 15 + 27 * math.log(RATE / 2 / 1000) / math.log(6.4)
    mel = torch.linspace(0, top, bands + 2, dtype=torch.float64)
    edges = torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    triangles = torch.minimum((frequencies - low) / (middle - low), (high - frequencies) / (high - middle))
    return (triangles.clamp(min=0) * 2 / (high - low)).float()


@dataclass(frozen=True)
class SoundProcessor:
    """(max(log₁₀ m, max log₁₀ m − 8) + 4) / 4, m the mel bands of |STFT|²   (Radford et al. 2022 §2.2)

    Sound is cut or filled with silence to `frames` hundredths of a second. `published` is the content of the
    file it came from.
    """

    bands: int = 80
    frames: int = 3000
    published: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def features(self, sound: Any) -> Tensor:
        """Return the bands (bands, frames) of a file's path, or of RATE samples per second."""
        if isinstance(sound, str | Path):
            samples = read_wav(sound)
        else:
            samples = torch.as_tensor(sound, dtype=torch.float32)
            if samples.dim() != 1 or not samples.isfinite().all():
                raise InputError(
                    f"a sound is the path of a .wav file or an array of samples; got {tuple(samples.shape)}",
                    hint=f"give {RATE:,} finite numbers per second, one channel",
                )
        samples = F.pad(samples, (0, max(0, self.frames * HOP - len(samples))))[: self.frames * HOP]
        spectrum = torch.stft(samples, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True)
        power = spectrum[:, :-1].abs().square()
        logs = (mel_filters(self.bands) @ power).clamp(min=1e-10).log10()
        return (logs.clamp(min=float(logs.max()) - 8) + 4) / 4

    def __call__(self, sounds: Any) -> Tensor:
        """Return sounds as a (B, bands, frames) tensor; bands of such a shape stay as they are."""
        if isinstance(sounds, Tensor) and sounds.dim() == 3:
            return sounds
        is_list = isinstance(sounds, list | tuple) and not any(isinstance(x, int | float) for x in sounds[:1])
        several = sounds if is_list else [sounds]
        if not len(several):
            raise InputError("no sound is given", hint="give at least one")
        return torch.stack([self.features(sound) for sound in several])


def read_sound_processor(folder: Path, default: SoundProcessor) -> SoundProcessor:
    """Return the default with what preprocessor_config.json says, which must be what is computed here."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        return default
    content = read_json(path)
    wanted = {"sampling_rate": RATE, "n_fft": WINDOW, "hop_length": HOP, "feature_size": default.bands}
    for name, value in wanted.items():
        if content.get(name, value) != value:
            raise InputError(
                f'{path}: "{name}": {content[name]!r:.40} is not supported', hint=f"it must be {value}"
            )
    return SoundProcessor(default.bands, default.frames, content)


def write_sound_processor(processor: SoundProcessor, folder: Path) -> None:
    """Write what `read_sound_processor` reads, in the words of published files."""
    stated = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": processor.bands,
        "sampling_rate": RATE, "n_fft": WINDOW, "hop_length": HOP, "padding_side": "right",
        "padding_value": 0.0, "return_attention_mask": False, "chunk_length": processor.frames * HOP // RATE,
        "n_samples": processor.frames * HOP, "nb_max_frames": processor.frames,
    }  # fmt: skip
    write_json(folder / PREPROCESSOR, processor.published or stated)
