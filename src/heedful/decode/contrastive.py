"""Contrastive search: likely, but unlike what was said before (Su et al. 2022, arXiv 2202.06417).

    x_t = argmax_{v ∈ top k}  (1 − α) p(v)  −  α max_j cos(h_v, h_j)          (eq. 5)

h are the last hidden states; that of a candidate comes from reading it, so each step reads k tokens at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode.request import Prompts, Request, max_new_tokens, prefix_ids
from heedful.decode.sampling import check_tokens_left
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.models.base import LM, evaluation_mode
from heedful.nn.context import Watch


def search_contrastively(
    stepper: Stepper, prompts: Prompts, request: Request, alpha: float
) -> list[list[tuple[float, list[int]]]]:
    """Return the one text of each prompt, as a search does; its score is the sum of the steps' scores."""
    if not 0 <= alpha <= 1:
        raise InputError(f"contrastive={alpha} must lie between 0 (the likeliest) and 1 (the most unlike)")
    if not isinstance(stepper, EagerStepper):
        raise InputError("contrastive looks at hidden states", hint="it takes a model, and no fast path")
    if request.guide is not None:
        raise InputError(
            "contrastive does not go with choices, regex or schema", hint="leave one of them out"
        )
    return [[search_one_prompt(stepper, ids, request, alpha)] for ids in prompts.ids]


@torch.no_grad()
def search_one_prompt(
    stepper: EagerStepper, prompt: list[int], request: Request, alpha: float
) -> tuple[float, list[int]]:
    """The search for one prompt."""
    device, k = stepper.model.device, request.sampling.top_k or 4
    most, start = max_new_tokens(stepper.model, request, len(prompt)), prefix_ids(stepper.model, prompt)
    logits, past = prefill_with_states(stepper, torch.tensor([prompt], device=device), most)
    out: list[int] = []
    score = 0.0
    while True:
        seen = torch.tensor([[*start, *out]], dtype=torch.long, device=device)
        z = request.sampling.apply_penalties(logits.float(), seen, len(out))
        if request.sampling.forbids:
            check_tokens_left(z, len(out))
        chances = z.softmax(-1)[0]
        likely = chances.topk(min(k, len(chances)))
        stepper.reorder(torch.zeros(len(likely.indices), dtype=torch.long, device=device))
        watch = Watch(hidden_name(stepper))
        logits = stepper.step(likely.indices, watch)
        new = F.normalize(watch[hidden_name(stepper)][:, -1].float(), dim=-1)  # (k, D)
        value = (1 - alpha) * likely.values - alpha * (new @ past.T).amax(-1)
        best = int(value.argmax())
        score += float(value[best])
        out.append(int(likely.indices[best]))
        if out[-1] in request.eos or len(out) >= most:
            return score, out
        stepper.reorder(torch.tensor([best], device=device))
        logits, past = logits[best : best + 1], torch.cat((past, new[best : best + 1]))


def hidden_name(stepper: EagerStepper) -> str:
    """Return what the last hidden states are called when watched."""
    return "blocks.output" if isinstance(stepper.model, LM) else "decoder.output"


def prefill_with_states(stepper: EagerStepper, prompt: Tensor, more: int) -> tuple[Tensor, Tensor]:
    """Logits (1, V) after the prompt, and the directions (S, D) of its hidden states."""
    model, watch = stepper.model, Watch(hidden_name(stepper))
    with evaluation_mode(model):
        if isinstance(model, LM):
            state = model.new_state(1, prompt.shape[1] + more)
            logits = model.step(prompt, state, watch=watch)[:, -1]
            stepper.restore(state)
        else:
            logits = stepper.prefill(prompt, length=1 + more)
            model(prompt, prompt.new_full((1, 1), model.start_token), watch=watch)
    return logits, F.normalize(watch[hidden_name(stepper)][0].float(), dim=-1)
