"""What the server counts, and its text for Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

PREFIX = "heedful_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass
class Counter:
    """A number that only grows, one for each set of labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if not self.labels:
            self.values[()] = 0

    def add(self, amount: float = 1, *labels: str) -> None:
        with self.lock:
            self.values[labels] = self.values.get(labels, 0) + amount

    def lines(self) -> Iterable[str]:
        yield from heading(self.name, self.help, "counter")
        for labels, value in sorted(self.values.copy().items()):
            yield sample(self.name, value, zip(self.labels, labels, strict=True))


@dataclass
class Gauge:
    """A number that is asked for when somebody looks."""

    name: str
    help: str
    read: Callable[[], float] = lambda: 0.0

    def lines(self) -> Iterable[str]:
        yield from heading(self.name, self.help, "gauge")
        yield sample(self.name, self.read())


@dataclass
class Histogram:
    """Counts of the durations below each of SECONDS."""

    name: str
    help: str
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration. Only the engine's thread does."""
        self.counts[bisect.bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self) -> Iterable[str]:
        yield from heading(self.name, self.help, "histogram")
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts.copy(), strict=True):
            below += count
            yield sample(f"{self.name}_bucket", below, [("le", bound)])
        yield sample(f"{self.name}_sum", self.total)
        yield sample(f"{self.name}_count", below)


def heading(name: str, help: str, kind: str) -> Iterable[str]:
    yield f"# HELP {PREFIX}{name} {help}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def sample(name: str, value: float, labels: Iterable[tuple[str, str]] = ()) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{PREFIX}{name}{f'{{{inside}}}' if inside else ''} {value:g}"


class Metrics:
    """The counters and histograms of a server, under vLLM's names."""

    def __init__(self) -> None:
        self.running = Gauge("requests_running", "Requests that are being answered.")
        self.waiting = Gauge("requests_waiting", "Requests in the queue.")
        self.cache_usage = Gauge("kv_cache_usage_ratio", "Memory for texts in use, between 0 and 1.")
        labels = ("endpoint", "status", "finish_reason")
        self.requests = Counter("requests_total", "Requests that were answered.", labels)
        self.prompt_tokens = Counter("prompt_tokens_total", "Tokens of prompts that were read.")
        self.generation_tokens = Counter("generation_tokens_total", "Tokens that were generated.")
        self.aborted = Counter("aborted_total", "Requests whose client left, or whose time was up.")
        self.first_token = Histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self.between_tokens = Histogram("inter_token_latency_seconds", "Between two tokens of a request.")
        self.latency = Histogram("e2e_request_latency_seconds", "From arrival to the end of an answer.")
        self.queue_time = Histogram("queue_time_seconds", "From arrival to the beginning of the work.")

    def count_token(self, submit_time: float, last: float | None) -> float:
        """Count a token of a request; return its time, for the next."""
        now = time.perf_counter()
        self.generation_tokens.values[()] += 1  # only the engine's thread counts tokens
        if last is None:
            self.first_token.observe(now - submit_time)
        else:
            self.between_tokens.observe(now - last)
        return now

    def text(self) -> str:
        return "\n".join(line for metric in vars(self).values() for line in metric.lines()) + "\n"
