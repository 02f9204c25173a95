"""steps, next_token, embeddings, training, beams: arithmetic, probabilities, maps, curves and searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.classroom.arithmetic.explain import explain
from heedful.classroom.arithmetic.render import Style
from heedful.classroom.arithmetic.worked import Derivation
from heedful.classroom.figures import panels
from heedful.classroom.figures.attention_figures import Text, check_pattern
from heedful.classroom.figures.figure import Figure, figure
from heedful.classroom.figures.panels import Axes
from heedful.classroom.figures.token_labels import caption_of, cut_label, labels, readable
from heedful.core.errors import InputError
from heedful.decode.fast import choose_stepper
from heedful.decode.request import Prompt, encode_prompts, make_request
from heedful.decode.sampling import generator, uniforms
from heedful.decode.search import BeamState, run_beam_search
from heedful.decode.settings import GenerationSettings, read_settings
from heedful.decode.stepper import Stepper, stepper_for
from heedful.interp.inputs import Input, position_of, token_id, word_head
from heedful.interp.observe import lens
from heedful.interp.observe.prediction import default_position, draw_token, is_causal
from heedful.interp.observe.projection import project
from heedful.interp.observe.word_vectors import frequent_words
from heedful.models.base import Model, Seq2Seq
from heedful.word2vec.vectors import Word2Vec


@figure
def steps(subject: Any, text: Text = None, target: Text = None, **options: Any) -> Figure:
    """Draw worked arithmetic. The arguments are those of `heedful.explain`.

    steps(model, "The cat sat", part="blocks.1.attn", head=2, token="cat"); steps("cat-sat").
    """
    worked = explain(subject, text, target, **options)
    ours, named = isinstance(subject, Model), isinstance(subject, str | Path)
    about: dict[str, Any] = {
        "model": subject.family.name if ours else "",
        "exercise": "" if ours else str(subject) if named else "values",
        "text": cut_label(text) if isinstance(text, str) else "", **{k: str(v) for k, v in options.items()},
    }  # fmt: skip
    rows, lines = list(_rows(worked)), worked.text(width=12).splitlines()
    title = worked.title.replace("Ġ", "·").replace("▁", "·")
    return Figure("steps", title, about, {"worked": worked.to_dict(), "rows": rows, "text": lines})


def _rows(derivation: Derivation) -> Iterator[tuple[str, ...]]:
    for line in derivation.lines:
        if isinstance(line, Derivation):
            yield from _rows(line)
        else:
            yield derivation.title, *(cell or "" for cell in Style(6, None).cells(line))


@figure
def surprisal(model: Model, text: Text, target: Text = None) -> Figure:
    """Draw how surprised the model is by each token, −log₂ p in bits."""
    surprise = lens.surprisal(model, text, target)
    names = readable(model, surprise.tokens)
    predicted = [i for i, bits in enumerate(surprise.bits) if bits is not None]
    values, labelled = [surprise.bits[i] for i in predicted], [f"{i}: {names[i]}" for i in predicted]
    panel = panels.bars("surprisal", values, labelled, axes=("token", "bits"))
    caption = caption_of(text, names)
    title = f"Surprise of {model.family.name}: {surprise.mean:.2f} bits a token"
    title += f", perplexity {surprise.perplexity:.1f}"
    return Figure("surprisal", title, {"model": model.family.name, "text": caption}, {"panels": [panel]})


@figure
@torch.no_grad()
def next_token(
    model: Model, text: Text, target: Text = None, *, position: int | str | None = None,
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
    min_p: float | None = None, seed: int = 0, count: int = 20,
) -> Figure:  # fmt: skip
    """Draw how logits become a token: with temperature, top-k, top-p, min-p and the draw of `seed`.

    The rules and the random number are those of `heedful.generate`. For an encoder, this is the word at
    `position`, by default the first masked one. For an encoder-decoder without a target, it is the first
    word.
    """
    settings = GenerationSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    word_head(model)
    if isinstance(model, Seq2Seq) and target is None:
        target = [model.start_token]
    given = check_pattern(model, text, target)
    at = _position(model, given, position)
    logits = given.run(model)[0, at].float().cpu()
    drawn = draw_token(logits, settings, seed=seed)
    names = labels(model, range(len(logits)))
    shown = logits.topk(min(count, len(names))).indices.tolist()
    shown += [drawn.token] * (drawn.token not in shown)
    stages = zip(("p", "heated", "top_k", "top_p", "final"), ("p", "temperature", "top_k", "top_p", "final"))
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    data = {
        "names": names, "logits": logits.numpy(), "shown": shown, "drawn": drawn.token, "count": count,
        "u": float(uniforms([generator(seed)], 1)[0, 0]), "seed": seed,
        "chain": {name: drawn.chances[rule][shown].numpy() for name, rule in stages},
        "entropy": drawn.entropy(), "kept": drawn.candidates(), "sampling": chosen,
    }  # fmt: skip
    place = labels(model, given.read)[at]
    caption = caption_of(text, labels(model, given.ids))
    after = f"{'after' if is_causal(model) else 'at'} “{place}”"
    set_ = {name: value for name, value in chosen.items() if value is not None} | {"seed": seed}
    kind = "Next token" if is_causal(model) else "Word"
    title = f"{kind} of {model.family.name} {after}: {', '.join(f'{k} {v}' for k, v in set_.items())}"
    about = {"model": model.family.name, "text": caption, "position": at, **set_}
    share = f"{drawn.candidates():,} of {len(names):,} tokens may be drawn"
    note = f"{share}; the entropy is {drawn.entropy():.2f} bits."
    return Figure("next_token", title, about, data, note)


def _position(model: Model, inputs: Input, position: int | str | None) -> int:
    """Return the position that predicts: the last, or the first masked one of an encoder."""
    if position is not None:
        return position_of(inputs.names, position)
    mask = getattr(model.tokenizer, "mask", None)
    if not is_causal(model) and (mask is None or mask not in inputs.read[0].tolist()):
        name = "the mask" if mask is None else model.tokenizer.tokens([mask])[0]
        raise InputError(f"an encoder predicts masked words: write {name} in the text, or give `position=`")
    return default_position(model, inputs)


@figure
@torch.no_grad()
def embeddings(
    subject: Any, *, words: Sequence[str | int] | None = None, names: Sequence[str] | None = None,
    table: str = "tokens", count: int = 300, neighbours: int = 10, select: str | None = None,
    method: str = "pca", perplexity: float = 30.0, seed: int = 0,
) -> Figure:  # fmt: skip
    """Draw a map of vectors by their first two principal components, with the nearest words in the full
    space.

    `subject` is a model (its `table` of tokens, or "target"), a `Word2Vec`, or vectors (V, D) with their
    `names`. Without `words`, the figure shows the first `count` whole words of the vocabulary. Neighbours are
    found by the cosine among all V vectors, not by the map. `method` "tsne" (scikit-learn) or "umap"
    (umap-learn) draws another map. `perplexity` is roughly the number of neighbours that count, and `seed`
    sets where the points start.
    """
    vectors, vocabulary, label = _vectors(subject, names, table)
    if words is None:
        chosen = frequent_words(vocabulary, count)
    else:
        rows = {name: i for i, name in enumerate(vocabulary)}
        chosen = list(dict.fromkeys(_row(subject, rows, word, len(vocabulary)) for word in words))
    if len(chosen) < 2:
        raise InputError("a map needs at least 2 words", hint=f"there are {len(chosen)}")
    X = vectors[chosen]
    made = project(X.numpy(), method, perplexity=perplexity, seed=seed)
    close = F.normalize(X, dim=-1) @ F.normalize(vectors, dim=-1).T
    close[torch.arange(len(chosen)), torch.tensor(chosen)] = -torch.inf
    near = close.topk(min(neighbours, len(vocabulary) - 1), -1)
    used = sorted(set(near.indices.flatten().tolist()))
    place = {word: i for i, word in enumerate(used)}
    shown = [vocabulary[i] for i in chosen]
    if select is not None and select not in shown:
        raise InputError(f"`select={select!r}` is not among the words drawn", hint="name it in `words=`")
    data = {
        "names": shown, "points": made.points.astype(np.float32), "explained": made.share,
        "axes": made.axes,
        "words": [vocabulary[i] for i in used], "cosines": near.values.float().numpy(),
        "near": np.array([[place[i] for i in row] for row in near.indices.tolist()], dtype=np.int32),
        "selected": None if select is None else shown.index(select),
    }  # fmt: skip
    title = f"Vectors of {label}: {len(chosen)} of {len(vocabulary):,} words"
    note = f"On this map {made.note}. Neighbours are those of all {X.shape[1]} dimensions."
    about = {"model": label, "words": len(chosen), "dimensions": X.shape[1], "method": method}
    return Figure("embeddings", title, about, data, note)


def _vectors(subject: Any, names: Sequence[str] | None, table: str) -> tuple[Tensor, list[str], str]:
    """Vectors (V, D), a name for each, and what they are of."""
    if isinstance(subject, Word2Vec):
        return torch.from_numpy(np.asarray(subject.input, dtype=np.float32)), subject.words, "word2vec"
    if isinstance(subject, Model):
        if table not in subject.tables:
            raise InputError(f"no table {table!r}", hint=f"this model has {', '.join(subject.tables)}")
        vectors = subject.tables[table].table.detach().float().cpu()
        return vectors, labels(subject, range(len(vectors))), subject.family.name
    vectors = torch.as_tensor(subject).detach().float().cpu()
    if vectors.dim() != 2 or names is None or len(names) != len(vectors):
        raise InputError("give a model, a Word2Vec, or vectors (V, D) and `names=`, one per row")
    return vectors, [str(n) for n in names], "vectors"


def _row(subject: Any, rows: Mapping[Any, int], word: str | int, count: int) -> int:
    """Return the row of a word, by its name or its number, of `count`."""
    if word in rows:
        return rows[word]
    if isinstance(subject, Word2Vec):
        return subject.row(word)
    if not isinstance(subject, Model) and not isinstance(word, int):
        raise InputError(f"{word!r} is not among the names")
    at = token_id(subject, word) if isinstance(subject, Model) else int(word)
    if not 0 <= at < count:
        raise InputError(f"word {at} is outside 0 … {count - 1}")
    return at


@figure
def training(run: str | Path | Sequence[str | Path], metric: str = "loss") -> Figure:
    """Draw the training and validation curves of one run folder, or of several together."""
    from heedful.train.recipes.folder import read_curves

    runs = [Path(r) for r in ([run] if isinstance(run, str | Path) else run)]
    if not runs:
        raise InputError("no run was named", hint="give the folder of one, or a list of them")
    curves = read_curves(runs, metric)
    where = ", ".join(r.name for r in runs)
    if not curves:
        raise InputError(f"{where} logged no {metric!r}", hint="try loss, learning_rate or grad_norm")
    listed = [
        {"name": name, "x": np.array([x for x, _ in curve]), "y": np.array([y for _, y in curve])}
        for name, curve in curves.items()
    ]
    return Figure("training", f"{metric} of {where}", {"run": where}, {"metric": metric, "curves": listed})


@figure
def matrix(
    values: Any, rows: Sequence[Any] | None = None, columns: Sequence[Any] | None = None, *, title: str = "",
    axes: Axes = ("", ""),
) -> Figure:  # fmt: skip
    """Draw a heat map of any numbers (R, C). NaN is hatched. `axes` are the names of rows and columns."""
    numbers = torch.as_tensor(values).detach().float().cpu()
    if numbers.dim() != 2:
        raise InputError(
            f"the numbers have shape {tuple(numbers.shape)}", hint="give rows and columns (R, C)"
        )
    drawn = panels.matrix("", numbers, rows, columns, axes=axes)
    return Figure("matrix", title, {}, {"panels": [drawn]})


@figure
def lines(values: Any, x: Sequence[float] | None = None, *, title: str = "", axes: Axes = ("", "")) -> Figure:
    """Draw a line over x, or one line for each name of a mapping. `axes` are the titles of y and x."""
    curves = values if isinstance(values, Mapping) else {"": values}
    numbers = torch.stack([torch.as_tensor(curve).detach().float().cpu() for curve in curves.values()])
    drawn = panels.lines("", numbers, list(curves), x, axes=axes)
    return Figure("lines", title, {}, {"panels": [drawn]})


# beams: the search for the most likely text as a tree, every continuation that was weighed with its score.
# The tree is read from the search itself (decode/search.py keeps what each step weighed).


SHOWN = 4000  # branches that can still be drawn


@dataclass(frozen=True)
class Branch:
    """A text that was weighed, by its last token.

    `parent` is the place of the text it continues, −1 at the beginning; `rank` its place at that step.
    Its fate: it "runs" on; it was "pruned"; it is "finished" and among the texts found; it ended and was
    "beaten" by better ones; it still ran when the search was over and is "left". `final` is the score of an
    ended text, log P / |Y|^penalty.
    """

    parent: int
    step: int
    group: int
    rank: int
    token: int
    logprob: float
    score: float
    fate: str
    final: float | None


@dataclass(frozen=True)
class Tree:
    """Every branch of one search; `found` are the places of the finished texts, best first."""

    settings: GenerationSettings
    branches: tuple[Branch, ...]
    found: tuple[int, ...]

    def path(self, at: int) -> list[int]:
        """The places from the first token to this one."""
        out: list[int] = []
        while at >= 0:
            out.append(at)
            at = self.branches[at].parent
        return out[::-1]

    def ids(self, at: int) -> list[int]:
        """The text of a branch, as tokens."""
        return [self.branches[i].token for i in self.path(at)]


def beam_trees(model: Model | Stepper, prompt: Prompt, *, beams: int = 4, **settings: Any) -> list[Tree]:
    """The searches of `heedful.generate(model, prompt, beams=…)`: a tree for each prompt, side by side."""
    plain, chosen = stepper_for(model).model, read_settings({**settings, "beams": beams})
    prompts, request = encode_prompts(plain, prompt), make_request(plain, chosen)
    stepper = choose_stepper(model, beams * len(prompts.ids), chosen.max_tokens)
    return [build_tree(groups, chosen) for groups in run_beam_search(stepper, prompts, request)]


def build_tree(searches: Sequence[BeamState], settings: GenerationSettings) -> Tree:
    """What the groups of one search weighed, put together."""
    out: list[Branch] = []
    finished: list[int] = []
    for g, hunt in enumerate(searches):
        running: list[tuple[int, tuple[int, ...]]] = [(-1, ())]  # place and text of each that runs
        texts = {tuple(ids) for _, ids in hunt.finished}
        for t, tried in enumerate(hunt.steps):
            last, before, running = t + 1 == len(hunt.steps), running, []
            for rank, one in enumerate(tried):
                parent, text = before[one.beam]
                text, fate = (*text, one.token), str(one.fate)
                if fate == "runs":
                    running.append((len(out), text))
                    fate = "left" if last else fate
                elif fate == "ends":
                    fate = "finished" if text in texts else "beaten"
                    finished += [len(out)] * (text in texts)
                gain = one.score - (out[parent].score if parent >= 0 else 0.0)
                out.append(Branch(parent, t + 1, g, rank, one.token, gain, one.score, fate, one.final))
    finished.sort(key=lambda i: -(out[i].final or 0.0))
    return Tree(settings, tuple(out), tuple(finished))


def tree_data(model: Model, candidates: Tree) -> dict[str, Any]:
    """A tree as a figure holds it: branches with their names, the texts that were found."""
    names = labels(model, [b.token for b in candidates.branches])
    lives = {i for at in candidates.found for i in candidates.path(at)}
    best = set(candidates.path(candidates.found[0])) if candidates.found else set()
    tokenizer = model.tokenizer
    decode = lambda ids: tokenizer.decode(ids) if tokenizer is not None else " ".join(map(str, ids))
    branches = [
        vars(branch) | {"name": name, "lives": i in lives, "best": i in best}
        for i, (branch, name) in enumerate(zip(candidates.branches, names, strict=True))
    ]
    texts = [
        {
            "at": i, "text": decode(candidates.ids(i)),
            "tokens": " · ".join(names[place] for place in candidates.path(i)),
            "score": candidates.branches[i].score, "final": candidates.branches[i].final,
        }
        for i in candidates.found
    ]  # fmt: skip
    widths = {"width": candidates.settings.beams, "length_penalty": candidates.settings.length_penalty}
    return widths | {"branches": branches, "texts": texts}


@figure
def beams(model: Model, text: Prompt | Input, *, beams: int = 4, **settings: Any) -> Figure:
    """Draw a beam search as a tree.

    Each column is a step, and its rows are the candidates of that step, the best first. Pruned texts are
    grey. The settings are those of `heedful.generate` with beams=…, such as max_tokens, length_penalty,
    groups and diversity.
    """
    if isinstance(text, Input):  # its ids, or the pixels of its image
        text = text.ids[0] if text.ids.is_floating_point() else text.ids[0].tolist()
    if (count := len(encode_prompts(model, text).ids)) != 1:
        raise InputError(f"{count} prompts have one tree each", hint="give one")
    (tree,) = beam_trees(model, text, beams=beams, **settings)
    if len(tree.branches) > SHOWN:
        raise InputError(
            f"the search weighed {len(tree.branches):,} texts",
            hint="lower `beams=` or `max_tokens=` to draw it",
        )
    data = tree_data(model, tree)
    caption = caption_of(text, () if isinstance(text, str) else labels(model, text))  # type: ignore[arg-type]
    title = f"Beam search of {model.family.name}: {beams} beams, {len(tree.branches):,} texts weighed"
    note = "A score is log P of the text so far; one that ended is ranked by its score divided by its length"
    note += f" to the power {tree.settings.length_penalty:g}."
    if len({row["text"] for row in data["texts"]}) < len(data["texts"]):
        note += " Some of the texts found read the same: the search ranks sequences of tokens, and these cut"
        note += " one text into tokens in different ways."
    about = {"model": model.family.name, "text": caption, "beams": beams}
    return Figure("beams", title, about, data, note)
