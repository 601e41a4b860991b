"""Outside the data: the method as printed and the default, one function of one input."""

import numpy as np
from matplotlib.figure import Figure

from twostagegp import TwoStageGPRegressor
from twostagegp.plotting import INK, TRUTH, plot_band


def draw():
    """Draw 95 % bands of both models from -8 to 8; the training rows lie in [-3, 3]."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-3.0, 3.0, 120)
    y = np.sin(2.0 * x) + 0.2 * rng.normal(size=120)
    grid = np.linspace(-8.0, 8.0, 321)[:, None]
    models = {
        "As printed": TwoStageGPRegressor.from_paper(variance="rbf", random_state=0),
        "Default": TwoStageGPRegressor(random_state=0),
    }
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    for axes, (title, model) in zip(
        figure.subplots(1, 2, sharey=True), models.items(), strict=True
    ):
        model.fit(x[:, None], y)
        plot_band(axes, grid, model.predict(grid), model.predict_interval(grid), x, y)
        axes.plot(grid[:, 0], np.sin(2.0 * grid[:, 0]), "--", color=TRUTH, linewidth=1.0)
        axes.set_ylim(-5.0, 5.0)
        axes.set_title(title, fontsize=10, color=INK)
    return figure


if __name__ == "__main__":
    draw().savefig("outside.svg")
