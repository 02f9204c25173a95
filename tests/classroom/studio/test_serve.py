"""The command: on loopback alone, a port that is taken, an end by Ctrl-C."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from heedful.serve.http_connection import PortTaken, bind_socket


def test_the_socket_listens_on_loopback_alone() -> None:
    with bind_socket(0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockname()[1] > 0


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with bind_socket(0) as sock, pytest.raises(PortTaken, match=r"port \d+ is taken") as caught:
        bind_socket(sock.getsockname()[1])
    assert "--port" in (caught.value.hint or "")


def test_importing_the_studio_imports_no_server_and_no_torch() -> None:
    imports = "import sys, heedful.classroom.studio, heedful.cli.servers"
    code = f"{imports}; print({{'torch', 'fastapi'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


def test_the_command_prints_its_address_answers_and_ends_cleanly(models: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "heedful.cli", "studio", str(models / "decoder"), "--no-browser"]
    with subprocess.Popen(
        [*line, "--models", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        assert url.hostname == "127.0.0.1"
        token = url.query.removeprefix("token=")
        assert len(token) >= 32
        try:
            with closing(http.client.HTTPConnection(url.netloc, timeout=60)) as page:
                body = json.dumps({"model": "decoder", "text": "the cat"})
                page.request("POST", "/api/trace", body, {"Content-Type": "application/json"})
                refused = page.getresponse()
                assert (refused.status, b"TOKEN" in refused.read()) == (401, True)
                headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
                page.request("POST", "/api/trace", body, headers)
                answer = page.getresponse()
                assert answer.status == 200
                assert answer.getheader("server") is None
                assert len(json.loads(answer.read())["tokens"]) == 2
            assert not reached_from_outside(url.port or 0)
        finally:
            process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said == ""
    assert "Traceback" not in errors


def reached_from_outside(port: int) -> bool:
    """Whether somebody answers on this machine's other addresses."""
    found = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in found - {"127.0.0.1", "127.0.1.1"}:
        with socket.socket() as sock:
            sock.settimeout(1)
            if sock.connect_ex((str(address), port)) == 0:
                return True
    return False
