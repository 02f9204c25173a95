"""Loss as a function of the number of parameters N and of training tokens D, fitted to runs.

chinchilla   L = E + A / N^α + B / D^β                        (Hoffmann et al. 2022 eq. 2)
kaplan       L = ((N_c / N)^(α_N / α_D) + D_c / D)^α_D        (Kaplan et al. 2020 eq. 1.5)

Training takes C = 6 N D FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.tasks.metrics.scores import central_interval

Array = NDArray[np.float64]
FLOPS_PER_PARAMETER_AND_TOKEN = 6
DRAWS = 200  # of the bootstrap
MAX_ITERATIONS = 100
SAMPLE_ITERATIONS = 25  # of a fit that starts from that of all runs


@dataclass(frozen=True)
class ScalePoint:
    """One run: its parameters, its training tokens and its validation loss."""

    parameters: int
    tokens: int
    loss: float

    @property
    def compute(self) -> float:
        """6 N D: the FLOPs of training."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * float(self.parameters) * self.tokens


def log_chinchilla(theta: Array, log_n: Array, log_d: Array) -> Array:
    """ln(E + A N^−α + B D^−β) with θ = (ln E, ln A, ln B, α, β)"""
    e, a, b, alpha, beta = theta
    terms = np.stack([np.full_like(log_n, e), a - alpha * log_n, b - beta * log_d])
    return np.asarray(np.logaddexp.reduce(terms, axis=0))


def log_kaplan(theta: Array, log_n: Array, log_d: Array) -> Array:
    """α_D ln((N_c/N)^(α_N/α_D) + D_c/D) with θ = (ln N_c, ln D_c, α_N, α_D)"""
    n_c, d_c, alpha_n, alpha_d = theta
    return np.asarray(alpha_d * np.logaddexp(alpha_n / alpha_d * (n_c - log_n), d_c - log_d))


def start_chinchilla(log_n: Array, log_d: Array, loss: Array) -> list[Array]:
    """Return first guesses: for some α and β the E, A and B that least squares give."""
    guesses = []
    for alpha, beta in product((0.2, 0.4, 0.7), repeat=2):
        columns = np.stack([np.ones_like(log_n), np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        values = np.maximum(np.linalg.lstsq(columns, loss, rcond=None)[0], 1e-3)
        guesses.append(np.array([*np.log(values), alpha, beta]))
    return guesses


def start_kaplan(log_n: Array, log_d: Array, loss: Array) -> list[Array]:
    """Return first guesses: for some exponents the constants at which each term is the loss in the middle."""
    middle = float(np.log(loss.mean()))
    return [
        np.array([log_n.mean() + middle / a, log_d.mean() + middle / b, a, b])
        for a, b in product((0.05, 0.1, 0.2, 0.4), repeat=2)
    ]


FORMS: dict[
    str, tuple[Callable[[Array, Array, Array], Array], Callable[..., list[Array]], tuple[str, ...]]
] = {
    "chinchilla": (log_chinchilla, start_chinchilla, ("ln E", "ln A", "ln B", "α", "β")),
    "kaplan": (log_kaplan, start_kaplan, ("ln N_c", "ln D_c", "α_N", "α_D")),
}


@dataclass(frozen=True)
class SurfaceFit:
    """A form with its values, and with the values of fits to samples of the points (a bootstrap)."""

    form: str
    theta: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]
    error: float  # root mean square of ln(predicted / measured)

    def predict(self, parameters: float, tokens: float) -> float:
        """Return the loss at N and D."""
        return float(np.exp(self._log_loss(np.array(self.theta), parameters, tokens)))

    def predict_interval(self, parameters: float, tokens: float) -> tuple[float, float]:
        """Return where 95 % of the fits to samples put the loss at N and D."""
        return central_interval(
            [np.exp(self._log_loss(np.array(t), parameters, tokens)) for t in self.samples]
        )

    def _log_loss(self, theta: Array, parameters: float, tokens: float) -> float:
        n, d = np.array([math.log(parameters)]), np.array([math.log(tokens)])
        return float(FORMS[self.form][0](theta, n, d)[0])

    def intervals(self) -> dict[str, tuple[float, float, float]]:
        """Return each value of the form with its 95 % interval."""
        low, high = np.quantile(np.array(self.samples), [0.025, 0.975], axis=0)
        return {
            name: (self.theta[i], float(low[i]), float(high[i])) for i, name in enumerate(FORMS[self.form][2])
        }

    def optimal_parameters(self, compute: float, theta: Sequence[float] | None = None) -> float:
        """Return the N at which the loss is lowest if 6 N D = compute."""
        log_n = np.linspace(math.log(10), math.log(compute / FLOPS_PER_PARAMETER_AND_TOKEN / 10), 4001)
        log_d = math.log(compute / FLOPS_PER_PARAMETER_AND_TOKEN) - log_n
        values = FORMS[self.form][0](np.array(self.theta if theta is None else theta), log_n, log_d)
        return float(np.exp(log_n[int(np.argmin(values))]))

    def optimal_interval(self, compute: float) -> tuple[float, float]:
        """Return where 95 % of the fits to samples put the best N for a budget."""
        return central_interval([self.optimal_parameters(compute, theta) for theta in self.samples])

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain values, without its samples."""
        return {"form": self.form, "error": self.error, "values": self.intervals()}


def minimise(
    residual: Callable[[Array], Array], theta: Array, iterations: int = MAX_ITERATIONS
) -> tuple[Array, float]:
    """Minimise ½‖r(θ)‖² by Levenberg and Marquardt's method, with the Jacobian by differences."""
    damping, r = 1e-2, residual(theta)
    cost = float(r @ r)
    for _ in range(iterations):
        steps = 1e-6 * np.maximum(np.abs(theta), 1e-2)
        J = np.stack(
            [(residual(theta + s * np.eye(len(theta))[i]) - r) / s for i, s in enumerate(steps)], axis=1
        )
        A, g = J.T @ J, J.T @ r
        move = np.linalg.solve(A + damping * np.diag(np.diag(A) + 1e-9), -g)
        new = theta + np.clip(move, -3, 3)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tried = residual(new)
        better = bool(np.isfinite(tried).all()) and float(tried @ tried) < cost
        if better:
            gained, theta, r, cost = cost - float(tried @ tried), new, tried, float(tried @ tried)
            damping = max(damping / 3, 1e-9)
            if gained < 1e-7 * cost:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return theta, cost


def fit_surface(points: Sequence[ScalePoint], form: str = "chinchilla", draws: int = DRAWS) -> SurfaceFit:
    """Fit a form to the logarithms of the losses, and to `draws` samples of the points with replacement."""
    model, starts, names = FORMS[check_choice("form", form, FORMS)]
    sizes, amounts = ({getattr(p, name) for p in points} for name in ("parameters", "tokens"))
    if len(points) < len(names) + 1 or len(sizes) < 2 or len(amounts) < 2:
        raise InputError(
            f"{len(points)} runs of {len(sizes)} sizes and {len(amounts)} amounts of data are too few",
            hint=f"fit {len(names) + 1} runs or more, of at least two sizes and two amounts",
        )
    log_n, log_d, log_l = (
        np.log(np.array([getattr(p, name) for p in points], float))
        for name in ("parameters", "tokens", "loss")
    )

    def best_fit(
        rows: NDArray[np.intp], guesses: Sequence[Array], iterations: int = MAX_ITERATIONS
    ) -> tuple[Array, float]:
        n, d, l = log_n[rows], log_d[rows], log_l[rows]
        fits = [minimise(lambda theta: model(theta, n, d) - l, guess, iterations) for guess in guesses]
        return min(fits, key=lambda one: one[1])

    everything = np.arange(len(points))
    theta, cost = best_fit(everything, starts(log_n, log_d, np.exp(log_l)))
    rng, samples = np.random.default_rng(0), list[tuple[float, ...]]()
    while len(samples) < draws:
        rows = rng.integers(len(points), size=len(points))
        if len(set(log_n[rows])) > 1 and len(set(log_d[rows])) > 1:
            samples.append(tuple(map(float, best_fit(rows, [theta], SAMPLE_ITERATIONS)[0])))
    return SurfaceFit(form, tuple(map(float, theta)), tuple(samples), math.sqrt(cost / len(points)))


def prediction_errors(points: Sequence[ScalePoint]) -> dict[str, float]:
    """Return how far off each form predicts the most expensive quarter of the runs from the others.

    Predicting larger runs is the purpose of a fit, and this error is available before any larger run: use the
    form with the smallest one. It is the root mean square of ln(predicted / measured). With too few runs it
    is the error of the fit.
    """
    ordered = sorted(points, key=lambda p: p.compute)
    dear = ordered[len(ordered) - len(ordered) // 4 :]
    cheap = ordered[: len(ordered) - len(dear)]
    errors = {}
    for form in FORMS:
        try:
            fit = fit_surface(cheap, form, draws=0)
        except InputError:
            errors[form] = fit_surface(points, form, draws=0).error
            continue
        left = [math.log(fit.predict(p.parameters, p.tokens) / p.loss) for p in dear]
        errors[form] = math.sqrt(sum(x * x for x in left) / len(left))
    return errors


def efficient_points(points: Sequence[ScalePoint]) -> list[ScalePoint]:
    """Return the runs that no cheaper run equals, by rising compute."""
    efficient: list[ScalePoint] = []
    for point in sorted(points, key=lambda p: (p.compute, p.loss)):
        if not efficient or point.loss < efficient[-1].loss:
            efficient.append(point)
    return efficient


def extend_line(points: Sequence[ScalePoint], compute: float) -> float:
    """Return the loss at a compute on the line through the last two efficient runs, ln L over ln C."""
    efficient = efficient_points(points)
    if len(efficient) < 2:
        raise InputError("a line needs two runs of which the more expensive one is better")
    a, b = efficient[-2:]
    slope = math.log(b.loss / a.loss) / math.log(b.compute / a.compute)
    return b.loss * (compute / b.compute) ** slope
