"""The models that are compared, by the short names that the command line uses.

``paper``, ``single_paper`` and ``sod`` are the paper's settings as printed; ``single`` shows what
the paper's baseline could have been, had it been trained to the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import twostagegp
from twostagegp import ExactGPRegressor, TwoStageGPRegressor

__all__ = ["LABELS", "MODELS", "code_version", "provenance"]

#: Each takes constructor parameters such as ``random_state`` and ``device``.
MODELS: Mapping[str, Callable[..., Any]] = {
    "default": TwoStageGPRegressor,
    "paper": TwoStageGPRegressor.from_paper,
    "single_paper": lambda **given: ExactGPRegressor.from_paper(table=5, **given),
    "single": lambda **given: ExactGPRegressor("rbf", ard=True, **given),
    "sod": lambda **given: ExactGPRegressor.from_paper(table=3, **given),
}

LABELS: Mapping[str, str] = {
    "default": "two-stage (ours, default)",
    "paper": "two-stage as printed",
    "single_paper": "single stage as printed",
    "single": "single stage, trained to the end",
    "sod": "single stage, subset of data, as printed",
}


@cache
def code_version() -> str:
    """A short hash of the package's source, as figures of two states of it must not be mixed."""
    folder = Path(twostagegp.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:10]


def provenance(records: list[dict[str, Any]]) -> str:
    """One sentence on the code that the records come from."""
    versions = sorted({(r["version"], r["code"]) for r in records})
    listed = ", ".join(f"{version} (source {code})" for version, code in versions)
    note = "**Mixed states of the code**: " if len(versions) > 1 else ""
    return f"{note}twostagegp {listed}; {len(records)} fits."
