"""The ten code exercises, and the file of stubs that a student fills in.

The functions and the mistakes are in code_*.py and mutations_*.py, one pair of files for each group.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.core.errors import InputError, NotFound, nearest
from heedful.core.files import write_text

if TYPE_CHECKING:
    from heedful.classroom.exercises.code.exercise import CodeExercise

STUBS = Path(__file__).with_name("stubs.py")
HEADER = '''"""Fill in the functions, then: heed grade {name}

Each function is tried on several inputs, then stands in the place of the library's own in a real model.
A hint: heed exercise code {first} --hint
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
'''


@functools.cache
def stubs() -> dict[str, str]:
    """Return the source of each stub by its name, in the order of the exercises."""
    source = STUBS.read_text(encoding="utf-8")
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions}


@functools.cache
def summaries() -> dict[str, str]:
    """Return the equation of each exercise: the first line of its stub's docstring."""
    docs = {name: text.partition('"""')[2] for name, text in stubs().items()}
    return {name: text.partition("\n")[0] for name, text in docs.items()}


def code_exercises() -> dict[str, CodeExercise]:
    """Return the exercises by name; torch and the models are imported here, not before."""
    from heedful.classroom.exercises.code import recurrent as code_recurrent
    from heedful.classroom.exercises.code import text as code_text
    from heedful.classroom.exercises.code import training as code_training
    from heedful.classroom.exercises.code import transformer as code_transformer

    groups = (code_transformer, code_recurrent, code_text, code_training)
    return {exercise.name: exercise for group in groups for exercise in group.EXERCISES}


def check_names(names: Sequence[str] | None) -> list[str]:
    """Return names of exercises, all of them for None; an unknown one is an error."""
    for name in names or ():
        if name not in stubs():
            hint = nearest(name, stubs()) or f"there are {', '.join(stubs())}"
            raise NotFound(f"no code exercise is called {name[:60]!r}", hint=hint)
    return list(dict.fromkeys(names)) if names else list(stubs())


def stub_file(names: Sequence[str] | None = None, name: str = "solution.py") -> str:
    """Return the text of a file with the stubs of these exercises, or of all."""
    names = check_names(names)
    header = HEADER.format(name=name, first=names[0])
    return "\n\n\n".join([header.rstrip("\n"), *(stubs()[one] for one in names)]) + "\n"


def write_stubs(path: str | Path, names: Sequence[str] | None = None, *, force: bool = False) -> Path:
    """Write a file of stubs; one that is there already stays, unless `force`."""
    path = Path(path)
    text = stub_file(names, path.name)
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint=f"name a file: {path / 'solution.py'}")
    if path.exists() and not force:
        raise InputError(
            f"{path} exists already, perhaps with your work",
            hint="choose another name, or replace it with force=True",
        )
    write_text(path, text)
    return path


# Three hints for each code exercise, from what to compute first to nearly the line itself.


HINTS: dict[str, tuple[str, str, str]] = {
    "softmax": (
        "Three steps: exp of every entry, their sum over `dim` with keepdim=True, then divide.",
        "exp(1000) is infinite. A constant added to all entries changes nothing: which keeps exp small?",
        "Subtract x.amax(dim, keepdim=True) first; each row has a maximum of its own.",
    ),
    "attention": (
        "Scores first: every query times every key, (…, T, S). k.transpose(-2, -1) turns the last two.",
        "Divide by √d_k, the size of a query. Each row is one query: the softmax goes over its keys.",
        "Hide with scores.masked_fill(~mask, -inf) before the softmax; then weights @ v.",
    ),
    "layer_norm": (
        "x.mean(-1, keepdim=True) is the mean of each vector; subtract it.",
        "The variance is the mean of the squared differences: divided by D, not torch.var's default.",
        "Divide by √(var + ε), with ε inside the root, then multiply by γ and add β.",
    ),
    "positional_encoding": (
        "A table of angles comes first: row t, column i is t / base^(2i/dim), for i = 0 … dim/2 − 1.",
        "Columns 2i and 2i + 1 share one angle: its sine and its cosine.",
        "table[:, 0::2] = angle.sin() and table[:, 1::2] = angle.cos(); positions begin at 0.",
    ),
    "lstm_step": (
        "One product for all gates: z = x @ W.T + h @ U.T + b, (B, 4H).",
        "i, f, g, o = z.chunk(4, -1); i, f and o get a sigmoid, g gets tanh.",
        "c' = f * c + i * g, then h' = o * tanh(c'), and return (h', c').",
    ),
    "bahdanau_score": (
        "W q is (B, A), one vector a row; U m_j is (B, S, A), one for each word.",
        "Add them with a new dimension: (query @ W.T)[:, None, :] + memory @ U.T.",
        "tanh of the sum, then @ v, which leaves (B, S). No softmax: these are scores.",
    ),
    "bpe_merge": (
        "Count first: in each word, each pair zip(pieces, pieces[1:]) counts as often as it occurs.",
        "The best pair is min(counts, key=lambda pair: (-counts[pair], pair)).",
        "Merge by walking: if pieces[i], pieces[i+1] is the pair, append their sum and go on at i + 2.",
    ),
    "beam_search": (
        "A beam is a list of (tokens, sum of log-probabilities); it begins as [([], 0.0)].",
        "Per step: every continuation of every beginning into one list, sort by the sum, keep `width`.",
        "Move those that end with `end` to a list of finished ones; divide by len(tokens)**penalty last.",
    ),
    "skipgram_step": (
        "d/ds −log σ(s) = σ(s) − 1, d/ds −log σ(−s) = σ(s): the error is σ(u·v) minus the label, 1 or 0.",
        "The centre's gradient is Σ error · u, each output word's is error · v, all with the old values.",
        "U.index_add_(0, rows, change) lets a row that is there twice move twice; U[rows] += does not.",
    ),
    "adamw_step": (
        "Running means first: m' = β₁ m + (1 − β₁) g, and v' with g².",
        "They begin at zero and are too small at first: divide by 1 − β₁^t and 1 − β₂^t.",
        "Weight decay is a term of the step, lr · λ · p, not of the gradient; ε stands beside the root.",
    ),
}
