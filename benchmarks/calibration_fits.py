r"""One fit, three distributions.

A default fit holds the z-scores of rows that were held out, and all kinds of calibration are made
of these. So one fit is scored three times, with its own local scale and shape, with one factor for
all rows, and with neither: mean and variance of part 2 are the same to the last digit, and what
differs is the calibration alone. Scores are of the target standardised by the training rows, and of
the model's own distribution: quantiles, intervals and distribution function are asked of it. The
NLPD is that of the Gaussian with its mean and standard deviation, as the peers' is.

**Few levels.** A target with an atom (a value that many rows share) has no continuous law, and the
distribution function at the outcome is not uniform for any model. If the largest atom exceeds 5 %
of the table, QICE and coverage come from a randomised PIT
(:func:`twostagegp.metrics.randomized_pit`), with cells between the midpoints of neighbouring
training values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.large_sets import fold_rows, load
from benchmarks.peers.base import Array
from benchmarks.scores import FINE, LEVELS
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, metrics
from twostagegp.pipeline.calibration.fit import Calibration, calibrate_scale

__all__ = [
    "ATOM_SHARE",
    "KINDS",
    "cells",
    "distribution_scores",
    "largest_atom",
    "measure_fold",
    "warm_up",
]

#: Calibrations of the same fit.
KINDS = ("none", "scale", "local")
#: Share of a table's rows above which a value counts as an atom.
ATOM_SHARE = 0.05
#: Rows whose quantiles are held at a time: a thousand numbers per row.
CHUNK = 4000
#: Number of calls; the fastest one counts.
CALLS = 3
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 200, 64


def measure_fold(model: TwoStageGPRegressor, name: str, fold: int) -> Record:
    """Fit a model to a fold of a table and score it with each calibration.

    Parameters
    ----------
    model : TwoStageGPRegressor
        Not fitted yet.
    name : str
        A table of :mod:`twostagegp.datasets`.
    fold : int
        Also the seed of the randomised PIT.
    """
    data = load(name)
    train, test = fold_rows(data, fold)
    atom = largest_atom(data.y)
    atoms = atom > ATOM_SHARE
    sizes = {"n_train": len(train), "n_test": len(test), "largest_atom": atom, "atoms": atoms}
    X, y, X_test, y_test = data.X[train], data.y[train], data.X[test], data.y[test]
    return sizes | _three_scores(model, X, y, X_test, y_test, fold, atoms)


def warm_up(name: str, fold: int, method: str) -> None:
    """Load compiled code before the clock runs: it would count as part of the fit's other work."""
    data = load(name)
    train, _ = fold_rows(data, fold)
    rows = train[np.random.default_rng(0).permutation(len(train))[:WARM_ROWS]]
    model = TwoStageGPRegressor(method=method, random_state=0).fit(data.X[rows], data.y[rows])
    model.predict(data.X[train[:WARM_POINTS]], return_std=True)


def _three_scores(
    model: TwoStageGPRegressor,
    X: Array,
    y: Array,
    X_test: Array,
    y_test: Array,
    seed: int,
    atoms: bool,
) -> Record:
    with Timed() as took:
        model.fit(X, y)
    fit = model.fitted_.fits[0]
    chosen = _calibrations(fit.calibration)
    moments: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {"local": [], "scale": []}
    for _ in range(CALLS):  # in turn, so that other load slows down both
        for kind, times in seconds.items():
            fit.calibration = chosen[kind]
            with Timed() as predicting:
                moments[kind] = model.predict(X_test, return_std=True)
            times.append(predicting.cpu)
    fit.calibration = chosen["none"]
    moments["none"] = model.predict(X_test, return_std=True)
    scores = {}
    for kind in KINDS:
        fit.calibration = chosen[kind]
        scores[kind] = distribution_scores(model, moments[kind], X_test, y_test, y, atoms, seed)
    fit.calibration = chosen["local"]
    parts = model.fit_report_.seconds
    share = parts.get("calibration", 0.0) / parts["total"]
    mean, _ = moments["local"]
    return {
        "rmse": metrics.rmse(y_test, mean) / float(np.std(y)),
        **scores,
        "fit_cpu": took.cpu,
        "fit_wall": took.wall,
        # The report has wall-clock seconds; the share of the CPU's is the same with one thread.
        "calibration_share": share,
        "calibration_cpu": share * took.cpu,
        **{f"predict_cpu_{kind}": min(times) for kind, times in seconds.items()},
        "learned": _learned(chosen["local"]) | {"scale_factor": chosen["scale"].factor},
        "device": model.fit_report_.device,
    }


def _calibrations(local: Calibration) -> Mapping[str, Calibration]:
    """Return the calibration of a fit, and the simpler ones of the same held-out z-scores."""
    return {
        "none": Calibration("none", 1.0, local.z, local.weight),
        "scale": calibrate_scale(local.z, local.weight),
        "local": local,
    }


def _learned(calibration: Calibration) -> Record:
    local, shape = calibration.local, calibration.shape
    return {
        "kind": calibration.kind,
        "label": calibration.label,
        "members": [] if local is None else [member.label for member in local.members],
        "a": calibration.a.tolist(),
        "b": 0.0 if local is None else local.combination.b,
        "c": calibration.c,
        "factor": calibration.factor,
        "shape": shape.name,
        "degrees": shape.degrees,
        "shape_scores": calibration.shape_scores,
        "n_heldout": len(calibration.z),
    }


# --- scores of a distribution --------------------------------------------------------------------


def largest_atom(y: Array) -> float:
    """Return the share of the most frequent value.

    Examples
    --------
    >>> largest_atom(np.array([1.0, 2.0, 2.0, 3.0]))
    0.5
    """
    return float(np.unique(y, return_counts=True)[1].max() / len(y))


def cells(y: Array, y_train: Array) -> tuple[Array, Array]:
    """Return the ends of the cell of each outcome: midpoints between neighbouring training values.

    The cells of the smallest and of the largest training value have no outer end. An outcome that
    is no training value lies in the cell of the nearest.

    Examples
    --------
    >>> cells(np.array([2.0, 9.0]), np.array([1.0, 2.0, 4.0, 4.0]))
    (array([1.5, 3. ]), array([ 3., inf]))
    """
    values = np.unique(y_train)
    inner = 0.5 * (values[:-1] + values[1:])
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    place = np.searchsorted(inner, y, side="right")
    return edges[place], edges[place + 1]


def distribution_scores(
    model: Any,
    moments: tuple[Array, Array],
    X: Array,
    y: Array,
    y_train: Array,
    atoms: bool,
    seed: int,
    chunk: int = CHUNK,
) -> dict[str, float]:
    """Return scores of the model's own distribution, the target standardised by the training rows.

    Parameters
    ----------
    model : fitted regressor of this package
    moments : pair of arrays of shape (n,)
        Its mean and standard deviation at X.
    X, y : arrays of shape (n, d) and (n,)
        Test rows.
    y_train : array of shape (m,)
    atoms : bool
        Take QICE and coverage from a randomised PIT.
    seed : int
        Of that PIT.
    chunk : int
        Rows whose quantiles are held at a time.
    """
    centre, scale = float(np.mean(y_train)), float(np.std(y_train))
    target, mean, std = (y - centre) / scale, (moments[0] - centre) / scale, moments[1] / scale
    pit = _randomised(model, X, y, y_train, seed) if atoms else _unit(model.predict_cdf(X, y))
    scores = {
        "nlpd": metrics.nlpd(target, mean, std),
        "qice": metrics.qice(pit=pit),
        "qice_floor": metrics.qice_floor(len(y)),
        "hc_rmse": metrics.hc_rmse(target, mean, std, q=0.1),
        "lc_rmse": metrics.lc_rmse(target, mean, std, q=0.1),
        **_quantile_scores(model, X, target, centre, scale, chunk),
    }
    if atoms:
        for level in LEVELS:
            scores[_coverage(level)] = float(np.mean(np.abs(pit - 0.5) <= 0.5 * level))
    return scores


def _quantile_scores(
    model: Any, X: Array, target: Array, centre: float, scale: float, chunk: int
) -> dict[str, float]:
    """Return CRPS, pinball loss, coverages and width, computed some rows at a time."""
    ends = [0.5 + side * level / 2.0 for level in LEVELS for side in (-1.0, 1.0)]
    levels = np.concatenate([FINE, metrics.PINBALL_LEVELS, ends])
    cuts = np.cumsum([len(FINE), len(metrics.PINBALL_LEVELS)])
    parts, sizes = [], []
    for begin in range(0, len(X), chunk):
        rows = slice(begin, begin + chunk)
        quantiles = (model.predict_quantiles(X[rows], levels) - centre) / scale
        fine, coarse, both_ends = np.split(quantiles, cuts, axis=1)
        y = target[rows]
        part = {
            "crps": metrics.crps_from_quantiles(y, fine, FINE),
            "pinball": metrics.pinball(y, coarse, metrics.PINBALL_LEVELS),
        }
        for j, level in enumerate(LEVELS):
            interval = both_ends[:, 2 * j : 2 * j + 2]
            part[_coverage(level)] = metrics.coverage(y, interval=interval)
            if level == 0.95:
                part["width_95"] = metrics.interval_width(y, interval=interval)
        parts.append(part)
        sizes.append(len(y))
    return {
        name: float(np.average([part[name] for part in parts], weights=sizes)) for name in parts[0]
    }


def _coverage(level: float) -> str:
    return f"coverage_{100 * level:.0f}"


def _randomised(model: Any, X: Array, y: Array, y_train: Array, seed: int) -> Array:
    lower, upper = (_unit(model.predict_cdf(X, end)) for end in cells(y, y_train))
    return metrics.randomized_pit(lower, upper, random_state=seed)


def _unit(probability: Array) -> Array:
    """Clip to [0, 1]: a sum of shares may exceed one by rounding."""
    return np.clip(probability, 0.0, 1.0)
