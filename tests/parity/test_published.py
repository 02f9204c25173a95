"""Checks on every row of the table in tests/parity/cases.py, beside `transformers`.

Each row has equal logits and patterns. The first row of each class of transformers is also padded and written
back; further rows of a class, with other values, only under `make test-all`, as is what is built here by the
config of a row (test_built_here.py builds every family).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import heedful
from heedful.nn.init import initialise
from heedful.weights.loading import assemble
from tests.parity.cases import CASES
from tests.parity.harness import (
    LENGTH,
    Published,
    open_there,
    publish,
    random_inputs,
    read_tensors,
    run_ours,
    run_theirs,
)

# transformers scripts a few functions of DeBERTa.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")


FIRST = {case.id for case in {case.architecture: case for case in reversed(CASES)}.values()}
every_row = pytest.mark.parametrize("published", CASES, ids=str, indirect=True)
first_of_each_class = pytest.mark.parametrize(
    "published",
    [pytest.param(case, id=case.id, marks=() if case.id in FIRST else pytest.mark.slow) for case in CASES],
    indirect=True,
)


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """One row, made and saved once for its checks."""
    return publish(request.param, tmp_path_factory.mktemp("published"))


@every_row
def test_logits_and_patterns_equal_the_published_implementation(published: Published) -> None:
    case, model = published.case, heedful.load(published.folder)
    inputs = random_inputs(model, case)
    expected = run_theirs(published.reference, *inputs)
    got = run_ours(model, *inputs)
    assert got.shape == expected[case.output].shape
    assert (got - expected[case.output]).abs().max() <= case.tolerance
    for name, key in case.patterns.items():
        watch = heedful.Watch(name)
        run_ours(model, *inputs, watch=watch)
        for layer, attention in enumerate(expected[key]):
            assert (watch[name.replace("*", str(layer))] - attention).abs().max() <= 1e-5, f"{name} {layer}"


@first_of_each_class
def test_padding_on_either_side_gives_the_unpadded_answer(published: Published) -> None:
    case, model = published.case, heedful.load(published.folder)
    tokens, types, target = random_inputs(model, case, batch=1)
    expected = run_theirs(published.reference, tokens, types, target)[case.output]
    targets = None if target is None else target.repeat(2, 1)
    pad, none = torch.full((1, 3), 3), torch.zeros(1, 3, dtype=torch.bool)
    for left in (True, False):
        join = lambda pads, row, left=left: torch.cat((pads, row) if left else (row, pads), 1)
        row, valid = join(pad, tokens), join(none, tokens >= 0)
        rows = torch.cat((row, torch.full_like(row, 4)))  # beside a longer neighbour
        kinds = None if types is None else join(torch.zeros_like(pad), types)
        kinds = None if kinds is None else torch.cat((kinds, torch.zeros_like(kinds)))
        got = run_ours(model, rows, kinds, targets, valid=torch.cat((valid, torch.ones_like(valid))))[:1]
        if target is None and got.dim() > 1 and got.shape[1] == row.shape[1]:
            got = got[:, 3:] if left else got[:, :LENGTH]
        far = (got - expected).abs().max() / max(1.0, expected.abs().max())
        assert far <= 1e-5, f"{'left' if left else 'right'} {far:.1e}"


@first_of_each_class
def test_load_then_save_gives_back_every_tensor_and_opens_there(published: Published, tmp_path: Path) -> None:
    case, model = published.case, heedful.load(published.folder)
    heedful.save(model, tmp_path)
    before, after = read_tensors(published.folder), read_tensors(tmp_path)
    assert set(before) - set(after) <= set(case.dropped)
    assert not set(after) - set(before)
    for name, tensor in after.items():
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [case.architecture]
    inputs = random_inputs(model, case)
    expected = run_theirs(published.reference, *inputs)[case.output]
    again = run_theirs(open_there(case.architecture, tmp_path, case.attention, case.dropped), *inputs)[
        case.output
    ]
    assert (again - expected).abs().max() <= 1e-6


@pytest.mark.slow
@every_row
def test_what_is_built_here_opens_there(published: Published, tmp_path: Path) -> None:
    case, loaded = published.case, heedful.load(published.folder)
    model = assemble(loaded.family, loaded.config)
    initialise(model)
    model.eval()
    model.hf_config = {"pad_token_id": loaded.hf_config.get("pad_token_id")}  # theirs classifies by it
    heedful.save(model, tmp_path)
    inputs = random_inputs(model, case)
    expected = run_theirs(open_there(case.architecture, tmp_path, case.attention, case.dropped), *inputs)[
        case.output
    ]
    assert (run_ours(model, *inputs) - expected).abs().max() <= case.tolerance
