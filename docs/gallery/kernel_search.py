"""Scores of several kernels on common subsamples, best on top."""

import numpy as np

from twostagegp import search_kernel


def draw():
    """Search a kernel for a function with a kink: neither the smoothest nor the roughest wins."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(150, 1))
    y = np.abs(X[:, 0]) + 0.05 * rng.normal(size=150)
    kernels = ("rbf", "matern52", "matern32", "matern12")
    return search_kernel(X, y, kernels, n_repeats=10, subsample=60, random_state=0).plot().figure


if __name__ == "__main__":
    draw().savefig("kernel_search.svg")
