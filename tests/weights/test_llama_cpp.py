"""Files that we write, opened by llama.cpp: the same logits, the same text. Skipped where that is missing.

pip install llama-cpp-python    compiles llama.cpp, some minutes on one core
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.position import Llama3Scaling, LongScaling, YarnScaling
from heedful.weights.exporting import ALWAYS_TIED, export_gguf
from heedful.weights.formats.gguf import pack_q4_k
from tests.weights.test_gguf_export import DESCRIBED, tiny_model

gguf = pytest.importorskip("gguf", reason="the gguf library writes the files")
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: it opens the files")

DECODERS = [name for name, family in FAMILIES.items() if family.gguf and family.gguf_head == "lm"]
WHOLE = 0  # how the format numbers float32: states are kept in half precision otherwise


def open_elsewhere(path: Path, **more: Any) -> Any:
    return llama_cpp.Llama(
        str(path), n_ctx=64, n_batch=64, n_threads=1, logits_all=True, verbose=False,
        type_k=WHOLE, type_v=WHOLE, **more,
    )  # fmt: skip


def logits_elsewhere(path: Path, tokens: list[int]) -> torch.Tensor:
    other = open_elsewhere(path)
    other.eval(tokens)
    return torch.from_numpy(np.array(other.scores[: len(tokens)]))


@pytest.mark.parametrize("family", DECODERS)
def test_every_decoder_has_the_same_logits(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **DESCRIBED.get(family, {}))
    tokens = torch.randint(0, 100, (1, 20), generator=torch.Generator().manual_seed(0))
    path = export_gguf(model, tmp_path / "m.gguf", "f32")
    tokens = tokens[
        :, : getattr(heedful.load(path).config, "context", 20)
    ]  # past a window that a file can say
    with torch.no_grad():
        ours = model(tokens)[0]
    theirs = logits_elsewhere(path, tokens[0].tolist())
    assert (ours - theirs).abs().max() < 1e-3 * ours.abs().max() + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", DECODERS)
def test_every_decoder_opens_there_tied_or_not(family: str, tied: bool, tmp_path: Path) -> None:
    if FAMILIES[family].gguf in ALWAYS_TIED and not tied:
        pytest.skip("llama.cpp has no output matrix of it, and export_gguf says so")
    model = tiny_model(family, **DESCRIBED.get(family, {}), tied=tied)
    path = export_gguf(model, tmp_path / "m.gguf", "f32")
    tokens = torch.arange(5, 5 + min(12, getattr(heedful.load(path).config, "context", 12)))
    with torch.no_grad():
        ours = model(tokens[None])[0]
    theirs = logits_elsewhere(path, tokens.tolist())
    assert (ours - theirs).abs().max() < 1e-3 * ours.abs().max() + 1e-3


LISTED = (1.0, 1.5, 4.0, 8.0)
LLAMAS: dict[str, dict[str, Any]] = {
    "biases": {"bias": True, "ffn_bias": True},
    "yarn": {"rope_scaling": YarnScaling(4.0, 16, fast=16.0, slow=2.0)},
    "yarn-gain": {"rope_scaling": YarnScaling(4.0, 16, mscale=0.7, mscale_all_dim=0.3)},
    "llama-3-other-bounds": {"rope_scaling": Llama3Scaling(8.0, 16, 2.0, 3.0)},
    "listed": {"rope_scaling": LongScaling(8.0, 64, LISTED, LISTED, 1.0)},
}


@pytest.mark.parametrize("case", LLAMAS)
def test_every_kind_of_llama_has_the_same_logits(case: str, tmp_path: Path) -> None:
    model = tiny_model("llama", **LLAMAS[case])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
        path = export_gguf(model, tmp_path / "m.gguf", "f32")
        tokens = torch.randint(0, 100, (1, 40), generator=torch.Generator().manual_seed(0))
        ours, again = model(tokens)[0], heedful.load(path)(tokens)[0]
    theirs = logits_elsewhere(path, tokens[0].tolist())
    assert (ours - theirs).abs().max() < 1e-5 * ours.abs().max()
    assert (ours - again).abs().max() < 1e-5 * ours.abs().max()


def requantise(path: Path, into: Path, kind: str) -> Path:
    """Let llama.cpp write a file again with other blocks: what its users have on their disks."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_{kind}"), 1
    options.allow_requantize = True
    assert llama_cpp.llama_model_quantize(str(path).encode(), str(into).encode(), ctypes.byref(options)) == 0
    return into


KINDS = [
    "MOSTLY_Q4_K_M", "MOSTLY_Q5_K_M", "MOSTLY_Q6_K", "MOSTLY_Q8_0", "MOSTLY_Q4_0", "MOSTLY_Q4_1",
    "MOSTLY_Q5_0", "MOSTLY_Q5_1", "MOSTLY_IQ4_NL", "MOSTLY_IQ4_XS", "MOSTLY_BF16", "MOSTLY_Q3_K_M",
    "MOSTLY_Q2_K", "MOSTLY_IQ3_S", "MOSTLY_MXFP4_MOE",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block_is_read_as_llama_cpp_widens_it(kind: str, tmp_path: Path) -> None:
    if kind == "MOSTLY_MXFP4_MOE":
        model = tiny_model("gpt-oss", dim=64, hidden=64, rope_scaling=None)
    else:
        model = heedful.build(
            "llama", dim=256, layers=1, heads=4, hidden=256, vocab=128, context=64, seed=0
        ).eval()
    plain = export_gguf(model, tmp_path / "f32.gguf", "f32")
    path = requantise(plain, tmp_path / "m.gguf", kind)
    wide = requantise(path, tmp_path / "wide.gguf", "ALL_F32")
    tokens = list(range(5, 17))
    with torch.no_grad():
        ours = heedful.load(path)(torch.tensor([tokens]))[0]
    theirs = logits_elsewhere(wide, tokens)
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def greedy_elsewhere(model: Model, path: Path, prompt: str, count: int) -> tuple[bool, str]:
    """Whether the prompt gets the same ids there, and the likeliest text that follows it."""
    other = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, verbose=False)
    assert model.tokenizer is not None
    ids, out = model.tokenizer.encode(prompt), []
    for token in other.generate(ids, temp=0.0, repeat_penalty=1.0):
        if token == model.tokenizer.eos or len(out) == count:
            break
        out.append(token)
    return other.tokenize(prompt.encode()) == ids, model.tokenizer.decode(out)


@pytest.mark.parametrize("scheme", ["f32", "f16", "q8_0"])
def test_the_bundled_model_writes_the_same_text(scheme: str, tmp_path: Path) -> None:
    path = export_gguf(heedful.load("prose"), tmp_path / "prose.gguf", scheme)
    model, prompt = heedful.load(path), "The old man walked to the"
    same, text = greedy_elsewhere(model, path, prompt, 40)
    assert same
    assert text == heedful.generate(model, prompt, max_tokens=40, temperature=0.0)


@pytest.mark.parametrize("scheme", ["q4_0", "q4_k"])
def test_what_four_bits_hold_is_the_same_there(scheme: str, tmp_path: Path) -> None:
    """llama.cpp rounds activations to 8 bits beside such weights; widened, the same weights say the same."""
    rounded = heedful.load(export_gguf(heedful.load("prose"), tmp_path / "a.gguf", scheme))
    path, prompt = export_gguf(rounded, tmp_path / "b.gguf", "f32"), "The old man walked to the"
    same, text = greedy_elsewhere(rounded, path, prompt, 40)
    assert same
    assert text == heedful.generate(rounded, prompt, max_tokens=40, temperature=0.0)
    assert rounded.tokenizer is not None
    ids = rounded.tokenizer.encode(prompt)
    with torch.no_grad():
        ours = rounded(torch.tensor([ids]))[0]
    theirs = logits_elsewhere(tmp_path / "a.gguf", ids)
    assert (ours - theirs).norm() / ours.norm() < 0.02


@pytest.mark.slow
def test_smollm2_writes_the_same_text(tmp_path: Path) -> None:
    try:
        path = export_gguf(heedful.load("smollm2-135m-instruct"), tmp_path / "smollm2.gguf", "f16")
    except heedful.core.errors.NotFound:
        pytest.skip("smollm2-135m-instruct is not installed")
    model = heedful.load(path)
    for prompt in ("The capital of France is", "def fibonacci(n):", "Water boils at"):
        same, text = greedy_elsewhere(model, path, prompt, 30)
        assert same
        assert text == heedful.generate(model, prompt, max_tokens=30, temperature=0.0), prompt


def test_sentence_vectors_are_the_same_there(tmp_path: Path) -> None:
    try:
        model = heedful.load("all-minilm-l6-v2")
    except heedful.core.errors.NotFound:
        pytest.skip("all-minilm-l6-v2 is not installed")
    path = export_gguf(model, tmp_path / "m.gguf", "f32")
    other = llama_cpp.Llama(str(path), embedding=True, n_ctx=256, n_threads=1, verbose=False)
    sentences = ["A man plays a guitar.", "Naïve Café: 3.14!", "It rains in Spain, mainly on the plain."]
    theirs = torch.tensor([other.embed(sentence, normalize=True) for sentence in sentences])
    assert torch.allclose(heedful.embed(model, sentences), theirs, atol=1e-3)


@pytest.mark.parametrize("family", ["bert", "nomic-bert", "modernbert"])
def test_every_encoder_has_the_same_vectors(family: str, tmp_path: Path) -> None:
    text = "the cat sat on the mat . who sat there ? a cat and a dog ."
    (tmp_path / "text.txt").write_text(f"{text}\n" * 4)
    tokenizer = heedful.train_tokenizer("wordpiece", tmp_path / "text.txt", 120)
    model = tiny_model(family, vocab=len(tokenizer), head="none")
    model.tokenizer = tokenizer
    path = export_gguf(model, tmp_path / "m.gguf", "f32")
    each = llama_cpp.LLAMA_POOLING_TYPE_NONE
    other = llama_cpp.Llama(
        str(path), embedding=True, n_ctx=64, n_threads=1, verbose=False, pooling_type=each
    )
    ids = tokenizer.encode(text)
    assert other.tokenize(text.encode(), special=False) == ids
    with torch.no_grad():
        ours = model.encode(torch.tensor([ids]))[0]
    theirs = torch.tensor(other.embed(text, normalize=False))
    assert (ours - theirs).abs().max() < 1e-3 * ours.abs().max() + 1e-3


@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_q4_k_is_as_near_as_llama_cpps(spread: float) -> None:
    values = torch.randn(64, 512, generator=torch.Generator().manual_seed(2)) * spread
    libraries = Path(llama_cpp.__file__).parent / "lib"
    ggml = ctypes.CDLL(str(next(libraries.glob("libggml-base.so*"))))
    kind, into = gguf.GGMLQuantizationType.Q4_K, np.zeros(64 * 512 // 256 * 144, np.uint8)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (values.numpy(), into)]
    sizes = [ctypes.c_int64(n) for n in (0, 64, 512)]
    assert ggml.ggml_quantize_chunk(ctypes.c_int(int(kind)), *pointers, *sizes, None) == into.size
    read = lambda packed: torch.from_numpy(gguf.quants.dequantize(packed.reshape(64, -1), kind))
    ours, theirs = (float((read(p) - values).norm() / values.norm()) for p in (pack_q4_k(values), into))
    print(f"relative error of Q4_K at {spread}: ours {ours:.5f}, llama.cpp's {theirs:.5f}")
    assert ours < 1.02 * theirs
