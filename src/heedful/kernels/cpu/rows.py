"""One step of a decoder on a CPU, as a short list of instructions over rows of memory.

With one token at a time every weight is read once and used once: a step can be as fast as memory is read, if
nothing else costs anything. So it is one call, the weights stay where they are, and the threads share rows.
With many rows every weight is read once for all of them. Each row stands at its own position and has its
own cache; what is computed for it depends on nothing else, to the bit, unless there are MANY:

    EMBED    x = scale · table[token] + position          NORM     y = γ (x − mean) / √(var + ε) + β, or RMS
    ROUND    x as products read it: in whole numbers      LINEAR   y = act(W x + b), or added, or multiplied
    TURN     rotary q and k; k and v go to the cache      ATTEND   y = softmax(q kᵀ · scale + bias) v by heads

The definition is the model itself: `decode/engines/numba_program.py` writes the list from its parts, and a
test compares. `kernels/cpu/team.py` runs it.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from heedful.kernels.cpu.block_tensor import STRIPE
from heedful.kernels.cpu.blocks import GROUP as BLOCK_GROUP
from heedful.kernels.cpu.blocks import RECORD, call_kernel, round_group
from heedful.kernels.cpu.numba_intrinsics import (
    Array,
    Float,
    Int,
    bytes_at,
    compile_cached,
    compile_inline,
    floats_at,
    nibbles_at,
    shorts_at,
    truncate,
)  # fmt: skip

EMBED, NORM, ROUND, LINEAR, TURN, ATTEND = range(6)
# Fields of an instruction. Addresses are of memory; places are offsets into a row of the workspace.
OP, CHUNKS, TO, FROM, IN, OUT, WEIGHT, BIAS, SCALE, KIND, MODE, ACT, GROUP, HEAD = range(14)
# KERNEL and SEVERAL: addresses of code that reads rows, for one vector and for several. STRIPES: of code that
# reads stripes, or rows as stripes, for any number of vectors.
# ROW_BYTES and ROW_BLOCKS are of a row, or of a stripe and of one of its rows.
JOINED, KERNEL, ROW_BYTES, ROW_BLOCKS, STRIPES, SEVERAL = range(14, 20)
Q, KEY, VALUE, HEADS, KV_HEADS, SIZE, LAYER, WINDOW, SLOPES, COS, SIN, TURNED = range(3, 15)
FIELDS = 20  # JOINED: how many products, from this one on, are shared out together
FLOAT32, INT8, INT4, FLOAT16, BLOCKS = range(5)  # KIND of a matrix
SET, ADD, TIMES = range(3)  # MODE of a product
NONE, RELU, GELU, GELU_TANH, SILU, TANH, SQUARED_RELU = range(7)  # ACT of a product
# Fields of `now`: only the first ASKED rows need logits, the HEAD's output. ROUND puts rows to ROUNDED, each
# of ROUNDED_BYTES.
ROWS, STRIDE, WORK, ROUNDED, ROUNDED_BYTES, ASKED, LOGITS = range(7)
MIN_MANY = 4  # rows from which on it pays to copy rows of weights to stripes
MANY_VECTORS = 16  # for which an instruction has fewer, longer pieces
SEVERAL_VECTORS = 4  # that code for several takes
TOKEN, PAST, FIRST = range(3)  # of a row: what it reads, positions before it, the first that is not padding
KEYS, VALUES, ROOM = range(3)  # of a row's cache in a layer: two addresses, and how many positions fit

Code = Array  # int64 (n, FIELDS)
Reals = Array  # float32 (n,): ε, or the scale of scores or embeddings
Now = Array  # int64 (7,)
Rows = Array  # int64 (B, 3)
Caches = Array  # int64 (layers, B, 3)


@compile_cached
def embed_row(line: Code, scale: Float, now: Now, row: Int, token: Int, position: Int) -> None:
    """x = scale · table[token] (+ positions[position]); a table of int8 has one scale per row."""
    size, place = line[IN], now[WORK] + 4 * (row * now[STRIDE] + line[TO])
    y = carray(floats_at(place), (size,))
    if line[KIND] >= FLOAT16:
        side = STRIPE if line[KIND] == BLOCKS else 1
        values, stored = np.empty(side * size, np.float32), line[WEIGHT] + token // side * line[ROW_BYTES]
        call_kernel(line[KERNEL], (stored, 1, line[ROW_BLOCKS], values.ctypes.data))
        for i in range(size):
            y[i] = scale * values[token % side * size + i]
    elif line[KIND] == INT8:
        small = carray(bytes_at(line[WEIGHT] + token * size), (size,))
        gain = scale * carray(floats_at(line[SCALE] + 4 * token), (1,))[0]
        for i in range(size):
            y[i] = gain * np.float32(small[i])
    else:
        table = carray(floats_at(line[WEIGHT] + 4 * token * size), (size,))
        for i in range(size):
            y[i] = scale * table[i]
    if line[BIAS]:
        where = carray(floats_at(line[BIAS] + 4 * position * size), (size,))
        for i in range(size):
            y[i] += where[i]


@compile_cached
def norm_row(line: Code, eps: Float, now: Now, row: Int) -> None:
    """KIND 0: γ (x − mean) / √(var + ε) + β;  1: γ x / √(mean x² + ε)"""
    size, base = line[IN], now[WORK] + 4 * row * now[STRIDE]
    x, y = carray(floats_at(base + 4 * line[FROM]), (size,)), carray(floats_at(base + 4 * line[TO]), (size,))
    mean, square = np.float32(0.0), np.float32(0.0)
    if line[KIND] == 0:
        for i in range(size):
            mean += x[i]
        mean /= np.float32(size)
    for i in range(size):
        square += (x[i] - mean) * (x[i] - mean)
    gain = np.float32(1.0) / np.sqrt(square / np.float32(size) + eps)
    weight = carray(floats_at(line[WEIGHT]), (size,))
    for i in range(size):
        y[i] = weight[i] * ((x[i] - mean) * gain)
    if line[BIAS]:
        bias = carray(floats_at(line[BIAS]), (size,))
        for i in range(size):
            y[i] += bias[i]


@compile_cached
def round_row(line: Code, now: Now, row: Int) -> None:
    """Round x to 16 bits, with a gain for each group.

    Kernels read records (`blocks.py:round_group`). Other code reads y = round(x / gain), with the gain
    max |x| / m where m is the largest y, and behind all y all gains, and the sums of gain · y over groups.
    """
    size, group = line[IN], line[GROUP]
    base = now[WORK] + 4 * (row * now[STRIDE] + line[FROM])
    to = now[ROUNDED] + row * now[ROUNDED_BYTES]
    if line[KERNEL]:
        for g in range(size // BLOCK_GROUP):
            round_group(base + 4 * BLOCK_GROUP * g, to + RECORD * g)
        return
    count, most = -(-size // group), np.float32(127 * 256 + 127)
    gains = carray(floats_at(to + 4 * -(-size // 2)), (2 * count,))
    for g in range(count):
        length, top, total = min(group, size - g * group), np.float32(1e-30), np.int32(0)
        x = carray(floats_at(base + 4 * g * group), (length,))
        y = carray(shorts_at(to + 2 * g * group), (length,))
        for i in range(length):
            top = max(top, abs(x[i]))
        for i in range(length):
            y[i] = np.int16(np.floor(x[i] * (most / top) + np.float32(0.5)))
            total = np.int32(total + np.int32(y[i]))
        gains[g], gains[count + g] = top / most, np.float32(total) * (top / most)


@compile_cached
def dot_float32(weight: Int, x: Array, size: Int) -> Float:
    w, total = carray(floats_at(weight), (size,)), np.float32(0.0)
    for i in range(size):
        total += w[i] * x[i]
    return total


@compile_cached
def dot_rows_int8(weight: Int, x: Array, gains: Array, size: Int, group: Int, out: Array) -> None:
    """out_r = Σ over groups of gain Σ n x"""
    for r in range(len(out)):
        result = np.float32(0.0)
        for g in range(len(gains)):
            length = min(group, size - g * group)
            w, total = carray(bytes_at(weight + r * size + g * group), (length,)), np.int32(0)
            for i in range(length):  # plain += counts in 64 bits
                total = np.int32(total + np.int32(np.int32(w[i]) * np.int32(x[g * group + i])))
            result += gains[g] * np.float32(total)
        out[r] = result


@compile_cached
def dot_rows_int4(
    weight: Int, scales: Int, x: Array, gains: Array, sums: Array, group: Int, out: Array
) -> None:
    """out_r = Σ over groups of gain s Σ n x + m Σ x; the low bits of the bytes are a group's first half."""
    half, groups = group // 2, len(gains)
    for r in range(len(out)):
        scale, result = carray(floats_at(scales + 8 * r * groups), (2 * groups,)), np.float32(0.0)
        for g in range(groups):
            w, total = carray(nibbles_at(weight + (r * groups + g) * half), (half,)), np.int32(0)
            low, high = x[g * group : g * group + half], x[g * group + half : (g + 1) * group]
            for i in range(half):
                total = np.int32(total + np.int32(np.int32(w[i] & 15) * np.int32(low[i])))
                total = np.int32(total + np.int32(np.int32(w[i] >> 4) * np.int32(high[i])))
            result += gains[g] * scale[2 * g] * np.float32(total) + scale[2 * g + 1] * sums[g]
        out[r] = result


@compile_cached
def dot_rows(line: Code, now: Now, row: Int, low: Int, out: Array) -> None:
    """Rows of W x from row `low` on, by the kind of W, for some rows of the batch from `row` on."""
    size, group, kind = line[IN], line[GROUP], line[KIND]
    x, x_bytes = now[ROUNDED] + row * now[ROUNDED_BYTES], now[ROUNDED_BYTES]
    if group == 0:
        x, x_bytes = now[WORK] + 4 * (row * now[STRIDE] + line[FROM]), 4 * now[STRIDE]
    if line[KERNEL]:
        kernel = line[KERNEL] if len(out) == 1 else line[SEVERAL]
        weight, to = line[WEIGHT] + low * line[ROW_BYTES], out.ctypes.data
        call_kernel(kernel, (weight, out.shape[1], line[ROW_BLOCKS], x, x_bytes, len(out) - 1, to))
    elif kind == FLOAT32:
        for r in range(out.shape[1]):
            out[0, r] = dot_float32(line[WEIGHT] + 4 * (low + r) * size, carray(floats_at(x), (size,)), size)
    else:
        count = -(-size // group)
        whole, gains = carray(shorts_at(x), (size,)), carray(floats_at(x + 4 * -(-size // 2)), (2 * count,))
        if kind == INT8:
            dot_rows_int8(line[WEIGHT] + low * size, whole, gains[:count], size, group, out[0])
        else:
            weight, scales = line[WEIGHT] + low * (size // 2), line[SCALE] + 8 * low * count
            dot_rows_int4(weight, scales, whole, gains[:count], gains[count:], group, out[0])


@compile_cached
def linear_rows(line: Code, scale: Float, now: Now, low: Int, high: Int) -> None:
    """Rows low … high of y = act(scale · W x + b), for every row of the batch while the weights are near."""
    rows, most = now[ASKED] if line[HEAD] else now[ROWS], SEVERAL_VECTORS if line[SEVERAL] else 1
    if line[STRIPES] and (line[KIND] == BLOCKS or rows >= MIN_MANY):
        out = np.empty((rows, -(-(high - low) // STRIPE) * STRIPE), np.float32)
        x, x_bytes = now[WORK] + 4 * line[FROM], 4 * now[STRIDE]
        if line[GROUP]:
            x, x_bytes = now[ROUNDED], now[ROUNDED_BYTES]
        weight = line[WEIGHT] + low // (STRIPE if line[KIND] == BLOCKS else 1) * line[ROW_BYTES]
        to = out.ctypes.data, 4 * out.shape[1]
        call_kernel(line[STRIPES], (weight, high - low, line[ROW_BLOCKS], x, x_bytes, rows, *to))
        for row in range(rows):
            put_row(line, scale, now, row, low, out[row, : high - low])
        return
    out = np.empty((most, high - low), np.float32)  # the kernel for several vectors writes to all of it
    for row in range(0, rows, most):
        together = min(most, rows - row)
        dot_rows(line, now, row, low, out[:together])
        for b in range(together):
            put_row(line, scale, now, row + b, low, out[b])


@compile_inline
def exp(x: Float) -> Float:
    """eˣ = 2ⁿ 2ᶠ, n whole and |f| ≤ ½, 2ᶠ by its series: no call, so that loops over it are vector code."""
    power = min(max(x, np.float32(-87.0)), np.float32(88.0)) * np.float32(1.4426950408889634)
    biased = truncate(power + np.float32(127.5))  # n + 127, as a float's exponent is written
    f = power - np.float32(np.int32(biased - np.int32(127)))  # in floats the sum would be rounded
    value = np.float32(1.5252733804059837e-05)
    value = value * f + np.float32(1.5403530393381608e-04)
    value = value * f + np.float32(1.3333558146428443e-03)
    value = value * f + np.float32(9.618129107628477e-03)
    value = value * f + np.float32(5.550410866482158e-02)
    value = value * f + np.float32(2.402265069591007e-01)
    value = value * f + np.float32(6.931471805599453e-01)
    value = value * f + np.float32(1.0)
    return value * np.int32(biased << np.int32(23)).view(np.float32)


@compile_inline
def tanh(x: Float) -> Float:
    return np.float32(1.0) - np.float32(2.0) / (exp(np.float32(2.0) * x) + np.float32(1.0))


@compile_inline
def erf(x: Float) -> Float:
    """To 1.5e-7   (Abramowitz and Stegun 7.1.26)"""
    size = abs(x)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * size)
    series = np.float32(1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(c)
    value = np.float32(1.0) - series * t * exp(-size * size)
    return value if x >= 0 else -value


@compile_cached
def activate(y: Array, act: Int) -> None:
    one, half = np.float32(1.0), np.float32(0.5)
    if act == RELU:
        for i in range(len(y)):
            y[i] = max(y[i], np.float32(0.0))
    elif act == GELU:
        for i in range(len(y)):
            y[i] = half * y[i] * (one + erf(y[i] * np.float32(0.7071067811865476)))
    elif act == GELU_TANH:
        for i in range(len(y)):
            x = y[i]
            inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
            y[i] = half * x * (one + tanh(inner))
    elif act == SILU:
        for i in range(len(y)):
            y[i] = y[i] / (one + exp(-y[i]))
    elif act == TANH:
        for i in range(len(y)):
            y[i] = tanh(y[i])
    elif act == SQUARED_RELU:
        for i in range(len(y)):
            y[i] = max(y[i], np.float32(0.0)) ** 2


@compile_cached
def put_row(line: Code, scale: Float, now: Now, row: Int, low: Int, out: Array) -> None:
    """y = act(scale · out + b) from entry `low` on, added to what is there, or multiplied with it."""
    count = len(out)
    if line[KIND] == INT8:
        each = carray(floats_at(line[SCALE] + 4 * low), (count,))
        for r in range(count):
            out[r] *= each[r]
    if line[BIAS]:
        bias = carray(floats_at(line[BIAS] + 4 * low), (count,))
        for r in range(count):
            out[r] = scale * out[r] + bias[r]
    elif scale != 1.0:
        for r in range(count):
            out[r] = scale * out[r]
    activate(out, line[ACT])
    place = now[WORK] + 4 * (row * now[STRIDE] + line[TO])
    if line[HEAD]:
        place = now[LOGITS] + 4 * row * line[OUT]
    y = carray(floats_at(place + 4 * low), (count,))
    if line[MODE] == SET:
        for r in range(count):
            y[r] = out[r]
    elif line[MODE] == ADD:
        for r in range(count):
            y[r] += out[r]
    else:
        for r in range(count):
            y[r] *= out[r]


@compile_cached
def rotate_and_cache(line: Code, now: Now, row: Int, past: Int, position: Int, cache: Array) -> None:
    """Turn the pairs (x_i, x_{i+K/2}) of q and k by their angles; put k and v into the cache.

    A cache of a window has no padding, and its slots are taken again and again.
    """
    size, base, half = line[SIZE], now[WORK] + 4 * row * now[STRIDE], line[TURNED] // 2
    if half:
        cos = carray(floats_at(line[COS] + 4 * position * half), (half,))
        sin = carray(floats_at(line[SIN] + 4 * position * half), (half,))
        for h in range(line[HEADS] + line[KV_HEADS]):
            start = line[Q] + h * size if h < line[HEADS] else line[KEY] + (h - line[HEADS]) * size
            a = carray(floats_at(base + 4 * start), (half,))
            b = carray(floats_at(base + 4 * (start + half)), (half,))
            for i in range(half):
                left, right = a[i], b[i]
                a[i] = left * cos[i] - right * sin[i]
                b[i] = right * cos[i] + left * sin[i]
    into = position % cache[ROOM] if line[WINDOW] else past
    for g in range(line[KV_HEADS]):
        slot = 4 * size * (g * cache[ROOM] + into)
        for source, where in ((line[KEY], cache[KEYS]), (line[VALUE], cache[VALUES])):
            new = carray(floats_at(base + 4 * (source + g * size)), (size,))
            held = carray(floats_at(where + slot), (size,))
            for i in range(size):
                held[i] = new[i]


@compile_cached
def attend_head(
    line: Code, scale: Float, now: Now, row: Int, h: Int, end: Int, first: Int, cache: Array
) -> None:
    """One head over the cache: y = Σ_j softmax_j(q · k_j scale − m (i − j)) v_j, j from the first seen."""
    size, base, room = line[SIZE], now[WORK] + 4 * row * now[STRIDE], cache[ROOM]
    slot = first
    if line[WINDOW]:
        begin, first = first, max(first, end - line[WINDOW])
        slot = (first - begin) % room
    slope = carray(floats_at(line[SLOPES] + 4 * h), (1,))[0] if line[SLOPES] else np.float32(0.0)
    place = (h * line[KV_HEADS] // line[HEADS]) * room
    q = carray(floats_at(base + 4 * (line[Q] + h * size)), (size,))
    y = carray(floats_at(base + 4 * (line[TO] + h * size)), (size,))
    scores, top = np.empty(end - first, np.float32), np.float32(-3e38)
    j, at = first, slot
    while j < end:  # up to where the slots begin again
        count = min(end - j, room - at)
        dot_keys(cache[KEYS] + 4 * size * (place + at), q, size, scores[j - first : j - first + count])
        j, at = j + count, 0
    for j in range(end - first):
        scores[j] = scores[j] * scale - slope * np.float32(end - 1 - first - j)
        top = max(top, scores[j])
    total = np.float32(0.0)
    for j in range(end - first):
        scores[j] = exp(scores[j] - top)
        total += scores[j]
    for i in range(size):
        y[i] = np.float32(0.0)
    j, at = first, slot
    while j < end:
        count = min(end - j, room - at)
        add_values(cache[VALUES] + 4 * size * (place + at), scores[j - first : j - first + count], size, y)
        j, at = j + count, 0
    for i in range(size):
        y[i] /= total


@compile_cached
def dot_keys(keys: Int, q: Array, size: Int, scores: Array) -> None:
    """s_j = q · k_j, four keys at a time"""
    count, j = len(scores), 0
    while j + 4 <= count:
        k0 = carray(floats_at(keys + 4 * j * size), (size,))
        k1 = carray(floats_at(keys + 4 * (j + 1) * size), (size,))
        k2 = carray(floats_at(keys + 4 * (j + 2) * size), (size,))
        k3 = carray(floats_at(keys + 4 * (j + 3) * size), (size,))
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for i in range(size):
            s0 += q[i] * k0[i]
            s1 += q[i] * k1[i]
            s2 += q[i] * k2[i]
            s3 += q[i] * k3[i]
        scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = s0, s1, s2, s3
        j += 4
    while j < count:
        scores[j] = dot_float32(keys + 4 * j * size, q, size)
        j += 1


@compile_cached
def add_values(values: Int, weights: Array, size: Int, y: Array) -> None:
    """y += Σ_j w_j v_j, four values at a time"""
    count, j = len(weights), 0
    while j + 4 <= count:
        v0 = carray(floats_at(values + 4 * j * size), (size,))
        v1 = carray(floats_at(values + 4 * (j + 1) * size), (size,))
        v2 = carray(floats_at(values + 4 * (j + 2) * size), (size,))
        v3 = carray(floats_at(values + 4 * (j + 3) * size), (size,))
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(size):
            y[i] += w0 * v0[i] + w1 * v1[i] + w2 * v2[i] + w3 * v3[i]
        j += 4
    while j < count:
        v = carray(floats_at(values + 4 * j * size), (size,))
        for i in range(size):
            y[i] += weights[j] * v[i]
        j += 1
