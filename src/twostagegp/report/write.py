"""``write_report``: one page about a fitted model on test rows."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from twostagegp.errors import InputError
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.estimators.classifier import TwoStageGPClassifier
from twostagegp.report.classification import classification_context
from twostagegp.report.page import template_text, write_page
from twostagegp.report.regression import regression_context

__all__ = ["report_context", "write_report"]


#: Links at the top of the page: the id and the title of each section.
_CONTENTS = {
    "regression": [
        ("short", "In short"),
        ("observed", "Predicted and observed"),
        ("trust", "Intervals"),
        ("inputs", "Inputs"),
        ("left", "Residuals"),
        ("fitted", "What was fitted"),
        ("notes", "Notes"),
        ("times", "Time"),
    ],
    "classification": [
        ("short", "In short"),
        ("trust", "Probabilities"),
        ("errors", "Errors"),
        ("inputs", "Inputs"),
        ("fitted", "What was fitted"),
        ("notes", "Notes"),
        ("times", "Time"),
    ],
}


def write_report(
    model: Any, X: Any, y: Any, path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write a self-contained HTML page on how well a model predicts some test rows.

    A summary in words comes first, then pictures: predicted against observed outcomes, calibration,
    the predictions along each important input, the least certain rows, and what was fitted and why.
    The page loads nothing from elsewhere, follows the reader's colour scheme, and works without
    JavaScript. With many rows, pictures show a random sample of them; numbers use all rows.

    Parameters
    ----------
    model : fitted regressor or classifier of this package
        The model may also come from :func:`twostagegp.load`.
    X : data frame or array-like of shape (n, d)
        Test rows, with the columns of the fit. They should be new to the model: on its training
        rows a model looks better than it is.
    y : array-like of shape (n,) or (n, p)
        Their outcomes. The name of a pandas Series is used as the name of the target.
    path : path-like
        The file to write. Missing folders are created; a failure leaves an existing file unchanged.
    title : str, optional
        Heading of the page.

    Returns
    -------
    path : Path

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from twostagegp import ExactGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = ExactGPRegressor().fit(X[::2], np.sin(6 * X[::2, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, X[1::2], np.sin(6 * X[1::2, 0]), f"{folder}/page.html").name
    'page.html'
    """
    return write_page(path, report_context(model, X, y, title), "report.html.j2")


def report_context(model: Any, X: Any, y: Any, title: str | None = None) -> dict[str, Any]:
    """Return everything that the template of the page needs."""
    if isinstance(model, TwoStageGPClassifier):
        make = classification_context
    elif isinstance(model, BaseGPRegressor):
        make = regression_context
    else:
        raise InputError(
            f"model is a {type(model).__name__}; write_report takes a fitted "
            "TwoStageGPRegressor, ExactGPRegressor, GPNNRegressor or TwoStageGPClassifier."
        )
    check_is_fitted(model, "fit_report_")
    context = make(model, X, y)
    names = " and ".join(target["name"] for target in context["targets"][:3])
    script = template_text("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return {
        "title": title or f"How well is {names} predicted?",
        "script": script,
        "script_hash": f"sha256-{digest}",
        "extra": [],
        "contents": _CONTENTS[context["kind"]],
        **context,
    }
