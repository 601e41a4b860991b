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

from benchmarks.peers.base import Array, Fitted, NotInstalledError, Prediction, as_float64
from benchmarks.peers.ours import Ours
from twostagegp import TabPFNMean, TwoStageGPRegressor
from twostagegp.errors import InputError
from twostagegp.pipeline.mean.tabpfn import library

__all__ = ["DEVICE_VARIABLE", "WEIGHTS_VARIABLE", "fit", "fit_stack"]

WEIGHTS_VARIABLE = "TABPFN_WEIGHTS"
DEVICE_VARIABLE = "TABPFN_DEVICE"
MEMBERS = 8


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
    os.environ["HF_HUB_OFFLINE"] = "1"
    model = _library()(
        model_path=os.environ[WEIGHTS_VARIABLE],
        device=device,
        n_estimators=MEMBERS,
        random_state=seed,
        ignore_pretraining_limits=True,
    )
    return _Bars(model.fit(X, y), float(np.std(y)), device)


def fit_stack(X: Any, y: Array, seed: int) -> Fitted:
    """Fit this package's model whose stack has TabPFN as a further member."""
    _library()
    tabpfn = TabPFNMean(
        weights=os.environ[WEIGHTS_VARIABLE],
        device=os.environ.get(DEVICE_VARIABLE, "cpu"),
        members=MEMBERS,
    )
    model = TwoStageGPRegressor(mean=["stack", tabpfn], random_state=seed)
    return Ours(model.fit(X, y), float(np.std(y)))


def _library() -> Any:
    try:
        return library()
    except InputError as error:
        raise NotInstalledError("tabpfn") from error
