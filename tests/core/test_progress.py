"""Progress of a wait: one line on a terminal, erased at the end; nothing elsewhere; Ctrl-C ends a command."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from heedful.core import progress
from heedful.core.progress import report_progress, show_progress

ERASE = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in the place of stderr, on which a line appears at once."""
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.001)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.001)
    return made


def wait_for(terminal: Terminal, text: str) -> None:
    for _ in range(2000):
        if text in terminal.getvalue():
            return
        time.sleep(0.005)
    raise AssertionError(f"{text!r} was never shown: {terminal.getvalue()[-200:]!r}")


def test_a_wait_is_shown_with_its_counts_and_erased(terminal: Terminal) -> None:
    with show_progress("embedding"):
        report_progress("texts", 32, 2000)
        wait_for(terminal, "embedding · 32 of 2,000 texts · 0 s")
        report_progress("tokens", 7)
        wait_for(terminal, "embedding · 32 of 2,000 texts · 7 tokens · 0 s")
    assert terminal.getvalue().endswith(ERASE)


def test_an_inner_wait_takes_the_place_of_the_outer_one(terminal: Terminal) -> None:
    with show_progress("classifying"):
        report_progress("texts", 1, 2)
        with show_progress("loading sentiment"):
            wait_for(terminal, "loading sentiment · 0 s")
        wait_for(terminal, "classifying · 1 of 2 texts")


def test_an_error_erases_the_line_too(terminal: Terminal) -> None:
    def interrupted() -> None:
        with show_progress("loading"):
            wait_for(terminal, "loading")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().endswith(ERASE)


def test_what_is_fast_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_SECONDS", 60)
    with show_progress("loading"):
        report_progress("tensors", 1, 2)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("where", ["pipe", "dumb"])
def test_nothing_is_shown_where_there_is_no_terminal(
    where: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: io.StringIO = terminal
    if where == "pipe":
        shown = io.StringIO()
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=shown))
    else:
        monkeypatch.setenv("TERM", "dumb")
    with show_progress("loading"):
        time.sleep(0.05)
    assert shown.getvalue() == ""


def test_a_line_is_cut_at_the_width_of_the_terminal(terminal: Terminal) -> None:
    with show_progress("x" * 300):
        wait_for(terminal, "xx")
    assert max(len(line) for line in terminal.getvalue().split(ERASE)) <= 79


def test_ctrl_c_ends_a_command_with_one_line_and_code_130() -> None:
    """In a real terminal: the wait is shown, and interrupted."""
    ours, theirs = pty.openpty()
    words = [
        "generate",
        "prose",
        "Once upon a time",
        "--max-tokens",
        "100000",
        "--n",
        "40",
        "--temperature",
        "1",
    ]
    # A shell lets what it starts in the background ignore Ctrl-C; the command is one in the foreground.
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{hear}; from heedful.cli import main; main({words})"
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )  # fmt: skip
    shown = ""
    while not re.search(r"generating · [\d,]+ of [\d,]+ tokens", shown):
        shown += os.read(ours, 4096).decode()
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    os.close(theirs)
    shown += os.read(ours, 4096).decode()
    os.close(ours)
    assert (run.returncode, out) == (130, b"")
    assert shown.replace("\r\n", "\n").endswith(f"{ERASE}\ninterrupted\n")
