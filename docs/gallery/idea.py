"""The three parts of a model: the mean, the variance of its residuals, the calibration."""

import numpy as np
from matplotlib.figure import Figure

from twostagegp import TwoStageGPRegressor
from twostagegp.plotting import INK, MODEL, MUTED, TRUTH, plot_band, plot_pit, tidy


def table(n, seed):
    """Return n rows of a wave whose noise grows with x."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 6.0, n))
    return x[:, None], np.sin(2.0 * x) + 0.5 * x + (0.05 + 0.1 * x) * rng.normal(size=n)


def draw():
    """Draw the mean, the held-out residuals with the interval, both together, and the check."""
    X, y = table(120, 0)
    new, outcome = table(2000, 1)
    model = TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0).fit(X, y)
    grid = np.linspace(0.0, 6.0, 200)[:, None]
    mean, std = model.predict(grid, return_std=True)
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    one, two, three, four = figure.subplots(2, 2).ravel()

    one.plot(X[:, 0], y, ".", color=INK, markersize=4)
    one.plot(grid[:, 0], mean, color=MODEL)
    tidy(one, "x", "y")
    one.set_title("1. The mean, chosen by held-out errors", fontsize=10, color=INK)

    residuals = model.mean_.heldout_residuals * y.std()
    two.plot(X[:, 0], residuals, ".", color=INK, markersize=4)
    two.fill_between(grid[:, 0], -1.96 * std, 1.96 * std, color=MODEL, alpha=0.2, linewidth=0)
    two.axhline(0.0, color=MUTED, linewidth=0.8)
    tidy(two, "x", "held-out residual")
    two.set_title("2. Its errors on held-out rows", fontsize=10, color=INK)

    plot_band(three, grid, mean, model.predict_interval(grid), X[:, 0], y)
    three.plot(grid[:, 0], np.sin(2.0 * grid[:, 0]) + 0.5 * grid[:, 0], "--", color=TRUTH)
    tidy(three, "x", "y")
    three.set_title("3. Mean and calibrated 95 % interval", fontsize=10, color=INK)

    plot_pit(four, model.predict_pit(new, outcome))
    four.set_title("4. Check of calibration on 2000 new rows", fontsize=10, color=INK)
    return figure
