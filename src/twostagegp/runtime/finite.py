"""Predictions are numbers, or there is an error that says why not.

Inputs far outside of everything, or a model file of someone else's making, can lead to overflow. An
infinity or NaN among predictions would be found much later, by someone else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError, NumericalError, TwoStageGPError

__all__ = ["predict_with", "require_finite"]


def require_finite(*answers: NDArray[np.float64] | None) -> None:
    """Raise where a prediction is NaN or infinite.

    Parameters
    ----------
    answers : arrays with a row a prediction, or None

    Examples
    --------
    >>> import numpy as np
    >>> require_finite(np.zeros(3), None)
    >>> require_finite(np.array([0.0, np.nan]))
    Traceback (most recent call last):
      ...
    twostagegp.errors.NumericalError: 1 of 2 predictions is not finite, the first in row 1; ...
    """
    for answer in answers:
        if answer is None or np.isfinite(answer).all():
            continue
        bad = [not np.isfinite(row).all() for row in answer]
        several = "is" if sum(bad) == 1 else "are"
        raise NumericalError(
            f"{sum(bad)} of {len(bad)} predictions {several} not finite, the first in row "
            f"{bad.index(True)}; the numbers overflow. Look for values of X far outside of those "
            "of the fit, or fit the model again if it comes from a file."
        )


def predict_with(model: Any, X: Any, method: str = "predict", **options: Any) -> Any:
    """What an estimator of another library answers; a refusal becomes an error of ours."""
    try:
        return getattr(model, method)(X, **options)
    except TwoStageGPError:
        raise
    except ValueError as error:
        name = type(model).__name__
        raise InputError(f"the {name} inside of the model cannot predict: {error}") from error
