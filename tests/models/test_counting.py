"""Counts equal the published figures to the unit, and memory is what decoding really holds."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.cli.terminal import format_size
from heedful.core.errors import ConfigError
from heedful.models import FAMILIES, presets
from heedful.models.base import LM, Config
from heedful.models.counting import Count, Probe, mixing
from heedful.nn.attention.multi_head import Attention, join_heads, split_heads
from heedful.nn.context import Context, Part, PartState
from heedful.nn.init import initialise
from heedful.nn.moe import MoE
from heedful.nn.state import KV, RecurrentState, SlidingKV, StateGroup
from heedful.weights.loading import assemble
from tests.models.published_counts import CONFIRMED, STORED, UNCONFIRMED, WITH_IMAGES
from tests.properties.tiny import tiny

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
    "palm-8b": 8_632_012_800,
    "palm-62b": 62_495_662_080,
    "palm-540b": 540_356_474_880,
    "bloom-176b": 176_247_271_424,
    "bloom-560m": 559_214_592,
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
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
}


FOUND = {name: (count, source) for source, counts in CONFIRMED.items() for name, count in counts.items()}


@functools.cache
def counted(name: str) -> Count:
    """A preset is built once for the tests of this file."""
    return heedful.count(name, batch=2, length=16)


@pytest.mark.parametrize(
    ("name", "count"),
    [*PARAMETERS.items(), *((name, count) for name, (count, _) in FOUND.items()), *UNCONFIRMED.items()],
)
def test_parameters_equal_the_published_figure(name: str, count: int) -> None:
    found = counted(name)
    assert found.parameters == count, FOUND.get(name)
    assert sum(found.components.values()) == found.parameters


@pytest.mark.parametrize("name", STORED)
def test_a_file_that_repeats_the_table_of_tokens_holds_so_many_more(name: str) -> None:
    _, config = presets()[name]
    assert config.tied  # type: ignore[attr-defined]
    assert STORED[name] == heedful.count(name).parameters + config.vocab * config.dim


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_what_a_gemma_3_has_besides_is_one_model_of_images_and_a_projection(name: str) -> None:
    _, config = presets()[name]
    besides = WITH_IMAGES[name] - heedful.count(name).parameters
    assert besides - 1152 * (config.dim + 1) == 416_866_032


def test_every_preset_of_a_released_family_has_a_number_and_no_number_has_two_sources() -> None:
    tables = [*CONFIRMED.values(), UNCONFIRMED]
    listed = [name for table in tables for name in table]
    assert len(listed) == len(set(listed))
    families = {presets()[name][0].name for name in listed}
    assert {name for family in families for name in FAMILIES[family].presets} == set(listed)


@pytest.mark.parametrize("name", presets())
def test_every_preset_can_be_counted(name: str) -> None:
    found = counted(name)
    assert 0 < found.active <= found.parameters
    assert found.flops == 32 * found.flops_per_token > 0
    assert found.weight_bytes == 2 * found.parameters


def test_gptj_counts_as_its_published_class_does_and_not_as_its_card() -> None:
    """The card states 6,053,381,344: its training in 8 shards kept every norm, every bias of a layer's output
    and a bias of the embedding once per shard; the published class has the first two once, and not the last.
    """
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        reference = transformers.GPTJForCausalLM(transformers.GPTJConfig())
    assert heedful.count("gpt-j-6b").parameters == sum(p.numel() for p in reference.parameters())
    norms, biases, shards = 2 * (28 + 1), 28, 8
    kept = ((shards - 1) * (norms + biases) + shards) * 4096
    assert 6_053_381_344 - heedful.count("gpt-j-6b").parameters == kept


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


@pytest.mark.parametrize(
    ("preset", "layers", "dim", "rest"),
    [
        ("gpt2", 12, 768, lambda d: 13 * d),  # the biases and norms of a layer
        ("gpt3", 96, 12288, lambda d: 13 * d),
        (
            "llama-7b",
            32,
            4096,
            lambda d: 3 * d * 11008 - 8 * d * d + 2 * d,
        ),  # a gated FFN, two norms, no biases
    ],
)
def test_without_embeddings_only_the_layers_and_the_last_norm_are_left(
    preset: str, layers: int, dim: int, rest: Callable[[int], int]
) -> None:
    last_norm = dim if preset == "llama-7b" else 2 * dim
    assert heedful.count(preset).without_embeddings == layers * (12 * dim**2 + rest(dim)) + last_norm


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


class NewAttention(Part):
    """A part that counting has no rule for, with a state of keys and values."""

    def __init__(self, base: Attention) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = base.q, base.k, base.v, base.o
        self.heads, self.kv_heads, self.window = base.heads, base.kv_heads, base.window

    def new_state(self, batch: int, length: int) -> KV | SlidingKV:
        return KV(length) if self.window is None else SlidingKV(self.window, length)

    def forward(self, x: torch.Tensor, ctx: Context, state: PartState | None = None) -> torch.Tensor:
        q = split_heads(self.q(x), self.heads)
        k, v = (split_heads(matrix(x), self.kv_heads) for matrix in (self.k, self.v))
        if isinstance(state, KV):
            k, v = state.append(k, v, ctx.past)
        elif isinstance(state, SlidingKV):
            k, v, *_ = state.append(k, v, ctx)
        out: torch.Tensor = self.o(join_heads(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))
        return out


class Wrapped(Part):
    """A part that hands everything to the one inside it."""

    def __init__(self, inner: Part) -> None:
        super().__init__()
        self.inner = inner

    def new_state(self, batch: int, length: int) -> PartState | None:
        return self.inner.new_state(batch, length)

    def forward(self, x: torch.Tensor, ctx: Context, state: PartState | None = None) -> torch.Tensor:
        return self.inner(x, ctx, state)


@pytest.mark.parametrize("change", [NewAttention, Wrapped])
@pytest.mark.parametrize(("family", "length"), [("gpt2", 10), ("llama", 10), ("mistral", 7), ("mistral", 90)])
def test_a_part_that_counting_does_not_know_costs_what_its_state_tells(
    change: type[Part], family: str, length: int
) -> None:
    known = FAMILIES[family]

    def build(config: Config) -> LM:
        model = known.build(config)
        for block in model.blocks:  # type: ignore[union-attr]
            block.attn = change(block.attn)  # type: ignore[arg-type]
        return model  # type: ignore[return-value]

    model = tiny(family)
    expected = heedful.count(model, length=length)
    model.family = replace(known, build=build)
    found = heedful.count(model, length=length)
    assert found.kv_bytes_per_token == expected.kv_bytes_per_token
    assert found.state_bytes == expected.state_bytes
    assert found.parameters == expected.parameters
    # A window's state has a few spare slots, which an estimate from the state reads too.
    assert expected.flops_per_token <= found.flops_per_token <= 1.1 * expected.flops_per_token


def test_a_part_may_state_its_own_flops() -> None:
    class Stating(NewAttention):
        def mixing_flops(self, length: int) -> int:
            return 1000 * length

    part = Stating(Attention(8, 2))
    assert mixing(part, 7, Probe(8)) == 7000


def test_fields_of_a_preset_can_be_changed_before_it_is_counted() -> None:
    assert heedful.count("gpt2", layers=6).parameters < heedful.count("gpt2").parameters
    with pytest.raises(ConfigError, match="has no field 'layer'"):
        heedful.count("gpt2", layer=6)
    with pytest.raises(ConfigError, match="has its own layers"):
        heedful.count(heedful.build("gpt2", vocab=20, dim=8, layers=1, heads=1), layers=6)
