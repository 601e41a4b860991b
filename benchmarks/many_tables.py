"""Random training and test rows of many public tables, in any number that a table has.

Thirty-five tables are real: diabetes, which scikit-learn ships; the eight small and ten larger
tables of numbers; and sixteen data frames with categories, gaps, counts and skewed targets, which
are passed to a model as they are (``real_tables/NAME.csv.gz`` in the data folder, from the
collection Rdatasets). ``generated`` is the function of :mod:`benchmarks.neighbors_scale` with
noise; it needs no data, and nor do the generated tables of :mod:`benchmarks.known_laws`, which are
drawn from in the same way.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.known_laws import LAWS
from benchmarks.known_laws import generate as generate_law
from twostagegp import datasets

__all__ = ["GENERATED", "REAL_TABLES", "TABLES", "Draw", "draw", "load", "n_rows", "take"]

Array = NDArray[np.float64]

#: Data frames, with their targets.
REAL_TABLES: Mapping[str, str] = {
    "affairs": "affairs",
    "ames": "Sale_Price",
    "birthwt": "bwt",
    "carseats": "Sales",
    "caschools": "read",
    "chickweight": "weight",
    "computers": "price",
    "doctorvisits": "visits",
    "evals": "score",
    "hitters": "Salary",
    "houseprices": "price",
    "mpg": "hwy",
    "psid1976": "hours",
    "quakes": "mag",
    "salaries": "salary",
    "wage": "wage",
}
#: Tables of numbers, which :func:`twostagegp.datasets.load` reads.
NUMERIC = (
    *("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval"),
    *("poletele", "pol", "bike", "protein", "keggdirected", "house_electric_part"),
    *("road3d_part", "diamonds", "flights", "elevation"),
)
TABLES = ("diabetes", *NUMERIC, *REAL_TABLES)
GENERATED = "generated"
GENERATED_ROWS = 120_000


@dataclass(frozen=True)
class Draw:
    """Training rows and other rows; the inputs are arrays or data frames."""

    X: Any
    y: Array
    X_test: Any
    y_test: Array


@lru_cache(maxsize=2)
def load(name: str) -> tuple[Any, Array]:
    """Return inputs, an array or a data frame, and target of a table."""
    if name == GENERATED:
        from benchmarks.neighbors_scale import draw as generate

        return generate(GENERATED_ROWS, seed=0)
    if name in LAWS:
        return generate_law(name)
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(return_X_y=True)
    if name in REAL_TABLES:
        return _data_frame(name)
    data = datasets.load(name)
    return data.X, data.y


def n_rows(name: str) -> int:
    """Return the number of rows of a table."""
    return len(load(name)[1])


def draw(name: str, rows: int, number: int, test_rows: int = 1000) -> Draw:
    """Return ``rows`` random training rows and at most ``test_rows`` others.

    The same name, rows and number always give the same draw.
    """
    X, y = load(name)
    seed = [number, rows, zlib.crc32(name.encode())]
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:rows], order[rows : rows + test_rows]
    return Draw(take(X, train), y[train], take(X, test), y[test])


def take(X: Any, index: NDArray[np.intp]) -> Any:
    """Return some rows of an array or a data frame."""
    return X.iloc[index].reset_index(drop=True) if hasattr(X, "iloc") else X[index]


def _data_frame(name: str) -> tuple[Any, Array]:
    import pandas as pd

    folder = os.environ.get(datasets.FOLDER_VARIABLE)
    path = Path(folder or "", "real_tables", f"{name}.csv.gz")
    if not folder or not path.is_file():
        raise datasets.DatasetNotFoundError(
            f"no file for the table {name!r}. Set the environment variable "
            f"{datasets.FOLDER_VARIABLE} to a folder that has real_tables/{name}.csv.gz."
        )
    frame, target = pd.read_csv(path), REAL_TABLES[name]
    frame = frame[frame[target].notna()].reset_index(drop=True)
    return frame.drop(columns=target), frame[target].to_numpy(dtype=np.float64)
