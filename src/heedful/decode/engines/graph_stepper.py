"""The stepper for every family on a GPU: a step of the model's own parts over static state, recorded once.

    embed → blocks → head, as one CUDA graph for a number of rows and a capacity

Every part of the model is recorded as it is, except for parts that have a row in the table of
step_parts.py and take their step by kernels. Short prompts are recorded too: the host takes ten times as long
to launch a pass over one as the device takes to run it. Longer ones, and those of layers that remember more
than keys, are read by the plain pass and copied into the static state. Steps, a few tokens at once
(speculation), beams and rows that end are done there. On a CPU the same step runs without a graph, as the
definition of what is recorded.

What was recorded of a model outlives the call it was recorded in: the next call takes it over. A recording
belongs to one stepper at a time. When that stepper is gone, it waits in the `ModelRecordings` of its model,
the one place that remembers anything of earlier calls. They go when the model goes.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from heedful.core.devices import capture_graph
from heedful.core.errors import InputError
from heedful.decode.engines.fallback import FastStepper, find_recording_obstacle, model_fingerprint
from heedful.decode.engines.static_state import StaticState
from heedful.decode.engines.step_fusion import FusedOperators
from heedful.decode.engines.step_operators import Definitions
from heedful.decode.engines.step_parts import compute_by_operators
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import MAX_BURST, erasable
from heedful.models.base import LM, Model, Seq2Seq, State, evaluation_mode
from heedful.nn.context import Watch
from heedful.nn.position import Rotary
from heedful.nn.state import SlidingKV, state_leaves

HAS_TRITON = importlib.util.find_spec("triton") is not None
MIN_CAPACITY, MIN_MEMORY = 64, 16
CAPACITY_STEP = 1024  # beyond it, capacities are multiples of this; below, powers of two
MAX_TOKENS_RECORDED = 16  # tokens at once that are recorded, if they come often
COMPILE_MODE = "max-autotune-no-cudagraphs"
USES_BEFORE_RECORDING = 3  # of a number of tokens at once
MAX_CHOICES = 8  # ways of choosing a token that stay recorded
MIN_PROMPT, MAX_PROMPT_TOKENS = 16, 512  # tokens of a recorded prompt, and of all rows together
MAX_IDLE = 4  # recordings that wait for a model
MAX_IDLE_BYTES = 4 * 2**30  # and what their buffers take at most


def rounded_capacity(need: int, minimum: int = MIN_CAPACITY) -> int:
    """Return a size of which there are few: a power of two, then multiples of CAPACITY_STEP."""
    need = max(need, minimum)
    return -(-need // CAPACITY_STEP) * CAPACITY_STEP if need > CAPACITY_STEP else 1 << (need - 1).bit_length()


class Recording:
    """A static state and the graphs of steps over it. It holds nothing of the model but addresses."""

    def __init__(
        self, key: object, static: StaticState, kernels: bool = True, compiled: bool = False
    ) -> None:
        self.key, self.static = key, static
        self.step = torch.compile(static.step, mode=COMPILE_MODE) if compiled else static.step
        device, rows = static.past.device, static.rows
        self.tokens: dict[int, Tensor] = {}  # what is read, by the number of tokens at once
        self.logits: dict[int, Tensor] = {}  # what comes out
        self.prompt_logits: dict[int, Tensor] = {}  # of the next token, by the size of a prompt
        self.replays: dict[object, Callable[[], None]] = {}  # of steps, prompts and choices
        self.choices: list[object] = []  # ways of choosing a token that are recorded, the oldest first
        self.operators: FusedOperators | None = None
        if device.type == "cuda" and HAS_TRITON and kernels and not compiled:
            from heedful.kernels.gpu.step import Kernels

            self.operators = FusedOperators(Kernels())
        self.operator_error: str | None = None  # why the step is recorded without them
        self.reads_prompts = erasable(static.parts) == math.inf and not compiled
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # of prompts
        self.written = torch.zeros(rows, MAX_BURST, dtype=torch.long, device=device)
        self.uniforms = torch.zeros(rows, MAX_BURST, dtype=torch.float64, device=device)
        self.cursor = torch.zeros(rows, dtype=torch.long, device=device)  # the column of both that is next

    def buffer(self, count: int) -> Tensor:
        """Return the tensor from which a step reads the next `count` tokens of every row."""
        if count not in self.tokens:
            self.tokens[count] = torch.zeros(
                self.static.rows, count, dtype=torch.long, device=self.static.past.device
            )
        return self.tokens[count]

    def run(self, model: LM | Seq2Seq, count: int = 1) -> Tensor:
        """Take one step and return the logits (rows, count, V), a buffer that the next step overwrites."""
        self.recorded_step(model, count)()
        return self.logits[count]

    def recorded_step(self, model: LM | Seq2Seq, count: int) -> Callable[[], None]:
        """Return the call that takes one step of `count` tokens."""

        def launch() -> None:
            self.logits[count] = self.compute(model, lambda parts: self.step(parts, self.buffer(count)))

        return self.recorded(count, launch, lambda: [self.buffer(count), *self.static.changed_by_step()])

    def read(self, model: LM, prompt: Tensor, valid: Tensor | None, size: int) -> Tensor:
        """Read prompts (rows, T) of at most `size` tokens from their start; logits (rows, V) of the next."""
        tokens, length = self.buffer(size).zero_(), prompt.shape[1]
        if valid is None:
            self.lengths.fill_(length)
        else:  # the state counts each row's own tokens: padding comes last
            self.lengths.copy_(valid.sum(1))
            prompt = prompt.gather(1, (~valid).int().argsort(dim=1, stable=True))
        tokens[:, :length].copy_(prompt)
        self.static.active.fill_(1)

        def launch() -> None:
            read = lambda parts: self.static.read(parts, tokens, self.lengths)
            self.prompt_logits[size] = self.compute(model, read)

        self.recorded(("prompt", size), launch, list)()
        return self.prompt_logits[size].clone()

    def choose(self, settings: GenerationSettings) -> None:
        """Choose a token for every row from the last logits: it is written, and what the next step reads."""
        key = settings.drawing
        if key not in self.choices:
            self.choices.append(key)
            if len(self.choices) > MAX_CHOICES:
                self.replays.pop(self.choices.pop(0), None)

        def launch() -> None:
            plain = self.operators is None or (settings.typical is not None and settings.typical < 1)
            by = Definitions() if self.operators is None or plain else self.operators.base
            logits = self.logits[1][:, -1]
            by.choose(settings, logits, self.uniforms, self.written, self.buffer(1), self.cursor)

        self.recorded(key, launch, lambda: [self.buffer(1), self.cursor])()

    def compute(self, model: LM | Seq2Seq, function: Callable[[Any], Tensor]) -> Tensor:
        """Return function(model), in which parts compute as the table of step_parts.py says."""
        if self.operators is None:
            return function(model)
        return compute_by_operators(model, self.operators, function)

    def recorded(
        self, key: object, launch: Callable[[], None], changed: Callable[[], list[Tensor]]
    ) -> Callable[[], None]:
        """Return the call that replays what `launch` does, recorded once under a key; on a CPU `launch`.

        `changed` gives the tensors that it changes.
        """
        if self.cursor.device.type != "cuda":
            return launch
        if key not in self.replays:
            try:
                self.replays[key] = self.capture(launch, changed())
            except Exception as error:  # a kernel that this device or this model cannot have
                if self.operators is None:
                    raise
                self.operators, self.operator_error = None, f"{type(error).__name__}: {error}"
                self.replays[key] = self.capture(launch, changed())
        return self.replays[key]

    def capture(self, launch: Callable[[], None], changed: list[Tensor]) -> Callable[[], None]:
        """Launch once, to compile and allocate what it needs; put back what it changed; record it."""
        with torch.cuda.device(self.cursor.device):
            before = [t.clone() for t in changed]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(side):
                    launch()
            finally:
                torch.cuda.current_stream().wait_stream(side)
                for tensor, value in zip(changed, before, strict=True):
                    tensor.copy_(value)
            graph = torch.cuda.CUDAGraph()
            with capture_graph(graph, other_threads=True):
                launch()
        return graph.replay


# Of all recordings that wait. A stepper may go, and give its own back, while its thread holds the lock.
LOCK = threading.RLock()


class ModelRecordings:
    """The recordings of one model that no stepper has at the moment.

    `refused` is the fingerprint of the model when its step could not be recorded, and why.
    """

    def __init__(self) -> None:
        self.idle: list[Recording] = []
        self.refused: tuple[list[object], str] | None = None

    def take(self, key: object) -> Recording | None:
        """Take a recording that waits under this key; None if there is none."""
        with LOCK:
            idle = next((recording for recording in self.idle if recording.key == key), None)
            if idle is not None:
                self.idle.remove(idle)
            return idle

    def lend(self, recording: Recording, stepper: object) -> weakref.finalize[..., object]:
        """Let a stepper have a recording until it is gone, or what is returned is called."""
        back = weakref.finalize(stepper, self.store, recording)
        back.atexit = False
        return back

    def store(self, recording: Recording) -> None:
        """Let a recording wait; the oldest go when there are too many."""
        with LOCK:
            self.idle.append(recording)
            while len(self.idle) > MAX_IDLE or sum(r.static.nbytes for r in self.idle) > MAX_IDLE_BYTES:
                self.idle.pop(0)


RECORDINGS: weakref.WeakKeyDictionary[Model, ModelRecordings] = weakref.WeakKeyDictionary()


def recordings_of(model: Model) -> ModelRecordings:
    """Return the one object that remembers what was recorded of a model."""
    with LOCK:
        return RECORDINGS.setdefault(model, ModelRecordings())


class GraphStepper(FastStepper):
    """Steps as replays of one recorded step of the model's own parts.

    `fallback_reason` says why steps are plain; None if they are not. What somebody watches, or a state that
    somebody asks for, is computed plainly for that call and goes on from there. `kernels` lets parts use the
    operators of a step; `compiled` gives the step to torch.compile instead, which takes a minute. Keys and
    values are kept in `cache_dtype`: the model's own, or float8_e4m3fn with half of what many long rows read
    and three bits of precision.
    """

    def __init__(
        self, model: Model, *, kernels: bool = True, compiled: bool = False,
        cache_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self._state, self.is_static = State(None), False
        super().__init__(model)
        if cache_dtype not in (None, torch.float8_e4m3fn):
            raise InputError(
                f"`cache_dtype={cache_dtype}`: keys and values can be kept in torch.float8_e4m3fn alone",
                hint="or None: the type of the model",
            )
        self.kernels, self.compiled, self.cache_dtype = kernels, compiled, cache_dtype
        self.recordings = recordings_of(model)
        self.recording: Recording | None = None
        self.lease: weakref.finalize[..., object] | None = None
        self.rows = self.length = self.longest = 0
        self.steps_left = math.inf  # steps before a row must be read again (nn/position.py)
        self.uses: dict[int, int] = {}

    def find_reason(self) -> str | None:
        refused = recordings_of(self.model).refused
        if refused is not None and refused[0] == model_fingerprint(self.model):
            return refused[1]
        return find_recording_obstacle(self.model)

    @property
    def state(self) -> State:
        """The ordinary state; asked for while decoding, it shares the static state's memory."""
        if self.is_static:
            assert self.recording is not None
            self._state, self.is_static = self.recording.static.to_state(), False
            if self.rows < self.recording.static.rows:
                self._state.reorder(torch.arange(self.rows, device=self.model.device))
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state, self.is_static = state, False

    @property
    def past(self) -> int:
        return self._state.past

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        self.check_model()
        start = prompt.shape[1] if isinstance(self.model, LM) else 1
        self.length = min(length, start + CAPACITY_STEP)
        size = self.prompt_size(*prompt.shape)
        if size is None:
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        capacity = rounded_capacity(max(self.length, size))
        if not self.take(len(prompt), capacity, 0, None):  # the first of its kind: read it for the shapes
            logits = super().prefill(prompt, valid, length)
            taken = self.take(len(prompt), capacity, 0, self._state)
            if not taken or self.recording is None or not self.recording.reads_prompts:
                return logits
        assert self.recording is not None
        if self.recording.reads_prompts:
            self.model.check(prompt, self.model.embed, valid)
            try:
                with evaluation_mode(self.model):
                    logits = self.recording.read(self.model, prompt, valid, size)
                self.follow(self.recording, prompt.shape[1], valid)
                return logits
            except Exception:  # what the device or the model cannot record, the plain pass reads
                self.recording.reads_prompts = False
        return super().prefill(prompt, valid, length)

    def prompt_size(self, rows: int, length: int) -> int | None:
        """Return the size of the recorded pass that reads such prompts; None if it is the plain one's."""
        if self.fallback_reason is not None or not isinstance(self.model, LM) or not length:
            return None
        size, context = rounded_capacity(length, MIN_PROMPT), self.model.embed.context
        size = size if context is None else min(size, context)
        whole = length <= size and rows * size <= MAX_PROMPT_TOKENS
        # Keys that are kept in 8 bits are rounded after the prompt, which is read with the exact ones.
        return size if whole and self.cache_dtype is None and not self.compiled else None

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        if not self.can_step_fast(watch) or not self.prepare(len(tokens), 1):
            return super().step(tokens, watch)
        return self.run(tokens[:, None])[:, -1]

    @torch.no_grad()
    def extend(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        self.uses[count] = self.uses.get(count, 0) + 1
        often = self.uses[count] > USES_BEFORE_RECORDING or self.model.device.type != "cuda"
        windows = (leaf for leaf in state_leaves(self._state.parts) if isinstance(leaf, SlidingKV))
        few = count <= min([MAX_TOKENS_RECORDED, *(window.spare for window in windows)])
        if few and often and self.can_step_fast(None) and self.prepare(len(tokens), count):
            return self.run(tokens)
        return super().extend(tokens)

    @torch.no_grad()
    def step_ahead(
        self,
        tokens: Tensor,
        count: int,
        settings: GenerationSettings,
        uniforms: Tensor | None = None,
        ends: Collection[int] = (),
    ) -> Tensor:
        if not self.can_step_fast(None) or not self.prepare(len(tokens), count, ahead=True):
            return super().step_ahead(tokens, count, settings, uniforms, ends)
        assert self.recording is not None
        recording = self.recording
        recording.buffer(1)[: self.rows].copy_(tokens[:, None])
        recording.cursor.zero_()
        if uniforms is not None:
            recording.uniforms[: self.rows, :count].copy_(uniforms)
        with evaluation_mode(self.model):
            for _ in range(count):
                recording.run(self.model)
                recording.choose(settings)
        self.count(count)
        return recording.written[: self.rows, :count].clone()

    def run(self, tokens: Tensor) -> Tensor:
        """Read tokens (B, T) by a recorded step; logits (B, T, V)."""
        assert self.recording is not None
        self.recording.buffer(tokens.shape[1])[: self.rows].copy_(tokens)
        with evaluation_mode(self.model):
            logits = self.recording.run(self.model, tokens.shape[1])
        self.count(tokens.shape[1])
        return logits[: self.rows]

    def count(self, steps: int) -> None:
        """Count positions that were written on the device."""
        self._state.past += steps
        self.longest += steps
        self.steps_left -= steps

    def prepare(self, rows: int, count: int, ahead: bool = False) -> bool:
        """Have a recorded step over static state with room for `count` more; False if there is none.

        They are read at once or, `ahead`, one by one.
        """
        embed = self.model.embed if isinstance(self.model, LM) else self.model.decoder_embed
        at_once = 1 if ahead else count
        if self.is_static and rows == self.rows and self.steps_left >= count:
            assert self.recording is not None
            if self.longest + count <= self.recording.static.capacity:
                self.model.check_reach(self.longest + count, embed, None)
                return self.is_recorded(at_once)
            self.length = 2 * self.longest
        state = self.state
        if state.is_stale or state.changes_between(state.lengths(), state.lengths(count)):
            return False  # the ordinary step reads the text again
        end = state.past + count
        self.model.check_reach(end, embed, state.valid)
        memory = 0 if state.memory is None else rounded_capacity(state.memory.shape[1], MIN_MEMORY)
        capacity = rounded_capacity(max(self.length, end))
        return self.take(rows, capacity, memory, state) and self.is_recorded(at_once)

    def take(self, rows: int, capacity: int, memory: int, state: State | None) -> bool:
        """Have a recording of this size: the present one, one that waits, or a new one, shaped like `state`.

        The state is copied into it. The result is False if there is none and no state to make one of, or if
        a layer's state has no static form.
        """
        fingerprint, size = model_fingerprint(self.model), (rows, capacity, memory, self.cache_dtype)
        double = any(isinstance(item, tuple) and torch.float64 in item for item in fingerprint)
        kinds = (self.kernels and not double, self.compiled)  # kernels add in float32
        key, recording = (size, kinds, fingerprint), self.recording
        if recording is None or recording.key != key:
            recording = self.recordings.take(key)
        if recording is None and state is None:
            return False
        with torch.inference_mode(False), torch.no_grad():
            if recording is None:
                assert state is not None
                try:
                    static = StaticState(state, *size)
                except TypeError as reason:  # a state of another kind than ours
                    return self.refuse(str(reason))
                recording = Recording(key, static, *kinds)
                if any(isinstance(part, Rotary) and part.by_length for part in self.model.modules()):
                    recording.reads_prompts = False  # a prompt's angles follow its own length
            if state is not None:
                recording.static.write(state)
                self.follow(recording, state.past, state.valid, state)
        if recording is not self.recording:
            if self.lease is not None:
                self.lease()
            self.recording, self.lease = recording, None
            if not self.compiled:  # what is compiled holds the model
                self.lease = self.recordings.lend(recording, self)
        return True

    def follow(
        self, recording: Recording, past: int, valid: Tensor | None, state: State | None = None
    ) -> None:
        """Go on from the static state of a recording, which has read `past` positions."""
        again = () if state is None else state.reread_lengths
        self._state = State(recording.static.parts, past, reread_lengths=again)
        self.is_static, self.rows = True, recording.static.rows
        self.longest = past if valid is None else int(valid.sum(1).max())
        ahead = [n - length for n in again for length in recording.static.past.tolist() if length <= n]
        self.steps_left = min(ahead, default=math.inf)

    def is_recorded(self, count: int) -> bool:
        """Record the step unless it is; False if it cannot be, and the model is then stepped plainly."""
        assert self.recording is not None
        try:
            with evaluation_mode(self.model):
                self.recording.recorded_step(self.model, count)
        except Exception as error:
            return self.refuse(f"its step cannot be recorded: {str(error).splitlines()[0]}")
        return True

    def refuse(self, reason: str) -> bool:
        """Step plainly from now on, until the model is another."""
        self.fallback_reason = reason
        self.recordings.refused = (model_fingerprint(self.model), reason)
        return False

    def reorder(self, index: Tensor) -> None:
        if not self.is_static or len(index) > self.rows:
            return self.state.reorder(index)
        assert self.recording is not None
        static, self.rows = self.recording.static, len(index)
        rest = torch.arange(len(index), static.rows, device=index.device)
        static.reorder(torch.cat((index, rest)))
        static.past[len(index) :] = 0
        static.active[len(index) :] = 0
        if len(rest):
            self.longest = int(static.past.max())  # the longest row may have left
        return None

    def crops(self, count: int) -> bool:
        return count <= erasable(self._state.parts)

    def crop(self, length: int) -> None:
        newest = self.past - length
        if not self.is_static or newest > erasable(self._state.parts) or self._state.reread_lengths:
            self.state.crop(length)
        elif newest > 0:
            assert self.recording is not None
            self.recording.static.past.sub_(self.recording.static.active, alpha=newest)
            self.count(-newest)
