"""Lanes: eight small problems side by side, and how the loops over them are compiled.

A batch of small matrices is slow in a library that factorises one after the other: a row of 50
numbers is too short for vector instructions. Here :data:`LANES` problems are interleaved, entry
(i, j) of problem l at ``K[i, j, l]``, so that every scalar operation of the textbook algorithm is
one vector operation on all of them, with no short loops and no remainders.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BLOCK", "DEGREE", "FAR", "LANES", "OPTIONS", "SERIES", "SQUARES"]

#: Problems side by side: one register of doubles with AVX-512, two with AVX2, four with NEON.
LANES = 8
#: Points of a leaf of the neighbour tree: four vectors.
BLOCK = 32

#: exp(-x) is computed as exp(-FAR), 3e-20, for larger x: nothing is lost, and no number becomes so
#: small that arithmetic with it is slow.
FAR = 45.0
#: exp(-x) is the series of exp(-x/256) to this power, squared eight times: 1e-13 on [0, FAR].
SERIES, SQUARES = 10, 8
#: Largest degree of the polynomial of an :class:`~twostagegp.kernels.catalogue.ExponentialForm`.
DEGREE = 3

#: How every function of this package is compiled. NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
}
