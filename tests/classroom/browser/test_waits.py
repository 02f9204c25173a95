"""Whatever takes over a second says so and for how long, and can be cancelled and asked for again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from heedful.classroom.studio.model_registry import ModelRegistry
from heedful.classroom.studio.traces import TraceRecorder
from heedful.interp.inputs import Input
from tests.classroom.browser.conftest import Server, Visitor
from tests.classroom.browser.test_captions import free_again

TEXT = "the cat sat on the log"


def waiting(page: Any) -> Any:
    """The line that tells of a wait, once it has taken a second."""
    page.wait_for_selector(".waits progress")
    return page.locator(".waits").first


def test_a_slow_pass_shows_progress_and_can_be_cancelled_and_repeated(
    visitor: Visitor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor.allowed = (409,)
    run = Input.run
    with monkeypatch.context() as slow:
        slow.setattr(Input, "run", lambda self, *a, **k: time.sleep(3) or run(self, *a, **k))
        visitor.page.goto(f"{visitor.url}/attention?m=decoder&x={TEXT}")
        line = waiting(visitor.page)
        assert " s" in line.inner_text()
        line.get_by_role("button", name="Cancel").click()
        assert "Cancelled" in visitor.page.locator("[role=alert]").inner_text()
    assert free_again(server, "decoder") < 10
    visitor.page.get_by_role("button", name="Try again").click()
    visitor.settled()
    assert visitor.page.locator("[role=grid]").count() == 1
    assert not visitor.faults


def test_a_model_that_loads_slowly_says_so_and_can_be_left(
    visitor: Visitor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ModelRegistry._load
    monkeypatch.setattr(ModelRegistry, "_load", lambda self, entry: time.sleep(3) or load(self, entry))
    registry = server.app.state.studio.registry
    with registry._lock:
        registry._loaded.pop("rnn", None)
    visitor.page.goto(f"{visitor.url}/layers?m=rnn&x={TEXT}")
    line = waiting(visitor.page)
    assert "Loading rnn" in line.inner_text()
    line.get_by_role("button", name="Cancel").click()
    visitor.page.get_by_role("button", name="Try again").click()
    visitor.settled()
    assert "Layers" in visitor.text()
    assert not visitor.faults


def test_leaving_a_comparison_of_two_models_stops_the_second_pass(
    browser: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[str] = []
    run = Input.run

    def counted(self: Input, model: Any, *rest: Any, **more: Any) -> Any:
        if any(isinstance(watch, TraceRecorder) for watch in rest):
            passes.append(model.family.name)
            time.sleep(1.5)
        return run(self, model, *rest, **more)

    monkeypatch.setattr(Input, "run", counted)
    context = browser.new_context()
    page = context.new_page()
    with page.expect_request(lambda request: request.url.endswith("/api/compare"), timeout=60_000):
        page.goto(f"{server.url}/compare?a=decoder&b=large&x={TEXT}")
    began = time.perf_counter()
    while not passes and time.perf_counter() < began + 20:
        time.sleep(0.02)
    page.close()
    assert free_again(server, "decoder") < 10
    time.sleep(1)
    assert len(passes) == 1  # the model of the other side was never asked
    context.close()


def test_the_studio_begins_with_a_small_model(visitor: Visitor) -> None:
    page = visitor.go("/tokens")
    assert page.get_by_label("Model", exact=True).input_value() in ("masked", "prose")


def test_training_is_not_empty_on_a_first_visit(browser: Any, models: Path, tmp_path: Path) -> None:
    server = Server(models, tmp_path).start()
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    visitor = Visitor(context.new_page(), server.url)
    page = visitor.go("/train")
    assert "Below is an example" in visitor.text()
    assert "heed train shakespeare-char-cpu" in visitor.text()
    assert page.locator(".fig", has_text="loss").count() == 1
    assert not visitor.faults
    context.close()
    server.stop()
