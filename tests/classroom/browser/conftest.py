"""The studio in a real browser: five kinds of tiny model, a server in a thread, Chromium without a window.

Everything is made once per worker. Where there is no Chromium the tests are skipped and say so.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from tests.classroom.browser.chromium import chromium
from tests.classroom.studio.made import LINES, made, save_vectors

SCREEN = {"width": 1280, "height": 900}
PATIENCE = 60_000  # milliseconds; a shared machine may be slow, a broken page waits for ever

# Settled: nothing is being fetched, and it stayed so for a few frames, as one answer may lead to a question.
SETTLED = """() => {
  const main = document.querySelector("main");
  const calm = main?.getAttribute("aria-busy") === "false" && !document.querySelector(".busy");
  window.calmFor = calm ? (window.calmFor ?? 0) + 1 : 0;
  return window.calmFor > 5;
}"""


CORE = (
    "test_bundle.py",
    "test_pages.py",
    "test_tour.py",
)  # a page takes seconds to open; `make browser` runs the others


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what the core run leaves out: other files, and all but the first parameters of a test."""
    begun: set[str] = set()
    for item in items:
        if "slow" in item.keywords or "browser" not in item.path.parts:
            continue
        name, repeated, _ = item.nodeid.partition("[")
        if item.path.name not in CORE or (repeated and name in begun):
            item.add_marker(pytest.mark.slow)
        begun.add(name)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of each kind."""
    root = tmp_path_factory.mktemp("models")
    lines = tmp_path_factory.mktemp("text") / "lines.txt"
    lines.write_text("\n".join(LINES), encoding="utf-8")
    bpe = heedful.train_tokenizer("bpe", lines, 330)
    pieces = heedful.train_tokenizer("wordpiece", lines, 120, lower=True)
    heedful.save(made("bert", pieces, heads=2, context=24, head="mlm"), root / "encoder")
    heedful.save(made("bert", pieces, heads=2, context=24, head="tag", labels=3), root / "tagger")
    heedful.save(made("gpt2", bpe, heads=2, context=48), root / "decoder")
    heedful.save(made("gpt2", bpe, heads=12, layers=12, dim=48, context=160), root / "large")
    heedful.save(made("transformer", bpe, heads=2), root / "encoder-decoder")
    heedful.save(made("rnnsearch", bpe, layers=1), root / "rnn")
    heedful.save(made("mamba", bpe, state=4), root / "mamba")
    heedful.save(made("lstm", bpe), root / "lstm")
    save_vectors(root / "vectors")
    return root


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """A run that is being written: a curve, half a line, and three checkpoints, each surer than the last."""
    root = tmp_path_factory.mktemp("runs")
    (root / "first").mkdir()
    lines = [json.dumps({"train/global_step": s, "train/loss": 5.0 / (1 + s)}) for s in range(1, 40)]
    (root / "first" / "metrics.jsonl").write_text("\n".join(lines) + '\n{"train/glo', encoding="utf-8")
    model = heedful.load(models / "decoder")
    for step in (10, 20, 30):
        with torch.no_grad():
            model.embed.token.weight.mul_(1.5)
        heedful.save(model, root / "first" / "checkpoints" / f"step-{step:06d}")
    return root


@dataclass
class Server:
    """The studio on loopback, in a thread of this process; it can be stopped and started again."""

    models: Path
    runs: Path
    options: dict[str, Any] = field(default_factory=dict)  # of the app, such as a dictionary
    port: int = 0
    server: Any = None
    thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        import uvicorn

        from heedful.classroom.studio.studio_app import create_studio_app
        from heedful.serve.http_connection import bind_socket

        sock = bind_socket(self.port)
        self.port = sock.getsockname()[1]
        app = create_studio_app(models_folder=self.models, runs_folder=self.runs, **self.options)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        app.state.studio.stopping = lambda: self.server.should_exit
        self.app = app
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [sock]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        assert self.thread is not None
        self.thread.join(20)
        self.app.state.studio.clients.stop()
        self.app.state.studio.registry.close()


@pytest.fixture(scope="session")
def server(models: Path, runs: Path) -> Iterator[Server]:
    pytest.importorskip("fastapi", reason="the studio's packages are not installed")
    running = Server(models, runs).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser() -> Any:
    return chromium()


@dataclass
class Visitor:
    """A tab, and everything that went wrong in it."""

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    allowed: tuple[int, ...] = ()  # statuses that this visit provokes on purpose

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not (self.allowed and "Failed to load" in message.text):
            self.faults.append(f"console {message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"a request left the origin: {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400 and response.status not in self.allowed:
            self.faults.append(f"{response.status} from {response.url}")

    def go(self, path: str) -> Any:
        self.page.goto(self.url + path)
        return self.settled()

    def settled(self) -> Any:
        self.page.evaluate("window.calmFor = 0")  # what was calm before an action says nothing of after it
        self.page.wait_for_function(SETTLED)
        return self.page

    def text(self) -> str:
        return str(self.page.inner_text("main"))

    def query(self) -> dict[str, str]:
        """What the address says."""
        from urllib.parse import parse_qsl, urlsplit

        return dict(parse_qsl(urlsplit(self.page.url).query))


@pytest.fixture
def visitor(browser: Any, server: Server) -> Iterator[Visitor]:
    context = browser.new_context(viewport=SCREEN, reduced_motion="reduce")
    yield Visitor(context.new_page(), server.url)
    context.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker's script, which a Python package carries."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
