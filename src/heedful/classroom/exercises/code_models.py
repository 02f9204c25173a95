"""A student's function in the place of ours in a real model, compared with ours put in the same way.

attention, softmax: a backend of attention in the bundled translator; layer_norm, positional_encoding: modules
of it; beam_search: its search; bleu: its score. causal_mask, cached_attention: the attention of a small GPT,
whose loss next_token_loss computes and whose words top_p narrows. bahdanau_score: the score of the bundled
RNNsearch. lstm_step: the layer of an LSTM that was trained for a second. bpe_merge: a tokenizer;
skipgram_step: word vectors; adamw_step: `fit`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from heedful.classroom.exercises.code_exercises import Function, Output
from heedful.classroom.exercises.code_solutions import adamw_step
from heedful.core.errors import InputError
from heedful.data.batch import IGNORE
from heedful.data.batches import Batches
from heedful.data.examples.language_modeling import next_token
from heedful.decode.loop import generate
from heedful.decode.rows import Generation
from heedful.models.base import Model, Seq2Seq
from heedful.nn.attention.attend import BACKENDS, Call
from heedful.nn.attention.attentive import Additive
from heedful.nn.block import NamedParts
from heedful.nn.context import Context, PartState
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Sinusoidal
from heedful.nn.recurrent import LSTM, Carry, unroll
from heedful.text.bpe import BPE, Pair, split_words, word_letters
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import TrainingRun
from heedful.train.objectives import objective
from heedful.train.optim import groups
from heedful.weights.loading import build, load
from heedful.word2vec.definition import draw_windows
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.word_counts import WordCounts, alias_table

SENTENCES = ("My brother bought a new car last week.", "The old man who lives next door is my uncle.")
SHORT = "The house is small."
TRANSLATOR, ALIGNER, WRITER = "translate-en-de", "rnnsearch-en-de", "prose"
PROMPT = "The old house stood upon the hill"
CORPUS = "the cat sat on the mat. the dog lay on the log. the bird sang in the tree. " * 12
MAX_TOKENS = 20
NUMBERS = itertools.count()


def tensor_of(value: Any, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return what a student's function gave as a tensor of this shape and of the type of `like`."""
    tensor = torch.as_tensor(value).to(like.dtype)
    if tuple(tensor.shape) != shape:
        raise InputError(f"the shape {tuple(tensor.shape)} does not fit: the model needs {shape}")
    return tensor


def write_greedily(model: Model, prompts: Sequence[str], max_tokens: int, before: str = "") -> Output:
    """Return the greedy texts of a model and the log-probability of each."""
    texts: list[Generation] = generate(model, list(prompts), max_tokens=max_tokens, fast=False, details=True)
    lines = [f"“{before}{text.text}” (log p {text.score:.2f})" for text in texts]
    return Output(" ".join(lines), torch.tensor([text.score for text in texts]))


def translate(model: Model) -> Output:
    """Return the sentences in German."""
    return write_greedily(model, SENTENCES, MAX_TOKENS)


def modules_of(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    """Return the modules of a kind, whose methods may then be replaced: the model calls the new ones."""
    return [module for module in model.modules() if isinstance(module, kind)]


def continue_text(model: Model) -> Output:
    """Return how a text goes on."""
    return write_greedily(model, [PROMPT], 12, before=PROMPT)


def run_with_backend(
    name: str, backend: Callable[[Call, Context], Tensor], write: Callable[[Model], Output] = translate
) -> Output:
    """Return what a model writes if all its attention goes through `backend`."""
    model, name = load(name), f"exercise {next(NUMBERS)}"  # of this call alone: others may run meanwhile

    def use_backend(forward: Function, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        return forward(x, replace(ctx, backend=name), state)

    for block in modules_of(model, NamedParts):
        for part in (block.part(word) for word in {"attn", "cross"} & set(block.names)):
            part.forward = partial(use_backend, part.forward)
    BACKENDS[name] = backend
    try:
        return write(model)
    finally:
        del BACKENDS[name]


def visible_keys(call: Call) -> Tensor | None:
    """Return the mask (B, H, T, S) of a call of attention, or None if it hides nothing."""
    keep = call.keep()
    shape = (*call.q.shape[:3], call.k.shape[2])
    return None if keep is None else keep.expand(shape).contiguous()


def place_attention(function: Function) -> Output:
    """Let the function be all attention of the translator, in its encoder, its decoder and between them."""

    def backend(call: Call, ctx: Context) -> Tensor:
        out = function(call.q, call.k, call.v, visible_keys(call))
        return tensor_of(out, call.q, (*call.q.shape[:3], call.v.shape[-1]))

    return run_with_backend(TRANSLATOR, backend)


def place_softmax(function: Function) -> Output:
    """Let the function be the softmax of all attention of the translator."""

    def backend(call: Call, ctx: Context) -> Tensor:
        scores, keep = call.q @ call.k.mT * call.scale, visible_keys(call)
        scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
        return tensor_of(function(scores, -1), scores, tuple(scores.shape)) @ call.v

    return run_with_backend(TRANSLATOR, backend)


def place_causal_mask(function: Function) -> Output:
    """Let the function be the mask of a small GPT that continues a text, token by token with a cache."""

    def backend(call: Call, ctx: Context) -> Tensor:
        q_pos, k_pos = call.q_pos[0], call.k_pos[0]
        keep = tensor_of(function(q_pos, k_pos, None), call.q, (len(q_pos), len(k_pos))).bool()
        scores = (call.q @ call.k.mT * call.scale).masked_fill(~keep, -torch.inf)
        return scores.softmax(-1).nan_to_num() @ call.v  # a row may hide everything

    return run_with_backend(WRITER, backend, continue_text)


def place_cached_attention(function: Function) -> Output:
    """Let the function be the attention of a small GPT, one new token after the other."""

    def backend(call: Call, ctx: Context) -> Tensor:
        new = call.q.shape[2]
        keys, values = (x[0, :, : x.shape[2] - new] for x in (call.k, call.v))
        out = []
        for t in range(new):
            at = call.k.shape[2] - new + t
            k, v = call.k[0, :, at : at + 1], call.v[0, :, at : at + 1]
            y, keys, values = function(call.q[0, :, t : t + 1], k, v, keys, values)
            out.append(tensor_of(y, v, (v.shape[0], 1, v.shape[2])))
        return torch.cat(out, 1)[None]

    return run_with_backend(WRITER, backend, continue_text)


def place_next_token_loss(function: Function) -> Output:
    """Let the function measure how well a small GPT predicts two texts of different length."""
    model = load(WRITER).eval()
    rows = [model.tokenizer.encode(text) for text in (PROMPT, "It was a dark and stormy night.")]
    pad = len(model.tokenizer) - 1
    tokens = torch.tensor([row + [pad] * (max(map(len, rows)) - len(row)) for row in rows])
    with torch.no_grad():
        loss = tensor_of(function(model(tokens), tokens, pad), torch.zeros(()), ())
    return Output(f"loss {float(loss):.3f} nats a token, perplexity {float(loss.exp()):.1f}", loss)


def place_top_p(function: Function) -> Output:
    """Let the function choose what a small GPT may draw."""
    model, draw = load(WRITER).eval(), torch.Generator().manual_seed(0)
    ids = model.tokenizer.encode(PROMPT)
    for _ in range(8):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1]
        probs = tensor_of(function(logits, 0.8), logits, tuple(logits.shape))
        ids.append(int(torch.multinomial(probs, 1, generator=draw)))
    return Output(f"“{model.tokenizer.decode(ids)}”")


def place_bleu(function: Function) -> Output:
    """Let the function score the translator on two sentences."""
    texts = generate(load(TRANSLATOR), list(SENTENCES), max_tokens=MAX_TOKENS, fast=False)
    references = (
        "Mein Bruder hat letzte Woche ein neues Auto gekauft.",
        "Der alte Mann von nebenan ist mein Onkel.",
    )
    score = float(function([str(text).split() for text in texts], [text.split() for text in references]))
    return Output(f"BLEU {score:.3f}", torch.tensor(score))


def place_layer_norm(function: Function) -> Output:
    """Let the function be every layer norm of the translator."""

    def forward(norm: LayerNorm, x: Tensor) -> Tensor:
        return tensor_of(function(x, norm.weight.detach(), norm.bias.detach(), norm.eps), x, tuple(x.shape))

    model = load(TRANSLATOR)
    for norm in modules_of(model, LayerNorm):
        norm.forward = partial(forward, norm)
    return translate(model)


def place_positional_encoding(function: Function) -> Output:
    """Let the function give the positions that the translator adds to its embeddings."""
    table = functools.cache(lambda length, dim: function(length, dim, 10000.0))  # once for each length

    def forward(positions: Sinusoidal, pos: Tensor) -> Tensor:
        shape = (int(pos.max()) + 1, positions.dim)
        return tensor_of(table(*shape), torch.zeros(()), shape)[pos]

    model = load(TRANSLATOR)
    for positions in modules_of(model, Sinusoidal):
        positions.forward = partial(forward, positions)
    return translate(model)


def place_bahdanau_score(function: Function) -> Output:
    """Let the function score each source word at every step of RNNsearch."""

    def forward(weights: list[Tensor], query: Tensor, keys: Tensor) -> Tensor:
        return tensor_of(function(query, keys, *weights), query, tuple(keys.shape[:2]))

    model = load(ALIGNER)
    for score in modules_of(model, Additive):
        # The matrices may be held in 8 bits: what they make of the unit vectors is the matrix itself.
        with torch.no_grad():
            sizes = {score.q: score.query_dim, score.k: score.memory_dim, score.v: score.dim}
            W, U, v = (layer(torch.eye(size)).T for layer, size in sizes.items())
        score.keys = lambda memory: memory
        score.forward = partial(forward, [W, U, v[0]])
    return translate(model)


@contextlib.contextmanager
def small_corpus(length: int, batch: int) -> Iterator[tuple[Tokenizer, Batches]]:
    """Give a tokenizer of characters and batches of a few repeated sentences."""
    with tempfile.TemporaryDirectory(prefix="heed-exercise-") as folder:
        path = Path(folder, "corpus.txt")
        path.write_text(CORPUS, encoding="utf-8")
        tokenizer = train_tokenizer("char", path)
        yield tokenizer, next_token(path, tokenizer, length=length, batch=batch, cache=Path(folder, "cache"))


@functools.cache
def trained_lstm() -> Model:
    """Return an LSTM that has learnt the small corpus nearly by heart.

    Its steps are those of the exercise `adamw_step`: making an optimiser of torch takes a second.
    """
    with small_corpus(length=40, batch=8) as (tokenizer, batches):
        model = build("lstm", vocab=len(tokenizer), dim=48, layers=1, dropout=0.0, seed=0)
        model.tokenizer = tokenizer
        weights = list(model.parameters())
        moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in weights]
        for t in range(1, 61):
            batch = batches[t - 1]
            assert batch.labels is not None
            logits, labels = model(batch.tokens).flatten(0, 1), batch.labels.flatten()
            gradients = torch.autograd.grad(F.cross_entropy(logits, labels, ignore_index=IGNORE), weights)
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(weights, gradients, strict=True)):
                    new, m, v = adamw_step(p, g, *moments[i], t, 2e-2, 0.9, 0.95, 1e-8, 0.0)
                    moments[i] = m, v
                    p.copy_(new)
    return model.eval()


def place_lstm_step(function: Function) -> Output:
    """Let the function be the step of an LSTM that continues a text."""

    def loop(layer: LSTM, x: Tensor, first: Carry, ctx: Context) -> tuple[Tensor, Carry]:
        W, U, b = layer.x.weight.detach(), layer.h.weight.detach(), (layer.x.bias + layer.h.bias).detach()

        def step(t: int, carry: Carry, see: Callable[[str, Tensor], Tensor]) -> Carry:
            out = function(x[:, t], carry["h"], carry["c"], W, U, b)
            h, c = (tensor_of(value, carry["c"], tuple(carry["c"].shape)) for value in out)
            return {"h": see("h", h), "c": see("c", c)}

        return unroll(step, first, x.shape[1], ctx, "h", reverse=layer.reverse)

    model = copy.deepcopy(trained_lstm())
    for layer in modules_of(model, LSTM):
        layer._can_fuse = lambda ctx: False
        layer._loop = partial(loop, layer)
    return write_greedily(model.eval(), ["the cat"], 24, before="the cat")


def place_bpe_merge(function: Function) -> Output:
    """Let the function learn the merges of a tokenizer, which then splits a sentence."""
    counts = Counter(split_words(CORPUS))
    words = {word_letters(word): count for word, count in counts.items()}
    merges: list[Pair] = []
    for _ in range(12):
        (left, right), words = function(words)
        merges.append((left, right))
    return Output(" ".join(BPE(tuple(merges)).encode("the cat sat in the tree")).replace("Ġ", "_"))


def place_beam_search(function: Function) -> Output:
    """Let the function search for a translation of the bundled translator."""
    model, length = load(TRANSLATOR).eval(), 8
    assert isinstance(model, Seq2Seq)
    tokenizer, start = model.tokenizer, model.start_token
    source = torch.tensor([tokenizer.encode(SHORT)])

    @torch.no_grad()
    def log_probs(ids: list[int]) -> Tensor:
        if len(ids) > length:
            raise InputError(f"{len(ids)} tokens are more than `max_length={length}`")
        return model(source, torch.tensor([[start, *map(int, ids)]]))[0, -1].log_softmax(-1)

    ids, _ = function(log_probs, tokenizer.eos, 2, length, 1.0)
    return Output(f"“{tokenizer.decode([int(i) for i in ids if int(i) != tokenizer.eos])}”")


def place_skipgram_step(function: Function) -> Output:
    """Let the function train word vectors on the windows of a text."""
    text = CORPUS.replace(".", " .").split()
    counts = Counter(text)
    word_counts = WordCounts(list(counts), np.array(list(counts.values())), len(text))
    noise, keep = alias_table(word_counts.noise_distribution(0.75)), word_counts.keep_limits(0)
    ids = np.array([word_counts.index[word] for word in text[:60]])
    V, U = torch.randn(2, len(word_counts), 8, generator=torch.Generator().manual_seed(0)) * 0.5
    for w in draw_windows(ids, keep, noise, None, Settings(dim=8, window=2, negatives=3), seed=0):
        new = function(V, U, w.centre, w.contexts, w.outputs[1:], 0.2)
        V, U = (tensor_of(table, V, tuple(V.shape)) for table in new)
    unit = V / V.norm(dim=1, keepdim=True)
    cosines = unit @ unit[[word_counts.index["cat"], word_counts.index["sat"]]].T
    cat, sat = (word_counts.words[i] for i in cosines.topk(2, 0).indices[1])
    return Output(f"cat is nearest to {cat}, sat to {sat}, |V| = {float(V.norm()):.3f}", V)


class FunctionAdamW(Optimizer):
    """An optimiser whose step asks a function."""

    def __init__(self, groups: list[dict[str, object]], function: Function, config: TrainConfig) -> None:
        super().__init__(groups, {"lr": config.lr})
        self.function, self.config, self.number = function, config, 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.number += 1
        constants = (*self.config.betas, self.config.eps)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p] or {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                moments, decay = (state["m"], state["v"]), group["weight_decay"]
                out = self.function(p.detach(), p.grad, *moments, self.number, group["lr"], *constants, decay)
                new, m, v = (tensor_of(value, p, tuple(p.shape)) for value in out)
                p.copy_(new)
                self.state[p] = {"m": m, "v": v}


def place_adamw_step(function: Function) -> Output:
    """Let the function change the weights of a small GPT in `fit`; the losses are compared."""
    config = TrainConfig(steps=8, lr=2e-2)
    with small_corpus(length=16, batch=4) as (tokenizer, batches):
        sizes: dict[str, Any] = {"vocab": len(tokenizer), "dim": 16, "heads": 2, "layers": 1, "context": 16}
        model = build("gpt2", **sizes, dropout=0.0, seed=0)
        run = TrainingRun(model, objective("next_token"), batches, config, Processes())
        run.optimisers = [FunctionAdamW(groups(model, config), function, config)]
        losses = [run.step().loss for _ in range(config.steps)]
    return Output("losses " + " ".join(f"{loss:.3f}" for loss in losses), torch.tensor(losses))
