"""Families of other packages: found by entry points and `--import`, refused if something is missing."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful import cli
from heedful.core.errors import ConfigError, NotFound
from heedful.interp import logit_attribution
from heedful.models import FAMILIES, plugins
from heedful.nn.attention.multi_head import Attention
from tests.refusal import refused

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs/extend.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The families of docs/extend.md as an installed package, and a registry that knows no plug-in yet."""
    folder, facts = tmp_path / "site" / "outside", tmp_path / "site" / "outside-1.0.dist-info"
    folder.mkdir(parents=True)
    facts.mkdir()
    (folder / "__init__.py").touch()
    (folder / "retention.py").write_text(BLOCKS[0])
    (folder / "differential.py").write_text(BLOCKS[2])
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    lines = ("retention = outside.retention:RETENTION", "differential = outside.differential")
    (facts / "entry_points.txt").write_text("\n".join(("[heedful.families]", *lines)))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEED_IMPORT", "")
    before = dict(FAMILIES)
    plugins.pending_plugins.cache_clear()
    yield folder
    plugins.pending_plugins.cache_clear()
    FAMILIES.clear()
    FAMILIES.update(before)
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("outside", "mine", "retention", "differential")
    ]:
        del sys.modules[name]


def heed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        cli.main(arguments)
    return int(done.value.code or 0)


@pytest.mark.parametrize("name", ["retention", "differential"])
def test_families_of_an_installed_package_do_everything(name: str, package: Path) -> None:
    model = heedful.build(name, vocab=128, dim=32, layers=2, heads=2, seed=0)
    batch = torch.randint(0, 128, (4, 24), generator=torch.Generator().manual_seed(0))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(8):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
    model.eval()
    tokens = batch[:1, :6]
    assert len(list(heedful.generate(model, tokens[0].tolist(), max_tokens=3)))
    again = heedful.load(heedful.save(model, name))
    assert again.family.name == name
    watch = heedful.Watch("blocks.*.attn.*")
    assert torch.allclose(again(tokens, watch=watch), model(tokens), atol=1e-5)
    for layer in range(2):
        pattern, v = watch[f"blocks.{layer}.attn.pattern"], watch[f"blocks.{layer}.attn.v"]
        assert torch.allclose(pattern @ v, watch[f"blocks.{layer}.attn.heads"], atol=1e-5)
    assert heedful.count(model).parameters == sum(p.numel() for p in model.parameters())
    shares = logit_attribution(model, tokens[0].tolist())
    assert abs(shares.total - shares.logit) < 1e-4
    heads = float(shares.heads["blocks.1.attn"].sum())
    assert heads == pytest.approx(shares["blocks.1.attn"], abs=1e-5)


def test_commands_find_the_families_of_an_installed_package(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert heed("ls", "--json") == 0
    assert "differential-300m" in capsys.readouterr().out
    Path("text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 40)
    assert heed("train", "retention", "text.txt", "--steps", "2", "-o", "run", "--device", "cpu") == 0
    assert heed("generate", "run", "the cat", "--max-tokens", "3") == 0


@pytest.mark.parametrize("name", ["mine.py", "mine"])
def test_a_file_is_imported_by_an_option(
    name: str, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BLOCKS[0].replace('"retention"', '"mine"').replace("retention-124m", "mine-124m")
    Path("mine.py").write_text(text)
    assert heed("--import", name, "count", "mine-124m") == 0
    assert "parameters" in capsys.readouterr().out


def test_a_module_that_does_not_exist_is_refused(package: Path) -> None:
    with refused(NotFound, "no_such", hint="my_family.py"):
        plugins.import_module("no_such")
    with refused(NotFound, "no_such.py"):
        plugins.import_module("no_such.py")


def test_a_package_that_cannot_be_imported_is_named_and_stops_nothing(package: Path) -> None:
    (package / "retention.py").write_text("import no_such_module")
    with pytest.warns(UserWarning, match="outside.retention:RETENTION"):
        assert heedful.build("differential", layers=1, dim=16, heads=2, device="meta").config.layers == 1


def test_the_code_of_the_page_runs(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(package.parent)
    Path("retention.py").write_text(BLOCKS[0])
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("differential.py").write_text(BLOCKS[2])
    exec(compile(BLOCKS[1], "extend.md", "exec"), {})
    importlib.import_module("differential")
    assert heedful.build("differential", layers=1, dim=16, heads=2, device="meta").kind == "decoder"


@pytest.mark.slow
def test_a_process_of_its_own_finds_an_installed_package(package: Path) -> None:
    paths = os.pathsep.join((str(package.parent), str(ROOT / "src")))
    code = "import heedful; print(heedful.build('retention', device='meta').kind)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.stdout == "decoder\n", done.stderr


class Forgetful(Attention):
    """Attention without a state."""

    def new_state(self, batch: int, length: int) -> Any:
        return None


class Askew(Attention):
    """Attention that calls another axis that of the tokens."""

    def project(self, x: torch.Tensor) -> Any:
        self.seen(x)
        return super().project(x)

    def forward(self, x: torch.Tensor, ctx: Any, state: Any = None) -> torch.Tensor:
        self.seen = lambda x: ctx.see("queer", x[:, :, None].expand(-1, -1, 7, -1))
        return super().forward(x, ctx, state)


def with_attention(kind: type[Attention]) -> Any:
    """The build function of GPT-2, whose attention is of another class."""

    def build(config: Any) -> Any:
        model = FAMILIES["gpt2"].build(config)
        for block in model.blocks:  # type: ignore[attr-defined]
            block.attn.__class__ = kind
        return model

    return build


GPT2 = replace(FAMILIES["gpt2"], name="mine", model_types=(), presets={}, heads={})
FEWER = {theirs: ours for theirs, ours in GPT2.keys.items() if ours != "context"}
ROWS: Any = GPT2.names


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"name": "gpt2"}, "family of heedful", None),
        ({"name": "My Family"}, "characters", "a-z"),
        ({"presets": {"gpt2": GPT2.config()}}, "'gpt2' exists", None),
        ({"presets": {"a": FAMILIES["llama"].tiny}}, "LlamaConfig", "GPT2Config"),
        ({"objective": "next-token"}, "unknown", "next_token"),
        ({"build": lambda c: torch.nn.Linear(2, 2)}, "Linear", "LM"),
        ({"names": [row for row in ROWS if "ln" not in str(row)]}, "attn_norm", "row"),
        ({"keys": FEWER}, "'context'", "key"),
        ({"build": with_attention(Forgetful)}, "one pass", "new_state"),
        ({"build": with_attention(Askew)}, "queer", "positions"),
    ],
)
def test_what_a_family_lacks_is_named_when_it_is_registered(
    changes: dict[str, Any], message: str, hint: str | None
) -> None:
    with refused(ConfigError, message, hint=hint):
        heedful.register(replace(GPT2, **changes))
    assert "mine" not in FAMILIES


def test_a_family_may_be_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "mine", GPT2)
    assert heedful.register(replace(GPT2, paper="mine")) is FAMILIES["mine"]


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if n in ("gla", "t5", "bert", "mamba2")])
def test_families_of_heedful_have_all_that_is_asked_of_others(name: str) -> None:
    family = replace(FAMILIES[name], name=f"my-{name}", presets={})
    plugins.check_family(family)
