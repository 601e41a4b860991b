"""One interface to the predictions of regressors and classifiers: a centre and a band per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.plotting.slices.tables import as_given

__all__ = ["Answers"]

Array = NDArray[np.float64]

#: Number of draws from which the band of a probability is computed.
_DRAWS = 200


class Answers:
    """Predictions of a fitted model for frames of the user's columns.

    Parameters
    ----------
    model : fitted regressor or classifier of this package
    level : float
        Probability of the bands.

    Attributes
    ----------
    names : list
        One per column of the predictions: ``None`` for a single target, 0, 1, … for several
        targets, or the classes. Of two classes only the second is included, since the two
        probabilities sum to 1.
    """

    def __init__(self, model: Any, level: float = 0.95) -> None:
        self.model, self.level = model, level
        self.classes = getattr(model, "classes_", None)
        if self.classes is not None:
            self.names: list[Any] = list(self.classes)[1 if len(self.classes) == 2 else 0 :]
        else:
            fitted = model.fitted_
            self.names = [None] if fitted.is_1d else list(range(len(fitted.targets)))

    def middle(self, frame: pd.DataFrame) -> Array:
        """Return means or probabilities, shape (n, len(names))."""
        X = as_given(self.model, frame)
        if self.classes is None:
            return np.asarray(self.model.predict(X)).reshape(len(frame), -1)
        p: Array = self.model.predict_proba(X)
        return p[:, -len(self.names) :]

    def band(self, frame: pd.DataFrame) -> Array:
        """Return the interval of an observation or of a probability, shape (n, len(names), 2)."""
        X = as_given(self.model, frame)
        if self.classes is None:
            ends = np.asarray(self.model.predict_interval(X, level=self.level))
            return ends.reshape(len(frame), -1, 2)
        draws = self.model.sample_proba(X, n_samples=_DRAWS, random_state=0)
        tails = [0.5 - self.level / 2.0, 0.5 + self.level / 2.0]
        ends = np.quantile(draws, tails, axis=0)[..., -len(self.names) :]
        return np.moveaxis(ends, 0, -1)
