"""Sparse dictionaries: write a model's vectors as sums of a few directions out of many.

    f = act(W x̃ + b),   y ≈ D f + c       x̃ = (x − mean) / scale

A single neuron often stands for several unrelated things. A dictionary has many more features than the vector
has entries, but each token uses only a few of them, so that a feature tends to stand for one thing. A sparse
autoencoder reconstructs the value (y = x). A transcoder predicts what a part made of it, such as an MLP's
output from its input. A crosscoder reads and reconstructs the values of several layers with one set of
features (Lindsey et al. 2024). A good dictionary uses few features per token and recovers nearly all of the
loss when its output replaces the value (`score_dictionary`). `saelens` reads and writes folders of SAELens.

    topk        the k largest features                      (Gao et al. 2024, arXiv 2406.04093)
    batchtopk   k per token on average over a batch; later, those above a threshold
                                                            (Bussmann et al. 2024, arXiv 2412.06410)
    l1          all above zero; their sum is penalized      (Bricken et al. 2023)
    jumprelu    those above the threshold of each feature   (Rajamanoharan et al. 2024, arXiv 2407.14435)
    gated       one half chooses, the other sets the size   (Rajamanoharan et al. 2024, arXiv 2404.16014)

Features of a matryoshka dictionary are ordered: the first few alone must already reconstruct the value as
well as they can (`prefixes`; Bussmann et al. 2025, arXiv 2503.17547).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_choice, check_integer, check_number
from heedful.core.errors import CorruptFile, InputError
from heedful.core.files import missing_file, open_atomically
from heedful.interp.activations import (
    Activations,
    Texts,
    TokenWatch,
    collect_activations,
    content_tokens,
    mean_loss,
    prepare_inputs,
)
from heedful.interp.inputs import Result, names_of, with_progress
from heedful.interp.learn.activation_store import ActivationStore
from heedful.models.base import Model
from heedful.nn.context import Watch

FORMAT = "heedful.dictionary"
OUTLIER = 10.0  # a vector longer than this many times the median is left as it is: the first token's often is
SPARSE = 0.1  # the share of tokens up to which a feature counts as active on few
THRESHOLD_RATE = 0.01  # how fast the threshold of "batchtopk" follows the smallest feature in use
Trained = Literal["topk", "batchtopk", "l1"]


@dataclass(frozen=True)
class DictionaryConfig:
    """The values that a dictionary reads and predicts, and how it chooses features.

    `source` and `target` are names of values; several of one width, joined by " + ", in a crosscoder.
    `normalize` says what is done to each vector first: "layer_norm", or "constant_norm_rescale" to length √D.
    """

    source: str
    target: str
    width: int  # features
    inputs: int
    outputs: int
    kind: Literal["topk", "batchtopk", "l1", "jumprelu", "gated"] = "topk"
    k: int = 32  # of "topk" and "batchtopk": features a token may use
    l1: float = 1e-3  # of "l1": what a unit of a feature costs
    normalize: Literal["none", "layer_norm", "constant_norm_rescale"] = "none"
    skip: bool = False  # whether a matrix leads past the features: y ≈ D f + c + S x

    @property
    def sources(self) -> list[str]:
        return self.source.split(" + ")

    @property
    def targets(self) -> list[str]:
        return self.target.split(" + ")


class Dictionary(nn.Module):
    """f = act(W x̃ + b) and y ≈ D f + c: see the head of this file.

    `outlier` is the length of x from which on a vector is left as it is.
    """

    def __init__(self, config: DictionaryConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.inputs, config.width)
        self.decoder = nn.Parameter(torch.zeros(config.width, config.outputs))
        self.bias = nn.Parameter(torch.zeros(config.outputs))
        for name, size in (("mean", config.inputs), ("target_mean", config.outputs)):
            self.register_buffer(name, torch.zeros(size))
        for name, size in (("scale", config.inputs), ("target_scale", config.outputs)):
            self.register_buffer(name, torch.ones(size))
        self.register_buffer("outlier", torch.tensor(math.inf))
        if config.kind in ("jumprelu", "batchtopk"):
            self.register_buffer("threshold", torch.zeros(config.width))
        if config.kind == "gated":
            self.log_gain = nn.Parameter(torch.zeros(config.width))
            self.gain_bias = nn.Parameter(torch.zeros(config.width))
        if config.skip:
            self.skip = nn.Parameter(torch.zeros(config.outputs, config.inputs))

    mean: Tensor
    target_mean: Tensor
    scale: Tensor
    target_scale: Tensor
    outlier: Tensor
    threshold: Tensor

    def preactivations(self, x: Tensor) -> Tensor:
        """W x̃ + b, (…, M)"""
        shift, size = self.vector_scale(x)
        return self.encoder(((x.float() - shift) / size - self.mean) / self.scale)

    def encode(self, x: Tensor) -> Tensor:
        """Return the features (…, M) of values (…, D), none below zero."""
        z = self.preactivations(x)
        if self.config.kind == "gated":
            sizes = (z - self.encoder.bias) * self.log_gain.exp() + self.gain_bias
            return F.relu(sizes) * (z > 0)
        f = F.relu(z)
        if self.config.kind == "l1":
            return f
        if self.config.kind != "topk":
            return f * (z > self.threshold)
        largest = f.topk(min(self.config.k, f.shape[-1]), -1)
        return torch.zeros_like(f).scatter(-1, largest.indices, largest.values)

    def decode(self, f: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the target's values (…, E) that features stand for.

        `x` is what the features were read from. Only `normalize` and `skip` need it.
        """
        y = (f @ self.decoder + self.bias) * self.target_scale + self.target_mean
        if x is None:
            return y
        shift, size = self.vector_scale(x)
        if self.config.source == self.config.target:
            y = y * size + shift
        return y + x.float() @ self.skip.T if self.config.skip else y

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x), x)

    def vector_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift that is subtracted from each vector and the scale that divides it, (…, 1)."""
        if self.config.normalize == "none":
            return x.new_zeros(()), x.new_ones(())
        x = x.float()
        if self.config.normalize == "layer_norm":
            return x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        return x.new_zeros(()), x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5

    def direction(self, feature: int) -> Tensor:
        """Return what one unit of a feature adds to the target, (E,)."""
        return (self.decoder[feature] * self.target_scale).detach()

    def save(self, path: str | Path) -> Path:
        """Write the dictionary as one safetensors file."""
        return save_module(self, path, FORMAT, asdict(self.config))


def load_dictionary(
    path: str | Path, device: str | torch.device = "cpu", *, model: Model | None = None
) -> Dictionary:
    """Read what `Dictionary.save` wrote, or a folder of SAELens (see `saelens.load_saelens`)."""
    if (Path(path) / "cfg.json").is_file():
        from heedful.interp.learn.saelens import load_saelens

        return load_saelens(path, device=device, model=model)
    make = lambda settings: Dictionary(DictionaryConfig(**settings))
    return load_module(path, FORMAT, make, device, "Dictionary.save")


def train_dictionary(
    model: Model, texts: Texts | ActivationStore, source: str | Sequence[str],
    target: str | Sequence[str] | None = None, *, width: int = 2048, kind: Trained = "topk", k: int = 32,
    l1: float = 1e-3, prefixes: Sequence[int] = (), steps: int = 1000, batch: int = 1024,
    learning_rate: float = 1e-3, revive_every: int = 100, max_length: int = 256, seed: int = 0,
) -> Dictionary:  # fmt: skip
    """Learn a dictionary of the value called `source`, or a transcoder from it to `target`, on texts.

    A list of values makes a crosscoder. Instead of texts, an `ActivationStore` has values that were computed
    before; a few shards at a time are in memory. `prefixes` are the widths of a matryoshka dictionary. The
    first token of a causal model and special tokens are not learnt from.
    """
    sources = [source] if isinstance(source, str) else list(source)
    targets = sources if target is None else [target] if isinstance(target, str) else list(target)

    def values(activations: dict[str, Activations]) -> tuple[Tensor, Tensor]:
        keep = content_tokens(model, activations[sources[0]])
        join = lambda names: (
            torch.cat([activations[n].values[keep] for n in names], 1).float().to(model.device)
        )
        x = join(sources)
        return x, x if targets == sources else join(targets)

    pools: Iterator[tuple[Tensor, Tensor]]
    if isinstance(texts, ActivationStore):
        pools = map(values, texts.pools(list(dict.fromkeys(sources + targets)), seed=seed))
    else:
        names = list(dict.fromkeys(sources + targets))
        pools = itertools.repeat(values(collect_activations(model, texts, names, max_length=max_length)))
    return fit_dictionary(
        *next(pools), " + ".join(sources), " + ".join(targets), width=width, kind=kind, k=k, l1=l1,
        prefixes=prefixes, steps=steps, batch=batch, learning_rate=learning_rate, revive_every=revive_every,
        seed=seed, pools=pools,
    )  # fmt: skip


def fit_dictionary(
    x: Tensor, y: Tensor, source: str, target: str, *, width: int = 2048, kind: Trained = "topk",
    k: int = 32, l1: float = 1e-3, prefixes: Sequence[int] = (), steps: int = 1000, batch: int = 1024,
    learning_rate: float = 1e-3, revive_every: int = 100, seed: int = 0,
    pools: Iterator[tuple[Tensor, Tensor]] | None = None,
) -> Dictionary:  # fmt: skip
    """Learn a dictionary from values x (N, D) and what is to be made of them, y (N, E).

    `pools` yields more such values, which take the place of x and y once all of them were used.
    """
    check_choice("kind", kind, ("topk", "batchtopk", "l1"))
    for setting, number in (("width", width), ("k", k), ("steps", steps), ("batch", batch)):
        check_integer(setting, number)
    check_number("learning_rate", learning_rate, above=0.0)
    if kind != "l1" and k > width:
        raise InputError(
            f"`k={k}` is more than `width={width}`: every token would use every feature",
            hint="choose a k far below the width",
        )
    if prefixes and (sorted({*prefixes}) != [*prefixes] or prefixes[0] < 1 or prefixes[-1] != width):
        hint = f"end with {width}, as in [{width // 4}, {width}]"
        raise InputError(f"`prefixes={[*prefixes]}` do not grow to the width", hint=hint)
    if len(x) < 2 or len(x) != len(y):
        raise InputError(f"{len(x)} values are too few to learn from", hint="give longer texts")
    bound = OUTLIER * float(x.norm(dim=1).median())
    config = DictionaryConfig(source, target, width, x.shape[1], y.shape[1], kind, k, l1)
    dictionary = Dictionary(config).to(x.device)
    usual = x.norm(dim=1) <= bound
    for values, sites, side in ((x, config.sources, ""), (y, config.targets, "target_")):
        mean = values[usual].mean(0)
        parts = (values[usual] - mean).chunk(len(sites), 1)
        sizes = [part.norm(dim=1).mean().clamp(min=1e-12).expand(part.shape[1]) for part in parts]
        setattr(dictionary, f"{side}mean", mean)
        setattr(dictionary, f"{side}scale", torch.cat(sizes))
    dictionary.outlier = torch.tensor(bound, device=x.device)

    def standardize(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        usual, d = x.norm(dim=1) <= bound, dictionary
        inputs = x[usual].sub_(d.mean).div_(d.scale)
        return inputs, inputs if y is x else y[usual].sub_(d.target_mean).div_(d.target_scale)

    every = itertools.starmap(standardize, itertools.chain([(x, y)], pools or itertools.repeat((x, y))))
    trainer = _Trainer(dictionary, every, tuple(prefixes) or (width,), seed)
    trainer.run(steps, batch, learning_rate, revive_every)
    return dictionary


class _Trainer:
    """Adam on batches of tokens; features that no token has used lately are reset."""

    def __init__(
        self, dictionary: Dictionary, pools: Iterator[tuple[Tensor, Tensor]], prefixes: tuple[int, ...],
        seed: int,
    ) -> None:  # fmt: skip
        self.dictionary, self.pools, self.prefixes = dictionary, pools, prefixes
        self.x, self.y = x, y = next(pools)  # both centred and scaled
        self.left = len(x)  # tokens to be drawn before the next pool
        self.draw = torch.Generator().manual_seed(seed)
        self.used = torch.zeros(dictionary.config.width, dtype=torch.bool, device=x.device)
        with torch.no_grad():
            self._begin(torch.arange(dictionary.config.width, device=x.device), torch.ones(len(x)))
            # The sum of features, all alike at first, is as long as it should be.
            sums = self._features(x[:4096]) @ dictionary.decoder
            scale = (sums * y[:4096]).sum() / sums.square().sum().clamp(min=1e-12)
            dictionary.encoder.weight *= scale.clamp(min=1e-3)

    def _begin(self, features: Tensor, weights: Tensor, size: float = 1.0) -> None:
        """Point features at tokens drawn with these weights; `size` is the length of their encoders."""
        picks = torch.multinomial(weights, len(features), replacement=True, generator=self.draw)
        picks = picks.to(self.x.device)
        noise = lambda v: v + 0.1 * v.norm(dim=1, keepdim=True) * F.normalize(torch.randn_like(v), dim=1)
        dictionary = self.dictionary
        dictionary.encoder.weight[features] = size * F.normalize(noise(self.x[picks]), dim=1)
        dictionary.decoder[features] = F.normalize(noise(self.y[picks]), dim=1)
        dictionary.encoder.bias[features] = 0.0

    @torch.enable_grad()  # whoever calls may have switched gradients off
    def run(self, steps: int, batch: int, rate: float, revive_every: int) -> None:
        config = self.dictionary.config
        optimiser = torch.optim.Adam(self.dictionary.parameters(), lr=rate)
        for step in with_progress(range(steps), "steps", steps):
            for group in optimiser.param_groups:  # warmed up, and down in the last fifth
                group["lr"] = rate * min(1.0, (step + 1) / 20, 5 * (steps - step) / steps)
            if self.left <= 0:
                self.x, self.y = next(self.pools)
                self.left = len(self.x)
            self.left -= batch
            rows = torch.randint(len(self.x), (min(batch, len(self.x)),), generator=self.draw)
            x, y = self.x[rows.to(self.x.device)], self.y[rows.to(self.x.device)]
            f = self._features(x)
            parts = [f[:, :m] @ self.dictionary.decoder[:m] + self.dictionary.bias for m in self.prefixes]
            error = torch.stack([(part - y).square().sum(1) for part in parts]).mean(0)
            loss = error.mean() + (config.l1 * f.sum(1).mean() if config.kind == "l1" else 0.0)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                self.dictionary.decoder.copy_(F.normalize(self.dictionary.decoder, dim=1))
                self.used |= (f > 0).any(0)
                if revive_every and (step + 1) % revive_every == 0 and step + 1 < 0.8 * steps:
                    self._revive(optimiser)

    def _features(self, x: Tensor) -> Tensor:
        dictionary = self.dictionary
        if dictionary.config.kind != "batchtopk":
            return dictionary.encode(x * dictionary.scale + dictionary.mean)
        f = F.relu(dictionary.encoder(x))
        smallest = f.flatten().topk(dictionary.config.k * len(x)).values[-1].detach()
        if smallest > 0:
            dictionary.threshold.lerp_(smallest, THRESHOLD_RATE if dictionary.threshold.any() else 1.0)
        return f * (f >= smallest)

    def _revive(self, optimiser: torch.optim.Adam) -> None:
        """Point unused features at the tokens explained worst, and forget their moments."""
        dead, was_used = (~self.used).nonzero()[:, 0], self.used.clone()
        self.used.zero_()
        if not len(dead):
            return
        rows = torch.randperm(len(self.x), generator=self.draw)[:8192]
        x, y = self.x[rows.to(self.x.device)], self.y[rows.to(self.x.device)]
        error = (self._features(x) @ self.dictionary.decoder + self.dictionary.bias - y).square().sum(1)
        weights = torch.zeros(len(self.x))
        weights[rows] = error.square().cpu()
        # Among the k largest a weak feature would stay unused; where all count, a strong one would disturb.
        share = 0.2 if self.dictionary.config.kind == "l1" else 1.0
        used = self.dictionary.encoder.weight.norm(dim=1)[was_used]
        self._begin(dead, weights, share * float(used.mean()) if len(used) else 1.0)
        encoder = self.dictionary.encoder
        for parameter in (encoder.weight, encoder.bias, self.dictionary.decoder):
            for moment in ("exp_avg", "exp_avg_sq"):
                optimiser.state[parameter][moment][dead] = 0.0


def _edit_target(dictionary: Dictionary, change: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Watch:
    """Return a watch that computes the features of the source and changes the target y by them.

    `change(y, x, f, size)` returns the new y. `size` is what a unit of a feature counts: 0 for vectors that
    are much longer than usual, and else 1, or what `normalize` divided the vector by.
    """
    config, rows_of = dictionary.config, dict[str, Tensor]()
    if len(config.targets) > 1:
        raise InputError(
            "a crosscoder reads values that are computed after the first one it would change",
            hint="compare `dictionary(x)` with the values, or train a transcoder from earlier values",
        )

    def remember(name: str, rows: Tensor) -> Tensor:
        rows_of[name] = rows
        return rows

    def write(rows: Tensor) -> Tensor:
        x = torch.cat([rows if name == config.target else rows_of[name] for name in config.sources], -1)
        if x.shape[-1] != config.inputs or rows.shape[-1] != config.outputs:
            raise InputError(
                f"the dictionary is from {config.inputs} entries to {config.outputs}; "
                f"{config.source} has {x.shape[-1]} here and {config.target} {rows.shape[-1]}"
            )
        with torch.no_grad():
            x = x.float()
            size = (x.norm(dim=-1, keepdim=True) <= dictionary.outlier).float()
            if config.source == config.target:
                size = size * dictionary.vector_scale(x)[1]
            return change(rows.float(), x, dictionary.encode(x), size)

    edits: dict[str, Callable[[Tensor], Tensor]] = {n: partial(remember, n) for n in config.sources}
    return TokenWatch(edits | {config.target: write})


def replace_value(dictionary: Dictionary) -> Watch:
    """Return a watch that puts what the dictionary makes of the source in the place of the target.

    Vectors many times longer than usual, such as that of the first token, stay as they are.
    """
    return _edit_target(dictionary, lambda y, x, f, size: torch.where(size > 0, dictionary.decode(f, x), y))


def ablate_features(dictionary: Dictionary, features: Sequence[int]) -> Watch:
    """Return a watch that takes what these features add out of the target; all else stays as it is."""
    chosen = check_features(dictionary, features)
    directions = dictionary.decoder[chosen].detach() * dictionary.target_scale
    return _edit_target(dictionary, lambda y, x, f, size: y - size * (f[..., chosen] @ directions))


def set_feature(dictionary: Dictionary, feature: int, value: float) -> Watch:
    """Return a watch that sets a feature to a value at every token: steering by a feature."""
    (chosen,) = check_features(dictionary, [feature])
    direction = dictionary.direction(chosen)
    return _edit_target(
        dictionary, lambda y, x, f, size: y + size * (value - f[..., chosen, None]) * direction
    )


def check_features(dictionary: Dictionary, features: Sequence[int]) -> list[int]:
    """Return numbers that are features of the dictionary; raise InputError otherwise."""
    width = dictionary.config.width
    bad = [f for f in features if not 0 <= f < width]
    if bad or not features:
        what = f"unknown feature {bad[0]}" if bad else "no feature was named"
        raise InputError(what, hint=f"they are 0 … {width - 1}")
    return list(features)


def dictionary_activations(model: Model, dictionary: Dictionary, texts: Texts) -> Activations:
    """Return the features (N, M) of every token of texts, and where each stands."""
    sources, device = dictionary.config.sources, dictionary.decoder.device
    activations = collect_activations(model, texts, sources)
    with torch.no_grad():
        x = torch.cat([activations[name].values for name in sources], 1)
        parts = [dictionary.encode(rows.to(device)).cpu() for rows in x.split(4096)]
    return replace(activations[sources[0]], values=torch.cat(parts))


# How good a dictionary is, and what its features stand for: the tokens, in context, where each is strongest.


@dataclass(frozen=True)
class DictionaryScores(Result):
    """Measures of what a dictionary keeps of a value, on unseen texts. Losses are in nats per token.

    A crosscoder cannot replace its values while they are computed: its losses but `loss` are NaN.
    """

    also = ("loss_recovered", "loss_recovered_from_mean")

    l0: float  # features a token uses
    variance_explained: float
    dead: float  # share of features that no token uses
    loss: float
    loss_replaced: float  # with what the dictionary makes of the value in its place
    loss_zero: float  # with zero in its place
    loss_mean: float  # with its mean

    @property
    def loss_recovered(self) -> float:
        """(L_zero − L_replaced) / (L_zero − L): 1 if nothing is lost."""
        return (self.loss_zero - self.loss_replaced) / (self.loss_zero - self.loss)

    @property
    def loss_recovered_from_mean(self) -> float:
        """The share of the loss recovered, starting from the value's mean and not from zero: stricter."""
        return (self.loss_mean - self.loss_replaced) / (self.loss_mean - self.loss)


@torch.no_grad()
def score_dictionary(
    model: Model, dictionary: Dictionary, texts: Texts, *, max_length: int = 256
) -> DictionaryScores:
    """Return how sparse a dictionary is and what a model loses that computes with it."""
    config, device = dictionary.config, dictionary.decoder.device
    names = list(dict.fromkeys((*config.sources, *config.targets)))
    inputs = prepare_inputs(model, texts, max_length=max_length)  # once: an encoder-decoder writes targets
    activations = collect_activations(model, inputs, names)
    keep = content_tokens(model, activations[names[0]])
    x, y = (torch.cat([activations[n].values for n in s], 1) for s in (config.sources, config.targets))
    keep &= x.norm(dim=1) <= float(dictionary.outlier)
    x, y = x[keep].to(device), y[keep].to(device)
    f = torch.cat([dictionary.encode(rows) for rows in x.split(4096)])
    error = (dictionary.decode(f, x) - y).square().sum()
    losses, middle = [math.nan] * 3, y.mean(0)
    if len(config.targets) == 1:
        changes = torch.zeros_like, middle.expand_as  # of one vector per token, also where a value has heads
        watches = [replace_value(dictionary), *(TokenWatch({config.target: change}) for change in changes)]
        losses = [mean_loss(model, inputs, watch) for watch in watches]
    return DictionaryScores(
        float((f > 0).float().sum(1).mean()), float(1 - error / (y - middle).square().sum()),
        float((f == 0).all(0).float().mean()), mean_loss(model, inputs), *losses,
    )  # fmt: skip


@dataclass(frozen=True)
class FeatureExample(Result):
    """A token on which a feature is strong, with those around it."""

    feature: int
    activation: float
    before: tuple[str, ...]
    token: str
    after: tuple[str, ...]
    text: int  # the number of the text
    position: int


def feature_examples(
    model: Model, dictionary: Dictionary, texts: Texts, features: Sequence[int] | None = None, *,
    count: int = 8, context: int = 6,
) -> dict[int, list[FeatureExample]]:  # fmt: skip
    """Return the tokens on which each feature is strongest, in context.

    By default, these are ten features that `strongest_features` chooses.
    """
    features = None if features is None else check_features(dictionary, features)
    activations = dictionary_activations(model, dictionary, texts)
    if features is None:
        features = strongest_features(model, activations, 10)
    return strongest_examples(model, activations, features, count, context)


def strongest_features(model: Model, activations: Activations, count: int) -> list[int]:
    """Return the features that are strongest on texts, those that are active on few tokens first.

    A feature that is active on nearly every token says little about any of them. Few are a tenth of the
    tokens, or on texts so short that most features exceed it, what the median feature is active on.
    """
    keep = content_tokens(model, activations)
    values = torch.where(keep[:, None], activations.values, 0.0)
    strength, density = values.amax(0), (values > 0).sum(0) / keep.sum().clamp(min=1)
    active = density > 0
    few = density <= max(SPARSE, float(density[active].median()) if active.any() else 0.0)
    order = torch.where(few, strength, strength - strength.max())  # the others behind all of these
    order = torch.where(active, order, -torch.inf)
    return order.topk(min(count, len(order))).indices.tolist()


def strongest_examples(
    model: Model, activations: Activations, features: Sequence[int], count: int, context: int
) -> dict[int, list[FeatureExample]]:
    """Return the tokens on which each feature is strongest, of features (N, M) that were computed before."""
    check_integer("count", count)
    check_integer("context", context, minimum=0)
    keep, out = content_tokens(model, activations), dict[int, list[FeatureExample]]()
    for feature in features:
        best = torch.where(keep, activations.values[:, feature], 0.0).topk(min(count, len(keep)))
        rows = [(int(i), float(a)) for i, a in zip(best.indices, best.values, strict=True) if float(a) > 0]
        out[feature] = [_example(model, activations, feature, i, a, context) for i, a in rows]
    return out


def _example(
    model: Model, tokens: Activations, feature: int, row: int, activation: float, context: int
) -> FeatureExample:
    own = (tokens.text == tokens.text[row]).nonzero()[:, 0]  # the rows of the text stand in order
    at = int((own == row).nonzero()[0, 0])
    names = names_of(model, tokens.ids[own[max(0, at - context) : at + context + 1]])
    middle = min(at, context)
    before, after = names[:middle], names[middle + 1 :]
    number, position = int(tokens.text[row]), int(tokens.position[row])
    return FeatureExample(feature, activation, before, names[middle], after, number, position)


# Dictionaries and tuned lenses are saved as one safetensors file: tensors, and the settings in its header.

M = TypeVar("M", bound=nn.Module)


def save_module(module: nn.Module, path: str | Path, format: str, settings: Any) -> Path:
    """Write the tensors of a module, the name of its format, and the settings it is made from."""
    from safetensors.torch import save

    path = Path(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}
    with open_atomically(path) as file:
        file.write(save(tensors, {"format": format, "settings": json.dumps(settings)}))
    return path


def load_module(
    path: str | Path, format: str, make: Callable[[Any], M], device: str | torch.device, saved_by: str
) -> M:
    """Read what `save_module` wrote; `make` gives the module of its settings, whose tensors are then read."""
    from safetensors.torch import load_file

    from heedful.weights.formats.tensor_layout import read_layout

    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    _, metadata = read_layout(path)
    hint = f"give a file that {saved_by} wrote"
    if metadata.get("format") != format:
        raise CorruptFile(f"{path} is a safetensors file of another kind", hint=hint)
    try:
        module = make(json.loads(metadata["settings"]))
        module.load_state_dict(load_file(path))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptFile(f"{path} does not fit together: {reason}", hint=hint) from None
    return module.to(device)
