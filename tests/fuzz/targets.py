"""What is damaged and how it is opened: a target for each format that heedful reads.

A target writes a sound file once, damages a copy again and again, and opens it. What opens without an error
must be right: the same tensors as in the sound file, or as the format's own library reads.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import heedful
from heedful.core.errors import HeedfulError
from heedful.models import FAMILIES
from heedful.text import load_tokenizer
from heedful.train.checkpoint import newest
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.formats.tensor_files import open_folder, write_safetensors
from heedful.weights.names import model_tensors
from heedful.word2vec import Word2Vec
from tests.fuzz.mutate import damage_bytes, damage_json, damage_safetensors
from tests.properties.tiny import tiny
from tests.train import toys
from tests.weights.test_gguf import LLAMA, write_model

TEXT = "Ann sees the red fox, 1234 times: an old oak tree!\n" * 4


class Target(ABC):
    """One format: a sound file, ways to damage it, and what has to hold if it opens all the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Write the sound files."""

    @abstractmethod
    def attempt(self, rng: random.Random) -> None:
        """Damage a file, open it, and check what was opened."""


def same_tensors(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(
            found[n].contiguous().view(-1).view(torch.uint8), t.contiguous().view(-1).view(torch.uint8)
        )
        and found[n].shape == t.shape
        for n, t in expected.items()
    )


class Safetensors(Target):
    """What opens is what the safetensors library itself reads."""

    def prepare(self) -> None:
        generator = torch.Generator().manual_seed(0)
        made = {f"layer.{i}.weight": torch.randn(3, 4, generator=generator) for i in range(3)}
        made |= {"bias": torch.randn(3, 4, generator=generator), "half": torch.ones(5, dtype=torch.float16)}
        write_safetensors(self.folder, made | {"ids": torch.arange(3), "none": torch.zeros(0, 2)})
        self.path = self.folder / "model.safetensors"
        self.sound = self.path.read_bytes()

    def attempt(self, rng: random.Random) -> None:
        self.path.write_bytes(damage_safetensors(rng, self.sound))
        source = open_folder(self.folder)
        found = {name: source.read(name) for name in source.entries}
        assert same_tensors(found, load_file(self.path)), "other tensors than the library reads"


class Index(Target):
    """Shards and their index."""

    def prepare(self) -> None:
        self.expected = {f"layer.{i}.weight": torch.full((3, 4), float(i)) for i in range(6)}
        write_safetensors(self.folder, self.expected, shard_bytes=100)
        self.path = self.folder / "model.safetensors.index.json"
        self.sound = self.path.read_bytes()

    def attempt(self, rng: random.Random) -> None:
        self.path.write_bytes(damage_json(rng, self.sound))
        source = open_folder(self.folder)
        found = {name: source.read(name) for name in source.entries}
        assert all(torch.equal(t, self.expected[name]) for name, t in found.items()), "a wrong tensor"


class Configs(Target):
    """config.json of every family, plain and quantised: what loads has the weights that were saved."""

    def prepare(self) -> None:
        self.models: dict[str, tuple[bytes, dict[str, Any]]] = {}
        for family in FAMILIES:
            self.add(family, tiny(family))
        self.add("gpt2-int8", heedful.quantize(tiny("gpt2"), "int8"))
        self.add("llama-int4", heedful.quantize(tiny("llama"), "int4"))

    def add(self, name: str, model: Any) -> None:
        folder = heedful.save(model, self.folder / name, quantized=True)
        self.models[name] = (folder / "config.json").read_bytes(), model_tensors(heedful.load(folder))

    def attempt(self, rng: random.Random) -> None:
        name = rng.choice(list(self.models))
        sound, expected = self.models[name]
        (self.folder / name / "config.json").write_bytes(damage_json(rng, sound))
        found = model_tensors(heedful.load(self.folder / name))
        # Other heads, or another part of them that turns, put rows of the same weights in another order.
        values = lambda held: sorted(
            t.detach().flatten().double().sort().values.tolist() for t in held.values()
        )
        assert values(found) == values(expected), f"other weights in {name}"


class Adapters(Target):
    """adapter.json and adapter.safetensors beside the weights: what loads has the adapter that was saved."""

    def prepare(self) -> None:
        model = tiny("gpt2")
        heedful.lora(model, rank=2, targets=("q", "v"))
        self.model = heedful.save(model, self.folder / "model")
        self.paths = [self.model / name for name in ("adapter.json", "adapter.safetensors")]
        self.sound = {path: path.read_bytes() for path in self.paths}
        self.expected = model_tensors(heedful.load(self.model))

    def attempt(self, rng: random.Random) -> None:
        path = rng.choice(self.paths)
        damage = damage_json if path.suffix == ".json" else damage_header
        path.write_bytes(damage(rng, self.sound[path]))
        try:
            found = model_tensors(heedful.load(self.model))
            assert same_tensors(found, self.expected), f"a change in {path.name} was not noticed"
        finally:
            path.write_bytes(self.sound[path])


def damage_header(rng: random.Random, data: bytes) -> bytes:
    """The header of a safetensors file, and none of its numbers."""
    size = 8 + int.from_bytes(data[:8], "little")
    return damage_bytes(rng, data[:size]) + data[size:]


class Tokenizers(Target):
    """tokenizer.json and what stands beside it: text goes in and comes out, or there is one typed error."""

    NAMES = ("tokenizer.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

    def prepare(self) -> None:
        from heedful.text.tokenizer_files import save_tokenizer

        text = self.folder / "text.txt"
        text.write_text(TEXT, encoding="utf-8")
        self.kinds = ("bpe", "wordpiece", "unigram", "char", "word")
        for kind in self.kinds:
            (self.folder / kind).mkdir()
            save_tokenizer(heedful.train_tokenizer(kind, [text], 300), self.folder / kind)
            (self.folder / kind / "special_tokens_map.json").write_text('{"eos_token": {"content": "x"}}')
        self.sound = {(k, n): (self.folder / k / n).read_bytes() for k in self.kinds for n in self.NAMES}

    def attempt(self, rng: random.Random) -> None:
        kind, name = rng.choice(self.kinds), rng.choice(self.NAMES)
        path = self.folder / kind / name
        path.write_bytes(damage_json(rng, self.sound[kind, name]))
        try:
            tokenizer = load_tokenizer(self.folder / kind, {"eos_token_id": 3})
            if tokenizer is not None:
                ids = tokenizer.encode(TEXT + "ß€")
                tokenizer.encode_all([TEXT, ""])
                tokenizer.encode_pair("a fox", "an oak")
                tokenizer.split("a fox")
                tokenizer.decode(ids)
                tokenizer.tokens(ids)
                repr(tokenizer), len(tokenizer), tokenizer.eos
        finally:
            path.write_bytes(self.sound[kind, name])


class GGUF(Target):
    """A GGUF file with its vocabulary; a tensor that is described as before holds what it held before."""

    def prepare(self) -> None:
        import gguf

        sizes = LLAMA | {"dim": 8, "hidden": 8, "heads": 2, "kv_heads": 1, "vocab": 20, "layers": 1}
        self.path = self.folder / "model.gguf"
        words = [chr(97 + i) for i in range(17)] + ["ab", "abc", "de"]

        def vocabulary(writer: Any) -> None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(words)
            writer.add_token_types([gguf.TokenType.NORMAL] * 19 + [gguf.TokenType.CONTROL])
            writer.add_token_merges(["a b", "ab c", "d e"])
            writer.add_eos_token_id(19)

        write_model(self.path, heedful.build("llama", **sizes, seed=0), extra=vocabulary)
        self.sound = self.path.read_bytes()
        self.head = gguf.GGUFReader(self.path).data_offset
        self.expected = self.described()

    def described(self) -> dict[Any, Any]:
        from gguf import GGUFReader

        reader = GGUFReader(self.path)
        return {
            (t.name, tuple(t.shape.tolist()), int(t.tensor_type)): t.data.tobytes() for t in reader.tensors
        }

    def attempt(self, rng: random.Random) -> None:
        damaged = damage_bytes(rng, self.sound[: self.head]) + self.sound[self.head :]
        self.path.write_bytes(damaged)
        model = heedful.load(self.path)
        if model.tokenizer is not None:
            model.tokenizer.decode(model.tokenizer.encode("abcdq"))
        for key, data in self.described().items():
            assert self.expected.get(key, data) == data, f"{key[0]} differs"


class Checkpoint(Target):
    """A run's folder: whatever is damaged in its newest checkpoint is noticed when the run goes on."""

    def prepare(self) -> None:
        self.files = toys.write(self.folder / "data")
        self.run = self.folder / "run"
        self.steps(2)
        last = newest(self.run)
        assert last is not None
        self.sound = {p: p.read_bytes() for p in last.iterdir() if p.is_file()}
        self.batches = toys.batches_of("next_token", self.files)
        self.expected = model_tensors(heedful.load(last))

    def steps(self, count: int, resume: bool = False) -> Any:
        model = toys.tiny("gpt2", vocab=128, dim=8, heads=2, layers=1)
        settings = TrainConfig(
            steps=count, lr=1e-3, folder=self.run, ema=0.9, schedule="constant", resume=resume
        )
        for _ in fit(model, "next_token", toys.batches_of("next_token", self.files), settings):
            pass
        return model

    def attempt(self, rng: random.Random) -> None:
        path = rng.choice(list(self.sound))
        damaged = (damage_json if path.suffix == ".json" and rng.random() < 0.5 else damage_bytes)(
            rng, self.sound[path]
        )
        path.write_bytes(damaged)
        try:
            self.steps(2, resume=True)
        except HeedfulError as error:
            if path.name not in str(error):
                raise ValueError(f"{path.name} is not named: {error}") from error
            raise
        else:
            unseen = damaged != self.sound[path] and meaning(damaged) != meaning(self.sound[path])
            assert not unseen, f"a change in {path.name} was not noticed"
        finally:
            path.write_bytes(self.sound[path])


def meaning(data: bytes) -> Any:
    """What JSON says, however it is written; of other files the bytes."""
    try:
        return json.loads(data)
    except ValueError:
        return data


class Vectors(Target):
    """word2vec's binary and text formats and our safetensors."""

    def prepare(self) -> None:
        rng = np.random.default_rng(0)
        words = [f"word{i}" for i in range(12)]
        vectors = Word2Vec(words, rng.standard_normal((12, 6), dtype=np.float32))
        self.paths = [self.folder / f"v.{end}" for end in ("bin", "bin", "txt", "safetensors")]
        for path in self.paths:
            vectors.save(path)
        self.sound = {path: path.read_bytes() for path in self.paths}

    def attempt(self, rng: random.Random) -> None:
        path = rng.choice(self.paths)
        damage = damage_safetensors if path.suffix == ".safetensors" else damage_bytes
        data = self.sound[path]
        if path.suffix == ".bin" and rng.random() < 0.3:
            data = damage_bytes(rng, data[:6]) + data[6:]
        else:
            data = damage(rng, data)
        path.write_bytes(data)
        vectors = Word2Vec.load(path)
        vectors.neighbours(0, 2)
        assert vectors.input.shape == (len(vectors), vectors.dim)


TARGETS: dict[str, type[Target]] = {
    "safetensors": Safetensors, "index": Index, "config": Configs, "tokenizer": Tokenizers, "gguf": GGUF,
    "checkpoint": Checkpoint, "word2vec": Vectors, "adapter": Adapters,
}  # fmt: skip
