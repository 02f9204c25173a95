"""The same windows in batches on an accelerator, in PyTorch (on a processor kernels.py is faster).

A step sums the gradient of definition.window_loss over a batch of windows. Where many windows of a batch
share a row (the root of the tree, a frequent word) that sum can overshoot, so a row's step is divided by
η·d where that exceeds one,

    d = Σ σ'(x) |other vector|²     the trace of the row's Gauss-Newton matrix, not less than its curvature,

and is plain gradient descent everywhere else. On CUDA the step is recorded once as a graph and replayed:
the batch it works on is found by a counter that lives on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from heedful.core.devices import capture_graph
from heedful.word2vec.corpus import EncodedCorpus, job_seed
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.word_counts import TWO_32, WordCounts, alias_table

if TYPE_CHECKING:
    from heedful.word2vec.trainer import Tables, TrainingState

BATCH_WINDOWS = 1024  # in one step; a smaller vocabulary, whose rows would meet too often, takes one per word


class WindowTensors(NamedTuple):
    """All windows of a stretch of text: contexts and outputs with a sign, zero where there is none."""

    contexts: Tensor  # (N, C) rows of the input table
    present: Tensor  # (N, C) 1 or 0
    outputs: Tensor  # (N, M) rows of the output table
    signs: Tensor  # (N, M) +1, -1, or 0


class WindowSampler:
    """Subsampling, reaches and noise words for a whole stretch of text at once."""

    def __init__(self, counts: WordCounts, settings: Settings, tables: Tables, device: torch.device) -> None:
        self.settings, self.device = settings, device
        to_device = lambda array, dtype: torch.from_numpy(array.astype(dtype)).to(device)
        limits = counts.keep_limits(settings.subsample_threshold(len(counts)))
        self.keep = to_device((limits.astype(np.float64) + 1) / TWO_32, np.float32)
        self.generator = torch.Generator(device)
        if tables.tree is not None:
            nodes, turns = tables.tree.padded()
            self.nodes, self.turns = to_device(nodes, np.int64), to_device(turns, np.float32)
        else:
            noise = alias_table(counts.noise_distribution(settings.noise_exponent))
            self.limit = to_device(noise[:, 0] / TWO_32, np.float32)
            self.alias = to_device(noise[:, 1], np.int64)

    def draw_windows(self, ids: np.ndarray, seed: int) -> WindowTensors:
        """Lay out every window of `ids`; those without context are left out."""
        self.generator.manual_seed(seed)
        words = torch.from_numpy(ids).to(self.device).long()
        ends = words < 0
        keep = ~ends & (self._uniform(len(words)) < self.keep[words.clamp(min=0)])
        sentence, words = ends.cumsum(0)[keep], words[keep]
        contexts, present = self._contexts(words, sentence)
        outputs, signs = self._outputs(words)
        used = present.any(dim=1)
        return WindowTensors(contexts[used], present[used].float(), outputs[used], signs[used])

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def _contexts(self, words: Tensor, sentence: Tensor) -> tuple[Tensor, Tensor]:
        size, reach = len(words), self.settings.window
        offsets = torch.tensor([o for o in range(-reach, reach + 1) if o], device=self.device)
        positions = torch.arange(size, device=self.device)[:, None] + offsets  # (N, C)
        inside = (positions >= 0) & (positions < size)
        positions = positions.clamp(0, max(size - 1, 0))
        present = inside & (sentence[positions] == sentence[:, None])
        if self.settings.dynamic:
            drawn = 1 + (self._uniform(size, 1) * reach).long().clamp(max=reach - 1)
            present &= offsets.abs() <= drawn
        return words[positions], present

    def _outputs(self, words: Tensor) -> tuple[Tensor, Tensor]:
        if self.settings.hierarchical:
            return self.nodes[words], self.turns[words]
        shape = (len(words), self.settings.negatives)
        column = (self._uniform(*shape) * len(self.limit)).long().clamp(max=len(self.limit) - 1)
        noise = torch.where(self._uniform(*shape) < self.limit[column], column, self.alias[column])
        signs = torch.where(noise == words[:, None], 0.0, -1.0)
        return torch.cat([words[:, None], noise], 1), torch.cat([torch.ones_like(signs[:, :1]), signs], 1)


class DeviceTables:
    """Both tables on the device, and one step on a batch of windows."""

    def __init__(self, tables: Tables, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self.v = torch.from_numpy(tables.input.copy()).to(device)
        self.u = torch.from_numpy(tables.output.copy()).to(device)
        self.curvature_v, self.curvature_u = (torch.zeros(len(t), device=device) for t in (self.v, self.u))
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def step(self, contexts: Tensor, present: Tensor, outputs: Tensor, signs: Tensor, rate: Tensor) -> None:
        """Train on one batch; `self.loss` grows by its loss before the step."""
        rows = self.v[contexts] * present[:, :, None]  # (B, C, D)
        weight = present
        if self.settings.mode == "cbow":
            share = 1 / present.sum(1, keepdim=True).clamp(min=1) if self.settings.cbow == "mean" else 1.0
            weight = present * share  # (B, C)
            used = torch.ones_like(present[:, :1])
            h = (rows * weight[:, :, None]).sum(1, keepdim=True)  # (B, 1, D)
        else:
            h, used = rows, present
        u = self.u[outputs]  # (B, M, D)
        mask = used[:, :, None] * signs.abs()[:, None, :]
        x = torch.bmm(h, u.transpose(1, 2)) * signs[:, None, :]  # (B, C, M)
        self.loss += (softplus(-x) * mask).sum(dtype=torch.float64)
        p = torch.sigmoid(-x) * mask
        g, curve = p * signs[:, None, :], p * (1 - p)
        dh, curve_h = torch.bmm(g, u), torch.bmm(curve, u.square().sum(2, keepdim=True))[:, :, 0]
        du, curve_u = torch.bmm(g.transpose(1, 2), h), torch.einsum("bcm,bc->bm", curve, h.square().sum(2))
        if self.settings.mode == "cbow":
            dh, curve_h = dh * weight[:, :, None], curve_h * weight.square()  # the chain rule of the mean
        self._move_rows(self.v, self.curvature_v, contexts, dh, curve_h, rate)
        self._move_rows(self.u, self.curvature_u, outputs, du, curve_u, rate)

    @staticmethod
    def _move_rows(
        table: Tensor, curvature: Tensor, rows: Tensor, gradient: Tensor, curve: Tensor, rate: Tensor
    ) -> None:
        """table[rows] += η gradient / max(1, η d), d summed over all that share the row."""
        flat = rows.reshape(-1)
        curvature.zero_()
        curvature.index_add_(0, flat, curve.reshape(-1))
        scale = rate / (rate * curvature[flat]).clamp(min=1.0)
        table.index_add_(0, flat, gradient.reshape(len(flat), -1) * scale[:, None])


class BatchRunner:
    """Windows in buffers that stay at one address, trained on batch by batch; on CUDA by a recorded graph."""

    def __init__(self, tables: DeviceTables, like: WindowTensors, capacity: int, batch: int) -> None:
        self.tables, self.batch, device = tables, batch, like.contexts.device
        steps = -(-capacity // batch)
        self.buffers = [tensor.new_zeros(steps * batch, tensor.shape[1]) for tensor in like]
        self.rates = torch.zeros(steps, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)  # not 0-d: indexing with that waits for it
        self.span = torch.arange(batch, device=device)
        self.advance = self._record() if device.type == "cuda" else self._step

    def _step(self) -> None:
        rows = self.at * self.batch + self.span
        contexts, present, outputs, signs = (buffer[rows] for buffer in self.buffers)
        self.tables.step(contexts, present, outputs, signs, self.rates[self.at])
        self.at.add_(1)

    def _record(self) -> Callable[[], None]:
        """Record one step as a graph; the buffers are still empty, so that recording moves no vector."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()  # a graph must not be the first to call the matrix library
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with capture_graph(graph):
            self._step()
        return graph.replay

    def train(self, windows: WindowTensors, rates: tuple[float, float]) -> int:
        """Train on all windows, the rate falling from first to last; return the number of examples."""
        count = len(windows.contexts)
        steps = -(-count // self.batch)
        for buffer, tensor in zip(self.buffers, windows):
            buffer[:count] = tensor
            buffer[count : steps * self.batch] = 0  # empty windows fill the last batch: no context, no output
        self.rates[:steps] = torch.linspace(*rates, steps, device=self.rates.device)
        self.at.zero_()
        for _ in range(steps):
            self.advance()
        return count if self.tables.settings.mode == "cbow" else int(windows.present.sum())


class GpuTrainer:
    """Training on a device, as cpu.CpuTrainer, with groups of jobs as the unit counted and resumed."""

    adaptive, jobs_per_report = False, 200  # the windows of so many jobs are laid out together

    def __init__(
        self, tables: Tables, counts: WordCounts, settings: Settings, text: EncodedCorpus,
        device: torch.device, batch: int | None = None,
    ) -> None:  # fmt: skip
        self.tables, self.settings, self.text = tables, settings, text
        self.batch = min(BATCH_WINDOWS, len(counts)) if batch is None else batch
        self.sampler = WindowSampler(counts, settings, tables, device)
        self.on_device = DeviceTables(tables, settings, device)
        self.runner: BatchRunner | None = None

    def train_jobs(self, state: TrainingState, stop: int) -> None:
        """Train on the jobs from state.job up to `stop` as one group; its loss stands at its first job."""
        settings, text, start = self.settings, self.text, state.job
        ids = np.concatenate([text.job(job) for job in range(start, stop)])
        windows = self.sampler.draw_windows(ids, job_seed(settings.seed, state.epoch, start) >> 1)
        if self.runner is None:
            ends = np.minimum(np.arange(len(text)) + self.jobs_per_report, len(text))
            capacity = int((text.starts[ends] - text.starts[:-1]).max())
            self.runner = BatchRunner(self.on_device, windows, capacity, self.batch)
        rate = lambda job: settings.rate_at(text.progress(state.epoch, job, settings.epochs))
        self.on_device.loss.zero_()
        state.examples[start] = self.runner.train(windows, (rate(start), rate(stop)))
        state.losses[start], state.job = self.on_device.loss.item(), stop
        self.tables.input[:] = self.on_device.v.cpu().numpy()
        self.tables.output[:] = self.on_device.u.cpu().numpy()
