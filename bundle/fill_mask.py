"""The adapter on all-MiniLM-L6-v2 that fills in words of modern English.

    HEED_DATA=FOLDER python -m bundle.masked --modern --seconds 385 --out begun
    HEED_DATA=FOLDER python -m bundle.fill_mask --start begun/masked [--rank 12] [--out FOLDER]

The first command learns words and sentence pairs, from novels and modern English; in the end it cannot tell
pairs apart. The second keeps the head for words, leaves out the one for pairs, and cuts the LoRA of rank 16
to the nearest of a lower rank: B A ≈ (U √S) (√S Vᵀ), of U S Vᵀ = B A the first columns.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import yaml
from torch import Tensor

import heedful
from bundle import data_folder, modern
from bundle.cards import Card, write_card
from bundle.masked import ASKED, BASE, CHECKS, FILES, LENGTH, scores
from bundle.plans import base_folder
from bundle.sentence_pairs import novels, told_of
from bundle.timed import options, parsed, places, write_sample
from bundle.translators import begun_by
from heedful.classroom.experiments import ledger
from heedful.models.base import LM, Model
from heedful.nn.adapt import LoRA
from heedful.weights.adapters import load_adapter
from heedful.weights.loading import with_head
from heedful.weights.saving import save_on_base

NAME = "fill-mask"


def cut(layer: LoRA, rank: int) -> tuple[Tensor, Tensor]:
    """A and B of `rank` whose product is nearest to B A."""
    u, s, v = torch.linalg.svd((layer.up @ layer.down).float(), full_matrices=False)
    root = s[:rank].sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root


def cut_model(start: Path, rank: int) -> LM:
    """A model of the base with the head for words and LoRA of `rank`, from a saved adapter."""
    whole = load_adapter(with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "pretrain"), start)
    model = with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "mlm")
    assert isinstance(model, LM)
    heedful.lora(model, rank=rank, train=("head.*", "embed.types.weight"))
    learnt, layers = dict(whole.named_parameters()), dict(whole.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not name.endswith((".down", ".up")):
                parameter.copy_(learnt[name.replace("head.", "head.mlm.", 1)])
        for name, module in model.named_modules():
            if isinstance(module, LoRA):
                source = layers[name]
                assert isinstance(source, LoRA)
                module.down.data, module.up.data = cut(source, rank)
    return model


def sample(model: Model) -> str:
    """What it fills in."""
    fill = heedful.pipeline("fill-mask", model)
    return "\n".join(f"{text} → {', '.join(word['token_str'] for word in fill(text))}" for text in ASKED)


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--start", type=Path, required=True, help="a folder that bundle.masked wrote")
    parser.add_argument("--rank", type=int, default=12)
    parser.add_argument("--checks", type=int, default=CHECKS, help="batches of 32 that are scored")
    given = parsed(parser)
    folder, begun = data_folder(), begun_by(given.start)
    out, results, samples = places(NAME, given.out)
    model = cut_model(given.start, given.rank)
    save_on_base(model, out, BASE)
    kept = heedful.merge(
        load_adapter(with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "mlm"), out)
    )
    assert isinstance(kept, LM)
    found = scores(kept, told_of(novels(folder / FILES[1]), kept.tokenizer), LENGTH, given.checks)
    text = (given.start / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---\n", 2)[1])
    card = Card(
        "the word behind [MASK]", NAME, head["datasets"], head["data_license"], head["metric"], begun=begun
    )
    hashes = dict(
        one.rsplit(" ", 1) for one in text.split("- files (SHA-256): ")[1].split("\n")[0].split(", ")
    )
    words = ["bundle.fill_mask", "--start", "begun/masked", "--rank", str(given.rank)]
    words += ["--checks", str(given.checks)] if given.checks != CHECKS else []
    command = " ".join(["HEED_DATA=FOLDER python -m", *words])
    spent = time.perf_counter() - began
    write_card(out, NAME, card, found, "top5", command, given.seed, hashes, BASE, spent)
    first = begun.split("`")[1].split()[1:]
    words[2] = "{work}/begun/masked"
    files = [*FILES, *modern.FILES, "translation/wiktionary/en-de.tsv.gz"]
    check = {
        "steps": [[*first, "--out", "{work}/begun"], ["python", "-m", *words, "--out", "{work}"]],
        "read": "figure", "figure": "top5", "tolerance": 2.0, "data": files, "device": "cuda",
    }  # fmt: skip
    row = ledger.row(
        f"ELTeC valid × 100: masked words first and among the first five: {BASE} with LoRA",
        {name: round(100 * found[name], 2) for name in ("top1", "top5")}, command, seed=given.seed,
        data_sha256=ledger.sha256(folder / one for one in files), check=check,
    )  # fmt: skip
    ledger.record_rows(results / f"{NAME}.json", [row])
    write_sample(samples, NAME, lambda: sample(kept.eval()))
    print(json.dumps({"figure": round(100 * found["top5"], 2), **found}))


if __name__ == "__main__":
    main()
