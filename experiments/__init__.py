"""Experiments: the paper's tables and figures, and data whose truth is known.

- ``python -m experiments list``: the tables and figures of the paper, one module each;
  ``python -m experiments all --quick`` runs them all in a small form.
- ``python -m experiments.kernel_recovery``: does a kernel search find the kernel?
- ``python -m experiments.misspecification_tests``: level, power and diagnosis of the tests.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["RESULTS"]

#: Folder of the stored results.
RESULTS = Path(__file__).parent / "results"
