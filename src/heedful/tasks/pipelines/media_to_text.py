"""image-to-text and automatic-speech-recognition: read or describe an image, transcribe a sound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful import data
from heedful.core.images import open_image
from heedful.core.sound import HOP, read_wav
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.tasks.examples import ROLES, ColumnFlags, Examples, find_images, limit_characters
from heedful.tasks.generation import GENERATION_BATCH_SIZE, GeneratingTask, TrainableGeneration, clean_text
from heedful.tasks.metrics.generated import transcriptions
from heedful.tasks.model_inputs import map_images, map_inputs
from heedful.tasks.task import TrainingDefaults, row_keywords


class ImageToText(TrainableGeneration):
    """[{"generated_text"}] of an image: its path, an array of its pixels, or one of Pillow's."""

    needs: ClassVar[str] = "a model that reads images and writes"
    reads, fields = "images", ("image",)
    command, writers = "read", "a vision encoder before a decoder, such as digits"
    training = TrainingDefaults(lr=3e-4, lora_lr=1e-3, epochs=8, length=64, steps=300)
    unit: ClassVar[str] = "images"
    roles = ROLES["read"]
    text_scores = staticmethod(transcriptions)
    default_generation: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 128}

    def predict(
        self,
        images: Any,
        *,
        truncation: bool | str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        batch_size: int = GENERATION_BATCH_SIZE,
        **generation: Any,
    ) -> Any:
        """Return num_return_sequences texts for each image.

        The other options are those of generation in transformers: num_beams, max_new_tokens … `truncation`
        changes nothing: an image is always read whole.
        """

        def predict_batch(batch: list[Any]) -> list[Any]:
            opened = [open_image(image) for image in batch]
            rows = self.generate_texts(opened, generation, self.default_generation, batch_size)
            clean = lambda text: clean_text(text, clean_up_tokenization_spaces)
            return [[{"generated_text": clean(one.text)} for one in row] for row in rows]

        return map_images(images, predict_batch, batch_size)

    def prompt_parts(self, inputs: Any) -> list[tuple[Any, str]]:
        return [(open_image(inputs), "")]

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return the rows of a table; paths of images count from the table's own folder."""
        return find_images(source, super().read_examples(source, column_flags))

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        """Return what is to be written: images have no length."""
        return [row[1] for row in examples.items]

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        images = [row[0] for row in examples.items]
        texts = limit_characters([row[1] for row in examples.items], options.length)
        start, processor = getattr(self.model, "start_token", None), self.model.image_processor
        return data.image_text(images, texts, self.tokenizer, processor, start=start, **row_keywords(options))

    def call_options(self, **settings: Any) -> dict[str, Any]:
        return super().call_options(**({"num_beams": 1} | settings))  # the most likely token each time


class SpeechRecognition(GeneratingTask):
    """{"text"} of a sound: the path of its WAV file, or an array of its samples, 16,000 per second."""

    needs: ClassVar[str] = "a model that reads sounds and writes, such as Whisper"
    reads, fields = "sounds", ("sound",)
    default_generation: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 224, "num_beams": 1}

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
        self.generator.instruct(language, "translate" if translate else "transcribe")  # type: ignore[operator]

        def predict_batch(batch: list[Any]) -> list[dict[str, str]]:
            pieces = [self.cut(sound) for sound in batch]
            flat = [piece for sound in pieces for piece in sound]
            rows = iter(self.generate_texts(flat, generation, self.default_generation, batch_size))
            return [{"text": " ".join(next(rows)[0].text.strip() for _ in sound)} for sound in pieces]

        return map_inputs(sounds, predict_batch, batch_size, kind=(str, Path, np.ndarray, Tensor))

    def cut(self, sound: Any) -> list[Any]:
        """Return the samples of a sound in pieces as long as the model reads."""
        samples = read_wav(sound) if isinstance(sound, str | Path) else torch.as_tensor(sound)
        length = self.model.sound_processor.frames * HOP
        return list(samples.split(length)) if samples.dim() == 1 else [samples]
