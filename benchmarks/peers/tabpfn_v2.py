"""TabPFN v2, a transformer that was trained once on generated tables and predicts without a fit.

Eight members as by default; each normalises the table in its own way. The predictive distribution
is piecewise uniform; its outermost bars, halves of a Gaussian, count as uniform in quantiles.
Categories and gaps are passed on as they are: the library encodes them itself. Nothing is
downloaded: the file of the weights ``tabpfn-v2-regressor*.ckpt`` and the device are named by two
environment variables.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from benchmarks.peers.base import Array, Fitted, Prediction, as_float64

__all__ = ["DEVICE_VARIABLE", "WEIGHTS_VARIABLE", "fit"]

WEIGHTS_VARIABLE = "TABPFN_WEIGHTS"
DEVICE_VARIABLE = "TABPFN_DEVICE"
MEMBERS = 8


def _regressor() -> Any:
    """Import the library; version 2.0 needs a name that scikit-learn has had until 1.6."""
    from sklearn.utils import validation

    vars(validation).setdefault("_is_pandas_df", lambda X: hasattr(X, "iloc"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tabpfn import TabPFNRegressor

    return TabPFNRegressor


class _Bars(Fitted):
    def __init__(self, model: Any, y_scale: float, device: str) -> None:
        self.model = model
        self.y_scale = y_scale
        self.device = device
        self._of: Any = None
        self._found: Any = None

    def predict(self, X: Array) -> Prediction:
        found = self._distribution(X)
        std = found["criterion"].variance(found["logits"]).sqrt()
        return Prediction(as_float64(found["mean"]), as_float64(std.cpu().numpy()))

    def quantiles(self, X: Array, levels: Array) -> Array:
        # The library finds one level at a time, which takes longer than the prediction. Between the
        # borders of its bars the distribution function is linear.
        found = self._distribution(X)
        borders = found["criterion"].borders.cpu().numpy().astype(np.float64)
        mass = torch.softmax(found["logits"].double(), dim=-1).cpu().numpy()
        cdf = np.hstack([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)])
        return np.array([np.interp(levels, row / row[-1], borders) for row in cdf])

    def own_scores(self, X: Array, y: Array) -> dict[str, float]:
        found = self._distribution(X)
        target = torch.as_tensor(y, dtype=torch.float32).to(found["logits"].device)
        nlpd = float(found["criterion"](found["logits"], target).mean())
        return {"nlpd_own": nlpd - float(np.log(self.y_scale))}

    def facts(self) -> dict[str, Any]:
        return {"device": self.device}

    def _distribution(self, X: Array) -> Any:
        # A prediction takes as long as everything else together, so the last one is kept.
        if self._of is not X:
            self._of, self._found = X, self.model.predict(X, output_type="full")
        return self._found


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Store the training rows: predictions read them."""
    device = os.environ.get(DEVICE_VARIABLE, "cpu")
    model = _regressor()(
        model_path=os.environ[WEIGHTS_VARIABLE],
        device=device,
        n_estimators=MEMBERS,
        random_state=seed,
        ignore_pretraining_limits=True,
    )
    return _Bars(model.fit(X, y), float(np.std(y)), device)
