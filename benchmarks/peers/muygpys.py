"""MuyGPyS: local kriging, hyperparameters by leave-one-out prediction of a batch.

The workflow of its regression tutorials: exact neighbours, a batch of training rows, a
leave-one-out loss, ``Bayes_optimize`` with its default number of evaluations, then the analytic
scale. The tutorials fix the lengthscale and the noise and learn the smoothness; with real data
neither is known, so both are learned and the smoothness is fixed at 3/2, which has a closed form.
Of the losses that the tutorials use it is the squared error: the likelihood leaves the noise out of
the variance, so it misjudges how much there is and predicts training rows left out far worse.
Columns and target are standardised. The variance that the library returns is that of the function,
so the noise is added for an observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from MuyGPyS.gp import MuyGPS
from MuyGPyS.gp.deformation import Isotropy, l2
from MuyGPyS.gp.hyperparameter import AnalyticScale, Parameter
from MuyGPyS.gp.kernels import Matern
from MuyGPyS.gp.noise import HomoscedasticNoise
from MuyGPyS.neighbors import NN_Wrapper
from MuyGPyS.optimize import Bayes_optimize
from MuyGPyS.optimize.batch import sample_batch
from MuyGPyS.optimize.loss import mse_fn

from benchmarks.peers.base import Array, Fitted, Prediction, Scaling, as_float64, threads

__all__ = ["fit"]

NN_COUNT = 50
#: Within the range of 500 to 2000 that the tutorial recommends.
BATCH_COUNT = 1000
SMOOTHNESS = 1.5
#: Start and bounds of the lengthscale in units of √d, as distances between rows are. No wider, as
#: the search is not on a logarithmic scale.
LENGTHSCALE = (1.0, (0.01, 2.0))
#: Start and bounds of the noise variance as a share of that of the function.
NOISE = (0.1, (1e-5, 0.3))
INIT_POINTS = 5
N_ITER = 20
#: Rows predicted at a time: the neighbours' distances need 20 KB per row.
CHUNK = 2000


class _MuyGPs(Fitted):
    def __init__(
        self, model: Any, neighbours: Any, inputs: Array, target: Array, scaling: Scaling
    ) -> None:
        self.model = model
        self.neighbours = neighbours
        self.inputs = inputs
        self.target = target
        self.scaling = scaling

    def predict(self, X: Array) -> Prediction:
        parts = [
            self._predict(self.scaling.inputs(X[begin : begin + CHUNK]))
            for begin in range(0, len(X), CHUNK)
        ]
        mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        noise = float(self.model.scale()) * float(self.model.noise())
        return self.scaling.prediction(mean, variance + noise)

    def _predict(self, X: Array) -> tuple[Array, Array]:
        near, _ = self.neighbours.get_nns(X)
        crosswise, pairwise, targets = self.model.make_predict_tensors(
            np.arange(len(X)), near, X, self.inputs, self.target
        )
        Kcross, Kin = self.model.kernel(crosswise), self.model.kernel(pairwise)
        mean = self.model.posterior_mean(Kin, Kcross, targets)
        return as_float64(mean), as_float64(self.model.posterior_variance(Kin, Kcross))


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Find neighbours, draw a batch, learn lengthscale and noise, then the scale."""
    scaling = Scaling.of(X, y)
    inputs, target = scaling.inputs(X), scaling.target(y)
    unit = np.sqrt(X.shape[1])
    start, bounds = LENGTHSCALE
    model = MuyGPS(
        kernel=Matern(
            smoothness=Parameter(SMOOTHNESS),
            deformation=Isotropy(
                l2, length_scale=Parameter(start * unit, (bounds[0] * unit, bounds[1] * unit))
            ),
        ),
        noise=HomoscedasticNoise(*NOISE),
        scale=AnalyticScale(),
    )
    neighbours = NN_Wrapper(
        inputs,
        min(NN_COUNT, len(y) - 1),
        nn_method="exact",
        algorithm="ball_tree",
        n_jobs=threads(),
    )
    np.random.seed(seed)  # noqa: NPY002 - the library draws its batch from the global state
    batch, near = sample_batch(neighbours, min(BATCH_COUNT, len(y)), len(y))
    crosswise, pairwise, targets, near_targets = model.make_train_tensors(
        batch, near, inputs, target
    )
    model = Bayes_optimize(
        model,
        targets,
        near_targets,
        crosswise,
        pairwise,
        loss_fn=mse_fn,
        random_state=seed,
        init_points=INIT_POINTS,
        n_iter=N_ITER,
    )
    return _MuyGPs(
        model.optimize_scale(pairwise, near_targets), neighbours, inputs, target, scaling
    )
