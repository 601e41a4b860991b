"""Two inputs: maps of the mean and of the standard deviation."""

import numpy as np
import pandas as pd

from twostagegp import ExactGPRegressor


def draw():
    """Draw a table without training rows in one corner, where the standard deviation is large."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(0.0, 1.0, size=(120, 2)), columns=["longitude", "latitude"])
    X = X[(X["longitude"] < 0.6) | (X["latitude"] < 0.6)]
    y = np.sin(5.0 * X["longitude"]) + X["latitude"] ** 2 + 0.1 * rng.normal(size=len(X))
    return ExactGPRegressor("matern52", random_state=0).fit(X, y).plot()[0].figure


if __name__ == "__main__":
    draw().savefig("maps.png", dpi=90)
