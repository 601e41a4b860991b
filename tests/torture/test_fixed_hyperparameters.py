"""Hard tables at fixed hyperparameters: changes of the input that must not change predictions."""

import zlib

import numpy as np
import pytest
import torch
from invariants import KERNELS, Fixed, close, places, usable

from benchmarks.hard_tables import TABLES, hard_table

#: Each table with one kernel in the default suite, with the others in the long form.
SHORT = [(name, KERNELS[zlib.crc32(name.encode()) % len(KERNELS)]) for name in TABLES]
LONG = [
    pytest.param(name, kernel, marks=pytest.mark.torture)
    for name in TABLES
    for kernel in KERNELS
    if (name, kernel) not in SHORT
]
every_table = pytest.mark.parametrize(("name", "kernel"), [*SHORT, *LONG])
some_tables = pytest.mark.parametrize(("name", "kernel"), [*SHORT[::4], *LONG])
ENGINES = ("exact", "neighbors")


def drawn(name, kernel):
    """Return the table; in the long form each kernel gets a seed of its own."""
    table = hard_table(name, 0 if (name, kernel) in SHORT else KERNELS.index(kernel))
    if not usable(table):
        pytest.skip("nothing to condition on")
    return table


@every_table
def test_neither_units_nor_order_nor_a_constant_column_change_anything(name, kernel):
    table = drawn(name, kernel)
    X, Z, scale = table.X, places(table), np.std(table.y)
    order = np.random.default_rng(0).permutation(len(X))
    padded, padded_Z = (np.insert(V, 0, 7.0, axis=1) for V in (X, Z))
    for engine in ENGINES:

        def gp(X, y, engine=engine):
            return Fixed(X, y, kernel, engine=engine)

        mean, std = gp(X, table.y).predict(Z)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        # Sums in another order, of a target that may be far from zero.
        rounding = 1e-9 * (1.0 + np.abs(table.y).max() / scale * 1e-3)
        close(gp(X[order], table.y[order]).predict(Z), (mean, std), scale, 0.0)
        close(gp(padded, table.y).predict(padded_Z), (mean, std), scale, 1e-10)
        for a, b in ((-3.0, 10.0 * scale), (1e6, 0.0), (2.0**-40, 0.0)):
            found = gp(X, a * table.y + b).predict(Z)
            close(found, (a * mean + b, abs(a) * std), abs(a) * scale, rounding)


@some_tables
def test_rows_are_predicted_alone_as_in_a_batch(name, kernel):
    table = drawn(name, kernel)
    Z, scale = places(table), np.std(table.y)
    for engine in ENGINES:
        gp = Fixed(table.X, table.y, kernel, engine=engine)
        mean, std = gp.predict(Z)
        for i in (0, 25, len(Z) - 1):
            i = min(i, len(Z) - 1)
            one = gp.predict(Z[i : i + 1])
            # The distance of a row to itself is rounding, and a Matérn 1/2 feels its root.
            close(one, (mean[i : i + 1], std[i : i + 1]), scale, 1e-7)


@some_tables
def test_more_noise_never_narrows_an_interval(name, kernel):
    table = drawn(name, kernel)
    Z, scale = places(table), np.std(table.y)
    before = 0.0
    for noise in (1e-6, 1e-3, 1.0, 1e3):
        _, std = Fixed(table.X, table.y, kernel, noise).predict(Z)
        assert (std >= before - 1e-9 * scale).all()
        before = std


@some_tables
def test_single_precision_is_near_double(name, kernel):
    table = drawn(name, kernel)
    Z, scale = places(table), np.std(table.y)
    expected = Fixed(table.X, table.y, kernel, 0.1).predict(Z)
    found = Fixed(table.X, table.y, kernel, 0.1, dtype=torch.float32).predict(Z)
    close(found, expected, scale, 5e-3)
