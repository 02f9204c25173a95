"""Encoders that the world trained: the figures printed beside them are met."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful.models.base import Model
from tests.parity.harness import read_tensors

ANTIBODY = (
    "**QLV*SGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYR"
    "FDMGFDYWGQGTTVTVSS"
)

# The first five positions and the residues A C D E, as the README of Merck/Sapiens prints them.
PRINTED = [
    [0.003272, 0.004147, 0.004011, 0.004590],
    [0.012038, 0.003854, 0.006803, 0.008174],
    [0.003384, 0.003895, 0.003726, 0.004068],
    [0.004612, 0.005325, 0.004443, 0.004641],
    [0.005519, 0.003664, 0.003555, 0.005269],
]

# Two reactions; the product of each is made of the atoms before `>>`, so that a masked token can be told.
REACTIONS = [
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
]
ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|>>|.")


def vocabulary(folder: Path) -> dict[str, int]:
    return {word: i for i, word in enumerate((folder / "vocab.txt").read_text().split())}


def opened(folder: Path) -> tuple[Model, dict[str, int]]:
    if not folder.is_dir():
        pytest.skip(f"{folder.name} is not among the published checkpoints here")
    return heedful.load(folder), vocabulary(folder)


@torch.no_grad()
def test_sapiens_gives_the_probabilities_its_readme_prints(weights_folder: Path) -> None:
    model, ids = opened(weights_folder / "sapiens-roberta-vh")
    letters = [ids["<mask>" if letter == "*" else letter] for letter in ANTIBODY]
    logits = model(torch.tensor([[ids["<s>"], *letters, ids["</s>"]]]))[0, 1:-1]
    first = logits.softmax(-1)[:5, [ids[letter] for letter in "ACDE"]]
    assert (first - torch.tensor(PRINTED)).abs().max() <= 1e-6
    assert [list(ids)[i] for i in logits[[0, 1, 5]].argmax(-1)] == ["Q", "V", "Q"]


@torch.no_grad()
def test_rxnmapper_knows_the_masked_atom(weights_folder: Path) -> None:
    model, ids = opened(weights_folder / "rxnmapper-albert-mlm")
    right = total = 0
    for reaction in REACTIONS:
        atoms = torch.tensor([ids[a] for a in ATOM.findall(reaction)])
        rows: Tensor = torch.cat((torch.tensor([ids["[CLS]"]]), atoms, torch.tensor([ids["[SEP]"]])))
        each = torch.arange(len(atoms))
        masked = rows.repeat(len(atoms), 1)
        masked[each, each + 1] = ids["[MASK]"]
        right += int((model(masked)[each, each + 1].argmax(-1) == atoms).sum())
        total += len(atoms)
    assert (right, total) == (133, 134)


@pytest.mark.parametrize("name", ["sapiens-roberta-vh", "rxnmapper-albert-mlm"])
@torch.no_grad()
def test_a_trained_file_equals_transformers_and_is_given_back(
    name: str, weights_folder: Path, tmp_path: Path
) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    model, ids = opened(weights_folder / name)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(weights_folder / name).eval()
    tokens = torch.randint(5, len(ids), (2, 40))
    assert (model(tokens) - reference(tokens).logits).abs().max() <= 1e-4
    heedful.save(model, tmp_path)
    before, after = read_tensors(weights_folder / name), read_tensors(tmp_path)
    assert set(before) == set(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
