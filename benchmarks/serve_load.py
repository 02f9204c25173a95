"""Many clients at one server: throughput, first token, time between tokens, and whether each text is right.

    python benchmarks/serve_load.py                           the bundled GPT, 1 and 64 streams, in turns
    python benchmarks/serve_load.py --model smollm2-135m-instruct --streams 1,8 --max-tokens 64
    python benchmarks/serve_load.py --peer plain --streams 8  beside `transformers serve`, with accelerate
    python benchmarks/serve_load.py --model all-minilm-l6-v2 --large-texts 2  small requests next to 5 MB

It starts `heed serve` (and the peer) on free ports of 127.0.0.1, asks each in turns of --seconds, checks
every text against the one that its prompt gets alone, and stops what it started. Clients and servers share
the machine. Rates count tokens of answers (the usage that servers report; events with text where they report
none), times are in milliseconds, `CPU µs/t` is what the server computed for a token, on all cores together.

`--large-texts N` measures something else: how long small requests for embeddings and `/health` take while N
clients send texts of 5 MB, and how much memory the server holds before, at its peak and afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).parents[1] / "src/heedful/bundled/prose"
PROMPTS = ("The old man", "In the garden", "She said that", "Once upon a time", "Why", "A letter from",
           "The ship was", "He had never", "It was late", "My dear", "When the king", "On the road",
           "The house stood", "Nobody knew", "At last", "The child")  # fmt: skip
LARGE_BYTES = 5_000_000
SMALL_CLIENTS = 4
PAUSE_SECONDS = 0.05  # between two small requests of one client: the server is not saturated by them
ANSWER_SECONDS = 120  # that one answer may take


@dataclass
class Tally:
    """What the clients of one turn saw."""

    seconds: float = 0.0
    cpu: float = 0.0  # seconds that the server computed
    tokens: int = 0
    answers: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # seconds to the first text of each answer
    between: list[float] = field(default_factory=list)  # seconds between two events with text

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def row(self, name: str) -> str:
        """Return one line of the table."""
        times = [f"{1000 * quantile(t, q):8.1f}" for t in (self.first, self.between) for q in (0.5, 0.95)]
        counts = f"{self.answers:7d} {self.wrong:6d} {len(self.errors):7d}"
        cpu = f"{1e6 * self.cpu / max(1, self.tokens):8.0f}"
        return f"{name:24s} {self.rate:9.1f} {cpu} {counts} {' '.join(times)}"


HEADING = f"{'':24s} {'tokens/s':>9s} CPU µs/t answers  wrong  errors first p50      p95 next p50      p95"


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


@dataclass(frozen=True)
class Target:
    """A server that was started: where it listens, what it calls its model."""

    name: str
    port: int
    model: str
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        """Return what the server has computed so far, in user and system mode."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self, name: str) -> int:
        """Return a size from the server's /proc status: VmRSS is resident now, VmHWM the most so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) // 1024

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


async def stream_answer(target: Target, prompt: str, max_tokens: int, tally: Tally, chat: bool) -> str:
    """Ask for one streamed answer over a connection of its own; return its text."""
    body: dict[str, Any] = {"model": target.model, "temperature": 0, "max_tokens": max_tokens, "stream": True,
                            "stream_options": {"include_usage": True}}  # fmt: skip
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    path, data = "/v1/chat/completions" if chat else "/v1/completions", json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    texts: list[str] = []
    counted: int | None = None
    last = begun = time.perf_counter()
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await reader.read())[-300:].decode(errors="replace"))
        async for line in reader:  # the sizes of HTTP's chunks are lines that begin otherwise
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            if event.get("usage"):
                counted = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                text = choice["delta"].get("content") if chat else choice["text"]
                if text:
                    now = time.perf_counter()
                    (tally.between if texts else tally.first).append(now - (last if texts else begun))
                    last = now
                    texts.append(text)
    finally:
        writer.close()
    tally.tokens += len(texts) if counted is None else counted
    return "".join(texts)


async def run_clients(target: Target, streams: int, seconds: float, max_tokens: int, chat: bool,
                      alone: dict[str, str]) -> Tally:  # fmt: skip
    """Keep `streams` clients busy for that long; each waits for its answer before it asks again."""
    tally, begun, computed = Tally(), time.perf_counter(), target.cpu_seconds()

    async def client(number: int) -> None:
        at = number
        while time.perf_counter() - begun < seconds:
            prompt = PROMPTS[at % len(PROMPTS)]
            at += 1
            try:
                text = await stream_answer(target, prompt, max_tokens, tally, chat)
            except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
                tally.errors.append(repr(error))
                continue
            tally.answers += 1
            tally.wrong += text != alone.setdefault(prompt, text)

    await asyncio.gather(*(client(number) for number in range(streams)))
    tally.seconds, tally.cpu = time.perf_counter() - begun, target.cpu_seconds() - computed
    return tally


async def time_requests(target: Target, path: str, text: str | None, pause: float, end: float) -> Tally:
    """Send one request after another until `end`, each over its own connection; note the seconds of each."""
    body = b"" if text is None else json.dumps({"model": target.model, "input": text}).encode()
    head = f"{'GET' if text is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    tally = Tally()
    while time.perf_counter() < end:
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                try:
                    writer.write(head.encode() + body)
                    status = (await reader.read()).split(b"\r\n", 1)[0].decode()
                finally:
                    writer.close()
            tally.answers += 1
            if " 200 " not in status:
                tally.errors.append(status)
        except (OSError, TimeoutError) as error:
            tally.errors.append(repr(error))
        tally.first.append(time.perf_counter() - begun)
        await asyncio.sleep(pause)
    return tally


def measure_large_texts(target: Target, clients: int, seconds: float) -> None:
    """Print the times of small requests and of /health, first alone and then next to large texts."""
    text = "The quick brown fox jumps over the lazy dog. " * (LARGE_BYTES // 45)
    small = ("/v1/embeddings", "A small request.", PAUSE_SECONDS)

    async def run_all(large: int) -> list[list[Tally]]:
        end = time.perf_counter() + seconds
        groups = [(small, SMALL_CLIENTS), (("/health", None, PAUSE_SECONDS), 1),
                  (("/v1/embeddings", text, 0.0), large)]  # fmt: skip
        return [
            await group
            for group in [
                asyncio.gather(*(time_requests(target, *request, end) for _ in range(count)))
                for request, count in groups
            ]
        ]

    asyncio.run(time_requests(target, *small, time.perf_counter() + 1))  # the first answers are slower
    print(f"{'':32s} answers  not 200   p50 ms   p99 ms   max ms   resident MB {target.megabytes('VmRSS')}")
    for large in (0, clients):
        for name, tallies in zip(("small", "/health", "5 MB"), asyncio.run(run_all(large)), strict=True):
            times = [seconds for tally in tallies for seconds in tally.first]
            errors = [error for tally in tallies for error in tally.errors]
            if times:
                columns = " ".join(f"{1000 * quantile(times, q):8.0f}" for q in (0.5, 0.99, 1))
                label = f"{name}, {large} clients with 5 MB"
                print(f"{label:32s} {len(times):7d} {len(errors):8d} {columns}", flush=True)
                for error in sorted(set(errors))[:3]:
                    print("   ", error[:200])
        time.sleep(2)
        print(f"resident {target.megabytes('VmRSS')} MB, at most {target.megabytes('VmHWM')} MB so far")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_ready(port: int, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Return when the server answers /health."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def start_heed(model: str) -> Target:
    port = free_port()
    command = [sys.executable, "-m", "heedful.cli", "serve", model, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_ready(port, process)
    name = Path(model).resolve().name.removesuffix(".gguf") if Path(model).exists() else model
    return Target("heed serve", port, name, process)


def save_float32(model: str, folder: str) -> str:
    """Write a copy in float32, without quantised layers, which both servers can load."""
    import torch

    import heedful
    from heedful.nn.quantised import Int8Embedding, Quantised
    from heedful.weights.loading import assemble

    given = heedful.load(model)
    plain = assemble(given.family, given.config).float()
    weights = dict(given.named_parameters())
    with torch.no_grad():
        for name, module in given.named_modules():
            if isinstance(module, Quantised):
                weights[f"{name}.weight"] = module.dequantise(torch.float32)
            elif isinstance(module, Int8Embedding):
                weights[f"{name}.weight"] = module(torch.arange(module.num_embeddings))
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    plain.tokenizer = given.tokenizer
    plain.hf_config = {key: value for key, value in given.hf_config.items() if key != "quantization"}
    heedful.save(plain, folder)
    return folder


def start_peer(model: str, how: str) -> Target:
    """`transformers serve`, as it is or with its continuous batching; the folder must be one it can load."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "transformers"), "serve", "--host", "127.0.0.1",
               "--port", str(port), *(["--continuous-batching"] if how == "batching" else [])]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    wait_ready(port, process)
    return Target(f"transformers {how}", port, str(Path(model).resolve()), process)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(BUNDLED))
    parser.add_argument("--streams", default="1,64", help="numbers of clients, each measured in turn")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--chat", action="store_true", help="ask for chat answers")
    parser.add_argument("--peer", choices=["plain", "batching"], help="measure transformers serve as well")
    parser.add_argument(
        "--large-texts", type=int, metavar="N", help="time small requests while N clients send 5 MB texts"
    )
    asked = parser.parse_args()
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            if asked.peer:
                asked.model = save_float32(asked.model, f"{folder}/model")
                targets.append(start_peer(asked.model, asked.peer))
            targets.insert(0, start_heed(asked.model))
            if asked.large_texts is not None:
                measure_large_texts(targets[0], asked.large_texts, asked.seconds)
                return
            measure(targets, [int(n) for n in asked.streams.split(",")], asked)
        finally:
            for target in targets:
                target.stop()


def measure(targets: list[Target], counts: list[int], asked: argparse.Namespace) -> None:
    """Print a row for every turn, then the median ratios."""
    alone: dict[str, dict[str, str]] = {target.name: {} for target in targets}
    rates: dict[tuple[str, int], list[float]] = {}
    for target in targets:  # every prompt once, one after the other: what a text is alone
        asyncio.run(run_clients(target, 1, 0, asked.max_tokens, asked.chat, {}))
        for prompt in PROMPTS:
            text = asyncio.run(stream_answer(target, prompt, asked.max_tokens, Tally(), asked.chat))
            alone[target.name][prompt] = text
    print(HEADING)
    for turn in range(asked.turns):
        for target in targets:
            for streams in counts:
                tally = asyncio.run(
                    run_clients(
                        target, streams, asked.seconds, asked.max_tokens, asked.chat, alone[target.name]
                    )
                )
                rates.setdefault((target.name, streams), []).append(tally.rate)
                print(tally.row(f"{target.name} {streams:3d} · {turn + 1}"), flush=True)
                for error in tally.errors[:3]:
                    print("   ", error[:200])
    base = rates[targets[0].name, counts[0]]
    for (name, streams), found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"{name} {streams}: {ratio:.2f} × {targets[0].name} {counts[0]}")


if __name__ == "__main__":
    main()
