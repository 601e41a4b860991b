"""Many inputs: slices along the most important ones, with names of categories and dates."""

import numpy as np
import pandas as pd

from twostagegp import ExactGPRegressor


def houses(n=200, seed=0):
    """Return an artificial table of houses and their prices."""
    rng = np.random.default_rng(seed)
    states = ["poor", "fair", "good"]
    X = pd.DataFrame(
        {
            "area (m²)": rng.uniform(30.0, 150.0, n),
            "quarter": rng.choice(["north", "south", "harbour"], n),
            "state": pd.Categorical(rng.choice(states, n), states, ordered=True),
            "garden": rng.random(n) < 0.3,
            "sold": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        }
    )
    price = 3.0 * X["area (m²)"] + 80.0 * (X["quarter"] == "harbour")
    price = price + 30.0 * X["state"].cat.codes + 0.1 * (X["sold"] - X["sold"].min()).dt.days
    return X, (price + 20.0 * rng.normal(size=n)).rename("price")


def draw():
    """Draw slices along the four most important inputs, found by shuffling each."""
    X, price = houses()
    return ExactGPRegressor("matern32", ard=True, random_state=0).fit(X, price).plot()[0].figure


if __name__ == "__main__":
    draw().savefig("slices.svg")
