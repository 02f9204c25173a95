"""Encoder-decoders that write text about what is not text: an image, or sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.models.base import Seq2Seq, State
from heedful.nn.block import Stack
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.embedding import Embedding, MediaEmbedding
from heedful.nn.head import Head


class MediaSeq2Seq(Seq2Seq):
    """numbers → pieces → encoder → memory → decoder → head; the memory has a vector for each piece.

    Pieces are the patches of an image, or moments of sound. `project` makes the memory as wide as the decoder
    where that does not read the encoder's own width.
    """

    embed: MediaEmbedding

    def __init__(
        self, embed: MediaEmbedding, encoder: Stack, decoder: Stack, head: Head, *,
        target_embed: Embedding, project: nn.Linear | None = None, start_token: int,
    ) -> None:  # fmt: skip
        super().__init__(embed, encoder, decoder, head, target_embed=target_embed, start_token=start_token)
        self.project = project

    def forward(self, source: Tensor, target: Tensor | None = None, **how: Any) -> Tensor:
        """Logits (B, T, V) of what is written about the source, given target[:, :t+1]."""
        if target is None:
            raise InputError(
                f"a model that reads {self.embed.media} needs a target", hint="generate writes one"
            )
        return super().forward(source, target, **how)

    @property
    def tables(self) -> dict[str, Embedding]:
        """Only text has a table: what stands for tokens is the target's."""
        return {"tokens": self.decoder_embed, "target": self.decoder_embed}

    def check_ids(self, tokens: Tensor, embed: Embedding, name: str = "tokens") -> None:
        if not tokens.is_floating_point():  # only text has ids
            super().check_ids(tokens, embed, name)

    def _read(
        self,
        source: Tensor,
        *,
        valid: Tensor | None = None,
        watch: Watch | None = None,
        backend: str = "auto",
    ) -> State:
        self.embed.check_source(source)
        if valid is not None:
            raise InputError(f"{self.embed.media} have no padding", hint="leave valid out")
        runs: frozenset[int] = frozenset() if watch is None else watch.begin()
        pos = torch.arange(self.embed.count, device=source.device)[None]
        ctx = Context(pos, pos, Mask(), watch=watch, backend=backend)
        memory = self.encoder(self.embed(source, ctx.at("embed")), ctx.at("encoder"))
        return State(None, memory=memory if self.project is None else self.project(memory), runs=runs)
