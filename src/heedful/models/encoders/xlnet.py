"""XLNet (Yang et al. 2019, arXiv 1906.08237): an encoder that learns to predict words in every order.

BERT predicts hidden words independently of each other, and reads a mask in training that no later text has.
A decoder has neither flaw, but sees one side alone. XLNet draws a random order of the words of every text and
predicts each from those before it in that order. Positions stay what they are: only who sees whom is drawn.
Over many orders a word learns to use all others, on both sides. From Transformer-XL it takes distances in
the place of positions, and segments that look back at earlier ones. It also asks of two tokens only whether
they belong to the same sentence, not to which.

From Transformer-XL to XLNet:  both sides seen   words predicted in a drawn order   a term for sentences

Two streams make this possible (§2.3). To predict a word from those before it in some order, a position must
know where it stands and not what. To help predict later words, it must know both. So every position has two
vectors: one of content, as usual, and one that begins with a learned vector in the place of the word, and
looks at the content of earlier positions. Here the second vectors stand behind the first as further positions
of one text. A mask says who sees whom, and every layer is the same as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.models.base import LM, Model, State
from heedful.models.calls import advance, check_beside, positions
from heedful.models.encoders.bert import encoder_head
from heedful.models.family import PlainConfig, declare
from heedful.models.shared import plain_stack
from heedful.nn.attention.relative import SentenceRelativeAttention
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import PlainMLMHead, Pooler
from heedful.weights.names import Row
from heedful.weights.ops import HeadsLast, Reshape

NEVER = 2**30  # the rank of a key that nobody sees


@dataclass(frozen=True)
class OrderMask(Mask):
    """A query sees the keys whose rank in the order lies below its own limit; both are (B, N)."""

    ranks: Tensor | None = None
    limits: Tensor | None = None

    @property
    def is_causal_only(self) -> bool:
        return False

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        assert self.ranks is not None
        assert self.limits is not None
        seen = self.ranks[:, None, None] < self.limits[:, None, :, None]
        return seen & super().dense(q_pos, k_pos)


class PermutedLM(LM):
    """An encoder that also predicts its words in a given order, and reads a text segment by segment."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, causal=False, **more)
        self.unknown = nn.Parameter(
            torch.zeros(self.embed.table.shape[1])
        )  # stands for a word to be predicted

    def in_order(
        self, tokens: Tensor, order: Tensor, *, valid: Tensor | None = None, types: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:  # fmt: skip
        """The vectors (B, T, D) from which each word is predicted, having seen those of lower `order`.

        `order` (B, T) is the rank of each position; where ranks are equal, none sees the other.
        """
        self.check(tokens, self.embed, valid)
        check_beside(tokens, order, "order")
        T, pos = tokens.shape[1], positions(valid, tokens.shape[1], tokens.device)
        twice = lambda t: None if t is None else torch.cat((t, t), 1)
        mask = OrderMask(
            valid=twice(valid), ranks=torch.cat((order, torch.full_like(order, NEVER)), 1),
            limits=torch.cat((order + 1, order), 1),
        )  # fmt: skip
        if watch is not None:
            watch.begin()
        plain = Context(pos, pos, Mask(valid=valid), valid_new=valid, watch=watch)
        content = self.embed(tokens, plain.at("embed"))
        both = torch.cat((content, self.unknown.to(content.dtype).expand_as(content)), 1)
        ctx = replace(
            plain,
            q_pos=pos.repeat(1, 2),
            k_pos=pos.repeat(1, 2),
            mask=mask,
            valid_new=twice(valid),
            types=twice(types),
        )
        hidden = self.blocks(both, ctx.at("blocks"))[:, T:]
        ctx.end()
        return hidden

    def read_on(self, tokens: Tensor, state: State) -> Tensor:
        """The vectors (B, T, D) of a further segment, which sees those before it: what `state` remembers."""
        ctx = advance(tokens, state)
        return self.decode(tokens, replace(ctx, mask=replace(ctx.mask, causal=False)), state.parts)


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
