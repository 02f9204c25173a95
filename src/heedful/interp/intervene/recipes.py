"""Recipes of the literature, each a short function on top of `Watch` and patching.

    noise_trace      Which values restore an answer after noise on the subject?     (Meng et al. 2022)
    patchscope       What does the model itself say that a hidden vector means?     (Ghandeharioun et al.)
    function_vector  Which vector of heads makes the model do the task of examples? (Todd et al. 2024)
    remove_direction A model whose weights cannot write a direction, such as that of refusal
                                                                                    (Arditi et al. 2024)

Each asks what a value causes, not only what correlates with it: it puts the value somewhere and watches what
the model does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.interp.activations import TokenWatch, token_rows
from heedful.interp.inputs import (
    Result,
    Text,
    answer_id,
    choices,
    part_at,
    position_of,
    reading,
    token_vectors,
    with_progress,
)
from heedful.interp.intervene.comparison import (
    Intervention,
    InterventionRunner,
    PatchingResult,
    all_patches,
    collect,
    names_to_patch,
)
from heedful.interp.intervene.nodes import Node, NodeTable
from heedful.interp.intervene.patching import put_back
from heedful.interp.intervene.steering import Continuation, continuations
from heedful.models.base import LM, Model
from heedful.nn.block import SandwichBlock
from heedful.nn.context import Watch
from heedful.nn.head import WordHead


@torch.no_grad()
def noise_trace(
    model: Model, text: Text, subject: Sequence[int | str], answer: int | str | None = None, *,
    what: str = "residual", noise: float = 3.0, samples: int = 10, window: int = 1, position: int = -1,
    seed: int = 0,
) -> PatchingResult:  # fmt: skip
    """Return which values bring an answer back after Gaussian noise was added to the subject's tokens

    (Meng et al. 2022, arXiv 2202.05262, §2.) `subject` has tokens or their positions. The noise has `noise`
    times the standard deviation of the token vectors, and `samples` draws are averaged. In a noisy run a
    value of the clean run is put back, together with those of the `window` layers around it: 10 layers are
    the five before it, its own and the four after it, as in the published code. Values are
    (p − p_noisy) / (p_clean − p_noisy), with p the probability of `answer`, by default the most likely one.
    `result.clean` and `result.corrupt` are the two probabilities.
    """
    for name, number in (("samples", samples), ("window", window)):
        check_integer(name, number, minimum=1)
    given = reading(model, text)
    at, names = position_of(given.names, position), names_to_patch(model, given, what)
    clean = Watch(*names)
    chances = choices(model, given.run(model, clean), at)[0].softmax(-1)
    chosen = answer_id(model, answer, chances)
    places = [] if isinstance(subject, str) else [position_of(given.tokens, token) for token in subject]
    if not places:
        what = f"`subject={subject!r}` is not a list of tokens" if subject else "the subject has no tokens"
        raise InputError(what, hint='name each token or its position, as in `subject=["Space", "Needle"]`')
    table = token_vectors(model.tables["tokens"]).float()
    draw = torch.Generator().manual_seed(seed)
    added = torch.zeros(samples, len(given.tokens), table.shape[1])
    drawn = torch.randn(samples, len(places), table.shape[1], generator=draw)
    added[:, places] = noise * float(table.std()) * drawn
    patches, rows = list(all_patches(clean, names, what)), []
    for one in patches:
        middle = names.index(one.name)
        around = names[max(0, middle - window // 2) : middle - window // 2 + window]
        rows.append([put_back(clean, one._replace(name=name)) for name in around])
    chance = lambda choices: choices.softmax(-1)[:, chosen]
    best, worst, restored = float(chances[chosen]), 0.0, torch.zeros(len(rows), dtype=torch.float64)
    for sample in with_progress(added, "samples", samples):
        noisy = {"embed.token": lambda x, sample=sample: x + sample[: x.shape[1]].to(x)}
        runner = InterventionRunner(model, given, at, None, min(places), noisy)
        worst += float(chance(runner.plain)) / samples
        restored += runner.run(rows, chance) / samples
    if best == worst:
        raise InputError("the noise does not change the answer", hint="set a larger noise, or other tokens")
    method = f"noise {noise:g}, {samples} samples, windows of {window}"
    return collect(what, method, given, patches, (restored - worst) / (best - worst), best, worst)


@torch.no_grad()
def patchscope(
    model: Model, text: Text, token: int | str, name: str, prompt: str, place: int | str,
    into: str | None = None, **settings: Any,
) -> Continuation:  # fmt: skip
    """Return what the model writes after a prompt in which one token has a vector of another text

    (Ghandeharioun et al. 2024, arXiv 2401.06102.) The value called `name` at `token` of `text` takes the
    place of the value called `into` (by default the same) at `place` of the prompt. A prompt such as "Syria:
    a country in Asia; Leonardo: an actor; x" with `place="x"` lets the model describe what the vector holds.
    `settings` are those of `generate`. The result has the text without the vector too.
    """
    given, target = reading(model, text), reading(model, prompt)
    watch = given.record(model, name)
    vector = token_rows(watch[name], watch.positions[name], name)[0, position_of(given.names, token)]
    length = target.ids.shape[1]
    at = position_of(target.names, place)

    def write_vector(rows: Tensor) -> Tensor:  # later passes read what was written
        if rows.shape[1] == length:
            rows[:, at] = vector
        return rows

    if length < 2:
        raise InputError("the prompt has one token", hint="describe the task in it, with a place to fill in")
    return continuations(model, [prompt], TokenWatch({into or name: write_vector}), **settings)[0]


@dataclass(frozen=True)
class FunctionVector(Result):
    """A vector that stands for a task, the heads that it sums, and the effect of every head.

    `effects` is how much each head raises the probability of the right answer, (layers, heads).
    """

    vector: Tensor
    heads: tuple[tuple[str, int], ...]
    parts: tuple[str, ...]
    effects: Tensor


@torch.no_grad()
def function_vector(
    model: Model, prompts: Sequence[Text], shuffled: Sequence[Text],
    answers: Sequence[int | str], *, heads: int = 10,
) -> FunctionVector:  # fmt: skip
    """Return the vector with which heads tell later layers what task the examples of a prompt show

    (Todd et al. 2024, arXiv 2310.15213.) `prompts` are examples of a task that end before an answer.
    `shuffled` are prompts whose examples have wrong answers, and `answers` the right ones for their ends. The
    mean output of each head at the last token of `prompts` is put into the runs of `shuffled`. The vector is
    the sum of what the `heads` with the largest effects write. Add it to another prompt with `steer(model,
    "blocks.4.output", result.vector, tokens="last")`.
    """
    check_integer("heads", heads, minimum=1)
    if not prompts or len(shuffled) != len(answers) or not answers:
        counts = f"{len(prompts)} prompts, {len(shuffled)} shuffled ones and {len(answers)} answers"
        raise InputError(counts, hint="give prompts, and as many answers as shuffled prompts")
    table = NodeTable(model)
    nodes = table.head_writes()
    if not nodes:
        raise InputError("this model has no heads whose outputs are added up", hint="choose a decoder")
    parts, names = list(dict.fromkeys(node.part for node in nodes)), table.value_names(nodes)
    means = dict[str, Tensor]()  # at the last token: (1, H, 1, K), or (1, 1, H · K)
    for prompt in prompts:
        watch = reading(model, prompt).record(model, *names)
        for name in names:
            means[name] = means.get(name, 0.0) + watch[name][..., -1:, :] / len(prompts)

    def write_mean(node: Node, rows: Tensor, first: int) -> None:
        mean = table.head_entries(node, means[table.value_name(node)])
        table.head_entries(node, rows)[:, -1] = mean[:, -1]

    effects = torch.zeros(len(nodes), dtype=torch.float64)
    pairs = list(zip(shuffled, answers, strict=True))
    for prompt, answer in with_progress(pairs, "prompts", len(pairs)):
        given = reading(model, prompt)
        last = len(given.names) - 1
        changes = [[Intervention(table.value_name(n), last, partial(write_mean, n))] for n in nodes]
        runner = InterventionRunner(model, given, last)
        right = answer_id(model, answer, runner.plain[0])
        chance = lambda choices, right=right: choices.softmax(-1)[:, right]
        effects += (runner.run(changes, chance) - float(chance(runner.plain))) / len(pairs)
    best = [nodes[i] for i in effects.argsort(descending=True, stable=True)[:heads].tolist()]
    nothing = {name: torch.zeros_like(mean) for name, mean in means.items()}
    vector = sum((table.output_change(node, means, nothing)[0, -1] for node in best), torch.zeros(()))
    by_part = torch.zeros(len(parts), 1 + max(cast(int, node.head) for node in nodes), dtype=torch.float64)
    for node, effect in zip(nodes, effects.tolist(), strict=True):
        by_part[parts.index(node.part), node.head] = effect
    chosen = tuple((node.part, cast(int, node.head)) for node in best)
    return FunctionVector(vector, chosen, tuple(parts), by_part)


@torch.no_grad()
def remove_direction(model: Model, direction: Tensor | Sequence[float]) -> Model:
    """W ← W − v̂ v̂ᵀ W of every matrix that writes to the stream, in a copy of the model

    (Arditi et al. 2024, arXiv 2406.11717.) The copy behaves as if `steer(model, name, v, method="ablate")`
    took v out of everything that is written, but it needs no watch. Token and position vectors and biases
    also lose v. If the output matrix is shared with the token vectors, the output keeps an unchanged copy.

    To remove refusal, take the difference of means of refused and harmless requests: `steering_vector(model,
    harmful, harmless, "blocks.12.output", tokens="last")`.
    """
    if not isinstance(model, LM):
        raise InputError("this is for models with one stream", hint="choose a decoder or an encoder")
    v = torch.as_tensor(direction).detach().double().flatten().cpu()
    if not float(v.norm()) > 0:
        raise InputError("the direction is zero or not finite", hint="give the vector to remove")
    v = v / v.norm()
    table = NodeTable(model)  # which refuses post-norm models
    changed = copy.deepcopy(model)
    embed = changed.embed
    if embed.norm is not None or embed.project is not None or len(v) != embed.table.shape[1]:
        raise InputError(
            f"a direction of {len(v)} entries cannot be taken out of this embedding",
            hint="use `steer(…, method='ablate')`",
        )
    head = cast(WordHead, changed.head)
    if getattr(head, "tied", False):
        head.out.weight, head.tied = nn.Parameter(embed.table.detach().clone()), False
        if any(field.name == "tied" for field in fields(changed.config)):
            changed.config = changed.config.change(tied=False)
            changed.hf_config = changed.hf_config | {"tie_word_embeddings": False}
        else:
            changed.hf_config = changed.hf_config | {"pruned": True}  # `save` refuses it
    added = [part for part in (embed.position, embed.types) if part is not None]
    rows: list[Tensor | None] = [embed.table, *(p for part in added for p in part.parameters())]
    columns: list[Tensor] = []
    for node in table.writes[1:]:
        part = part_at(changed, node.name)
        block = part_at(changed, node.name.rpartition(".")[0])
        matrix = part._modules.get("o") or part._modules.get("down")
        if not isinstance(matrix, nn.Linear) or isinstance(block, SandwichBlock):
            raise InputError(
                f"{node.name} does not write through one matrix", hint="use `steer(…, method='ablate')`"
            )
        columns.append(matrix.weight)
        rows.append(matrix.bias)
    for tensor in rows:
        if tensor is not None:  # vectors stand in rows
            u = v.to(tensor.device)
            tensor -= ((tensor.double() @ u)[..., None] * u).to(tensor.dtype)
    for weight in columns:
        u = v.to(weight.device)
        weight -= torch.outer(u, u @ weight.double()).to(weight.dtype)
    return changed
