"""Hard tables with unusual targets: units, tails, ties, jumps, no noise, nothing but noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.hard_recipe import NOISE, Array, Draw, Pair, Recipe, plain, truth

__all__ = ["TARGETS"]

Noise = Callable[[np.random.Generator, int], Array]


def _with_noise(noise: Noise) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Pair:
        X = rng.normal(size=(n, 2))
        return X, truth(X) + noise(rng, n)

    return draw


def _after(change: Callable[[np.random.Generator, Array], Array], d: int = 2) -> Draw:
    """Return the plain law with its target changed."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X, y = plain(d)(rng, n)
        return X, change(rng, y)

    return draw


def _function(f: Callable[[Array], Array], d: int = 1) -> Draw:
    """Return a law without noise."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X = rng.uniform(-1.0, 1.0, size=(n, d))
        return X, f(X)

    return draw


def _unrelated(noise: Noise, d: int) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Pair:
        return rng.normal(size=(n, d)), noise(rng, n)

    return draw


def _noise_by_place(low: float, high: float) -> Draw:
    """Return a law with noise of one size on the left and of another on the right."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X = rng.uniform(-1.0, 1.0, size=(n, 1))
        sigma = np.where(X[:, 0] < 0.0, low, high)
        return X, np.sin(3.0 * X[:, 0]) + sigma * rng.normal(size=n)

    return draw


def _walk(rng: np.random.Generator, n: int) -> Pair:
    """Draw a random walk; the new rows are times between the training rows."""
    time = np.sort(rng.uniform(0.0, 10.0, size=n))
    steps = np.sqrt(np.diff(time, prepend=0.0)) * rng.normal(size=n)
    return time[:, None], np.cumsum(steps)


def _counts(rng: np.random.Generator, n: int) -> Pair:
    X = rng.normal(size=(n, 2))
    return X, rng.poisson(np.exp(truth(X))).astype(np.float64)


def _outlier(size: float) -> Callable[[np.random.Generator, Array, Array], Pair]:
    def spoil(rng: np.random.Generator, X: Array, y: Array) -> Pair:
        y[0] += size
        return X, y

    return spoil


def _all_but_one_equal(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    return X, np.where(np.arange(len(y)) == 0, 1.0, 0.0)


def _constant(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    return X, np.full(len(y), 3.0)


_FUNCTIONS: Mapping[str, tuple[Callable[[Array], Array], int]] = {
    "line": (lambda X: 2.0 * X[:, 0] + 1.0, 1),
    "parabola": (lambda X: X[:, 0] ** 2, 1),
    "sine": (lambda X: np.sin(3.0 * X[:, 0]), 1),
    "fast sine": (lambda X: np.sin(60.0 * X[:, 0]), 1),
    "step": (lambda X: np.where(X[:, 0] > 0.2, 1.0, 0.0), 1),
    "kink": (lambda X: np.abs(X[:, 0] - 0.1), 1),
    "bump": (lambda X: np.exp(-200.0 * (X[:, 0] - 0.3) ** 2), 1),
    "exponential": (lambda X: np.exp(8.0 * X[:, 0]), 1),
    "pole": (lambda X: 1.0 / (X[:, 0] + 1.01), 1),
    "plane of 5": (lambda X: X @ np.arange(1.0, 6.0), 5),
    "sum of squares of 4": (lambda X: (X**2).sum(1), 4),
    "product of 3": (lambda X: X.prod(1), 3),
    "constant half": (lambda X: np.maximum(X[:, 0], 0.0) * X[:, 1], 2),
}

TARGETS: Mapping[str, Recipe] = {
    **{f"no noise: {k}": Recipe(_function(f, d), 40) for k, (f, d) in _FUNCTIONS.items()},
    "no noise: sine, rows 200": Recipe(_function(_FUNCTIONS["sine"][0], 1), 200),
    **{
        f"pure noise, columns {d}, rows {n}": Recipe(
            _unrelated(lambda rng, n: rng.normal(size=n), d), n
        )
        for n, d in ((30, 1), (100, 5), (40, 50), (200, 2))
    },
    "pure Cauchy noise": Recipe(_unrelated(lambda rng, n: rng.standard_cauchy(n), 2), 100),
    **{
        f"target times {s:.0e}": Recipe(_after(lambda rng, y, s=s: y * s))
        for s in (1e-30, 1e-12, 1e12, 1e30)
    },
    **{f"target plus {s:.0e}": Recipe(_after(lambda rng, y, s=s: y + s)) for s in (1e6, 1e9, 1e12)},
    "Cauchy noise": Recipe(_with_noise(lambda rng, n: NOISE * rng.standard_cauchy(n)), 100),
    "t noise, 2 degrees": Recipe(_with_noise(lambda rng, n: NOISE * rng.standard_t(2, n)), 60),
    "exponential noise": Recipe(_with_noise(lambda rng, n: rng.exponential(size=n)), 60),
    "5% outliers of 100": Recipe(
        _with_noise(lambda rng, n: NOISE * rng.normal(size=n) + 100.0 * (rng.random(n) < 0.05)), 80
    ),
    "noise 1e-6": Recipe(_with_noise(lambda rng, n: 1e-6 * rng.normal(size=n)), 60),
    "noise 100": Recipe(_with_noise(lambda rng, n: 100.0 * rng.normal(size=n)), 60),
    "log-normal target": Recipe(_after(lambda rng, y: np.exp(2.0 * y)), 60),
    "target rounded": Recipe(_after(lambda rng, y: np.round(y))),
    "target of two values": Recipe(_after(lambda rng, y: np.where(y > 0.0, 1.0, 0.0)), 60),
    "target of three values": Recipe(_after(lambda rng, y: np.clip(np.round(y), -1, 1)), 60),
    "rare event": Recipe(_after(lambda rng, y: np.where(y > 1.8, 1.0, 0.0)), 80),
    "zero or positive": Recipe(_after(lambda rng, y: np.maximum(y, 0.0)), 60),
    "half zero, else log-normal": Recipe(
        _after(lambda rng, y: np.where(y > 0.0, np.exp(3.0 * y), 0.0)), 60
    ),
    "target unknown: -999": Recipe(
        _after(lambda rng, y: np.where(rng.random(len(y)) < 0.05, -999.0, y)), 80
    ),
    "target unknown: 1e30": Recipe(
        _after(lambda rng, y: np.where(rng.random(len(y)) < 0.05, 1e30, y)), 80
    ),
    "counts": Recipe(_counts, 80),
    "random walk": Recipe(_walk, 80),
    "noise 0.01 and 1": Recipe(_noise_by_place(0.01, 1.0), 80),
    "noise 0 and 1": Recipe(_noise_by_place(0.0, 1.0), 80),
    **{
        f"one outlier of {s:.0e}": Recipe(plain(), spoil=_outlier(s), judged=False)
        for s in (1e3, 1e9)
    },
    "all targets but one equal": Recipe(plain(), 30, judged=False, spoil=_all_but_one_equal),
    "constant target": Recipe(plain(), 30, judged=False, spoil=_constant),
}
