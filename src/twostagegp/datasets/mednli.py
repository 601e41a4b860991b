"""MedNLI: does a sentence about a patient follow from one of the patient's history?

The pairs of a premise and a hypothesis were written for clinical notes of real patients, so they
are given out by PhysioNet to people who have signed a data use agreement. Nothing here downloads
them: :func:`load_mednli` reads the files that the user has.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twostagegp.datasets.tables import DatasetNotFoundError
from twostagegp.errors import InputError

__all__ = ["CLASSES", "HOW_TO_GET", "MedNLI", "SentencePairs", "load_mednli"]

#: The labels, in alphabetical order.
CLASSES = ("contradiction", "entailment", "neutral")
HOW_TO_GET = (
    "MedNLI cannot be downloaded for you: its licence has to be signed. Ask for access at "
    "https://physionet.org/content/mednli/ and read your copy with datasets.load_mednli(folder)."
)


@dataclass(frozen=True, eq=False)  # eq: arrays have no single truth value to compare by
class SentencePairs:
    """Pairs of sentences with a label each.

    Attributes
    ----------
    pairs : list of (str, str)
        Premise and hypothesis, as :class:`twostagegp.foundation.TextEncoder` takes them.
    labels : ndarray of shape (n,), str
        One of :data:`CLASSES` each.
    """

    pairs: list[tuple[str, str]]
    labels: NDArray[np.str_]


@dataclass(frozen=True)
class MedNLI:
    """The three parts of MedNLI, as its files divide it."""

    train: SentencePairs
    dev: SentencePairs
    test: SentencePairs


def load_mednli(folder: str | os.PathLike[str]) -> MedNLI:
    """Read MedNLI from the user's own copy.

    Parameters
    ----------
    folder : path-like
        Where ``mli_train_v1.jsonl``, ``mli_dev_v1.jsonl`` and ``mli_test_v1.jsonl`` are.

    Raises
    ------
    DatasetNotFoundError
        Where a file is missing.
    InputError
        For a line that is no pair with a label; it names file and line, and not the text.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> line = '{"sentence1": "No fever.", "sentence2": "He is warm.", "gold_label": "neutral"}'
    >>> for part in ("train", "dev", "test"):
    ...     _ = (folder / f"mli_{part}_v1.jsonl").write_text(line)
    >>> data = load_mednli(folder)
    >>> data.train.pairs, data.train.labels.tolist()
    ([('No fever.', 'He is warm.')], ['neutral'])
    """
    parts = {
        part: _read(Path(folder) / f"mli_{part}_v1.jsonl") for part in ("train", "dev", "test")
    }
    return MedNLI(**parts)


def _read(path: Path) -> SentencePairs:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DatasetNotFoundError(f"no file {path}. {HOW_TO_GET}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is no UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    # split, and not splitlines: a sentence may hold a separator of Unicode that JSON allows
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows = [_row(line, f"{path}, line {i}") for i, line in lines]
    if not rows:
        raise InputError(f"{path} is empty")
    return SentencePairs(
        pairs=[(premise, hypothesis) for premise, hypothesis, _ in rows],
        labels=np.array([label for _, _, label in rows]),
    )


def _row(line: str, place: str) -> tuple[str, str, str]:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place} is no JSON ({error.msg}): is the file whole?") from None
    if not isinstance(item, dict):
        raise InputError(f"{place} is no JSON object")
    values = [item.get(key) for key in ("sentence1", "sentence2", "gold_label")]
    if not all(isinstance(value, str) for value in values):
        raise InputError(f"{place} lacks a text sentence1, sentence2 or gold_label")
    premise, hypothesis, label = map(str, values)
    if label not in CLASSES:
        raise InputError(f"{place} has the label {label!r}, which is none of {', '.join(CLASSES)}")
    return premise, hypothesis, label
