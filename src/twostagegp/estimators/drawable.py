"""The ``plot`` method of the regressors and of the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Drawable"]


class Drawable:
    """Gives an estimator ``plot``; matplotlib is imported when it is called, and not before."""

    def plot(
        self,
        X: Any = None,
        y: Any = None,
        *,
        features: str | Sequence[str] | None = None,
        level: float = 0.95,
        target: int = 0,
        ax: Any = None,
    ) -> Any:
        """Draw what the fitted model says, in the user's columns and units.

        One input: the prediction with its band, and the rows. Two: maps of the mean and of the
        standard deviation (for classes: of the probability and of its spread). More: predicted
        against observed where X and y are given (for classes: reliability and risk–coverage), else
        slices along the four inputs that matter most, the others at typical values.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d), optional
            Rows that give the range of the pictures; the training rows by default.
        y : array-like of shape (n,), optional
            Outcomes of X.
        features : str or sequence of str, optional
            Draw slices along these columns.
        level : float
            Probability of the bands.
        target : int
            Which target, where there are several.
        ax : Axes or sequence of Axes, optional
            Where to draw; a new figure by default. Nothing touches pyplot:
            ``model.plot()[0].figure.savefig("model.png")`` keeps a picture.

        Returns
        -------
        list of matplotlib Axes
        """
        from twostagegp.plotting.models import plot_model

        return plot_model(self, X, y, features=features, level=level, target=target, ax=ax)
