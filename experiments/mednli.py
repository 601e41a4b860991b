"""MedNLI: does a statement about a patient follow from a sentence of the medical record?

The premises are sentences of clinical notes of real patients. PhysioNet gives the data to people
who have signed a data use agreement, so nothing here downloads them: :func:`load_mednli` reads the
user's own copy.
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
    "MedNLI cannot be downloaded automatically because its licence has to be signed. Request "
    "access at https://physionet.org/content/mednli/ and read your copy with load_mednli(folder)."
)


@dataclass(frozen=True, eq=False)  # eq: arrays have no single truth value to compare by
class SentencePairs:
    """Pairs of sentences with one label per pair.

    Attributes
    ----------
    pairs : list of (str, str)
        Premise and hypothesis, as :class:`twostagegp.foundation.TextEncoder` takes them.
    labels : ndarray of shape (n,), str
        Each is one of :data:`CLASSES`.
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
        If a file is missing.
    InputError
        If a line is not a labelled pair. The message names the file and the line, not the text.

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
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    # split instead of splitlines: a sentence may contain Unicode line separators, as JSON allows
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
        raise InputError(f"{place} is not JSON ({error.msg}): is the file complete?") from None
    if not isinstance(item, dict):
        raise InputError(f"{place} is not a JSON object")
    values = [item.get(key) for key in ("sentence1", "sentence2", "gold_label")]
    if not all(isinstance(value, str) for value in values):
        raise InputError(f"{place} lacks sentence1, sentence2 or gold_label as text")
    premise, hypothesis, label = map(str, values)
    if label not in CLASSES:
        raise InputError(f"{place} has the label {label!r}; expected one of {', '.join(CLASSES)}")
    return premise, hypothesis, label
