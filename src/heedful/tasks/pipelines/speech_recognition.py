"""automatic-speech-recognition: a sound in, the text that is spoken in it out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.core.sound import HOP, read_wav
from heedful.models.base import Model
from heedful.tasks.generation import GENERATION_BATCH_SIZE, GeneratingTask
from heedful.tasks.model_inputs import map_inputs


class SpeechRecognition(GeneratingTask):
    """{"text"} of a sound: the path of its WAV file, or an array of its samples, 16,000 per second."""

    needs: ClassVar[str] = "a model that reads sounds and writes, such as Whisper"
    fields: ClassVar[tuple[str, ...]] = ("sound",)
    default_generation: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 224, "num_beams": 1}

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.sound_processor is not None and model.config.head in cls.heads

    def predict(
        self,
        sounds: Any,
        *,
        language: str = "en",
        translate: bool = False,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Return the text of each sound.

        `language` is what is spoken (en, de, …), and `translate` writes it in English. A sound that is longer
        than the model reads is cut into pieces, each transcribed by itself. The other options are those of
        generation in transformers.
        """
        options = {name: value for name, value in generation.items() if value is not None}
        self.generator.instruct(language, "translate" if translate else "transcribe")  # type: ignore[operator]

        def predict_batch(some: list[Any]) -> list[dict[str, str]]:
            pieces = [self.cut(sound) for sound in some]
            rows = iter(
                self.generate_texts(
                    [piece for sound in pieces for piece in sound],
                    options,
                    self.default_generation,
                    batch_size,
                )
            )
            return [{"text": " ".join(next(rows)[0].text.strip() for _ in sound)} for sound in pieces]

        return map_inputs(sounds, predict_batch, batch_size, kind=(str, Path, np.ndarray, Tensor))

    def cut(self, sound: Any) -> list[Any]:
        """Return the samples of a sound in pieces as long as the model reads."""
        samples = read_wav(sound) if isinstance(sound, str | Path) else torch.as_tensor(sound)
        return (
            list(samples.split(self.model.sound_processor.frames * HOP)) if samples.dim() == 1 else [samples]
        )
