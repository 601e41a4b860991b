"""A saved model, and the rows of a file in the columns and types of its fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from twostagegp.cli.column_types import as_numbers, conform, number_columns
from twostagegp.cli.source import Source
from twostagegp.errors import InputError
from twostagegp.storage.folder import read_manifest
from twostagegp.storage.model import load

__all__ = ["Rows", "SavedModel", "open_model"]


@dataclass(frozen=True)
class Rows:
    """Rows for a model.

    Attributes
    ----------
    X : DataFrame or array
    rest : DataFrame
        Other columns, such as the target.
    kept : pyarrow Table
        Columns that are copied to the output.
    where : str
        The file and the row numbers, for messages.
    first : int
        Number of the first row, from 0.
    done : float
        Share of the file that has been read.
    """

    X: Any
    rest: pd.DataFrame
    kept: pa.Table
    where: str
    first: int
    done: float


@dataclass(frozen=True)
class SavedModel:
    """A model, and what its manifest says about the table of the fit."""

    model: Any
    path: Path
    table: dict[str, str]

    @property
    def is_classifier(self) -> bool:
        """Whether it predicts classes."""
        return hasattr(self.model, "predict_proba")

    @property
    def target(self) -> str | None:
        """Name of the target, if the command line has fitted the model."""
        return self.table.get("target")

    def features(self, source: Source) -> list[str]:
        """Return the columns of a file that are the inputs of the model, in its order."""
        names = getattr(self.model, "feature_names_in_", None)
        if names is not None:
            source.require([str(name) for name in names], "the model was fitted with it")
            return [str(name) for name in names]
        wanted = self.model.n_features_in_
        others = [name for name in source.names if name != self.target]
        if len(others) != wanted:
            raise InputError(
                f"{self.path} was fitted to {wanted} columns without names, but {source.path} has "
                f"{len(others)}; use a file with the same columns in the same order."
            )
        return others

    def rows(
        self,
        source: Source,
        size: int,
        keep: Sequence[str] = (),
        rest: Sequence[str] = (),
        with_types: bool = True,
    ) -> Iterator[Rows]:
        """Yield the rows of a file in the types of the fit, at most ``size`` at a time.

        Parameters
        ----------
        source : Source
        size : int
        keep, rest : sequence of str
            Columns for the output, and others that are needed.
        with_types : bool
            Whether kept columns of a CSV file that are numbers in the model become numbers;
            otherwise they stay text.
        """
        names = self.features(source)
        encoder = getattr(self.model, "columns_", None)
        rules = None if encoder is None else encoder.rules_
        numbers = number_columns(rules, names)
        wanted = list(dict.fromkeys([*names, *rest]))
        for chunk in source.chunks(wanted, numbers, keep, size):
            last = chunk.first + len(chunk.frame)
            try:
                X = conform(chunk.frame[names], rules, chunk.first, source.decimal)
            except InputError as error:
                raise InputError(f"{source.path}: {error}") from error
            kept = _with_numbers(chunk.kept, X, numbers) if with_types else chunk.kept
            named = hasattr(self.model, "feature_names_in_")
            yield Rows(
                X if named else X.to_numpy(),
                chunk.frame[list(rest)],
                kept,
                f"{source.path}, rows {chunk.first + 1} to {last}",
                chunk.first,
                chunk.done,
            )

    def outcomes(self, series: pd.Series, first: int, decimal: str) -> NDArray[Any]:
        """Return the target of some rows without missing values, in the type of the fit."""
        if not self.is_classifier:
            return as_numbers(series, first, decimal).to_numpy()
        classes = self.model.classes_
        known = {_text(label): label for label in classes.tolist()}
        values = [_text(value) for value in series]
        for value, row in zip(values, series.index, strict=True):
            if value not in known:
                listed = ", ".join(list(known)[:20])
                raise InputError(
                    f"the target {series.name!r} is {value!r} in row {first + int(row) + 1}; the "
                    f"model knows the classes {listed}."
                )
        return np.array([known[value] for value in values], dtype=classes.dtype)


def _text(value: Any) -> str:
    """Return a label as text; 1 and 1.0 are equal, and so are true and True."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value)
    return text.lower() if text in ("True", "False", "TRUE", "FALSE") else text


def _with_numbers(kept: pa.Table, X: pd.DataFrame, numbers: set[str]) -> pa.Table:
    """Return kept columns of a CSV file, with those that the model knows as numbers converted."""
    for k, name in enumerate(kept.column_names):
        if name in numbers:
            kept = kept.set_column(k, name, pa.array(X[name], pa.float64(), from_pandas=True))
    return kept


def open_model(path: Path) -> SavedModel:
    """Load a model that ``fit`` or ``model.save`` has written."""
    table = read_manifest(path).get("table")
    model = load(path)
    if not getattr(getattr(model, "fitted_", None), "is_1d", True):
        raise InputError(
            f"{path} is a model of several targets; the command line predicts one. Use "
            "twostagegp.load in Python."
        )
    return SavedModel(model, path, table if isinstance(table, dict) else {})
