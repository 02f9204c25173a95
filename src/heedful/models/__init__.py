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
DistilBERT      bert.py            Sanh et al. 2019
MPNet           mpnet.py           Song et al. 2020                            distances beside positions
ModernBERT      modernbert.py      Warner et al. 2024                          local and global layers
NomicBERT       nomic.py           Nussbaum et al. 2024                        rotary in an encoder
ALBERT          albert.py          Lan et al. 2020                             shared layers
ELECTRA         electra.py         Clark et al. 2020                           replaced-token detection
DeBERTa v1 v2 3 deberta.py         He et al. 2021, 2023                        disentangled attention
GPT             gpt.py             Radford et al. 2018
GPT-2           gpt.py             Radford et al. 2019
GPT-3           gpt.py             Brown et al. 2020                           banded layers
LLaMA 1 2 3     llama.py           Touvron et al. 2023                         rotary, gated MLP
Mistral         llama.py           Jiang et al. 2023                           window
Qwen2 2.5       qwen.py            Qwen Team 2024                              biases on q, k and v
Qwen3           qwen.py            Qwen Team 2025                              normalised q and k
Gemma 1 2 3     gemma.py           Gemma Team 2024, 2025                       norms around parts, soft caps
OLMo 1 2        olmo.py            Groeneveld et al. 2024; OLMo Team 2024      norms after parts
Mixtral         mixtral.py         Jiang et al. 2024                           experts
Qwen2, 3 MoE    qwen.py            Qwen Team 2024, 2025                        a gated expert for all tokens
gpt-oss         gpt_oss.py         OpenAI 2025                                 sinks, clipped experts
SmolLM3         smollm3.py         Bakouch et al. 2025                         layers without positions
PaLM            palm.py            Chowdhery et al. 2022                       parallel block
BLOOM           bloom.py           BigScience 2022                             ALiBi
GPT-J           gptj.py            Wang and Komatsuzaki 2021
GPT-NeoX Pythia neox.py            Black et al. 2022; Biderman et al. 2023     a norm for each parallel part
OPT             opt.py             Zhang et al. 2022                           narrow token vectors
Falcon          falcon.py          Almazrouei et al. 2023
Phi-1 2         phi.py             Li et al. 2023
Phi-3 4         phi.py             Abdin et al. 2024                           long rope
StableLM 1 2    stablelm.py        Bellagente et al. 2024                      a norm for each head's q and k
StarCoder2      starcoder2.py      Lozhkov et al. 2024
DeepSeek-V2 V3  deepseek.py        DeepSeek-AI 2024                            latent attention, experts
T5 1.0 1.1      t5.py              Raffel et al. 2020                          bucketed distances
BART            bart.py            Lewis et al. 2020
Marian          bart.py            Junczys-Dowmunt et al. 2018
ViT to text     vision_encoder_decoder.py  Dosovitskiy et al. 2021; Li et al. 2023     patches
S4              s4.py              Gu et al. 2022                              long convolution
Mamba           mamba.py           Gu and Dao 2023                             selective state space
Mamba-2         mamba2.py          Dao and Gu 2024                             one decay per head
linear          linear.py          Katharopoulos et al. 2020                   linear attention
DeltaNet        deltanet.py        Yang et al. 2025                            gated delta rule
GLA             linear.py          Yang et al. 2024                            decays chosen by the token
Based           linear.py          Arora et al. 2024                           Taylor series, convolutions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.core.errors import NotFound, nearest
from heedful.models.base import Config, Family
from heedful.models.decoders.gpt_lineage.bloom import BLOOM
from heedful.models.decoders.gpt_lineage.falcon import FALCON
from heedful.models.decoders.gpt_lineage.gpt import GPT, GPT2, GPT3
from heedful.models.decoders.gpt_lineage.gptj import GPTJ
from heedful.models.decoders.gpt_lineage.neox import NEOX
from heedful.models.decoders.gpt_lineage.opt import OPT
from heedful.models.decoders.gpt_lineage.palm import PALM
from heedful.models.decoders.llama_lineage.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from heedful.models.decoders.llama_lineage.gemma import GEMMA, GEMMA2, GEMMA3
from heedful.models.decoders.llama_lineage.gpt_oss import GPT_OSS
from heedful.models.decoders.llama_lineage.llama import LLAMA, MISTRAL
from heedful.models.decoders.llama_lineage.mixtral import MIXTRAL
from heedful.models.decoders.llama_lineage.olmo import OLMO, OLMO2
from heedful.models.decoders.llama_lineage.phi import PHI, PHI3
from heedful.models.decoders.llama_lineage.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from heedful.models.decoders.llama_lineage.smollm3 import SMOLLM3
from heedful.models.decoders.llama_lineage.stablelm import STABLELM
from heedful.models.decoders.llama_lineage.starcoder2 import STARCODER2
from heedful.models.encoder_decoders.bart import BART, MARIAN
from heedful.models.encoder_decoders.t5 import MT5, T5
from heedful.models.encoder_decoders.transformer import TRANSFORMER
from heedful.models.encoders.albert import ALBERT
from heedful.models.encoders.baselines import BILSTM, CNN
from heedful.models.encoders.bert import BERT, DISTILBERT, ROBERTA, XLM_ROBERTA
from heedful.models.encoders.deberta import DEBERTA, DEBERTA_V2
from heedful.models.encoders.electra import ELECTRA
from heedful.models.encoders.modernbert import MODERNBERT
from heedful.models.encoders.mpnet import MPNET
from heedful.models.encoders.nomic import NOMIC_BERT
from heedful.models.recurrent.language_models import GRU_LM, LSTM_LM, RNN_LM
from heedful.models.recurrent.seq2seq import LUONG, RNNSEARCH, SEQ2SEQ
from heedful.models.state_space.deltanet import OLMO_HYBRID
from heedful.models.state_space.linear import BASED, GLA, LINEAR
from heedful.models.state_space.mamba import MAMBA
from heedful.models.state_space.mamba2 import MAMBA2
from heedful.models.state_space.s4 import S4_LM
from heedful.models.vision.vision_encoder_decoder import VISION

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(RNN_LM, LSTM_LM, GRU_LM, SEQ2SEQ, RNNSEARCH, LUONG),
        TRANSFORMER,
        *(BILSTM, CNN, BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, ALBERT, ELECTRA, DEBERTA, DEBERTA_V2),
        *(MPNET, NOMIC_BERT, MODERNBERT),
        *(GPT, GPT2, GPT3, LLAMA, MISTRAL, PALM, BLOOM, DEEPSEEK_V2, DEEPSEEK_V3),
        *(GPTJ, NEOX, OPT, FALCON, PHI, PHI3, STABLELM, STARCODER2),
        *(QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, OLMO, OLMO2, SMOLLM3),
        *(MIXTRAL, QWEN2_MOE, QWEN3_MOE, GPT_OSS),
        *(T5, MT5, BART, MARIAN),
        *(S4_LM, MAMBA, MAMBA2, LINEAR, GLA, BASED, OLMO_HYBRID),
    )
}

IMAGE_FAMILIES: dict[str, Family] = {VISION.name: VISION}  # those that read images; FAMILIES read text


def presets() -> dict[str, tuple[Family, Config]]:
    """Every published size by the name people know."""
    every = (*FAMILIES.values(), *IMAGE_FAMILIES.values())
    return {name: (family, config) for family in every for name, config in family.presets.items()}


def find_config(name: str) -> tuple[Family, Config]:
    """The family and config of a preset, or of a family by its own name; else an error with the nearest."""
    known, every = presets(), FAMILIES | IMAGE_FAMILIES
    if not isinstance(name, str):
        raise NotFound(
            f"a model is built by its name, and {type(name).__name__} is none",
            hint='give sizes beside it: build("gpt2", layers=2)',
        )
    if name in known:
        return known[name]
    if name in every:
        return every[name], every[name].config.strict()
    raise NotFound(
        f"no model is called {name!r}", hint=nearest(name, [*known, *every]) or "list them with: heed ls"
    )


def find_family(name: str) -> Family | None:
    """The family of this name, if there is one."""
    return (FAMILIES | IMAGE_FAMILIES).get(name)


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
    every = (*FAMILIES.values(), *IMAGE_FAMILIES.values())
    table = {t: f for f in every for t in (*f.model_types, f"heedful-{f.name}")}
    if model_type == "None":
        raise NotFound(
            "config.json has no model_type, so what these weights are cannot be told",
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
    told = [family for family in named if family.gguf_when and metadata.get(family.gguf_when)]
    for family in told or (family for family in named if not family.gguf_when):
        return family
    known = ", ".join(sorted({family.gguf for family in FAMILIES.values() if family.gguf}))
    raise NotFound(f"{where} holds a {architecture!r:.80}", hint=f"GGUF is read here for {known}")
