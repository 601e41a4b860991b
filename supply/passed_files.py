"""List the files of the package in which a function runs during a fit and during a prediction.

    PYTHONPATH=src python supply/passed_files.py

fits one small table with the exact method and one with neighbours, and prints JSON: the files by
method and call. Everything is done twice and watched the second time, so that the modules which
the first call imports do not count as passed through. Compiled functions cannot be watched; the
Python functions that call them can.

The program is run by its path, so that `supply.structure` can point it at another version of the
package.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import twostagegp

__all__ = ["files_passed"]


def files_passed(action: Callable[[], Any], folder: Path) -> list[str]:
    """Call ``action``; return the files under ``folder`` in which a Python function ran."""
    passed: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            passed.add(frame.f_code.co_filename)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = (Path(name) for name in passed if name.startswith(f"{folder}/"))
    return sorted(path.relative_to(folder).as_posix() for path in inside)


def main() -> None:
    """Print the files of both methods."""
    folder = Path(twostagegp.__file__).parent
    rng = np.random.default_rng(0)
    result: dict[str, dict[str, list[str]]] = {}
    for method, n_rows in (("exact", 100), ("neighbors", 600)):
        X = rng.normal(size=(n_rows, 3))
        y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n_rows)
        model = twostagegp.TwoStageGPRegressor(method, random_state=0, n_jobs=1)
        model.fit(X, y).predict(X[:5], return_std=True)
        result[method] = {
            "fit": files_passed(lambda m=model, X=X, y=y: m.fit(X, y), folder),
            "predict": files_passed(lambda m=model, X=X: m.predict(X[:5], return_std=True), folder),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
