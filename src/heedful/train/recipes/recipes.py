"""Recipes for training runs. `heed recipes` lists them, `heed recipe cp` copies one.

A recipe is small enough for one machine; the sizes of the papers are presets of the families (`heed ls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import ConfigError
from heedful.core.option import Option, find_options
from heedful.train.config import TrainConfig


@dataclass(frozen=True)
class TokenizerOptions:
    """How a run's tokenizer is trained or found."""

    kind: str = "bpe"  # bpe, wordpiece, unigram, word, char: learnt from the data; or a tokenizer's folder
    vocab: int = 8000  # the most tokens it may have
    special: tuple[str, ...] | None = None  # roles: bos, eos, pad, mask …; None: those usual for the kind
    sentinels: int = 0  # T5's <extra_id_0> …
    lower: bool = False


@dataclass(frozen=True)
class DataSettings:
    """The settings that all kinds of data share; a builder has more of its own."""

    length: Annotated[int, Option("Tokens in a row.", variable="HEED_LENGTH")] = 256
    batch: Annotated[int, Option("Rows in a step.", variable="HEED_BATCH")] = 32
    holdout: float = 0.1  # the part that is kept for validation

    def __post_init__(self) -> None:
        for name in ("length", "batch"):
            check_integer(f"data.{name}", getattr(self, name), error=ConfigError)
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"data.holdout={self.holdout} must be at least 0 and below 1")


@dataclass(frozen=True)
class Evaluation:
    """How often a run is evaluated and logged."""

    every: int = 250  # steps; an evaluation also ends the run
    batches: int | None = None  # of the validation data; None: all, of held out data as many as steps
    patience: int | None = None  # evaluations without a better one before the run stops; None: never
    log: int = 10  # steps between lines of metrics.jsonl
    sample: int = 64  # tokens written after each evaluation, of models that write; 0: none

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("batches", 1), ("patience", 1), ("log", 1), ("sample", 0)):
            if (value := getattr(self, name)) is not None:
                check_integer(f"evaluate.{name}", value, least, error=ConfigError)


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on except the files it reads."""

    family: str  # a family or a preset
    what: str  # what it is for, in one line
    objective: str = "next_token"
    tokenizer: TokenizerOptions = TokenizerOptions()
    model: Mapping[str, Any] = field(default_factory=dict)  # fields of the family's config
    data: Mapping[str, Any] = field(default_factory=dict)  # DataSettings, and options of the builder
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: Evaluation = Evaluation()
    start: str | None = None  # a trained model to begin with, instead of random weights
    teacher: str | None = None  # a trained model to distil
    device: Annotated[str, Option("auto, cpu, cuda, cuda:1 …", variable="HEED_DEVICE")] = "auto"
    parallel: str = "ddp"  # how several processes share the work: ddp, or fsdp (weights are shared out too)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", asdict(DataSettings()) | dict(self.data))
        check_choice("parallel", self.parallel, ("ddp", "fsdp"), ConfigError)


# The classes that check a setting, by the first part of its path: train.lr is TrainConfig.lr.
SECTIONS: dict[str, type] = {
    "tokenizer": TokenizerOptions, "data": DataSettings, "train": TrainConfig, "evaluate": Evaluation,
}  # fmt: skip


def setting_options() -> Iterator[tuple[str, str, Any, Option]]:
    """Yield the path, the name, the type and the option of every setting that has a flag of its own."""
    for section, kind in {"": Recipe, **SECTIONS}.items():
        for name, hint, option in find_options(kind):
            yield f"{section}.{name}".lstrip("."), name, hint, option


CHARS = TokenizerOptions("char", 256)
WORDPIECES = TokenizerOptions("wordpiece", 8000)
ROBERTA = TokenizerOptions("bpe", 8000, ("cls", "pad", "sep", "mask"))
PAIRS = TokenizerOptions("bpe", 8000, ("bos", "eos", "pad"))
WIKITEXT = TokenizerOptions("word", 33278)  # every word of the training text, <unk> and <eos>

SMALL = dict(dim=256, layers=6, heads=8)
READER = dict(SMALL, context=128)
LM = dict(length=256, batch=32)
TRANSLATION = dict(length=128, batch=128, max_tokens=4096, truncate=True)


def train_config(count: int, lr: float, **more: Any) -> TrainConfig:
    """Return a training config with a short warm-up."""
    return TrainConfig(
        **{"steps": count, "lr": lr, "warmup": min(200, count // 10), "save_every": 1000, **more}
    )


def decoder_recipe(
    family: str, purpose: str, lr: float = 1e-3, sizes: Mapping[str, Any] = SMALL, **model: Any
) -> Recipe:
    """Return the recipe of a small language model over subwords."""
    return Recipe(family, purpose, model={**sizes, **model}, data=LM, train=train_config(5000, lr))


def encoder_recipe(
    family: str, purpose: str, tokenizer: TokenizerOptions = WORDPIECES, **changes: Any
) -> Recipe:
    """Return the recipe of a small encoder with a masked-language-model objective."""
    defaults: dict[str, Any] = dict(
        objective="masked", data=dict(length=128, batch=64), train=train_config(5000, 5e-4)
    )
    return Recipe(family, purpose, tokenizer=tokenizer, **defaults | changes)


def translator_recipe(family: str, purpose: str, lr: float, count: int = 6000, **model: Any) -> Recipe:
    """Return the recipe of a translation model with one vocabulary for both languages."""
    train = train_config(count, lr, warmup=400)
    return Recipe(family, purpose, "translate", PAIRS, model, TRANSLATION, train, Evaluation(every=500))


def wikitext_recipe(family: str, purpose: str, lr: float, model: dict[str, Any], **train: Any) -> Recipe:
    """Return a word-level WikiText-2 recipe: one stream, <eos> at each line's end, as in 2017's tables."""
    data = dict(length=128, batch=64, apart=False, line_end="<eos>", holdout=0.0)
    evaluate = Evaluation(every=500, sample=0)
    schedule = train_config(8000, lr, **train)
    return Recipe(family, purpose, "next_token", WIKITEXT, model, data, schedule, evaluate)


RECURRENT = dict(dim=512, table_dim=256)
NANO: dict[str, Any] = dict(weight_decay=0.1, betas=(0.9, 0.99), warmup=100, save_every=None)
EXPERTS = dict(
    dim=256, layers=6, heads=8, rank=64, q_rank=96, head_dim=32, rope_dim=16, value_dim=32, hidden=704,
    dense=1, experts=8, active=2, shared=1, expert_hidden=256, groups=2, groups_kept=1, route_scale=1.0,
    context=256, tied=True,
)  # fmt: skip
LINEAR = dict(dim=256, layers=6)

RECIPES: dict[str, Recipe] = {
    "char-rnn": Recipe(
        "rnn", "a recurrent network that writes character by character", tokenizer=CHARS,
        model=dict(dim=256, layers=1, dropout=0.0), data=dict(length=64, batch=32),
        train=train_config(3000, 2e-3),
    ),
    "lstm-wikitext2": wikitext_recipe(
        "lstm", "an LSTM language model on WikiText-2, by words", 2e-3,
        dict(dim=650, layers=2, dropout=0.5, tied=True), weight_decay=0.01, dtype="float32",
    ),
    "transformer-wikitext2": wikitext_recipe(
        "gpt2", "a Transformer as large as that LSTM, on the same text", 1e-3,
        dict(dim=512, layers=4, heads=8, hidden=1664, context=128, dropout=0.4),
        weight_decay=0.1, dtype="bfloat16", graph=True,
    ),
    "seq2seq": translator_recipe(
        "seq2seq", "an LSTM reads a sentence, another writes its translation", 1e-3,
        layers=2, dropout=0.2, **RECURRENT,
    ),
    "rnnsearch": translator_recipe(
        "rnnsearch", "the first attention: translation that looks back at the source", 1e-3,
        dropout=0.2, **RECURRENT,
    ),
    "luong": translator_recipe(
        "luong", "attention by a product, at the current step", 1e-3, layers=2, **RECURRENT
    ),
    "transformer-multi30k": translator_recipe(
        "transformer", "the Transformer with its paper's recipe, on Multi30k", 1e-3,
        dim=256, layers=3, heads=8, dropout=0.2,
    ),
    "bert": encoder_recipe(
        "bert", "masked words and next sentences (one sentence a line, blank lines between documents)",
        objective="masked_and_next", model=dict(READER, head="pretrain"),
    ),
    "roberta": encoder_recipe("roberta", "masked words alone, drawn anew every epoch", ROBERTA, model=READER),
    "electra": encoder_recipe(
        "electra", "tell replaced words from true ones", objective="replaced",
        model=dict(READER, table_dim=128),
    ),
    "deberta": encoder_recipe("deberta", "content and distance attend apart", model=READER),
    "bilstm": encoder_recipe(
        "bilstm", "masked words by LSTMs in both directions: a baseline beside BERT",
        model=dict(dim=256, layers=3),
    ),
    "cnn": encoder_recipe(
        "cnn", "masked words by convolutions: a baseline beside BERT", model=dict(dim=256, layers=6)
    ),
    "distil": encoder_recipe(
        "distilbert", "half the layers, taught by a trained BERT: --set teacher=FOLDER",
        objective="distil", model=dict(READER, layers=3),
    ),
    "gpt": decoder_recipe("gpt", "the first GPT, small: norms after each part", 5e-4, context=256),
    "gpt2": decoder_recipe("gpt2", "GPT-2, small", context=256),
    "gpt3-small-banded": decoder_recipe(
        "gpt3", "GPT-3's alternation of full and banded attention, small", context=256, window=64
    ),
    "llama-small": decoder_recipe(
        "llama", "rotary positions, gated MLPs, grouped heads, small", kv_heads=4, context=256, tied=True
    ),
    "palm-small": decoder_recipe("palm", "attention and MLP side by side, one key head, small", context=256),
    "bloom-small": decoder_recipe(
        "bloom", "distances as a penalty on the scores (ALiBi), small", context=256
    ),
    "deepseek-small": decoder_recipe("deepseek-v2", "latent attention and experts, small", sizes=EXPERTS),
    "t5": Recipe(
        "t5", "write the spans that were cut out", "spans", TokenizerOptions("unigram", 8000, sentinels=100),
        dict(dim=256, layers=4, heads=8), LM, train_config(5000, 1e-3),
    ),
    "bart": Recipe(
        "bart", "write the text again from its noised form", "denoise", ROBERTA,
        dict(dim=256, layers=3, heads=8, context=256), LM, train_config(5000, 5e-4),
    ),
    "s4": decoder_recipe("s4", "a long convolution instead of attention", sizes=LINEAR),
    "mamba": decoder_recipe("mamba", "a state space that chooses what to remember", sizes=LINEAR),
    "linear": decoder_recipe("linear", "attention without a softmax: a state of fixed size"),
    "gla": decoder_recipe("gla", "linear attention that forgets by gates", heads=4),
    "based": decoder_recipe(
        "based", "linear attention by a Taylor series beside small windows", window=64, key_dim=16
    ),
    "shakespeare-char": Recipe(
        "gpt2", "Shakespeare by character on a GPU, in seconds", tokenizer=CHARS,
        model=dict(dim=384, layers=6, heads=6, context=256, dropout=0.2), data=dict(length=256, batch=64),
        train=TrainConfig(steps=1500, lr=1.5e-3, dtype="bfloat16", graph=True, **NANO),
        evaluate=Evaluation(every=250, log=50),
    ),
    "shakespeare-char-cpu": Recipe(
        "gpt2", "Shakespeare by character on a laptop, in minutes", tokenizer=CHARS,
        model=dict(dim=128, layers=4, heads=4, context=64, dropout=0.0), data=dict(length=64, batch=12),
        train=TrainConfig(steps=2000, lr=3e-3, **NANO), evaluate=Evaluation(every=250),
    ),
}  # fmt: skip
