"""beams: the search for the most likely text as a tree, every continuation that was weighed with its score.

The tree is read from the search itself (decode/search.py keeps what each step weighed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.classroom.figures.figure import Figure, figure
from heedful.classroom.figures.token_labels import caption_of, labels
from heedful.core.errors import InputError
from heedful.decode.fast import choose_stepper
from heedful.decode.request import Prompt, encode_prompts, make_request
from heedful.decode.search import BeamState, run_beam_search
from heedful.decode.settings import GenerationSettings, read_settings
from heedful.decode.stepper import Stepper, stepper_for
from heedful.interp.inputs import Input
from heedful.models.base import Model

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
