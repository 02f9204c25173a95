"""Counts equal the published figures to the unit, and memory is what decoding really holds."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import heedful
from heedful.commands.output import format_size
from heedful.loading import assemble
from heedful.models import FAMILIES, presets
from heedful.models.base import LM
from heedful.nn.context import PartState
from heedful.nn.init import initialise
from heedful.nn.moe import MoE
from heedful.nn.state import KV, RecurrentState, SlidingKV, StateGroup

PARAMETERS = {
    "bert-base-uncased": 109_482_240,
    "bert-base-cased": 108_310_272,
    "bert-large-uncased": 335_141_888,
    "roberta-base": 124_645_632,
    "distilbert-base-uncased": 66_362_880,
    "minilm-l6": 22_713_216,
    "minilm-l12": 33_360_000,
    "deberta-base": 138_601_728,
    "deberta-v3-base": 183_831_552,
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-3-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "smollm3-3b": 3_075_098_624,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "palm-8b": 8_632_012_800,
    "palm-62b": 62_495_662_080,
    "palm-540b": 540_356_474_880,
    "bloom-176b": 176_247_271_424,
    "bloom-560m": 559_214_592,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "falcon-rw-1b": 1_311_625_216,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "stablelm-3b": 2_795_443_200,
    "stablelm-2-1.6b": 1_644_515_328,
    "stablelm-2-12b": 12_143_185_920,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "deepseek-v3": 671_026_419_200,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "mamba-130m": 129_135_360,
    "mamba-370m": 371_516_416,
    "mamba-790m": 793_204_224,
    "mamba-1.4b": 1_372_178_432,
    "mamba-2.8b": 2_768_345_600,
    "mamba2-130m": 128_989_632,
    "mamba2-370m": 368_346_624,
    "mamba2-780m": 780_161_280,
    "mamba2-1.3b": 1_343_757_312,
    "mamba2-2.7b": 2_702_599_680,
    "mamba-codestral-7b": 7_285_403_648,
    "olmo-hybrid-7b": 7_430_870_688,
    "mpnet-base": 109_486_464,
    "nomic-embed-text-v1.5": 136_731_648,
    "modernbert-base": 149_014_272,
    "modernbert-large": 394_781_696,
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_published_figure(name: str) -> None:
    if name not in presets():
        pytest.skip(f"{name} is not in the registry yet")
    found = heedful.count(name)
    assert found.parameters == PARAMETERS[name]
    assert sum(found.components.values()) == found.parameters


@pytest.mark.parametrize("name", presets())
def test_every_preset_can_be_counted(name: str) -> None:
    found = heedful.count(name, batch=2, length=16)
    assert 0 < found.active <= found.parameters
    assert found.flops == 32 * found.flops_per_token > 0
    assert found.weight_bytes == 2 * found.parameters


def test_gptj_counts_as_its_published_class_does_and_not_as_its_card() -> None:
    """The card states 6,053,381,344, which is 610 rows of 4096 more; the class has no such tensor."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        reference = transformers.GPTJForCausalLM(transformers.GPTJConfig())
    assert heedful.count("gpt-j-6b").parameters == sum(p.numel() for p in reference.parameters())
    assert 6_053_381_344 - heedful.count("gpt-j-6b").parameters == 610 * 4096


def test_roberta_without_its_pooler() -> None:
    found = heedful.count("roberta-base")
    assert found.parameters - found.components["head.kept"] == 124_055_040


def test_a_token_meets_a_few_experts_only() -> None:
    found = heedful.count("deepseek-v3")
    assert found.active == 37_552_297_472
    assert found.active - found.components["embed.token"] == 36_625_618_432


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [
        ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208),
        ("deepseek-v2", 235_741_434_880, 21_375_800_320),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472),
    ],
)
def test_deepseeks_parts_hold_as_many_parameters_as_published(preset: str, total: int, active: int) -> None:
    model = heedful.build(preset, device="meta")
    experts = [part for part in model.modules() if isinstance(part, MoE)]
    idle = sum(part.total_parameters() - part.active_parameters() for part in experts)
    biases = sum(b.numel() for part in experts for b in part.buffers())
    assert sum(p.numel() for p in model.parameters()) + biases == total
    assert total - idle == active


def test_gpt3_as_textbooks_count_it() -> None:
    found = heedful.count("gpt3")
    assert found.notes == 175_181_291_520
    assert found.matrices == 27_938
    assert found.components["embed.token"] == 617_558_016
    assert found.components["embed.position"] == 25_165_824


def test_heads_stand_beside_the_backbone() -> None:
    found = heedful.count("bert-base-uncased")
    assert found.heads["mlm"] == 768 * 768 + 768 + 2 * 768 + 30522
    assert found.heads["classify"] == 2 * 768 + 2
    assert heedful.count("llama-7b").components["head.out"] == 32000 * 4096


def test_a_layer_costs_24_d_squared_and_4_t_d_per_token() -> None:
    one, two = (heedful.count(heedful.build("gpt2", layers=n, device="meta"), length=100) for n in (1, 2))
    assert two.flops_per_token - one.flops_per_token == 24 * 768**2 + 4 * 100 * 768


def test_gpt2_costs_what_its_training_runs_report() -> None:
    """855.1 MFLOP per token, forward and backward, counting biases and norms too."""
    assert 3 * heedful.count("gpt2", length=1024).flops_per_token == pytest.approx(855.1e6, rel=1e-3)


def test_a_window_is_deducted_and_shared_heads_hold_less() -> None:
    wide, narrow = (heedful.count("mistral-7b", length=n) for n in (8192, 4096))
    assert wide.flops_per_token == narrow.flops_per_token
    assert heedful.count("llama-3-8b").kv_bytes_per_token * 4 == heedful.count("llama-7b").kv_bytes_per_token


def test_a_full_window_holds_no_more_than_its_slots() -> None:
    model = assemble(FAMILIES["gpt3"], FAMILIES["gpt3"].tiny.change(window=4))
    initialise(model)
    assert isinstance(model, LM)
    short, long = (heedful.count(model, width=1, length=n) for n in (8, 40))
    assert short.state_bytes == 0
    assert long.kv_bytes_per_token * 2 == short.kv_bytes_per_token  # every other layer has a window
    with torch.no_grad():
        for found, length in ((short, 8), (long, 40)):
            state = model.eval().start(torch.ones(1, length, dtype=torch.long))
            assert held(state.parts, length) == found.cache_bytes


def test_a_latent_is_all_that_is_remembered() -> None:
    assert heedful.count("deepseek-v3").kv_bytes_per_token == 61 * (512 + 64) * 2


def test_an_encoder_remembers_nothing() -> None:
    assert heedful.count("bert-base-uncased").cache_bytes == 0


def held(state: PartState | None, length: int) -> int:
    """Numbers in a state, counting keys and values up to `length`."""
    match state:
        case StateGroup():
            return sum(held(part, length) for part in state.parts.values())
        case KV() | SlidingKV():
            assert state.k is not None
            assert state.v is not None
            return sum(t[:, :, :length].numel() for t in (state.k, state.v))
        case RecurrentState():
            return sum(t.numel() * (2 if t.is_complex() else 1) for t in state.tensors.values())
    return 0


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_is_what_decoding_holds(name: str) -> None:
    family = FAMILIES[name]
    model = assemble(family, family.tiny)
    initialise(model)
    if isinstance(model, LM) and not model.causal:
        pytest.skip("an encoder remembers nothing")
    found = heedful.count(model, width=1, length=6)
    with torch.no_grad():
        state = model.eval().start(torch.ones(1, 5, dtype=torch.long))
        before = held(state.parts, state.past)
        model.step(torch.ones(1, 1, dtype=torch.long), state)
    assert held(state.parts, state.past) - before == found.kv_bytes_per_token
    if isinstance(model, LM):
        assert held(state.parts, state.past) == found.kv_bytes_per_token * state.past + found.state_bytes


def test_counting_the_largest_takes_no_memory() -> None:
    code = (
        "import resource, torch, heedful; kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "heedful.count('gpt2'); before = kb(); heedful.count('gpt3'); assert kb() - before < 50_000"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("number", "said"), [(999_885_952, "1 B"), (999_000, "999 k"), (124_439_808, "124 M")]
)
def test_a_size_is_said_with_three_digits_of_the_unit_that_fits(number: int, said: str) -> None:
    assert format_size(number) == said
