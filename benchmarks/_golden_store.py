"""Outcomes of golden fits on disk, and the comparison of a new outcome with a stored one.

One npz file per configuration, and ``facts.json`` with the state of the code and the machine. Files
are replaced as a whole: an interrupted run leaves each of them old or new.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch
from numpy.typing import NDArray

from benchmarks._golden_outputs import Outcome
from measurements.provenance import code_version
from measurements.store import write_whole

__all__ = ["Comparison", "Store", "compare", "facts"]

#: Largest difference, in standard deviations of the target, that passes for rounding.
ROUNDING = 1e-10


def facts() -> dict[str, str]:
    """Return the state of the code and the machine, on which the last bits depend."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit or "unknown",
        "source": code_version(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "sklearn": sklearn.__version__,
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Store:
    """A folder with one outcome per configuration."""

    folder: Path

    def names(self) -> list[str]:
        """Return the names of the stored configurations."""
        return sorted(path.stem for path in self.folder.glob("*.npz"))

    def write(self, name: str, outcome: Outcome) -> None:
        """Store an outcome in place of an earlier one."""
        arrays: dict[str, Any] = {"unit": np.array(outcome.unit)}
        arrays |= {f"number:{key}": value for key, value in outcome.numbers.items()}
        arrays |= {f"text:{key}": np.array(value) for key, value in outcome.text.items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        _replace(self.folder / f"{name}.npz", buffer.getvalue())

    def read(self, name: str) -> Outcome:
        """Return the stored outcome of a configuration."""
        made = Outcome()
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
            made.unit = float(file["unit"])
            for key in file.files:
                kind, _, output = key.partition(":")
                if kind == "number":
                    made.numbers[output] = file[key]
                elif kind == "text":
                    made.text[output] = str(file[key])
        return made

    def remove(self, names: Iterable[str]) -> None:
        """Delete the outcomes of these configurations."""
        for name in names:
            (self.folder / f"{name}.npz").unlink()

    def facts(self) -> dict[str, dict[str, str]]:
        """Return the facts of every stored configuration, by name."""
        path = self.folder / "facts.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def write_facts(self, written: Iterable[str], now: Mapping[str, str]) -> None:
        """Note the facts of configurations that were written now; others keep theirs."""
        known = self.facts() | {name: dict(now) for name in written}
        kept = {name: known[name] for name in self.names() if name in known}
        write_whole(self.folder / "facts.json", json.dumps(kept, indent=1) + "\n")


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@dataclass(frozen=True)
class Comparison:
    """How a new outcome differs from the stored one.

    Attributes
    ----------
    status : {"identical", "rounding", "DIFFERENT"}
    largest : float
        Largest difference in units of the output; infinite for texts and shapes.
    where : str
        The output with the largest difference; empty if all are identical.
    """

    status: str
    largest: float
    where: str = ""


def compare(stored: Outcome, new: Outcome) -> Comparison:
    """Compare all numbers and texts of two outcomes."""
    changed = {
        f"{name}: {stored.text.get(name)!r} became {new.text.get(name)!r}": np.inf
        for name in stored.text.keys() | new.text.keys()
        if stored.text.get(name) != new.text.get(name)
    }
    for name in stored.numbers.keys() | new.numbers.keys():
        if name not in stored.numbers or name not in new.numbers:
            changed[f"{name}: {'no longer' if name in stored.numbers else 'newly'} given"] = np.inf
        elif not _same_bits(stored.numbers[name], new.numbers[name]):
            difference = _difference(stored.numbers[name], new.numbers[name])
            changed[name] = difference / stored.scale(name)
    if not changed:
        return Comparison("identical", 0.0)
    largest = max(changed.values())
    worst = sorted(name for name, value in changed.items() if value == largest)
    status = "rounding" if largest <= ROUNDING else "DIFFERENT"
    more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
    return Comparison(status, largest, worst[0] + more)


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest difference; infinite if shapes, kinds or non-finite entries differ."""
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gaps = np.where(equal, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(gaps), np.inf, gaps).max(initial=0.0))
