"""One input: the prediction with its interval, and the training rows."""

import numpy as np

from twostagegp import TwoStageGPRegressor


def draw():
    """Draw a table whose noise grows with x, and an interval that widens accordingly."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, 120))
    y = np.sin(x) + (0.05 + 0.05 * x) * rng.normal(size=120)
    model = TwoStageGPRegressor(kernels=("rbf", "matern32"), ard=False, random_state=0)
    return model.fit(x[:, None], y).plot()[0].figure


if __name__ == "__main__":
    draw().savefig("band.svg")
