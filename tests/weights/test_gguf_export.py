"""GGUF files written by `export_gguf`, opened by the `gguf` library and by us."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heedful
from heedful.cli import app
from heedful.core.errors import ConfigError, InputError, MissingPackage
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.position import LinearScaling, Llama3Scaling, NTKScaling, Scaling, YarnScaling
from heedful.text.gguf import gguf_tokenizer
from heedful.weights.exporting import export_gguf
from heedful.weights.formats.gguf import FILE_TYPES, GGUFFile, pack_q4_k
from heedful.weights.names import model_tensors
from heedful.weights.pooling import Pooling
from tests.refusal import refused
from tests.text.samples import WRITTEN

gguf = pytest.importorskip("gguf", reason="the gguf library writes the files")

WRITTEN_FAMILIES = [name for name, family in FAMILIES.items() if family.gguf]
# What a file can say where a family's tiny model is one that it cannot describe.
DESCRIBED: dict[str, dict[str, Any]] = {
    **{name: {"local": (0, 1)} for name in ("gemma3", "cohere2", "olmo3", "exaone4")},
    "qwen2": {"local": ()},
    "qwen2-moe": {"dense": ()},
    "smollm3": {"layers": 4, "unrotated": (3,)},
    "gpt-oss": {"rope_scaling": None},
    "mamba2": {"norm_groups": 2},  # as many as its groups
}
WIDE: dict[str, Any] = {"dim": 256, "vocab": 64}  # rows of whole blocks of every kind
STANDARD = {"q8_0": 0.006, "q4_0": 0.09, "q4_k": 0.075}  # relative error on Gaussian weights


def wide_model(family: str = "llama", **more: Any) -> Model:
    return heedful.build(family, **WIDE, layers=1, heads=4, hidden=256, context=32, seed=0, **more).eval()


def tiny_model(family: str, **more: Any) -> Model:
    tiny = FAMILIES[family].tiny
    kept = {name: getattr(tiny, name) for name in tiny.__dict__["given"]}
    return heedful.build(family, **kept | more, seed=0).eval()


@pytest.mark.parametrize("family", WRITTEN_FAMILIES)
def test_every_family_that_is_read_from_gguf_is_written_to_it(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **DESCRIBED.get(family, {}))
    again = heedful.load(export_gguf(model, tmp_path / "m.gguf", "f32"))
    ours, theirs = model_tensors(model), model_tensors(again)
    assert len(theirs) >= 10
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name]), name
    left = {name for name in ours if name not in theirs}
    assert all(name.startswith("head.") for name in left)
    assert not left or again.config.head == "none"


@pytest.mark.parametrize("scheme", FILE_TYPES)
def test_tensors_are_what_the_library_reads(scheme: str, tmp_path: Path) -> None:
    model = wide_model()
    path = export_gguf(model, tmp_path / "m.gguf", scheme)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    ours = GGUFFile(path)
    assert set(theirs) == set(ours.entries)
    kinds = {tensor.tensor_type.name for tensor in theirs.values()}
    assert kinds <= {"F32", scheme.upper(), "Q8_0"}
    assert scheme.upper() in kinds
    for name, tensor in theirs.items():
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert torch.equal(ours.read(name), torch.from_numpy(np.array(values, np.float32))), name
    loaded, written = model_tensors(heedful.load(path)), model_tensors(model)
    name = "blocks.0.ffn.down.weight"
    exact = written[name].detach()
    if scheme in ("f32", "f16"):
        assert torch.equal(loaded[name], exact if scheme == "f32" else exact.half().float())
    else:
        error = float((loaded[name].detach() - exact).norm() / exact.norm())
        assert error < STANDARD[scheme], error


def test_four_bits_leave_what_logits_are_read_from_in_eight(tmp_path: Path) -> None:
    path = export_gguf(wide_model(tied=True), tmp_path / "m.gguf", "q4_k")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert "output.weight" not in kinds
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    narrow = export_gguf(tiny_model("llama"), tmp_path / "n.gguf", "q4_k")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(narrow).tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q5_0"  # rows of 32
    assert kinds["blk.0.ffn_down.weight"] == "F16"  # rows of 48


@pytest.mark.parametrize("spread", [1.0, 1e-3, 30.0])
def test_q4_k_is_nearer_than_q4_0_and_keeps_what_is_on_its_grid(spread: float) -> None:
    values = torch.randn(40, 512, generator=torch.Generator().manual_seed(1)) * spread
    kind = gguf.GGMLQuantizationType
    read = torch.from_numpy(gguf.quants.dequantize(pack_q4_k(values), kind.Q4_K))
    plain = gguf.quants.dequantize(gguf.quants.quantize(values.numpy(), kind.Q4_0), kind.Q4_0)
    error, other = (float((x - values).norm() / values.norm()) for x in (read, torch.from_numpy(plain)))
    assert error < 0.073
    assert error < 0.87 * other
    grid = torch.arange(256).remainder(16).float().mul(63 / 64).sub(6).expand(3, 256)
    again = torch.from_numpy(gguf.quants.dequantize(pack_q4_k(grid.contiguous()), kind.Q4_K))
    assert (again - grid).abs().max() < 0.01
    assert not torch.from_numpy(gguf.quants.dequantize(pack_q4_k(torch.zeros(1, 256)), kind.Q4_K)).any()


SCALINGS = [LinearScaling(4.0), YarnScaling(4.0, 16), Llama3Scaling(8.0, 64), Llama3Scaling(32.0)]


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_rescaled_positions_are_written(scaling: Scaling, tmp_path: Path) -> None:
    model = tiny_model("llama", rope_scaling=scaling, rope_base=500000.0)
    again = heedful.load(export_gguf(model, tmp_path / "m.gguf", "f32"))
    assert again.config.rope_scaling == scaling  # type: ignore[attr-defined]
    tokens = torch.randint(0, 128, (2, 40), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(again(tokens), model(tokens), atol=1e-6)


def test_what_gguf_cannot_say_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with refused(ConfigError, "GGUF", "NTKScaling", hint="linear"):
        export_gguf(tiny_model("llama", rope_scaling=NTKScaling(2.0, 64)), path)
    with refused(ConfigError, "act='gelu'", "'silu'", hint="hf"):
        export_gguf(tiny_model("llama", act="gelu"), path)
    with refused(ConfigError, "lstm", hint="llama"):
        export_gguf(tiny_model("lstm"), path)
    with refused(ConfigError, "'classify'"):
        export_gguf(tiny_model("bert", head="classify"), path)
    with refused(ConfigError, "q3_x", hint="q4_k"):
        export_gguf(tiny_model("llama"), path, "q3_x")
    assert list(tmp_path.iterdir()) == []


TIES = [("gpt-neox", True), ("olmo2", True), ("gpt-oss", True), ("llama", True), ("llama", False)]


@pytest.mark.parametrize(("family", "tied"), TIES)
def test_an_output_matrix_is_written_where_llama_cpp_wants_one(
    family: str, tied: bool, tmp_path: Path
) -> None:
    model = tiny_model(family, **DESCRIBED.get(family, {}), tied=tied)
    path = export_gguf(model, tmp_path / "m.gguf", "f32")
    assert ("output.weight" in GGUFFile(path).entries) == (family != "llama" or not tied)
    tokens = torch.arange(5, 15)[None]
    assert torch.allclose(heedful.load(path)(tokens), model(tokens), atol=1e-6)


def test_what_a_file_would_say_falsely_is_refused(tmp_path: Path) -> None:
    from heedful.interp.intervene.ablation import prune

    path = tmp_path / "m.gguf"
    with refused(ConfigError, "output matrix", "gemma", hint="tie"):
        export_gguf(tiny_model("gemma", tied=False), path)
    with refused(ConfigError, "heads were pruned"):
        export_gguf(prune(tiny_model("gpt2"), {"blocks.0.attn": [1]}), path)
    with refused(InputError, "no weights"):
        export_gguf(heedful.build("llama", layers=1, dim=32, heads=4, vocab=64, device="meta"), path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 50)
    model = tiny_model("llama", vocab=250)
    model.tokenizer = heedful.train_tokenizer("bpe", [tmp_path / "text.txt"], vocab=300)
    with refused(InputError, "250", "tokens", hint="tokenizer=False"):
        export_gguf(model, path)
    assert [one.name for one in tmp_path.iterdir()] == ["text.txt"]


def test_only_a_file_of_that_ending_is_replaced(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with refused(InputError, "does not end in .gguf", hint="m.gguf"):
        export_gguf(model, tmp_path / "m")
    (tmp_path / "m.gguf").mkdir()
    with refused(InputError, "not a file that can be replaced"):
        export_gguf(model, tmp_path / "m.gguf")


def test_a_full_disk_is_called_so_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export_gguf(tiny_model("llama"), tmp_path / "m.gguf")
    before = path.read_bytes()

    def full(partial: Path, *rest: Any) -> None:
        partial.write_bytes(b"half")
        raise OSError("65536 requested and 25232 written")  # NumPy's words, without a number

    monkeypatch.setattr("heedful.weights.exporting.write_gguf", full)
    with pytest.raises(OSError, match="No space left") as caught:
        export_gguf(tiny_model("gpt2"), path)
    assert caught.value.errno == errno.ENOSPC
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]
    assert path.read_bytes() == before


def test_groups_of_mamba_2_are_normalised_apart_or_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "norm_groups=1", "2", hint="hf"):
        export_gguf(tiny_model("mamba2", groups=2), tmp_path / "m.gguf")
    apart, together = (tiny_model("mamba2", groups=2, norm_groups=n) for n in (2, 1))
    tokens = torch.arange(5, 25)[None]
    assert (apart(tokens) - together(tokens)).abs().max() > 1e-2
    again = heedful.load(heedful.save(apart, tmp_path / "m"))
    assert torch.equal(again(tokens), apart(tokens))
    assert again.hf_config["model_type"] == "heedful-mamba2"  # transformers would normalise them together
    assert heedful.load(heedful.save(together, tmp_path / "n")).hf_config["model_type"] == "mamba2"


def test_without_the_library_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(MissingPackage, match=r"heedful\[gguf\]"):
        export_gguf(tiny_model("llama"), tmp_path / "m.gguf")


def test_a_window_becomes_as_many_positions_as_every_layer_sees(tmp_path: Path) -> None:
    model = tiny_model("mistral")
    again = heedful.load(export_gguf(model, tmp_path / "m.gguf", "f32"))
    window: int = model.config.window  # type: ignore[attr-defined]
    assert again.family.name == "llama"
    assert again.config.context == window  # type: ignore[attr-defined]
    tokens = torch.randint(0, 128, (2, window), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(again(tokens), model(tokens), atol=1e-6)


def test_a_model_in_eight_bits_is_widened(tmp_path: Path) -> None:
    model = heedful.load("prose")
    again = heedful.load(export_gguf(model, tmp_path / "prose.gguf", "f32"))
    text = "It was a dark night, and the"
    assert model.tokenizer is not None
    assert again.tokenizer is not None
    assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
    prompt = torch.tensor([model.tokenizer.encode(text)])
    assert "quantization" in model.hf_config
    assert torch.allclose(again(prompt), model(prompt), atol=1e-3)
    ours, theirs = (heedful.generate(m, text, max_tokens=20, temperature=0.0) for m in (model, again))
    assert ours == theirs


def test_sentence_vectors_come_back(tmp_path: Path) -> None:
    try:
        model = heedful.load("all-minilm-l6-v2")
    except heedful.core.errors.NotFound:
        pytest.skip("all-minilm-l6-v2 is not installed")
    again = heedful.load(export_gguf(model, tmp_path / "m.gguf", "f32"))
    assert again.pooling == model.pooling == Pooling("mean", True, 256)
    sentences = ["A man plays a guitar.", "Naïve Café: 3.14!", *WRITTEN]
    assert torch.allclose(heedful.embed(again, sentences), heedful.embed(model, sentences), atol=1e-6)


def test_a_tokenizer_that_gguf_cannot_describe_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel()]
    )
    model = tiny_model("gpt2")
    model.tokenizer = heedful.text.Tokenizer(backend)
    with refused(InputError, "words", "gpt-2", hint="tokenizer=False"):
        export_gguf(model, tmp_path / "m.gguf")
    again = heedful.load(export_gguf(model, tmp_path / "m.gguf", tokenizer=False))
    assert again.tokenizer is None


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_vocabularies_are_written(kind: str, tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece trains the vocabulary")
    from heedful.text import load_tokenizer
    from heedful.text.gguf import from_gguf

    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(WRITTEN * 3), model_prefix=str(tmp_path / "tokenizer"), vocab_size=420,
        minloglevel=2, hard_vocab_limit=False, num_threads=1, model_type=kind, byte_fallback=True,
        **(plain if kind == "bpe" else {}),
    )  # fmt: skip
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    again = from_gguf(gguf_tokenizer(ours, len(ours) + 7))
    assert again is not None
    assert again.encode_all(WRITTEN) == ours.encode_all(WRITTEN)
    assert [again.decode(again.encode(line)) for line in WRITTEN] == [
        ours.decode(ours.encode(x)) for x in WRITTEN
    ]


def test_the_command_writes_gguf_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", "prose", "--quantize", "q8_0"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == "prose-q8_0.gguf"
    assert heedful.load("prose-q8_0.gguf").tokenizer is not None
    done = CliRunner().invoke(app, ["export", "prose-q8_0.gguf", "folder", "--format", "hf"])
    assert done.exit_code == 0, done.output
    assert "quantization" not in heedful.load("folder").hf_config
    wrong = CliRunner().invoke(app, ["export", "prose", "--format", "tflite"])
    assert "format='tflite'" in str(wrong.exception)
