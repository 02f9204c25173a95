"""Activations over an array, as vector code: eˣ by its series, and what is made of it."""

from __future__ import annotations

import numpy as np

from heedful.kernels.cpu.numba_intrinsics import (
    Array,
    Float,
    Int,
    as_float,
    compile_cached,
    compile_inline,
    truncate,
)  # fmt: skip

NONE, RELU, GELU, GELU_TANH, SILU, TANH, SQUARED_RELU = range(7)


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
    return value * as_float(biased << np.int32(23))


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
