"""How probable a text is, which of several fits best, what belongs in a blank.

    log_probability(model, "The cat sat.").perplexity
    rank(model, "The capital of France is", [" Paris", " London"])
    infill(model, "I was eating ___ at noon.", ["lunch", "dinner"])

A model that reads from left to right gives log p(x) = Σ log p(x_t | x_<t); an encoder-decoder the same, given
a source; a masked one the pseudo-log-likelihood Σ log p(x_t | all others)   (Salazar et al. 2020 eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.core.padding import pad_rows, valid_mask
from heedful.data.tokenization import find_template
from heedful.decode.loop import generate
from heedful.decode.request import Prompts, context_length
from heedful.models.base import LM, Model, Seq2Seq, evaluation_mode
from heedful.tasks.pipelines.encoders import MASK
from heedful.tasks.task import open_model

By = Literal["total", "mean"]
MAX_BATCH_TOKENS = 1 << 13  # read at once, padding included
MAX_BATCH_LOGITS = 1 << 26  # held at once


@dataclass(frozen=True)
class TextScore:
    """The log-probability of a text, token by token.

    `likeliest` marks the tokens that the model would have written.

    Without anything before it the first token of a text is taken as given and not counted.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    likeliest: tuple[bool, ...]

    @property
    def total(self) -> float:
        """log p, in nats."""
        return math.fsum(self.logprobs)

    @property
    def mean(self) -> float:
        """log p per token: a text is not worse for being longer."""
        return self.total / len(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp(−mean)"""
        return math.exp(-self.mean) if self.mean > -700 else math.inf


@dataclass(frozen=True)
class Continuations:
    """A prefix that is read once, and what may follow it. The prefix of an encoder-decoder is its source."""

    prefix: Sequence[int]
    endings: Sequence[Sequence[int]]

    @property
    def longest(self) -> int:
        """The length of the longest ending."""
        return max(map(len, self.endings))


def log_probability(
    model: Model | str | Path, text: str | Sequence[str], *, source: str | Sequence[str] | None = None
) -> Any:
    """Return the log-probability of a text or of several; an encoder-decoder needs the `source` of each."""
    model = open_model(model)
    texts = [text] if isinstance(text, str) else check_texts("text", text)
    if isinstance(model, Seq2Seq):
        sources = [source] if isinstance(source, str) else list(source or ())
        if len(sources) != len(texts):
            given = f"got {len(sources)} for {len(texts)}"
            raise InputError(
                f"an encoder-decoder needs a source for each text; {given}", hint="pass them as `source=`"
            )
        groups = [
            Continuations(source_ids(model, s), [target_ids(model, t)])
            for s, t in zip(sources, texts, strict=True)
        ]
    elif source is not None:
        raise InputError(
            "`source=` is for encoder-decoders", hint="put it before the text and use rank(model, source, …)"
        )
    else:
        rows = [text_ids(model, one) for one in texts]
        if is_masked(model):
            groups = [Continuations((), [ids]) for ids in rows]
        else:
            first = list(find_template(model.tokenizer).before) or start_ids(model)
            if not first and any(len(ids) < 2 for ids in rows):
                raise InputError(
                    "this model has no token that begins a text", hint="score one of several tokens"
                )
            groups = [Continuations(first or ids[:1], [ids if first else ids[1:]]) for ids in rows]
    scores = [row[0] for row in score_continuations(model, groups)]
    return scores[0] if isinstance(text, str) else scores


def rank(
    model: Model | str | Path, prompt: str, candidates: Iterable[str], *, by: By = "total"
) -> list[dict[str, Any]]:
    """Return the candidates as continuations of the prompt, the best first.

    `by="total"` compares log p(candidate | prompt), "mean" the same per token, for candidates of unlike
    lengths. "probability" is the share among the candidates, softmax over their scores. A candidate follows
    the prompt as it stands: mind the space. For an encoder-decoder the prompt is the source.
    """
    model, candidates = open_model(model), check_candidates(candidates, by)
    if not isinstance(prompt, str):
        raise InputError(f"the prompt must be a text; got {prompt!r:.60}")
    if isinstance(model, Seq2Seq):
        groups = [Continuations(source_ids(model, prompt), [target_ids(model, c) for c in candidates])]
    else:
        whole = [text_ids(model, prompt + c) for c in candidates]
        before = text_ids(model, prompt) if prompt else []
        if is_masked(model):
            same = [min(common_prefix_length([before, ids], keep=0), len(ids) - 1) for ids in whole]
            groups = [Continuations(ids[:at], [ids[at:]]) for ids, at in zip(whole, same, strict=True)]
        else:
            at = common_prefix_length([before, *whole], keep=0)
            groups = [split_texts(model, whole, at)]
    scores = [score for row in score_continuations(model, groups) for score in row]
    return rank_candidates(candidates, scores, by)


def infill(
    model: Model | str | Path, text: str, candidates: Iterable[str], *, by: By = "total"
) -> list[dict[str, Any]]:
    """Return the candidates for the blank ___ of a text, the best first, each with the whole text it makes.

    A left-to-right model scores everything from the blank on, so that what follows counts too. An
    encoder-decoder reads the text with its own mark in the blank and writes what it was trained to write.
    """
    model, candidates = open_model(model), check_candidates(candidates, by)
    blanks = MASK.findall(text) if isinstance(text, str) else []
    if len(blanks) != 1:
        raise InputError(f"the text has {len(blanks)} blanks", hint="mark the one place to fill with ___")
    before, after = MASK.split(text)
    filled = [before + c + after for c in candidates]
    if isinstance(model, Seq2Seq):
        hidden, write = infilling_format(model)
        group = Continuations(
            source_ids(model, before + hidden + after), [target_ids(model, write(c, f)) for c, f in
                                                       zip(candidates, filled, strict=True)]
        )  # fmt: skip
    else:
        whole = [text_ids(model, one) for one in filled]
        group = Continuations((), whole) if is_masked(model) else split_texts(model, whole)
    scores = score_continuations(model, [group])[0]
    rows = rank_candidates(candidates, scores, by)
    return [row | {"sequence": filled[row["index"]]} for row in rows]


def infilling_format(model: Seq2Seq) -> tuple[str, Callable[[str, str], str]]:
    """Return what hides a word, and the target for it: the whole text (BART), or the words alone (T5)."""
    roles = model.tokenizer.roles
    if "mask" in roles:
        return roles["mask"], lambda candidate, filled: filled
    if model.tokenizer.id("<extra_id_0>") is not None:
        return "<extra_id_0>", lambda candidate, filled: f"<extra_id_0> {candidate} <extra_id_1>"
    raise InputError("this encoder-decoder has no token for a blank", hint="rank(model, …) needs none")


def check_texts(name: str, texts: Any) -> list[str]:
    """Return texts as a list; raise InputError if it is none, or holds something else."""
    if isinstance(texts, Iterable) and not isinstance(texts, str):
        checked = list(texts)
        if all(isinstance(one, str) for one in checked):
            return checked
    raise InputError(f"{name} must be a list of texts; got {texts!r:.60}")


def check_candidates(candidates: Iterable[str], by: str) -> list[str]:
    """Return the candidates; raise InputError for none or an empty one, and for an unknown comparison."""
    checked = check_texts("candidates", candidates)
    if not checked or not all(checked):
        raise InputError(f"candidates must be a list of texts, none of them empty; got {checked!r}")
    check_choice("by", by, ("total", "mean"))
    return checked


def rank_candidates(
    candidates: Sequence[str], text_scores: Sequence[TextScore], by: str
) -> list[dict[str, Any]]:
    """Return a row for each candidate, the best first."""
    scores = [s.total if by == "total" else s.mean for s in text_scores]
    shares = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    rows = [
        {"text": c, "index": i, "score": score, "probability": p, "total": s.total, "mean": s.mean}
        for i, (c, s, score, p) in enumerate(zip(candidates, text_scores, scores, shares, strict=True))
    ]
    return sorted(rows, key=lambda row: -row["score"])


def is_masked(model: Model) -> bool:
    """Return whether it reads both ways; raise InputError if it predicts no words or has no tokenizer."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="load one from a folder that has")
    assert isinstance(model, (LM, Seq2Seq))
    model.head.words  # noqa: B018  says so if there are none
    return isinstance(model, LM) and not model.causal


def text_ids(model: Model, text: str) -> list[int]:
    """Return a text as ids without special tokens; raise InputError if it has none."""
    is_masked(model)
    ids: list[int] = model.tokenizer.encode(text, special=False)
    if not ids:
        raise InputError(f"{text!r} has no token", hint="there is nothing to score")
    return ids


def source_ids(model: Model, text: str) -> list[int]:
    """Return a source as encoder-decoders read it in training: with its end token."""
    ids = text_ids(model, text)
    return find_template(model.tokenizer, end=True).wrap(ids).tolist()


def target_ids(model: Seq2Seq, text: str) -> list[int]:
    """Return a target with its end token, and without the start token, which the model writes itself."""
    ids = source_ids(model, text)
    return ids[1:] if len(ids) > 1 and ids[0] == model.start_token else ids


def start_ids(model: Model) -> list[int]:
    """Return what the first token can be predicted from: the end of another text, or the bos token.

    A chat model's bos opens a message, and a text behind it would be a speaker's name.
    """
    tokenizer = model.tokenizer
    ids = (tokenizer.id("<|endoftext|>"), tokenizer.bos, model.hf_config.get("bos_token_id"), tokenizer.eos)
    return [i for i in ids if isinstance(i, int)][:1]


def common_prefix_length(texts: Sequence[Sequence[int]], keep: int = 1) -> int:
    """Return how many first tokens all have in common, if at least `keep` are to remain of each."""
    most = min(map(len, texts)) - keep
    same = lambda i: len({ids[i] for ids in texts}) == 1
    return next((i for i in range(most) if not same(i)), max(most, 0))


def split_texts(
    model: Model, texts: Sequence[Sequence[int]], at: int | None = None, first: Sequence[int] | None = None
) -> Continuations:
    """Split texts where they differ, or after `at` tokens, behind what the tokenizer puts before them.

    What they have in common costs all the same and is left out. With nothing before them they follow `first`.
    """
    before = list(find_template(model.tokenizer).before)
    at = min(common_prefix_length(texts) if at is None else at, min(map(len, texts)) - 1)
    if not before and at == 0:
        before = list(start_ids(model) if first is None else first)
        if not before:
            raise InputError(
                "this model has no token that begins a text: put a first word before all of them"
            )
    return Continuations([*before, *texts[0][:at]], [ids[at:] for ids in texts])


def batch_by_length(rows: Sequence[tuple[int, int, int]], vocab: int) -> Iterator[list[int]]:
    """Yield batches of rows given as (length, predicted, count): alike lengths, of bounded size."""
    order = sorted(range(len(rows)), key=lambda i: rows[i])
    batch: list[int] = []
    long, wide, count = 0, 0, 0
    for i in order:
        length, predicted, many = rows[i]
        bigger = max(long, length), max(wide, predicted), count + many
        if batch and (
            bigger[0] * bigger[2] > MAX_BATCH_TOKENS or bigger[1] * bigger[2] * vocab > MAX_BATCH_LOGITS
        ):
            yield batch
            batch, bigger = [], (length, predicted, many)
        long, wide, count = bigger
        batch.append(i)
    if batch:
        yield batch


def check_context(model: Model, length: int) -> None:
    """Raise InputError for a text beyond the context: a part of it would be another text."""
    context = context_length(model)
    if context is not None and length > context:
        raise InputError(
            f"the text has {length} tokens, the model's context is {context}",
            hint="shorten it, or take its perplexity by windows: heedful.tasks.metrics.perplexity",
        )


@torch.no_grad()
def score_continuations(model: Model, groups: Sequence[Continuations]) -> list[list[TextScore]]:
    """Return log p of every ending given its prefix. A prefix of several endings is read once.

    A masked model reads each text whole; it gets the pseudo-log-likelihood of the ending.
    """
    assert isinstance(model, (LM, Seq2Seq))
    if isinstance(model, LM) and not model.causal:
        rows = [
            ([*g.prefix, *e], range(len(g.prefix), len(g.prefix) + len(e))) for g in groups for e in g.endings
        ]
        scores = iter(pseudo_log_likelihoods(model, rows))
        return [[next(scores) for _ in group.endings] for group in groups]
    for group in groups:
        source = 1 if isinstance(model, Seq2Seq) else len(group.prefix)
        check_context(model, source + group.longest - 1)
    out: list[list[TextScore]] = [[] for _ in groups]
    sizes = [(len(g.prefix) + g.longest, g.longest, len(g.endings)) for g in groups]
    with evaluation_mode(model):
        for batch in batch_by_length(sizes, model.config.vocab):
            endings = iter(_endings(model, [groups[i] for i in batch]))
            for i in batch:
                out[i] = [next(endings) for _ in groups[i].endings]
    return out


def _endings(model: LM | Seq2Seq, groups: Sequence[Continuations]) -> list[TextScore]:
    tokens, valid = Prompts([list(g.prefix) for g in groups], False, False).padded(model.device)
    endings = [list(e) for g in groups for e in g.endings]
    target, real = pad_ids(endings, model.device)
    state = model.start(tokens, valid=valid, length=tokens.shape[1] + target.shape[1])
    counts = torch.tensor([len(g.endings) for g in groups], device=model.device)
    if len(endings) > len(groups):
        state.reorder(torch.arange(len(groups), device=model.device).repeat_interleave(counts))
    assert state.logits is not None
    logits = state.logits[:, None]
    if target.shape[1] > 1:
        more = real[:, 1:]  # a token is read only if another is predicted from it
        after = model.step(target[:, :-1], state, valid=None if bool(more.all()) else more)
        logits = torch.cat((logits, after), 1)  # (N, T, V)
    return token_scores(logits, target, endings)


def pad_ids(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (N, T), filled up on the right, and which ids are real."""
    lengths = [len(row) for row in rows]
    valid = torch.from_numpy(valid_mask(lengths, max(lengths)))
    return torch.from_numpy(pad_rows(rows)).to(device), valid.to(device)


def token_scores(logits: Tensor, target: Tensor, rows: Sequence[Sequence[int]]) -> list[TextScore]:
    """Return one TextScore per row from logits (N, T, V) and targets (N, T)."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none")
    logprobs = (-losses).view(target.shape).tolist()
    best = (logits.argmax(-1) == target).tolist()
    return [
        TextScore(tuple(ids), tuple(logs[: len(ids)]), tuple(right[: len(ids)]))
        for ids, logs, right in zip(rows, logprobs, best, strict=True)
    ]


@torch.no_grad()
def pseudo_log_likelihoods(model: Model, texts: Sequence[tuple[Sequence[int], range]]) -> list[TextScore]:
    """Return Σ log p(x_t | all others) over a range of positions: each is hidden in its own copy."""
    assert isinstance(model, LM)
    mask, around = model.tokenizer.mask, find_template(model.tokenizer)
    if mask is None:
        raise InputError(
            "this model reads in both directions but its tokenizer has no mask token to hide a word with"
        )
    lead = len(around.before)
    whole = [around.wrap(ids).tolist() for ids, _ in texts]
    check_context(model, max(map(len, whole)))
    positions = [(i, t) for i, (_, wanted) in enumerate(texts) for t in wanted]
    scores: dict[tuple[int, int], TextScore] = {}
    with evaluation_mode(model):
        for batch in batch_by_length([(len(whole[i]), 1, 1) for i, _ in positions], model.config.vocab):
            some = [positions[k] for k in batch]
            tokens, real = pad_ids([whole[i] for i, _ in some], model.device)
            rows = torch.arange(len(some), device=model.device)
            at = torch.tensor([t + lead for _, t in some], device=model.device)
            target = tokens[rows, at][:, None]
            tokens[rows, at] = mask
            hidden, ctx = model.read(tokens, valid=None if bool(real.all()) else real)
            logits = model.head.words(hidden[rows, at][:, None], ctx)  # (N, 1, V)
            scores |= zip(some, token_scores(logits, target, target.tolist()), strict=True)
    joined = []
    for i, (_, wanted) in enumerate(texts):
        parts = [scores[i, t] for t in wanted]
        ids, logprobs = tuple(p.ids[0] for p in parts), tuple(p.logprobs[0] for p in parts)
        joined.append(TextScore(ids, logprobs, tuple(p.likeliest[0] for p in parts)))
    return joined


# Few-shot prompting: examples in, a prompt out; a label or a text back   (Brown et al. 2020 §2)
#
# print(few_shot([("great fun", "good"), ("a bore", "bad")], "I loved it", "Is the review good or bad?"))
# FewShot("smollm2-135m-instruct", examples, labels=["good", "bad"])("I loved it")["label"]


Example = Sequence[str] | Mapping[str, str]


def few_shot(
    examples: Iterable[Example],
    query: str,
    instruction: str | None = None,
    *,
    names: tuple[str, str] = ("Text", "Answer"),
    between: str = "\n\n",
) -> str:
    """Return instruction, examples and query as one text that ends where the answer begins.

    An example is a pair, or a mapping of two values in their order: {"text": …, "label": …}. `names` go
    before the two, `between` stands between examples. Without examples the prompt is zero-shot.
    """
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"the query must be a text that is not empty; got {query!r}")
    if isinstance(names, str) or len(names) != 2:
        raise InputError(f"names must be two texts, that of the text and that of the answer; got {names!r}")
    text_name, answer_name = names
    shown = [f"{text_name}: {text}\n{answer_name}: {answer}" for text, answer in parse_examples(examples)]
    parts = [*([instruction] if instruction else []), *shown, f"{text_name}: {query}\n{answer_name}:"]
    return between.join(parts)


def parse_examples(examples: Iterable[Example]) -> list[tuple[str, str]]:
    """Return the text and the answer of every example; of a mapping from texts to answers its items."""
    items = examples.items() if isinstance(examples, Mapping) else examples
    if not isinstance(items, Iterable):
        raise InputError(f"examples must be a list of pairs of a text and its answer; got {items!r:.60}")
    pairs = []
    for i, example in enumerate(items):
        values = list(example.values()) if isinstance(example, Mapping) else list(example)
        if isinstance(example, str) or len(values) != 2 or not all(isinstance(v, str) and v for v in values):
            hint = "an example is a text and its answer, both texts"
            raise InputError(f"example {i} is {example!r:.60}", hint=hint)
        pairs.append((values[0], values[1]))
    return pairs


class FewShot:
    """A model that learns its task from examples in the prompt. It chooses one of `labels`, or writes.

    A label's probability is that of its text after the prompt, shared out among all labels; `by="mean"` does
    not hold a long name against a label.
    """

    def __init__(
        self,
        model: Model | str | Path,
        examples: Iterable[Example],
        labels: Sequence[str] | None = None,
        *,
        instruction: str | None = None,
        names: tuple[str, str] = ("Text", "Answer"),
        by: By = "total",
        **settings: Any,
    ) -> None:
        self.examples, self.instruction, self.names = parse_examples(examples), instruction, names
        self.labels, self.by, self.settings = labels, by, settings
        answers = [answer for _, answer in self.examples]
        if labels is not None:
            if isinstance(labels, str) or len(set(labels)) < 2:
                raise InputError(f"labels must be at least two different texts; got {labels!r}")
            if unknown := [a for a in answers if a not in labels]:
                raise InputError(f"an example is answered {unknown[0]!r}, which is not one of {list(labels)}")
        self.model = open_model(model)

    def prompt(self, query: str) -> str:
        """Return the prompt of a query."""
        return few_shot(self.examples, query, self.instruction, names=self.names)

    def __call__(self, query: str | Sequence[str]) -> Any:
        """Return {"label", "score", "scores"} if there are labels, else the text; a list for a list."""
        if not isinstance(query, str):
            return [self(one) for one in query]
        if self.labels is None:
            # The next example would begin after a line end, and the model would write it.
            settings: dict[str, Any] = {"max_tokens": 64, "stop": ["\n"]} | self.settings
            return generate(self.model, self.prompt(query), **settings).strip()
        rows = rank(self.model, self.prompt(query), [f" {label}" for label in self.labels], by=self.by)
        scores = {row["text"][1:]: row["probability"] for row in rows}
        best = next(iter(scores))
        return {"label": best, "score": scores[best], "scores": scores}
