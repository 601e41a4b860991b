"""What must hold of every fit, whatever the table: used by the short and the long form."""

import warnings

import numpy as np
import torch

from twostagegp import TwoStageGPWarning
from twostagegp.data.scaling import prepare
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import NamedKernel

LEVELS = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)
KERNELS = ("rbf", "matern12", "matern32", "matern52", "laplacian", "rq")
FLOAT32_FLOOR = 1e-4


def fit_quietly(model, X, y, **options):
    """Fit; check that there is at most one warning, of our own type."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, **options)
    assert [w.category for w in caught] in ([], [TwoStageGPWarning]), [str(w) for w in caught]
    return model


def places(table):
    """Return training rows, new rows, and rows far away."""
    far = table.X[:3] + 1e3 * (1.0 + np.abs(table.X).max(0))
    return np.vstack([table.X[:20], table.X_new[:40], far])


# --- regression ----------------------------------------------------------------------------------


def check_distribution(model, X, y):
    """Check finite numbers, variances at least the floor, ordered quantiles and intervals."""
    mean, std = model.predict(X, return_std=True)
    latent = model.predict(X, return_latent_std=True)[1]
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert np.isfinite(latent).all()
    assert (latent >= 0.0).all()
    assert (latent <= std * (1.0 + 1e-9)).all()
    floor = max(model.noise_floor, FLOAT32_FLOOR if model.dtype == "float32" else 0.0)
    lowest = np.sqrt(floor) * np.std(y)
    assert (std >= lowest * (1.0 - 1e-6)).all(), (std.min(), lowest)
    assert (std > 0.0).all()
    quantiles = model.predict_quantiles(X, LEVELS)
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= 0.0).all()
    narrow, wide = model.predict_interval(X, 0.5), model.predict_interval(X, 0.95)
    slack = 1e-9 * np.abs(mean)
    assert (wide[:, 0] <= narrow[:, 0] + slack).all()
    assert (narrow[:, 0] <= narrow[:, 1]).all()
    assert (narrow[:, 1] <= wide[:, 1] + slack).all()
    cdf = model.predict_cdf(X, mean)
    assert ((cdf >= 0.0) & (cdf <= 1.0)).all()
    assert np.isfinite(model.predict_logpdf(X, mean)).all()
    return mean, std


def check_rows_alone(model, X, mean, std, allowed):
    """Check that a row is predicted alone as in a batch."""
    for i in (0, len(X) // 2, len(X) - 1):
        one_mean, one_std = model.predict(X[i : i + 1], return_std=True)
        assert abs(one_mean[0] - mean[i]) <= allowed + 1e-12 * abs(mean[i])
        assert abs(one_std[0] - std[i]) <= allowed + 1e-12 * std[i]


def check_regressor(model, table, tolerance=1e-6):
    """Fit a regressor to a table and check every kind of prediction.

    ``tolerance`` is that of rounding, as a share of the target's standard deviation: variances are
    differences of numbers as large as the prior variance, which without noise is 1e5 times that of
    the target.
    """
    fit_quietly(model, table.X, table.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = places(table)
        mean, std = check_distribution(model, X, table.y)
        check_rows_alone(model, X, mean, std, tolerance * max(np.std(table.y), std.min()))
        covariance = model.predict(X[-6:], return_cov=True)[1]
        assert np.isfinite(covariance).all()
        assert np.isfinite(model.sample_y(X[:4], 2, random_state=0)).all()
    return mean, std


def check_same_again(make, table):
    """Check that the same seed gives the same bits."""
    X = places(table)
    one, two = (fit_quietly(make(), table.X, table.y) for _ in range(2))
    for a, b in zip(one.predict(X, return_std=True), two.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)


# --- classification ------------------------------------------------------------------------------


def check_classifier(model, table, labels):
    """Check that probabilities are valid, and the same alone as in a batch."""
    fit_quietly(model, table.X, labels)
    X = places(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proba = model.predict_proba(X)
        assert proba.shape == (len(X), len(np.unique(labels)))
        assert np.isfinite(proba).all()
        assert (proba >= 0.0).all()
        np.testing.assert_allclose(proba.sum(1), 1.0, rtol=1e-9)
        assert set(model.predict(X)) <= set(labels)
        rounding = 0.01 if model.dtype == "float32" else 1e-7
        for i in (0, len(X) - 1):
            alone = model.predict_proba(X[i : i + 1])[0]
            np.testing.assert_allclose(alone, proba[i], rtol=0, atol=rounding)
        model.predict_certainty(X[:4])
    return proba


# --- fixed hyperparameters -----------------------------------------------------------------------


class Fixed:
    """A GP at hyperparameters that were not learned, between the user's units and back."""

    def __init__(self, X, y, kernel="matern52", noise=1e-2, engine="exact", dtype=torch.float64):
        names = [f"x{k}" for k in range(X.shape[1])]
        self.data = prepare(X, y, names, device=torch.device("cpu"), dtype=dtype)
        rows = self.data.rows
        named = NamedKernel(kernel, rows.X.shape[1])
        parameters = np.append(named.start(), np.log(noise))
        made = ExactEngine(rows) if engine == "exact" else NeighborEngine(rows, n_neighbors=10)
        with torch.no_grad():
            self.posterior = made.condition(named, parameters)
        self.noise = noise

    def predict(self, X):
        """Return mean and standard deviation of an observation."""
        scaling = self.data.scaling
        Z = torch.as_tensor(scaling.inputs(X)).to(self.data.rows.X)
        mean, variance = (
            part(Z).double().numpy() for part in (self.posterior.mean, self.posterior.variance)
        )
        std = np.sqrt(variance + self.noise)
        return scaling.y_mean + scaling.y_scale * mean, scaling.y_scale * std


def usable(table):
    """Return whether a table has at least three distinct rows and a varying target."""
    distinct = np.unique(table.X, axis=0)
    return len(distinct) >= 3 and np.ptp(table.y) > 0.0


def close(found, expected, scale, tolerance):
    """Check that means and standard deviations agree to a share of the target's scale."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
