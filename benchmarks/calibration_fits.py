r"""The fits behind the page on calibration: one record each, as flat as it can be.

**One fit, three distributions.** A default fit holds the z-scores of rows that were held out, and
all kinds of calibration are made of these. So one fit is scored three times, with its own local
scale and shape, with one factor for all rows, and with neither: mean and variance of part 2 are the
same to the last digit, and what differs is the calibration alone. Scores are of the target
standardised by the training rows, and of the model's own distribution: quantiles, intervals and
distribution function are asked of it. The NLPD is that of the Gaussian with its mean and standard
deviation, as the peers' is.

**Few levels.** A target with an atom (a value that many rows share) has no continuous law, and the
distribution function at the outcome is not uniform for any model. Where the largest atom exceeds
5 % of the table, QICE and coverage come from a randomised PIT
(:func:`twostagegp.metrics.randomized_pit`), with cells between the midpoints of neighbouring
training values.

**GPNN's protocol.** Random splits of 7/9 and 2/9, inputs whitened by their principal components and
divided by √d, as in :mod:`benchmarks.peers.gpnn`. Our estimator standardises its columns itself, so
of this preprocessing only the rotation is left; beside it stands the fit on the plain columns.

**A shift.** Four weeks of winter teach, rows left out of them and a July three years later test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import twostagegp
from benchmarks.large_sets import Rows, fold_rows, load
from benchmarks.peers import MODELS
from benchmarks.peers.base import Array, Fitted, NotInstalledError
from benchmarks.peers.gpnn import Whitening
from benchmarks.scores import FINE, LEVELS
from measurements.provenance import code_version
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, metrics
from twostagegp.pipeline.calibration.fit import Calibration, calibrate_scale

__all__ = [
    "INPUTS",
    "KINDS",
    "SHIFT_MODELS",
    "cells",
    "distribution_scores",
    "gpnn_rows",
    "largest_atom",
    "measure",
    "measure_gpnn",
    "measure_shift",
]

#: Calibrations of the same fit.
KINDS = ("none", "scale", "local")
#: Share of a table's rows above which a value counts as an atom.
ATOM_SHARE = 0.05
#: Rows whose quantiles are held at a time: a thousand numbers each.
CHUNK = 4000
#: Calls of which the fastest counts.
CALLS = 3
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 200, 64

#: What the estimator is given under GPNN's protocol.
INPUTS = ("whitened", "plain")
TRAIN_SHARE = 7.0 / 9.0

WINTER, JULY = "house_electric_part", "house_electric_july2010"
SHIFT_MODELS = ("ours", "lightgbm", "catboost_uncertainty")


def _recorded(known: Record, scores: Callable[[], Record]) -> Record:
    """A record with scores, or with the error that took their place."""
    try:
        return known | scores()
    except NotInstalledError as error:
        return known | {"error": str(error)}
    except Exception as error:
        return known | {"error": f"{type(error).__name__}: {error}"}


def _code() -> Record:
    return {"version": twostagegp.__version__, "code": code_version()}


# --- one fit, three distributions ----------------------------------------------------------------


def measure(name: str, fold: int, method: str) -> Record:
    """Fit the default to a fold of a table and score it with each calibration.

    Parameters
    ----------
    name : str
        A table of :mod:`twostagegp.datasets`.
    fold : int
        Also the seed.
    method : {"exact", "neighbors"}
    """
    data = load(name)
    train, test = fold_rows(data, fold)
    atom = largest_atom(data.y)
    known: Record = {
        "set": name,
        "fold": fold,
        "method": method,
        "n_train": len(train),
        "n_test": len(test),
        "largest_atom": atom,
        "atoms": atom > ATOM_SHARE,
        **_code(),
    }
    X, y = data.X[train], data.y[train]
    return _recorded(
        known,
        lambda: _three_scores(X, y, data.X[test], data.y[test], method, fold, atom > ATOM_SHARE),
    )


def _three_scores(
    X: Array, y: Array, X_test: Array, y_test: Array, method: str, seed: int, atoms: bool
) -> Record:
    _warm_up(X, y, method)
    model = TwoStageGPRegressor(method=method, random_state=seed)
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


def _warm_up(X: Array, y: Array, method: str) -> None:
    """Load compiled code before the clock runs: it would count as part of the fit's other work."""
    rows = np.random.default_rng(0).permutation(len(y))[:WARM_ROWS]
    model = TwoStageGPRegressor(method=method, random_state=0).fit(X[rows], y[rows])
    model.predict(X[:WARM_POINTS], return_std=True)


def _calibrations(local: Calibration) -> Mapping[str, Calibration]:
    """The calibration of a fit, and the simpler ones of the same held-out z-scores."""
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
    """Share of the most frequent value.

    Examples
    --------
    >>> largest_atom(np.array([1.0, 2.0, 2.0, 3.0]))
    0.5
    """
    return float(np.unique(y, return_counts=True)[1].max() / len(y))


def cells(y: Array, y_train: Array) -> tuple[Array, Array]:
    """Ends of the cell of each outcome: midpoints between neighbouring training values.

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
) -> dict[str, float]:
    """Scores of the model's own distribution on the target standardised by the training rows.

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
        **_quantile_scores(model, X, target, centre, scale),
    }
    if atoms:
        for level in LEVELS:
            scores[_coverage(level)] = float(np.mean(np.abs(pit - 0.5) <= 0.5 * level))
    return scores


def _quantile_scores(
    model: Any, X: Array, target: Array, centre: float, scale: float
) -> dict[str, float]:
    """CRPS, pinball loss, coverages and width, some rows at a time."""
    ends = [0.5 + side * level / 2.0 for level in LEVELS for side in (-1.0, 1.0)]
    levels = np.concatenate([FINE, metrics.PINBALL_LEVELS, ends])
    cuts = np.cumsum([len(FINE), len(metrics.PINBALL_LEVELS)])
    parts, sizes = [], []
    for begin in range(0, len(X), CHUNK):
        rows = slice(begin, begin + CHUNK)
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
    """A sum of shares may miss one by its rounding."""
    return np.clip(probability, 0.0, 1.0)


# --- GPNN's protocol -----------------------------------------------------------------------------


def gpnn_rows(n: int, seed: int) -> tuple[Rows, Rows]:
    """Training and test rows: 7/9 and 2/9 of the table at random.

    Examples
    --------
    >>> [len(rows) for rows in gpnn_rows(90, seed=0)]
    [70, 20]
    """
    order = np.random.default_rng(seed).permutation(n)
    cut = round(TRAIN_SHARE * n)
    return np.sort(order[:cut]), np.sort(order[cut:])


def measure_gpnn(name: str, seed: int, inputs: str) -> Record:
    """Fit the default under GPNN's protocol, to whitened or to plain inputs."""
    data = load(name)
    train, test = gpnn_rows(len(data.y), seed)
    known: Record = {
        "set": name,
        "fold": seed,
        "inputs": inputs,
        "n_train": len(train),
        "n_test": len(test),
        **_code(),
    }

    def scores() -> Record:
        whitening = Whitening.of(data.X[train], data.y[train])
        X = whitening.inputs(data.X) if inputs == "whitened" else data.X
        y = whitening.target(data.y)
        model = TwoStageGPRegressor(method="neighbors", random_state=seed)
        with Timed() as took:
            model.fit(X[train], y[train])
        mean, std = model.predict(X[test], return_std=True)
        return {
            "rmse": metrics.rmse(y[test], mean),
            "nlpd": metrics.nlpd(y[test], mean, std),
            "hc_rmse": metrics.hc_rmse(y[test], mean, std, q=0.1),
            "lc_rmse": metrics.lc_rmse(y[test], mean, std, q=0.1),
            "fit_cpu": took.cpu,
        }

    return _recorded(known, scores)


# --- a shift -------------------------------------------------------------------------------------


def measure_shift(model: str, fold: int) -> Record:
    """Fit a model to winter rows; score it on those left out and on July 2010.

    Parameters
    ----------
    model : str
        One of :data:`benchmarks.peers.MODELS`.
    fold : int
        Which tenth of the winter is left out; also the seed.
    """
    winter, july = load(WINTER), load(JULY)
    train, test = fold_rows(winter, fold)
    known: Record = {
        "model": model,
        "fold": fold,
        "n_train": len(train),
        "n_winter": len(test),
        "n_july": len(july.y),
        "version": MODELS[model].version(),
        **({"code": code_version()} if MODELS[model].ours else {}),
    }
    y = winter.y[train]

    def scores() -> Record:
        fitted = MODELS[model].load()(winter.X[train], y, fold)
        return {
            "winter": _interval_scores(fitted, winter.X[test], winter.y[test], y),
            "july": _interval_scores(fitted, july.X, july.y, y),
        }

    return _recorded(known, scores)


def _interval_scores(model: Fitted, X: Array, y: Array, y_train: Array) -> dict[str, float]:
    """RMSE, and coverage and mean width of the 95 % interval, the target standardised."""
    centre, scale = float(np.mean(y_train)), float(np.std(y_train))
    found, own = model.predict(X), model.interval(X)
    target, mean, std = (y - centre) / scale, (found.mean - centre) / scale, found.std / scale
    arguments: dict[str, Any] = {"mean": mean, "std": std}
    if own is not None:
        arguments = {"interval": (own - centre) / scale}
    return {
        "rmse": metrics.rmse(target, mean),
        "coverage_95": metrics.coverage(target, **arguments),
        "width_95": metrics.interval_width(target, **arguments),
    }
