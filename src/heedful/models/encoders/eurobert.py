"""EuroBERT (Boizard et al. 2025, arXiv 2503.05500).

From LLaMA:  every position sees all others   trained on masked words
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, LlamaConfig, llama
from heedful.models.family import descend, no_token_ids
from heedful.nn.head import NoHead, PlainMLMHead, TagHead, choose_head
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class EuroBertConfig(LlamaConfig):
    vocab: int = 128256
    dim: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    context: int = 8192
    rope_base: float = 250000.0
    norm_eps: float = 1e-5
    head: str = "mlm"


def eurobert(c: EuroBertConfig) -> LM:
    head = choose_head(
        c.head, mlm=lambda: PlainMLMHead(c.dim, c.vocab, tied=c.tied, bias=c.ffn_bias),
        tag=lambda: TagHead(c.dim, c.labels), none=NoHead,
    )  # fmt: skip
    return llama(c, head=head, causal=False)


OWN_NAMES: list[Row] = [("classifier", "head.tag"), *NAMES]

EUROBERT = descend(
    LLAMA, "eurobert", EuroBertConfig, build=eurobert, names=OWN_NAMES, objective="masked",
    presets={
        "eurobert-210m": {},
        "eurobert-610m": dict(dim=1152, layers=26, heads=18, kv_heads=6, hidden=4096),
        "eurobert-2.1b": dict(dim=2304, layers=32, heads=18, kv_heads=6, hidden=6144),
    },
    tiny=dict(head="mlm"),
    heads={"mlm": "EuroBertForMaskedLM", "tag": "EuroBertForTokenClassification", "none": "EuroBertModel"},
    usual=no_token_ids, absent={"rope_theta": 10000.0}, paper="Boizard et al. 2025, arXiv 2503.05500",
)  # fmt: skip
