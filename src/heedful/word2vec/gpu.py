"""The same windows in batches on an accelerator, in PyTorch (on a processor kernels.py is faster).

A step sums the gradient of definition.window_loss over a batch of windows. Where many windows of a batch
share a row (the root of the tree, a frequent word) that sum can overshoot, so a row's step is divided by
η·d where that exceeds one,

    d = Σ σ'(x) |other vector|²     the trace of the row's Gauss-Newton matrix, not less than its curvature,

and is plain gradient descent everywhere else. On CUDA the step is recorded once as a graph and replayed:
the batch it works on is found by a counter that lives on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from heedful.errors import ConfigError
from heedful.word2vec.encoding import Encoded
from heedful.word2vec.settings import Settings
from heedful.word2vec.training import Cursor, Progress, Tables, job_seed
from heedful.word2vec.vocabulary import Vocabulary, alias_table

GROUP = 200  # jobs whose windows are laid out together
BATCH = 1024  # windows in one step


@dataclass
class Windows:
    """All windows of a stretch of text: contexts and outputs with a sign, zero where there is none."""

    contexts: Tensor  # (N, C) rows of the input table
    present: Tensor  # (N, C) 1 or 0
    outputs: Tensor  # (N, M) rows of the output table
    signs: Tensor  # (N, M) +1, -1, or 0

    def __len__(self) -> int:
        return len(self.contexts)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.contexts, self.present, self.outputs, self.signs


class Sampler:
    """Subsampling, reaches and noise words for a whole stretch at once; its random stream is the job's."""

    def __init__(
        self, vocabulary: Vocabulary, settings: Settings, tables: Tables, device: torch.device
    ) -> None:
        self.settings, self.device = settings, device
        on = lambda array, kind: torch.from_numpy(array.astype(kind)).to(device)
        keep = vocabulary.keep(settings.threshold(len(vocabulary)))
        self.keep = on((keep.astype(np.float64) + 1) / 2**32, np.float32)
        self.generator = torch.Generator(device)
        if tables.paths is not None:
            nodes, turns = tables.paths.padded()
            self.nodes, self.turns = on(nodes, np.int64), on(turns, np.float32)
        else:
            table = alias_table(vocabulary.noise(settings.noise_exponent)).reshape(-1, 2)
            self.share, self.alias = on(table[:, 0] / 2**32, np.float32), on(table[:, 1], np.int64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def windows(self, ids: np.ndarray, seed: int) -> Windows:
        """Lay out every window of `ids`; those without context are left out."""
        self.generator.manual_seed(seed)
        words = torch.from_numpy(ids).to(self.device).long()
        ends = words < 0
        kept = ~ends & (self.uniform(len(words)) < self.keep[words.clamp(min=0)])
        sentence, words = ends.cumsum(0)[kept], words[kept]
        contexts, present = self.contexts(words, sentence)
        outputs, signs = self.outputs(words)
        some = present.any(dim=1)
        return Windows(contexts[some], present[some].float(), outputs[some], signs[some])

    def contexts(self, words: Tensor, sentence: Tensor) -> tuple[Tensor, Tensor]:
        size, reach = len(words), self.settings.window
        offsets = torch.tensor([o for o in range(-reach, reach + 1) if o], device=self.device)
        place = torch.arange(size, device=self.device)[:, None] + offsets  # (N, C)
        inside = (place >= 0) & (place < size)
        place = place.clamp(0, max(size - 1, 0))
        present = inside & (sentence[place] == sentence[:, None])
        if self.settings.dynamic:
            drawn = 1 + (self.uniform(size, 1) * reach).long().clamp(max=reach - 1)
            present &= offsets.abs() <= drawn
        return words[place], present

    def outputs(self, words: Tensor) -> tuple[Tensor, Tensor]:
        if self.settings.hierarchical:
            return self.nodes[words], self.turns[words]
        shape = (len(words), self.settings.negatives)
        column = (self.uniform(*shape) * len(self.share)).long().clamp(max=len(self.share) - 1)
        noise = torch.where(self.uniform(*shape) < self.share[column], column, self.alias[column])
        signs = torch.where(noise == words[:, None], 0.0, -1.0)
        return torch.cat([words[:, None], noise], 1), torch.cat([torch.ones_like(signs[:, :1]), signs], 1)


class Stepper:
    """Both tables on the device and one step on a batch of windows."""

    def __init__(self, tables: Tables, settings: Settings, device: torch.device) -> None:
        self.settings, self.tables = settings, tables
        self.v = torch.from_numpy(tables.input[:, : settings.dim].copy()).to(device)
        self.u = torch.from_numpy(tables.output[:, : settings.dim].copy()).to(device)
        self.curve_v, self.curve_u = (torch.zeros(len(t), device=device) for t in (self.v, self.u))
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def copy_back(self) -> None:
        """The tables in main memory become those on the device."""
        self.tables.input[:, : self.settings.dim] = self.v.cpu().numpy()
        self.tables.output[:, : self.settings.dim] = self.u.cpu().numpy()

    def step(self, contexts: Tensor, present: Tensor, outputs: Tensor, signs: Tensor, rate: Tensor) -> None:
        """One batch; `self.loss` grows by its loss before the step."""
        rows = self.v[contexts] * present[:, :, None]  # (B, C, D)
        weight = present
        if self.settings.mode == "cbow":
            share = 1 / present.sum(1, keepdim=True).clamp(min=1) if self.settings.cbow == "mean" else 1.0
            weight = present * share  # (B, C)
            seen = torch.ones_like(present[:, :1])
            h = (rows * weight[:, :, None]).sum(1, keepdim=True)  # (B, 1, D)
        else:
            h, seen = rows, present
        u = self.u[outputs]  # (B, M, D)
        mask = seen[:, :, None] * signs.abs()[:, None, :]
        x = torch.bmm(h, u.transpose(1, 2)) * signs[:, None, :]  # (B, C, M)
        self.loss += (softplus(-x) * mask).sum(dtype=torch.float64)
        p = torch.sigmoid(-x) * mask
        g, curve = p * signs[:, None, :], p * (1 - p)
        dh, curve_h = torch.bmm(g, u), torch.bmm(curve, u.square().sum(2, keepdim=True))[:, :, 0]
        du, curve_u = torch.bmm(g.transpose(1, 2), h), torch.einsum("bcm,bc->bm", curve, h.square().sum(2))
        if self.settings.mode == "cbow":
            dh, curve_h = dh * weight[:, :, None], curve_h * weight.square()  # the chain rule of the mean
        self.move(self.v, self.curve_v, contexts, dh, curve_h, rate)
        self.move(self.u, self.curve_u, outputs, du, curve_u, rate)

    @staticmethod
    def move(
        table: Tensor, curvature: Tensor, rows: Tensor, gradient: Tensor, curve: Tensor, rate: Tensor
    ) -> None:
        """table[rows] += η gradient / max(1, η d), d summed over all that share the row."""
        flat = rows.reshape(-1)
        curvature.zero_()
        curvature.index_add_(0, flat, curve.reshape(-1))
        scale = rate / (rate * curvature[flat]).clamp(min=1.0)
        table.index_add_(0, flat, gradient.reshape(len(flat), -1) * scale[:, None])


class Batches:
    """Windows in buffers that stay in place, taken batch by batch; on CUDA by a recorded graph."""

    def __init__(self, stepper: Stepper, like: Windows, capacity: int, batch: int) -> None:
        self.stepper, self.batch, device = stepper, batch, like.contexts.device
        steps = -(-capacity // batch)
        self.buffers = [tensor.new_zeros(steps * batch, tensor.shape[1]) for tensor in like.tensors()]
        self.rates = torch.zeros(steps, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)  # not 0-d: indexing with that waits for it
        self.span = torch.arange(batch, device=device)
        self.advance = self.record() if device.type == "cuda" else self.one

    def one(self) -> None:
        """The next batch."""
        rows = self.at * self.batch + self.span
        contexts, present, outputs, signs = (buffer[rows] for buffer in self.buffers)
        self.stepper.step(contexts, present, outputs, signs, self.rates[self.at])
        self.at.add_(1)

    def record(self) -> Callable[[], None]:
        """The buffers are empty yet, so that recording moves no vector."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.one()  # a graph must not be the first to call the matrix library
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.one()
        return graph.replay

    def train(self, windows: Windows, rates: tuple[float, float]) -> int:
        """All windows, the rate falling from the first to the last; returns the number of examples."""
        count = len(windows)
        steps = -(-count // self.batch)
        for buffer, tensor in zip(self.buffers, windows.tensors()):
            buffer[:count] = tensor
            buffer[count : steps * self.batch] = 0  # empty windows fill the last batch: no context, no output
        self.rates[:steps] = torch.linspace(*rates, steps, device=self.rates.device)
        self.at.zero_()
        for _ in range(steps):
            self.advance()
        return count if self.stepper.settings.mode == "cbow" else int(windows.present.sum())


def run(
    tables: Tables,
    vocabulary: Vocabulary,
    settings: Settings,
    encoded: Encoded,
    cursor: Cursor,
    device: str,
    batch: int = BATCH,
    group: int = GROUP,
) -> Iterator[Progress]:
    """Train `tables` on `device`; as training.run, with groups of jobs as the unit counted and resumed."""
    place = find_device(device)
    sampler, stepper = Sampler(vocabulary, settings, tables, place), Stepper(tables, settings, place)
    batches: Batches | None = None
    ends = np.minimum(np.arange(len(encoded)) + group, len(encoded))
    most = int((encoded.starts[ends] - encoded.starts[:-1]).max())
    total, jobs = settings.epochs * encoded.words, len(encoded)
    while cursor.epoch < settings.epochs:
        if len(cursor.losses) != jobs:
            cursor.losses, cursor.examples = np.zeros(jobs), np.zeros(jobs, dtype=np.int64)
        began, start, stop = time.perf_counter(), cursor.job, min(jobs, cursor.job + group)
        ids = np.concatenate([encoded.job(job) for job in range(start, stop)])
        windows = sampler.windows(ids, job_seed(settings.seed, cursor.epoch, start) >> 1)
        words = [cursor.epoch * encoded.words + int(encoded.read[job]) for job in (start, stop)]
        rates = (settings.rate_at(words[0] / total), settings.rate_at(words[1] / total))
        stepper.loss.zero_()
        if batches is None:
            batches = Batches(stepper, windows, most, batch)
        cursor.examples[start] = batches.train(windows, rates)
        cursor.losses[start], cursor.job = stepper.loss.item(), stop
        took = time.perf_counter() - began
        speed = (words[1] - words[0]) / took
        report = Progress(cursor.epoch, words[1], total, speed, cursor.mean(), rates[1], stop == jobs)
        stepper.copy_back()
        if report.finished:
            cursor.finish()
        yield report


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is not known; use 'cpu', 'cuda' or 'cuda:1'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} asks for CUDA and torch finds none; use device='cpu'")
    return device
