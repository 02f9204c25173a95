"""Every family of the registry can be looked at: its record, a run, pictures and states, without a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.interp.inputs import part_at
from heedful.models.base import Model
from heedful.nn.attention.multi_head import SinkAttention
from tests.classroom.studio.conftest import get, tensor, traced
from tests.properties.tiny import ALL, tiny

IDS = [5, 9, 2, 7, 6, 8]
# One of each mechanism runs always, the rest with the slow tests.
ALWAYS = {
    "albert", "bloom", "cnn", "deberta-v2", "deepseek-v3", "electra", "gemma2", "gpt-oss", "linear", "luong",
    "mamba", "olmo-hybrid", "t5",
}  # fmt: skip
STRINGS = Path(__file__).parents[3] / "web" / "src" / "strings.json"
FAMILIES = [f if f in ALWAYS else pytest.param(f, marks=pytest.mark.slow) for f in ALL]


def check_division(client: TestClient, trace: str, group: dict[str, Any], model: Model) -> None:
    """The page offers to leave the division by √d_k out where that is what a layer does to its products."""
    for path, divides in zip(group["layers"], group["divides_by_root"], strict=True):
        answer = client.get(f"/api/trace/{trace}/tensor", params={"name": f"{path}.unscaled"})
        assert (answer.status_code == 200) == divides, answer.text
        part = part_at(model, path)
        plain = getattr(part, "softcap", None) is None and not isinstance(part, SinkAttention)
        assert not divides or plain


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_can_be_looked_at(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    sunk = any(isinstance(part, SinkAttention) for part in model.modules())
    heedful.save(model, tmp_path / "it")
    client = TestClient(
        create_studio_app(models_folder=tmp_path, runs_folder=tmp_path), base_url="http://127.0.0.1"
    )
    record = get(client, "/api/models/it")
    found = traced(client, "it", text=None, ids=IDS)
    assert bool(found["groups"]) == bool(record["attention"]) != bool(found["note"])
    for group in found["groups"]:
        small = tensor(client, f"/api/trace/{found['id']}/thumbs", group=group["name"])
        assert small.shape[:2] == (len(group["layers"]), max(group["heads"]))
        pattern = tensor(client, f"/api/trace/{found['id']}/tensor", name=f"{group['layers'][0]}.pattern")
        sums = pattern.sum(-1)
        whole = sums < 1 if sunk else abs(sums * (sums - 1)) < 1e-5  # a sink takes what is missing
        assert group["kind"] == "effective" or whole.all()
        check_division(client, found["id"], group, model)
        assert group["sink"] == sunk
        kinds = {part_at(model, path).pattern_kind for path in group["layers"]}
        assert kinds == {group["kind"]}
    said = json.loads(STRINGS.read_text(encoding="utf-8"))
    assert {row["by"] for row in record["mixing"]} <= set(said["compare"]["paths"])
    assert record["position"]["type"] in set(said["positions"]["types"]) & set(said["positions"]["about"])
    words = {word for part in record["recurrent"] for word in (*part["gates"], *part["states"])}
    assert words <= set(said["states"]["words"])
    states = get(client, f"/api/trace/{found['id']}/states")
    assert bool(states["parts"]) == bool(record["recurrent"])
    assert get(client, "/api/models/it/positions")["type"] == record["position"]["type"]
    for topic in record["topics"][:1]:
        assert get(client, f"/api/trace/{found['id']}/explain", topic=topic)["checked"]["ok"]
