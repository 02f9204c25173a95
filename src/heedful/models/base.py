"""What every model is: an LM or a Seq2Seq over parts, and the State it decodes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError, InputError
from heedful.kernels.cpu.block_tensor import widen_parameters
from heedful.models.assembled import ASSEMBLED, describe_parts
from heedful.models.calls import (
    ForwardOptions,
    State,
    StepOptions,
    WatchOptions,
    advance,
    check_beside,
    check_ids_tensor,
    document_positions,
    evaluation_mode,
    positions,
)
from heedful.models.family import Config, Family, Tokenizer, derived, from_zero
from heedful.models.value_names import Shape, value_names
from heedful.nn.attention.attentive import Bridge
from heedful.nn.block import Stack
from heedful.nn.context import Context, Mask, PartState, Watch
from heedful.nn.embedding import Embedding, MediaEmbedding
from heedful.nn.head import ContrastHead, Head, NoHead, pool_tokens
from heedful.nn.position import Rotary
from heedful.nn.state import keep_all_keys

__all__ = [
    "LM", "Config", "DualEncoder", "Family", "MediaLM", "MediaSeq2Seq", "Model", "Seq2Seq", "State",
    "Tokenizer", "derived", "evaluation_mode", "from_zero",
]  # fmt: skip


class Model(nn.Module):
    """What LM and Seq2Seq share: a config, a family, perhaps a tokenizer, and checks of their input."""

    config: Config
    family: Family
    tokenizer: Any = None
    hf_config: dict[str, Any]  # the config.json it came with, so that saving loses nothing
    generation: dict[str, Any]  # and the generation_config.json, if any
    pooling: Any = None  # how its token vectors become one for a sentence
    image_processor: Any = None  # how an image becomes what it reads
    sound_processor: Any = None  # how sound does; if both are None, it reads text
    origin: Any = None  # how its checkpoint was laid out, so that saving gives it back
    mesh: Any = None  # the processes that it is split over (models/tensor_parallel.py); None: it is whole

    def tie(self) -> None:
        """Make shared matrices one again, after parameters were replaced."""

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; training makes float32 of weights that are held in blocks."""
        if mode:
            widen_parameters(self)
        return super().train(mode)

    def float(self) -> Self:
        """Make float32 of all weights, also of those that are held in blocks."""
        widen_parameters(self)
        return super().float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        probe = torch.empty(0)
        if fn(probe) is not probe:  # another device or type, for which there are no kernels that read blocks
            widen_parameters(self)
        return super()._apply(fn, recurse)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("config", "family"):  # of parts that no family has joined
                self.config, self.family = describe_parts(self), ASSEMBLED
                return self.__dict__[name]
            return super().__getattr__(name)

    @property
    def kind(self) -> str:
        """encoder, decoder or encoder-decoder."""
        raise NotImplementedError

    @property
    def tables(self) -> dict[str, Embedding]:
        """The embeddings by the name of what they read: tokens, or source and target."""
        raise NotImplementedError

    @property
    def processor(self) -> Any:
        """How an image or a sound becomes the model's input; None if it reads text."""
        return self.sound_processor if self.image_processor is None else self.image_processor

    @property
    def label_names(self) -> list[str]:
        """The labels of a classifying head in order: the checkpoint's `id2label`, else LABEL_0, LABEL_1, …"""
        named = self.hf_config.get("id2label") or {i: f"LABEL_{i}" for i in range(self.config.labels)}
        return [str(name) for _, name in sorted(named.items(), key=lambda item: int(item[0]))]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def names(self, *, batch: int | None = None, length: int | None = None) -> dict[str, Shape]:
        """Return the shape of every value a `Watch` can see, by its name. Nothing is computed.

        B is the batch, T the length and S that of an encoder-decoder's source, unless they are given.
        """
        return value_names(self, batch, length)

    def check(self, tokens: Tensor, embed: Embedding, valid: Tensor | None, name: str = "tokens") -> None:
        """One clear error for ids outside the vocabulary, wrong shapes, and more tokens than positions."""
        check_ids_tensor(tokens, name)
        if valid is not None and (valid.shape != tokens.shape or valid.dtype != torch.bool):
            got = f"{tuple(valid.shape)} of {valid.dtype}"
            raise InputError(f"valid must be a bool tensor of shape {tuple(tokens.shape)}, got {got}")
        if torch.compiler.is_compiling() or tokens.is_meta:
            return
        # Looking at ids on a GPU makes the host wait, so a training step looks at them before they travel.
        if not (tokens.is_cuda and torch.is_grad_enabled()):
            self.check_ids(tokens, embed, name)
        self.check_reach(tokens.shape[1], embed, valid, name)

    def check_ids(self, tokens: Tensor, embed: Embedding, name: str = "tokens") -> None:
        """One clear error for an id outside the vocabulary."""
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= embed.vocab:
            bad = low if low < 0 else high
            vocabulary = f"the vocabulary is 0 … {embed.vocab - 1}"
            raise InputError(f"{name} has the id {bad}", hint=f"{vocabulary}: was another tokenizer used?")

    def check_reach(self, length: int, embed: Embedding, valid: Tensor | None, name: str = "tokens") -> None:
        """One clear error for a sequence that learned positions do not reach; padding does not count."""
        if embed.context is None or length <= embed.context:
            return
        length = length if valid is None else int(valid.sum(1).max())
        if length > embed.context:
            raise InputError(
                f"{name} is {length} long",
                hint=(
                    f"this model has learned positions for {embed.context}: shorten it or split it into "
                    f"pieces of at most {embed.context}"
                ),
            )


class LM(Model):
    """embed → blocks → head. Decoder-only if causal, encoder-only if not: the mask decides."""

    def __init__(
        self, embed: Embedding, blocks: Stack, head: Head | None = None, *, causal: bool = True
    ) -> None:
        super().__init__()
        self.embed, self.blocks, self.head, self.causal = embed, blocks, head or NoHead(), causal
        self.hf_config, self.generation = {}, {}
        self.tie()

    @property
    def kind(self) -> str:
        return "decoder" if self.causal else "encoder"

    @property
    def tables(self) -> dict[str, Embedding]:
        return {"tokens": self.embed}

    def tie(self) -> None:
        self.head.tie(self.embed.table)

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        types: Tensor | None = None,
        documents: Tensor | None = None,
        watch: Watch | None = None,
        backend: str = "auto",
    ) -> Tensor:
        """Logits: (B, T, V) of a language model, else as the head says."""
        hidden, ctx = self.read(
            tokens, valid=valid, types=types, documents=documents, watch=watch, backend=backend
        )
        return self.head.predict(hidden, ctx)

    def check_tokens(self, tokens: Tensor, valid: Tensor | None) -> int:
        """Raise InputError for what cannot be read; return how many vectors the blocks get."""
        self.check(tokens, self.embed, valid)
        return tokens.shape[1]

    def encode(self, tokens: Tensor, **how: Unpack[ForwardOptions]) -> Tensor:
        """The last hidden states (B, T, D), before any head."""
        hidden, ctx = self.read(tokens, **how)
        ctx.end()
        return hidden

    def read(
        self, tokens: Tensor, *, path: str = "", **how: Unpack[ForwardOptions]
    ) -> tuple[Tensor, Context]:
        """The last hidden states and the context a head is called with: for objectives that use two heads.

        The names of all values begin with `path`, the name of this model within another one.
        """
        valid, types, documents = how.get("valid"), how.get("types"), how.get("documents")
        watch, backend = how.get("watch"), how.get("backend", "auto")
        count = self.check_tokens(tokens, valid)
        type_count = self.embed.types
        check_beside(tokens, types, "types", None if type_count is None else type_count.num_embeddings)
        check_beside(tokens, documents, "documents")
        pos, fresh, length = positions(valid, count, tokens.device), None, None
        if documents is not None:
            pos, fresh, length = document_positions(documents, valid)
        mask = Mask(causal=self.causal, valid=valid, q_documents=documents, k_documents=documents)
        if watch is not None:
            watch.begin()
        ctx = Context(
            pos, pos, mask, valid_new=valid, fresh=fresh, types=types, text_length=length, watch=watch,
            path=path, backend=backend,
        )  # fmt: skip
        x = self.embed(tokens, ctx.at("embed"), types)
        return self.blocks(x, ctx.at("blocks")), ctx

    def new_state(self, batch: int, length: int = 0) -> State:
        """An empty memory, with room for about `length` positions."""
        scalings = [part.scaling for part in self.blocks.modules() if isinstance(part, Rotary)]
        lengths = {s.reread_length for s in scalings if s is not None and s.reread_length is not None}
        return State(self.blocks.new_state(batch, length), reread_lengths=tuple(sorted(lengths)))

    @torch.no_grad()
    def start(
        self,
        prompt: Tensor,
        *,
        valid: Tensor | None = None,
        length: int = 0,
        chunk: int | None = None,
        state: State | None = None,
        watch: Watch | None = None,
    ) -> State:
        """Read the prompt (B, T); `state.logits` are those of the next token.

        `length` is how much will be written in all; `chunk` reads the prompt in pieces of that size; `state`
        is one made before, with its own caches: empty, or with the beginning of a text of `state.prompt`
        tokens. Under a watch all keys are kept, even with a window.
        """
        if not self.causal:
            raise InputError(
                "an encoder reads in both directions and cannot generate",
                hint="load a decoder or an encoder-decoder",
            )
        self.check(prompt, self.embed, valid)
        if state is None:
            state = self.new_state(len(prompt), max(length, prompt.shape[1]))
            state.parts = state.parts if watch is None else keep_all_keys(state.parts)
        if not state.past and not isinstance(state.prompt, Tensor):  # its pieces are one text
            state.prompt = max(state.prompt, prompt.shape[1]) if valid is None else valid.sum(1, keepdim=True)
        pieces = prompt.split(chunk or prompt.shape[1], 1)
        valids = [None] * len(pieces) if valid is None else valid.split(chunk or prompt.shape[1], 1)
        last = None
        for piece, valid_piece in zip(pieces, valids, strict=True):
            hidden, ctx = self._advance(piece, state, valid=valid_piece, watch=watch)
            newest = pool_tokens(hidden, ctx.valid_new, "last")
            if ctx.at("head").watches("logits"):
                newest = pool_tokens(self.head.predict(hidden, ctx), ctx.valid_new, "last")
            # A row whose piece is all padding keeps what it had.
            keep = None if valid_piece is None or last is None else valid_piece.any(1, keepdim=True)
            last = newest if keep is None or last is None else torch.where(keep, newest, last)
        assert last is not None
        shown = ctx.at("head").watches("logits")
        state.logits = last if shown else self.head(last[:, None], ctx)[:, 0]
        ctx.end()
        return state

    def step(self, tokens: Tensor, state: State, **how: Unpack[StepOptions]) -> Tensor:
        """Logits (B, T, V) of the next tokens, given all that the state remembers."""
        T, valid = tokens.shape[1], how.get("valid")
        several = bool(state.reread_lengths) and state.past > 0 and T > 1
        if several and state.changes_between(state.lengths(1), state.lengths(T)):  # between two of them
            watch, backend = how.get("watch"), how.get("backend", "auto")
            valids = [None] * T if valid is None else valid.split(1, 1)
            steps = zip(tokens.split(1, 1), valids, strict=True)
            return torch.cat(
                [self.step(new, state, valid=mask, watch=watch, backend=backend) for new, mask in steps], 1
            )
        return self.head.predict(*self._advance(tokens, state, **how))

    def _advance(self, tokens: Tensor, state: State, **how: Unpack[StepOptions]) -> tuple[Tensor, Context]:
        if state.reread_lengths and state.past:
            valid = how.get("valid")
            after = state.lengths(tokens.shape[1] if valid is None else valid.sum(1, keepdim=True))
            if state.is_stale or state.changes_between(state.lengths(), after):
                self.read_again(state, after, how.get("watch"))
        ctx = advance(tokens, state, **how)
        self.check_reach(state.past, self.embed, state.valid)
        return self.decode(tokens, ctx, state.parts), ctx

    def read_again(self, state: State, lengths: Tensor, watch: Watch | None) -> None:
        """Let a state remember its tokens as those of texts of other `lengths`, (B, 1) or one number.

        longrope gives every position another angle in a text of more than n₀ tokens, so that the keys and
        values of all layers are other ones (see nn/position.py). Nobody watches this pass.
        """
        assert state.tokens is not None
        again = self.new_state(len(state.tokens), state.past)
        again.prompt = lengths if lengths.dim() else int(lengths)
        ctx = advance(state.tokens, again, valid=state.valid)
        parts = again.parts if watch is None else keep_all_keys(again.parts)
        self.decode(state.tokens, ctx, parts)
        state.parts, state.prompt, state.is_stale = parts, again.prompt, False

    def decode(self, tokens: Tensor, ctx: Context, parts: PartState | None) -> Tensor:
        """The last hidden states of tokens that follow what `parts` remember: the body of every step."""
        return self.blocks(self.embed(tokens, ctx.at("embed")), ctx.at("blocks"), parts)


class Seq2Seq(Model):
    """encoder → memory → decoder → head.

    `bridge` makes the decoder's first state from what the encoder remembers: recurrent models have one,
    the others look at the memory alone. `project` makes the memory as wide as the decoder, where that does
    not read the encoder's own width.
    """

    kind = "encoder-decoder"

    def __init__(
        self,
        embed: Embedding,
        encoder: Stack,
        decoder: Stack,
        head: Head,
        *,
        target_embed: Embedding | None = None,
        bridge: Bridge | None = None,
        project: nn.Linear | None = None,
        start_token: int = 0,
    ) -> None:
        super().__init__()
        # The tables come first: a matrix that a head shares with one bears the table's name.
        self.embed, self.target_embed = embed, target_embed
        self.encoder, self.decoder, self.head = encoder, decoder, head
        if start_token >= self.decoder_embed.vocab:
            last = self.decoder_embed.vocab - 1
            raise ConfigError(
                f"`start_token={start_token}` is not a token", hint=f"the vocabulary is 0 … {last}"
            )
        self.bridge, self.project, self.start_token = bridge, project, start_token
        self.hf_config, self.generation = {}, {}
        self.tie()

    @property
    def decoder_embed(self) -> Embedding:
        """The target side's embedding; the source's own if there is one for both."""
        return self.target_embed if self.target_embed is not None else self.embed

    @property
    def tables(self) -> dict[str, Embedding]:
        return {"tokens": self.embed, "target": self.decoder_embed}

    def tie(self) -> None:
        self.head.tie(self.decoder_embed.table)

    def forward(
        self,
        source: Tensor,
        target: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        target_valid: Tensor | None = None,
        watch: Watch | None = None,
        backend: str = "auto",
    ) -> Tensor:
        """Logits (B, T, V): position t predicts what follows target[:, :t+1].

        Without a target the decoder reads the source again, to classify it (Lewis et al. 2020 §3.1).
        """
        if target is None:
            check_ids_tensor(source, "source")
            target, target_valid = self.shift_right(source, valid), valid
        hidden, ctx = self._hidden(source, target, valid, target_valid, watch=watch, backend=backend)
        return self.head.predict(hidden, ctx)

    def shift_right(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """The start token, then all but the last of `tokens`; padding stays where it is."""
        first = tokens.new_zeros(len(tokens), 1) if valid is None else valid.int().argmax(1, keepdim=True)
        return tokens.roll(1, 1).scatter(1, first, self.start_token)

    def hidden(
        self,
        source: Tensor,
        target: Tensor,
        *,
        valid: Tensor | None = None,
        target_valid: Tensor | None = None,
        **how: Unpack[WatchOptions],
    ) -> Tensor:
        """The decoder's last hidden states (B, T, D), before the head."""
        hidden, ctx = self._hidden(source, target, valid, target_valid, **how)
        ctx.end()
        return hidden

    def _hidden(
        self,
        source: Tensor,
        target: Tensor,
        valid: Tensor | None,
        target_valid: Tensor | None,
        **how: Unpack[WatchOptions],
    ) -> tuple[Tensor, Context]:
        state = self._read(source, valid=valid, **how)
        self.check(target, self.decoder_embed, target_valid, name="target")
        if len(target) != len(source):
            raise InputError(
                f"target has {len(target)} rows and source {len(source)}", hint="give one for each"
            )
        return self._advance(target, state, valid=target_valid, **how)

    def _advance(self, tokens: Tensor, state: State, **how: Unpack[StepOptions]) -> tuple[Tensor, Context]:
        ctx = advance(tokens, state, **how)
        self.check_reach(state.past, self.decoder_embed, state.valid)
        return self.decode(tokens, ctx, state.parts), ctx

    def decode(self, tokens: Tensor, ctx: Context, parts: PartState | None) -> Tensor:
        """The decoder's last hidden states of tokens that follow what `parts` remember."""
        x = self.decoder_embed(tokens, ctx.at("target_embed"))
        return self.decoder(x, ctx.at("decoder"), parts)

    def check_source(self, source: Tensor, valid: Tensor | None) -> int:
        """Raise InputError for a source that cannot be read; return how many vectors it gives the encoder."""
        self.check(source, self.embed, valid, name="source")
        return source.shape[1]

    def encode(self, source: Tensor, **how: Unpack[StepOptions]) -> Tensor:
        """The memory (B, S, D) the decoder looks at."""
        memory = self._read(source, **how).memory
        watch = how.get("watch")
        if watch is not None:
            watch.check()
        assert memory is not None
        return memory

    def _read(
        self,
        source: Tensor,
        *,
        valid: Tensor | None = None,
        watch: Watch | None = None,
        backend: str = "auto",
    ) -> State:
        """Run the encoder; the state holds the memory and, with a bridge, what the decoder starts from."""
        pos = positions(valid, self.check_source(source, valid), source.device)
        runs: frozenset[int] = frozenset() if watch is None else watch.begin()
        ctx = Context(pos, pos, Mask(valid=valid), valid_new=valid, watch=watch, backend=backend)
        x = self.embed(source, ctx.at("embed"))
        encoder_state = None if self.bridge is None else self.encoder.new_state(len(source), source.shape[1])
        memory = self.encoder(x, ctx.at("encoder"), encoder_state)
        memory = memory if self.project is None else self.project(memory)
        mask = None if valid is None else Mask(valid=valid)
        state = State(None, memory=memory, memory_mask=mask, runs=runs)
        if self.bridge is not None:
            state.parts = self.bridge(encoder_state)
        return state

    @torch.no_grad()
    def start(
        self, source: Tensor, *, valid: Tensor | None = None, length: int = 0, watch: Watch | None = None
    ) -> State:
        """Read the source (B, S) and write the start token; `state.logits` are those of the next."""
        state = self._read(source, valid=valid, watch=watch)
        if state.parts is None:
            state.parts = self.decoder.new_state(len(source), length)
        first = source.new_full((len(source), 1), self.start_token, dtype=torch.long)
        state.logits = self.step(first, state, watch=watch)[:, -1]
        return state

    def step(self, tokens: Tensor, state: State, **how: Unpack[StepOptions]) -> Tensor:
        """Logits (B, T, V) of the next tokens, given the source and all that was written."""
        return self.head.predict(*self._advance(tokens, state, **how))


class MediaSeq2Seq(Seq2Seq):
    """A Seq2Seq whose source is not text: numbers → pieces → encoder → memory → decoder → head.

    Pieces are the patches of an image, or moments of sound; the memory has a vector for each.
    """

    embed: MediaEmbedding

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

    def check_source(self, source: Tensor, valid: Tensor | None) -> int:
        return self.embed.check_unpadded(source, valid)


class MediaLM(LM):
    """An LM that reads no text: numbers → pieces → blocks → head."""

    embed: MediaEmbedding

    def check_tokens(self, tokens: Tensor, valid: Tensor | None) -> int:
        return self.embed.check_unpadded(tokens, valid)


class DualEncoder(Model):
    """Text and images in one space: text → vector, image → vector, e^s · cos of the two.

    Each of the two encoders is a whole model: `model.text` and `model.image` can be called, watched,
    drawn and saved alone. Here the names of their values begin with `text.` and `image.`.
    """

    def __init__(self, text: LM, image: MediaLM) -> None:
        super().__init__()
        self.text, self.image, self.head = text, image, ContrastHead()
        self.hf_config, self.generation = {}, {}

    def forward(
        self, tokens: Tensor, pixels: Tensor, *, valid: Tensor | None = None, watch: Watch | None = None,
        backend: str = "auto",
    ) -> Tensor:  # fmt: skip
        """Logits (I, B): how well each of I images and each of B texts go together."""
        texts, ctx = self.text.read(tokens, path="text", valid=valid, watch=watch, backend=backend)
        images, image_ctx = self.image.read(pixels, path="image", watch=watch, backend=backend)
        vectors = self.image.head(images, image_ctx), self.text.head(texts, ctx)
        ctx = replace(ctx, path="head")
        logits = ctx.see("logits", self.head.compare(*vectors), positions=None)
        ctx.end()
        return logits

    @property
    def kind(self) -> str:
        return "encoder"

    @property
    def tokenizer(self) -> Any:
        """The text encoder's."""
        return self.text.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self.text.tokenizer = tokenizer

    @property
    def image_processor(self) -> Any:
        """The image encoder's."""
        return self.image.image_processor

    @image_processor.setter
    def image_processor(self, processor: Any) -> None:
        self.image.image_processor = processor

    @property
    def embed(self) -> Embedding:
        """The table of the text, which is what `tokens` are read by."""
        return self.text.embed

    @property
    def tables(self) -> dict[str, Embedding]:
        return self.text.tables
