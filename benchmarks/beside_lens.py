"""What looking inside costs beside TransformerLens: the same weights, whole calls, equal numbers.

python benchmarks/beside_lens.py [--layers 12 --tokens 12] [--out figures.json]

A GPT-2 of any size is made with random weights. Each library runs in a process of its own, one after the
other, on one thread; seconds are those of the processor, which another program on the machine changes little,
and memory is the most that a call added to what was held before. TransformerLens (pip install
transformer_lens) is a `TransformerBridge` in compatibility mode, as its demonstrations use it.
inspect_speed.py has the calls on a published model, and one patch at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

RIGHT, WRONG = 7, 9
STEERED, WRITTEN = "blocks.1", 16
SAMPLE_SECONDS = 0.001
MIB = 2**20
CALLS = {
    "every value": '`Watch("*")`, `run_with_cache`',
    "logit attribution": "shares of parts and heads in a difference of logits",
    "patching": "residual stream, every layer and position",
    "head patching": "every head, over all positions",
    "attention patching": "what every attention adds, at every position",
    "MLP patching": "what every MLP adds, at every position",
    "query patching": "the queries of every head, over all positions",
    "attribution patching": "every head by one gradient",
    "head ablation": "the KL without each head",
    "logit lens": "the logits of every layer",
    "steered text": "16 tokens with a vector added in a layer",
}
REPEATS = {"every value": 5, "logit attribution": 5, "attribution patching": 3, "logit lens": 3}  # the median


def make_model(folder: Path, options: argparse.Namespace) -> None:
    """Write a GPT-2 with random weights, and a tokenizer of so many words, as Hugging Face writes them."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    sizes = {"n_layer": options.layers, "n_embd": options.dim, "n_head": options.heads}
    config = GPT2Config(vocab_size=options.vocab, bos_token_id=1, eos_token_id=2, **sizes)
    GPT2LMHeadModel(config).eval().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(options.vocab)}, unk_token="w0"))
    special = {"unk_token": "w0", "pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)


def two_texts(vocab: int, length: int) -> tuple[Any, Any]:
    """Return a text of random tokens, and the same with another token near its beginning."""
    import torch

    clean = torch.randint(10, vocab, (1, length), generator=torch.Generator().manual_seed(1))
    corrupt = clean.clone()
    corrupt[0, 2] = 10 + (corrupt[0, 2] + 5) % (vocab - 10)
    return clean, corrupt


def steering_vector(width: int) -> Any:
    """Return a direction to steer along, the same for both."""
    import torch

    return torch.randn(width, generator=torch.Generator().manual_seed(2))


def heedful_calls(folder: Path, clean: Any, corrupt: Any) -> dict[str, Callable[[], Any]]:
    """Return each call of ours; it gives the numbers that are compared."""
    import torch

    import heedful
    from heedful.interp.intervene.ablation import head_effects
    from heedful.interp.intervene.patching import activation_patching, attribution_patching
    from heedful.interp.intervene.steering import steer
    from heedful.interp.observe.lens import logit_lens
    from heedful.interp.observe.logit_attribution import logit_attribution

    model = heedful.load(folder)
    last = f"blocks.{len(model.blocks) - 1}.attn.pattern"

    def every_value() -> Any:
        watch = heedful.Watch("*")
        model(clean, watch=watch)
        return watch[last]

    def attribution() -> Any:
        found = logit_attribution(model, clean, RIGHT, WRONG)
        return torch.cat([*found.heads.values(), torch.tensor([found[name] for name in found.names[:-1]])])

    @torch.enable_grad()
    def attributed() -> Any:
        return attribution_patching(model, clean, corrupt, RIGHT, WRONG, "heads").values

    def steered() -> Any:
        watch = steer(model, STEERED + ".output", steering_vector(model.config.dim))
        return torch.tensor(
            heedful.generate(model, clean[0].tolist(), max_tokens=WRITTEN, eos=[], watch=watch)
        )

    patched = lambda what: activation_patching(model, clean, corrupt, RIGHT, WRONG, what).values
    return {
        "every value": every_value,
        "logit attribution": attribution,
        "patching": lambda: patched("blocks.*.input"),
        "head patching": lambda: patched("heads"),
        "attention patching": lambda: patched("attention"),
        "MLP patching": lambda: patched("mlp"),
        "query patching": lambda: patched("queries"),
        "attribution patching": attributed,
        "head ablation": lambda: torch.tensor(list(head_effects(model, clean).values())),
        "logit lens": lambda: logit_lens(model, clean).logits.log_softmax(-1)[:, -1],
        "steered text": steered,
    }


class TransformerLensCalls:
    """The calls of TransformerLens; the sweep over heads, which it has no function for, is a loop."""

    def __init__(self, folder: Path, clean: Any, corrupt: Any) -> None:
        from transformer_lens.model_bridge import TransformerBridge
        from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.model = TransformerBridge.boot_transformers(
            str(folder), hf_model=GPT2LMHeadModel.from_pretrained(folder), tokenizer=tokenizer
        )
        self.model.enable_compatibility_mode(disable_warnings=True)
        self.layers, self.heads = self.model.cfg.n_layers, self.model.cfg.n_heads
        self.clean, self.corrupt = clean, corrupt

    def gap(self, logits: Any) -> Any:
        return logits[0, -1, RIGHT] - logits[0, -1, WRONG]

    def every_value(self) -> Any:
        _, cache = self.model.run_with_cache(self.clean)
        return cache[f"blocks.{self.layers - 1}.attn.hook_pattern"]

    def attribution(self) -> Any:
        import torch

        self.model.set_use_attn_result(True)
        _, cache = self.model.run_with_cache(self.clean)
        self.model.set_use_attn_result(False)
        parts = cache.decompose_resid(layer=-1, pos_slice=-1)
        split = cache.stack_head_results(layer=-1, pos_slice=-1)
        share = lambda stack: cache.logit_attrs(stack, RIGHT, incorrect_tokens=WRONG, pos_slice=-1)[:, 0]
        return torch.cat([share(split), share(parts)])

    def patched(self, patch: Callable[..., Any]) -> Any:
        _, cache = self.model.run_with_cache(self.clean)
        best, worst = (float(self.gap(self.model(text))) for text in (self.clean, self.corrupt))
        share = lambda logits: (self.gap(logits) - worst) / (best - worst)
        return patch(self.model, self.corrupt, cache, share)

    def ablation(self) -> Any:
        import torch

        plain = self.model(self.clean)[0].log_softmax(-1)
        found = torch.zeros(self.layers, self.heads)
        for layer, head in product(range(self.layers), range(self.heads)):

            def silence(value: Any, hook: Any, head: int = head) -> Any:
                value[:, :, head] = 0.0
                return value

            edit = [(f"blocks.{layer}.attn.hook_z", silence)]
            moved = self.model.run_with_hooks(self.clean, fwd_hooks=edit)[0].log_softmax(-1)
            found[layer, head] = (plain.exp() * (plain - moved)).sum(-1).mean()
        return found

    def attribution_patching(self) -> Any:
        import torch

        names = [f"blocks.{layer}.attn.hook_z" for layer in range(self.layers)]
        keep = lambda name: name in names
        values, slopes = dict[str, Any](), dict[str, Any]()

        def keep_value(value: Any, hook: Any) -> None:
            values[hook.name] = value.detach()

        def keep_slope(value: Any, hook: Any) -> None:
            slopes[hook.name] = value.detach()

        with torch.enable_grad():
            best, worst = (float(self.gap(self.model(text))) for text in (self.clean, self.corrupt))
            _, cache = self.model.run_with_cache(self.clean, names_filter=keep)
            with self.model.hooks(fwd_hooks=[(keep, keep_value)], bwd_hooks=[(keep, keep_slope)]):
                self.gap(self.model(self.corrupt)).backward()
            self.model.zero_grad()
            share = [((cache[n].detach() - values[n]) * slopes[n]).sum((0, 1, 3)) for n in names]
            return torch.stack(share) / (best - worst)

    def lens(self) -> Any:
        import torch

        _, cache = self.model.run_with_cache(self.clean)
        stack = cache.accumulated_resid(layer=-1, incl_mid=False, apply_ln=False)
        normed = torch.stack([self.model.ln_final(x) for x in stack])
        logits = self.model.unembed(normed.flatten(0, 1)).unflatten(0, normed.shape[:2])
        return logits[:, 0].log_softmax(-1)[:, -1]

    def steered(self) -> Any:
        vector = steering_vector(self.model.cfg.d_model)
        push = lambda value, hook: value + vector
        with self.model.hooks(fwd_hooks=[(f"{STEERED}.hook_resid_post", push)]):
            options = {"do_sample": False, "stop_at_eos": False, "verbose": False}
            text = self.model.generate(self.clean, max_new_tokens=WRITTEN, **options)
        return text[0, self.clean.shape[1] :]


def transformer_lens_calls(folder: Path, clean: Any, corrupt: Any) -> dict[str, Callable[[], Any]]:
    """Return each call of TransformerLens by its name."""
    from transformer_lens import patching

    calls = TransformerLensCalls(folder, clean, corrupt)
    return {
        "every value": calls.every_value,
        "logit attribution": calls.attribution,
        "patching": lambda: calls.patched(patching.get_act_patch_resid_pre),
        "head patching": lambda: calls.patched(patching.get_act_patch_attn_head_out_all_pos),
        "attention patching": lambda: calls.patched(patching.get_act_patch_attn_out),
        "MLP patching": lambda: calls.patched(patching.get_act_patch_mlp_out),
        "query patching": lambda: calls.patched(patching.get_act_patch_attn_head_q_all_pos),
        "attribution patching": calls.attribution_patching,
        "head ablation": calls.ablation,
        "logit lens": calls.lens,
        "steered text": calls.steered,
    }


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(call: Callable[[], Any], times: int) -> dict[str, Any]:
    """Return the median processor seconds of a call, the memory it added at its peak, and its numbers."""
    before, peak, done = resident_bytes(), [0], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], resident_bytes())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    spent = []
    for _ in range(times):
        began = time.thread_time()
        numbers = call()
        spent.append(time.thread_time() - began)
    done.set()
    sampler.join()
    seconds = sorted(spent)[times // 2]
    return {"seconds": seconds, "mib": (peak[0] - before) / MIB, "numbers": numbers.flatten().tolist()}


def work(library: str, folder: Path, options: argparse.Namespace) -> None:
    """Measure the calls of one library in this process and print what was measured."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    clean, corrupt = two_texts(options.vocab, options.tokens)
    calls = {"heedful": heedful_calls, "transformer_lens": transformer_lens_calls}[library]
    found = calls(folder, clean, corrupt)
    found["every value"]()  # the first pass of a process is slower than all others
    for name in options.calls or CALLS:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        print("measured " + json.dumps({name: measure(found[name], REPEATS.get(name, 1))}), flush=True)


def run_worker(library: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the calls of one library in a process of its own."""
    sizes = [f"--{key}={getattr(options, key)}" for key in ("layers", "dim", "heads", "vocab", "tokens")]
    calls = ["--calls", *(options.calls or CALLS)]
    command = [sys.executable, __file__, *sizes, *calls, "--worker", library, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{library}: {done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    return {k: v for line in lines for k, v in json.loads(line.removeprefix("measured ")).items()}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every call of both libraries and print a row for each."""
    rows: dict[str, Any] = {}
    print("| call | heedful s | TransformerLens s | ratio | heedful MiB | TransformerLens MiB | difference |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder, options)
        mine, others = (run_worker(library, folder, options) for library in ("heedful", "transformer_lens"))
        for call, ours in mine.items():
            theirs = others[call]
            pairs = zip(ours.pop("numbers"), theirs.pop("numbers"), strict=True)
            gap = max(abs(a - b) for a, b in pairs)
            ratio = theirs["seconds"] / ours["seconds"]
            rows[call] = {"heedful": ours, "transformer_lens": theirs, "ratio": ratio, "difference": gap}
            print(
                f"| {call}: {CALLS[call]} | {ours['seconds']:.3f} | {theirs['seconds']:.3f} | {ratio:.1f} × "
                f"| {ours['mib']:.0f} | {theirs['mib']:.0f} | {gap:.1e} |"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, size in (("layers", 12), ("dim", 768), ("heads", 12), ("vocab", 50257), ("tokens", 12)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--calls", nargs="*", choices=CALLS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=2, metavar=("LIBRARY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        library, folder = options.worker
        work(library, Path(folder), options)
        return
    rows = compare(options)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
