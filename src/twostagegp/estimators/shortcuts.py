"""Methods of the estimators that lead to packages above this one.

Files, pictures, exports and Dask build on the estimators; ``model.save`` and the like are shortcuts
to them. This is the only module of ``estimators`` that imports them, each when it is called, so
that a fit loads neither matplotlib nor Dask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from twostagegp.errors import ModelFileError

__all__ = ["fit_dask", "plot", "predict_dask", "save", "to_botorch", "to_gpytorch"]


def plot(
    model: Any,
    X: Any,
    y: Any,
    features: str | Sequence[str] | None,
    level: float,
    target: int,
    ax: Any,
) -> Any:
    """Draw a fitted model; see :meth:`TwoStageGPRegressor.plot`."""
    from twostagegp.plotting.models import plot_model

    return plot_model(model, X, y, features=features, level=level, target=target, ax=ax)


def save(model: Any, path: str | PathLike[str], include_factors: bool) -> None:
    """Write a fitted model into a folder; see :meth:`TwoStageGPRegressor.save`."""
    if getattr(getattr(model, "fitted_", None), "remote", None) is not None:
        raise ModelFileError(
            "the training rows of this model are on the workers of a Dask cluster; only a model "
            "that was fitted to a pandas or numpy table can be saved."
        )
    from twostagegp.storage.model import save_model

    save_model(model, path, include_factors)


def to_gpytorch(model: Any) -> Any:
    """Export a fitted regressor; see :meth:`TwoStageGPRegressor.to_gpytorch`."""
    from twostagegp.interop.gpytorch_model import as_gpytorch

    return as_gpytorch(model)


def to_botorch(model: Any, local_scale: bool) -> Any:
    """Export a fitted regressor; see :meth:`TwoStageGPRegressor.to_botorch`."""
    from twostagegp.runtime.optional import require

    require("botorch", "botorch")
    from twostagegp.interop.botorch_model import as_botorch

    return as_botorch(model, local_scale)


def fit_dask(model: Any, fit_sample: Callable[..., Any], X: Any, y: Any, **options: Any) -> Any:
    """Fit a regressor to Dask collections; see :mod:`twostagegp.distributed.fitting`."""
    from twostagegp.distributed.fitting import fit_distributed

    return fit_distributed(model, fit_sample, X, y, **options)


def predict_dask(
    model: Any, X: Any, method: str, tails: list[tuple[int, ...]], options: dict[str, Any]
) -> Any:
    """Return lazy predictions for a Dask collection."""
    from twostagegp.distributed.predicting import lazy_predictions

    return lazy_predictions(model, X, method, tails, options)
