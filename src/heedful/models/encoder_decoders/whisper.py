"""Whisper (Radford et al. 2022, arXiv 2212.04356): a plain encoder-decoder that listens.

Speech recognisers used to be made of many parts: an acoustic model, a lexicon, a language model, rules that
put the text into shape. Whisper is one Transformer, trained on 680,000 hours of sound for which the internet
had captions. The encoder reads thirty seconds of sound as 1,500 vectors. Each is made of the loudness of 80
bands of frequencies in a few hundredths of a second. The decoder is a language model that looks at them. Its
first tokens say what it is to do: the language, whether to transcribe or to translate into English, whether
to write down the times. So one model does what several did. The paper claims that much loosely labelled data
makes it robust, and not the architecture.

From the Transformer:  mel bands and two convolutions → tokens   norms before each part   no biases of keys
                       positions of the encoder are sines, of the decoder learned   GELU
"""

from __future__ import annotations

from typing import Any

from torch import nn

from heedful.core.errors import NotFound, nearest
from heedful.core.sound import SoundProcessor
from heedful.models.base import MediaSeq2Seq, State, derived
from heedful.models.encoder_decoders.bart import BART, STACK_NAMES
from heedful.models.encoder_decoders.transformer import TransformerConfig, transformer_stacks
from heedful.models.family import descend
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.embedding import Embedding, SoundEmbedding
from heedful.nn.head import LMHead, NoHead, choose_head
from heedful.nn.position import Learned
from heedful.weights.ops import Reshape


class WhisperConfig(
    TransformerConfig, vocab=51865, dim=384, layers=4, heads=derived(lambda c: max(c.dim // 64, 1)),
    act="gelu", norm_first=True, dropout=0.0,
    start_token=derived(lambda c: min(50258, c.vocab - 1), minimum=0),
):  # fmt: skip
    bands: int = 80  # of frequencies
    source_context: int = 1500  # vectors of a sound, each of two frames
    context: int = 448


class Whisper(MediaSeq2Seq):
    """What `MediaSeq2Seq` is, with the tokens that tell it what to write."""

    prompt: tuple[int, ...] = ()  # what it reads after the start token

    def instruct(self, language: str = "en", task: str = "transcribe") -> None:
        """Set the prompt: the language of the sound, transcribe or translate, and no times.

        The tokens are those of generation_config.json. A model for English alone has none for the first two.
        """
        rules, tokens = self.generation, []
        for name, table, key in (
            ("language", "lang_to_id", f"<|{language}|>"),
            ("task", "task_to_id", task),
        ):
            known = rules.get(table, {})
            if known and key not in known:
                raise NotFound(
                    f"`{name}={key.strip('<|>')!r}` is not known to this model", hint=nearest(key, known)
                )
            tokens += [known[key]] if known else []
        times = rules.get("no_timestamps_token_id")
        self.prompt = (*tokens, *([] if times is None else [times]))

    def start(self, source: Any, **how: Any) -> State:
        """Read the sound, the start token and the prompt."""
        state = super().start(source, **how)
        for token in self.prompt:
            first = source.new_full((len(source), 1), token).long()
            state.logits = self.step(first, state, watch=how.get("watch"))[:, -1]
        return state


def whisper(c: WhisperConfig) -> Whisper:
    embed = SoundEmbedding(c.bands, c.source_context, c.dim, dropout=c.dropout)
    target = Embedding(c.vocab, c.dim, position=Learned(c.context, c.dim), dropout=c.dropout)
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=True), none=NoHead)
    stacks = transformer_stacks(c)
    for part in (part for stack in stacks for part in stack.modules()):
        if isinstance(part, Attention | CrossAttention):  # a bias of keys would add the same to all scores
            part.k = nn.Linear(part.k.in_features, part.k.out_features, bias=False)
    model = Whisper(embed, *stacks, head, target_embed=target, start_token=c.start_token)
    model.sound_processor = SoundProcessor(c.bands, 2 * c.source_context)
    return model


SIZES = {"tiny": (384, 4), "base": (512, 6), "small": (768, 12), "medium": (1024, 24), "large-v2": (1280, 32)}
LARGE: dict[str, Any] = dict(dim=1280, layers=32, vocab=51866, bands=128)

WHISPER = descend(
    BART, "whisper", WhisperConfig, build=whisper, names=lambda c: [
        ("model.encoder.conv1.weight", "embed.token.weight", Reshape((-1, c.bands, 3))),
        ("model.encoder.conv2.weight", "embed.halve.weight", Reshape((-1, c.dim, 3))),
        ("model.encoder.{conv1,conv2}.bias", "embed.{token,halve}.bias"),
        ("model.encoder.embed_positions", "embed.position"),
        ("model.decoder.{embed_tokens,embed_positions}", "target_embed.{token,position}"),
        *STACK_NAMES,
        ("proj_out", "head.out"),
    ],
    keys={
        "num_mel_bins": "bands", "max_source_positions": "source_context", "max_target_positions": "context",
    },
    presets={
        **{f"whisper-{size}": dict(dim=dim, layers=n) for size, (dim, n) in SIZES.items()},
        "whisper-large-v3": LARGE,
        "whisper-large-v3-turbo": dict(**LARGE, decoder_layers=4),
    },
    tiny=dict(bands=8, source_context=12, start_token=1), objective="translate",
    heads={"lm": "WhisperForConditionalGeneration", "none": "WhisperModel"},
    require={"tie_word_embeddings": (True,), "scale_embedding": (False,)},
    paper="Radford et al. 2022, arXiv 2212.04356",
)  # fmt: skip
