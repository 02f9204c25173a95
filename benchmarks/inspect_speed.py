"""Time and memory of the questions about a model's parts, here and in TransformerLens, in one run.

    python benchmarks/inspect_speed.py MODEL [--threads 1] [--share 0.1]

MODEL is what heedful.load takes: a LLaMA or GPT-2 with its tokenizer. TransformerLens tries patches one at a
time: of those a share is timed, and the whole follows from their number. Both sides get the same two
sentences; values are compared where both have computed them.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import heedful
from heedful.interp.inputs import choices
from heedful.interp.intervene.comparison import CounterfactualPair
from heedful.interp.intervene.patching import activation_patching, attribution_patching, carry, path_patching
from heedful.interp.observe.logit_attribution import logit_attribution

CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPT = "When Mary and John went to the store, Mary gave a drink to"
ANSWERS = (" Mary", " John")
Measured = tuple[float, float, float | None]


def measure(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the seconds that a call takes, by how many MiB the process' peak rose, and what it gave."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, found


def measure_here(model: Any) -> dict[str, Any]:
    """Measure our own functions; a single patch is timed too, as it was before they shared batches."""
    asked = CounterfactualPair(model, CLEAN, CORRUPT, *ANSWERS)
    path = f"blocks.{len(model.blocks) * 3 // 4}.attn.q head 0"
    questions = {
        "logit attribution": lambda: logit_attribution(model, CLEAN, *ANSWERS),
        "patching, residual": lambda: activation_patching(model, CLEAN, CORRUPT, *ANSWERS),
        "patching, heads": lambda: activation_patching(model, CLEAN, CORRUPT, *ANSWERS, "heads"),
        "attribution patching, heads": lambda: attribution_patching(model, CLEAN, CORRUPT, *ANSWERS, "heads"),
        "direct paths into one head": lambda: path_patching(model, CLEAN, CORRUPT, *ANSWERS, "heads", path),
    }
    found = {name: measure(run) for name, run in questions.items()}
    watch = carry(model, asked.clean, ["blocks.1.output"], [1])
    with torch.no_grad():
        alone, _, _ = measure(
            lambda: [asked.gap(choices(model, asked.corrupt.run(model, watch), -1)) for _ in range(8)]
        )
    count = found["patching, residual"][2].values.numel()
    return {"found": found, "one patch": alone / 8, "one at a time": alone / 8 * count, "asked": asked}


def measure_lens(folder: str, share: float, here: dict[str, Any]) -> dict[str, Measured]:
    """Measure TransformerLens: seconds, MiB, and the largest difference to ours."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", bos_token="<|im_start|>", eos_token="<|im_end|>"
    ).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder, hf_model=reference, tokenizer=tokenizer)
    asked, found = here["asked"], here["found"]
    with torch.no_grad():
        bridge(asked.clean.ids)  # weights that are mapped from their file come into memory
        first, memory, (_, cache) = measure(lambda: bridge.run_with_cache(asked.clean.ids))
        out = {
            name: patch_with_lens(bridge, cache, here, name, share, first, memory)
            for name in ("patching, residual", "patching, heads")
        }
        bridge.enable_compatibility_mode(disable_warnings=True, fold_value_biases=False)
        seconds, memory, (_, cache) = measure(lambda: bridge.run_with_cache(asked.clean.ids))
        attributed = lambda: cache.logit_attrs(cache.stack_head_results(), asked.right, asked.wrong)
        took, more, theirs = measure(lambda: attributed()[:, 0, -1])
        ours = torch.cat(list(found["logit attribution"][2].heads.values()))
        gap = float((theirs.double() - ours).abs().max())
        out["logit attribution"] = (seconds + took, memory + more, gap)
    return out


def patch_with_lens(
    bridge: Any, cache: Any, here: dict[str, Any], name: str, share: float, seconds: float, memory: float
) -> Measured:
    """Try a share of the patches, and count how long all would take."""
    import pandas
    from transformer_lens import patching

    heads, asked, values = "heads" in name, here["asked"], here["found"][name][2].values
    function = patching.get_act_patch_attn_head_out_all_pos if heads else patching.get_act_patch_resid_pre
    count = max(2, int(share * values.numel()))
    chosen = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(0))[:count]
    rows, columns = chosen // values.shape[1], chosen % values.shape[1]
    index = pandas.DataFrame({"layer": rows.tolist(), "head" if heads else "pos": columns.tolist()})
    options = {key: function.keywords[key] for key in ("patch_setter", "activation_name")}
    restored = lambda logits: asked.restored(asked.gap(logits[:, -1]))[0]
    took, more, theirs = measure(
        lambda: patching.generic_activation_patch(
            bridge, asked.corrupt.ids, cache, restored, index_df=index, **options
        )
    )
    gap = float((theirs.double() - values[rows, columns]).abs().max()) if heads else None
    return seconds + took * values.numel() / count, memory + more, gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.05, help="of the patches that TransformerLens tries")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = heedful.load(options.model)
    here = measure_here(model)
    report: dict[str, Any] = {
        name: {"seconds": seconds, "MiB": memory} for name, (seconds, memory, _) in here["found"].items()
    }
    report["one patch at a time, residual"] = {"seconds": here["one at a time"]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            heedful.save(model, folder)
            lens = measure_lens(folder, options.share, here)
    except ImportError as error:
        print(f"without TransformerLens: {error}")
        lens = {}
    for name, (seconds, memory, gap) in lens.items():
        report[name] |= {"TransformerLens seconds": seconds, "TransformerLens MiB": memory, "difference": gap}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
