"""Each recipe of docs/research.md on a model that can be installed: its figure and time, and TransformerLens.

python benchmarks/research_recipes.py [--recipes heads noise …] [--alone] [--figures FOLDER] [--out FILE]

The models are smollm2-135m-instruct in float32 and induction, on one thread. Seconds are those of the
processor, without loading a model. What TransformerLens (pip install transformer_lens) has a function or a
few hooks for is computed with it too, in a process of its own, from the same weights and the same noise;
`difference` is the largest one between the two results. --alone leaves TransformerLens out. --figures saves
the maps of heads and of noise as SVG.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

CLEAN = "When {1} and {0} went to the store, {0} gave a drink to"
PEOPLE = [("John", "Mary"), ("Tom", "Anna"), ("Paul", "Lisa")]
TOWER, PLACE, SUBJECT = "The Eiffel Tower is in the city of", " Paris", ["ĠE", "iffel", "ĠTower"]
SAMPLES, NOISE, SEED = 3, 3.0, 0
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("fast", "slow"), ("rich", "poor"), ("early", "late"),
    ("strong", "weak"), ("good", "bad"), ("happy", "sad"),
]  # fmt: skip
UNSEEN = [
    ("left", "right"),
    ("open", "closed"),
    ("long", "short"),
    ("young", "old"),
    ("wet", "dry"),
    ("high", "low"),
]
GOOD = ["I love this, it is wonderful.", "What a beautiful and happy day!", "The food was excellent.",
        "This is the best film I have ever seen.", "She was delighted with the amazing gift."]  # fmt: skip
BAD = ["I hate this, it is terrible.", "What an ugly and miserable day!", "The food was awful.",
       "This is the worst film I have ever seen.", "She was disgusted with the horrible gift."]  # fmt: skip

OPINIONS = ["The film was", "I think the book is", "My day was", "The hotel was", "The food tasted"]
PRAISE, BLAME = "great wonderful excellent amazing delicious", "terrible awful horrible bad poor"


def smollm() -> Any:
    """Return SmolLM2-135M-Instruct in float32."""
    import torch

    import heedful

    return heedful.load("smollm2-135m-instruct", dtype=torch.float32)


def induction() -> Any:
    """Return the bundled model with induction heads."""
    import torch

    import heedful

    return heedful.load("induction", dtype=torch.float32)


def pairs() -> list[Any]:
    """Return prompts in which the other name is the right answer."""
    from heedful.interp import PromptPair

    swap = lambda a, b: CLEAN.replace("{0} gave", "{1} gave").format(a, b)
    return [PromptPair(CLEAN.format(a, b), swap(a, b), f" {b}", f" {a}") for a, b in PEOPLE]


def heads(model: Any) -> tuple[str, Any]:
    """Patch every head, averaged over the pairs."""
    from heedful.interp import activation_patching, average_over_pairs

    result = average_over_pairs(activation_patching, model, pairs(), what="heads")
    (name, head, value), *_ = result.top(1)
    at = result.names.index(name), int(head)
    text = f"{name} {head} restores {value:.2f} [{result.low[at]:.2f}, {result.high[at]:.2f}] of the answer"
    return text, result


def circuit(model: Any) -> tuple[str, Any]:
    """Find the edges that name the other person, by EAP-IG, and the curve of their faithfulness."""
    from heedful.interp import average_over_pairs, circuit_curve, edge_attribution

    few = pairs()[:2]
    scores = average_over_pairs(edge_attribution, model, few)
    count = int(scores.values.isfinite().sum())
    curve = circuit_curve(model, few, scores, [count // 16, count // 4, count // 2])
    return "; ".join(f"{n} of {count} edges keep {share:.2f}" for n, share in curve), None


def pruned(model: Any) -> tuple[str, Any]:
    """Prune edges between heads of the induction model one by one (ACDC)."""
    import torch

    from heedful.interp import PromptPair, find_circuit

    draw = torch.Generator().manual_seed(SEED)
    rows = []
    for _ in range(2):
        ids = torch.randperm(900, generator=draw)[:9].add(60).tolist()
        twice, other = [*ids[:8], *ids[:4]], [*ids[:4], ids[8], *ids[5:8], *ids[:4]]
        rows.append(PromptPair(twice, other, ids[4], ids[8]))
    found = find_circuit(model, rows, threshold=0.02, senders="heads")
    return f"{len(found.edges)} of {found.curve[0][0]} edges keep {found.faithfulness:.2f}", None


def noise(model: Any) -> tuple[str, Any]:
    """Add noise to the subject's tokens and put single layers back."""
    from heedful.interp import noise_trace

    result = noise_trace(model, TOWER, SUBJECT, PLACE, noise=NOISE, samples=SAMPLES, seed=SEED)
    at = lambda layer, token: f"{float(result.values[layer, token]):.2f}"
    text = f"p(Paris) {result.clean:.2f} → {result.corrupt:.2f}; layer 20 restores {at(20, 2)} at “iffel”, "
    return text + f"layer 23 {at(23, -1)} at the end", result


def scope(model: Any) -> tuple[str, Any]:
    """Let the model describe a vector of layer 2."""
    from heedful.interp import patchscope

    prompt = "Syria: a country in the Middle East; Leonardo DiCaprio: an American actor; x"
    text = "The Space Needle stands in Seattle"
    said = patchscope(model, text, "Seattle", "blocks.2.output", prompt, "x", max_tokens=6)
    return f"Seattle{said.steered!r}, without the vector x{said.plain!r}", None


def function(model: Any) -> tuple[str, Any]:
    """Find the vector of opposites, and add it to new prompts whose examples are wrong."""
    from heedful.interp import function_vector, steer
    from heedful.interp.inputs import reading, token_id

    show = lambda rows, ask: "".join(f"{a} -> {b}\n" for a, b in rows) + f"{ask} ->"
    right = lambda i: show([OPPOSITES[(i + k) % 9] for k in (1, 3, 4, 6)], OPPOSITES[i][0])

    def wrong(rows: list[Any], ask: str) -> str:
        answers = [b for _, b in rows]
        return show(zip([a for a, _ in rows], answers[1:] + answers[:1], strict=True), ask)

    shuffled = [wrong([OPPOSITES[(i + k) % 9] for k in (1, 3, 4, 6)], OPPOSITES[i][0]) for i in range(5)]
    answers = [f" {answer}" for _, answer in OPPOSITES[:5]]
    result = function_vector(model, [right(i) for i in range(9)], shuffled, answers, heads=20)
    watch = steer(model, "blocks.11.output", result.vector, 3.0, tokens="last")
    new = [(wrong(OPPOSITES[i : i + 4], ask), answer) for i, (ask, answer) in enumerate(UNSEEN)]

    def chance(change: Any) -> float:
        rows = [reading(model, prompt).run(model, change)[0, -1].softmax(-1) for prompt, _ in new]
        return sum(
            float(row[token_id(model, f" {word}")]) for row, (_, word) in zip(rows, new, strict=True)
        ) / len(new)

    return f"p(opposite) after wrong examples {chance(None):.2f} → {chance(watch):.2f}", None


def direction(model: Any) -> tuple[str, Any]:
    """Remove the direction of praise from the weights; compare with an edit of everything that is written."""
    from heedful.interp import remove_direction, steer, steering_vector
    from heedful.interp.inputs import reading, token_id

    vector = steering_vector(model, GOOD, BAD, "blocks.14.output")
    changed = remove_direction(model, vector)
    names = [name for name in model.names() if name.endswith((".attn.output", ".ffn.output"))]
    edit = steer(model, "embed.output", vector, method="ablate")
    for name in names:
        edit = edit + steer(model, name, vector, method="ablate")
    praise, blame = ([token_id(model, f" {word}") for word in words.split()] for words in (PRAISE, BLAME))

    def odds(one: Any, watch: Any = None) -> float:
        """The log-odds of praise over blame after "I love this." less those after "I hate this."."""
        total = 0.0
        for prompt, (word, sign) in product(OPINIONS, (("love", 1), ("hate", -1))):
            logits = reading(one, f"I {word} this. {prompt}").run(one, watch)[0, -1]
            total += sign * float(logits[praise].logsumexp(0) - logits[blame].logsumexp(0)) / len(OPINIONS)
        return total

    plain, removed, edited = odds(model), odds(changed), odds(model, edit)
    text = f"log-odds of praise after love less after hate: {plain:.2f} → {removed:.2f}"
    return f"{text}; by edits {abs(removed - edited):.0e} apart", None


def dictionary(model: Any) -> tuple[str, Any]:
    """Train a top-k dictionary of layer 3 on Python's documentation, from shards on disk."""
    from pydoc_data.topics import topics

    from heedful.interp import save_activations, score_dictionary, train_dictionary

    texts = [part for _, text in sorted(topics.items()) for part in text.split("\n\n") if len(part) > 80]
    with tempfile.TemporaryDirectory() as folder:
        store = save_activations(model, texts[:400], ["blocks.3.output"], folder, max_length=128)
        made = train_dictionary(
            model, store, "blocks.3.output", width=1536, k=32, steps=250, batch=512, learning_rate=3e-3
        )
    found = score_dictionary(model, made, texts[400:412], max_length=64)
    text = f"{store.tokens:,} tokens, {found.l0:.0f} of 1,536 features per token, "
    return text + f"{found.loss_recovered:.3f} of the loss recovered on unseen text", None


def induced(model: Any) -> tuple[str, Any]:
    """Score every head of the bundled model."""
    from heedful.interp import catalogue_heads

    found = catalogue_heads(model, ["The tower of Bexley stands by the river."], repeats=16)
    best = found.top("induction", 1)[0]
    text = f"{best.name} {best.head}: {best.mean:.2f} [{best.low:.2f}, {best.high:.2f}], "
    return text + f"chance {found.chance['induction']:.2f}", None


RECIPES: dict[str, tuple[Callable[[], Any], Callable[[Any], tuple[str, Any]]]] = {
    "heads": (smollm, heads), "circuit": (smollm, circuit), "pruned circuit": (induction, pruned),
    "dictionary": (smollm, dictionary), "noise": (smollm, noise), "patchscope": (smollm, scope),
    "function vector": (smollm, function), "direction": (smollm, direction),
    "induction": (induction, induced),
}  # fmt: skip


# TransformerLens: a function for heads, hooks for noise. Its detector of induction scores other tokens.


def boot(folder: Path) -> Any:
    """Return the same weights as a `TransformerBridge` in compatibility mode."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=hf_model, tokenizer=tokenizer)
    bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge


def encode(bridge: Any, text: str) -> Any:
    """Return the ids (1, T) of a text."""
    import torch

    return torch.tensor([bridge.tokenizer.encode(text, add_special_tokens=False)])


def lens_heads(bridge: Any) -> Any:
    """Return the mean over the pairs of what each head restores."""
    import torch
    from transformer_lens import patching

    results = []
    for clean, corrupt, *words in pairs():
        right, wrong = (int(encode(bridge, word)[0, 0]) for word in words)
        gap = lambda logits, right=right, wrong=wrong: logits[0, -1, right] - logits[0, -1, wrong]
        _, cache = bridge.run_with_cache(encode(bridge, clean))
        best, worst = (float(gap(bridge(encode(bridge, text)))) for text in (clean, corrupt))
        share = lambda logits, gap=gap, best=best, worst=worst: (gap(logits) - worst) / (best - worst)
        results.append(
            patching.get_act_patch_attn_head_out_all_pos(bridge, encode(bridge, corrupt), cache, share)
        )
    return torch.stack(results).mean(0)


def lens_noise(bridge: Any) -> Any:
    """Return what each layer and position restores: one run with hooks for each."""
    import torch

    ids, layers = encode(bridge, TOWER), bridge.cfg.n_layers
    names = bridge.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    places, width = [names.index(name) for name in SUBJECT], bridge.cfg.d_model
    drawn = torch.randn(SAMPLES, len(places), width, generator=torch.Generator().manual_seed(SEED))
    added = torch.zeros(SAMPLES, ids.shape[1], width)
    added[:, places] = NOISE * float(bridge.W_E.std()) * drawn
    paris = int(encode(bridge, PLACE)[0, 0])
    clean, cache = bridge.run_with_cache(ids)
    corrupt = ("hook_embed", lambda value, hook: value + added)
    chance = lambda hooks: float(
        bridge.run_with_hooks(ids.expand(SAMPLES, -1), fwd_hooks=hooks)[:, -1].softmax(-1)[:, paris].mean()
    )
    best, worst = float(clean[0, -1].softmax(-1)[paris]), chance([corrupt])
    found = torch.zeros(layers, ids.shape[1])
    for layer, t in product(range(layers), range(ids.shape[1])):
        name = f"blocks.{layer}.hook_resid_post"

        def restore(value: Any, hook: Any, name: str = name, t: int = t) -> Any:
            value[:, t] = cache[name][0, t]
            return value

        found[layer, t] = (chance([corrupt, (name, restore)]) - worst) / (best - worst)
    return found


LENS = {"heads": lens_heads, "noise": lens_noise}


def work(library: str, folder: Path, names: list[str], figures: Path | None) -> None:
    """Compute the recipes with one library in this process and print the figures."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    models: dict[Any, Any] = {}
    for name in names:
        load, recipe = RECIPES[name]
        if library != "heedful":
            load, recipe = (lambda: boot(folder)), (lambda bridge, name=name: ("", LENS[name](bridge)))
        key = load if library == "heedful" else library
        models[key] = models.get(key) or load()
        began = time.process_time()
        text, result = recipe(models[key])
        row: dict[str, Any] = {"figure": text, "seconds": time.process_time() - began}
        values = result if result is None or isinstance(result, torch.Tensor) else result.values
        row["values"] = None if values is None else values.flatten().tolist()
        if figures is not None and values is not result:
            import heedful

            heedful.view.patching(result).save(figures / f"research-{name}.svg")
        print("measured " + json.dumps({name: row}), flush=True)


def run_worker(library: str, folder: Path, names: list[str], *more: str) -> dict[str, Any]:
    """Compute recipes with one library in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--worker", library, str(folder), "--recipes", *names, *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{library}: {done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    return {k: v for line in lines for k, v in json.loads(line.removeprefix("measured ")).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--alone", action="store_true", help="leave TransformerLens out")
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=2, metavar=("LIBRARY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker[0], Path(options.worker[1]), options.recipes, options.figures)
    with tempfile.TemporaryDirectory() as folder:
        more = [] if options.figures is None else ["--figures", str(options.figures)]
        rows = run_worker("heedful", Path(folder), options.recipes, *more)
        both = [name for name in options.recipes if name in LENS and not options.alone]
        if both:
            import heedful

            heedful.save(smollm(), Path(folder) / "smollm")
        others = run_worker("transformer_lens", Path(folder) / "smollm", both) if both else {}
    print("| recipe | result | heedful s | TransformerLens s | difference |")
    print("|---|---|---|---|---|")
    for name, row in rows.items():
        theirs = others.get(name)
        values = row.pop("values")
        if theirs is None:
            cells = "– | –"
        else:
            gap = max(abs(a - b) for a, b in zip(values, theirs["values"], strict=True))
            row |= {"transformer_lens": theirs["seconds"], "difference": gap}
            cells = f"{theirs['seconds']:.1f} | {gap:.0e}"
        print(f"| {name} | {row['figure']} | {row['seconds']:.1f} | {cells} |")
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
