"""The adapter on all-MiniLM-L6-v2 that tells whether a text follows another.

    HEED_DATA=FOLDER python -m bundle.masked --seconds 289 --out begun
    HEED_DATA=FOLDER python -m bundle.next_sentence --start begun/masked [--rank 8] [--out FOLDER]

The first command learns from novels alone: `masked`, which learns from modern English too, fills in words
better and cannot tell what follows. The second command keeps the head for sentence pairs and leaves out the
one for words, and cuts the LoRA of rank 16 to the nearest of a lower rank: B A ≈ (U √S) (√S Vᵀ), of
U S Vᵀ = B A the first columns.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import heedful
from bundle import data_folder
from bundle.cards import Card, hash_of, write_card
from bundle.masked import BASE, CHECKS, FILES, LENGTH, PAIRS, scores
from bundle.plans import base_folder
from bundle.prose import name_novels
from bundle.sentence_pairs import novels, told_of
from bundle.timed import options, parsed, places, write_sample
from bundle.translators import begun_by
from heedful.adapters import load_adapter
from heedful.loading import save_on_base, with_head
from heedful.models.base import LM, Model
from heedful.nn.adapt import LoRA
from heedful.runs import ledger

NAME = "next-sentence"


def cut(layer: LoRA, rank: int) -> tuple[Tensor, Tensor]:
    """A and B of `rank` whose product is nearest to B A."""
    u, s, v = torch.linalg.svd((layer.up @ layer.down).float(), full_matrices=False)
    root = s[:rank].sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root


def cut_model(start: Path, rank: int) -> LM:
    """A model of the base with the head for sentence pairs and LoRA of `rank`, from a saved adapter."""
    whole = load_adapter(with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "pretrain"), start)
    model = with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "next")
    assert isinstance(model, LM)
    heedful.lora(model, rank=rank, train=("head.*", "embed.types.weight"))
    learnt, layers = dict(whole.named_parameters()), dict(whole.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not name.endswith((".down", ".up")):
                parameter.copy_(learnt[name.replace("head.", "head.next.", 1)])
        for name, module in model.named_modules():
            if isinstance(module, LoRA):
                source = layers[name]
                assert isinstance(source, LoRA)
                module.down.data, module.up.data = cut(source, rank)
    return model


def sample(model: Model) -> str:
    """What it says of a few pairs."""
    follows = heedful.pipeline("next-sentence", model)
    said = [(pair, follows(*pair)) for pair in PAIRS]
    return "\n".join(f"{a} | {b} → {one['label']} {one['score']:.3f}" for (a, b), one in said)


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--start", type=Path, required=True, help="a folder that bundle.masked wrote")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--checks", type=int, default=CHECKS, help="batches of 32 that are scored")
    given = parsed(parser)
    folder, begun = data_folder(), begun_by(given.start)
    out, results, samples = places(NAME, given.out)
    model = cut_model(given.start, given.rank)
    save_on_base(model, out, BASE)
    kept = heedful.merge(
        load_adapter(with_head(heedful.load(base_folder(BASE), dtype=torch.float32), "next"), out)
    )
    assert isinstance(kept, LM)
    found = scores(kept, told_of(novels(folder / FILES[1]), kept.tokenizer), LENGTH, given.checks)
    card = Card(
        "whether a text follows another", NAME, name_novels(folder),
        "texts in the public domain, mark-up CC BY 4.0", "ELTeC valid, stretches of text, accuracy",
        begun=begun,
    )  # fmt: skip
    words = ["bundle.next_sentence", "--start", "begun/masked", "--rank", str(given.rank)]
    command = " ".join(["HEED_DATA=FOLDER python -m", *words])
    hashes = {one: hash_of(folder / one) for one in FILES}
    spent = time.perf_counter() - began
    write_card(out, NAME, card, found, "next_sentence", command, given.seed, hashes, BASE, spent)
    first = begun.split("`")[1].split()[1:]
    words[2] = "{work}/begun/masked"
    check = {
        "steps": [[*first, "--out", "{work}/begun"], ["python", "-m", *words, "--out", "{work}"]],
        "read": "figure", "figure": "stretches", "tolerance": 2.0, "data": list(FILES), "device": "cuda",
    }  # fmt: skip
    row = ledger.row(
        "ELTeC valid × 100: whether a stretch of text, and a single sentence, follows another: "
        f"{BASE} with LoRA",
        {"stretches": round(100 * found["next_sentence"], 2),
         "single": round(100 * found["next_single_sentences"], 2)},
        command, seed=given.seed, data_sha256=ledger.sha256(folder / one for one in FILES), check=check,
    )  # fmt: skip
    ledger.record_rows(results / f"{NAME}.json", [row])
    write_sample(samples, NAME, lambda: sample(kept.eval()))
    print(json.dumps({"figure": round(100 * found["next_sentence"], 2), **found}))


if __name__ == "__main__":
    main()
