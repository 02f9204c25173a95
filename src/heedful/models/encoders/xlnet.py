"""XLNet (Yang et al. 2019, arXiv 1906.08237): an encoder that learns to predict words in every order.

BERT predicts hidden words independently of each other, and reads a mask in training that no later text has.
A decoder has neither flaw, but sees one side alone. XLNet draws a random order of the words of every text and
predicts each from those before it in that order. Positions stay what they are: only who sees whom is drawn.
Over many orders a word learns to use all others, on both sides. Two streams make this possible (see
models/permuted.py). From Transformer-XL it takes distances in the place of positions, and segments that look
back at earlier ones. It also asks of two tokens only whether they belong to the same sentence, not to which.

From Transformer-XL to XLNet:  both sides seen   words predicted in a drawn order   a term for sentences
"""

from __future__ import annotations

from heedful.models.base import Model
from heedful.models.encoders.bert import encoder_head
from heedful.models.family import PlainConfig, declare
from heedful.models.permuted import PermutedLM
from heedful.models.shared import plain_stack
from heedful.nn.attention.relative import SentenceRelativeAttention
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import PlainMLMHead, Pooler
from heedful.weights.names import Row
from heedful.weights.ops import HeadsLast, Reshape


def xlnet(c: PlainConfig) -> Model:
    attn = lambda i: SentenceRelativeAttention(c.dim, c.heads, dropout=c.dropout)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), dropout=c.dropout)
    stack = plain_stack(c, attn=attn, ffn=ffn, order="post")
    words = lambda: PlainMLMHead(c.dim, c.vocab, tied=c.tied, bias=True)
    head = encoder_head(c, lambda: Pooler(c.dim, token="last"), mlm=words)
    return PermutedLM(Embedding(c.vocab, c.dim, dropout=c.dropout), stack, head)


def xlnet_names(c: PlainConfig) -> list[Row]:
    layer, ours = "transformer.layer.*", "blocks.*.attn"
    heads, each = HeadsLast(c.heads), "{q,k,v,r}"
    return [
        ("transformer.word_embedding", "embed.token"),
        ("transformer.mask_emb", "unknown", Reshape((1, 1, -1))),
        (f"{layer}.rel_attn.{each}", f"{ours}.{{q,k,v,distance}}.weight", heads),
        (f"{layer}.rel_attn.o", f"{ours}.o.weight", Reshape((c.dim, c.heads, -1))),
        (f"{layer}.rel_attn.{{r_w,r_r,r_s}}_bias", f"{ours}.{{content,distance,sentence}}_bias"),
        (f"{layer}.rel_attn.seg_embed", f"{ours}.sentences"),
        (f"{layer}.{{rel_attn,ff}}.layer_norm", "blocks.*.{attn,ffn}_norm"),
        (f"{layer}.ff.{{layer_1,layer_2}}", "blocks.*.ffn.{up,down}"),
        ("{lm_loss,qa_outputs,classifier}", "head.{out,span,tag}"),
        ("{sequence_summary.summary,logits_proj}", "head.{pool.dense,label}"),
    ]


XLNET = declare(
    "xlnet", PlainConfig, xlnet,
    sizes=dict(vocab=32000, dim=1024, layers=24, heads=16, norm_eps=1e-12, head="mlm"),
    names=xlnet_names, prefix="transformer", objective="permuted",
    keys={
        "d_model": "dim", "n_layer": "layers", "n_head": "heads", "d_inner": "hidden",
        "ff_activation": "act", "layer_norm_eps": "norm_eps", "dropout": "dropout",
    },
    presets={"xlnet-base-cased": dict(dim=768, layers=12, heads=12), "xlnet-large-cased": {}},
    heads={
        "mlm": "XLNetLMHeadModel", "classify": "XLNetForSequenceClassification", "none": "XLNetModel",
        "tag": "XLNetForTokenClassification", "span": "XLNetForQuestionAnsweringSimple",
    },
    require={
        "attn_type": ("bi",), "bi_data": (False,), "clamp_len": (-1,), "summary_type": ("last",),
        "summary_use_proj": (True,), "summary_activation": ("tanh",),
    },
    paper="Yang et al. 2019, arXiv 1906.08237",
)  # fmt: skip
