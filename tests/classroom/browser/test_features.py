"""The page of one feature: the numbers that a browser shows are those of the dictionary's own matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.interp import save_saelens, train_dictionary
from tests.classroom.browser.conftest import SCREEN, Server, Visitor
from tests.classroom.studio.made import LINES

NAME = "blocks.0.output"


@pytest.fixture(scope="module")
def features(models: Path, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("features")
    (root / "texts.txt").write_text("\n".join(LINES), encoding="utf-8")
    model = heedful.load(models / "decoder")
    dictionary = train_dictionary(model, LINES, NAME, width=20, k=3, steps=20)
    folder = save_saelens(dictionary, root / "sae")
    running = Server(models, runs, {"dictionary": folder, "texts": root / "texts.txt"}).start()
    yield running
    running.stop()


def test_the_page_of_a_feature_shows_what_its_matrices_give(features: Server, browser: Any) -> None:
    context = browser.new_context(viewport=SCREEN, reduced_motion="reduce")
    visitor = Visitor(context.new_page(), features.url)
    page = visitor.go("/figures?m=decoder&figure=feature")
    shown = visitor.text()
    number = int(shown.split("Feature ")[1].split(" of 20")[0])
    model, dictionary = (
        heedful.load(features.models / "decoder"),
        features.app.state.studio.features.dictionary,
    )
    seen: list[torch.Tensor] = []
    model.blocks[0].register_forward_hook(lambda module, given, x: seen.append(x[0]))  # type: ignore[operator, union-attr]
    with torch.no_grad():
        for line in LINES:
            model(torch.tensor([model.tokenizer.encode(line)[:48]]))  # type: ignore[union-attr]
        rows = torch.cat([dictionary.encode(x)[1:, number] for x in seen])  # the first tokens do not count
    best = float(rows.max())
    assert f"{best:.3f}" in shown
    assert f"of {len(rows):,} tokens" in shown
    cosines = F.cosine_similarity(dictionary.decoder[number, None], dictionary.decoder)
    cosines[number] = -2
    assert re.findall(r"feature (\d+)", shown.rpartition("nearest features")[2])[0] == str(
        int(cosines.argmax())
    )
    assert page.locator("text=next tokens promoted").count()
    assert not visitor.faults
    context.close()
