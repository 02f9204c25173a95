"""Every system, one line each: the first file to open.

system          file               paper                                       own part
RNN             language_models.py Elman 1990; Mikolov et al. 2010             recurrence
LSTM            language_models.py Hochreiter and Schmidhuber 1997             gates and a cell
GRU             language_models.py Cho et al. 2014                             gates
seq2seq LSTM    seq2seq.py         Sutskever et al. 2014                       a bridge of states
RNNsearch       seq2seq.py         Bahdanau et al. 2015                        additive attention
Luong           seq2seq.py         Luong et al. 2015                           input feeding
Transformer     transformer.py     Vaswani et al. 2017                         attention
BiLSTM          baselines.py       Graves and Schmidhuber 2005                 both reading directions
CNN             baselines.py       Collobert et al. 2011
BERT            bert.py            Devlin et al. 2019
RoBERTa         bert.py            Liu et al. 2019                             offset positions
XLM-R           bert.py            Conneau et al. 2020
CamemBERT       bert.py            Martin et al. 2020
ERNIE           bert.py            Sun et al. 2019
DistilBERT      bert.py            Sanh et al. 2019
MPNet           bert_variants.py   Song et al. 2020                            distances besides positions
ModernBERT      rotary_encoders.py Warner et al. 2024                          local and global layers
EuroBERT        rotary_encoders.py Boizard et al. 2025                         LLaMA as an encoder
RoFormer        rotary_encoders.py Su et al. 2021                              rotary positions
NomicBERT       rotary_encoders.py Nussbaum et al. 2024                        rotary in an encoder
ALBERT          bert_variants.py   Lan et al. 2020                             shared layers
ELECTRA         bert_variants.py   Clark et al. 2020                           replaced-token detection
Longformer      sparse.py          Beltagy et al. 2020                         windows, tokens that see all
BigBird         sparse.py          Zaheer et al. 2020                          blocks that see few blocks
DeBERTa v1 v2 3 deberta.py         He et al. 2021, 2023                        disentangled attention
GPT             gpt.py             Radford et al. 2018
GPT-2           gpt.py             Radford et al. 2019
GPT-3           gpt.py             Brown et al. 2020                           banded layers
Transformer-XL  transformer_xl.py  Dai et al. 2019                             distances, a memory
LLaMA 1 2 3     llama.py           Touvron et al. 2023                         rotary, gated MLP
Mistral         llama.py           Jiang et al. 2023                           window
Qwen2 2.5       qwen.py            Qwen Team 2024                              biases on q, k and v
Qwen3           qwen.py            Qwen Team 2025                              normalised q and k
Gemma 1 2 3     gemma.py           Gemma Team 2024, 2025                       norms around parts, soft caps
OLMo 1 2 3 MoE  olmo.py            Groeneveld et al. 2024; OLMo Team 2024      norms after parts
Arcee           relatives.py       Arcee AI 2025                               squared ReLU
Ministral       relatives.py       Mistral AI 2024
Seed-OSS        relatives.py       ByteDance Seed Team 2025
Granite         relatives.py       Granite Team 2024                           four constants
Nemotron        relatives.py       Muralidharan et al. 2024                    LayerNorm with 1 + γ
GLM-4           relatives.py       GLM Team 2024, 2025
Command R A     relatives.py       Cohere 2024, 2025
Mixtral         llama.py           Jiang et al. 2024                           experts
Qwen2, 3 MoE    qwen.py            Qwen Team 2024, 2025                        a gated expert for all tokens
gpt-oss         gpt_oss.py         OpenAI 2025                                 sinks, clipped experts
SmolLM3         olmo.py            Bakouch et al. 2025                         layers without positions
EXAONE 4        olmo.py            LG AI Research 2025
PaLM            parallel.py        Chowdhery et al. 2022                       parallel block
BLOOM           bloom.py           BigScience 2022                             ALiBi
MPT             bloom.py           MosaicML 2023
GPT-Neo         gpt.py             Black et al. 2021
StarCoder       gpt.py             Li et al. 2023
GPT-J           parallel.py        Wang and Komatsuzaki 2021
CodeGen         parallel.py        Nijkamp et al. 2022
GPT-NeoX Pythia parallel.py        Black et al. 2022; Biderman et al. 2023     a norm for each parallel part
OPT             gpt.py             Zhang et al. 2022                           narrow token vectors
Falcon          parallel.py        Almazrouei et al. 2023
Phi-1 2         phi.py             Li et al. 2023
Phi-3 4         phi.py             Abdin et al. 2024                           long rope
Phi-3.5-MoE     phi.py             Abdin et al. 2024; Liu et al. 2024          experts chosen one by one
DiffLlama       differential.py    Ye et al. 2024                              a difference of patterns
StableLM 1 2    relatives.py       Bellagente et al. 2024                      a norm of each head's q and k
StarCoder2      relatives.py       Lozhkov et al. 2024
DeepSeek-V2 V3  deepseek.py        DeepSeek-AI 2024; Kimi Team 2025            latent attention, experts
T5 1.0 1.1      t5.py              Raffel et al. 2020                          bucketed distances
UMT5            t5.py              Chung et al. 2023                           a bias of each layer
Switch          t5.py              Fedus et al. 2022                           one expert for each token
BART            bart.py            Lewis et al. 2020
mBART           bart.py            Liu et al. 2020
Marian          bart.py            Junczys-Dowmunt et al. 2018
Pegasus         bart.py            Zhang et al. 2020
M2M-100 NLLB    bart.py            Fan et al. 2021; NLLB Team 2022
Whisper         whisper.py         Radford et al. 2022                         mel bands, convolutions
ViT to text     vision_encoder_decoder.py  Dosovitskiy et al. 2021; Li et al. 2023     patches
S4              ssm.py             Gu et al. 2022                              long convolution
Mamba           ssm.py             Gu and Dao 2023                             selective state space
Falcon Mamba    ssm.py             Zuo et al. 2024                             normed Δ, B, C
Mamba-2         ssm.py             Dao and Gu 2024                             one decay per head
RetNet          linear.py          Sun et al. 2023                             a fixed decay per head
RWKV-4          linear.py          Peng et al. 2023                            decaying sums, token shift
linear          linear.py          Katharopoulos et al. 2020                   linear attention
DeltaNet        delta.py           Yang et al. 2025                            gated delta rule
Qwen3-Next 3.5  delta.py           Qwen Team 2025, 2026                        gated attention
GLA             linear.py          Yang et al. 2024                            decays chosen by the token
Based           linear.py          Arora et al. 2024                           Taylor series, convolutions
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from heedful.core.errors import NotFound, nearest
from heedful.models.base import Config, Family
from heedful.models.decoders import transformer_xl
from heedful.models.decoders.gpt_lineage import bloom, gpt, parallel
from heedful.models.decoders.llama_lineage import (
    deepseek,
    differential,
    gemma,
    gpt_oss,
    llama,
    olmo,
    phi,
    qwen,
    relatives,
)
from heedful.models.encoder_decoders import bart, t5, transformer, whisper
from heedful.models.encoders import baselines, bert, bert_variants, deberta, rotary_encoders, sparse
from heedful.models.recurrent import language_models, seq2seq
from heedful.models.state_space import delta, linear, ssm
from heedful.models.vision import vision_encoder_decoder

# Files in the order in which their families are listed. A family without a new part stands after its parent.
MODULES = (
    *(language_models, seq2seq, transformer),
    *(baselines, bert, bert_variants, deberta, rotary_encoders, sparse),
    *(gpt, llama, parallel, bloom, deepseek, phi, relatives, qwen, gemma, olmo, gpt_oss, differential),
    *(t5, bart, ssm, linear, delta, transformer_xl),
)


def families_in(*modules: ModuleType) -> dict[str, Family]:
    """The families that files declare, by name, in the order in which they stand there."""
    values = (value for module in modules for value in vars(module).values())
    return {value.name: value for value in values if isinstance(value, Family)}


FAMILIES = families_in(*MODULES)
MEDIA_FAMILIES = families_in(vision_encoder_decoder, whisper)  # read images or sounds; FAMILIES read text
BUILT_IN = frozenset(FAMILIES | MEDIA_FAMILIES)


def all_families() -> dict[str, Family]:
    """Every family by its name: ours, and those of other packages and files."""
    from heedful.models.plugins import load_plugins

    load_plugins()
    return FAMILIES | MEDIA_FAMILIES


def presets() -> dict[str, tuple[Family, Config]]:
    """Every published size by the name people know."""
    every = all_families().values()
    return {name: (family, config) for family in every for name, config in family.presets.items()}


def find_config(name: str) -> tuple[Family, Config]:
    """The family and config of a preset, or of a family by its own name; else an error with the nearest."""
    sizes, every = presets(), all_families()
    if not isinstance(name, str):
        raise NotFound(
            f"a model is built by its name, and {type(name).__name__} is none",
            hint='give sizes as well: build("gpt2", layers=2)',
        )
    if name in sizes:
        return sizes[name]
    if name in every:
        return every[name], every[name].config.strict()
    raise NotFound(
        f"no model is called {name!r}",
        hint=nearest(name, [*sizes, *every]) or "list them with: heed ls",
    )


def find_family(name: str) -> Family | None:
    """The family of this name, if there is one."""
    return all_families().get(name)


REFUSED = {
    "heedful-assembled": "its parts are your own: assemble it again, then heedful.load(FOLDER, into=model)",
    "gemma3": "its config.json should have a text_config, of the text model in it: fetch it again",
    "hf_olmo": "this is OLMo's own format: fetch the copy whose name ends in -hf",
    "mixformer-sequential": "this Phi has an early format: fetch it again, it says phi now",
    "phi-msft": "this Phi has an early format: fetch it again, it says phi now",
    "RefinedWeb": "this Falcon has an early format: fetch it again, it says falcon now",
    "RefinedWebModel": "this Falcon has an early format: fetch it again, it says falcon now",
    "stablelm_epoch": "this StableLM has an early format: fetch it again, it says stablelm now",
}  # `model_type`s of published files that are near to ours, and what to fetch instead


def by_model_type(model_type: str) -> Family:
    """The family that a published `model_type` belongs to."""
    table = {t: f for f in all_families().values() for t in (*f.model_types, f"heedful-{f.name}")}
    if model_type == "None":
        raise NotFound(
            "config.json has no model_type, so the family of these weights is unknown",
            hint="fetch a copy in the format of transformers, or add it",
        )
    if model_type not in table:
        # A published name that is near to a known one is no slip of the pen, but another architecture.
        own = model_type.startswith("heedful-")
        alike = sorted(name for name in table if name.startswith("heedful-") == own)
        raise NotFound(
            f"config.json has model_type={model_type!r:.80}, which is not known here",
            hint=REFUSED.get(model_type)
            or (nearest(model_type, alike, cutoff=0.75) if own else "")
            or f"known: {', '.join(alike)}",
        )
    return table[model_type]


def by_gguf(metadata: Mapping[str, Any], where: str) -> Family:
    """The family that reads a GGUF file with these metadata; `where` names it in errors."""
    kind, architecture = metadata.get("general.type", "model"), metadata.get("general.architecture")
    if kind != "model":
        raise NotFound(
            f"{where} holds no model: its general.type is {kind!r:.40}", hint="load the model itself"
        )
    if not architecture:
        raise NotFound(
            f"{where} does not say what it holds: it has no general.architecture", hint="fetch it again"
        )
    named = [family for family in FAMILIES.values() if family.gguf == architecture]
    matching = [family for family in named if family.gguf_when and metadata.get(family.gguf_when)]
    for family in matching or (family for family in named if not family.gguf_when):
        return family
    names = ", ".join(sorted({family.gguf for family in FAMILIES.values() if family.gguf}))
    raise NotFound(f"{where} holds a {architecture!r:.80}", hint=f"GGUF is read here for {names}")
