r"""Stacking: non-negative weights that sum to one over held-out predictions.

Given the held-out residuals :math:`E_{ic} = y_i - \hat m_c^{(-i)}(x_i)` of C candidates, the
stack's weights minimise the held-out squared error

.. math::

    \min_{w \ge 0,\; \mathbf 1^\top w = 1} \; w^\top \big( G + \rho\, \mathrm{diag}\, G \big) w,
    \qquad G = \tfrac1n E^\top E .

Because the weights sum to one, :math:`E w` is the stack's held-out residual. The small :math:`\rho`
spreads weight over candidates with nearly equal residuals. These weights were fitted to the row
whose residual they combine, so residuals for the next stage use weights fitted on other folds
(:func:`crossfitted_residuals`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

__all__ = ["crossfitted_residuals", "simplex_weights"]

Array = NDArray[np.float64]


def simplex_weights(E: Array, sample_weight: Array | None = None, ridge: float = 0.03) -> Array:
    r"""Return the weights of the stack from held-out residuals.

    Solved as one non-negative least-squares problem: with :math:`R^\top R` the matrix above, the
    minimiser of :math:`\|R w\|^2 + (\mathbf 1^\top w - 1)^2` over :math:`w \ge 0` is a positive
    multiple of the constrained minimiser.

    Parameters
    ----------
    E : array of shape (n, C)
        Held-out residuals, one column per candidate.
    sample_weight : array of shape (n,), optional
    ridge : float
        The :math:`\rho` above; docs/defaults.md has the measurements behind its default.

    Returns
    -------
    w : array of shape (C,)

    Examples
    --------
    >>> import numpy as np
    >>> e = np.array([1.0, -1.0, 1.0, -1.0])
    >>> f = np.array([1.0, 1.0, -1.0, -1.0])
    >>> simplex_weights(np.column_stack([e, f]), ridge=0.0)
    array([0.5, 0.5])
    """
    C = E.shape[1]
    if C == 1:
        return np.ones(1)
    w = np.ones(len(E)) if sample_weight is None else sample_weight
    G = (E * w[:, None]).T @ E / w.sum()
    diagonal = np.diag(G)
    scale = diagonal.min()
    if scale <= 0.0:  # a candidate without any error
        return (diagonal == scale) / np.count_nonzero(diagonal == scale)
    G = G / scale
    G[np.diag_indices(C)] *= 1.0 + ridge + 1e-12
    values, vectors = np.linalg.eigh(G)
    R = np.sqrt(np.clip(values, 0.0, None))[:, None] * vectors.T
    solution, _ = nnls(np.vstack([R, np.ones(C)]), np.append(np.zeros(C), 1.0))
    return solution / solution.sum()


def crossfitted_residuals(
    E: Array,
    folds: NDArray[np.int64],
    sample_weight: Array | None = None,
    ridge: float = 0.03,
) -> Array:
    """Return the residuals of the stack, each under weights fitted without the row's fold.

    Parameters
    ----------
    E : array of shape (n, C)
    folds : integer array of shape (n,)
        Fold of each row.

    Returns
    -------
    residuals : array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> E = np.random.default_rng(0).normal(size=(20, 2))
    >>> crossfitted_residuals(E, np.arange(20) % 5).shape
    (20,)
    """
    w = np.ones(len(E)) if sample_weight is None else sample_weight
    residuals = np.empty(len(E))
    for fold in np.unique(folds):
        out = folds == fold
        inside = ~out
        if not inside.any():
            inside = out
        residuals[out] = E[out] @ simplex_weights(E[inside], w[inside], ridge)
    return residuals
