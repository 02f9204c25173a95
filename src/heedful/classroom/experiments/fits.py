"""Straight lines through measurements: exponents of power laws and rates of exponentials, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError

# The 0.975 quantile of Student's t with 1, 2, … degrees of freedom; 1.96 beyond.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
)  # fmt: skip


@dataclass(frozen=True)
class LineFit:
    """y = intercept + slope · x by least squares, with the 95 % interval of the slope."""

    slope: float
    intercept: float
    low: float
    high: float
    residual: float  # root mean square of what the line leaves over

    def to_dict(self) -> dict[str, float]:
        """Return the fit as plain numbers."""
        return {name: float(value) for name, value in vars(self).items()}


def student_quantile(degrees: int) -> float:
    """Return the 0.975 quantile of Student's t."""
    return STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96


def fit_line(x: Sequence[float] | NDArray[Any], y: Sequence[float] | NDArray[Any]) -> LineFit:
    """Fit a line; its interval is s/√Σ(x − x̄)² · t, with s² the residual variance of n − 2 degrees."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    if len(a) != len(b) or len(a) < 3:
        raise InputError(f"a line with an interval needs 3 points or more; got {len(a)} and {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a line cannot be fitted through points that are not finite")
    centred = a - a.mean()
    slope = float(centred @ b / (centred @ centred))
    intercept = float(b.mean() - slope * a.mean())
    left = b - intercept - slope * a
    error = math.sqrt(float(left @ left) / (len(a) - 2) / float(centred @ centred))
    half = student_quantile(len(a) - 2) * error
    return LineFit(slope, intercept, slope - half, slope + half, float(np.sqrt(np.mean(left**2))))


def fit_power(x: Sequence[float], y: Sequence[float]) -> LineFit:
    """y = c · x^slope: a line through the logarithms of both"""
    return fit_line(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)))


def fit_exponential(x: Sequence[float], y: Sequence[float] | NDArray[Any]) -> LineFit:
    """y = c · e^(slope · x): a line through the logarithms of y"""
    return fit_line(x, np.log(np.asarray(y, float)))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of values and its 95 % interval by Student's t; of a single one, no interval (NaN)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = student_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
