"""Hard tables with unusual inputs: sizes, ranks, units, repeats, ties, gaps, clusters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.hard_recipe import NOISE, Array, Draw, Pair, Recipe, plain, truth

__all__ = ["INPUTS"]

#: Places of near twins.
_PLACES = 15


def _changed(change: str, size: float = 0.0, d: int = 2) -> Draw:
    """Return the plain law; its inputs are changed after the target was drawn from them."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X, y = plain(d)(rng, n)
        return _CHANGES[change](rng, X, size), y

    return draw


def _sentinels(rng: np.random.Generator, X: Array, value: float) -> Array:
    """Replace one entry in ten by a code for 'unknown'."""
    return np.where(rng.random(X.shape) < 0.1, value, X)


def _mostly_sentinel(rng: np.random.Generator, X: Array, value: float) -> Array:
    """Add a column in which nine entries in ten are a code for 'unknown'."""
    column = np.where(rng.random(len(X)) < 0.9, value, rng.normal(size=len(X)))
    return np.column_stack([X, column])


def _steps_of_units(rng: np.random.Generator, X: Array, size: float) -> Array:
    """Return the columns in units from 1/size to size."""
    return X * np.geomspace(1.0 / size, size, X.shape[1])


_CHANGES = {
    "scale": lambda rng, X, size: X * size,
    "units": _steps_of_units,
    "shift": lambda rng, X, size: X + size,
    "round": lambda rng, X, size: np.round(X / size) * size,
    "rank": lambda rng, X, size: X @ rng.normal(size=(X.shape[1], int(size))),
    "collinear": lambda rng, X, size: np.column_stack([X, X + size * rng.normal(size=X.shape)]),
    "copies": lambda rng, X, size: np.tile(X, int(size)),
    "block": lambda rng, X, size: np.where(rng.random(X.shape) < size, 0.0, X),
    "sentinel": _sentinels,
    "known here and there": _mostly_sentinel,
    "outliers": lambda rng, X, size: np.where(rng.random(X.shape) < 0.02, size * X, X),
    "exponential": lambda rng, X, size: np.exp(size * X),
    "cubed": lambda rng, X, size: X**3,
    "padded": lambda rng, X, size: np.column_stack([X, np.full((len(X), 3), size)]),
}


def _near_twins(gap: float, contradict: bool = False) -> Draw:
    """Return a law of rows at a few places; rows of a place differ by a small relative gap."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        places = rng.normal(size=(_PLACES, 2))
        X = places[rng.integers(len(places), size=n)]
        noise = rng.choice([-2.0, 2.0], size=n) if contradict else NOISE * rng.normal(size=n)
        y = truth(X) + noise
        return X + gap * np.abs(X) * rng.normal(size=X.shape), y

    return draw


def _few_places(places: int, noise: float = NOISE) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Pair:
        X = rng.normal(size=(places, 2))[rng.integers(places, size=n)]
        return X, truth(X) + noise * rng.normal(size=n)

    return draw


def _codes(levels: int, columns: int, first: int = 0) -> Draw:
    """Return a law of whole numbers that stand for categories, each with an effect of its own."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        effects = rng.normal(size=(columns, levels))
        codes = rng.integers(levels, size=(n, columns))
        y = effects[np.arange(columns), codes].sum(1) + NOISE * rng.normal(size=n)
        return (codes + first).astype(np.float64), y

    return draw


def _one_hot(levels: int) -> Draw:
    """Return a law with all indicator columns of one category, whose sum is one."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        codes = rng.integers(levels, size=n)
        y = rng.normal(size=levels)[codes] + NOISE * rng.normal(size=n)
        return np.eye(levels)[codes], y

    return draw


def _clusters(number: int, width: float, spread: float = 3.0) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Pair:
        centres = spread * rng.normal(size=(number, 2))
        X = centres[rng.integers(number, size=n)] + width * rng.normal(size=(n, 2))
        level = np.sin(X[:, 0]) + 0.3 * X[:, 1] / spread
        return X, level + NOISE * rng.normal(size=n)

    return draw


def _far_cluster(distance: float, share: float = 0.1) -> Draw:
    """Return a law with most rows in one place and some far away, at another level."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X, y = plain()(rng, n)
        far = rng.random(n) < share
        X[far] += distance
        return X, y + 3.0 * far

    return draw


def _grid(rng: np.random.Generator, n: int) -> Pair:
    """Draw two columns of whole numbers; most points of the grid occur once or twice."""
    X = rng.integers(0, 16, size=(n, 2)).astype(np.float64)
    return X, truth(X / 4.0) + NOISE * rng.normal(size=n)


def _timestamps(rng: np.random.Generator, n: int) -> Pair:
    """Draw times of one day, in seconds since 1970."""
    seconds = rng.integers(0, 86_400, size=n).astype(np.float64)
    y = np.sin(2.0 * np.pi * seconds / 86_400) + NOISE * rng.normal(size=n)
    return 1.7e9 + seconds[:, None], y


def _circle(rng: np.random.Generator, n: int) -> Pair:
    """Draw angles on both sides of the place where they jump."""
    angle = np.mod(rng.normal(scale=0.5, size=n), 2.0 * np.pi)
    return angle[:, None], np.sin(angle) + NOISE * rng.normal(size=n)


def _sorted(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    order = np.argsort(X[:, 0])
    return X[order], y[order]


def _sorted_by_target(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    order = np.argsort(y)
    return X[order], y[order]


def _one_far_row(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    X[0] *= 1e6
    return X, y


def _twice(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    """Repeat the whole table once, as if it had been pasted under itself."""
    return np.vstack([X, X]), np.append(y, y)


def _resampled(rng: np.random.Generator, X: Array, y: Array) -> Pair:
    """Return a bootstrap sample: as many rows, drawn with replacement."""
    drawn = rng.integers(len(y), size=len(y))
    return X[drawn], y[drawn]


INPUTS: Mapping[str, Recipe] = {
    **{f"rows {n}": Recipe(plain(), n, judged=n >= 20) for n in (3, 4, 5, 8, 12, 20, 40, 100, 300)},
    **{f"one column, rows {n}": Recipe(plain(1), n, judged=n >= 20) for n in (6, 30, 150)},
    **{f"columns {d}, rows {n}": Recipe(plain(d), n) for n, d in ((60, 10), (40, 40), (25, 60))},
    "columns 300, rows 30": Recipe(plain(300), 30),
    "rank 1 of 8": Recipe(_changed("rank", 8, d=1)),
    "rank 2 of 12": Recipe(_changed("rank", 12)),
    **{f"collinear to {g:.0e}": Recipe(_changed("collinear", g)) for g in (1e-3, 1e-8, 1e-14)},
    "columns repeated 10 times": Recipe(_changed("copies", 10)),
    **{f"inputs times {s:.0e}": Recipe(_changed("scale", s)) for s in (1e-30, 1e-12, 1e12, 1e30)},
    **{f"units {1 / s:.0e} and {s:.0e}": Recipe(_changed("units", s)) for s in (1e6, 1e12)},
    **{f"inputs plus {s:.0e}": Recipe(_changed("shift", s)) for s in (1e6, 1e9, 1e12)},
    **{f"inputs rounded to {s}": Recipe(_changed("round", s)) for s in (0.5, 2.0)},
    "constant columns beside": Recipe(_changed("padded", 7.0)),
    **{f"{s:.0%} of entries zero": Recipe(_changed("block", s)) for s in (0.5, 0.9)},
    **{f"inputs unknown: {s:g}": Recipe(_changed("sentinel", s)) for s in (-999.0, 1e30)},
    "column mostly -999": Recipe(_changed("known here and there", -999.0)),
    "inputs with outliers 1e6": Recipe(_changed("outliers", 1e6)),
    "one row at 1e6": Recipe(plain(), spoil=_one_far_row, judged=False),
    "log-normal inputs": Recipe(_changed("exponential", 3.0)),
    "cubed inputs": Recipe(_changed("cubed")),
    **{f"near twins at {g:.0e}": Recipe(_near_twins(g)) for g in (1e-16, 1e-14, 1e-12, 1e-9, 1e-6)},
    **{f"near twins at {g:.0e} disagree": Recipe(_near_twins(g, True)) for g in (1e-14, 1e-9)},
    **{f"places {k}": Recipe(_few_places(k)) for k in (2, 3, 8)},
    "places 8, no noise": Recipe(_few_places(8, 0.0)),
    "table pasted twice": Recipe(plain(), spoil=_twice),
    "bootstrap sample": Recipe(plain(), 60, spoil=_resampled),
    "codes 10": Recipe(_codes(10, 1), 60),
    "codes 4 in 6 columns": Recipe(_codes(4, 6), 80),
    "codes from 100000 on": Recipe(_codes(12, 2, 100_000), 80),
    "binary columns": Recipe(_codes(2, 8), 60),
    "one-hot 20": Recipe(_one_hot(20), 80),
    "five tight clusters": Recipe(_clusters(5, 1e-3), 50),
    "three clusters of width 1e-9": Recipe(_clusters(3, 1e-9), 50),
    **{f"far cluster at {s:.0e}": Recipe(_far_cluster(s), 60) for s in (1e2, 1e6)},
    "grid": Recipe(_grid, 120),
    "timestamps": Recipe(_timestamps, 80),
    "angles": Recipe(_circle, 60),
    "sorted": Recipe(plain(), spoil=_sorted),
    "sorted by target": Recipe(plain(), spoil=_sorted_by_target),
}
