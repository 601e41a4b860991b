"""Predictions for a file, chunk by chunk, for ``twostagegp predict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twostagegp.cli.formats import format_of
from twostagegp.cli.models import SavedModel
from twostagegp.cli.output import Progress
from twostagegp.cli.sink import open_sink
from twostagegp.cli.source import Source
from twostagegp.errors import InputError
from twostagegp.estimators.prediction import summary

__all__ = ["OutputColumns", "predict_file"]


@dataclass(frozen=True)
class OutputColumns:
    """The columns that are predicted.

    Attributes
    ----------
    saved : SavedModel
    intervals, quantiles : list of float
        Their levels.
    prefix : str
        Prefix of the names of the columns.
    with_support : bool
        Whether a column says how near training rows are.
    """

    saved: SavedModel
    intervals: list[float]
    quantiles: list[float]
    prefix: str = ""
    with_support: bool = False

    @classmethod
    def for_model(
        cls,
        saved: SavedModel,
        intervals: list[float],
        quantiles: list[float],
        prefix: str,
        with_support: bool = False,
    ) -> OutputColumns:
        """Check that the model can predict these columns, and return them."""
        if saved.is_classifier:
            if intervals or quantiles or with_support:
                raise InputError(
                    f"{saved.path} is a classifier; --interval, --quantiles and --support are for "
                    "regression."
                )
            return cls(saved, [], [], prefix)
        if quantiles and not hasattr(saved.model, "predict_quantiles"):
            raise InputError(f"{type(saved.model).__name__} predicts intervals, but not quantiles.")
        if with_support and not hasattr(saved.model, "predict_quantiles"):
            raise InputError(f"{type(saved.model).__name__} does not know the support of a row.")
        return cls(saved, intervals or [0.95], quantiles, prefix, with_support)

    @property
    def names(self) -> list[str]:
        """Names of the new columns."""
        if self.saved.is_classifier:
            plain = ["class", "certain", *(f"p_{c}" for c in self.saved.model.classes_.tolist())]
        else:
            plain = ["mean"] + ["std"] * hasattr(self.saved.model, "predict_quantiles")
            plain += [f"{end}_{p:g}" for p in self.intervals for end in ("lower", "upper")]
            plain += [f"q_{p:g}" for p in self.quantiles] + ["support"] * self.with_support
        return [self.prefix + name for name in plain]

    def columns(self, X: Any) -> list[Any]:
        """Predict the columns for some rows."""
        model = self.saved.model
        if self.saved.is_classifier:
            P = model.predict_proba(X)
            labels = model.classes_[P.argmax(1)].tolist()
            return [labels, model.predict_certainty(X), *P.T]
        if not hasattr(model, "predict_quantiles"):  # CVPlusRegressor
            ends = [model.predict_interval(X, level).T for level in self.intervals]
            return [model.predict(X), *(end for pair in ends for end in pair)]
        ends = [0.5 + side * p / 2.0 for p in self.intervals for side in (-1.0, 1.0)]
        mean, std, quantiles = summary(model, X, np.array([*ends, *self.quantiles]))
        more = [model.predict(X, return_support=True)[1]] if self.with_support else []
        return [mean, std, *quantiles.T, *more]


def predict_file(
    saved: SavedModel,
    source: Source,
    output: Path,
    output_columns: OutputColumns,
    keep: Sequence[str],
    chunk_rows: int,
    guard: bool,
    tell: Progress,
) -> int:
    """Predict every row of a file, write the output, and return the number of rows."""
    names = [*keep, *output_columns.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"the output would have two columns {twice[0]!r}; use a prefix for the new ones, for "
            "example --prefix predicted_."
        )
    with_types = format_of(output) in ("parquet", "feather") and source.text is not None
    done = 0
    with open_sink(output, guard) as sink:
        for rows in saved.rows(source, chunk_rows, keep, with_types=with_types):
            try:
                new = output_columns.columns(rows.X)
            except InputError as error:
                raise InputError(f"{rows.where}: {error}") from error
            kept = [rows.kept[name] for name in keep]
            sink.write(pa.table([*kept, *(pa.array(column) for column in new)], names=names))
            done += len(rows.X)
            tell(rows.done, done)
    return done
