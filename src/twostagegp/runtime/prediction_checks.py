"""Check predictions: NaN and infinity become an error, as do failures of inner estimators.

Inputs far outside the range of the fit, or a manipulated model file, can lead to overflow. Without
this check, NaN or infinity among the predictions might be noticed only much later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError, NumericalError, TwoStageGPError

__all__ = ["predict_with", "require_finite"]


def require_finite(*predictions: NDArray[np.float64] | None) -> None:
    """Raise NumericalError if a prediction is NaN or infinite.

    Parameters
    ----------
    predictions : arrays with one row per prediction, or None

    Examples
    --------
    >>> import numpy as np
    >>> require_finite(np.zeros(3), None)
    >>> require_finite(np.array([0.0, np.nan]))
    Traceback (most recent call last):
      ...
    twostagegp.errors.NumericalError: 1 of 2 predictions is not finite, the first in row 1: ...
    """
    for values in predictions:
        if values is None or np.isfinite(values).all():
            continue
        bad = [not np.isfinite(row).all() for row in values]
        verb = "is" if sum(bad) == 1 else "are"
        raise NumericalError(
            f"{sum(bad)} of {len(bad)} predictions {verb} not finite, the first in row "
            f"{bad.index(True)}: the computation overflowed. Check X for values far outside the "
            "range of the training rows, or fit the model again if it was loaded from a file."
        )


def predict_with(model: Any, X: Any, method: str = "predict", **options: Any) -> Any:
    """Return the prediction of an estimator; turn its ValueError into an InputError."""
    try:
        return getattr(model, method)(X, **options)
    except TwoStageGPError:
        raise
    except ValueError as error:
        name = type(model).__name__
        raise InputError(f"the {name} inside the model cannot predict: {error}") from error
